//! CPU usage rates, from two samples of the same cgroup or container.
//!
//! No extra reads: the rate is that since the previous sample.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;

use super::snapshot::{Group, Snapshot};

/// Minimum interval between samples for a meaningful rate.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The last sample of each cgroup or container.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<HashMap<String, Sample>>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Timestamp,
    /// Nanoseconds of CPU time.
    used: u64,
    rate: Option<u64>,
}

impl Rates {
    /// Sets the rates in a snapshot, and remembers its samples.
    pub(super) fn apply(&self, snapshot: &mut Snapshot) {
        let samples = snapshot.groups_mut().filter_map(|group| {
            let Group { path, reading, nano_cores, .. } = group;
            Some((path.as_str(), reading.at, reading.cpu?.total, nano_cores))
        });
        self.update(samples);
    }

    /// Sets the rate of each sample, which is a name, a time, nanoseconds of CPU time, and where the rate
    /// goes; and remembers these samples, but no others.
    pub(super) fn update<'a>(
        &self,
        samples: impl Iterator<Item = (&'a str, Timestamp, u64, &'a mut Option<u64>)>,
    ) {
        let mut known = self.0.lock();
        let mut next = HashMap::with_capacity(known.len());
        for (name, at, used, rate) in samples {
            let sample = Sample { at, used, rate: None };
            let sample = match known.get(name) {
                Some(before) => sample.after(before),
                None => sample,
            };
            *rate = sample.rate;
            next.insert(name.to_owned(), sample);
        }
        *known = next;
    }
}

impl Sample {
    /// The sample with its rate; the previous one if the interval is too short.
    fn after(self, before: &Self) -> Self {
        let passed = self.at.duration_since(before.at);
        let passed = Duration::try_from(passed).unwrap_or_default();
        if self.used < before.used {
            return self; // another cgroup of that name
        }
        if passed < MIN_INTERVAL {
            return *before;
        }
        let used = u128::from(self.used.saturating_sub(before.used));
        let rate = used * 1_000_000_000 / passed.as_nanos().max(1);
        Self { rate: u64::try_from(rate).ok(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_rate_since_the_previous_sample() {
        let sample = |millis: i64, used: u64| Sample {
            at: Timestamp::from_millisecond(millis).unwrap(),
            used,
            rate: None,
        };
        let first = sample(0, 1_000);
        let near = sample(500, 2_000).after(&first);
        assert_eq!((near.used, near.rate), (1_000, None), "interval too short");
        let later = sample(2_000, 1_000_001_000).after(&near);
        assert_eq!(later.rate, Some(500_000_000), "half a CPU");
        let soon = sample(2_100, 1_000_009_000).after(&later);
        assert_eq!(soon.rate, Some(500_000_000), "the rate holds");
        let other = sample(4_000, 5).after(&later);
        assert_eq!((other.used, other.rate), (5, None), "another cgroup of that name");
        let back = sample(0, 1_000_001_000).after(&later);
        assert_eq!(back.rate, later.rate, "no rate if the clock goes back");
    }
}
