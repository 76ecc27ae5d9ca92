//! Which version of cgroups the machine has.

use nix::sys::statfs::statfs;

/// Where cgroups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// `f_type` of cgroup v2.
const CGROUP2_MAGIC: i64 = 0x6367_7270;

/// Whether the machine has cgroup v2 alone. One that has v1 controllers beside a v2 tree (hybrid)
/// is one of v1, as it is for runtimes.
pub fn is_unified() -> bool {
    statfs(MOUNT).is_ok_and(|stat| stat.filesystem_type().0 == CGROUP2_MAGIC)
}
