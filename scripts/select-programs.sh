#!/bin/sh
# Makes a folder of links to the programs that tests are to use, and prints it for the PATH: the
# containerd at a path, with ctr and the shim beside it, the kubectl and the dockerd at a path. Nothing is
# printed when none is given.
#
#   select-programs.sh FOLDER CONTAINERD KUBECTL DOCKERD
set -eu

folder=${1:?usage: select-programs.sh FOLDER CONTAINERD KUBECTL DOCKERD}
containerd=${2-}
kubectl=${3-}
dockerd=${4-}
[ -n "$containerd$kubectl$dockerd" ] || exit 0

rm -rf "$folder"
mkdir -p "$folder"
link() {
    [ -x "$1" ] || {
        echo "select-programs: there is no program $1" >&2
        exit 1
    }
    ln -s "$(realpath "$1")" "$folder/$2"
}
if [ -n "$containerd" ]; then
    link "$containerd" containerd
    for name in ctr containerd-shim-runc-v2; do
        link "$(dirname "$containerd")/$name" "$name"
    done
fi
if [ -n "$kubectl" ]; then
    link "$kubectl" kubectl
fi
if [ -n "$dockerd" ]; then
    link "$dockerd" dockerd
fi
realpath "$folder"
