//! The status that a worker reports of its pod.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::jiff::SignedDuration;
use longshore_base::clock;
use longshore_pod::Timestamp;
use longshore_pod::observed::ObservedPod;
use longshore_pod::spec;
use longshore_pod::status::{self, Context};

use super::state::PodState;

/// Until when what has been so since then is not reported alone: for that span, if it is not over.
pub(super) fn withheld_until(
    since: Timestamp,
    span: SignedDuration,
    now: Timestamp,
) -> Option<Timestamp> {
    since.checked_add(span).ok().filter(|until| *until > now)
}

impl PodState {
    /// Computes the pod's status and passes it to the status writer. `terminated`: nothing of it runs.
    pub(super) fn report_status(&mut self, observed: &ObservedPod, terminated: bool) {
        let holds_devices = !terminated && self.context.claims.holds(spec::uid(&self.pod));
        self.report.last = self.status_with(observed, terminated, holds_devices);
        let pulled = || self.context.runtime.image_pull_time(spec::uid(&self.pod));
        self.stopwatch.observe_status(&self.pod, &self.report.last, observed, pulled);
        // The object of a pod that was removed from its source is deleted, or another pod's.
        if !self.inputs.order.borrow().gone {
            self.context.status.set_status(&self.pod, self.report.last.clone());
        }
    }

    /// The pod's status, whether or not it holds devices.
    pub(super) fn status(&self, observed: &ObservedPod, terminated: bool) -> PodStatus {
        self.status_with(observed, terminated, false)
    }

    fn status_with(
        &self,
        observed: &ObservedPod,
        terminated: bool,
        holds_devices: bool,
    ) -> PodStatus {
        if self.admitted.is_refused() {
            return self.report.last.clone();
        }
        let mut waiting = self.failures.waiting();
        if let (Some(pod_error), Some(pod_spec)) = (self.failures.pod_error(), &self.pod.spec) {
            // Containers that have not run yet wait for what failed for the pod.
            let reason = status::first_wait(pod_spec);
            for (_, container) in spec::containers(pod_spec) {
                if observed.newest(&container.name).is_none() {
                    let wait = waiting.entry(container.name.clone());
                    wait.or_insert_with(|| (reason.to_owned(), pod_error.to_owned()));
                }
            }
        }
        let probes = self.inputs.probes.borrow().clone();
        let actuated = self.context.allocation.actuated(spec::uid(&self.pod));
        let decision = self.inputs.decision.borrow().clone();
        let (runtime, host_ips) = (self.inputs.runtime.borrow(), self.inputs.host_ips.borrow());
        let handler = observed.sandboxes.first().map(|sandbox| sandbox.handler.as_str());
        let context = Context {
            probes: &probes,
            starting: self.starting(observed),
            waiting,
            host_ips: &host_ips,
            recursive_read_only: runtime.mounts_recursively_read_only(handler.unwrap_or_default()),
            terminal: terminated,
            holds_devices,
            verdict: self.report.verdict.clone(),
            runtime: runtime.runtime_name().unwrap_or_default(),
            actuated: &actuated,
            pending: decision.pending.as_ref(),
            resizing: self.resize.reported_progress(),
            gates: self.context.gates,
        };
        let last = &self.report.last;
        let mut status = status::status(&self.pod, observed, last, &context, clock::now());
        self.context.claims.set_health(&self.pod, &mut status);
        self.context.devices.add_health(spec::uid(&self.pod), &mut status, last);
        status
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

    /// Probes the running containers.
    pub(super) fn follow_probes(&self, observed: &ObservedPod) {
        let starting = self.starting(observed);
        self.context.probes.follow(&self.pod, observed, &starting, &self.report.last);
    }
}
