//! Exponential backoff by key, which is reset after a time without failures.

use std::collections::HashMap;
use std::hash::Hash;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// First delay before a container is started again.
pub const RESTART_BASE: SignedDuration = SignedDuration::from_secs(10);
/// Longest delay before a container is started again, unless the node's config says otherwise.
pub const RESTART_MAX: SignedDuration = SignedDuration::from_secs(300);
/// A container that ran this long has its backoff reset, whatever the longest delay is.
const RESTART_RESET: SignedDuration = SignedDuration::from_secs(600);

#[derive(Clone, Copy, Debug)]
struct Entry {
    delay: SignedDuration,
    touched: Timestamp,
}

/// Backoff entries by key.
#[derive(Clone, Debug)]
pub struct Backoff<K> {
    base: SignedDuration,
    max: SignedDuration,
    entries: HashMap<K, Entry>,
}

impl<K: Hash + Eq + Clone> Backoff<K> {
    /// Delays start with `base` and double up to `max`.
    pub fn new(base: SignedDuration, max: SignedDuration) -> Self {
        Self { base: base.min(max), max, entries: HashMap::new() }
    }

    /// Until when to back off after a failure at `failed`; `None` if the time is over.
    pub fn waits_until(&self, key: &K, failed: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key)?;
        if self.is_stale(entry, failed) {
            return None;
        }
        let until = failed.checked_add(entry.delay).unwrap_or(Timestamp::MAX);
        (now < until).then_some(until)
    }

    /// The current delay.
    pub fn delay(&self, key: &K) -> SignedDuration {
        self.entries.get(key).map_or(self.base, |entry| entry.delay)
    }

    /// Note a retry at `now`, after a failure at `failed`: if that fails too, the delay doubles.
    /// The backoff itself does not count as time without failures.
    pub fn next(&mut self, key: &K, failed: Timestamp, now: Timestamp) {
        let delay = match self.entries.get(key) {
            Some(entry) if !self.is_stale(entry, failed) => {
                entry.delay.saturating_mul(2).min(self.max)
            }
            _ => self.base,
        };
        self.entries.insert(key.clone(), Entry { delay, touched: now });
    }

    /// Remove the entries for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&K) -> bool) {
        self.entries.retain(|key, _| keep(key));
    }

    fn is_stale(&self, entry: &Entry, failed: Timestamp) -> bool {
        failed.duration_since(entry.touched) > self.max.saturating_mul(2).max(RESTART_RESET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn backoff_doubles_up_to_the_maximum_and_resets() {
        let mut backoff = Backoff::new(RESTART_BASE, RESTART_MAX);
        assert_eq!(
            backoff.waits_until(&"c", at(0), at(0)),
            None,
            "a first failure restarts at once"
        );
        let mut failed = 0;
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            backoff.next(&"c", at(failed), at(failed));
            failed += 1;
            assert_eq!(
                backoff.waits_until(&"c", at(failed), at(failed)),
                Some(at(failed + expected)),
                "delay {expected}"
            );
            assert_eq!(backoff.waits_until(&"c", at(failed), at(failed + expected)), None);
            failed += expected;
        }
        let later = failed + 601;
        assert_eq!(backoff.waits_until(&"c", at(later), at(later)), None, "quiet for long enough");
        backoff.next(&"c", at(later), at(later));
        assert_eq!(backoff.delay(&"c"), RESTART_BASE);
    }

    #[test]
    fn backoff_time_does_not_count_as_quiet_time() {
        let mut backoff = Backoff::new(RESTART_BASE, RESTART_MAX);
        (0..6).for_each(|_| backoff.next(&"c", at(0), at(0)));
        // It ran for eight minutes, and then backed off for five.
        backoff.next(&"c", at(480), at(780));
        assert_eq!(backoff.delay(&"c"), RESTART_MAX);
    }

    #[test]
    fn backoff_base_is_capped_at_the_maximum() {
        let mut backoff = Backoff::new(RESTART_BASE, SignedDuration::from_secs(2));
        backoff.next(&1, at(0), at(0));
        assert_eq!(backoff.delay(&1), SignedDuration::from_secs(2));
    }
}
