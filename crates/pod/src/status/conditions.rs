//! The conditions that the node owns; those of others are kept as they stand.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::jiff::Timestamp;

use crate::observed::ObservedPod;
use crate::plan::usable_sandbox;
use crate::spec::{self, ContainerKind};

const OWNED: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Whether conditions of that type are the node's to tell.
pub fn is_owned(type_: &str) -> bool {
    OWNED.contains(&type_)
}

/// A condition's say, before it gets its times.
struct Say {
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Say {
    fn yes() -> Self {
        Self { holds: true, reason: None, message: None }
    }

    fn no(reason: &'static str) -> Self {
        Self { holds: false, reason: Some(reason), message: None }
    }
}

type Statuses<'a> = BTreeMap<&'a str, &'a ContainerStatus>;

/// All conditions, with the transition times of `previous` where nothing changed.
pub(super) fn conditions(
    pod: &Pod,
    pod_spec: &PodSpec,
    observed: &ObservedPod,
    statuses: &Statuses<'_>,
    phase: &str,
    previous: &PodStatus,
    now: Timestamp,
) -> Vec<PodCondition> {
    let before = previous.conditions.as_deref().unwrap_or_default();
    let api =
        pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let mut all: Vec<PodCondition> =
        api.iter().filter(|condition| !is_owned(&condition.type_)).cloned().collect();

    let sandbox = match usable_sandbox(pod, observed) {
        Some(_) => Say::yes(),
        None => Say { holds: false, reason: None, message: None },
    };
    let containers = containers_ready(pod_spec, statuses, phase);
    let ready = match containers.holds {
        true => gates(pod_spec, &all),
        false => Say { message: containers.message.clone(), ..containers },
    };
    let says = [
        (OWNED[0], sandbox),
        (OWNED[1], initialized(pod_spec, statuses, phase, before)),
        (OWNED[2], ready),
        (OWNED[3], containers),
        (OWNED[4], Say::yes()),
    ];
    all.extend(says.into_iter().map(|(type_, say)| {
        let status = if say.holds { "True" } else { "False" };
        let old = before.iter().find(|condition| condition.type_ == type_);
        let since = old
            .filter(|old| old.status == status)
            .and_then(|old| old.last_transition_time.clone())
            .unwrap_or_else(|| super::time(now));
        PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: say.reason.map(str::to_owned),
            message: say.message,
            last_transition_time: Some(since),
            last_probe_time: None,
            observed_generation: pod.metadata.generation,
        }
    }));
    all
}

fn containers_ready(pod_spec: &PodSpec, statuses: &Statuses<'_>, phase: &str) -> Say {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for (kind, container) in spec::containers(pod_spec) {
        match (kind, statuses.get(container.name.as_str())) {
            (ContainerKind::Init, _) => {}
            (_, None) => unknown.push(container.name.as_str()),
            (_, Some(status)) if !status.ready => unready.push(container.name.as_str()),
            _ => {}
        }
    }
    match phase {
        "Succeeded" if unknown.is_empty() => return Say::no("PodCompleted"),
        "Failed" => return Say::no("PodFailed"),
        _ => {}
    }
    not_all("ContainersNotReady", &unknown, "unready", &unready).unwrap_or_else(Say::yes)
}

fn initialized(
    pod_spec: &PodSpec,
    statuses: &Statuses<'_>,
    phase: &str,
    before: &[PodCondition],
) -> Say {
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    let mut started = false;
    for (kind, container) in spec::containers(pod_spec) {
        let status = statuses.get(container.name.as_str());
        match (kind, status) {
            (ContainerKind::Regular, status) => {
                started |= status.is_some_and(|status| status.started == Some(true));
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
    if phase == "Succeeded" && unknown.is_empty() {
        return Say { holds: true, reason: Some("PodCompleted"), message: None };
    }
    let was = before.iter().any(|c| c.type_ == "Initialized" && c.status == "True");
    if started || was {
        return Say::yes();
    }
    not_all("ContainersNotInitialized", &unknown, "incomplete", &incomplete)
        .unwrap_or_else(Say::yes)
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
        false => Say { message: Some(shut.join(", ")), ..Say::no("ReadinessGatesNotReady") },
    }
}

fn not_all(
    reason: &'static str,
    unknown: &[&str],
    adjective: &str,
    others: &[&str],
) -> Option<Say> {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: [{}]", unknown.join(" ")));
    }
    if !others.is_empty() {
        parts.push(format!("containers with {adjective} status: [{}]", others.join(" ")));
    }
    (!parts.is_empty()).then(|| Say { message: Some(parts.join(", ")), ..Say::no(reason) })
}
