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
# One line of `cases`.
cases() {
    driver=$1 program=$2
    shift 2
    [ -x "tests/$program" ] || {
        echo "vm: there is no program $program of tests"
        failed="$failed $driver/$program"
        return
    }
    exact=
    [ $# = 0 ] || exact=--exact
    echo "vm: $program, driver $driver"
    start=$(date +%s)
    # shellcheck disable=SC2086 # one word or none
    LONGSHORE_CGROUP_DRIVER=$driver "tests/$program" --include-ignored --color=never --test-threads=1 $exact "$@" ||
        failed="$failed $driver/$program"
    echo "vm: $program, driver $driver: $(($(date +%s) - start)) s"
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
