//! The worker of one pod: its phase and its sync loop.

use std::sync::Arc;
use std::time::Duration;

use longshore_base::clock;
use longshore_client::objects::Changed;
use longshore_pod::spec::{self, describe};
use tokio::sync::watch;
use tracing::debug;

use super::end::{Terminating, clean_up};
use super::state::{PodState, Wake};
use super::steps::{Failure, Outcome};
use super::stopwatch::Lifecycle;
use super::sync::Syncing;
use super::{Why, WorkerContext};
use crate::terminator::Order;

/// Phase of a pod worker.
pub(super) enum Phase {
    /// It should run.
    Syncing(Box<Syncing>),
    /// It is being stopped, which cannot be undone.
    Terminating(Terminating),
    /// Nothing of it runs, and nothing will.
    Terminated,
}

impl Phase {
    fn lifecycle(&self) -> Lifecycle {
        match self {
            Self::Syncing(_) => Lifecycle::Sync,
            Self::Terminating(_) => Lifecycle::Terminating,
            Self::Terminated => Lifecycle::Terminated,
        }
    }
}

/// What follows an iteration.
pub(super) enum Next {
    Wait(Wake),
    /// The termination begins, with that grace period.
    Terminate(Duration, Why),
    /// Nothing of the pod runs any more.
    Terminated,
}

pub(super) struct Task {
    pub(super) phase: Phase,
    pub(super) state: PodState,
}

impl Task {
    pub(super) fn new(context: Arc<WorkerContext>, order: watch::Receiver<Order>) -> Self {
        let state = PodState::new(context, order);
        Self { phase: Phase::Syncing(Box::new(Syncing::new(&state))), state }
    }

    /// Runs the worker of an orphan, whose spec is restored from its containers.
    pub(super) async fn run_orphan(mut self) {
        let observed = self.state.inputs.observed.borrow().clone();
        let state = &mut self.state;
        state.stopwatch.is_orphan();
        state.pod = Arc::new(state.context.runtime.restore(&state.pod, &observed).await);
        state.desired = state.pod.clone();
        self.run().await;
    }

    /// Runs until nothing of the pod is left.
    pub(super) async fn run(mut self) {
        self.state.context.objects.register(&self.state.pod);
        self.state.stopwatch.begin(&self.state.pod, self.state.admitted.is_new());
        self.wait_for_admission().await;
        loop {
            let ordered = self.state.inputs.order.has_changed().unwrap_or(false);
            let end = self.take_order();
            #[cfg(test)]
            crate::testing::turn(&self.state.pod);
            let lifecycle = self.phase.lifecycle();
            self.state.stopwatch.turn(&self.state.inputs.order.borrow(), lifecycle, ordered);
            self.state.steps.trace(self.state.stopwatch.context());
            let next = match (&mut self.phase, end) {
                (Phase::Syncing(_), Some((grace, why))) => Next::Terminate(grace, why),
                (Phase::Syncing(syncing), None) => syncing.sync(&mut self.state),
                (Phase::Terminating(terminating), end) => {
                    terminating.shorten_grace(end, &self.state);
                    terminating.terminate(&mut self.state)
                }
                (Phase::Terminated, _) => return clean_up(self).await,
            };
            match next {
                Next::Terminate(grace, why) => self.begin_termination(grace, why),
                Next::Terminated => self.phase = Phase::Terminated,
                Next::Wait(wake) => {
                    if self.state.steps.is_empty() {
                        self.state.stopwatch.idle();
                    }
                    self.wait(wake).await;
                }
            }
        }
    }

    /// Applies the newest update. Returns grace period and reason if it terminates the pod.
    pub(super) fn take_order(&mut self) -> Option<(Duration, Why)> {
        let state = &mut self.state;
        let order = state.inputs.order.borrow_and_update().clone();
        if !Arc::ptr_eq(&order.pod, &state.desired) && !order.gone {
            // What it refers to is released once it has terminated.
            if !matches!(self.phase, Phase::Terminated) {
                state.context.objects.register(&order.pod);
            }
            if let Phase::Syncing(syncing) = &mut self.phase {
                syncing.note_change(state, &order.pod);
            }
            state.update_pod(order.pod.clone());
        }
        state.end(order)
    }

