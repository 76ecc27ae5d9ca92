//! Defaults of pod-level resources, from those of the containers or from the limits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::{qos, spec};

type List = BTreeMap<String, Quantity>;

pub(super) fn apply(spec: &mut PodSpec) {
    let (requests, limits) = (aggregate(spec, qos::requests), aggregate(spec, qos::limits));
    let Some(own) = &mut spec.resources else { return };
    let is_empty = |list: &Option<List>| list.as_ref().is_none_or(BTreeMap::is_empty);
    if is_empty(&own.limits) && is_empty(&own.requests) {
        return;
    }
    let own_requests = own.requests.clone().unwrap_or_default();
    for (name, quantity) in limits {
        if is_huge_page(&name) && !own_requests.contains_key(&name) {
            own.limits.get_or_insert_default().entry(name).or_insert(quantity);
        }
    }
    let Some(limits) = own.limits.as_ref().filter(|limits| !limits.is_empty()) else { return };
    let from_containers = requests.into_iter().filter(|(name, _)| is_native(name));
    let from_limits = limits.clone().into_iter();
    let from_limits = from_limits.filter(|(name, _)| is_native(name) || is_huge_page(name));
    for (name, quantity) in from_containers.chain(from_limits) {
        own.requests.get_or_insert_default().entry(name).or_insert(quantity);
    }
}

fn is_huge_page(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

fn is_native(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory")
}

/// The maximum that containers need at one time: all that run together, or an init container with
/// the sidecars before it.
fn aggregate(pod: &PodSpec, list: fn(&Container) -> Option<&List>) -> List {
    let mut together = List::new();
    pod.containers.iter().for_each(|container| add(&mut together, list(container)));
    let (mut sidecars, mut peak) = (List::new(), List::new());
    for container in spec::init_containers(pod) {
        let mut now = sidecars.clone();
        add(&mut now, list(container));
        if spec::is_sidecar(container) {
            add(&mut together, list(container));
            sidecars.clone_from(&now);
        }
        raise(&mut peak, now);
    }
    raise(&mut together, peak);
    together
}

fn add(sum: &mut List, list: Option<&List>) {
    for (name, quantity) in list.into_iter().flatten() {
        let total = match sum.get(name) {
            None => quantity.clone(),
            Some(known) => {
                let milli = qos::milli(known).unwrap_or(0) + qos::milli(quantity).unwrap_or(0);
                Quantity(match milli % 1000 {
                    0 => (milli / 1000).to_string(),
                    _ => format!("{milli}m"),
                })
            }
        };
        sum.insert(name.clone(), total);
    }
}

fn raise(most: &mut List, list: List) {
    for (name, quantity) in list {
        let known = most.get(&name).map(|known| qos::milli(known).unwrap_or(0));
        if known.is_none_or(|known| qos::milli(&quantity).unwrap_or(0) > known) {
            most.insert(name, quantity);
        }
    }
}
