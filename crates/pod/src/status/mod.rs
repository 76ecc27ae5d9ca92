//! What is told about a pod: the one function that computes a `PodStatus`.
//!
//! Current limitations: probes are not there yet, so a running container counts as started and
//! ready; resize conditions are not told.

mod conditions;
mod containers;
mod phase;

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::core::v1::{HostIP, Pod, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::observed::{self, ObservedPod};
use crate::probes::ProbeResults;
use crate::{qos, spec};

pub use conditions::is_owned;

/// What a status depends on besides spec and observation.
#[derive(Clone, Debug, Default)]
pub struct Context<'a> {
    /// Why a container does not run (yet): by its name, reason and message.
    pub waiting: HashMap<String, (String, String)>,
    /// What the pod's probes have found.
    pub probes: &'a ProbeResults,
    /// Containers that run and whose postStart hook has yet to succeed: they do not count as
    /// started. By name.
    pub starting: HashSet<String>,
    /// The node's addresses, primary first.
    pub host_ips: &'a [String],
    /// Whether the pod has come to its end: nothing of it will run again.
    pub terminal: bool,
    /// A phase, reason and message that overrule the computed ones (eviction, admission, deadline).
    pub verdict: Option<Verdict>,
    /// Name of the runtime, as in `containerd://id`.
    pub runtime: &'a str,
}

/// A decision about the pod as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `Failed` in nearly all cases.
    pub phase: String,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// The status of a pod. `previous` is the status told last; it carries what the runtime forgets.
pub fn status(
    pod: &Pod,
    observed: &ObservedPod,
    previous: &PodStatus,
    context: &Context<'_>,
    now: Timestamp,
) -> PodStatus {
    let Some(pod_spec) = &pod.spec else { return previous.clone() };
    let mut init = containers::init_statuses(pod, pod_spec, observed, previous, context);
    let mut regular = containers::regular_statuses(pod, pod_spec, observed, previous, context);
    if context.terminal {
        containers::close(&mut init, &mut regular);
    }
    let by_name: BTreeMap<&str, _> =
        init.iter().chain(&regular).map(|status| (status.name.as_str(), status)).collect();

    let mut phase = phase::phase(pod, pod_spec, &by_name, context.terminal).to_owned();
    let none = PodStatus::default();
    let api = pod.status.as_ref().unwrap_or(&none);
    let phase_of = |status: &PodStatus| status.phase.clone().unwrap_or_default();
    let told = phase_of(previous);
    let end = [previous, api].map(phase_of).into_iter().find(|phase| is_final(phase));
    let is_over = end.is_some();
    if let Some(end) = end {
        // An end is an end, whoever told it: no observation takes it back.
        phase = end;
    } else if context.terminal && !is_final(&phase) && !spec::is_static(pod) {
        // Others wait for an end, and it was no success.
        "Failed".clone_into(&mut phase);
    } else if is_final(&phase) && observed.containers.iter().any(observed::Container::is_running) {
        // What still runs holds what the pod was given: it is told once that is free.
        phase = if told.is_empty() { "Pending".to_owned() } else { told };
    }
    let teller = [previous, api].into_iter().find(|status| phase_of(status) == phase);
    let (mut reason, mut message) =
        teller.map_or((None, None), |status| (status.reason.clone(), status.message.clone()));
    if let Some(verdict) = &context.verdict
        && !is_over
    {
        phase.clone_from(&verdict.phase);
        reason = Some(verdict.reason.clone());
        message = Some(verdict.message.clone());
    }

    let conditions =
        conditions::conditions(pod, pod_spec, observed, &by_name, &phase, previous, now);
    let host_ips = context.host_ips;
    let pod_ips = pod_ips(pod, observed, previous, host_ips);
    PodStatus {
        phase: Some(phase),
        reason,
        message,
        conditions: Some(conditions),
        host_ip: host_ips.first().cloned(),
        host_ips: some(host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: pod_ips.first().cloned(),
        pod_ips: some(pod_ips.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: previous.start_time.clone().or(Some(time(now))),
        qos_class: Some(qos::class(pod).as_str().to_owned()),
        init_container_statuses: some(init),
        container_statuses: some(regular),
        observed_generation: pod.metadata.generation,
        // Owned by others, or told by later rooms: as they stand.
        nominated_node_name: api.nominated_node_name.clone(),
        ephemeral_container_statuses: previous.ephemeral_container_statuses.clone(),
        resource_claim_statuses: api.resource_claim_statuses.clone(),
        ..PodStatus::default()
    }
}

/// Whether a phase is one that a pod never leaves.
pub fn is_final(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

fn pod_ips(
    pod: &Pod,
    observed: &ObservedPod,
    previous: &PodStatus,
    host_ips: &[String],
) -> Vec<String> {
    if spec::host_network(pod) {
        return match observed.sandboxes.is_empty() {
            true => Vec::new(),
            false => host_ips.to_vec(),
        };
    }
    match observed.sandboxes.first() {
        Some(sandbox) if sandbox.ready => sandbox.ips.clone(),
        // A stopped sandbox has given its addresses back, but the last ones stay told.
        _ => previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect(),
    }
}

/// A time as the API keeps it: whole seconds. A finer one would differ from itself after a restart.
fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests;
