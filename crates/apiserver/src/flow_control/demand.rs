//! How many seats a level could use: the average over time, its deviation and its maximum.

use tokio::time::Instant;

/// The part of the smoothed demand that is left after one period: half of it after five minutes.
const SMOOTHING: f64 = 0.977;

/// The integral over time of a number that changes in steps.
#[derive(Debug)]
pub(super) struct Demand {
    since: Instant,
    value: f64,
    seconds: f64,
    sum: f64,
    squares: f64,
    max: f64,
}

/// What became of the number over a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Observed {
    seconds: f64,
    average: f64,
    deviation: f64,
    max: f64,
}

impl Demand {
    pub(super) fn new(now: Instant) -> Demand {
        Demand { since: now, value: 0.0, seconds: 0.0, sum: 0.0, squares: 0.0, max: 0.0 }
    }

    /// The number is this from now on.
    pub(super) fn set(&mut self, now: Instant, value: u32) {
        self.integrate(now);
        self.value = f64::from(value);
        self.max = self.max.max(self.value);
    }

    fn integrate(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.seconds += seconds;
        self.sum += self.value * seconds;
        self.squares += self.value * self.value * seconds;
    }

    /// What was observed until now; the next period begins.
    pub(super) fn take(&mut self, now: Instant) -> Observed {
        self.integrate(now);
        let average = if self.seconds > 0.0 { self.sum / self.seconds } else { self.value };
        let variance = match self.seconds > 0.0 {
            true => self.squares / self.seconds - average * average,
            false => 0.0,
        };
        let observed = Observed {
            seconds: self.seconds,
            average,
            // rounding may leave a little less than nothing
            deviation: variance.max(0.0).sqrt(),
            max: self.max,
        };
        *self = Demand { value: self.value, max: self.value, ..Demand::new(self.since) };
        observed
    }
}

/// The demand of the periods so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DemandStats {
    pub(super) average: f64,
    pub(super) deviation: f64,
    /// In the last period.
    pub(super) high_watermark: u32,
    /// Follows a rise at once, and a fall slowly.
    pub(super) smoothed: f64,
}

impl DemandStats {
    pub(super) fn update(&mut self, observed: Observed) {
        self.high_watermark = observed.max.round() as u32;
        if observed.seconds <= 0.0 {
            return;
        }
        self.average = observed.average;
        self.deviation = observed.deviation;
        let envelope = observed.average + observed.deviation;
        let decayed = SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope;
        self.smoothed = envelope.max(decayed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn flow_control_demand_is_weighted_by_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut demand = Demand::new(start);
        demand.set(at(0), 2);
        demand.set(at(5), 10);
        demand.set(at(5), 6);
        let observed = demand.take(at(10));
        assert_eq!(observed, Observed { seconds: 10.0, average: 4.0, deviation: 2.0, max: 10.0 });
        // the next period begins with what is there
        let observed = demand.take(at(12));
        assert_eq!(observed, Observed { seconds: 2.0, average: 6.0, deviation: 0.0, max: 6.0 });
        assert_eq!(demand.take(at(12)).max, 6.0);
        // a clock that goes back counts nothing
        demand.set(at(11), 1);
        assert_eq!(demand.take(at(12)).seconds, 0.0);
    }

    #[test]
    fn flow_control_demand_falls_slowly() {
        let mut stats = DemandStats::default();
        let observed = |average| Observed { seconds: 10.0, average, deviation: 0.0, max: average };
        stats.update(observed(100.0));
        assert_eq!((stats.smoothed, stats.high_watermark), (100.0, 100));
        for _ in 0..30 {
            stats.update(observed(0.0));
        }
        assert!((45.0..55.0).contains(&stats.smoothed), "{stats:?}");
        stats.update(observed(80.0));
        assert_eq!(stats.smoothed, 80.0);
    }
}
