//! What is to be done next for a pod that should run: a plain function of what it asks for and
//! what the runtime shows. The worker carries a plan out, looks again, and asks for the next one,
//! until there is nothing left to do.
//!
//! Current limitations: probes, resize and `RestartAllContainers` do not ask for anything yet.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::backoff::Backoff;
use crate::hash::container_hash;
use crate::observed::{self, ObservedPod, Sandbox, State};
use crate::probes::ProbeResults;
use crate::spec::{self, ContainerKind};

/// The next steps for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to do about the sandbox, before anything else.
    pub sandbox: SandboxStep,
    /// Containers to stop.
    pub kill: Vec<Kill>,
    /// Containers to start in the sandbox that stands, in this order.
    pub start: Vec<Start>,
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
    /// Nothing of the pod is to run (any more): stop all of it.
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

/// A container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its list in the spec.
    pub kind: ContainerKind,
    /// Its name in the spec.
    pub name: String,
    /// Its restart count; `None` if nothing of an earlier run is known.
    pub restart_count: Option<u32>,
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
        self.sandbox == SandboxStep::Keep && self.kill.is_empty() && self.start.is_empty()
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
    /// The restart delays of the pod's containers.
    pub backoff: &'a Backoff<BackoffKey>,
    /// The time.
    pub now: Timestamp,
}

