//! The pod conditions that the node owns; those of others are kept.

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
/// Set by whoever disrupts the pod, which may be the node.
const DISRUPTION: &str = "DisruptionTarget";
const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// Whether the node owns a condition of that type and reason.
pub fn is_owned(type_: &str, reason: Option<&str>) -> bool {
    match type_ {
        SANDBOX | INITIALIZED | READY | CONTAINERS_READY | SCHEDULED | RESTARTING
        | RESIZE_PENDING | RESIZING => true,
        DISRUPTION => reason == Some(TERMINATION_BY_KUBELET),
        _ => false,
    }
}

/// The pending resize and the resize in progress according to a status.
pub fn resize_status(status: &PodStatus) -> (Option<Pending>, Option<InProgress>) {
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

/// Whether the previous status says that all containers restart.
pub(super) fn was_restarting(previous: &PodStatus, gates: Gates) -> bool {
    gates.restart_all_containers && holds(previous, RESTARTING)
}

fn holds(status: &PodStatus, type_: &str) -> bool {
    let mut all = status.conditions.iter().flatten();
    all.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Status, reason and message of a condition, without its times.
#[derive(Clone)]
struct ConditionValue {
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl ConditionValue {
    fn true_value() -> Self {
        Self { holds: true, reason: None, message: None }
    }

    fn false_value() -> Self {
        Self { holds: false, reason: None, message: None }
    }

    fn with_reason(self, reason: &'static str) -> Self {
        Self { reason: Some(reason), ..self }
    }
}

type Statuses<'a> = BTreeMap<&'a str, &'a ContainerStatus>;

/// Input of the conditions.
pub(super) struct ConditionBuilder<'a> {
    pub(super) pod: &'a Pod,
    pub(super) pod_spec: &'a PodSpec,
    pub(super) observed: &'a ObservedPod,
    pub(super) statuses: &'a Statuses<'a>,
    /// The computed phase, even if it is not reported yet.
    pub(super) phase: &'a str,
    pub(super) previous: &'a PodStatus,
    /// Whether the pod's containers are being removed for a restart of all.
    pub(super) restarting: bool,
    /// Message of the disruption, if the node ends the pod for its own sake.
    pub(super) disruption: Option<&'a str>,
    pub(super) pending: Option<&'a Pending>,
    pub(super) resizing: Option<&'a InProgress>,
    pub(super) gates: Gates,
    pub(super) now: Timestamp,
}

impl ConditionBuilder<'_> {
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
        all.push(self.condition(SCHEDULED, ConditionValue::true_value()));
        if self.gates.restart_all_containers && spec::may_restart_all(self.pod_spec) {
            let value = self.all_restarting();
            all.push(PodCondition {
                observed_generation: None,
                ..self.condition(RESTARTING, value)
            });
        }
        all
    }

    fn condition(&self, type_: &str, value: ConditionValue) -> PodCondition {
        let status = if value.holds { "True" } else { "False" };
        let mut before = self.previous.conditions.iter().flatten();
        let since = before
            .find(|old| old.type_ == type_ && old.status == status)
            .and_then(|old| old.last_transition_time.clone())
            .unwrap_or_else(|| super::time(self.now));
        PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: value.reason.map(str::to_owned),
            message: value.message,
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

    /// The transition time changes with the reason, the probe time with any change.
    fn resize(
        &self,
        type_: &str,
        reason: &str,
        message: &str,
        generation: Option<i64>,
    ) -> PodCondition {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let mut condition = PodCondition {
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
            if before.reason == condition.reason {
                condition.last_transition_time.clone_from(&before.last_transition_time);
            }
            let is_same = before.reason == condition.reason
                && before.message == condition.message
                && before.observed_generation == condition.observed_generation;
            if is_same {
                condition.last_probe_time.clone_from(&before.last_probe_time);
            }
        }
        condition
    }

    /// The node's own disruption once its verdict is reported; after that, the previous condition
    /// stays.
    fn disruption_target(&self) -> Option<PodCondition> {
        if let Some(message) = self.disruption {
            let value = ConditionValue {
                message: Some(message.to_owned()),
                ..ConditionValue::true_value()
            };
            return Some(self.condition(DISRUPTION, value.with_reason(TERMINATION_BY_KUBELET)));
        }
        let mut before = self.previous.conditions.iter().flatten();
        before.find(|c| is_owned(&c.type_, c.reason.as_deref()) && c.type_ == DISRUPTION).cloned()
    }

    fn sandbox(&self) -> ConditionValue {
        match usable_sandbox(self.pod, self.observed) {
            Some(_) => ConditionValue::true_value(),
            None => ConditionValue::false_value(),
        }
    }

    fn all_restarting(&self) -> ConditionValue {
        match self.phase {
            "Succeeded" => ConditionValue::false_value().with_reason("PodCompleted"),
            "Failed" => ConditionValue::false_value().with_reason("PodFailed"),
            _ if self.restarting => ConditionValue {
                message: Some("container exited with restart policy rule".to_owned()),
                ..ConditionValue::true_value().with_reason("RestartAllContainersStarted")
            },
            _ => ConditionValue::false_value(),
        }
    }

    fn containers_ready(&self) -> ConditionValue {
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
            "Succeeded" if unknown.is_empty() => {
                ConditionValue::false_value().with_reason("PodCompleted")
            }
            "Failed" => ConditionValue::false_value().with_reason("PodFailed"),
            _ => true_unless_any("ContainersNotReady", &unknown, "unready", &unready),
        }
    }

    fn initialized(&self) -> ConditionValue {
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
            return ConditionValue::true_value().with_reason("PodCompleted");
        }
        // An initialized pod stays so, also while all containers restart.
        if started || holds(self.previous, INITIALIZED) {
            return ConditionValue::true_value();
        }
        true_unless_any("ContainersNotInitialized", &unknown, "incomplete", &incomplete)
    }
}

/// The pod is ready when its containers are and every readiness gate is true.
fn gates(pod_spec: &PodSpec, conditions: &[PodCondition]) -> ConditionValue {
    let failed: Vec<String> = pod_spec
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let type_ = gate.condition_type.as_str();
            match conditions.iter().find(|condition| condition.type_ == type_) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {type_:?} does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate {type_:?} is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    match failed.is_empty() {
        true => ConditionValue::true_value(),
        false => ConditionValue {
            message: Some(failed.join(", ")),
            ..ConditionValue::false_value().with_reason("ReadinessGatesNotReady")
        },
    }
}

/// False for that reason, unless both lists are empty.
fn true_unless_any(
    reason: &'static str,
    unknown: &[&str],
    adjective: &str,
    others: &[&str],
) -> ConditionValue {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: [{}]", unknown.join(" ")));
    }
    if !others.is_empty() {
        parts.push(format!("containers with {adjective} status: [{}]", others.join(" ")));
    }
    match parts.is_empty() {
        true => ConditionValue::true_value(),
        false => ConditionValue {
            message: Some(parts.join(", ")),
            ..ConditionValue::false_value().with_reason(reason)
        },
    }
}
