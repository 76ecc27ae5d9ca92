//! What a worker tells of its pod: the status that follows from what it sees.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::PodStatus;
use longshore_pod::observed::ObservedPod;
use longshore_pod::status::{self, Context};
use longshore_pod::{Timestamp, spec};

use super::Phase;
use super::task::Task;

impl Task {
    /// Compute the pod's status and hand it to the writer.
    pub(super) fn tell(&mut self, observed: &ObservedPod) {
        let status = self.status(observed);
        self.told = status;
        let pulled = || self.context.runtime.time_of_pulls(spec::uid(&self.pod));
        self.stopwatch.told(&self.pod, &self.told, observed, pulled);
        // The object of a pod that its source has no more is gone, or another pod's.
        if !self.order.borrow().gone {
            self.context.status.tell(&self.pod, self.told.clone());
        }
    }

    pub(super) fn status(&self, observed: &ObservedPod) -> PodStatus {
        if self.refused {
            return self.told.clone();
        }
        let mut waiting: HashMap<String, (String, String)> = self
            .waiting
            .iter()
            .map(|(name, wait)| (name.clone(), (wait.reason.clone(), wait.message.clone())))
            .collect();
        if let (Some(trouble), Some(pod_spec)) = (&self.trouble, &self.pod.spec) {
            // Containers that have yet to run wait for what their pod does not get.
            let reason = status::first_wait(pod_spec);
            for (_, container) in spec::containers(pod_spec) {
                if observed.newest(&container.name).is_none() {
                    let wait = waiting.entry(container.name.clone());
                    wait.or_insert_with(|| (reason.to_owned(), trouble.clone()));
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
            resizing: self.resizing.as_ref().map(|resizing| &resizing.told),
            gates: self.context.gates,
            ..Context::default()
        };
        status::status(&self.pod, observed, &self.told, &context, Timestamp::now())
    }

    /// Containers whose postStart hook may be under way: those with one, whose run is the work of
    /// a step that goes on. One that a step stops has started long ago.
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
