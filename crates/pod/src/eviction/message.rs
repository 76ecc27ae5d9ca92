//! What is told of a pod that has to go for the node's sake. Users and tools match these texts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Amount, Candidate, Observations, Resource, Threshold};
use crate::qos::{self, milli};
use crate::{resources, spec};

/// Why a pod has to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// For its status and its event.
    pub message: String,
    /// For the event.
    pub annotations: BTreeMap<String, String>,
}

/// Why this pod has to go for that resource. `due` are the thresholds that were met.
pub fn explain(
    resource: Resource,
    candidate: Candidate<'_>,
    due: &[Threshold],
    observations: &Observations,
) -> Explanation {
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
    let Some(usage) = candidate.usage else { return Explanation { message, annotations } };
    let mut blame = |what: &str, who: &str, used: &str, asked: &str| {
        let _ = write!(
            message,
            "{what} {who} was using {used}, request is {asked}, has larger consumption of {name}. "
        );
    };

    if let (Resource::Memory, Some(memory)) = (resource, usage.figures.memory)
        && let Some(asked) = own_request(candidate.pod, name)
    {
        let (pod, used) = (spec::name(candidate.pod), bytes(memory.working_set));
        blame("Pod", pod, &used, &resources::canonical(asked));
        annotations.insert("offending_pod".to_owned(), pod.to_owned());
        annotations.insert("offending_pod_usage".to_owned(), used);
    }
    let (mut offenders, mut usages) = (Vec::new(), Vec::new());
    for container in &usage.containers {
        let declared = candidate.pod.spec.as_ref().and_then(|pod_spec| {
            spec::containers(pod_spec).find(|(_, declared)| declared.name == container.name)
        });
        let used = match resource {
            Resource::Memory => container.figures.memory.map(|memory| memory.working_set),
            Resource::EphemeralStorage => {
                container.rootfs.zip(container.logs).map(|(mut all, logs)| {
                    all += logs;
                    all.bytes
                })
            }
            Resource::Inodes | Resource::Pids => None,
        };
        let (Some((_, declared)), Some(used)) = (declared, used) else { continue };
        let asked = qos::requests(declared).and_then(|list| list.get(name));
        if i128::from(used) * 1000 > asked.and_then(milli).unwrap_or(0) {
            let used = bytes(used);
            let asked = asked.map_or_else(|| "0".to_owned(), resources::canonical);
            blame("Container", &container.name, &used, &asked);
            offenders.push(container.name.as_str());
            usages.push(used);
        }
    }
    annotations.insert("offending_containers".to_owned(), offenders.join(","));
    annotations.insert("offending_containers_usage".to_owned(), usages.join(","));
    annotations.insert("starved_resource".to_owned(), name.to_owned());
    Explanation { message, annotations }
}

/// What the pod as a whole asks for, where it says so itself.
fn own_request<'a>(pod: &'a Pod, resource: &str) -> Option<&'a Quantity> {
    pod.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get(resource)
}

fn bytes(amount: u64) -> String {
    resources::format(i128::from(amount) * 1000, true)
}
