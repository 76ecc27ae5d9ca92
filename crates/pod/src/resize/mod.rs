//! Resizing a pod in place: what it has been given of what its spec asks for, what its containers
//! run with, and what follows from the difference. The plan and the status ask here.

mod checkpoint;
mod decision;
mod message;
mod operations;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Deserializer, Serialize};

use crate::observed::ObservedPod;
use crate::qos;
use crate::resources::List;
use crate::spec::{self, ContainerKind, Gates};

pub use checkpoint::{Error as CheckpointError, decode, encode};
pub(crate) use decision::restarts;
pub use decision::{Infeasible, Rank, Rules, infeasible};
pub use message::message;
pub use operations::{Operation, operations};

/// Resources that a pod can be given anew while it runs.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// The resources of one pod, as they were given to it or as they were put into force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodResources {
    /// By the container's name.
    #[serde(rename = "ContainerResources", default, deserialize_with = "or_default")]
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// Those of the pod as a whole, if it has any of its own.
    #[serde(rename = "PodLevelResources", default)]
    pub pod: Option<ResourceRequirements>,
}

/// A map that is not there is `null` to its other writer.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl PodResources {
    /// What the spec asks for, of all that can be resized.
    pub fn asked(pod_spec: &PodSpec, gates: Gates) -> Self {
        let containers = spec::containers(pod_spec).filter(|(kind, _)| can_be_given(*kind, gates));
        Self {
            containers: containers
                .map(|(_, c)| (c.name.clone(), c.resources.clone().unwrap_or_default()))
                .collect(),
            pod: pod_spec.resources.clone().filter(|_| gates.resize_pods),
        }
    }

    /// What is in force once all that the spec asks for is.
    pub fn in_force(pod_spec: &PodSpec, gates: Gates) -> Self {
        let containers = spec::containers(pod_spec);
        Self {
            containers: containers
                .map(|(_, c)| (c.name.clone(), effective(pod_spec, c, gates)))
                .collect(),
            pod: pod_spec.resources.clone().filter(|_| gates.resize_pods),
        }
    }
}

impl Default for &PodResources {
    fn default() -> Self {
        const NONE: &PodResources = &PodResources { containers: BTreeMap::new(), pod: None };
        NONE
    }
}

fn can_be_given(kind: ContainerKind, gates: Gates) -> bool {
    match kind {
        ContainerKind::Init => gates.resize_init_containers,
        ContainerKind::Sidecar | ContainerKind::Regular => true,
        ContainerKind::Ephemeral => false,
    }
}

/// The pod with the resources that it was given in the place of those that its spec asks for;
/// `None` if they are the same.
pub fn allocated(pod: &Pod, given: &PodResources, gates: Gates) -> Option<Pod> {
    let pod_spec = pod.spec.as_ref()?;
    let differs = |container: &Container| {
        let own = given.containers.get(&container.name);
        own.is_some_and(|given| !same(container.resources.as_ref(), Some(given)))
    };
    let pod_differs = gates.resize_pods && !same(pod_spec.resources.as_ref(), given.pod.as_ref());
    if !pod_differs && !spec::containers(pod_spec).any(|(_, container)| differs(container)) {
        return None;
    }
    let mut pod = pod.clone();
    let pod_spec = pod.spec.as_mut()?;
    if pod_differs {
        pod_spec.resources.clone_from(&given.pod);
    }
    for container in all_mut(pod_spec).filter(|container| differs(container)) {
        container.resources = given.containers.get(&container.name).cloned();
    }
    Some(pod)
}

fn all_mut(pod_spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    pod_spec.init_containers.iter_mut().flatten().chain(&mut pod_spec.containers)
}

/// Whether both ask for the same, however it is written.
fn same(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    let none = ResourceRequirements::default();
    let (a, b) = (a.unwrap_or(&none), b.unwrap_or(&none));
    let claims = |of: &ResourceRequirements| of.claims.clone().unwrap_or_default();
    same_list(a.limits.as_ref(), b.limits.as_ref())
        && same_list(a.requests.as_ref(), b.requests.as_ref())
        && claims(a) == claims(b)
}

fn same_list(a: Option<&List>, b: Option<&List>) -> bool {
    let (a, b) = (a.into_iter().flatten(), b.into_iter().flatten());
    a.map(|(name, amount)| (name, qos::milli(amount)))
        .eq(b.map(|(name, amount)| (name, qos::milli(amount))))
}

/// What a container runs with: its own resources, and its pod's limits where it has none.
pub fn effective(pod_spec: &PodSpec, container: &Container, gates: Gates) -> ResourceRequirements {
    let mut own = container.resources.clone().unwrap_or_default();
    let of_pod = pod_spec.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    for name in RESIZABLE.into_iter().filter(|_| gates.resize_pods) {
        let limit = of_pod.and_then(|limits| limits.get(name));
        if let Some(limit) = limit.filter(|limit| !is_zero(limit))
            && qos::milli_of(own.limits.as_ref(), name) == 0
        {
            own.limits.get_or_insert_default().insert(name.to_owned(), limit.clone());
        }
    }
    own
}