    fn begin_termination(&mut self, grace: Duration, why: Why) {
        let state = &mut self.state;
        debug!(pod = describe(&state.pod), ?grace, ?why, "terminating pod");
        state.grace.limit(grace);
        state.steps.cancel_all();
        state.failures.retry_pod();
        state.context.probes.stop_liveness_and_startup(spec::uid(&state.pod));
        self.phase = Phase::Terminating(Terminating::new(grace, why));
    }

    /// Waits for an update, a change of the observed state or of probe results, the result of a step, or
    /// the given time.
    async fn wait(&mut self, wake: Wake) {
        let Self { phase, state } = self;
        let changed = async {
            match phase {
                Phase::Syncing(syncing) => syncing.volumes.source_changed().await,
                Phase::Terminating(_) | Phase::Terminated => std::future::pending().await,
            }
        };
        tokio::select! {
            () = state.inputs.changed() => {}
            outcome = state.steps.next() => self.done(outcome),
            () = wake.passed() => {}
            changed = changed => self.source_changed(changed),
        }
    }

    /// An object that the pod refers to has changed. What waits for it is retried at once.
    fn source_changed(&mut self, changed: Changed) {
        if let Phase::Syncing(syncing) = &mut self.phase {
            syncing.volumes.changed(changed, &mut self.state.failures);
        }
    }

    /// Handles the result of a step.
    fn done(&mut self, outcome: Outcome) {
        let now = clock::now();
        let Self { phase, state } = self;
        match (outcome, phase) {
            (Outcome::Done, _) => state.failures.pod_recovered(),
            (Outcome::Started(name), _) => state.failures.container_started(&name),
            (Outcome::NotStarted(name, error), _) => {
                let (pod, reason, message) = (describe(&state.pod), error.reason, &error.message);
                debug!(pod, name, reason, message, "container not started");
                state.failures.container_failed(name, error, now);
            }
            (Outcome::Resized(resized), _) => state.resized(resized, now),
            (Outcome::Mounted(mounts), phase) => {
                if let Phase::Syncing(syncing) = phase {
                    syncing.volumes.mounted(mounts, &state.pod);
                }
                state.failures.pod_recovered();
            }
            (Outcome::Refreshed { left, error }, Phase::Syncing(syncing)) => {
                syncing.refreshed(state, left, error, now);
            }
            (Outcome::Fetched(name, image), Phase::Syncing(syncing)) => {
                syncing.fetched(name, image);
            }
            (Outcome::SandboxLost(name), Phase::Syncing(syncing)) => syncing.lost_with(&name),
            (Outcome::SandboxesStopped(ids), Phase::Terminating(terminating)) => {
                terminating.stopped(ids);
            }
            (Outcome::Failed(failure), phase) => {
                let Failure { reason, message, rejects } = failure;
                debug!(pod = describe(&state.pod), reason, message, "step failed");
                if let Phase::Syncing(syncing) = phase {
                    if let Some(reason) = rejects {
                        let (grace, why) = state.reject(reason, &message);
                        return self.begin_termination(grace, why);
                    }
                    syncing.volumes.note_failure(reason);
                }
                state.context.pod_events.pod(&state.pod, true, reason, &message);
                state.failures.pod_failed(message, now);
            }
            // Of no use in another phase than the one that has begun it.
            (
                Outcome::Cancelled
                | Outcome::Refreshed { .. }
                | Outcome::Fetched(..)
                | Outcome::SandboxLost(_)
                | Outcome::SandboxesStopped(_),
                _,
            ) => {}
        }
    }
}
