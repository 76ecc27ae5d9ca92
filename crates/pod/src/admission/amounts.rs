//! Amounts of resources as they are compared: CPU in thousandths, all else in whole units.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements};

use crate::qos;
use crate::resources::{self, List};
use crate::spec;

/// Amounts by resource. What is of no account for the room on a node is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<String, i64>);

impl Amounts {
    /// What a list of quantities says.
    pub fn new(list: Option<&List>) -> Self {
        let counted = list.into_iter().flatten().filter(|(name, _)| counts(name));
        let amount = |name: &str| match name {
            "cpu" => i64::try_from(qos::milli_of(list, name)).unwrap_or(i64::MAX),
            _ => qos::units_of(list, name),
        };
        Self(counted.map(|(name, _)| (name.clone(), amount(name))).collect())
    }

    /// What the pod holds, or would hold: what it requests, and during a resize what it has been
    /// given or has, whichever is more.
    pub fn of_pod(pod: &Pod) -> Self {
        Self::in_effect(pod, !is_infeasible(pod))
    }

    /// The same if what the pod requests now is granted, though it may have been refused before.
    pub fn of_resized(pod: &Pod) -> Self {
        Self::in_effect(pod, true)
    }

    fn in_effect(pod: &Pod, granted: bool) -> Self {
        let own = pod.spec.as_ref();
        let requests = own.map(|own| resources::requests(&in_effect(pod, own, granted)));
        Self::new(requests.as_ref())
    }

    /// The amount of a resource.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Whether the resource is named, were it with an amount of zero.
    pub(super) fn names(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The amounts by resource: CPU, memory and disk first, as they are told in that order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        const FIRST: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
        let first = FIRST.into_iter().filter(|name| self.names(name));
        let others = self.0.keys().map(String::as_str).filter(|name| !FIRST.contains(name));
        first.chain(others).map(|name| (name, self.get(name)))
    }

    /// These, but for what `other` names, too.
    pub(super) fn overruled_by(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
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

/// Whether a resource counts for the room on a node.
fn counts(name: &str) -> bool {
    const PLAIN: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pods"];
    PLAIN.contains(&name)
        || ["hugepages-", "attachable-volumes-"].iter().any(|prefix| name.starts_with(prefix))
        || name.contains("kubernetes.io/")
        || is_extended(name)
}

/// Whether a resource is somebody else's, such as `example.com/gpu`.
pub(super) fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// Whether the pod was told that it will never get what it requests now.
fn is_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default().iter().any(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
    })
}

/// The spec with the requests that count now. Only a pod that runs has others than its own.
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
    let told = |statuses: &Option<Vec<ContainerStatus>>, name: &str| {
        let found = statuses.iter().flatten().find(|status| status.name == name);
        found.filter(|status| status.resources.is_some()).cloned()
    };
    let correct = |container: &mut Container, told: Option<ContainerStatus>| {
        let Some(told) = told else { return };
        let actual = told.resources.as_ref().and_then(|own| own.requests.as_ref());
        let requests = most(qos::requests(container), actual, told.allocated_resources.as_ref());
        let own = container.resources.get_or_insert_with(ResourceRequirements::default);
        own.requests = Some(requests);
    };
    let mut corrected = pod_spec.clone();
    for container in &mut corrected.containers {
        let told = told(&status.container_statuses, &container.name);
        correct(container, told);
    }
    for container in corrected.init_containers.iter_mut().flatten() {
        if spec::is_sidecar(container) {
            let told = told(&status.init_container_statuses, &container.name);
            correct(container, told);
        }
    }
    if let (Some(own), Some(told)) = (&mut corrected.resources, &status.resources)
        && let Some(requests) = &own.requests
    {
        let allocated = status.allocated_resources.as_ref();
        let now = most(Some(requests), told.requests.as_ref(), allocated);
        let named = requests.keys().filter_map(|name| Some((name.clone(), now.get(name)?.clone())));
        own.requests = Some(named.collect());
    }
    Cow::Owned(corrected)
}
