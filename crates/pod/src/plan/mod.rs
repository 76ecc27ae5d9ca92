//! The next actions for a pod that should run, computed from its spec and the runtime's state. The
//! pod worker executes a plan, observes the pod again, and computes the next plan, until there is
//! nothing left to do.

mod containers;
mod init;
mod reset;
mod resize;
mod sandbox;

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::backoff::Backoff;
use crate::hash::container_hash;
use crate::observed::{ObservedPod, Sandbox};
use crate::probes::ProbeResults;
use crate::resize::PodResources;
use crate::spec::{self, ContainerKind, Gates};

pub use reset::restarts_all;
pub use resize::Resize;

/// The next actions for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Containers to kill and remove, in this order, because all containers restart in the ready
    /// sandbox. The rest of the plan is empty then.
    pub reset: Vec<Reset>,
    /// What to do about the sandbox, before anything else.
    pub sandbox: SandboxStep,
    /// Containers to stop.
    pub kill: Vec<Kill>,
    /// Containers to start in the ready sandbox, in this order.
    pub start: Vec<Start>,
    /// Containers whose resources are to be changed, those that get less first.
    pub resize: Vec<Resize>,
    /// Containers in backoff.
    pub waiting: Vec<Waiting>,
}

/// What to do about the pod's sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SandboxStep {
    /// Leave it.
    #[default]
    Keep,
    /// Stop earlier sandboxes and their containers, then create a new one.
    Create {
        /// The attempt of the new one.
        attempt: u32,
    },
    /// Nothing of the pod is to run any more: stop its containers and sandbox.
    Stop,
}

/// A container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The runtime's id.
    pub id: String,
    /// Its name in the spec.
    pub name: String,
    /// The message of the event.
    pub message: String,
    /// Grace period, if it is not the pod's.
    pub grace: Option<Duration>,
}

/// A container to remove, because all containers of its pod restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The runtime's id.
    pub id: String,
    /// Its name in the spec.
    pub name: String,
    /// Whether it is killed first: without its preStop hook, and with the minimum grace period.
    pub kill: bool,
}

/// A container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its kind.
    pub kind: ContainerKind,
    /// Its name in the spec.
    pub name: String,
    /// Its restart count; `None` if no earlier run is known.
    pub restart_count: Option<u32>,
    /// When its last run finished, if one has: its backoff counts from there.
    pub last_end: Option<Timestamp>,
}

/// A container that failed and is in backoff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its name in the spec.
    pub name: String,
    /// When it may be started again.
    pub until: Timestamp,
    /// The current delay.
    pub delay: SignedDuration,
}

impl Plan {
    /// Whether there is nothing to do now (containers may be in backoff).
    pub fn is_idle(&self) -> bool {
        self.reset.is_empty()
            && self.sandbox == SandboxStep::Keep
            && self.kill.is_empty()
            && self.start.is_empty()
            && self.resize.is_empty()
    }

    /// When the next backoff ends.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }
}

/// Key of a container's backoff: a changed spec starts anew.
pub type BackoffKey = (String, u64);

/// The key of a container's backoff.
pub fn backoff_key(container: &Container) -> BackoffKey {
    (container.name.clone(), container_hash(container))
}

/// What a plan depends on besides spec and observed state.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Results of the pod's probes.
    pub probes: &'a ProbeResults,
    /// Running containers whose postStart hook has not completed: they do not count as started. By
    /// name.
    pub starting: &'a HashSet<String>,
    /// The backoff of the pod's containers.
    pub backoff: &'a Backoff<BackoffKey>,
    /// The resources in force for the pod's containers.
    pub actuated: &'a PodResources,
    /// The time.
    pub now: Timestamp,
    /// The feature gates in force.
    pub gates: Gates,
}

/// The next actions for a pod that should run.
pub fn plan(pod: &Pod, observed: &ObservedPod, inputs: Inputs<'_>) -> Plan {
    let Some(pod_spec) = &pod.spec else { return Plan::default() };
    let planner = Planner { pod, spec: pod_spec, observed, inputs };
    let reset = planner.reset();
    if !reset.is_empty() {
        return Plan { reset, ..Plan::default() };
    }
    match usable_sandbox(pod, observed) {
        Some(sandbox) => {
            let mut plan = planner.containers(sandbox);
            plan.resize.sort_by_key(|resize| !resize.from.shrinks(&resize.to));
            plan
        }
        None => planner.new_sandbox(),
    }
}

/// The sandbox for the pod's containers: the newest one, if it is ready, is the only ready one, and
/// is on the network that the pod requests.
pub fn usable_sandbox<'a>(pod: &Pod, observed: &'a ObservedPod) -> Option<&'a Sandbox> {
    let newest = observed.sandboxes.first()?;
    let alone = observed.sandboxes.iter().filter(|sandbox| sandbox.ready).count() == 1;
    let host_network = spec::host_network(pod);
    let network = newest.host_network == host_network && (host_network || !newest.ips.is_empty());
    (newest.ready && alone && network).then_some(newest)
}

struct Planner<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    observed: &'a ObservedPod,
    inputs: Inputs<'a>,
}

#[cfg(test)]
mod tests;
