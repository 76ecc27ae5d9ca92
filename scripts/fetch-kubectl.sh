#!/bin/sh
# Makes sure that there is a kubectl of 1.32 or later for the tests that use it. Without one in PATH, Debian
# 13's package is unpacked into a cache folder, whose name is printed for the PATH.
#
#   fetch-kubectl.sh CACHE_FOLDER
set -eu

cache=${1:?usage: fetch-kubectl.sh CACHE_FOLDER}
suite=trixie

# Succeeds for a kubectl whose version is 1.32 or later.
is_recent() {
    minor=$("$1" version --client -o json 2>/dev/null |
        sed -n 's/.*"minor": *"\([0-9]*\).*/\1/p' | head -n 1)
    [ "${minor:-0}" -ge 32 ]
}

if found=$(command -v kubectl) && is_recent "$found"; then
    exit 0
fi
"$(dirname "$0")/fetch-packages.sh" "$cache" "$suite" kubectl
is_recent "$cache/usr/bin/kubectl" || {
    echo "fetch-kubectl: the kubectl of Debian $suite is too old or does not run here" >&2
    exit 1
}
echo "$cache/usr/bin"
