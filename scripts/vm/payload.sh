#!/bin/sh
# The payload's run.sh, in the guest: installs Longshore as on a node, and runs the cases.
set -eu
export LONGSHORE_BIN_DIR="$PWD/bin" LONGSHORE_SLOWNESS=5

install -m 755 bin/longshore /usr/bin/longshore
install -m 644 longshore.service /etc/systemd/system/longshore.service
install -D -m 644 node/containerd.toml /etc/containerd/config.toml
install -D -m 644 node/network.conflist /etc/cni/net.d/10-pods.conflist
install -D -m 644 node/kubelet.yaml /var/lib/kubelet/config.yaml
install -m 644 node/kubelet.env /etc/default/kubelet
mkdir -p /etc/kubernetes/manifests
ip link add node0 type dummy
ip addr add 198.18.0.2/32 dev node0
ip link set node0 up
systemctl daemon-reload
systemctl start containerd

failed=
# One line of `cases`: cases DRIVER MODULE TEST…; without a test, all of the module's.
cases() {
    driver=$1 module=$2
    shift 2
    start=$(date +%s) names="$module::" exact=
    if [ $# != 0 ]; then
        exact=--exact names=$(printf " $module::%s" "$@")
    fi
    # A name that no test has would pass.
    # shellcheck disable=SC2086 # words
    found=$(./node-tests --list --include-ignored $exact $names | grep -c ': test$') || true
    [ "$found" -gt 0 ] && [ "$found" -ge $# ] || {
        echo "vm: $module: not all of these tests are there: $names"
        failed="$failed $driver/$module"
        return
    }
    echo "vm: $module, driver $driver"
    # shellcheck disable=SC2086 # words
    LONGSHORE_CGROUP_DRIVER=$driver ./node-tests --include-ignored --color=never --test-threads=1 $exact $names ||
        failed="$failed $driver/$module"
    echo "vm: $module, driver $driver: $(($(date +%s) - start)) s"
}

# A run of the benchmark: bench DRIVER FLAG…
bench() {
    driver=$1
    shift
    LONGSHORE_CGROUP_DRIVER=$driver bin/longshore-bench "$@" || failed="$failed $driver/bench"
}

echo "vm: $(stat -fc %T /sys/fs/cgroup), $(uname -r), $(containerd --version | cut -d' ' -f3), $(systemctl --version | head -1)"
. ./cases
[ -z "$failed" ] || {
    echo "vm: failed:$failed"
    exit 1
}
