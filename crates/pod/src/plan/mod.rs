//! What is to be done next for a pod that should run: a plain function of what it asks for and
//! what the runtime shows. The worker carries a plan out, looks again, and asks for the next one,
//! until there is nothing left to do.

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

/// The next steps for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Containers to stop and remove, in this order: all of the pod starts afresh in the sandbox
    /// that stands. Nothing else is planned with it.
    pub reset: Vec<Reset>,
    /// What to do about the sandbox, before anything else.
    pub sandbox: SandboxStep,
    /// Containers to stop.
    pub kill: Vec<Kill>,
    /// Containers to start in the sandbox that stands, in this order.
    pub start: Vec<Start>,
    /// Containers to be given other resources as they run, those first that get less.
    pub resize: Vec<Resize>,
    /// Containers that have to wait before they are started again.
    pub waiting: Vec<Waiting>,
}

/// What to do about the pod's sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SandboxStep {
    /// Leave it.
    #[default]
    Keep,
    /// Stop what is left of earlier sandboxes and their containers, then make a new one.
    Create {
        /// Which try the new one is.
        attempt: u32,
    },
    /// Nothing of the pod is to run any more, and nothing will: stop all that does.
    Stop,
}

/// A container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The runtime's id.
    pub id: String,
    /// Its name in the spec.
    pub name: String,
    /// What the event says.
    pub message: String,
    /// How long it may take, if not as long as its pod allows.
    pub grace: Option<Duration>,
}

/// A container to remove, because all of its pod starts afresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The runtime's id.
    pub id: String,
    /// Its name in the spec.
    pub name: String,
    /// Whether it is to be stopped first: without its preStop hook, and with the least grace.
    pub kill: bool,
}

/// A container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its list in the spec.
    pub kind: ContainerKind,
    /// Its name in the spec.
    pub name: String,
    /// Its restart count; `None` if nothing of an earlier run is known.
    pub restart_count: Option<u32>,
    /// When its last run to end ended, if one has: its restart delay counts from there.
    pub last_end: Option<Timestamp>,
}

/// A container that failed and waits for its next try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its name in the spec.
    pub name: String,
    /// When it may be started again.
    pub until: Timestamp,
    /// The delay in force.
    pub delay: SignedDuration,
}

impl Plan {
    /// Whether there is nothing to do now (some container may wait).
    pub fn is_idle(&self) -> bool {
        self.reset.is_empty()
            && self.sandbox == SandboxStep::Keep
            && self.kill.is_empty()
            && self.start.is_empty()
            && self.resize.is_empty()
    }

    /// When the next container's wait ends.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }
}

/// Key of a container's restart delay: a changed spec starts afresh.
pub type BackoffKey = (String, u64);

/// The key of a container's restart delay.
pub fn backoff_key(container: &Container) -> BackoffKey {
    (container.name.clone(), container_hash(container))
}

/// What a plan depends on besides spec and observation.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// What the pod's probes have found.
    pub probes: &'a ProbeResults,
    /// Containers that run and whose postStart hook has yet to succeed: they do not count as
    /// started. By name.
    pub starting: &'a HashSet<String>,
    /// The restart delays of the pod's containers.
    pub backoff: &'a Backoff<BackoffKey>,
    /// What the pod's containers run with.
    pub actuated: &'a PodResources,
    /// The time.
    pub now: Timestamp,
    /// The feature gates in force.
    pub gates: Gates,
}

/// The next steps for a pod that should run.
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

/// The sandbox that the pod's containers can run in: the newest, if it stands, is the only one
/// that does, and is on the network that the pod asks for.
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
