//! Node-pressure eviction: when a node is short of a resource, and which pod is evicted. Rules,
//! order and texts are upstream's; clock and stats come from the caller, the daemon's `eviction`
//! module.

mod limits;
mod message;
mod parse;
mod rank;
mod signal;
mod tracker;

pub use limits::{Exceeded, exceeded, limits_storage, limits_volumes};
pub use message::{EvictionMessage, eviction_message};
pub use parse::{ThresholdConfig, ineffective_soft_thresholds, thresholds};
pub use rank::{Candidate, rank};
pub use signal::{Layout, Observation, Observations, Reclaims, Resource, Signal};
pub use tracker::{Evaluation, Tracker};

use std::time::Duration;

/// The reason in the status of an evicted pod, and of its event.
pub const REASON: &str = "Evicted";

/// The pressure conditions of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePressure {
    /// Memory.
    pub memory: bool,
    /// Disk space or inodes.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

/// An amount: a quantity, or a part of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A quantity.
    Milli {
        /// In thousandths of the unit.
        milli: i128,
        /// Whether it is written with binary suffixes.
        binary: bool,
    },
    /// A part of the capacity, from 0 to 1, with upstream's precision.
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

/// An eviction threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// The eviction signal.
    pub signal: Signal,
    /// The least that must be available.
    pub value: Amount,
    /// The grace period; zero for a hard threshold.
    pub grace: Duration,
    /// The minimum reclaim: how much more must be available before the threshold is no longer met.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Whether pods are evicted at once, without a grace period.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// What must be available, in thousandths of the unit.
    fn needs(&self, seen: Observation, reclaiming: bool) -> i128 {
        let capacity = i128::from(seen.capacity) * 1000;
        let more = self.min_reclaim.filter(|_| reclaiming).map_or(0, |more| more.of(capacity));
        self.value.of(capacity).saturating_add(more)
    }

    /// Whether the threshold is met. With `reclaiming`, the minimum reclaim is added; without an
    /// observation it is not met.
    pub fn is_met(&self, observations: &Observations, reclaiming: bool) -> bool {
        observations
            .get(&self.signal)
            .is_some_and(|seen| self.needs(*seen, reclaiming) > i128::from(seen.available) * 1000)
    }

    /// How much of the signal's unit there is above the threshold; negative if it is met.
    pub fn headroom(&self, observations: &Observations) -> Option<i64> {
        let seen = observations.get(&self.signal)?;
        let headroom = i128::from(seen.available) - self.needs(*seen, false) / 1000;
        let limit = if headroom < 0 { i64::MIN } else { i64::MAX };
        Some(i64::try_from(headroom).unwrap_or(limit))
    }
}

#[cfg(test)]
mod tests;
