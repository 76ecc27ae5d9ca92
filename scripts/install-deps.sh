#!/bin/sh
# Installs what building and running Longshore needs from Debian's packages, and only what is
# missing. Nothing that a package brings along is started or enabled.
#
#   install-deps.sh [run|docker|test|vm|deb|static [ARCH]|static-test]
#       docker adds the Docker Engine, test what only the tests need, vm what those in the virtual machine need; deb is
#       what packages are made with; static is what builds static programs for an architecture as `uname -m` prints
#       it, and static-test what these are tested with
set -eu

mode=${1:-run}
run_packages="gcc libc6-dev pkg-config ca-certificates
    containerd runc containernetworking-plugins iptables conntrack busybox-static
    iproute2 util-linux protobuf-compiler libprotobuf-dev"
test_packages="etcd-server docker-registry docker.io curl nftables openssl e2fsprogs debhelper lintian"
deb_packages="gcc libc6-dev pkg-config protobuf-compiler libprotobuf-dev debhelper lintian"
static_packages="gcc-$(echo "${2:-$(uname -m)}" | tr _ -)-linux-gnu libc6-dev pkg-config protobuf-compiler libprotobuf-dev"
vm_packages="qemu-system-x86 debootstrap e2fsprogs binutils"

case $mode in
run) packages=$run_packages ;;
docker) packages="$run_packages docker.io" ;;
test) packages="$run_packages $test_packages" ;;
vm) packages="$run_packages $vm_packages" ;;
deb) packages=$deb_packages ;;
static) packages=$static_packages ;;
static-test) packages="$run_packages debootstrap curl" ;;
*)
    echo "usage: $0 [run|docker|test|vm|deb|static [ARCH]|static-test]" >&2
    exit 2
    ;;
esac

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# A containerd, runc or etcd from elsewhere (upstream's or Docker's packages) does as well.
is_provided() {
    case $1 in
    gcc) command -v cc ;;
    gcc-*-linux-gnu) command -v "$(uname -m)-linux-gnu-gcc" && [ "$1" = "gcc-$(uname -m | tr _ -)-linux-gnu" ] ;;
    containerd) command -v containerd && command -v ctr ;;
    runc) command -v runc ;;
    etcd-server) command -v etcd ;;
    docker-registry) command -v docker-registry ;;
    docker.io) command -v dockerd ;;
    protobuf-compiler) command -v protoc ;;
    containernetworking-plugins) [ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] ;;
    *) false ;;
    esac >/dev/null 2>&1
}

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
missing=
for package in $packages; do
    is_installed "$package" || is_provided "$package" || missing="$missing $package"
done

if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || {
        echo "install-deps: no apt-get here; please install:$missing" >&2
        exit 1
    }
    [ "$(id -u)" = 0 ] || {
        echo "install-deps: needs root to install:$missing" >&2
        exit 1
    }
    echo "install-deps: installing$missing"

    # A package's scripts ask policy-rc.d before they start a service: say no for this while.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap 'rm -f $policy' EXIT
        trap "exit 1" INT TERM
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
    fi
    # What is not enabled now must not be enabled by a package's script either.
    new_units=
    for unit in containerd.service etcd.service docker-registry.service docker.service docker.socket; do
        [ -e "/lib/systemd/system/$unit" ] || new_units="$new_units $unit"
    done

    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    # shellcheck disable=SC2086 # one word per package
    apt-get install -qy --no-install-recommends $missing

    for unit in $new_units; do
        if [ -e "/lib/systemd/system/$unit" ] && command -v systemctl >/dev/null; then
            systemctl disable --quiet "$unit" 2>/dev/null || true
        elif [ -e "/etc/init.d/${unit%.service}" ]; then
            update-rc.d "${unit%.service}" disable || true
        fi
    done
else
    echo "install-deps: all packages are installed"
fi

command -v cargo >/dev/null || {
    echo "install-deps: no Rust toolchain: install it with rustup (https://rustup.rs)" >&2
    exit 1
}
