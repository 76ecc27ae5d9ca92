//! A resize under way: first the pod may use all that its containers may come to use, then the
//! containers are resized, in place or by a restart, and last the pod is held to what is left.

use std::sync::Arc;
use std::time::Instant;

use crate::allocation;
use k8s_openapi::api::core::v1::Pod;
use longshore_client::objects::Changed;
use longshore_pod::observed::ObservedPod;
use longshore_pod::plan::{Plan, Resize};
use longshore_pod::resize::{self, InProgress, PodResources};
use longshore_pod::spec::describe;
use longshore_pod::{Timestamp, spec};
use longshore_runtime::PodRuntime;
use tracing::debug;

use super::act::StepContext;
use super::steps::{Outcome, Resized, Subject};
use super::task::Task;

/// What pauses after failures are counted under; no container has that name.
const RETRIES: &str = "/resize";

/// A resize under way.
pub(super) struct Resizing {
    /// What is told of it.
    pub(super) told: InProgress,
    /// Whether the pod may use all that its containers may come to use.
    raised: bool,
    /// When a step that failed is tried again.
    pub(super) retry_at: Option<Timestamp>,
    _counted: allocation::InProgress,
}

impl Resizing {
    pub(super) fn new(told: InProgress, metrics: &allocation::Metrics) -> Self {
        Self { told, raised: false, retry_at: None, _counted: metrics.in_progress() }
    }
}

/// One step of a resize.
struct Step {
    generation: Option<i64>,
    sandbox_id: String,
    /// What is in force.
    actuated: Arc<PodResources>,
    updates: Vec<Resize>,
    /// Whether nothing is left to do after it.
    last: bool,
}

impl Task {
    /// The node takes the pod in, and gives it what it asks for or what it had.
    pub(super) fn hold(&mut self) {
        self.context.allocation.hold(&self.asked);
        self.pod = self.context.allocation.allocated(&self.asked);
    }

    /// The source has the pod like this now.
    pub(super) fn asks(&mut self, pod: Arc<Pod>) {
        let before = std::mem::replace(&mut self.asked, pod);
        if before.metadata.generation != self.asked.metadata.generation {
            self.context.allocation.review(&before, &self.asked);
        }
        self.pod = self.context.allocation.allocated(&self.asked);
        if self.was_resized
            && let Err(verdict) = self.context.admission.resize(&self.pod)
        {
            debug!(pod = describe(&self.pod), verdict.message, "seat not changed");
        }
    }

    /// Take in what was decided about a resize.
    pub(super) fn take_decision(&mut self) {
        let decision = self.decision.borrow_and_update().clone();
        if decision.grants == self.grants {
            return;
        }
        self.grants = decision.grants;
        self.was_resized = true;
        self.pod = self.context.allocation.allocated(&self.asked);
        self.changed(Changed::pod());
        let told = InProgress { generation: decision.generation, error: None };
        self.begin_resize(told);
        self.retries.retain(|failed| failed != RETRIES);
    }

    /// What differs is being resized, also if nobody remembers why.
    pub(super) fn note_resize(&mut self, observed: &ObservedPod, actuated: &PodResources) {
        let gates = self.context.gates;
        let differs = !resize::stale(&self.pod, observed, actuated, gates).is_empty()
            || resize::is_pod_stale(&self.pod, actuated, gates);
        if differs && self.resizing.is_none() {
            let told = InProgress { generation: self.pod.metadata.generation, error: None };
            self.begin_resize(told);
        }
    }

    fn begin_resize(&mut self, told: InProgress) {
        self.resizing = Some(Resizing::new(told, self.context.allocation.metrics()));
    }

    /// Whether the pod's containers may start: not while they could get more than their pod has.
    pub(super) fn has_room(&self) -> bool {
        self.resizing.as_ref().is_none_or(|resizing| resizing.raised)
    }