fn is_zero(amount: &Quantity) -> bool {
    matches!(qos::milli(amount), None | Some(0))
}

/// What of resources can be changed: CPU in thousandths, memory in bytes; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU that is asked for.
    pub cpu_request: i128,
    /// CPU at most.
    pub cpu_limit: i128,
    /// Memory that is asked for.
    pub memory_request: i64,
    /// Memory at most.
    pub memory_limit: i64,
}

impl Amounts {
    /// The amounts that those resources name.
    pub fn of(resources: &ResourceRequirements) -> Self {
        let (requests, limits) = (resources.requests.as_ref(), resources.limits.as_ref());
        Self {
            cpu_request: qos::milli_of(requests, "cpu"),
            cpu_limit: qos::milli_of(limits, "cpu"),
            memory_request: qos::units_of(requests, "memory"),
            memory_limit: qos::units_of(limits, "memory"),
        }
    }

    /// Whether any of these is less in `to`.
    pub fn shrinks(&self, to: &Self) -> bool {
        to.cpu_request < self.cpu_request
            || to.memory_request < self.memory_request
            || tightens(self.cpu_limit, to.cpu_limit)
            || tightens(self.memory_limit.into(), to.memory_limit.into())
    }

    /// Whether memory is limited to less in `to`.
    pub fn tightens_memory(&self, to: &Self) -> bool {
        tightens(self.memory_limit.into(), to.memory_limit.into())
    }
}

/// Whether a limit is lower than before, where 0 is none.
fn tightens(before: i128, after: i128) -> bool {
    after != 0 && (before == 0 || after < before)
}

/// The running containers of the pod that run with something else than they were given, by name.
pub fn stale<'a>(
    pod: &'a Pod,
    observed: &ObservedPod,
    actuated: &PodResources,
    gates: Gates,
) -> Vec<&'a str> {
    let Some(pod_spec) = &pod.spec else { return Vec::new() };
    let differs = |container: &&Container| {
        let runs = observed.newest(&container.name).is_some_and(|run| run.is_running());
        let now = actuated.containers.get(&container.name).filter(|_| runs);
        now.is_some_and(|now| {
            Amounts::of(now) != Amounts::of(&effective(pod_spec, container, gates))
        })
    };
    let resizable = spec::containers(pod_spec).filter(|(kind, _)| can_be_given(*kind, gates));
    resizable.map(|(_, c)| c).filter(differs).map(|c| c.name.as_str()).collect()
}

/// Whether the pod as a whole was given something else than is in force for it.
pub fn is_pod_stale(pod: &Pod, actuated: &PodResources, gates: Gates) -> bool {
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    match (own, &actuated.pod) {
        (Some(own), Some(now)) => gates.resize_pods && Amounts::of(own) != Amounts::of(now),
        _ => false,
    }
}

/// The pod with, for each container and for itself, the most of what it was given and of what is
/// in force: all that it may use until a resize is done.
pub fn ceiling(pod: &Pod, actuated: &PodResources) -> Pod {
    let mut pod = pod.clone();
    let Some(pod_spec) = &mut pod.spec else { return pod };
    for container in all_mut(pod_spec) {
        if let Some(now) = actuated.containers.get(&container.name) {
            raise(container.resources.get_or_insert_default(), now);
        }
    }
    if let (Some(own), Some(now)) = (&mut pod_spec.resources, &actuated.pod) {
        raise(own, now);
    }
    pod
}

fn raise(own: &mut ResourceRequirements, now: &ResourceRequirements) {
    for name in RESIZABLE {
        let (mine, theirs) =
            (amount(own.requests.as_ref(), name), amount(now.requests.as_ref(), name));
        if theirs.0 > mine.0 {
            put(&mut own.requests, name, theirs.1);
        }
        let (mine, theirs) = (amount(own.limits.as_ref(), name), amount(now.limits.as_ref(), name));
        // No limit is more than any.
        if mine.0 != 0 && (theirs.0 == 0 || theirs.0 > mine.0) {
            put(&mut own.limits, name, theirs.1);
        }
    }
}

fn amount(list: Option<&List>, name: &str) -> (i128, Option<Quantity>) {
    (qos::milli_of(list, name), list.and_then(|list| list.get(name)).cloned())
}

fn put(list: &mut Option<List>, name: &str, amount: Option<Quantity>) {
    match amount {
        Some(amount) => list.get_or_insert_default().insert(name.to_owned(), amount),
        None => list.as_mut().and_then(|list| list.remove(name)),
    };
}

/// A resize that the pod asks for and was not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Whether it never will be, as things stand; otherwise it is tried again.
    pub infeasible: bool,
    /// Why not.
    pub message: String,
    /// The generation of the pod that asks.
    pub generation: Option<i64>,
}

/// A resize that the pod was given and that is not in force as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InProgress {
    /// The generation of the pod that asked for it.
    pub generation: Option<i64>,
    /// What failed last, if something has.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests;
