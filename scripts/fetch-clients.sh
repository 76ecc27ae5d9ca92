#!/bin/sh
# Gets the clients that crates/apiserver/tests/tours.rs makes its tours with, from their languages' registries,
# into a cache folder: Python's in a virtual environment, JavaScript's in node_modules. Prints lines NAME=VALUE for
# the environment of the tests, of those that are there; what cannot be got is said and left out.
#
#   for client in $(fetch-clients.sh CACHE_FOLDER); do export "$client"; done
set -eu

cache=${1:?usage: fetch-clients.sh CACHE_FOLDER}
python_client=kubernetes==36.0.3
javascript_client=@kubernetes/client-node@1.4.0

mkdir -p "$cache"
if command -v python3 >/dev/null; then
    python="$cache/python-$python_client"
    if [ ! -e "$python/complete" ]; then
        echo "fetch-clients: getting $python_client" >&2
        rm -rf "$python"
        if python3 -m venv "$python" >&2 && timeout 300 "$python/bin/pip" install -q --disable-pip-version-check "$python_client" >&2; then
            touch "$python/complete"
        fi
    fi
    if [ -e "$python/complete" ]; then
        echo "TOUR_PYTHON=$python/bin/python3"
    else
        echo "fetch-clients: $python_client is not to be had" >&2
    fi
fi
if command -v npm >/dev/null; then
    modules="$cache/npm-$(echo "$javascript_client" | tr / -)"
    if [ ! -e "$modules/complete" ]; then
        echo "fetch-clients: getting $javascript_client" >&2
        rm -rf "$modules"
        mkdir -p "$modules"
        if (cd "$modules" && timeout 300 npm install --silent --no-fund --no-audit "$javascript_client" >&2); then
            touch "$modules/complete"
        fi
    fi
    if [ -e "$modules/complete" ]; then
        echo "NODE_PATH=$modules/node_modules"
    else
        echo "fetch-clients: $javascript_client is not to be had" >&2
    fi
fi
