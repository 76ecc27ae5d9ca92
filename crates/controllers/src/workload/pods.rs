//! The states of pods.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The phase; empty when it is not known.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether it succeeded or failed.
pub(crate) fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether it is neither finished nor being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Whether it is being deleted and not finished yet.
pub(crate) fn is_terminating(pod: &Pod) -> bool {
    !is_finished(pod) && pod.metadata.deletion_timestamp.is_some()
}

/// The condition of that type.
pub(crate) fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().find(|condition| condition.type_ == kind)
}

/// Whether it is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    pod_condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Since when it is ready.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = pod_condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// Whether it is ready for that number of seconds.
pub(crate) fn is_available(pod: &Pod, min_ready_seconds: isize, now: Timestamp) -> bool {
    if !is_ready(pod) {
        return false;
    }
    min_ready_seconds <= 0
        || ready_since(pod).is_some_and(|since| {
            now.duration_since(since) >= SignedDuration::from_secs(seconds(min_ready_seconds))
        })
}

/// The time until the next of these pods becomes available.
pub(crate) fn next_availability<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    min_ready_seconds: isize,
    now: Timestamp,
) -> Option<Duration> {
    let needed = SignedDuration::from_secs(seconds(min_ready_seconds));
    let waits = pods.into_iter().filter_map(|pod| {
        let wait = needed.checked_sub(now.duration_since(ready_since(pod)?))?;
        Duration::try_from(wait).ok().filter(|wait| !wait.is_zero())
    });
    waits.min()
}

fn seconds(count: isize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
