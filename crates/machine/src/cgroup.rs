//! The cgroup version of the machine.

use nix::sys::statfs::statfs;

/// Mount point of cgroups.
const MOUNT: &str = "/sys/fs/cgroup";
/// `f_type` of cgroup v2.
const CGROUP2_MAGIC: i64 = 0x6367_7270;

/// Whether cgroup v2 is unified. Hybrid hierarchies count as v1, as for
/// container runtimes.
pub fn is_unified() -> bool {
    statfs(MOUNT).is_ok_and(|stat| stat.filesystem_type().0 == CGROUP2_MAGIC)
}
