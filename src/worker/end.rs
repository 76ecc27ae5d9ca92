//! Termination of a pod: stop containers and sandboxes, report the final status, release resources,
//! and remove what the runtime keeps of it.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use longshore_base::time;
use longshore_pod::spec::describe;
use longshore_pod::{Timestamp, spec};
use longshore_runtime::Error;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::steps::Subject;
use super::task::{Task, Wake};
use super::{Phase, Why};

/// How long the pod's containers may take to stop.
pub(super) fn grace(pod: &Pod) -> Duration {
    time::seconds(spec::termination_grace_seconds(pod))
}

/// The last error of a retried operation: logged only when it changes.
#[derive(Default)]
struct LastError(String);

impl LastError {
    fn log_if_new(&mut self, pod: &Pod, error: &Error, what: &str) {
        let error = error.to_string();
        if self.0 != error {
            warn!(pod = describe(pod), error, "{what}");
            self.0 = error;
        }
    }
}

impl Task {
    /// Starts the termination of the pod, which cannot be undone.
    pub(super) fn begin_termination(&mut self, grace: Duration, why: Why) {
        debug!(pod = describe(&self.pod), ?grace, ?why, "terminating pod");
        self.phase = Phase::Terminating { grace, why };
        self.deadline.send_replace(Some(time::after(grace)));
        self.steps.cancel_all();
        self.retry_at = None;
        self.context.probes.stop_liveness_and_startup(spec::uid(&self.pod));
    }

    /// The grace period can be shortened, not extended.
    pub(super) fn shorten_grace(&mut self, end: Option<(Duration, Why)>) {
        let (Phase::Terminating { grace, .. }, Some((newer, why))) = (self.phase, end) else {
            return;
        };
        self.phase = Phase::Terminating { grace: grace.min(newer), why };
        if newer < grace {
            debug!(pod = describe(&self.pod), ?newer, ?why, "shorter grace period");
            let sooner = time::after(newer);
            self.deadline.send_modify(|at| *at = Some(at.map_or(sooner, |at| at.min(sooner))));
        }
    }

    /// One sync iteration of a terminating pod. Returns what to wait for, `None` once it has terminated.
    pub(super) fn terminate(&mut self) -> Option<Wake> {
        let Phase::Terminating { grace, .. } = self.phase else { return None };
        let observed = self.observed.borrow_and_update().clone();
        let now = Timestamp::now();
        if !observed.partial {
            self.context.probes.follow(
                &self.pod,
                &observed,
                &self.starting(&observed),
                &self.last_status,
            );
        }
        self.report_status(&observed);
        let ended = self.stop_containers(&observed, grace);
        if observed.partial {
            return Some(self.note_partial(now));
        }
        self.note_complete();
        // Steps that are under way may still change something.
        if !ended || !self.steps.is_empty() {
            return Some(Wake(None));
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Some(Wake(Some(at)));
        }
        let sandboxes = self.to_stop(&observed);
        if sandboxes.is_empty() {
            self.phase = Phase::Terminated;
            return None;
        }
        let step_context = self.step_context();
        self.steps.begin(Subject::Pod, |_| step_context.stop_sandboxes(sandboxes));
        Some(Wake(None))
    }

    /// After the termination: reports the final status, releases the pod's resources, and once its
    /// object is deleted, removes its containers, sandboxes and files.
    pub(super) async fn clean_up(&mut self) {
        self.reservation = None;
        let observed = self.observed.borrow_and_update().clone();
        self.report_status(&observed);
        self.context.probes.forget(spec::uid(&self.pod));
        self.context.allocation.release(spec::uid(&self.pod));
        let mut last_error = LastError::default();
        while let Err(error) = self.context.runtime.release(&self.pod).await {
            last_error.log_if_new(&self.pod, &error, "pod resources not released, retrying");
            self.sleep_backoff().await;
        }
        self.stopwatch.idle(); // its object may stay for long
        let mut finished = false;
        loop {
            match self.take_order() {
                Some((_, Why::Gone)) => break,
                Some((_, Why::Deleted)) if !finished => {
                    finished = true;
                    let observed = self.observed.borrow_and_update().clone();
                    self.last_status = self.status(&observed);
                    self.context.status.finish(&self.pod, self.last_status.clone());
                }
                _ => {}
            }
            if self.order.changed().await.is_err() {
                return; // the daemon stops
            }
        }
        self.context.status.forget(spec::uid(&self.pod));
        while let Err(error) = self.remove().await {
            last_error.log_if_new(&self.pod, &error, "pod not removed completely, retrying");
            self.sleep_backoff().await;
            // The attempt may have failed because the observed state is outdated.
            if let Err(error) = self.context.observer.inspect_pod(spec::uid(&self.pod)).await {
                debug!(pod = describe(&self.pod), %error, "cannot inspect pod");
            }
        }
        debug!(pod = describe(&self.pod), "pod removed");
    }

    /// Remove containers, sandboxes, files.
    async fn remove(&mut self) -> Result<(), Error> {
        let observed = self.observed.borrow_and_update().clone();
        let (context, pod) = (&self.context, &self.pod);
        context.runtime.remove_containers(&observed).await?;
        let sandboxes = observed.sandboxes.iter();
        try_join_all(
            sandboxes.map(|sandbox| context.runtime.remove_sandbox(spec::uid(pod), &sandbox.id)),
        )
        .await?;
        context.runtime.remove_files(pod).await
    }

    async fn sleep_backoff(&mut self) {
        let now = Timestamp::now();
        let until = self.next_retry("", now);
        sleep(Duration::try_from(until.duration_since(now)).unwrap_or_default()).await;
    }
}
