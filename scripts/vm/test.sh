#!/bin/sh
# Runs the cases in the guest. usage: test.sh IMAGE_DIR BIN_DIR
# BIN_DIR has the programs, built before; the tests are built here. VM_CASES: a list of one's own.
set -eu
image=$1 bin=$2
here=$(dirname "$0")
cases=${VM_CASES:-$here/cases}
payload=$(mktemp -d)
trap 'rm -rf "$payload"' EXIT
trap 'exit 1' INT TERM

mkdir -p "$payload/bin"
for program in longshore longshore-apiserver longshore-controllers longshore-bench; do
    strip -o "$payload/bin/$program" "$bin/$program"
done
if grep -q '^ *cases ' "$cases"; then
    # As `make test` builds them, so that nothing is compiled twice.
    cargo test --workspace --no-run --message-format=json-render-diagnostics --test node >"$payload/built"
    built=$(sed -n 's|.*"executable":"\([^"]*/node-[0-9a-f]*\)".*|\1|p' "$payload/built" | tail -1)
    strip -o "$payload/node-tests" "$built"
    rm -f "$payload/built"
fi
cp "$cases" "$payload/cases"
cp -r "$here/node" "$here/../../systemd/longshore.service" "$payload"
install -m 755 "$here/payload.sh" "$payload/run.sh"
"$here/run.sh" "$image" "$payload"
