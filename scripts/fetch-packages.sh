#!/bin/sh
# Unpacks packages of one of Debian's suites into a cache folder, unless they are there. They are fetched from
# the mirror that apt is set up with and checked against the mirror's signed index; the system is not touched.
#
#   fetch-packages.sh CACHE_FOLDER SUITE PACKAGE...
set -eu

[ $# -ge 3 ] || {
    echo "usage: fetch-packages.sh CACHE_FOLDER SUITE PACKAGE..." >&2
    exit 1
}
cache=$1
suite=$2
shift 2
[ "$(cat "$cache/packages" 2>/dev/null)" != "$*" ] || exit 0

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
    echo "fetch-packages: no Debian mirror in apt's sources" >&2
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

echo "fetch-packages: fetching $* of Debian $suite from $mirror" >&2
world_apt update >&2
(cd "$world" && world_apt download "$@" >&2)
for package in "$world"/*.deb; do
    dpkg -x "$package" "$cache"
done
echo "$*" >"$cache/packages"
