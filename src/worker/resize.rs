//! A resize in progress: first the limits of the pod's cgroup are raised to the maximum of old and new,
//! then the containers are resized, in place or by a restart, and last the pod's limits are lowered.

use std::sync::Arc;

use crate::allocation;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use longshore_pod::observed::ObservedPod;
use longshore_pod::plan::{self, Plan};
use longshore_pod::resize::{self, InProgress, PodResources};
use longshore_pod::spec::describe;
use longshore_pod::status;
use longshore_pod::{Timestamp, spec};
use longshore_runtime::PodRuntime;
use tokio::time::Instant;
use tracing::debug;

use super::act::StepContext;
use super::state::PodState;
use super::steps::{Outcome, Resized, Subject};

/// Backoff key of resizes; no container has that name.
const RETRIES: &str = "/resize";

/// The resizes of a pod.
pub(super) struct Resize {
    /// The one in progress, if any.
    current: Option<Resizing>,
    /// Whether the pod's reservation may exceed its resources.
    was_resized: bool,
    /// Number of resizes that were started.
    grants: u64,
}

impl Resize {
    /// As its last status reports it.
    pub(super) fn reported(last_status: &PodStatus, metrics: &allocation::Metrics) -> Self {
        let reported = status::resize_status(last_status).1;
        let current = reported.map(|reported| Resizing::new(reported, metrics));
        Self { was_resized: current.is_some(), current, grants: 0 }
    }

    /// What the pod status reports of the one in progress.
    pub(super) fn reported_progress(&self) -> Option<&InProgress> {
        self.current.as_ref().map(|resizing| &resizing.reported)
    }

    /// Whether containers may start: not before the limits of the pod are raised.
    pub(super) fn may_start_containers(&self) -> bool {
        self.current.as_ref().is_none_or(|resizing| resizing.raised)
    }

    /// When a failed step is retried, if that is later than `now`.
    pub(super) fn retry_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.current.as_ref().and_then(|resizing| resizing.retry_at).filter(|at| *at > now)
    }
}

/// A resize in progress.
struct Resizing {
    /// What the pod status reports of it.
    reported: InProgress,
    /// Whether the limits of the pod are raised.
    raised: bool,
    /// When a failed step is retried.
    retry_at: Option<Timestamp>,
    _counted: allocation::InProgress,
}

impl Resizing {
    fn new(reported: InProgress, metrics: &allocation::Metrics) -> Self {
        Self { reported, raised: false, retry_at: None, _counted: metrics.in_progress() }
    }
}

/// One step of a resize.
struct Step {
    generation: Option<i64>,
    sandbox_id: String,
    /// The actuated resources.
    actuated: Arc<PodResources>,
    updates: Vec<plan::Resize>,
    /// Whether it completes the resize.
    last: bool,
}

impl PodState {
    /// Allocates the resources of an admitted pod: those it requests, or those it had.
    pub(super) fn allocate(&mut self) {
        self.context.allocation.allocate(&self.desired);
        self.pod = self.context.allocation.allocated(&self.desired);
    }

    /// The pod was updated by its source.
    pub(super) fn update_pod(&mut self, pod: Arc<Pod>) {
        let before = std::mem::replace(&mut self.desired, pod);
        if before.metadata.generation != self.desired.metadata.generation {
            self.context.allocation.review(&before, &self.desired);
        }
        self.pod = self.context.allocation.allocated(&self.desired);
        if self.resize.was_resized
            && let Err(verdict) = self.context.admission.resize(&self.pod)
        {
            debug!(pod = describe(&self.pod), verdict.message, "reservation not changed");
        }
    }

    /// Applies a decision about a resize. Returns whether the resources of the pod have changed.
    pub(super) fn take_decision(&mut self) -> bool {
        let decision = self.inputs.decision.borrow_and_update().clone();
        if decision.grants == self.resize.grants {
            return false;
        }
        self.resize.grants = decision.grants;
        self.resize.was_resized = true;
        self.pod = self.context.allocation.allocated(&self.desired);
        let in_progress = InProgress { generation: decision.generation, error: None };
        self.begin_resize(in_progress);
        self.failures.forget(RETRIES);
        true
    }

    /// Starts a resize if actuated and allocated resources differ, for example after a restart of the daemon.
    pub(super) fn note_resize(&mut self, observed: &ObservedPod, actuated: &PodResources) {
        let gates = self.context.gates;
        let differs = !resize::stale(&self.pod, observed, actuated, gates).is_empty()
            || resize::is_pod_stale(&self.pod, actuated, gates);
        if differs && self.resize.current.is_none() {
            let in_progress = InProgress { generation: self.pod.metadata.generation, error: None };
            self.begin_resize(in_progress);
        }
    }

    fn begin_resize(&mut self, in_progress: InProgress) {
        self.resize.current = Some(Resizing::new(in_progress, self.context.allocation.metrics()));
    }

