#!/bin/sh
# Boots the guest with a payload and shows what it says. usage: run.sh IMAGE_DIR PAYLOAD_DIR
# The payload's own run.sh is run as root; its exit code becomes this one's. VM_TIMEOUT: seconds.
set -eu
image=$1 payload=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT INT TERM

size=$(du -sm "$payload" | cut -f1)
mke2fs -q -t ext4 -d "$payload" "$scratch/payload.img" >/dev/null "$((size + size / 4 + 16))M"

panicked() {
    grep -q 'Kernel panic' "$scratch/serial"
}

# Boots the guest once; what it says is in $scratch/serial.
# Writes of the guest go to a file that is thrown away.
# No KVM: it cannot boot a stock kernel everywhere. Without -cx16 the guest's kernel panics.
boot() {
    : >"$scratch/serial"
    timeout "${VM_TIMEOUT:-3000}" qemu-system-x86_64 \
        -accel tcg,thread=multi -cpu max,-cx16 -smp "$(nproc)" -m "${VM_MEMORY:-3072}" \
        -kernel "$image/vmlinuz" -initrd "$image/initrd" \
        -append "root=/dev/vda rw console=ttyS0 TERM=dumb quiet systemd.show_status=false loglevel=3 panic=-1" \
        -drive "file=$image/root.img,format=raw,if=virtio,snapshot=on" \
        -drive "file=$scratch/payload.img,format=raw,if=virtio,readonly=on" \
        -nic none -display none -monitor none -serial "file:$scratch/serial" -no-reboot &
    vm=$!
    tail -n +1 -f --pid="$vm" "$scratch/serial" 2>/dev/null &
    # One that panics may hang, and is ended.
    while sleep 5 && kill -0 "$vm"; do
        ! panicked || { sleep 5 && kill "$vm"; }
    done 2>/dev/null &
    watch=$!
    ended=0
    wait "$vm" || ended=$?
    kill "$watch"
    ! panicked || return 0
    case $ended in
    0) ;;
    124) echo "vm: the guest did not power off in time" && exit 1 ;;
    *) echo "vm: qemu ended with $ended" && exit 1 ;;
    esac
}

# A guest's kernel patches its own code while it boots or loads modules, which the emulation of several
# CPUs gets wrong once in many times: then it panics, and is booted again.
for attempt in 1 2 3; do
    boot
    panicked || break
done
code=$(sed -n 's/.*vm: payload exit \([0-9]*\).*/\1/p' "$scratch/serial" | tail -1)
[ -n "$code" ] || { echo "vm: the payload never ended, at boot $attempt"; exit 1; }
exit "$code"
