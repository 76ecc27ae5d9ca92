//! A token bucket, with time passed in.

use std::time::{Duration, Instant};

/// With a maximum number of tokens, refilled at a rate per second.
#[derive(Debug, Clone, Copy)]
pub struct TokenBucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    updated: Instant,
}

impl TokenBucket {
    /// A full bucket; a rate of zero never refills it.
    pub fn new(rate: f64, burst: f64, now: Instant) -> Self {
        Self { rate, burst, tokens: burst, updated: now }
    }

    /// Takes a token if there is one.
    pub fn try_take(&mut self, now: Instant) -> bool {
        self.fill(now);
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }

    /// Takes the next token in advance; returns how long to wait for it.
    pub fn reserve(&mut self, now: Instant) -> Duration {
        self.fill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / self.rate).unwrap_or(Duration::MAX)
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_allows_bursts() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(2.0, 3.0, start);
        assert_eq!((0..4).filter(|_| bucket.try_take(start)).count(), 3);
        assert!(!bucket.try_take(start + Duration::from_millis(400)));
        assert!(bucket.try_take(start + Duration::from_millis(500)));
        let later = start + Duration::from_secs(60);
        assert_eq!(
            (0..9).filter(|_| bucket.try_take(later)).count(),
            3,
            "never more than the burst"
        );
    }

    #[test]
    fn rate_limit_reservations_are_in_order() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(2.0, 1.0, start);
        let waits: Vec<_> = (0..4).map(|_| bucket.reserve(start).as_millis()).collect();
        assert_eq!(waits, [0, 500, 1000, 1500]);
        assert_eq!(bucket.reserve(start + Duration::from_secs(2)), Duration::ZERO);
    }
}
