//! In-place pod resize: the resources that are allocated to a pod, those in force for its
//! containers (actuated), and the difference. Plan and status use it.

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

/// Resources that can be changed while a pod runs.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// The resources of one pod, as allocated or actuated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodResources {
    /// By the container's name.
    #[serde(rename = "ContainerResources", default, deserialize_with = "or_default")]
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// Pod-level resources, if it has any.
    #[serde(rename = "PodLevelResources", default)]
    pub pod: Option<ResourceRequirements>,
}

/// The Go kubelet writes an absent map as `null`.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl PodResources {
    /// The requested resources of the spec, of all that can be resized.
    pub fn requested(pod_spec: &PodSpec, gates: Gates) -> Self {
        let containers = spec::containers(pod_spec).filter(|(kind, _)| is_resizable(*kind, gates));
        Self {
            containers: containers
                .map(|(_, c)| (c.name.clone(), c.resources.clone().unwrap_or_default()))
                .collect(),
            pod: pod_spec.resources.clone().filter(|_| gates.resize_pods),
        }
    }

    /// The resources in force once all of the spec's are.
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

fn is_resizable(kind: ContainerKind, gates: Gates) -> bool {
    match kind {
        ContainerKind::Init => gates.resize_init_containers,
        ContainerKind::Sidecar | ContainerKind::Regular => true,
        ContainerKind::Ephemeral => false,
    }
}

/// The pod with its allocated resources in place of those in its spec; `None` if they are the same.
pub fn allocated(pod: &Pod, resources: &PodResources, gates: Gates) -> Option<Pod> {
    let pod_spec = pod.spec.as_ref()?;
    let differs = |container: &Container| {
        let own = resources.containers.get(&container.name);
        own.is_some_and(|allocated| !same(container.resources.as_ref(), Some(allocated)))
    };
    let pod_differs =
        gates.resize_pods && !same(pod_spec.resources.as_ref(), resources.pod.as_ref());
    if !pod_differs && !spec::containers(pod_spec).any(|(_, container)| differs(container)) {
        return None;
    }
    let mut pod = pod.clone();
    let pod_spec = pod.spec.as_mut()?;
    if pod_differs {
        pod_spec.resources.clone_from(&resources.pod);
    }
    for container in all_mut(pod_spec).filter(|container| differs(container)) {
        container.resources = resources.containers.get(&container.name).cloned();
    }
    Some(pod)
}

fn all_mut(pod_spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    pod_spec.init_containers.iter_mut().flatten().chain(&mut pod_spec.containers)
}

/// Whether both are equal, however their quantities are written.
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

/// The resources in force for a container: its own, and the pod's limits where it has none.
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

/// Amounts that a resize can change: CPU in millicores, memory in bytes; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU request.
    pub cpu_request: i128,
    /// CPU limit.
    pub cpu_limit: i128,
    /// Memory request.
    pub memory_request: i64,
    /// Memory limit.
    pub memory_limit: i64,
}

impl Amounts {
    /// The amounts in those resources.
    pub fn of(resources: &ResourceRequirements) -> Self {
        let (requests, limits) = (resources.requests.as_ref(), resources.limits.as_ref());
        Self {
            cpu_request: qos::milli_of(requests, "cpu"),
            cpu_limit: qos::milli_of(limits, "cpu"),
            memory_request: qos::units_of(requests, "memory"),
            memory_limit: qos::units_of(limits, "memory"),
        }
    }

    /// Whether any amount is lower in `to`.
    pub fn shrinks(&self, to: &Self) -> bool {
        to.cpu_request < self.cpu_request
            || to.memory_request < self.memory_request
            || tightens(self.cpu_limit, to.cpu_limit)
            || tightens(self.memory_limit.into(), to.memory_limit.into())
    }

    /// Whether the memory limit is lower in `to`.
    pub fn tightens_memory(&self, to: &Self) -> bool {
        tightens(self.memory_limit.into(), to.memory_limit.into())
    }
}

/// Whether a limit becomes lower, where 0 is none.
fn tightens(before: i128, after: i128) -> bool {
    after != 0 && (before == 0 || after < before)
}

/// The running containers whose actuated resources differ from the allocated ones, by name.
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
    let resizable = spec::containers(pod_spec).filter(|(kind, _)| is_resizable(*kind, gates));
    resizable.map(|(_, c)| c).filter(differs).map(|c| c.name.as_str()).collect()
}

/// Whether the actuated pod-level resources differ from the allocated ones.
pub fn is_pod_stale(pod: &Pod, actuated: &PodResources, gates: Gates) -> bool {
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    match (own, &actuated.pod) {
        (Some(own), Some(now)) => gates.resize_pods && Amounts::of(own) != Amounts::of(now),
        _ => false,
    }
}

/// The pod with, for each container and for itself, the maximum of allocated and actuated
/// resources: all that it may use until a resize is done.
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
        // No limit is higher than any limit.
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

/// A requested resize that is not allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Whether it is infeasible; otherwise it is deferred and retried.
    pub infeasible: bool,
    /// The reason.
    pub message: String,
    /// The generation of the pod that requests it.
    pub generation: Option<i64>,
}

/// A resize that is allocated and not yet actuated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InProgress {
    /// The generation of the pod that requested it.
    pub generation: Option<i64>,
    /// The last error, if any.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests;
