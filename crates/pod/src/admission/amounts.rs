//! Amounts of resources to be compared: CPU in millicores, all else in whole units.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements};

use crate::qos;
use crate::resources::{self, List};
use crate::spec;

/// Amounts by resource, of those that are counted against the node's allocatable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<String, i64>);

impl Amounts {
    /// The amounts of a resource list.
    pub fn new(list: Option<&List>) -> Self {
        let counted = list.into_iter().flatten().filter(|(name, _)| counts(name));
        let amount = |name: &str| match name {
            "cpu" => i64::try_from(qos::milli_of(list, name)).unwrap_or(i64::MAX),
            _ => qos::units_of(list, name),
        };
        Self(counted.map(|(name, _)| (name.clone(), amount(name))).collect())
    }

    /// What is reserved for the pod: its requests, and during a resize the maximum of requested,
    /// allocated and actual resources.
    pub fn of_pod(pod: &Pod) -> Self {
        Self::in_effect(pod, !is_infeasible(pod))
    }

    /// The same with the resize that the pod requests granted, even if it was infeasible before.
    pub fn of_resized(pod: &Pod) -> Self {
        Self::in_effect(pod, true)
    }

    fn in_effect(pod: &Pod, granted: bool) -> Self {
        let own = pod.spec.as_ref();
        let requests =
            own.map(|own| resources::requests(&without_claimed(pod, in_effect(pod, own, granted))));
        Self::new(requests.as_ref())
    }

    /// The amount of a resource.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Whether the resource is listed, even with an amount of zero.
    pub(super) fn names(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The amounts by resource: CPU, memory and disk first, in the order of messages.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        const FIRST: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
        let first = FIRST.into_iter().filter(|name| self.names(name));
        let others = self.0.keys().map(String::as_str).filter(|name| !FIRST.contains(name));
        first.chain(others).map(|name| (name, self.get(name)))
    }

    /// These amounts, overridden by those of `other`.
    pub(super) fn overridden_by(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// There is no limit of that resource.
    pub(super) fn lift(&mut self, name: &str) {
        self.0.insert(name.to_owned(), i64::MAX);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let sum = self.0.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    pub(super) fn subtract(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            if let Some(rest) = self.0.get_mut(name) {
                *rest = rest.saturating_sub(*amount);
                if *rest == 0 {
                    self.0.remove(name);
                }
            }
        }
    }
}

/// Whether a resource is counted against the node's allocatable.
fn counts(name: &str) -> bool {
    const PLAIN: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pods"];
    PLAIN.contains(&name)
        || ["hugepages-", "attachable-volumes-"].iter().any(|prefix| name.starts_with(prefix))
        || name.contains("kubernetes.io/")
        || is_extended(name)
}

/// Whether it is an extended resource, such as `example.com/gpu`.
pub(super) fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// Whether the status says that the requested resize is infeasible.
fn is_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default().iter().any(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
    })
}

/// The spec without the extended resources of containers that come from a claim, and not from what the node
/// has of them.
fn without_claimed<'a>(pod: &Pod, pod_spec: Cow<'a, PodSpec>) -> Cow<'a, PodSpec> {
    let status = pod.status.as_ref();
    let Some(claim) = status.and_then(|own| own.extended_resource_claim_status.as_ref()) else {
        return pod_spec;
    };
    let mut left = pod_spec.into_owned();
    let init = left.init_containers.iter_mut().flatten();
    for container in left.containers.iter_mut().chain(init) {
        let own = container.resources.as_mut();
        for list in own.into_iter().flat_map(|own| [&mut own.requests, &mut own.limits]).flatten() {
            list.retain(|name, _| {
                !claim.request_mappings.iter().any(|mapping| {
                    mapping.container_name == container.name && mapping.resource_name == *name
                })
            });
        }
    }
    Cow::Owned(left)
}

/// The spec with the requests that count now; they differ from the spec's during a resize.
fn in_effect<'a>(pod: &Pod, pod_spec: &'a PodSpec, granted: bool) -> Cow<'a, PodSpec> {
    let Some(status) = &pod.status else { return Cow::Borrowed(pod_spec) };
    let most = |spec: Option<&List>, actual: Option<&List>, allocated: Option<&List>| {
        let mut most = List::new();
        for list in [spec.filter(|_| granted), actual, allocated].into_iter().flatten() {
            for (name, amount) in list {
                if most.get(name).is_none_or(|known| qos::milli(known) < qos::milli(amount)) {
                    most.insert(name.clone(), amount.clone());
                }
            }
        }
        most
    };
    let reported = |statuses: &Option<Vec<ContainerStatus>>, name: &str| {
        let found = statuses.iter().flatten().find(|status| status.name == name);
        found.filter(|status| status.resources.is_some()).cloned()
    };
    let correct = |container: &mut Container, reported: Option<ContainerStatus>| {
        let Some(reported) = reported else { return };
        let actual = reported.resources.as_ref().and_then(|own| own.requests.as_ref());
        let requests =
            most(qos::requests(container), actual, reported.allocated_resources.as_ref());
        let own = container.resources.get_or_insert_with(ResourceRequirements::default);
        own.requests = Some(requests);
    };
    let mut corrected = pod_spec.clone();
    for container in &mut corrected.containers {
        let reported = reported(&status.container_statuses, &container.name);
        correct(container, reported);
    }
    for container in corrected.init_containers.iter_mut().flatten() {
        if spec::is_sidecar(container) {
            let reported = reported(&status.init_container_statuses, &container.name);
            correct(container, reported);
        }
    }
    if let (Some(own), Some(reported)) = (&mut corrected.resources, &status.resources)
        && let Some(requests) = &own.requests
    {
        let allocated = status.allocated_resources.as_ref();
        let now = most(Some(requests), reported.requests.as_ref(), allocated);
        let named = requests.keys().filter_map(|name| Some((name.clone(), now.get(name)?.clone())));
        own.requests = Some(named.collect());
    }
    Cow::Owned(corrected)
}
