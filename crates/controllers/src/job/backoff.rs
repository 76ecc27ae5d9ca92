//! The pause before a failed pod is replaced.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::workload::pod_condition;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// Failures since the last success, and the time of the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    failures: usize,
    last: Option<Timestamp>,
}

impl Backoff {
    /// After so many failures, of which the last was then.
    pub(super) fn after(failures: usize, last: Timestamp) -> Self {
        Self { failures, last: Some(last) }
    }

    /// With pods that have finished at these times meanwhile.
    pub(super) fn with(self, succeeded: &[Timestamp], failed: &[Timestamp]) -> Self {
        let before = if succeeded.is_empty() { self } else { Self::default() };
        let success = succeeded.iter().max();
        let later = failed.iter().filter(|time| success.is_none_or(|success| *time > success));
        Self {
            failures: before.failures.saturating_add(later.clone().count()),
            last: later.max().copied().or(before.last),
        }
    }

    /// The time until a pod may be created.
    pub(super) fn wait(self, now: Timestamp) -> Duration {
        let (Some(last), Some(retries)) = (self.last, self.failures.checked_sub(1)) else {
            return Duration::ZERO;
        };
        let factor = u32::try_from(retries).ok().and_then(|power| 1_u32.checked_shl(power));
        let pause = FIRST.saturating_mul(factor.unwrap_or(u32::MAX)).min(LONGEST);
        let passed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
        pause.saturating_sub(passed)
    }
}

/// When a pod has finished.
pub(super) fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let ends = containers.into_iter().flatten().map(|status| {
        status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0)
    });
    let ends: Option<Vec<Timestamp>> = ends.collect();
    let unready = pod_condition(pod, "Ready").filter(|ready| ready.status == "False");
    ends.and_then(|ends| ends.into_iter().max())
        .or_else(|| {
            unready.and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0)
        })
        .or_else(|| {
            let deleted = pod.metadata.deletion_timestamp.as_ref()?.0;
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
            deleted.checked_sub(SignedDuration::from_secs(grace)).ok()
        })
        .or_else(|| pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn job_backoff_doubles_and_ends_with_a_success() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let backoff = Backoff::default().with(&[], &[at(0)]);
        assert_eq!(backoff.wait(at(4)).as_secs(), 6);
        assert_eq!(backoff.with(&[], &[at(5)]).wait(at(5)).as_secs(), 20);
        assert_eq!(backoff.with(&[at(9)], &[at(5)]).wait(at(9)).as_secs(), 0);
        assert_eq!(backoff.with(&[at(9)], &[at(5), at(10)]).wait(at(10)).as_secs(), 10);
        assert_eq!(Backoff::after(9, at(0)).wait(at(0)).as_secs(), 600);
        assert_eq!(Backoff::after(usize::MAX, at(0)).wait(at(0)).as_secs(), 600);
        assert_eq!(Backoff::default().wait(at(0)).as_secs(), 0);
    }
}
