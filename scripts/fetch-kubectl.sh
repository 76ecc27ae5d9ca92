#!/bin/sh
# Makes sure that there is a kubectl of 1.32 or later for the tests that use it. Without one in
# PATH, Debian 13's package is fetched from the mirror that apt is set up with, checked against the
# mirror's signed index, and unpacked into a cache folder, whose name is printed for the PATH; the
# system is not touched.
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
if [ -x "$cache/usr/bin/kubectl" ] && is_recent "$cache/usr/bin/kubectl"; then
    echo "$cache/usr/bin"
    exit 0
fi

# The first mirror of Debian itself, in either of apt's two formats.
mirror=$(
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\(https\{0,1\}:[^ ]*\) .*/\2/p'
    cat /etc/apt/sources.list.d/*.sources 2>/dev/null |
        sed -n 's/^URIs: *\(https\{0,1\}:[^ ]*\).*/\1/p'
)
mirror=$(echo "$mirror" | grep '/debian/\{0,1\}$' | head -n 1)
mirror=${mirror%/}
[ -n "$mirror" ] || {
    echo "fetch-kubectl: no Debian mirror in apt's sources" >&2
    exit 1
}
arch=$(dpkg --print-architecture)

# apt fetches and verifies, in a world of its own: one source, own state, own cache.
mkdir -p "$cache"
world=$(mktemp -d "$cache/apt.XXXXXX")
trap 'rm -rf "$world"' EXIT
trap 'exit 1' INT TERM
mkdir -p "$world/lists/partial" "$world/archives/partial" "$world/etc"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [arch=$arch signed-by=$keyring] $mirror $suite main" >"$world/etc/sources.list"
touch "$world/status"

world_apt() {
    apt-get -q \
        -o Dir::Etc::sourcelist="$world/etc/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State::lists="$world/lists" -o Dir::State::status="$world/status" \
        -o Dir::Cache="$world" -o Dir::Cache::archives="$world/archives" \
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o APT::Sandbox::User=root "$@"
}

echo "fetch-kubectl: fetching kubectl of Debian $suite from $mirror" >&2
world_apt update >&2
(cd "$world" && world_apt download kubectl >&2)
dpkg -x "$world"/kubectl_*.deb "$cache"

is_recent "$cache/usr/bin/kubectl" || {
    echo "fetch-kubectl: the kubectl of Debian $suite is too old or does not run here" >&2
    exit 1
}
echo "$cache/usr/bin"
