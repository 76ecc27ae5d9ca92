#!/bin/sh
# Runs statically linked programs where other systems are: a control plane in the root directory of each, without what
# the system has and in namespaces of its own, then a whole cluster on this machine.
# usage: static-test.sh BIN_DIR CACHE_DIR
# DEBIAN_MIRROR: where the systems come from; SUITES="bullseye bookworm trixie": which
set -eu
[ $# = 2 ] || {
    echo "usage: $0 BIN_DIR CACHE_DIR" >&2
    exit 2
}
bin=$(cd "$1" && pwd)
mkdir -p "$2"
cache=$(cd "$2" && pwd)
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
suites=${SUITES:-bullseye bookworm trixie}
programs="longshore longshore-host longshore-apiserver longshore-controllers longshore-dns"

fail() {
    echo "static-test: $*" >&2
    exit 1
}

for program in $programs; do
    [ -x "$bin/$program" ] || fail "$bin/$program is not built"
    segments=$(readelf -lW "$bin/$program")
    case $segments in *INTERP*) fail "$bin/$program needs a dynamic loader" ;; esac
done

# What runs in the namespaces: the programs with another root directory, and curl and nslookup of this machine.
cat >"$cache/run.sh" <<'SCRIPT'
set -eu
root=$1
ip link set lo up
mount -t proc proc "$root/proc"
inside() { chroot "$root" "$@"; }
logs() { tail -n 5 "$root"/state/*.log >&2; }
trap 'status=$?; [ $status = 0 ] || logs; kill $(jobs -p) 2>/dev/null || true' EXIT
# until SECONDS COMMAND...
until_true() {
    what=$1
    shift
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "static-test: not in 30 s: $what" >&2
    exit 1
}
rm -rf "$root/state"
mkdir "$root/state"
inside /longshore version | grep -q '^Kubernetes v'
inside /longshore-host check -o json >"$root/state/check.json" || [ $? = 1 ]
grep -q '"checks"\|"name"' "$root/state/check.json"
inside /longshore-apiserver --data-dir=/state/data --cert-dir=/state/pki --bind-address=127.0.0.1 \
    >"$root/state/apiserver.log" 2>&1 &
pki=$root/state/pki
api() {
    method=$1 path=$2
    shift 2
    curl -fsS --cacert "$pki/ca.crt" --cert "$pki/client-kubernetes-admin.crt" --key "$pki/client-kubernetes-admin.key" \
        -X "$method" -H 'Content-Type: application/json' "https://127.0.0.1:6443$path" "$@"
}
until_true "the apiserver is ready" api GET /readyz
inside /longshore-controllers --kubeconfig=/state/pki/admin.conf --leader-elect=false >"$root/state/controllers.log" 2>&1 &
inside /longshore-dns --kubeconfig=/state/pki/admin.conf --listen=127.0.0.1:53 --health-addr= --metrics-addr= --forward=127.0.0.2 \
    >"$root/state/dns.log" 2>&1 &
api POST /api/v1/namespaces -d '{"metadata":{"name":"demo"}}' >"$root/state/namespace.json"
until_true "the service account of a namespace" api GET /api/v1/namespaces/demo/serviceaccounts/default
until_true "the name of a service" busybox nslookup kubernetes.default.svc.cluster.local 127.0.0.1
api DELETE /api/v1/namespaces/demo >/dev/null
gone() { ! api GET "$1"; }
until_true "the namespace is gone" gone /api/v1/namespaces/demo
SCRIPT

in_root() {
    name=$1 root=$2
    for program in $programs; do
        cp "$bin/$program" "$root/"
    done
    unshare --mount --net --pid --fork --kill-child sh "$cache/run.sh" "$root" || fail "$name: failed"
    echo "static-test: $name: ok"
}

empty=$cache/empty
rm -rf "$empty"
mkdir -p "$empty/proc" "$empty/etc" "$empty/tmp"
in_root "a directory with nothing but the programs" "$empty"
for suite in $suites; do
    root=$cache/$suite
    [ -f "$root/etc/debian_version" ] || {
        rm -rf "$root"
        debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$cache/$suite.log" 2>&1 || {
            tail -5 "$cache/$suite.log" >&2
            rm -rf "$root"
            fail "debootstrap of $suite failed"
        }
    }
    in_root "Debian $(cat "$root/etc/debian_version")" "$root"
done
"$bin/longshore-demo" --once || fail "the cluster on this machine failed"
echo "static-test: a cluster on this machine: ok"