/// The next steps for a pod that should run.
pub fn plan(pod: &Pod, observed: &ObservedPod, inputs: Inputs<'_>) -> Plan {
    let Some(pod_spec) = &pod.spec else { return Plan::default() };
    let planner = Planner { spec: pod_spec, observed, inputs };
    match usable_sandbox(pod, observed) {
        Some(sandbox) => planner.containers(sandbox),
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
    spec: &'a PodSpec,
    observed: &'a ObservedPod,
    inputs: Inputs<'a>,
}

enum Verdict {
    /// Runs as it should, or has ended for good.
    Leave,
    /// Is to be started, now or after a wait.
    Start,
    /// Runs or may run, but not as it should: is to be stopped first, for the reason that is given.
    Replace(String),
}

impl Planner<'_> {
    fn new_sandbox(&self) -> Plan {
        let attempt =
            self.observed.sandboxes.first().map_or(0, |newest| newest.attempt.saturating_add(1));
        let ran_before = !self.observed.containers.is_empty();
        // A sandbox for nothing would start, see that, and stop again, for ever.
        let pointless = ran_before && !self.anything_to_run();
        let sandbox = match (pointless, self.observed.is_active()) {
            (false, _) => SandboxStep::Create { attempt },
            (true, true) => SandboxStep::Stop,
            (true, false) => SandboxStep::Keep,
        };
        Plan { sandbox, ..Plan::default() }
    }

    fn anything_to_run(&self) -> bool {
        let may_run = |kind, container: &Container| match self.observed.newest(&container.name) {
            Some(observed) => match observed.state {
                State::Created => true,
                State::Exited { exit_code, .. } => {
                    spec::restarts(self.spec, kind, container, exit_code)
                }
                // It ran in a sandbox that is lost, and with it its exit code.
                _ => spec::restarts(self.spec, kind, container, 137),
            },
            None => true,
        };
        self.spec.containers.iter().any(|container| may_run(ContainerKind::Regular, container))
            && !self.failed_init().is_some_and(|failed| failed)
    }

    /// Whether an init container failed for good; `None` if none has failed.
    fn failed_init(&self) -> Option<bool> {
        spec::init_containers(self.spec)
            .iter()
            .filter(|container| !spec::is_sidecar(container))
            .find_map(|container| {
                let code = self.observed.newest(&container.name)?.exit_code()?;
                (code != 0)
                    .then(|| !spec::restarts(self.spec, ContainerKind::Init, container, code))
            })
    }

    fn containers(&self, sandbox: &Sandbox) -> Plan {
        let mut plan = Plan::default();
        let initialized = self.init_containers(sandbox, &mut plan);
        let mut over = initialized.is_err();
        if initialized == Ok(true) {
            over = true;
            for container in &self.spec.containers {
                let verdict = self.verdict(sandbox, ContainerKind::Regular, container);
                let runs = self
                    .current(sandbox, &container.name)
                    .is_some_and(observed::Container::is_running);
                over &= matches!(verdict, Verdict::Leave) && !runs;
                self.apply(verdict, ContainerKind::Regular, container, &mut plan);
            }
        }
        if over {
            // Sidecars do not keep a pod alive whose own work is done.
            return Plan { sandbox: SandboxStep::Stop, ..Plan::default() };
        }
        plan
    }

    /// Adds the steps of the init phase. Tells whether it is over; an error is "never will be".
    fn init_containers(&self, sandbox: &Sandbox, plan: &mut Plan) -> Result<bool, ()> {
        let started = self.spec.containers.iter().any(|container| {
            self.current(sandbox, &container.name).is_some_and(|c| c.state != State::Created)
        });
        for container in spec::init_containers(self.spec) {
            if spec::is_sidecar(container) {
                let verdict = self.verdict(sandbox, ContainerKind::Sidecar, container);
                let runs = self
                    .current(sandbox, &container.name)
                    .is_some_and(observed::Container::is_running);
                self.apply(verdict, ContainerKind::Sidecar, container, plan);
                if !runs && !started {
                    return Ok(false);
                }
                continue;
            }
            // Once regular containers have started, init containers are history, even if their
            // records are gone.
            if started {
                continue;
            }
            let current = self.current(sandbox, &container.name);
            match current.and_then(observed::Container::exit_code) {
                Some(0) => continue,
                Some(code) if !spec::restarts(self.spec, ContainerKind::Init, container, code) => {
                    return Err(());
                }
                _ => {}
            }
            let verdict = self.verdict(sandbox, ContainerKind::Init, container);
            self.apply(verdict, ContainerKind::Init, container, plan);
            return Ok(false);
        }
        Ok(true)
    }

    /// The newest container of that name, if it belongs to the sandbox that stands. What ran in an
    /// earlier sandbox does not count as running or done, but for regular containers that ended.
    fn current(&self, sandbox: &Sandbox, name: &str) -> Option<&observed::Container> {
        self.observed.newest(name).filter(|container| container.sandbox_id == sandbox.id)
    }

    fn verdict(&self, sandbox: &Sandbox, kind: ContainerKind, container: &Container) -> Verdict {
        let Some(observed) = self.observed.newest(&container.name) else { return Verdict::Start };
        let here = observed.sandbox_id == sandbox.id;
        match &observed.state {
            State::Running { .. } if here => match observed.hash {
                Some(hash) if hash != container_hash(container) => Verdict::Replace(format!(
                    "Container {} definition changed, will be restarted",
                    container.name
                )),
                _ => Verdict::Leave,
            },
            // It may run all the same, and there must never be two of it.
            State::Unknown => Verdict::Replace(
                "Container is in \"unknown\" state, try killing it before restart".to_owned(),
            ),
            State::Exited { exit_code, .. } if here || kind == ContainerKind::Regular => {
                if spec::restarts(self.spec, kind, container, *exit_code) {
                    Verdict::Start
                } else {
                    Verdict::Leave
                }
            }
            _ => Verdict::Start,
        }
    }

    fn apply(&self, verdict: Verdict, kind: ContainerKind, container: &Container, plan: &mut Plan) {
        let newest = self.observed.newest(&container.name);
        match verdict {
            Verdict::Leave => return,
            Verdict::Start => {}
            Verdict::Replace(message) => plan.kill.extend(newest.map(|observed| Kill {
                id: observed.id.clone(),
                name: container.name.clone(),
                message,
                grace: None,
            })),
        }
        let key = backoff_key(container);
        let until = newest
            .and_then(observed::Container::finished_at)
            .and_then(|finished| self.inputs.backoff.waits_until(&key, finished, self.inputs.now));
        match until {
            Some(until) => plan.waiting.push(Waiting {
                name: container.name.clone(),
                until,
                delay: self.inputs.backoff.delay(&key),
            }),
            None => plan.start.push(Start {
                kind,
                name: container.name.clone(),
                restart_count: newest.map(|observed| observed.restart_count.saturating_add(1)),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
