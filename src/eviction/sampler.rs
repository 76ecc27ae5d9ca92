//! Samples eviction signals, and calculates the next interval.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::time;
use longshore_machine::FileSystem;
use longshore_pod::eviction::{Layout, Observation, Observations, Resource, Signal, Threshold};
use longshore_pod::usage::Memory;
use longshore_resources::stats::Error;
use tracing::debug;

use super::statistics::Statistics;

/// Maximum interval, as upstream's monitoring interval.
const MONITORING_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of each statistic, so that none delays the others.
const SAMPLE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum age of cached statistics.
const MAX_SAMPLE_AGE: Duration = Duration::from_millis(50);

/// The last observations of the signals that have thresholds.
pub(super) struct SignalSampler {
    statistics: Arc<dyn Statistics>,
    memory: bool,
    allocatable: bool,
    disk: bool,
    /// Maximum age of disk statistics.
    disk_age: Duration,
    observations: Observations,
    layout: Option<Layout>,
}

impl SignalSampler {
    /// Without observations.
    pub(super) fn new(statistics: Arc<dyn Statistics>, thresholds: &[Threshold]) -> Self {
        let about = |wanted: &[Signal]| thresholds.iter().any(|t| wanted.contains(&t.signal));
        Self {
            statistics,
            memory: about(&[Signal::Memory, Signal::Pid]),
            allocatable: about(&[Signal::AllocatableMemory]),
            disk: thresholds.iter().any(is_disk),
            disk_age: MAX_SAMPLE_AGE,
            observations: Observations::new(),
            layout: None,
        }
    }

    pub(super) fn observations(&self) -> &Observations {
        &self.observations
    }

    /// The file system layout, once it is known.
    pub(super) fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// Samples all signals. After a timeout, the last observation is kept.
    pub(super) async fn sample(&mut self) {
        let statistics = &self.statistics;
        let (machine, pods, disk) = tokio::join!(
            if_wanted(self.memory, statistics.machine(MAX_SAMPLE_AGE)),
            if_wanted(self.allocatable, statistics.pods_memory()),
            if_wanted(self.disk, statistics.file_systems(self.disk_age)),
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
            // As upstream: capacity is at least the working set.
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

    /// Time in which no threshold can be reached at the maximum rate of use, or
    /// `pressure_interval` under pressure.
    pub(super) fn pause<'a>(
        &mut self,
        thresholds: impl Iterator<Item = &'a Threshold>,
        pressure_interval: Duration,
    ) -> Duration {
        let (mut pause, mut disk) = (MONITORING_INTERVAL, MONITORING_INTERVAL);
        for threshold in thresholds {
            let Some(headroom) = threshold.headroom(&self.observations) else { continue };
            let lasts = match u64::try_from(headroom) {
                Ok(headroom) => until_used_up(threshold.signal, headroom),
                Err(_) => pressure_interval,
            };
            pause = pause.min(lasts);
            if is_disk(threshold) {
                disk = disk.min(lasts);
            }
        }
        // Less than the interval, so that the next sample is not served from the cache.
        self.disk_age = time::part(disk, 2);
        pause
    }
}

fn is_disk(threshold: &Threshold) -> bool {
    matches!(threshold.signal.resource(), Resource::EphemeralStorage | Resource::Inodes)
}

async fn if_wanted<T>(
    wanted: bool,
    statistic: impl Future<Output = Result<T, Error>>,
) -> Option<T> {
    if !wanted {
        return None;
    }
    match tokio::time::timeout(SAMPLE_TIMEOUT, statistic).await {
        Ok(Ok(statistic)) => Some(statistic),
        Ok(Err(error)) => {
            debug!(%error, "cannot read a signal");
            None
        }
        Err(_) => None,
    }
}

/// Time until `headroom` is used up. The rates are what two or three cores can use in a second; the minimum
/// intervals limit the cost of sampling to about a thousandth of a core.
fn until_used_up(signal: Signal, headroom: u64) -> Duration {
    let (per_second, least) = match signal.resource() {
        Resource::Memory => (4 << 30, Duration::from_millis(100)),
        Resource::EphemeralStorage => (2 << 30, Duration::from_secs(1)),
        Resource::Inodes => (200_000, Duration::from_secs(1)),
        Resource::Pids => (20_000, Duration::from_millis(500)),
    };
    let millis = headroom.saturating_mul(1000).checked_div(per_second).unwrap_or(u64::MAX);
    Duration::from_millis(millis).clamp(least, MONITORING_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_sampling_interval_shrinks_near_thresholds() {
        for (signal, headroom, millis) in [
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
                until_used_up(signal, headroom),
                Duration::from_millis(millis),
                "{signal:?} {headroom}"
            );
        }
    }
}
