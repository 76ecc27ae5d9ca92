//! Termination of a pod: stop containers and sandboxes, report the final status, release resources,
//! and remove what the runtime keeps of it.

use std::collections::HashSet;
use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use longshore_base::{clock, time};
use longshore_pod::Timestamp;
use longshore_pod::observed::ObservedPod;
use longshore_pod::spec;
use longshore_pod::spec::describe;
use longshore_runtime::Error;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::Why;
use super::report::withheld_until;
use super::state::{PodState, Wake};
use super::steps::Subject;
use super::task::{Next, Task};

/// How long the exit of a pod's last container is withheld, to be reported with the end of the pod.
const STATUS_WITHHELD: SignedDuration = SignedDuration::from_secs(1);

/// How long the pod's containers may take to stop.
pub(super) fn grace(pod: &Pod) -> Duration {
    time::seconds(spec::termination_grace_seconds(pod))
}

/// A pod that is being stopped.
pub(super) struct Terminating {
    /// How long its containers may take.
    grace: Duration,
    /// What brought it here.
    why: Why,
    /// Sandboxes that were stopped and have released their resources.
    stopped: HashSet<String>,
    /// Since when no container runs any more.
    ended_at: Option<Timestamp>,
}

impl Terminating {
    pub(super) fn new(grace: Duration, why: Why) -> Self {
        Self { grace, why, stopped: HashSet::new(), ended_at: None }
    }

    /// The grace period can be shortened, not extended.
    pub(super) fn shorten_grace(&mut self, end: Option<(Duration, Why)>, state: &PodState) {
        let Some((newer, why)) = end else { return };
        self.why = why;
        if newer < self.grace {
            debug!(pod = describe(&state.pod), ?newer, ?why, "shorter grace period");
            self.grace = newer;
            state.grace.limit(newer);
        }
    }

    /// Those sandboxes are stopped.
    pub(super) fn stopped(&mut self, ids: Vec<String>) {
        self.stopped.extend(ids);
    }

    /// One iteration.
    pub(super) fn terminate(&mut self, state: &mut PodState) -> Next {
        let observed = state.inputs.observed();
        let now = clock::now();
        if !observed.partial {
            state.follow_probes(&observed);
        }
        let ended = state.stop_containers(&observed, self.grace);
        let withheld_until = self.end_withheld_until(state, ended && !observed.partial, now);
        if withheld_until.is_none() {
            state.report_status(&observed, false);
        }
        if observed.partial {
            return Next::Wait(state.note_partial(now));
        }
        state.failures.complete();
        // Steps that are under way may still change something.
        if !ended || !state.steps.is_empty() {
            return Next::Wait(Wake(withheld_until));
        }
        if let Some(at) = state.failures.pod_retry_at(now) {
            return Next::Wait(Wake(withheld_until.into_iter().chain([at]).min()));
        }
        let sandboxes = self.to_stop(&observed);
        let step_context = state.step_context();
        if sandboxes.is_empty() {
            if !state.context.claims.holds(spec::uid(&state.pod)) {
                return Next::Terminated;
            }
            // Before the final status, on which the claims are deallocated.
            state.steps.begin(Subject::Pod, |_| step_context.unprepare_claims());
            return Next::Wait(Wake(withheld_until));
        }
        let slot = state.stop_slot.clone();
        state.steps.begin(Subject::Pod, |_| step_context.stop_sandboxes(sandboxes, slot));
        Next::Wait(Wake(withheld_until))
    }

    /// Until when the exit of the last container is not reported: once its sandbox is stopped, which is soon, it is
    /// reported together with the end of the pod.
    fn end_withheld_until(
        &mut self,
        state: &PodState,
        ended: bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if !ended {
            self.ended_at = None;
            return None;
        }
        let since = *self.ended_at.get_or_insert(now);
        let fails = state.failures.pod_error().is_some();
        withheld_until(since, STATUS_WITHHELD, now).filter(|_| !fails)
    }

    /// The sandboxes that are not stopped, or may hold resources: one that died by itself keeps its
    /// address until it is stopped.
    fn to_stop(&self, observed: &ObservedPod) -> Vec<String> {
        let sandboxes = observed.sandboxes.iter();
        let left = sandboxes.filter(|sandbox| sandbox.ready || !self.stopped.contains(&sandbox.id));
        left.map(|sandbox| sandbox.id.clone()).collect()
    }
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

/// After the termination: reports the final status, releases the pod's resources, and once its
/// object is deleted, removes its containers, sandboxes and files.
pub(super) async fn clean_up(mut task: Task) {
    let state = &mut task.state;
    state.admitted.release();
    let observed = state.inputs.observed();
    state.report_status(&observed, true);
    state.context.probes.forget(spec::uid(&state.pod));
    state.context.allocation.release(spec::uid(&state.pod));
    let mut last_error = LastError::default();
    while let Err(error) = state.context.runtime.release(&state.pod).await {
        last_error.log_if_new(&state.pod, &error, "pod resources not released, retrying");
        state.sleep_backoff().await;
    }
    state.context.status.ended(spec::uid(&state.pod));
    state.stopwatch.idle(); // its object may stay for long
    let mut finished = false;
    loop {
        let end = task.take_order();
        let state = &mut task.state;
        match end {
            Some((_, Why::Gone)) => break,
            Some((_, Why::Deleted)) if !finished => {
                finished = true;
                let observed = state.inputs.observed();
                state.report.last = state.status(&observed, true);
                state.context.status.finish(&state.pod, state.report.last.clone());
            }
            _ => {}
        }
        if state.inputs.order.changed().await.is_err() {
            return; // the daemon stops
        }
    }
    let state = &mut task.state;
    state.context.status.forget(spec::uid(&state.pod));
    // Its next worker starts its containers again, and counts that.
    while !state.inputs.order.borrow().readded
        && let Err(error) = state.remove().await
    {
        last_error.log_if_new(&state.pod, &error, "pod not removed completely, retrying");
        state.sleep_backoff().await;
        // The attempt may have failed because the observed state is outdated.
        if let Err(error) = state.context.observer.inspect_pod(spec::uid(&state.pod)).await {
            debug!(pod = describe(&state.pod), %error, "cannot inspect pod");
        }
    }
    debug!(pod = describe(&state.pod), "pod removed");
}

impl PodState {
    /// Remove containers, sandboxes, files. A sandbox that came up after the termination, by a call that
    /// was given up, is stopped first.
    async fn remove(&mut self) -> Result<(), Error> {
        let observed = self.inputs.observed();
        let (context, pod) = (&self.context, &self.pod);
        context.runtime.remove_containers(&observed).await?;
        let uid = spec::uid(pod);
        let sandboxes = observed.sandboxes.iter();
        try_join_all(sandboxes.map(|sandbox| async {
            if sandbox.ready {
                context.runtime.stop_sandbox(uid, &sandbox.id).await?;
            }
            context.runtime.remove_sandbox(uid, &sandbox.id).await
        }))
        .await?;
        context.runtime.remove_files(pod).await
    }

    async fn sleep_backoff(&mut self) {
        let now = clock::now();
        let until = self.failures.pod_failed_again(now);
        sleep(Duration::try_from(until.duration_since(now)).unwrap_or_default()).await;
    }
}
