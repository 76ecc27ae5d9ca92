//! How often a probe is put, and what its outcomes add up to: plain functions of the probe.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use longshore_base::time;
use longshore_pod::probes::Finding;

/// The shortest pauses between attempts of an eager probe: of a request, and of a program, which
/// costs the runtime much more.
const REQUEST_PAUSE: Duration = Duration::from_millis(100);
const PROGRAM_PAUSE: Duration = Duration::from_millis(200);
/// The part of the time so far that a request pauses.
const REQUEST_PART: u32 = 8;

/// The time between two regular attempts.
pub(super) fn period(probe: &Probe) -> Duration {
    seconds(probe.period_seconds.filter(|period| *period > 0).unwrap_or(10))
}

/// How long a container is left alone after its start.
pub(super) fn initial_delay(probe: &Probe) -> Duration {
    seconds(probe.initial_delay_seconds.unwrap_or(0).max(0))
}

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(seconds.unsigned_abs().into())
}

/// The pause of an eager probe that has gone on for that long. It grows with the time, so that the
/// answer is late by a part of what it took, and attempts stay few.
pub(super) fn eager_pause(probe: &Probe, so_far: Duration) -> Duration {
    match probe.exec {
        Some(_) => so_far.max(PROGRAM_PAUSE),
        None => time::part(so_far, REQUEST_PART).max(REQUEST_PAUSE),
    }
}

/// Outcomes of one kind in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    last: Finding,
    in_a_row: i32,
}

impl Tally {
    /// Count an outcome in. Gives the finding, once enough of them agree.
    pub(super) fn count(&mut self, probe: &Probe, outcome: Finding) -> Option<Finding> {
        self.in_a_row = if self.last == outcome { self.in_a_row.saturating_add(1) } else { 1 };
        self.last = outcome;
        let threshold = match outcome {
            Finding::Success => probe.success_threshold.unwrap_or(1),
            _ => probe.failure_threshold.filter(|threshold| *threshold > 0).unwrap_or(3),
        };
        (self.in_a_row >= threshold).then_some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ExecAction, Probe};

    use super::*;
    use Finding::{Failure, Success};

    #[test]
    fn findings_take_as_many_outcomes_as_the_probe_asks_for() {
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
            let mut tally = Tally::default();
            let found = outcomes.iter().map(|outcome| tally.count(&probe, *outcome)).last();
            assert_eq!(found, Some(expected), "{outcomes:?}");
        }
    }

    #[test]
    fn an_eager_probe_asks_often_at_first_and_rarely_later() {
        let request = Probe::default();
        let program = Probe { exec: Some(ExecAction::default()), ..Probe::default() };
        let attempts = |probe: &Probe, until: u64| {
            let (mut at, mut attempts) = (Duration::ZERO, 0);
            while at < Duration::from_secs(until) {
                at += eager_pause(probe, at);
                attempts += 1;
            }
            attempts
        };
        assert_eq!((attempts(&request, 1), attempts(&request, 60)), (10, 45));
        assert_eq!((attempts(&program, 1), attempts(&program, 60)), (4, 10));
    }
}
