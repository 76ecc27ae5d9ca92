#!/bin/sh
# Installs the programs that were built, or removes them. A list of what was installed is kept, so that
# uninstall removes that and nothing else.
# usage: install.sh install|uninstall BIN_DIR DESTDIR PREFIX
set -eu
mode=$1 bin=$2 destdir=$3 prefix=$4
here=$(dirname "$0")/..
case $prefix in
/*) ;;
*) echo "install: PREFIX must be an absolute path, and not '$prefix'" >&2 && exit 2 ;;
esac
share=$prefix/share/longshore
list=$destdir$share/installed

uninstall() {
    [ -f "$list" ] || {
        echo "install: nothing is installed under $destdir$prefix" >&2
        return 1
    }
    while read -r file; do
        rm -f "$destdir$file"
    done <"$list"
    rm -f "$list"
    # Directories of our own go, and those of others do not.
    rmdir "$destdir$share/systemd/kubelet.service.d" "$destdir$share/systemd" "$destdir$share" 2>/dev/null || true
}

# Installs a file: MODE SOURCE PATH
put() {
    install -D -m "$1" "$2" "$destdir$3"
    echo "$3" >>"$list"
}

# The same with the paths of the programs that are installed.
put_unit() {
    sed "s|/usr/bin/longshore|$prefix/bin/longshore|g" "$1" >"$scratch/unit"
    put 644 "$scratch/unit" "$2"
}

case $mode in
uninstall) uninstall ;;
install)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    "$bin/longshore-manual" "$scratch/manual"
    # What an older release had and this one has not goes.
    [ ! -f "$list" ] || uninstall
    mkdir -p "$destdir$share"
    : >"$list"
    for program in longshore longshore-host longshore-apiserver longshore-controllers longshore-dns; do
        put 755 "$bin/$program" "$prefix/bin/$program"
    done
    for unit in "$here"/systemd/*.service "$here"/systemd/*.socket; do
        put_unit "$unit" "$prefix/lib/systemd/system/$(basename "$unit")"
    done
    put_unit "$here/systemd/kubelet.service.d/20-longshore.conf" "$share/systemd/kubelet.service.d/20-longshore.conf"
    for page in "$scratch"/manual/man8/*; do
        put 644 "$page" "$prefix/share/man/man8/$(basename "$page")"
    done
    for file in "$scratch"/manual/bash/*; do
        put 644 "$file" "$prefix/share/bash-completion/completions/$(basename "$file" .bash)"
    done
    for file in "$scratch"/manual/zsh/*; do
        put 644 "$file" "$prefix/share/zsh/site-functions/$(basename "$file")"
    done
    for file in "$scratch"/manual/fish/*; do
        put 644 "$file" "$prefix/share/fish/vendor_completions.d/$(basename "$file")"
    done
    echo "installed under $destdir$prefix; longshore up makes this machine a cluster"
    # Units of a directory that is to be packed are none of this machine's.
    if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
    ;;
*) echo "usage: $0 install|uninstall BIN_DIR DESTDIR PREFIX" >&2 && exit 2 ;;
esac
