//! Delays between attempts, by backon.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Growing delays between attempts at something that has to succeed some time. They do not end.
#[derive(Debug)]
pub struct Delays {
    policy: ExponentialBuilder,
    delays: ExponentialBackoff,
    max: Duration,
}

impl Delays {
    /// The first delay is `first`; each other one is twice the one before, and at most `max`.
    #[must_use]
    pub fn doubling(first: Duration, max: Duration) -> Self {
        Self::growing(first, max, 2.0)
    }

    /// The first delay is `first`; each other one is `factor` times the one before, and at most `max`.
    #[must_use]
    pub fn growing(first: Duration, max: Duration, factor: f32) -> Self {
        let policy = ExponentialBuilder::new()
            .with_min_delay(first)
            .with_max_delay(max)
            .with_factor(factor)
            .without_max_times();
        Self { policy, delays: policy.build(), max }
    }

    /// The delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        // It has no limit of attempts.
        self.delays.next().unwrap_or(self.max)
    }

    /// Begins again with the first delay, after a success.
    pub fn reset(&mut self) {
        self.delays = self.policy.build();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn retry_delays_grow_to_a_maximum() {
        let millis = |delays: &mut Delays, count| {
            (0..count).map(|_| delays.next_delay().as_millis()).collect::<Vec<_>>()
        };
        let mut doubling = Delays::doubling(Duration::from_millis(100), Duration::from_secs(1));
        assert_eq!(millis(&mut doubling, 6), [100, 200, 400, 800, 1000, 1000]);
        doubling.reset();
        assert_eq!(millis(&mut doubling, 2), [100, 200]);
        let mut growing =
            Delays::growing(Duration::from_millis(200), Duration::from_millis(500), 1.5);
        assert_eq!(millis(&mut growing, 4), [200, 300, 450, 500]);
    }

    proptest! {
        #[test]
        fn extremes_of_retry_delays(first: Duration, max: Duration) {
            let mut delays = Delays::doubling(first, max);
            prop_assert_eq!(delays.next_delay(), first);
            for _ in 0..200 {
                prop_assert!(delays.next_delay() <= max);
            }
        }
    }
}
