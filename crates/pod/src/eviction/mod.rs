//! When a node is short of something, and which pod has to go for it. Rules, order and texts are
//! upstream's; clock and figures come from the caller, the daemon's `eviction` room.

mod limits;
mod message;
mod parse;
mod rank;
mod signal;
mod tracker;

pub use limits::{Exceeded, exceeded, limits_storage, limits_volumes};
pub use message::{Explanation, explain};
pub use parse::{Texts, pointless, thresholds};
pub use rank::{Candidate, rank};
pub use signal::{Layout, Observation, Observations, Reclaims, Resource, Signal};
pub use tracker::{Finding, Tracker};

use std::time::Duration;

/// The reason in the status of a pod that had to go, and of its event.
pub const REASON: &str = "Evicted";

/// What the node is short of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePressure {
    /// Memory.
    pub memory: bool,
    /// Disk space or inodes.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

/// An amount: so much, or a part of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// That much.
    Milli {
        /// In thousandths of the unit.
        milli: i128,
        /// Whether it is written with binary suffixes.
        binary: bool,
    },
    /// That part of the capacity, from 0 to 1. The precision is upstream's, so the sums are too.
    Part(f32),
}

impl Amount {
    /// The amount against a capacity, both in thousandths of the unit.
    pub fn of(self, capacity: i128) -> i128 {
        match self {
            Self::Milli { milli, .. } => milli,
            Self::Part(part) => ((capacity / 1000) as f64 * f64::from(part)) as i64 as i128 * 1000,
        }
    }
}

/// How little of something may be left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// What is looked at.
    pub signal: Signal,
    /// There must be that much.
    pub value: Amount,
    /// How long it may be missing before a pod has to go; none for a hard threshold.
    pub grace: Duration,
    /// How much more there must be before all is well again.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Whether pods go at once, and in a hurry.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// What must be available, in thousandths of the unit.
    fn needs(&self, seen: Observation, reclaiming: bool) -> i128 {
        let capacity = i128::from(seen.capacity) * 1000;
        let more = self.min_reclaim.filter(|_| reclaiming).map_or(0, |more| more.of(capacity));
        self.value.of(capacity).saturating_add(more)
    }

    /// Whether there is too little. Reclaiming asks for the minimum reclaim on top; what nobody
    /// has seen is not short.
    pub fn is_met(&self, observations: &Observations, reclaiming: bool) -> bool {
        observations
            .get(&self.signal)
            .is_some_and(|seen| self.needs(*seen, reclaiming) > i128::from(seen.available) * 1000)
    }

    /// How much of the signal's unit there is above the threshold; negative if it is met.
    pub fn headroom(&self, observations: &Observations) -> Option<i64> {
        let seen = observations.get(&self.signal)?;
        let room = i128::from(seen.available) - self.needs(*seen, false) / 1000;
        let limit = if room < 0 { i64::MIN } else { i64::MAX };
        Some(i64::try_from(room).unwrap_or(limit))
    }
}

#[cfg(test)]
mod tests;