    /// Begin what of a resize can begin now.
    pub(super) fn resize(
        &mut self,
        observed: &ObservedPod,
        sandbox_id: &str,
        plan: &Plan,
        now: Timestamp,
    ) {
        let Some(resizing) = &self.resizing else { return };
        if self.steps.is_busy(&Subject::Resources) || resizing.retry_at.is_some_and(|at| at > now) {
            return;
        }
        let updates = plan.resize.iter().filter(|one| !self.steps.is_container_busy(&one.name));
        let updates: Vec<Resize> = updates.cloned().collect();
        let actuated = self.context.allocation.actuated(spec::uid(&self.pod));
        let stale = resize::stale(&self.pod, observed, &actuated, self.context.gates);
        // One that is being replaced may use what it had until it has ended.
        let last = plan.kill.is_empty()
            && self.steps.containers().next().is_none()
            && stale.iter().all(|name| updates.iter().any(|update| update.name == *name));
        if resizing.raised && updates.is_empty() && !last {
            return;
        }
        let generation = resizing.told.generation;
        let sandbox_id = sandbox_id.to_owned();
        let step = Step { generation, sandbox_id, actuated, updates, last };
        let step_context = self.step_context();
        self.steps.begin(Subject::Resources, |_| step_context.resize(step));
    }

    /// Take in what came of a step.
    pub(super) fn resized(&mut self, resized: Resized, now: Timestamp) {
        let Some(resizing) = &mut self.resizing else { return };
        if resizing.told.generation != resized.generation {
            return; // the pod was given something else meanwhile
        }
        resizing.raised |= resized.raised;
        let generation = resized.generation;
        let announce = |warning, reason, what, error: &str| {
            let text = resize::message(what, &self.pod, generation, error);
            self.context.pod_events.pod(&self.pod, warning, reason, &text);
        };
        match resized.result {
            Ok(false) => resizing.retry_at = None,
            Ok(true) => {
                announce(false, "ResizeCompleted", "completed", "");
                self.resizing = None;
                self.retries.retain(|failed| failed != RETRIES);
            }
            Err(message) => {
                debug!(pod = describe(&self.pod), message, "not resized");
                if resizing.told.error.as_ref() != Some(&message) {
                    announce(true, "ResizeError", "error", &message);
                    resizing.told.error = Some(message);
                }
                let retry_at = self.next_retry(RETRIES, now);
                if let Some(resizing) = &mut self.resizing {
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
        for Resize { id, name, .. } in &step.updates {
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

    /// Nobody is held to less memory than it uses: the kernel would kill it.
    async fn check_memory(&self, step: &Step, ceiling: &Pod) -> Result<(), String> {
        let runtime = &self.context.runtime;
        let mut complaints = Vec::new();
        let limit = PodRuntime::memory_limit(&self.pod);
        let before = PodRuntime::memory_limit(ceiling);
        if step.last && limit > 0 && (before == 0 || limit < before) {
            match runtime.memory_of_pod(&self.pod) {
                Ok(usage) if usage < limit => {}
                Ok(usage) => complaints.push(format!(
                    "attempting to set pod memory limit ({limit}) below current usage ({usage})"
                )),
                Err(error) => {
                    debug!(pod = describe(&self.pod), %error, "memory usage not read");
                    complaints.push("missing pod memory usage".to_owned());
                }
            }
        }
        for update in step.updates.iter().filter(|one| one.from.tightens_memory(&one.to)) {
            let (name, limit) = (&update.name, update.to.memory_limit);
            match runtime.memory_of_container(&update.id).await {
                Ok(Some(usage)) if usage < limit => {}
                Ok(Some(usage)) => complaints.push(format!(
                    "attempting to set container {name:?} memory limit ({limit}) below current \
                     usage ({usage})"
                )),
                Ok(None) | Err(_) => {
                    complaints.push(format!("missing container {name:?} memory usage"));
                }
            }
        }
        match complaints.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            all => Err(format!("cannot decrease memory limits: [{}]", all.join(", "))),
        }
    }
}
