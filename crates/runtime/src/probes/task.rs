//! The task of one probe of one run: probe, count, publish; until the run is over or the result
//! final.

use std::sync::Arc;
use std::time::Duration;

use crate::handlers::{Error, Handlers, Outcome, Target};
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use longshore_base::{clock, panics, time};
use longshore_client::events::PodEventRecorder;
use longshore_pod::Timestamp;
use longshore_pod::probes::{ProbeKind, ProbeResult, ProbeResults};
use longshore_pod::spec::ContainerKind;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::metrics::Metrics;
use super::schedule::{ConsecutiveResults, early_delay, initial_delay, needs_repetition, period};

/// The delay before a probe that panicked is restarted.
const AFTER_PANIC: Duration = Duration::from_secs(60);

/// The container that is probed.
pub(super) struct Subject {
    /// Its metadata only.
    pub(super) pod: Pod,
    pub(super) kind: ContainerKind,
    pub(super) container: Container,
    pub(super) id: String,
    pub(super) ip: String,
    pub(super) started_at: Timestamp,
}

pub(super) struct Task {
    pub(super) handlers: Handlers,
    pub(super) pod_events: PodEventRecorder,
    pub(super) results: watch::Sender<Arc<ProbeResults>>,
    pub(super) subject: Arc<Subject>,
    pub(super) kind: ProbeKind,
    /// Whether a container that is not ready is probed more often than the period.
    pub(super) early: bool,
    pub(super) metrics: Metrics,
}

impl Task {
    /// Probe, after `delay` at the earliest; restarted after a panic.
    pub(super) async fn keep_running(self, delay: Duration) {
        let mut delay = delay;
        while panics::contain(self.run(delay)).await.is_err() {
            delay = AFTER_PANIC;
        }
    }

    pub(super) async fn run(&self, delay: Duration) {
        let subject = self.subject.clone();
        let Some(probe) = super::probe(&subject.container, self.kind) else { return };
        let age = clock::now().duration_since(subject.started_at);
        let age = Duration::try_from(age).unwrap_or_default();
        let at_age = |age_then: Duration| time::after(age_then.saturating_sub(age));
        let initial_delay = initial_delay(probe);
        // The first attempt is made at once. Its failure does not count for a container that had no
        // time to start.
        let first_due = at_age(if initial_delay.is_zero() { period(probe) } else { initial_delay });
        sleep_until(at_age(initial_delay).max(time::after(delay))).await;
        if self.kind != ProbeKind::Startup && self.until_started().await.is_err() {
            return;
        }
        let began = Instant::now();
        let mut due = began.max(first_due);
        let mut consecutive = ConsecutiveResults::default();
        let mut early_probing = self.early && self.result() != ProbeResult::Success;
        let mut is_first = true;
        loop {
            // An early attempt does not change the regular schedule.
            let early = Instant::now() < due;
            let outcome = match early {
                true => timeout_at(due, self.run_probe(probe)).await.ok().and_then(Result::ok),
                false => {
                    due = Instant::now().max(time::later(due, period(probe)));
                    self.attempt(probe).await
                }
            };
            match outcome {
                None => {}
                Some(Outcome::Failure(_)) if early => {}
                // Those that have to be repeated are repeated each period.
                Some(_) if early && !is_first && needs_repetition(probe) => {}
                Some(outcome) => {
                    let outcome = match outcome {
                        Outcome::Failure(_) => ProbeResult::Failure,
                        Outcome::Success | Outcome::Warning(_) => ProbeResult::Success,
                    };
                    if early {
                        due = time::after(period(probe));
                    }
                    early_probing &= outcome != ProbeResult::Success;
                    if let Some(result) = consecutive.count(probe, outcome) {
                        self.set_result(result);
                        if self.is_final(result) {
                            return;
                        }
                    }
                }
            }
            is_first = false;
            let early = time::after(early_delay(probe, began.elapsed()));
            sleep_until(if early_probing { due.min(early) } else { due }).await;
        }
    }

    /// Until the startup probe, if there is one, has succeeded.
    async fn until_started(&self) -> Result<(), watch::error::RecvError> {
        let Subject { container, id, .. } = &*self.subject;
        let mut results = self.results.subscribe();
        results.wait_for(|results| results.is_started(container, id)).await.map(drop)
    }

    /// The future of an attempt is large and short-lived, so it is boxed.
    fn run_probe(
        &self,
        probe: &Probe,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send + Unpin {
        let Subject { container, id, ip, .. } = &*self.subject;
        let probed = self.handlers.probe(Target { container, id, ip }, probe);
        Box::pin(async move {
            let began = Instant::now();
            let outcome = probed.await;
            self.metrics.probed(&self.subject, self.kind, &outcome, began.elapsed());
            outcome
        })
    }

    /// One attempt with its events; `None` if it could not be carried out.
    async fn attempt(&self, probe: &Probe) -> Option<Outcome> {
        let outcome = self.run_probe(probe).await;
        let kind = self.kind.as_str();
        match &outcome {
            Ok(Outcome::Success) => {}
            Ok(Outcome::Warning(why)) => {
                self.record_event("ProbeWarning", &format!("{kind} probe warning: {why}"));
            }
            Ok(Outcome::Failure(why)) => {
                self.record_event("Unhealthy", &format!("{kind} probe failed: {why}"));
            }
            Err(error) => {
                let state = error.state();
                let text = format!("{kind} probe errored and resulted in {state} state: {error}");
                self.record_event("Unhealthy", &text);
            }
        }
        outcome.ok()
    }

    fn record_event(&self, reason: &str, message: &str) {
        let Subject { pod, kind, container, .. } = &*self.subject;
        self.pod_events.container(pod, *kind, &container.name, true, reason, message);
    }

    fn result(&self) -> ProbeResult {
        self.results.borrow().get(&self.subject.id, self.kind)
    }

    fn set_result(&self, result: ProbeResult) {
        self.results.send_if_modified(|results| {
            let is_changed = results.get(&self.subject.id, self.kind) != result;
            is_changed && Arc::make_mut(results).set(&self.subject.id, self.kind, result)
        });
    }

    /// Whether this run is not probed any more: it is started, or will be killed.
    fn is_final(&self, result: ProbeResult) -> bool {
        match self.kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => result == ProbeResult::Failure,
            ProbeKind::Readiness => false,
        }
    }
}
