#!/bin/sh
# The payload's run.sh, in the guest: runs upstream's node suite with longshore as its kubelet, and with
# upstream's kubelet if that is there, and shows where their outcomes differ.
set -eu
work=/var/tmp/node-suite
mkdir -p "$work"
# The suite writes beside itself.
cp -r ours theirs suite "$work"
for program in runtime/*; do
    if [ -x "$program" ]; then install -m 755 "$program" /usr/bin; fi
done
sed 's|longshore.local/pause:1|registry.k8s.io/pause:3.10|' node/containerd.toml >"$work/containerd.toml"
install -D -m 644 "$work/containerd.toml" /etc/containerd/config.toml
install -D -m 644 node/network.conflist /etc/cni/net.d/10-pods.conflist
# Kubelets look for the address of the default route.
ip link add node0 type dummy
ip addr add 198.18.0.2/24 dev node0
ip link set node0 up
ip route add default dev node0
systemctl start containerd
for image in images/*.tar; do
    if [ -e "$image" ]; then ctr -n k8s.io images import "$image" >/dev/null; fi
done
cat >"$work/kubelet.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
cgroupRoot: /
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
resolvConf: /etc/resolv.conf
serializeImagePulls: false
failSwapOn: false
CONFIG
[ -e /etc/resolv.conf ] || echo 'nameserver 198.18.0.2' >/etc/resolv.conf

# Specs that change the configuration restart the kubelet by it.
printf '#!/bin/sh\nexec "$@"\n' >"$work/suite/sudo"
chmod 755 "$work/suite/sudo"

# suite NAME: runs it with the kubelet of that folder; leaves `STATUS NAME` of each spec in $work/NAME.txt.
suite() {
    kubelet=$1 out=$work/$1-report
    mkdir -p "$out"
    start=$(date +%s)
    echo "vm: node suite with the kubelet of $kubelet"
    code=0
    PATH=$work/suite:$PATH ginkgo --procs="$(cat procs)" --focus="$(cat focus)" --skip="$(cat skip)" --no-color \
        --timeout="$(cat timeout)s" --junit-report="$kubelet.xml" --output-dir="$out" "$work/suite/e2e_node.test" -- \
        --k8s-bin-dir="$work/$kubelet" --node-name="$(hostname)" --report-dir="$out" --prepull-images=false \
        --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
        --container-runtime-process-name=/usr/bin/containerd --container-runtime-pid-file= \
        --kubelet-flags=--runtime-cgroups=/system.slice/containerd.service \
        --kubelet-config-file="$work/kubelet.yaml" >"$out/log" 2>&1 || code=$?
    grep -o '<testcase name="\[It\][^"]*"[^>]* status="[a-z]*"' "$out/$kubelet.xml" |
        sed 's/<testcase name="\[It\] *\([^"]*\)".* status="\([a-z]*\)"/\2 \1/' |
        grep -v '^skipped ' | sort -k 2 >"$work/$kubelet.txt" || true
    grep -aE '^Ran [0-9]|^(SUCCESS|FAIL)!' "$out/log" || tail -40 "$out/log"
    sed 's/^/vm: /' "$work/$kubelet.txt"
    echo "vm: node suite with the kubelet of $kubelet: exit $code, $(($(date +%s) - start)) s"
    [ "$code" = 0 ] || grep -aE '^ +\[(FAIL|TIMEDOUT|PANICKED|INTERRUPTED)\]' "$out/log" | sort -u || true
    # The first reasons.
    [ "$code" = 0 ] || grep -aE -m 5 -A 6 '^ +\[FAILED\]' "$out/log" || true
    return "$code"
}

echo "vm: $(stat -fc %T /sys/fs/cgroup), $(uname -r), $(containerd --version | cut -d' ' -f3), $(systemctl --version | head -1)"
ours=0
suite ours || ours=$?
[ -s "$work/ours.txt" ] || {
    echo "vm: no spec was run"
    exit 1
}
[ -x "$work/theirs/kubelet" ] || exit "$ours"
suite theirs || true
echo "vm: outcomes that differ (<: longshore, >: upstream's kubelet):"
diff "$work/ours.txt" "$work/theirs.txt" && echo "vm: none"
# What fails with either is the guest's.
passed=$(sed -n 's/^passed //p' "$work/theirs.txt")
if grep -v '^passed ' "$work/ours.txt" | cut -d' ' -f2- | grep -Fx "${passed:-nothing}" >"$work/worse"; then
    sed 's/^/vm: passes with the kubelet of upstream alone: /' "$work/worse"
    exit 1
fi