    /// Starts the next step of a resize, if one is possible.
    pub(super) fn continue_resize(
        &mut self,
        observed: &ObservedPod,
        sandbox_id: &str,
        plan: &Plan,
        now: Timestamp,
    ) {
        let Some(resizing) = &self.resize.current else { return };
        if self.steps.is_busy(&Subject::Resources) || resizing.retry_at.is_some_and(|at| at > now) {
            return;
        }
        let updates = plan.resize.iter().filter(|one| !self.steps.is_container_busy(&one.name));
        let updates: Vec<plan::Resize> = updates.cloned().collect();
        let actuated = self.context.allocation.actuated(spec::uid(&self.pod));
        let stale = resize::stale(&self.pod, observed, &actuated, self.context.gates);
        // A container that is being replaced uses its old resources until it has exited.
        let last = plan.kill.is_empty()
            && self.steps.containers().next().is_none()
            && stale.iter().all(|name| updates.iter().any(|update| update.name == *name));
        if resizing.raised && updates.is_empty() && !last {
            return;
        }
        let generation = resizing.reported.generation;
        let sandbox_id = sandbox_id.to_owned();
        let step = Step { generation, sandbox_id, actuated, updates, last };
        let step_context = self.step_context();
        self.steps.begin(Subject::Resources, |_| step_context.resize(step));
    }

    /// Handles the result of a step.
    pub(super) fn resized(&mut self, resized: Resized, now: Timestamp) {
        let Some(resizing) = &mut self.resize.current else { return };
        if resizing.reported.generation != resized.generation {
            return; // superseded by another resize
        }
        resizing.raised |= resized.raised;
        let generation = resized.generation;
        let record_event = |warning, reason, what, error: &str| {
            let text = resize::message(what, &self.pod, generation, error);
            self.context.pod_events.pod(&self.pod, warning, reason, &text);
        };
        match resized.result {
            Ok(false) => resizing.retry_at = None,
            Ok(true) => {
                record_event(false, "ResizeCompleted", "completed", "");
                self.resize.current = None;
                self.failures.forget(RETRIES);
            }
            Err(message) => {
                debug!(pod = describe(&self.pod), message, "not resized");
                if resizing.reported.error.as_ref() != Some(&message) {
                    record_event(true, "ResizeError", "error", &message);
                    resizing.reported.error = Some(message);
                }
                let retry_at = self.failures.next_retry(RETRIES, now);
                if let Some(resizing) = &mut self.resize.current {
                    resizing.retry_at = Some(retry_at);
                }
            }
        }
    }
}

impl StepContext {
    async fn resize(self, step: Step) -> Outcome {
        let mut raised = false;
        let began = Instant::now();
        let result = self.carry_out(&step, &mut raised).await.map(|()| step.last);
        self.context.allocation.metrics().took(began.elapsed(), result.is_ok());
        Outcome::Resized(Resized { generation: step.generation, raised, result })
    }

    async fn carry_out(&self, step: &Step, raised: &mut bool) -> Result<(), String> {
        let (runtime, allocation) = (&self.context.runtime, &self.context.allocation);
        let failed = |error: longshore_runtime::Error| error.to_string();
        let ceiling = resize::ceiling(&self.pod, &step.actuated);
        runtime.resize_pod(&ceiling, &step.sandbox_id).await.map_err(failed)?;
        *raised = true;
        self.check_memory(step, &ceiling).await?;
        for plan::Resize { id, name, .. } in &step.updates {
            let Some((_, container)) = spec::container(&self.pod, name) else { continue };
            let resized = runtime.resize_container(&self.pod, &container, id, &step.sandbox_id);
            resized.await.map_err(failed)?;
            allocation.container_resized(&self.pod, name);
        }
        if step.last {
            runtime.resize_pod(&self.pod, &step.sandbox_id).await.map_err(failed)?;
            allocation.pod_resized(&self.pod);
        }
        Ok(())
    }

    /// Refuses memory limits below the current usage, which would cause an OOM kill.
    async fn check_memory(&self, step: &Step, ceiling: &Pod) -> Result<(), String> {
        let runtime = &self.context.runtime;
        let mut violations = Vec::new();
        let limit = PodRuntime::memory_limit(&self.pod);
        let before = PodRuntime::memory_limit(ceiling);
        if step.last && limit > 0 && (before == 0 || limit < before) {
            match runtime.memory_of_pod(&self.pod) {
                Ok(usage) if usage < limit => {}
                Ok(usage) => violations.push(format!(
                    "attempting to set pod memory limit ({limit}) below current usage ({usage})"
                )),
                Err(error) => {
                    debug!(pod = describe(&self.pod), %error, "memory usage not read");
                    violations.push("missing pod memory usage".to_owned());
                }
            }
        }
        for update in step.updates.iter().filter(|one| one.from.tightens_memory(&one.to)) {
            let (name, limit) = (&update.name, update.to.memory_limit);
            match runtime.memory_of_container(&update.id).await {
                Ok(Some(usage)) if usage < limit => {}
                Ok(Some(usage)) => violations.push(format!(
                    "attempting to set container {name:?} memory limit ({limit}) below current \
                     usage ({usage})"
                )),
                Ok(None) | Err(_) => {
                    violations.push(format!("missing container {name:?} memory usage"));
                }
            }
        }
        match violations.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            all => Err(format!("cannot decrease memory limits: [{}]", all.join(", "))),
        }
    }
}
