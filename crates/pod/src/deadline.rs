//! `activeDeadlineSeconds`: how long a pod may be active on its node.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::status::Verdict;

/// Whether a pod has exceeded its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// It has none, or has not started.
    None,
    /// It will be exceeded then.
    Due(Timestamp),
    /// It is exceeded; the pod has failed.
    Over(Verdict),
}

/// Whether the pod has exceeded its deadline. `last_status` has its start time.
pub fn deadline(pod: &Pod, last_status: &PodStatus, now: Timestamp) -> Deadline {
    let seconds = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    let (Some(seconds), Some(start)) = (seconds, &last_status.start_time) else {
        return Deadline::None;
    };
    // The start time is in whole seconds: the pod may have started up to one later.
    let allowed = SignedDuration::from_secs(seconds).saturating_add(SignedDuration::from_secs(1));
    let due = start.0.checked_add(allowed).unwrap_or(Timestamp::MAX);
    match now < due {
        true => Deadline::Due(due),
        false => Deadline::Over(Verdict::failed(
            "DeadlineExceeded",
            "Pod was active on the node longer than the specified deadline",
        )),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    #[test]
    fn active_deadline_fails_the_pod() {
        let pod = |deadline| -> Pod {
            let spec = json!({"activeDeadlineSeconds": deadline, "containers": []});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let started = PodStatus { start_time: Some(Time(at(0))), ..PodStatus::default() };
        let new = PodStatus::default();
        assert_eq!(deadline(&pod(None), &started, at(9)), Deadline::None);
        assert_eq!(deadline(&pod(Some(5)), &new, at(9)), Deadline::None, "it has not started");
        assert_eq!(deadline(&pod(Some(5)), &started, at(5)), Deadline::Due(at(6)));
        let Deadline::Over(verdict) = deadline(&pod(Some(5)), &started, at(6)) else {
            unreachable!("it is over")
        };
        assert_eq!(
            (verdict.phase.as_str(), verdict.reason.as_str()),
            ("Failed", "DeadlineExceeded")
        );
        let far = deadline(&pod(Some(i64::MAX)), &started, at(5));
        assert_eq!(far, Deadline::Due(Timestamp::MAX), "no overflow");
    }
}
