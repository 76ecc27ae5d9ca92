//! Topology of the machine: CPUs in cores, sockets, caches and NUMA nodes, and the memory of nodes.
//! Plain data.

use std::collections::{BTreeMap, BTreeSet};

use crate::CpuSet;

/// Topology of a CPU (hardware thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuInfo {
    /// The lowest CPU of its core: the identity of the core.
    pub core: u32,
    /// Its socket.
    pub socket: i32,
    /// Its NUMA node.
    pub numa: u32,
    /// The uncore cache, shared with other cores of the node; the socket if there is none.
    pub uncore: i32,
}

/// The online CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(BTreeMap<u32, CpuInfo>);

/// A level of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Numa,
    Socket,
    Uncore,
    Core,
}

impl CpuInfo {
    pub(crate) fn at(&self, level: Level) -> i64 {
        match level {
            Level::Numa => self.numa.into(),
            Level::Socket => self.socket.into(),
            Level::Uncore => self.uncore.into(),
            Level::Core => self.core.into(),
        }
    }
}

impl Cpus {
    /// All of them.
    pub fn all(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// The number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The topology of a CPU.
    pub fn info(&self, cpu: u32) -> Option<CpuInfo> {
        self.0.get(&cpu).copied()
    }

    /// The CPUs that are in `set`.
    pub(crate) fn keep(&self, set: &CpuSet) -> Self {
        let kept = self.0.iter().filter(|(cpu, _)| set.contains(**cpu));
        Self(kept.map(|(cpu, info)| (*cpu, *info)).collect())
    }

    pub(crate) fn remove(&mut self, set: &CpuSet) {
        self.0.retain(|cpu, _| !set.contains(*cpu));
    }

    /// The groups of a level.
    pub(crate) fn groups(&self, level: Level) -> BTreeSet<i64> {
        self.0.values().map(|info| info.at(level)).collect()
    }

    /// The groups of a level with a CPU in the group `id` of another level.
    pub(crate) fn groups_in(&self, level: Level, (outer, id): (Level, i64)) -> BTreeSet<i64> {
        let inside = self.0.values().filter(|info| info.at(outer) == id);
        inside.map(|info| info.at(level)).collect()
    }

    /// The CPUs of a group.
    pub(crate) fn cpus_in(&self, level: Level, id: i64) -> CpuSet {
        let inside = self.0.iter().filter(|(_, info)| info.at(level) == id);
        inside.map(|(cpu, _)| *cpu).collect()
    }

    pub(crate) fn count_in(&self, level: Level, id: i64) -> usize {
        self.0.values().filter(|info| info.at(level) == id).count()
    }

    /// Average number of CPUs per group of a level; 1 if unknown.
    pub(crate) fn per_group(&self, level: Level) -> usize {
        (self.len() / self.groups(level).len().max(1)).max(1)
    }
}

impl FromIterator<(u32, CpuInfo)> for Cpus {
    fn from_iter<I: IntoIterator<Item = (u32, CpuInfo)>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

/// A NUMA node's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Bytes of memory, huge pages included.
    pub memory: u64,
    /// Reserved huge pages: size in bytes and number.
    pub huge_pages: Vec<(u64, u64)>,
    /// Distances to all nodes, in order; empty if unknown.
    pub distances: Vec<u64>,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its CPUs.
    pub cpus: Cpus,
    /// Its NUMA nodes, those without CPUs included, by their number.
    pub nodes: Vec<Node>,
}
