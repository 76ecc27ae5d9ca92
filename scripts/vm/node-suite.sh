#!/bin/sh
# Runs upstream's node suite in the guest. usage: node-suite.sh IMAGE_DIR BIN_DIR PEERS
# BIN_DIR has the program longshore; docs/testing.md says what the folder PEERS has. In the environment: FOCUS
# and SKIP (regular expressions), PROCS (specs at once), COMPARE=0 (without upstream's kubelet), TIMEOUT
# (seconds for each kubelet).
set -eu
image=$1 bin=$2 peers=$3
here=$(dirname "$0")
payload=$(mktemp -d)
trap 'rm -rf "$payload"' EXIT
trap 'exit 1' INT TERM

mkdir -p "$payload/ours" "$payload/theirs" "$payload/suite" "$payload/runtime" "$payload/images"
strip -o "$payload/ours/kubelet" "$bin/longshore"
for program in e2e_node.test ginkgo etcd; do
    [ -x "$peers/$program" ] || {
        echo "node-suite: there is no program $peers/$program" >&2
        exit 1
    }
    # Under emulation debug information only costs time.
    strip -o "$payload/suite/$program" "$peers/$program" 2>/dev/null || cp "$peers/$program" "$payload/suite"
done
if [ "${COMPARE:-1}" != 0 ] && [ -x "$peers/kubelet" ]; then
    cp -L "$peers/kubelet" "$payload/theirs/kubelet"
fi
if [ -x "$peers/containerd" ]; then
    for program in containerd containerd-shim-runc-v2 ctr; do
        cp -L "$peers/$program" "$payload/runtime"
    done
fi
if [ -d "$peers/images" ]; then
    cp -L "$peers"/images/*.tar "$payload/images"
fi
printf '%s' "${FOCUS:-\\[NodeConformance\\]}" >"$payload/focus"
# What NodeConformance in CI leaves out, and what needs a machine of its own.
printf '%s' "${SKIP-\\[Flaky\\]|\\[Slow\\]|\\[Serial\\]|\\[Alpha\\]}" >"$payload/skip"
printf '%s' "${PROCS:-1}" >"$payload/procs"
timeout=${TIMEOUT:-3600}
printf '%s' "$timeout" >"$payload/timeout"
cp -r "$here/node" "$payload"
install -m 755 "$here/node-suite-payload.sh" "$payload/run.sh"
# For both kubelets, and for the guest itself.
export VM_TIMEOUT=$((timeout * 2 + 900)) VM_MEMORY="${VM_MEMORY:-4096}"
"$here/run.sh" "$image" "$payload"
