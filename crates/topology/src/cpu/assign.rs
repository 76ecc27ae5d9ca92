//! Selects free CPUs for a container: the fewest and fullest nodes, sockets, caches and cores first, to
//! avoid fragmentation.

use crate::CpuSet;
use crate::machine::{Cpus, Level};

/// How CPUs are selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Threads of different cores rather than whole cores.
    pub spread: bool,
    /// From as few uncore caches as possible.
    pub by_uncore: bool,
}

/// Why CPUs cannot be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// Too few are free.
    #[error(
        "not enough cpus available to satisfy request: requested={requested}, available={available}"
    )]
    NotEnough {
        /// Requested CPUs.
        requested: usize,
        /// Free CPUs.
        available: usize,
    },
    /// The policy does not allow the request.
    #[error("failed to allocate cpus")]
    Failed,
}

/// Selects `wanted` of the `available` CPUs.
pub(crate) fn packed(
    cpus: &Cpus,
    available: &CpuSet,
    wanted: usize,
    manner: Manner,
) -> Result<CpuSet, AssignError> {
    let mut picker = Picker::new(cpus, available, wanted)?;
    if picker.is_done() {
        return Ok(picker.picked);
    }
    let [first, second] = picker.outer_levels();
    for level in [first, second] {
        picker.take_whole(level);
    }
    if manner.by_uncore && !picker.is_done() {
        picker.take_by_uncore();
    }
    if !manner.spread {
        picker.take_whole(Level::Core);
    }
    picker.take_single(manner.spread);
    if picker.is_done() { Ok(picker.picked) } else { Err(AssignError::Failed) }
}

/// A selection in progress.
pub(super) struct Picker<'a> {
    cpus: &'a Cpus,
    pub(super) free: Cpus,
    pub(super) needed: usize,
    pub(super) picked: CpuSet,
}

impl<'a> Picker<'a> {
    pub(super) fn new(
        cpus: &'a Cpus,
        available: &CpuSet,
        wanted: usize,
    ) -> Result<Self, AssignError> {
        let free = cpus.keep(available);
        if wanted > free.len() {
            let available = available.len();
            return Err(AssignError::NotEnough { requested: wanted, available });
        }
        Ok(Self { cpus, free, needed: wanted, picked: CpuSet::new() })
    }

    fn is_done(&self) -> bool {
        self.needed == 0
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        self.picked = self.picked.union(cpus);
        self.free.remove(cpus);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    /// The two outer levels, the larger one first.
    fn outer_levels(&self) -> [Level; 2] {
        match self.cpus.groups(Level::Socket).len() >= self.cpus.groups(Level::Numa).len() {
            true => [Level::Numa, Level::Socket],
            false => [Level::Socket, Level::Numa],
        }
    }

    /// The groups of a level with free CPUs, the fullest first; those of inner levels ordered by their
    /// outer groups.
    pub(super) fn sorted(&self, level: Level) -> Vec<i64> {
        let [first, second] = self.outer_levels();
        let outer = match level {
            level if level == first => None,
            level if level == second => Some(first),
            Level::Core => Some(second),
            _ => Some(Level::Numa),
        };
        let by_room = |groups: std::collections::BTreeSet<i64>| {
            let mut groups: Vec<i64> = groups.into_iter().collect();
            groups.sort_by_key(|id| self.free.count_in(level, *id));
            groups
        };
        match outer {
            None => by_room(self.free.groups(level)),
            Some(outer) => {
                let outers = self.sorted(outer).into_iter();
                outers.flat_map(|id| by_room(self.free.groups_in(level, (outer, id)))).collect()
            }
        }
    }

    /// Whether all CPUs of the group are free. Sockets and cores are assumed to have the average size.
    fn is_whole(&self, level: Level, id: i64) -> bool {
        let size = match level {
            Level::Socket | Level::Core => self.cpus.per_group(level),
            Level::Numa | Level::Uncore => self.cpus.count_in(level, id),
        };
        self.free.count_in(level, id) == size
    }

    fn take_whole(&mut self, level: Level) {
        if self.is_done() {
            return;
        }
        let mut whole = self.sorted(level);
        whole.retain(|id| self.is_whole(level, *id));
        for id in whole {
            // A larger group may have no more free CPUs than others.
            let cpus = self.free.cpus_in(level, id);
            if self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    fn take_by_uncore(&mut self) {
        for uncore in self.sorted(Level::Uncore) {
            if self.needed >= self.cpus.per_group(Level::Uncore) {
                self.take_whole(Level::Uncore);
            }
            if !self.is_done() {
                self.take_part_of_uncore(uncore);
            }
            if self.is_done() {
                return;
            }
        }
    }

    /// All CPUs that are still needed, if the free cores of the cache have exactly that number.
    fn take_part_of_uncore(&mut self, uncore: i64) {
        let threads = self.cpus.per_group(Level::Core);
        let cores = self.free.groups_in(Level::Core, (Level::Uncore, uncore));
        let cores = cores.into_iter().take(self.needed.div_ceil(threads));
        let mut found: CpuSet = cores
            .flat_map(|core| self.free.cpus_in(Level::Core, core).iter().collect::<Vec<_>>())
            .collect();
        if !self.needed.is_multiple_of(2) && threads > 1 && found.len() > self.needed {
            // One thread of the last core remains.
            let all_but_last = found.len() - 1;
            found = found.iter().take(all_but_last).collect();
        }
        if found.len() == self.needed {
            self.take(&found);
        }
    }

    fn take_single(&mut self, spread: bool) {
        let level = if spread { Level::Socket } else { Level::Core };
        let groups = self.sorted(level).into_iter();
        let order: Vec<u32> =
            groups.flat_map(|id| self.free.cpus_in(level, id).iter().collect::<Vec<_>>()).collect();
        for cpu in order.into_iter().take(self.needed) {
            self.take(&CpuSet::from([cpu]));
        }
    }
}
