//! The cgroup version of the machine.

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// Mount point of cgroups.
const MOUNT: &str = "/sys/fs/cgroup";

/// Whether cgroup v2 is unified. Hybrid hierarchies count as v1, as for
/// container runtimes.
pub fn is_unified() -> bool {
    statfs(MOUNT).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC)
}
