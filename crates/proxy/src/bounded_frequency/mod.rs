//! When rules are synced: at the first change at once, then as often as the duration of syncs
//! allows, within the configured periods; after a failure with exponential backoff.
//!
//! [`BoundedFrequency`] decides, without a clock of its own; [`run`] waits and syncs.

use std::fmt::Display;
use std::time::Duration;

use longshore_base::time;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

/// Syncs take at most this share of the time while changes keep coming: one part in so many.
const SHARE: u32 = 2;

/// Bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// The shortest interval between syncs (`minSyncPeriod`).
    pub min: Duration,
    /// The longest time without one (`syncPeriod`).
    pub max: Duration,
    /// The backoff after a first failure, which doubles up to `max`.
    pub retry: Duration,
}

/// Why it is time to sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Something changed.
    Change,
    /// The last sync failed.
    Retry,
    /// Nothing was synced for the longest period.
    Period,
}

/// Decides when to sync.
#[derive(Clone, Debug)]
pub struct BoundedFrequency {
    periods: Periods,
    changed: bool,
    /// Failures in a row.
    failures: u32,
    started: Instant,
    /// The end of the last sync.
    ended: Option<Instant>,
    /// The durations of the last two. One long sync means little: a full one comes between short ones.
    costs: [Duration; 2],
}

impl BoundedFrequency {
    /// Nothing was synced yet, and nothing needs to be until something changes.
    pub fn new(periods: Periods, now: Instant) -> Self {
        // A longest period that is shorter than the shortest would be no bound.
        let periods = Periods { max: periods.max.max(periods.min), ..periods };
        Self {
            periods,
            changed: false,
            failures: 0,
            started: now,
            ended: None,
            costs: [Duration::ZERO; 2],
        }
    }

    /// Something is to be synced.
    pub fn change(&mut self) {
        self.changed = true;
    }

    /// When to sync next, and why. A moment in the past is now.
    pub fn next(&self) -> (Instant, Reason) {
        let Periods { min, max, retry } = self.periods;
        let Some(ended) = self.ended else {
            return match self.changed {
                true => (self.started, Reason::Change),
                false => (time::later(self.started, max), Reason::Period),
            };
        };
        let period = (time::later(ended, max), Reason::Period);
        let retry = (self.failures > 0).then(|| {
            let doubled = retry.saturating_mul(1 << (self.failures - 1).min(16));
            (time::later(ended, doubled.clamp(min, max)), Reason::Retry)
        });
        let change = self.changed.then(|| {
            let cost = self.costs[0].min(self.costs[1]);
            let pause = cost.saturating_mul(SHARE - 1).clamp(min, max);
            (time::later(ended, pause), Reason::Change)
        });
        [change, retry]
            .into_iter()
            .flatten()
            .fold(period, |first, other| if other.0 < first.0 { other } else { first })
    }

    /// A sync begins: it takes in all changes up to now.
    pub fn begin(&mut self, now: Instant) {
        self.changed = false;
        self.started = now;
    }

    /// It has ended.
    pub fn end(&mut self, now: Instant, succeeded: bool) {
        self.costs = [now.saturating_duration_since(self.started), self.costs[0]];
        self.failures = if succeeded { 0 } else { self.failures.saturating_add(1) };
        self.ended = Some(now);
    }
}

/// Syncs whenever it is due, until dropped. Changes are notified by `changes.notify_one()`; failures
/// are logged here, with the name.
pub async fn run<E: Display, S: Future<Output = Result<(), E>>>(
    name: &str,
    periods: Periods,
    changes: &Notify,
    mut sync: impl FnMut(Reason) -> S,
) {
    let mut bounded_frequency = BoundedFrequency::new(periods, Instant::now());
    loop {
        let (at, reason) = bounded_frequency.next();
        tokio::select! {
            // A change that is there already counts before it is time for anything else.
            biased;
            () = changes.notified() => {
                bounded_frequency.change();
                continue;
            }
            () = sleep_until(at) => {}
        }
        bounded_frequency.begin(Instant::now());
        let result = sync(reason).await;
        bounded_frequency.end(Instant::now(), result.is_ok());
        if let Err(error) = result {
            let again = bounded_frequency.next().0.saturating_duration_since(Instant::now());
            warn!(name, %error, ?again, "cannot sync rules");
        }
    }
}

#[cfg(test)]
mod tests;
