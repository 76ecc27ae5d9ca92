//! What a worker knows in every phase of its pod.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use longshore_base::clock;
use longshore_base::time;
use longshore_pod::Timestamp;
use longshore_pod::spec;
use longshore_pod::status::{self, Verdict};
use tokio::sync::watch;
use tokio::time::Instant;

use super::act::StepContext;
use super::admit::Admitted;
use super::end::grace;
use super::failures::{Failures, Partial};
use super::inputs::Inputs;
use super::limiter::Slot;
use super::resize::Resize;
use super::steps::Steps;
use super::stop::{self, StopRequest};
use super::stopwatch::Stopwatch;
use super::{Why, WorkerContext};
use crate::terminator::{Order, Termination};

/// The state of one pod that all its phases share.
pub(super) struct PodState {
    pub(super) context: Arc<WorkerContext>,
    pub(super) inputs: Inputs,
    /// The pod as desired by its source.
    pub(super) desired: Arc<Pod>,
    /// The pod as it may run: with its allocated resources.
    pub(super) pod: Arc<Pod>,
    pub(super) admitted: Admitted,
    pub(super) report: Report,
    pub(super) failures: Failures,
    pub(super) resize: Resize,
    pub(super) steps: Steps,
    pub(super) grace: GracePeriod,
    /// Held while the pod is being stopped.
    pub(super) stop_slot: Arc<Slot>,
    pub(super) stopwatch: Stopwatch,
}

/// What is reported of the pod.
pub(super) struct Report {
    /// The last reported status.
    pub(super) last: PodStatus,
    /// Why the node terminates the pod, if it does.
    pub(super) verdict: Option<Verdict>,
}

/// The grace period of the pod as a whole: none before its termination, and then only shortened.
#[derive(Debug, Default)]
pub(super) struct GracePeriod(watch::Sender<Option<Instant>>);

impl GracePeriod {
    /// The termination begins, or its grace period is shortened.
    pub(super) fn limit(&self, grace: Duration) {
        let end = time::after(grace);
        self.0.send_modify(|at| *at = Some(at.map_or(end, |at| at.min(end))));
    }

    /// A request to stop a container in `grace`, or in this grace period if that ends earlier, with that
    /// slot.
    pub(super) fn stop_request(
        &self,
        message: String,
        grace: Duration,
        slot: Arc<Slot>,
    ) -> StopRequest {
        let deadline = stop::Deadline::after(grace, self.0.subscribe());
        StopRequest { message, hook: true, after: Vec::new(), deadline, slot }
    }
}

/// When the next iteration is due, if nothing changes before.
pub(super) struct Wake(pub(super) Option<Timestamp>);

impl Wake {
    /// Until then.
    pub(super) async fn passed(&self) {
        clock::until(self.0).await;
    }
}

impl PodState {
    pub(super) fn new(context: Arc<WorkerContext>, order: watch::Receiver<Order>) -> Self {
        let pod = order.borrow().pod.clone();
        let last = pod.status.clone().unwrap_or_default();
        Self {
            inputs: Inputs::new(&context, spec::uid(&pod), order),
            desired: pod.clone(),
            pod: context.allocation.allocated(&pod),
            admitted: Admitted::default(),
            failures: Failures::default(),
            resize: Resize::reported(&last, context.allocation.metrics()),
            report: Report { last, verdict: None },
            steps: Steps::default(),
            grace: GracePeriod::default(),
            stop_slot: context.stop_limiter.slot(),
            stopwatch: context.metrics.stopwatch(context.tracer.clone()),
            context,
        }
    }

    /// Grace period and reason of the pod's termination, if this order, its object or its status require
    /// it.
    pub(super) fn end(&mut self, order: Order) -> Option<(Duration, Why)> {
        let mut allowed = grace(&self.pod);
        if let Some(Termination { verdict, grace }) = order.termination {
            self.report.verdict.get_or_insert(verdict);
            if let Some(own) = grace {
                let deletion = self.pod.metadata.deletion_grace_period_seconds;
                allowed = if deletion.is_some() { allowed.min(own) } else { own };
            }
        }
        let last = self.report.last.phase.as_deref().unwrap_or_default();
        let in_api = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let why = match () {
            () if order.gone => Why::Gone,
            () if self.pod.metadata.deletion_timestamp.is_some() => Why::Deleted,
            () if status::is_final(last) || status::is_final(in_api.unwrap_or_default()) => {
                Why::Completed
            }
            () if self.report.verdict.is_some() => Why::Decided,
            () => return None,
        };
        Some((allowed, why))
    }

    /// The node terminates the pod for that reason. Returns grace period and reason.
    pub(super) fn decide(&mut self, end: Termination) -> (Duration, Why) {
        let allowed = end.grace.unwrap_or_else(|| grace(&self.pod));
        self.report.verdict.get_or_insert(end.verdict);
        (allowed, Why::Decided)
    }

    /// Rejects a pod that cannot run on this node. Returns grace period and reason.
    pub(super) fn reject(&mut self, reason: &str, message: &str) -> (Duration, Why) {
        self.context.pod_events.pod(&self.pod, true, reason, message);
        let verdict = Verdict::failed(reason, format!("Pod was rejected: {message}"));
        self.decide(Termination { verdict, grace: None })
    }

    /// The observed state is incomplete. Returns the time at which an event is due.
    pub(super) fn note_partial(&mut self, now: Timestamp) -> Wake {
        match self.failures.partial(now) {
            Partial::Due(at) => Wake(Some(at)),
            Partial::Reported => Wake(None),
            Partial::Report => {
                let why = self.context.observer.last_error(spec::uid(&self.pod));
                let why = why.as_deref().unwrap_or("the runtime does not answer");
                let message = format!("error determining status: {why}");
                self.context.pod_events.pod(&self.pod, true, "FailedSync", &message);
                Wake(None)
            }
        }
    }

    pub(super) fn step_context(&self) -> StepContext {
        StepContext { context: self.context.clone(), pod: self.pod.clone() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn grace_period_of_a_pod_is_only_shortened() {
        let grace = GracePeriod::default();
        let left = || grace.0.borrow().map(|end| end.duration_since(Instant::now()).as_secs());
        assert_eq!(left(), None, "before the termination");
        for (limit, expected) in [(30, 30), (60, 30), (5, 5), (30, 5)] {
            grace.limit(Duration::from_secs(limit));
            assert_eq!(left(), Some(expected), "{limit}");
        }
        sleep(Duration::from_secs(2)).await;
        grace.limit(Duration::from_secs(5));
        assert_eq!(left(), Some(3));
    }
}
