//! What thresholds are met since when, and what follows from that.

use std::time::{Duration, Instant};

use super::{NodePressure, Observations, Resource, Signal, Threshold};

/// What a look at the node has come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// What the node is short of, or was not long ago.
    pub pressure: NodePressure,
    /// Thresholds for which a pod has to go now, the most pressing first.
    pub due: Vec<Threshold>,
    /// When the finding would be another one though the figures stay as they are.
    pub next: Option<Duration>,
}

/// Remembers what is met. One that is met stays so until the minimum reclaim is there, too.
#[derive(Clone, Debug)]
pub struct Tracker {
    thresholds: Vec<Tracked>,
    transition: Duration,
    /// When memory, disk and pids were short last.
    short: [Option<Instant>; 3],
}

#[derive(Clone, Copy, Debug)]
struct Tracked {
    threshold: Threshold,
    met_since: Option<Instant>,
    /// Its grace is over, and it is not made up for.
    due: bool,
}

impl Tracker {
    /// Nothing is met. A pressure is told for `transition` after it was seen last.
    pub fn new(thresholds: Vec<Threshold>, transition: Duration) -> Self {
        let mut tracker = Self { thresholds: Vec::new(), transition, short: [None; 3] };
        tracker.adapt(thresholds);
        tracker
    }

    /// Other thresholds hold from now on. What is known of those that stay is kept.
    pub fn adapt(&mut self, thresholds: Vec<Threshold>) {
        let known = std::mem::take(&mut self.thresholds);
        let tracked = |threshold| {
            let same = known.iter().find(|tracked| tracked.threshold == threshold);
            same.copied().unwrap_or(Tracked { threshold, met_since: None, due: false })
        };
        self.thresholds = thresholds.into_iter().map(tracked).collect();
    }

    /// The thresholds.
    pub fn thresholds(&self) -> impl Iterator<Item = &Threshold> {
        self.thresholds.iter().map(|tracked| &tracked.threshold)
    }

    /// Whether nothing is short any more, minimum reclaims and all.
    pub fn is_made_up_for(&self, observations: &Observations) -> bool {
        !self.thresholds().any(|threshold| threshold.is_met(observations, true))
    }

    /// Take up what was seen.
    pub fn take(&mut self, observations: &Observations, now: Instant) -> Finding {
        let mut finding = Finding::default();
        let mut changes = Vec::new();
        for Tracked { threshold, met_since, due } in &mut self.thresholds {
            if !threshold.is_met(observations, *due) {
                (*met_since, *due) = (None, false);
                continue;
            }
            if let Some(at) = self.short.get_mut(index(threshold.signal)) {
                *at = Some(now);
            }
            let met_for = now.saturating_duration_since(*met_since.get_or_insert(now));
            let left = threshold.grace.saturating_sub(met_for);
            *due = left.is_zero();
            match *due {
                true => finding.due.push(*threshold),
                false => changes.push(left),
            }
        }
        finding.due.sort_by_key(|threshold| threshold.signal);
        let mut is_short = |at: Option<Instant>| {
            let left =
                at.map(|at| self.transition.saturating_sub(now.saturating_duration_since(at)));
            let left = left.filter(|left| !left.is_zero());
            changes.extend(left);
            left.is_some()
        };
        let [memory, disk, pid] = self.short.map(&mut is_short);
        finding.pressure = NodePressure { memory, disk, pid };
        finding.next = changes.into_iter().min();
        finding
    }
}

/// Which pressure a signal is of.
fn index(signal: Signal) -> usize {
    match signal.resource() {
        Resource::Memory => 0,
        Resource::EphemeralStorage | Resource::Inodes => 1,
        Resource::Pids => 2,
    }
}
