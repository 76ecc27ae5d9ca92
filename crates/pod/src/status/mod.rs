//! The one function that computes a `PodStatus`. The health of devices is added by those who know it.

mod conditions;
mod containers;
mod phase;
mod resources;
mod states;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{HostIP, Pod, PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::observed::{self, ObservedPod};
use crate::plan::restarts_all;
use crate::probes::ProbeResults;
use crate::resize::{InProgress, Pending, PodResources};
use crate::spec::Gates;
use crate::{qos, resources as amounts, spec};

pub use conditions::{is_owned, resize_status};

/// What a status depends on besides spec and observed state.
#[derive(Clone, Debug, Default)]
pub struct Context<'a> {
    /// Why a container waits: by its name, reason and message.
    pub waiting: HashMap<String, (String, String)>,
    /// Results of the pod's probes.
    pub probes: &'a ProbeResults,
    /// Running containers whose postStart hook has not completed: they do not count as started. By
    /// name.
    pub starting: HashSet<String>,
    /// The node's addresses, primary first.
    pub host_ips: &'a [String],
    /// Whether the pod has terminated: nothing of it runs, or will run again.
    pub terminal: bool,
    /// Whether it holds devices that are to be given back before its end is final.
    pub holds_devices: bool,
    /// A phase, reason and message that override the computed ones (eviction, admission, deadline).
    pub verdict: Option<Verdict>,
    /// Name of the runtime, as in `containerd://id`.
    pub runtime: &'a str,
    /// Whether the pod's runtime handler supports recursive read-only mounts.
    pub recursive_read_only: bool,
    /// The resources in force for the pod's containers.
    pub actuated: &'a PodResources,
    /// A requested resize that is not allocated.
    pub pending: Option<&'a Pending>,
    /// A resize that is allocated and not yet actuated.
    pub resizing: Option<&'a InProgress>,
    /// The feature gates in force.
    pub gates: Gates,
}

/// A decision that ends the pod as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `Failed` in nearly all cases.
    pub phase: String,
    /// Reason, in CamelCase.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Set if the node ends the pod for its own sake (eviction, preemption, shutdown): the message
    /// of the condition `DisruptionTarget`, with the reason `TerminationByKubelet`.
    pub disruption: Option<String>,
}

impl Verdict {
    /// A verdict with the phase `Failed`.
    pub fn failed(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            phase: "Failed".to_owned(),
            reason: reason.into(),
            message: message.into(),
            disruption: None,
        }
    }
}

