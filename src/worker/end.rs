//! A pod's end: stop what runs, tell the last status, give everything back, leave no trace.

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

/// What is in the way of an end that is tried again and again: worth a line when it is new.
#[derive(Default)]
struct Trouble(String);

impl Trouble {
    fn note(&mut self, pod: &Pod, error: &Error, what: &str) {
        let error = error.to_string();
        if self.0 != error {
            warn!(pod = describe(pod), error, "{what}");
            self.0 = error;
        }
    }
}

impl Task {
    /// From here on the pod ends, and nothing takes that back.
    pub(super) fn begin_end(&mut self, grace: Duration, why: Why) {
        debug!(pod = describe(&self.pod), ?grace, ?why, "pod ends");
        self.phase = Phase::Terminating { grace, why };
        self.deadline.send_replace(Some(time::after(grace)));
        self.steps.recall_all();
        self.retry_at = None;
        self.context.probes.wind_down(spec::uid(&self.pod));
    }

    /// A grace can be shortened on the way, and not extended.
    pub(super) fn hurry(&mut self, end: Option<(Duration, Why)>) {
        let (Phase::Terminating { grace, .. }, Some((newer, why))) = (self.phase, end) else {
            return;
        };
        self.phase = Phase::Terminating { grace: grace.min(newer), why };
        if newer < grace {
            debug!(pod = describe(&self.pod), ?newer, ?why, "pod ends sooner");
            let sooner = time::after(newer);
            self.deadline.send_modify(|at| *at = Some(at.map_or(sooner, |at| at.min(sooner))));
        }
    }

    /// One turn of a pod that ends. Gives what to wait for; nothing, if that is over.
    pub(super) fn terminate(&mut self) -> Option<Wake> {
        let Phase::Terminating { grace, .. } = self.phase else { return None };
        let observed = self.observed.borrow_and_update().clone();
        let now = Timestamp::now();
        if !observed.partial {
            self.context.probes.follow(&self.pod, &observed, &self.starting(&observed), &self.told);
        }
        self.tell(&observed);
        let ended = self.stop_containers(&observed, grace);
        if observed.partial {
            return Some(self.unseen(now));
        }
        self.seen();
        // What was begun before may have something to show yet.
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

    /// The end is complete: tell it, give back what the pod held, and once its object is gone,
    /// remove what the runtime keeps of it.
    pub(super) async fn clean_up(&mut self) {
        self.seat = None;
        let observed = self.observed.borrow_and_update().clone();
        self.tell(&observed);
        self.context.probes.forget(spec::uid(&self.pod));
        self.context.allocation.release(spec::uid(&self.pod));
        let mut trouble = Trouble::default();
        while let Err(error) = self.context.runtime.release(&self.pod).await {
            trouble.note(&self.pod, &error, "pod does not let go of everything yet");
            self.pause().await;
        }
        self.stopwatch.rest(); // its object may stay for long
        let mut finished = false;
        loop {
            match self.take_order() {
                Some((_, Why::Gone)) => break,
                Some((_, Why::Deleted)) if !finished => {
                    finished = true;
                    let observed = self.observed.borrow_and_update().clone();
                    self.told = self.status(&observed);
                    self.context.status.finish(&self.pod, self.told.clone());
                }
                _ => {}
            }
            if self.order.changed().await.is_err() {
                return; // the daemon stops
            }
        }
        self.context.status.forget(spec::uid(&self.pod));
        while let Err(error) = self.remove().await {
            trouble.note(&self.pod, &error, "pod leaves a trace yet");
            self.pause().await;
            // What is known may be why the last try failed.
            if let Err(error) = self.context.observer.look_at_pod(spec::uid(&self.pod)).await {
                debug!(pod = describe(&self.pod), %error, "look failed");
            }
        }
        debug!(pod = describe(&self.pod), "pod is gone");
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

    async fn pause(&mut self) {
        let now = Timestamp::now();
        let until = self.next_retry("", now);
        sleep(Duration::try_from(until.duration_since(now)).unwrap_or_default()).await;
    }
}
