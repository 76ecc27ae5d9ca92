//! The conditions that the node owns; those of others are kept as they stand.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::jiff::Timestamp;

use crate::observed::ObservedPod;
use crate::plan::usable_sandbox;
use crate::resize::{InProgress, Pending};
use crate::spec::{self, ContainerKind, Gates};

const SANDBOX: &str = "PodReadyToStartContainers";
const INITIALIZED: &str = "Initialized";
const READY: &str = "Ready";
const CONTAINERS_READY: &str = "ContainersReady";
const SCHEDULED: &str = "PodScheduled";
const RESTARTING: &str = "AllContainersRestarting";
const RESIZE_PENDING: &str = "PodResizePending";
const RESIZING: &str = "PodResizeInProgress";
/// Told by whoever disrupts the pod, which may be the node.
const DISRUPTION: &str = "DisruptionTarget";
const BY_THE_NODE: &str = "TerminationByKubelet";

/// Whether a condition of that type and reason is the node's to tell.
pub fn is_owned(type_: &str, reason: Option<&str>) -> bool {
    match type_ {
        SANDBOX | INITIALIZED | READY | CONTAINERS_READY | SCHEDULED | RESTARTING
        | RESIZE_PENDING | RESIZING => true,
        DISRUPTION => reason == Some(BY_THE_NODE),
        _ => false,
    }
}

/// What a status tells of a resize: what the pod waits for, and what it was given and is not done.
pub fn resize_told(status: &PodStatus) -> (Option<Pending>, Option<InProgress>) {
    let of = |type_| status.conditions.iter().flatten().find(move |c| c.type_ == type_);
    let pending = of(RESIZE_PENDING).map(|condition| Pending {
        infeasible: condition.reason.as_deref() == Some("Infeasible"),
        message: condition.message.clone().unwrap_or_default(),
        generation: condition.observed_generation,
    });
    let in_progress = of(RESIZING).map(|condition| InProgress {
        generation: condition.observed_generation,
        error: condition.message.clone().filter(|_| condition.reason.as_deref() == Some("Error")),
    });
    (pending, in_progress)
}

/// Whether the pod was told to start afresh.
pub(super) fn was_restarting(previous: &PodStatus, gates: Gates) -> bool {
    gates.restart_all_containers && holds(previous, RESTARTING)
}

