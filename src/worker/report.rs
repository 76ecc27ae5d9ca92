//! The status that a worker reports of its pod.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::PodStatus;
use longshore_pod::observed::ObservedPod;
use longshore_pod::status::{self, Context};
use longshore_pod::{Timestamp, spec};

use super::Phase;
use super::task::Task;

impl Task {
    /// Computes the pod's status and passes it to the status writer.
    pub(super) fn report_status(&mut self, observed: &ObservedPod) {
        let status = self.status(observed);
        self.last_status = status;
        let pulled = || self.context.runtime.image_pull_time(spec::uid(&self.pod));
        self.stopwatch.observe_status(&self.pod, &self.last_status, observed, pulled);
        // The object of a pod that was removed from its source is deleted, or another pod's.
        if !self.order.borrow().gone {
            self.context.status.set_status(&self.pod, self.last_status.clone());
        }
    }

    pub(super) fn status(&self, observed: &ObservedPod) -> PodStatus {
        if self.refused {
            return self.last_status.clone();
        }
        let mut waiting: HashMap<String, (String, String)> = self
            .waiting
            .iter()
            .map(|(name, wait)| (name.clone(), (wait.reason.clone(), wait.message.clone())))
            .collect();
        if let (Some(pod_error), Some(pod_spec)) = (&self.pod_error, &self.pod.spec) {
            // Containers that have not run yet wait for what failed for the pod.
            let reason = status::first_wait(pod_spec);
            for (_, container) in spec::containers(pod_spec) {
                if observed.newest(&container.name).is_none() {
                    let wait = waiting.entry(container.name.clone());
                    wait.or_insert_with(|| (reason.to_owned(), pod_error.clone()));
                }
            }
        }
        let probes = self.probes.borrow().clone();
        let actuated = self.context.allocation.actuated(spec::uid(&self.pod));
        let decision = self.decision.borrow().clone();
        let context = Context {
            probes: &probes,
            starting: self.starting(observed),
            waiting,
            host_ips: &self.context.settings.host_ips,
            terminal: self.phase == Phase::Terminated,
            verdict: self.verdict.clone(),
            runtime: &self.context.runtime_name,
            actuated: &actuated,
            pending: decision.pending.as_ref(),
            resizing: self.resizing.as_ref().map(|resizing| &resizing.reported),
            gates: self.context.gates,
            ..Context::default()
        };
        status::status(&self.pod, observed, &self.last_status, &context, Timestamp::now())
    }

    /// Containers whose postStart hook may be running: those with a hook that a running step has
    /// created.
    pub(super) fn starting(&self, observed: &ObservedPod) -> HashSet<String> {
        let is_starting = |name: &&str| {
            let hooked = spec::container(&self.pod, name).is_some_and(|(_, container)| {
                container.lifecycle.as_ref().is_some_and(|hooks| hooks.post_start.is_some())
            });
            let run = observed.newest(name).filter(|_| hooked);
            run.is_some_and(|run| self.steps.begun(name).is_some_and(|at| at <= run.created_at))
        };
        self.steps.containers().filter(is_starting).map(str::to_owned).collect()
    }
}
