//! Looks at what thresholds are about, and says when to look again.

use std::future::Future;
use std::time::Duration;

use longshore_base::time;
use longshore_machine::FileSystem;
use longshore_pod::eviction::{Layout, Observation, Observations, Resource, Signal, Threshold};
use longshore_pod::usage::Memory;
use longshore_resources::stats::{Error, Stats};
use tracing::debug;

/// Longest and usual pause between looks, upstream's.
const CALM: Duration = Duration::from_secs(10);
/// A figure that takes longer is taken up when it comes, and does not hold up the others.
const PATIENCE: Duration = Duration::from_millis(200);
/// How old a figure may be: those who look at the same time share it.
const FRESH: Duration = Duration::from_millis(50);

/// What was seen last of what some threshold is about.
pub(super) struct SignalSampler {
    stats: Stats,
    memory: bool,
    allocatable: bool,
    disk: bool,
    /// How old what is seen of disks may be: memory is looked at more often.
    disk_age: Duration,
    observations: Observations,
    layout: Option<Layout>,
}

impl SignalSampler {
    /// Nothing is seen yet.
    pub(super) fn new(stats: Stats, thresholds: &[Threshold]) -> Self {
        let about = |wanted: &[Signal]| thresholds.iter().any(|t| wanted.contains(&t.signal));
        Self {
            stats,
            memory: about(&[Signal::Memory, Signal::Pid]),
            allocatable: about(&[Signal::AllocatableMemory]),
            disk: thresholds.iter().any(is_disk),
            disk_age: FRESH,
            observations: Observations::new(),
            layout: None,
        }
    }

    pub(super) fn observations(&self) -> &Observations {
        &self.observations
    }

    /// Which file systems are the same, once that is known.
    pub(super) fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// Look at everything. What cannot be seen in time is as it was seen before.
    pub(super) async fn look(&mut self) {
        let stats = &self.stats;
        let (machine, pods, disk) = tokio::join!(
            if_wanted(self.memory, stats.machine(FRESH)),
            if_wanted(self.allocatable, stats.pods_memory()),
            if_wanted(self.disk, stats.file_systems(self.disk_age)),
        );
        let mut see = |signal, available: Option<u64>, capacity: u64| {
            let whole = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
            if let Some(available) = available {
                let (available, capacity) = (whole(available), whole(capacity));
                self.observations.insert(signal, Observation { available, capacity });
            }
        };
        if let Some(machine) = machine {
            see(Signal::Memory, machine.memory.available(), machine.memory.limit.unwrap_or(0));
            let pids = machine.pids;
            see(Signal::Pid, Some(pids.max.saturating_sub(pids.running)), pids.max);
        }
        if let Some(Some(pods)) = pods {
            // As upstream has it: where more is used than allowed, there is that much.
            let capacity =
                |memory: &Memory| memory.limit.map(|limit| limit.max(memory.working_set));
            see(Signal::AllocatableMemory, pods.available(), capacity(&pods).unwrap_or(0));
        }
        let Some(disk) = disk else { return };
        self.layout = disk.layout();
        let mut see_both = |bytes, inodes, seen: &FileSystem| {
            see(bytes, Some(seen.available), seen.capacity);
            see(inodes, Some(seen.inodes_free), seen.inodes);
        };
        see_both(Signal::NodeFs, Signal::NodeFsInodes, &disk.node);
        if let Some(runtime) = disk.runtime {
            see_both(Signal::ImageFs, Signal::ImageFsInodes, &runtime.images);
            see_both(Signal::ContainerFs, Signal::ContainerFsInodes, &runtime.containers);
        }
    }

    /// How long nothing can become short, as fast as anything may be used up. What is short
    /// already is looked at after `watchful`.
    pub(super) fn pause<'a>(
        &mut self,
        thresholds: impl Iterator<Item = &'a Threshold>,
        watchful: Duration,
    ) -> Duration {
        let (mut pause, mut disk) = (CALM, CALM);
        for threshold in thresholds {
            let Some(room) = threshold.headroom(&self.observations) else { continue };
            let lasts = match u64::try_from(room) {
                Ok(room) => until_used_up(threshold.signal, room),
                Err(_) => watchful,
            };
            pause = pause.min(lasts);
            if is_disk(threshold) {
                disk = disk.min(lasts);
            }
        }
        // A little less than the pause, or the look that is due would find what it found before.
        self.disk_age = time::part(disk, 2);
        pause
    }
}

fn is_disk(threshold: &Threshold) -> bool {
    matches!(threshold.signal.resource(), Resource::EphemeralStorage | Resource::Inodes)
}

async fn if_wanted<T>(wanted: bool, figure: impl Future<Output = Result<T, Error>>) -> Option<T> {
    if !wanted {
        return None;
    }
    match tokio::time::timeout(PATIENCE, figure).await {
        Ok(Ok(figure)) => Some(figure),
        Ok(Err(error)) => {
            debug!(%error, "a figure cannot be had");
            None
        }
        Err(_) => None,
    }
}

/// How long so much lasts. The rates are what two or three cores can use up in a second; the
/// least pauses keep the cost of looking near a threshold to about a thousandth of a core.
fn until_used_up(signal: Signal, room: u64) -> Duration {
    let (per_second, least) = match signal.resource() {
        Resource::Memory => (4 << 30, Duration::from_millis(100)),
        Resource::EphemeralStorage => (2 << 30, Duration::from_secs(1)),
        Resource::Inodes => (200_000, Duration::from_secs(1)),
        Resource::Pids => (20_000, Duration::from_millis(500)),
    };
    let millis = room.saturating_mul(1000).checked_div(per_second).unwrap_or(u64::MAX);
    Duration::from_millis(millis).clamp(least, CALM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_the_more_often() {
        for (signal, room, millis) in [
            (Signal::Memory, u64::MAX, 10_000),
            (Signal::Memory, 40 << 30, 10_000),
            (Signal::Memory, 1 << 30, 250),
            (Signal::Memory, 0, 100),
            (Signal::AllocatableMemory, 2 << 30, 500),
            (Signal::NodeFs, 10 << 30, 5_000),
            (Signal::ImageFs, 1 << 20, 1_000),
            (Signal::NodeFsInodes, 1_000_000, 5_000),
            (Signal::Pid, 30_000, 1_500),
            (Signal::Pid, 10, 500),
        ] {
            assert_eq!(
                until_used_up(signal, room),
                Duration::from_millis(millis),
                "{signal:?} {room}"
            );
        }
    }
}
