#!/bin/sh
# Runs a program of this project with another kubelet in the place of the node daemon:
#
#   with-kubelet.sh /path/to/kubelet target/release/longshore-bench --pods=100
#
# It is started with the same configuration file and the same flags as `longshore kubelet`; another
# kube-proxy in the same way as `longshore proxy`.
set -eu

[ $# -ge 2 ] && [ -x "$1" ] || {
    echo "usage: $0 KUBELET PROGRAM [ARGUMENT...]" >&2
    exit 2
}
kubelet=$(realpath "$1")
program=$(realpath "$2")
shift 2

bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
trap 'exit 1' INT TERM
ln -s "$(dirname "$program")"/longshore-* "$bin"
# The first argument is `kubelet` or `proxy`, which only Longshore has, as it has the flag.
cat >"$bin/longshore" <<PROGRAM
#!/bin/sh
shift
for argument; do
    shift
    [ "\$argument" = --keep-kernel-tunables ] || set -- "\$@" "\$argument"
done
exec "$kubelet" "\$@"
PROGRAM
chmod 755 "$bin/longshore"
LONGSHORE_BIN_DIR=$bin "$program" "$@"
