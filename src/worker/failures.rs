//! What has failed of a pod, and when it is retried.

use std::collections::HashMap;

use k8s_openapi::jiff::SignedDuration;
use longshore_pod::Timestamp;
use longshore_pod::backoff::Backoff;
use longshore_runtime::StartError;

/// Backoff of failed steps.
const RETRY_BASE: SignedDuration = SignedDuration::from_millis(200);
const RETRY_MAX: SignedDuration = SignedDuration::from_secs(10);
/// An observed state that is incomplete for this long causes an event.
const PARTIAL_LIMIT: SignedDuration = SignedDuration::from_secs(5);

/// Backoff key of the pod as a whole; no container has that name.
const POD: &str = "";

/// Waiting reason of a container in restart backoff.
const CRASH_LOOP: &str = "CrashLoopBackOff";
/// Waiting reason of a container whose environment refers to missing objects.
const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// The failures of one pod and its containers.
pub(super) struct Failures {
    /// By container name, or another key that no container has.
    backoff: Backoff<String>,
    /// When a failure of the whole pod is retried.
    retry_at: Option<Timestamp>,
    /// The current failure of the whole pod.
    error: Option<String>,
    /// Why containers are waiting, by name.
    waiting: HashMap<String, Wait>,
    /// Since when the observed state is incomplete, and whether an event was recorded for that.
    partial_since: Option<(Timestamp, bool)>,
}

/// Waiting state of a container.
pub(super) struct Wait {
    pub(super) reason: String,
    pub(super) message: String,
    /// When it is retried, unless that follows from the restart backoff.
    until: Option<Timestamp>,
    /// In restart backoff: when the next event about that is due.
    event_at: Option<Timestamp>,
}

/// What an incomplete observed state requires.
pub(super) enum Partial {
    /// An event at that time.
    Due(Timestamp),
    /// An event now.
    Report,
    /// Nothing more.
    Reported,
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(RETRY_BASE, RETRY_MAX),
            retry_at: None,
            error: None,
            waiting: HashMap::new(),
            partial_since: None,
        }
    }
}

impl Failures {
    /// Counts a failure. Returns when it is retried.
    pub(super) fn next_retry(&mut self, what: &str, now: Timestamp) -> Timestamp {
        let what = what.to_owned();
        self.backoff.next(&what, now, now);
        now.checked_add(self.backoff.delay(&what)).unwrap_or(Timestamp::MAX)
    }

    /// It is not failing any more: the next failure is the first.
    pub(super) fn forget(&mut self, what: &str) {
        self.backoff.retain(|failed| failed != what);
    }

    /// Counts a failure of the whole pod after its termination. Returns when it is retried.
    pub(super) fn pod_failed_again(&mut self, now: Timestamp) -> Timestamp {
        self.next_retry(POD, now)
    }

    /// A step for the whole pod failed.
    pub(super) fn pod_failed(&mut self, message: String, now: Timestamp) {
        self.error = Some(message);
        self.retry_at = Some(self.next_retry(POD, now));
    }

    /// A step for the whole pod succeeded.
    pub(super) fn pod_recovered(&mut self) {
        self.error = None;
        self.forget(POD);
    }

    /// What failed for the whole pod is retried without delay.
    pub(super) fn retry_pod(&mut self) {
        self.retry_at = None;
    }

