//! When clients of a level are to come again: later, the more of them are sent away.

use std::collections::VecDeque;

/// The most seconds.
const LONGEST: u64 = 32;

/// Requests of a level that were rejected lately.
#[derive(Debug)]
pub(super) struct Dropped {
    /// Seconds, and how many were rejected in them; the newest is the last.
    history: VecDeque<(u64, u64)>,
    retry_after: u64,
    /// When it was raised last.
    raised: u64,
}

impl Default for Dropped {
    fn default() -> Dropped {
        Dropped { history: VecDeque::new(), retry_after: 1, raised: 0 }
    }
}

impl Dropped {
    /// A request is rejected in this second; after how many seconds its client may come again.
    pub(super) fn record(&mut self, second: u64) -> u32 {
        match self.history.back_mut() {
            Some((last, count)) if *last >= second => *count = count.saturating_add(1),
            _ => {
                self.update(second);
                self.history.push_back((second, 1));
                let oldest = second.saturating_sub(self.retry_after.saturating_mul(2).min(LONGEST));
                self.history.retain(|(second, _)| *second >= oldest);
            }
        }
        self.retry_after as u32
    }

    /// A new second begins: many rejections in the time that clients were to wait double it, few
    /// lower it.
    fn update(&mut self, second: u64) {
        let since = second.saturating_sub(self.retry_after);
        let recent = self.history.iter().filter(|(second, _)| *second >= since);
        let dropped = recent.fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        let is_due = second.saturating_sub(self.raised) >= self.retry_after;
        if is_due && dropped >= self.retry_after.saturating_mul(3) {
            self.retry_after = self.retry_after.saturating_mul(2).min(LONGEST);
            self.raised = second;
        } else if dropped < self.retry_after {
            self.retry_after = self.retry_after.saturating_sub(1).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_control_retry_after_follows_rejections() {
        let mut dropped = Dropped::default();
        // a few at a time
        for second in 100..110 {
            assert_eq!(dropped.record(second), 1);
        }
        let mut flood = |seconds: std::ops::Range<u64>| {
            let mut last = 0;
            for second in seconds {
                (0..200).for_each(|_| last = dropped.record(second));
            }
            last
        };
        assert_eq!(flood(110..111), 1, "of one second it is known in the next");
        assert_eq!(flood(111..112), 2);
        assert_eq!(flood(112..113), 2, "not again until clients have waited");
        assert_eq!(flood(113..300), LONGEST as u32);
        let later = |i: u64| 1000 + i * 100;
        let seen: Vec<u32> = (0..32).map(|i| dropped.record(later(i))).collect();
        assert_eq!((seen[0], seen[30], seen[31]), (31, 1, 1), "it falls by one at a time");
        // a clock that goes back
        assert_eq!(dropped.record(5), 1);
    }
}
