//! State of the CPU manager.

use std::collections::BTreeMap;

use crate::CpuSet;

/// CPUs by pod UID and container.
pub type Assignments = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// The CPU assignments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The shared CPUs.
    pub shared: CpuSet,
    /// Exclusive CPUs of containers. Containers of one pod that run one after the other may have the
    /// same.
    pub assignments: Assignments,
    /// The CPUs of whole pods, by UID: what their containers have is of these.
    pub pods: BTreeMap<String, CpuSet>,
}