    /// When a failure of the whole pod is retried, if that is later than `now`.
    pub(super) fn pod_retry_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.retry_at.filter(|at| *at > now)
    }

    /// The current failure of the whole pod.
    pub(super) fn pod_error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// A container was started.
    pub(super) fn container_started(&mut self, name: &str) {
        self.waiting.remove(name);
        self.forget(name);
    }

    /// A container could not be started.
    pub(super) fn container_failed(&mut self, name: String, error: StartError, now: Timestamp) {
        let until = error.retry_at.unwrap_or_else(|| self.next_retry(&name, now));
        let reason = error.reason.to_owned();
        let wait = Wait { reason, message: error.message, until: Some(until), event_at: None };
        self.waiting.insert(name, wait);
    }

    /// A container is in restart backoff. Returns whether an event is due: when it begins, and each `resync`
    /// period.
    pub(super) fn container_backs_off(
        &mut self,
        name: &str,
        message: String,
        now: Timestamp,
        resync: SignedDuration,
    ) -> bool {
        let known = self.waiting.get(name).filter(|wait| wait.message == message);
        if known.and_then(|wait| wait.event_at).is_some_and(|at| at > now) {
            return false;
        }
        let event_at = Some(now.checked_add(resync).unwrap_or(Timestamp::MAX));
        let wait = Wait { reason: CRASH_LOOP.to_owned(), message, until: None, event_at };
        self.waiting.insert(name.to_owned(), wait);
        true
    }

    /// When the next event about a container in restart backoff is due.
    pub(super) fn backoff_event_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.waiting.values().filter_map(|wait| wait.event_at).filter(|at| *at > now).min()
    }

    /// Containers that wait for objects are retried without delay.
    pub(super) fn retry_config_errors(&mut self) {
        for wait in self.waiting.values_mut().filter(|wait| wait.reason == CONFIG_ERROR) {
            wait.until = None;
        }
    }

    /// Why a container is waiting.
    pub(super) fn wait(&self, name: &str) -> Option<&Wait> {
        self.waiting.get(name)
    }

    /// Until when a container is not started, if that is later than `now`.
    pub(super) fn waits_until(&self, name: &str, now: Timestamp) -> Option<Timestamp> {
        self.wait(name).and_then(|wait| wait.until).filter(|until| *until > now)
    }

    /// Reasons and messages of all waiting containers, by name.
    pub(super) fn waiting(&self) -> HashMap<String, (String, String)> {
        let reported = |wait: &Wait| (wait.reason.clone(), wait.message.clone());
        self.waiting.iter().map(|(name, wait)| (name.clone(), reported(wait))).collect()
    }

    /// The observed state is incomplete, so it is neither reported nor acted upon.
    pub(super) fn partial(&mut self, now: Timestamp) -> Partial {
        let (since, reported) = *self.partial_since.get_or_insert((now, false));
        let due = since.checked_add(PARTIAL_LIMIT).unwrap_or(Timestamp::MAX);
        match () {
            () if reported => Partial::Reported,
            () if now < due => Partial::Due(due),
            () => {
                self.partial_since = Some((since, true));
                Partial::Report
            }
        }
    }

    /// The observed state is complete.
    pub(super) fn complete(&mut self) {
        self.partial_since = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    #[test]
    fn failures_of_a_pod_back_off_until_it_recovers() {
        let mut failures = Failures::default();
        for delay in [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            failures.pod_failed("no".to_owned(), at(0));
            assert_eq!(failures.pod_retry_at(at(0)), Some(at(delay)));
            assert_eq!(failures.pod_retry_at(at(delay)), None, "it is due");
        }
        assert_eq!(failures.pod_error(), Some("no"));
        failures.pod_recovered();
        assert_eq!(failures.pod_error(), None);
        failures.pod_failed("no".to_owned(), at(0));
        assert_eq!(failures.pod_retry_at(at(0)), Some(at(200)));
        failures.retry_pod();
        assert_eq!(failures.pod_retry_at(at(0)), None);
    }

    #[test]
    fn failures_of_containers_are_retried_on_their_own() {
        let mut failures = Failures::default();
        let error = |reason, retry_at| StartError { reason, message: String::new(), retry_at };
        failures.container_failed("a".to_owned(), error("RunContainerError", None), at(0));
        failures.container_failed("b".to_owned(), error(CONFIG_ERROR, None), at(0));
        failures.container_failed("c".to_owned(), error("ErrImagePull", Some(at(9))), at(0));
        let until = |failures: &Failures| {
            ["a", "b", "c", "d"].map(|name| failures.waits_until(name, at(0)))
        };
        assert_eq!(until(&failures), [Some(at(200)), Some(at(200)), Some(at(9)), None]);
        failures.retry_config_errors();
        assert_eq!(until(&failures), [Some(at(200)), None, Some(at(9)), None]);
        failures.container_started("a");
        assert_eq!(until(&failures), [None, None, Some(at(9)), None]);
        assert_eq!(failures.waiting().len(), 2);
    }

    #[test]
    fn failures_report_a_restart_backoff_each_period() {
        let mut failures = Failures::default();
        let minute = SignedDuration::from_secs(60);
        let mut reported = |message: &str, seconds: i64| {
            let due =
                failures.container_backs_off("c", message.to_owned(), at(seconds * 1000), minute);
            (due, failures.backoff_event_at(at(0)).map(|at| at.as_second()))
        };
        assert_eq!(reported("back-off 10s", 0), (true, Some(60)));
        assert_eq!(reported("back-off 10s", 9), (false, Some(60)));
        assert_eq!(reported("back-off 5m0s", 10), (true, Some(70)));
        assert_eq!(reported("back-off 5m0s", 69), (false, Some(70)));
        assert_eq!(reported("back-off 5m0s", 70), (true, Some(130)));
        failures.container_started("c");
        assert_eq!(failures.backoff_event_at(at(0)), None);
        assert!(failures.container_backs_off("c", "back-off 5m0s".to_owned(), at(71_000), minute));
    }

    #[test]
    fn failures_report_an_incomplete_state_once() {
        let mut failures = Failures::default();
        for _ in 0..2 {
            assert!(matches!(failures.partial(at(0)), Partial::Due(due) if due == at(5000)));
            assert!(matches!(failures.partial(at(4999)), Partial::Due(due) if due == at(5000)));
            assert!(matches!(failures.partial(at(5000)), Partial::Report));
            assert!(matches!(failures.partial(at(9000)), Partial::Reported));
            failures.complete();
        }
    }
}