/// The status of a pod. `previous` is the last reported status; it has what the runtime has
/// removed.
///
/// A final phase is reported only once nothing of the pod runs any more and its devices are given back,
/// for until then the pod holds its resources; its conditions show the end before that.
pub fn status(
    pod: &Pod,
    observed: &ObservedPod,
    previous: &PodStatus,
    context: &Context<'_>,
    now: Timestamp,
) -> PodStatus {
    let Some(pod_spec) = &pod.spec else { return previous.clone() };
    let restarting = restarts_all(pod_spec, observed, context.gates);
    let builder = containers::StatusBuilder {
        pod,
        pod_spec,
        observed,
        context,
        restarting: restarting || conditions::was_restarting(previous, context.gates),
    };
    let mut init = builder.init(previous);
    let mut regular = builder.regular(previous);
    let ephemeral = builder.ephemeral(previous);
    if context.terminal {
        containers::mark_lost(&mut init, &mut regular);
    }
    let by_name: BTreeMap<&str, _> =
        init.iter().chain(&regular).map(|status| (status.name.as_str(), status)).collect();

    let none = PodStatus::default();
    let api = pod.status.as_ref().unwrap_or(&none);
    let end = [previous, api].map(phase_of).into_iter().find(|phase| is_final(phase));
    let verdict = context.verdict.as_ref().filter(|_| end.is_none());
    let phase = match (end, verdict) {
        // A final phase is final, whoever reported it.
        (Some(end), _) => end,
        (None, Some(verdict)) => &verdict.phase,
        (None, None) => match phase::phase(pod, pod_spec, observed, &by_name, context) {
            // The controllers wait for a final phase, and it was no success.
            phase if context.terminal && !is_final(phase) && !spec::is_static(pod) => "Failed",
            phase => phase,
        },
    };
    let pending_termination = is_final(phase)
        && end.is_none()
        && !context.terminal
        && (context.holds_devices || observed.containers.iter().any(observed::Container::may_run));
    let reported = match pending_termination {
        true => {
            Some(phase_of(previous)).filter(|reported| !reported.is_empty()).unwrap_or("Pending")
        }
        false => phase,
    };
    let unchanged = [previous, api].into_iter().find(|status| phase_of(status) == reported);
    let (mut reason, mut message) =
        unchanged.map_or((None, None), |status| (status.reason.clone(), status.message.clone()));
    if let (Some(verdict), false) = (verdict, pending_termination) {
        reason = Some(verdict.reason.clone());
        message = Some(verdict.message.clone());
    }

    let conditions = conditions::ConditionBuilder {
        pod,
        pod_spec,
        observed,
        statuses: &by_name,
        phase,
        previous,
        restarting: restarting && !is_final(phase),
        disruption: verdict
            .filter(|_| !pending_termination)
            .and_then(|verdict| verdict.disruption.as_deref()),
        pending: context.pending.filter(|_| !is_final(phase)),
        resizing: context.resizing.filter(|_| !is_final(phase)),
        gates: context.gates,
        now,
    }
    .all();
    let host_ips = context.host_ips;
    let pod_ips = pod_ips(pod, observed, previous, host_ips);
    PodStatus {
        phase: Some(reported.to_owned()),
        reason,
        message,
        conditions: Some(conditions),
        host_ip: host_ips.first().cloned().or_else(|| previous.host_ip.clone()),
        host_ips: match host_ips {
            // The node's addresses are not known yet.
            [] => previous.host_ips.clone(),
            known => some(known.iter().take(2).map(|ip| HostIP { ip: ip.clone() }).collect()),
        },
        pod_ip: pod_ips.first().cloned(),
        pod_ips: some(pod_ips.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: previous.start_time.clone().or(Some(time(now))),
        qos_class: Some(qos::class(pod).as_str().to_owned()),
        init_container_statuses: some(init),
        container_statuses: some(regular),
        ephemeral_container_statuses: some(ephemeral),
        observed_generation: pod.metadata.generation.max(previous.observed_generation),
        // Owned by others: unchanged.
        nominated_node_name: api.nominated_node_name.clone(),
        resource_claim_statuses: api.resource_claim_statuses.clone(),
        extended_resource_claim_status: api.extended_resource_claim_status.clone(),
        node_allocatable_resource_claim_statuses: api
            .node_allocatable_resource_claim_statuses
            .clone(),
        // During a resize, the resources in force before are closer to the truth.
        resources: match context.resizing.and(previous.resources.as_ref()) {
            Some(before) => Some(before.clone()),
            None => Some(amounts::status_resources(pod_spec, reported == "Running")),
        },
        allocated_resources: Some(amounts::requests(pod_spec)).filter(|list| !list.is_empty()),
        resize: None,
    }
}

/// The status of a pod that is rejected at admission.
pub fn rejected(pod: &Pod, verdict: &Verdict, now: Timestamp) -> PodStatus {
    let last_status = pod.status.clone().unwrap_or_default();
    PodStatus {
        phase: Some(verdict.phase.clone()),
        reason: Some(verdict.reason.clone()),
        message: Some(format!("Pod was rejected: {}", verdict.message)),
        qos_class: Some(qos::class(pod).as_str().to_owned()),
        start_time: last_status.start_time.clone().or(Some(time(now))),
        observed_generation: pod.metadata.generation,
        ..last_status
    }
}

/// The reason of containers that were never tried.
pub fn first_wait(pod_spec: &PodSpec) -> &'static str {
    match spec::init_containers(pod_spec).is_empty() {
        true => "ContainerCreating",
        false => "PodInitializing",
    }
}

/// Whether the phase is final.
pub fn is_final(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

fn phase_of(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}

/// The pod's addresses: the first of the node's primary family, then the first of the other one.
fn pod_ips(
    pod: &Pod,
    observed: &ObservedPod,
    previous: &PodStatus,
    host_ips: &[String],
) -> Vec<String> {
    if spec::host_network(pod) {
        return host_network_ips(previous, host_ips);
    }
    let ips = match observed.sandboxes.first() {
        Some(sandbox) if sandbox.ready && !sandbox.ips.is_empty() => &sandbox.ips,
        // A stopped sandbox has released its addresses, but the last ones stay in the status.
        _ => return previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect(),
    };
    let ips: Vec<IpAddr> = ips.iter().filter_map(|ip| ip.parse().ok()).collect();
    let primary = host_ips.first().and_then(|ip| ip.parse().ok());
    let is_six = primary.is_some_and(|ip: IpAddr| ip.is_ipv6());
    let first_of = |six| ips.iter().find(|ip| ip.is_ipv6() == six).map(IpAddr::to_string);
    first_of(is_six).into_iter().chain(first_of(!is_six)).collect()
}

/// The addresses of a pod in the host's network. They stay as they were set first; only one of the other
/// family is added, when the node gets one.
fn host_network_ips(previous: &PodStatus, host_ips: &[String]) -> Vec<String> {
    let mut ips: Vec<String> =
        previous.pod_ips.iter().flatten().take(2).map(|ip| ip.ip.clone()).collect();
    let is_six = |ip: &String| ip.contains(':');
    match (ips.as_slice(), host_ips) {
        ([], host_ips) => ips.extend(host_ips.iter().take(2).cloned()),
        ([one], [_, second, ..]) if is_six(one) != is_six(second) => ips.push(second.clone()),
        _ => {}
    }
    ips
}

/// A time as the API stores it: in whole seconds, so that it equals what is read back.
fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests;
