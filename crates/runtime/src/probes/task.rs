//! The task of one probe of one run: ask, count, tell; until the run is over or the answer final.

use std::sync::Arc;
use std::time::Duration;

use crate::handlers::{Error, Handlers, Outcome, Target};
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use longshore_base::{panics, time};
use longshore_client::events::PodEventRecorder;
use longshore_pod::Timestamp;
use longshore_pod::probes::{Finding, ProbeKind, ProbeResults};
use longshore_pod::spec::ContainerKind;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::metrics::Metrics;
use super::tally::{Tally, eager_pause, initial_delay, period};

/// A probe that panicked is not begun again before.
const AFTER_PANIC: Duration = Duration::from_secs(60);

/// The run that is probed.
pub(super) struct Subject {
    /// Its identity alone.
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
    pub(super) metrics: Metrics,
}

impl Task {
    /// Probe, after `delay` at the earliest; again after a panic.
    pub(super) async fn keep_running(self, delay: Duration) {
        let mut delay = delay;
        while panics::contain(self.run(delay)).await.is_err() {
            delay = AFTER_PANIC;
        }
    }

    pub(super) async fn run(&self, delay: Duration) {
        let subject = self.subject.clone();
        let Some(probe) = super::probe(&subject.container, self.kind) else { return };
        let age = Timestamp::now().duration_since(subject.started_at);
        let age = Duration::try_from(age).unwrap_or_default();
        let at_age = |wanted: Duration| time::after(wanted.saturating_sub(age));
        let initial_delay = initial_delay(probe);
        // The first attempt is made at once. Its failure is not held against a container that was
        // given no time to come up.
        let first_due = at_age(if initial_delay.is_zero() { period(probe) } else { initial_delay });
        sleep_until(at_age(initial_delay).max(time::after(delay))).await;
        if self.kind != ProbeKind::Startup && self.until_started().await.is_err() {
            return;
        }
        let began = Instant::now();
        let mut due = began.max(first_due);
        let mut tally = Tally::default();
        // Only a container that has yet to come up is waited for eagerly.
        let mut eager = self.kind == ProbeKind::Readiness && self.found() != Finding::Success;
        loop {
            // An early attempt leaves the regular ones their time.
            let early = Instant::now() < due;
            let outcome = match early {
                true => timeout_at(due, self.ask(probe)).await.ok().and_then(Result::ok),
                false => {
                    due = Instant::now().max(time::later(due, period(probe)));
                    self.ask_and_announce(probe).await
                }
            };
            match outcome {
                None => {}
                Some(Outcome::Failure(_)) if early => {}
                Some(outcome) => {
                    let outcome = match outcome {
                        Outcome::Failure(_) => Finding::Failure,
                        Outcome::Success | Outcome::Warning(_) => Finding::Success,
                    };
                    if early {
                        due = time::after(period(probe));
                    }
                    eager &= outcome != Finding::Success;
                    if let Some(finding) = tally.count(probe, outcome) {
                        self.note(finding);
                        if self.is_final(finding) {
                            return;
                        }
                    }
                }
            }
            let early = time::after(eager_pause(probe, began.elapsed()));
            sleep_until(if eager { due.min(early) } else { due }).await;
        }
    }

    /// Until the startup probe, if there is one, has succeeded.
    async fn until_started(&self) -> Result<(), watch::error::RecvError> {
        let Subject { container, id, .. } = &*self.subject;
        let mut results = self.results.subscribe();
        results.wait_for(|results| results.is_started(container, id)).await.map(drop)
    }

    /// The future of an attempt is large, and most of the time there is none.
    fn ask(&self, probe: &Probe) -> impl Future<Output = Result<Outcome, Error>> + Send + Unpin {
        let Subject { container, id, ip, .. } = &*self.subject;
        let probed = self.handlers.probe(Target { container, id, ip }, probe);
        Box::pin(async move {
            let began = Instant::now();
            let outcome = probed.await;
            self.metrics.probed(&self.subject, self.kind, &outcome, began.elapsed());
            outcome
        })
    }

    /// An attempt; `None` if it could not be made, and shows nothing.
    async fn ask_and_announce(&self, probe: &Probe) -> Option<Outcome> {
        let outcome = self.ask(probe).await;
        let kind = self.kind.as_str();
        match &outcome {
            Ok(Outcome::Success) => {}
            Ok(Outcome::Warning(why)) => {
                self.announce("ProbeWarning", &format!("{kind} probe warning: {why}"));
            }
            Ok(Outcome::Failure(why)) => {
                self.announce("Unhealthy", &format!("{kind} probe failed: {why}"));
            }
            Err(error) => {
                let state = error.state();
                let text = format!("{kind} probe errored and resulted in {state} state: {error}");
                self.announce("Unhealthy", &text);
            }
        }
        outcome.ok()
    }

    fn announce(&self, reason: &str, message: &str) {
        let Subject { pod, kind, container, .. } = &*self.subject;
        self.pod_events.container(pod, *kind, &container.name, true, reason, message);
    }

    fn found(&self) -> Finding {
        self.results.borrow().get(&self.subject.id, self.kind)
    }

    fn note(&self, finding: Finding) {
        self.results.send_if_modified(|results| {
            let is_news = results.get(&self.subject.id, self.kind) != finding;
            is_news && Arc::make_mut(results).set(&self.subject.id, self.kind, finding)
        });
    }

    /// Whether nothing more is asked of this run: it is up, or it is to be ended.
    fn is_final(&self, finding: Finding) -> bool {
        match self.kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => finding == Finding::Failure,
            ProbeKind::Readiness => false,
        }
    }
}
