//! Messages and annotations of evictions. Users and tools match these texts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Amount, Candidate, Observations, Resource, Threshold};
use crate::qos::{self, milli};
use crate::{resources, spec};

/// Why a pod is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionMessage {
    /// For its status and its event.
    pub message: String,
    /// For the event.
    pub annotations: BTreeMap<String, String>,
}

/// The message for a pod that is evicted for that resource. `due` are the thresholds that were met.
pub fn eviction_message(
    resource: Resource,
    candidate: Candidate<'_>,
    due: &[Threshold],
    observations: &Observations,
) -> EvictionMessage {
    let name = resource.as_str();
    let mut message = format!("The node was low on resource: {name}. ");
    let met = due.iter().find(|threshold| threshold.signal.resource() == resource);
    if let Some((threshold, seen)) =
        met.and_then(|threshold| Some((threshold, observations.get(&threshold.signal)?)))
    {
        let binary = match threshold.value {
            Amount::Milli { binary, .. } => binary,
            Amount::Part(_) => true,
        };
        let needed = resources::format(threshold.needs(*seen, false), binary);
        let available = resources::format(i128::from(seen.available) * 1000, resource.is_binary());
        // writing to a String cannot fail
        let _ = write!(message, "Threshold quantity: {needed}, available: {available}. ");
    }
    let mut annotations = BTreeMap::new();
    let Some(usage) = candidate.usage else { return EvictionMessage { message, annotations } };
    let mut add_usage = |what: &str, name_of: &str, used: &str, request: &str| {
        let _ = write!(
            message,
            "{what} {name_of} was using {used}, request is {request}, has larger consumption of {name}. "
        );
    };

    if let (Resource::Memory, Some(memory)) = (resource, usage.cgroup.memory)
        && let Some(request) = own_request(candidate.pod, name)
    {
        let (pod, used) = (spec::name(candidate.pod), bytes(memory.working_set));
        add_usage("Pod", pod, &used, &resources::canonical(request));
        annotations.insert("offending_pod".to_owned(), pod.to_owned());
        annotations.insert("offending_pod_usage".to_owned(), used);
    }
    let (mut offenders, mut usages) = (Vec::new(), Vec::new());
    for container in &usage.containers {
        let declared = candidate.pod.spec.as_ref().and_then(|pod_spec| {
            spec::containers(pod_spec).find(|(_, declared)| declared.name == container.name)
        });
        let used = match resource {
            Resource::Memory => container.cgroup.memory.map(|memory| memory.working_set),
            Resource::EphemeralStorage => {
                container.rootfs.zip(container.logs).map(|(mut all, logs)| {
                    all += logs;
                    all.bytes
                })
            }
            Resource::Inodes | Resource::Pids => None,
        };
        let (Some((_, declared)), Some(used)) = (declared, used) else { continue };
        let request = qos::requests(declared).and_then(|list| list.get(name));
        if i128::from(used) * 1000 > request.and_then(milli).unwrap_or(0) {
            let used = bytes(used);
            let request = request.map_or_else(|| "0".to_owned(), resources::canonical);
            add_usage("Container", &container.name, &used, &request);
            offenders.push(container.name.as_str());
            usages.push(used);
        }
    }
    annotations.insert("offending_containers".to_owned(), offenders.join(","));
    annotations.insert("offending_containers_usage".to_owned(), usages.join(","));
    annotations.insert("starved_resource".to_owned(), name.to_owned());
    EvictionMessage { message, annotations }
}

/// The pod-level request of that resource, if there is one.
fn own_request<'a>(pod: &'a Pod, resource: &str) -> Option<&'a Quantity> {
    pod.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get(resource)
}

fn bytes(amount: u64) -> String {
    resources::format(i128::from(amount) * 1000, true)
}
