//! Which thresholds are met, since when, and what follows.

use std::time::{Duration, Instant};

use super::{NodePressure, Observations, Resource, Signal, Threshold};

/// The result of an evaluation of the thresholds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// The pressure conditions, which last for the transition period.
    pub pressure: NodePressure,
    /// Thresholds whose grace period is over, the most pressing first.
    pub due: Vec<Threshold>,
    /// When the result will change though the observations do not.
    pub next: Option<Duration>,
}

/// Keeps track of met thresholds. A met one stays so until the minimum reclaim is available, too.
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
    /// Its grace period is over, and the minimum reclaim is not yet available.
    due: bool,
}

impl Tracker {
    /// No threshold is met. Pressure is reported for `transition` after it was observed last.
    pub fn new(thresholds: Vec<Threshold>, transition: Duration) -> Self {
        let mut tracker = Self { thresholds: Vec::new(), transition, short: [None; 3] };
        tracker.adapt(thresholds);
        tracker
    }

    /// Replace the thresholds. The state of those that stay is kept.
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

    /// Whether no threshold is met any more, minimum reclaims included.
    pub fn is_reclaimed(&self, observations: &Observations) -> bool {
        !self.thresholds().any(|threshold| threshold.is_met(observations, true))
    }

    /// Evaluate new observations.
    pub fn evaluate(&mut self, observations: &Observations, now: Instant) -> Evaluation {
        let mut evaluation = Evaluation::default();
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
                true => evaluation.due.push(*threshold),
                false => changes.push(left),
            }
        }
        evaluation.due.sort_by_key(|threshold| threshold.signal);
        let mut is_short = |at: Option<Instant>| {
            let left =
                at.map(|at| self.transition.saturating_sub(now.saturating_duration_since(at)));
            let left = left.filter(|left| !left.is_zero());
            changes.extend(left);
            left.is_some()
        };
        let [memory, disk, pid] = self.short.map(&mut is_short);
        evaluation.pressure = NodePressure { memory, disk, pid };
        evaluation.next = changes.into_iter().min();
        evaluation
    }
}

/// The index in `short`.
fn index(signal: Signal) -> usize {
    match signal.resource() {
        Resource::Memory => 0,
        Resource::EphemeralStorage | Resource::Inodes => 1,
        Resource::Pids => 2,
    }
}
