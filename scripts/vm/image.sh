#!/bin/sh
# The guest that cgroup v2 and systemd are tested in: a small Debian 13 with containerd, made once
# and kept in a cache folder. usage: image.sh DIR; leaves DIR/{vmlinuz,initrd,root.img}.
set -eu
dir=$1
here=$(dirname "$0")
# Another recipe is another image.
recipe=$(cat "$0" "$here/guest.sh" "$here/guest.service" | sha256sum | cut -c1-16)
[ "$(cat "$dir/recipe" 2>/dev/null)" = "$recipe" ] && exit 0

mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages=systemd,systemd-sysv,dbus,udev,kmod,iproute2,iptables,conntrack,procps,ca-certificates
packages=$packages,containerd,runc,containernetworking-plugins,busybox-static
packages=$packages,linux-image-cloud-amd64,initramfs-tools,e2fsprogs,apparmor,docker.io

echo "vm: making the guest's image in $dir; this happens once"
rm -rf "$dir"
mkdir -p "$dir"
root=$dir/root
debootstrap --variant=minbase --include="$packages" trixie "$root" "$mirror" >"$dir/debootstrap.log" 2>&1 || {
    tail -20 "$dir/debootstrap.log"
    exit 1
}
echo longshore-vm >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 longshore-vm\n' >"$root/etc/hosts"
cat >"$root/etc/fstab" <<'FSTAB'
/dev/vda / ext4 rw,noatime 0 0
/dev/vdb /payload ext4 ro 0 0
FSTAB
mkdir -p "$root/payload"
install -m 755 "$here/guest.sh" "$root/usr/local/sbin/guest.sh"
install -m 644 "$here/guest.service" "$root/etc/systemd/system/guest.service"
units=$root/etc/systemd/system
mkdir -p "$units/multi-user.target.wants"
ln -s ../guest.service "$units/multi-user.target.wants/guest.service"
# The serial line is the test's; timers and seeds only cost time under emulation.
for unit in serial-getty@ttyS0.service getty@tty1.service apt-daily.timer apt-daily-upgrade.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer dpkg-db-backup.timer \
    systemd-networkd-wait-online.service apparmor.service docker.service docker.socket; do
    ln -sf /dev/null "$units/$unit"
done
# A test starts it when its configuration is written.
rm -f "$units/multi-user.target.wants/containerd.service"
cp "$root"/boot/vmlinuz-* "$dir/vmlinuz"
cp "$root"/boot/initrd.img-* "$dir/initrd"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man
mke2fs -q -t ext4 -d "$root" "$dir/root.img" 4G >/dev/null
rm -rf "$root"
echo "$recipe" >"$dir/recipe"
