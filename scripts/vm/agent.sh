#!/bin/bash
# The payload's run.sh, in a guest that a test drives: runs what comes through a serial port of virtio, one command
# after the other, until the machine goes down. `crates/testkit/src/guest.rs` is the other end.
# A request is a line `ID COMMAND`, the answer `ID CODE OUTPUT`; COMMAND and OUTPUT are in base64.
port=/dev/virtio-ports/longshore.agent
for _ in $(seq 600); do
    [ -e $port ] && break
    sleep 0.1
done
# Commands get a file for their output, and may leave processes behind that keep it open.
scratch=$(mktemp -d)
exec 3<>$port
while :; do
    # A port whose other end is not connected is at its end.
    read -r id command <&3 || {
        sleep 0.2
        continue
    }
    printf %s "$command" | base64 -d >"$scratch/command"
    code=0
    bash "$scratch/command" >"$scratch/output" 2>&1 </dev/null 3>&- || code=$?
    printf '%s %s %s\n' "$id" "$code" "$(base64 -w0 <"$scratch/output")" >&3
done
