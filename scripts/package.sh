#!/bin/sh
# Packs programs that were built: Debian's packages by debhelper, or a tarball that needs no package manager.
# Given the same programs twice, it makes the same bytes.
# usage: package.sh deb|tarball BIN_DIR OUT_DIR [PLATFORM]
# PLATFORM: the last part of the tarball's name, where the programs are not for this machine
# DEB_COMPRESSION: options of dpkg-deb, such as -Zgzip
set -eu
usage() {
    echo "usage: $0 deb|tarball BIN_DIR OUT_DIR [PLATFORM]" >&2
    exit 2
}
[ $# = 3 ] || [ $# = 4 ] || usage
kind=$1
platform=${4:-$(uname -m)-linux}
source=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)

version=$(sed -n '/^\[workspace.package\]/,/^\[.*\]/s/^version = "\(.*\)"/\1/p' "$source/Cargo.toml")
[ -n "$version" ] || {
    echo "package: $source/Cargo.toml has no version" >&2
    exit 1
}
# The date of the last change, so that it is no news when packages are made again. Outside of git: of the list of changes.
: "${SOURCE_DATE_EPOCH:=$(git -C "$source" log -1 --format=%ct 2>/dev/null || stat -c %Y "$source/CHANGELOG.md")}"
export SOURCE_DATE_EPOCH

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM HUP

deb() {
    for tool in dh dpkg-deb; do
        command -v $tool >/dev/null || {
            echo "package: $tool is not installed: apt-get install debhelper" >&2
            exit 1
        }
    done
    tree=$scratch/longshore
    mkdir "$tree"
    cp -R "$source/packaging/debian" "$tree/debian"
    {
        printf 'longshore (%s) unstable; urgency=medium\n\n' "$version"
        printf '  * See /usr/share/doc/longshore/changelog.gz.\n\n'
        printf ' -- Longshore maintainers <maintainers@longshore.invalid>  %s\n' \
            "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
    } >"$tree/debian/changelog"
    (cd "$tree" && LONGSHORE_BIN=$bin LONGSHORE_SOURCE=$source ./debian/rules binary) >"$scratch/log" 2>&1 || {
        cat "$scratch/log" >&2
        exit 1
    }
    for package in "$scratch"/*.deb; do
        mv "$package" "$out/"
        echo "$out/$(basename "$package")"
    done
}

tarball() {
    name=longshore-$version-$platform
    tree=$scratch/$name
    mkdir -p "$tree/bin" "$tree/scripts"
    for program in longshore longshore-host longshore-apiserver longshore-controllers longshore-dns longshore-manual; do
        install -m 755 "$bin/$program" "$tree/bin/$program"
    done
    cp "$source/scripts/install.sh" "$tree/scripts/"
    cp -R "$source/systemd" "$source/docs" "$source/README.md" "$source/CHANGELOG.md" "$source/LICENSE" "$tree/"
    tar -C "$scratch" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go+rX-w \
        -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
    echo "$out/$name.tar.gz"
}

case $kind in
deb) deb ;;
tarball) tarball ;;
*) usage ;;
esac
