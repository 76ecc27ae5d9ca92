//! Who has which CPUs.

use std::collections::BTreeMap;

use crate::CpuSet;

/// CPUs by pod UID and container.
pub type Assignments = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// Who has which CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The CPUs of those that have none of their own.
    pub shared: CpuSet,
    /// The CPUs that containers have for themselves. Containers of one pod may have the same, where
    /// one runs after the other.
    pub assignments: Assignments,
}