fn holds(status: &PodStatus, type_: &str) -> bool {
    let mut all = status.conditions.iter().flatten();
    all.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// A condition's say, before it gets its times.
#[derive(Clone)]
struct Say {
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Say {
    fn yes() -> Self {
        Self { holds: true, reason: None, message: None }
    }

    fn no() -> Self {
        Self { holds: false, reason: None, message: None }
    }

    fn because(self, reason: &'static str) -> Self {
        Self { reason: Some(reason), ..self }
    }
}

type Statuses<'a> = BTreeMap<&'a str, &'a ContainerStatus>;

/// What the conditions follow from.
pub(super) struct Says<'a> {
    pub(super) pod: &'a Pod,
    pub(super) pod_spec: &'a PodSpec,
    pub(super) observed: &'a ObservedPod,
    pub(super) statuses: &'a Statuses<'a>,
    /// The phase that the pod is in, also if that may not be told yet.
    pub(super) phase: &'a str,
    pub(super) previous: &'a PodStatus,
    /// Whether the pod's containers are being removed to start afresh.
    pub(super) restarting: bool,
    /// Why the node ends the pod, if it does so for its own sake.
    pub(super) disruption: Option<&'a str>,
    pub(super) pending: Option<&'a Pending>,
    pub(super) resizing: Option<&'a InProgress>,
    pub(super) gates: Gates,
    pub(super) now: Timestamp,
}

impl Says<'_> {
    /// All conditions, with the transition times of `previous` where nothing changed.
    pub(super) fn all(&self) -> Vec<PodCondition> {
        let api = self.pod.status.as_ref().and_then(|status| status.conditions.as_deref());
        let is_owned = |c: &PodCondition| is_owned(&c.type_, c.reason.as_deref());
        let of_others = api.unwrap_or_default().iter().filter(|condition| !is_owned(condition));
        let mut all: Vec<PodCondition> = of_others.cloned().collect();
        if let Some(disruption) = self.disruption_target() {
            all.retain(|condition| condition.type_ != DISRUPTION);
            all.push(disruption);
        }
        all.extend(self.pending.map(|pending| self.resize_pending(pending)));
        all.extend(self.resizing.map(|resizing| self.resize_in_progress(resizing)));
        all.push(self.condition(SANDBOX, self.sandbox()));
        all.push(self.condition(INITIALIZED, self.initialized()));
        let containers = self.containers_ready();
        let ready = match containers.holds {
            true => gates(self.pod_spec, &all),
            false => containers.clone(),
        };
        all.push(self.condition(READY, ready));
        all.push(self.condition(CONTAINERS_READY, containers));
        all.push(self.condition(SCHEDULED, Say::yes()));
        if self.gates.restart_all_containers && spec::may_restart_all(self.pod_spec) {
            let say = self.all_restarting();
            all.push(PodCondition { observed_generation: None, ..self.condition(RESTARTING, say) });
        }
        all
    }

    fn condition(&self, type_: &str, say: Say) -> PodCondition {
        let status = if say.holds { "True" } else { "False" };
        let mut before = self.previous.conditions.iter().flatten();
        let since = before
            .find(|old| old.type_ == type_ && old.status == status)
            .and_then(|old| old.last_transition_time.clone())
            .unwrap_or_else(|| super::time(self.now));
        PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: say.reason.map(str::to_owned),
            message: say.message,
            last_transition_time: Some(since),
            last_probe_time: None,
            observed_generation: self.pod.metadata.generation,
        }
    }

    fn resize_pending(&self, pending: &Pending) -> PodCondition {
        let reason = if pending.infeasible { "Infeasible" } else { "Deferred" };
        self.resize(RESIZE_PENDING, reason, &pending.message, pending.generation)
    }

    fn resize_in_progress(&self, resizing: &InProgress) -> PodCondition {
        let (reason, message) = match &resizing.error {
            Some(error) => ("Error", error.as_str()),
            None => ("", ""),
        };
        self.resize(RESIZING, reason, message, resizing.generation)
    }

    /// It stands while it says the same; its moment is that of its reason.
    fn resize(
        &self,
        type_: &str,
        reason: &str,
        message: &str,
        generation: Option<i64>,
    ) -> PodCondition {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let mut said = PodCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: some(reason),
            message: some(message),
            last_transition_time: Some(super::time(self.now)),
            last_probe_time: Some(super::time(self.now)),
            observed_generation: generation,
        };
        let mut before = self.previous.conditions.iter().flatten();
        if let Some(before) = before.find(|before| before.type_ == type_) {
            if before.reason == said.reason {
                said.last_transition_time.clone_from(&before.last_transition_time);
            }
            let is_same = before.reason == said.reason
                && before.message == said.message
                && before.observed_generation == said.observed_generation;
            if is_same {
                said.last_probe_time.clone_from(&before.last_probe_time);
            }
        }
        said
    }

    /// The node's own say, once its verdict is told; after that, what was told stays.
    fn disruption_target(&self) -> Option<PodCondition> {
        if let Some(message) = self.disruption {
            let say = Say { message: Some(message.to_owned()), ..Say::yes() };
            return Some(self.condition(DISRUPTION, say.because(BY_THE_NODE)));
        }
        let mut before = self.previous.conditions.iter().flatten();
        before.find(|c| is_owned(&c.type_, c.reason.as_deref()) && c.type_ == DISRUPTION).cloned()
    }

    fn sandbox(&self) -> Say {
        match usable_sandbox(self.pod, self.observed) {
            Some(_) => Say::yes(),
            None => Say::no(),
        }
    }

    fn all_restarting(&self) -> Say {
        match self.phase {
            "Succeeded" => Say::no().because("PodCompleted"),
            "Failed" => Say::no().because("PodFailed"),
            _ if self.restarting => Say {
                message: Some("container exited with restart policy rule".to_owned()),
                ..Say::yes().because("RestartAllContainersStarted")
            },
            _ => Say::no(),
        }
    }

    fn containers_ready(&self) -> Say {
        let (mut unknown, mut unready) = (Vec::new(), Vec::new());
        for (kind, container) in spec::containers(self.pod_spec) {
            match (kind, self.statuses.get(container.name.as_str())) {
                (ContainerKind::Init, _) => {}
                (_, None) => unknown.push(container.name.as_str()),
                (_, Some(status)) if !status.ready => unready.push(container.name.as_str()),
                _ => {}
            }
        }
        match self.phase {
            "Succeeded" if unknown.is_empty() => Say::no().because("PodCompleted"),
            "Failed" => Say::no().because("PodFailed"),
            _ => unless_all("ContainersNotReady", &unknown, "unready", &unready),
        }
    }

    fn initialized(&self) -> Say {
        let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
        let mut started = false;
        for (kind, container) in spec::containers(self.pod_spec) {
            let status = self.statuses.get(container.name.as_str());
            match (kind, status) {
                (ContainerKind::Regular, status) => {
                    started |= status
                        .and_then(|status| status.state.as_ref())
                        .is_some_and(|state| state.running.is_some() || state.terminated.is_some());
                }
                (_, None) => unknown.push(container.name.as_str()),
                (ContainerKind::Sidecar, Some(status)) if status.started != Some(true) => {
                    incomplete.push(container.name.as_str());
                }
                (ContainerKind::Init, Some(status)) if !status.ready => {
                    incomplete.push(container.name.as_str());
                }
                _ => {}
            }
        }
        if self.phase == "Succeeded" && unknown.is_empty() {
            return Say::yes().because("PodCompleted");
        }
        // What has been initialized stays so, also while it starts afresh.
        if started || holds(self.previous, INITIALIZED) {
            return Say::yes();
        }
        unless_all("ContainersNotInitialized", &unknown, "incomplete", &incomplete)
    }
}

/// The pod is ready when its containers are and every readiness gate says so.
fn gates(pod_spec: &PodSpec, conditions: &[PodCondition]) -> Say {
    let shut: Vec<String> = pod_spec
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let wanted = gate.condition_type.as_str();
            match conditions.iter().find(|condition| condition.type_ == wanted) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {wanted:?} does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate {wanted:?} is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    match shut.is_empty() {
        true => Say::yes(),
        false => {
            Say { message: Some(shut.join(", ")), ..Say::no().because("ReadinessGatesNotReady") }
        }
    }
}

/// No for that reason, unless both lists are empty.
fn unless_all(reason: &'static str, unknown: &[&str], adjective: &str, others: &[&str]) -> Say {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: [{}]", unknown.join(" ")));
    }
    if !others.is_empty() {
        parts.push(format!("containers with {adjective} status: [{}]", others.join(" ")));
    }
    match parts.is_empty() {
        true => Say::yes(),
        false => Say { message: Some(parts.join(", ")), ..Say::no().because(reason) },
    }
}
