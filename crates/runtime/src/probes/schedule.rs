//! Timing of probes, and thresholds of their results: pure functions of the probe.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use longshore_base::time;
use longshore_pod::probes::ProbeResult;

/// The minimum delays between early attempts: of a request, and of a command, which costs the
/// runtime much more.
const MIN_REQUEST_DELAY: Duration = Duration::from_millis(100);
const MIN_EXEC_DELAY: Duration = Duration::from_millis(200);
/// The delay of a request as a part of the elapsed time.
const REQUEST_DELAY_PART: u32 = 8;

/// The period of a probe.
pub(super) fn period(probe: &Probe) -> Duration {
    seconds(probe.period_seconds.filter(|period| *period > 0).unwrap_or(10))
}

/// The initial delay of a probe.
pub(super) fn initial_delay(probe: &Probe) -> Duration {
    seconds(probe.initial_delay_seconds.unwrap_or(0).max(0))
}

/// Whether one success is not enough.
pub(super) fn needs_repetition(probe: &Probe) -> bool {
    probe.success_threshold.unwrap_or(1) > 1
}

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(seconds.unsigned_abs().into())
}

/// The delay between early attempts after that time. It grows with the time, so that the result is
/// late by a fraction of the elapsed time only, and attempts are few.
pub(super) fn early_delay(probe: &Probe, so_far: Duration) -> Duration {
    match probe.exec {
        Some(_) => so_far.max(MIN_EXEC_DELAY),
        None => time::part(so_far, REQUEST_DELAY_PART).max(MIN_REQUEST_DELAY),
    }
}

/// Consecutive results of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConsecutiveResults {
    last: ProbeResult,
    repeats: i32,
}

impl ConsecutiveResults {
    /// Count a result. Returns it once the threshold is reached.
    pub(super) fn count(&mut self, probe: &Probe, outcome: ProbeResult) -> Option<ProbeResult> {
        self.repeats = if self.last == outcome { self.repeats.saturating_add(1) } else { 1 };
        self.last = outcome;
        let threshold = match outcome {
            ProbeResult::Success => probe.success_threshold.unwrap_or(1),
            _ => probe.failure_threshold.filter(|threshold| *threshold > 0).unwrap_or(3),
        };
        (self.repeats >= threshold).then_some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ExecAction, Probe};

    use super::*;
    use ProbeResult::{Failure, Success};

    #[test]
    fn probe_thresholds() {
        let probe = |success, failure| Probe {
            success_threshold: success,
            failure_threshold: failure,
            ..Probe::default()
        };
        for (probe, outcomes, expected) in [
            (probe(None, None), vec![Success], Some(Success)),
            (probe(None, None), vec![Failure, Failure], None),
            (probe(None, None), vec![Failure, Failure, Failure], Some(Failure)),
            (probe(None, None), vec![Failure, Failure, Failure, Failure], Some(Failure)),
            (probe(None, None), vec![Failure, Failure, Success, Failure, Failure], None),
            (probe(Some(2), Some(1)), vec![Success], None),
            (probe(Some(2), Some(1)), vec![Success, Failure], Some(Failure)),
            (probe(Some(2), Some(1)), vec![Success, Failure, Success], None),
            (probe(Some(2), Some(1)), vec![Success, Success], Some(Success)),
            (probe(Some(0), Some(0)), vec![Failure, Failure], None),
        ] {
            let mut consecutive = ConsecutiveResults::default();
            let found = outcomes.iter().map(|outcome| consecutive.count(&probe, *outcome)).last();
            assert_eq!(found, Some(expected), "{outcomes:?}");
        }
    }

    #[test]
    fn probe_early_delays_grow() {
        let request = Probe::default();
        let program = Probe { exec: Some(ExecAction::default()), ..Probe::default() };
        let attempts = |probe: &Probe, until: u64| {
            let (mut at, mut attempts) = (Duration::ZERO, 0);
            while at < Duration::from_secs(until) {
                at += early_delay(probe, at);
                attempts += 1;
            }
            attempts
        };
        assert_eq!((attempts(&request, 1), attempts(&request, 60)), (10, 45));
        assert_eq!((attempts(&program, 1), attempts(&program, 60)), (4, 10));
    }
}
