//! The resources in a container's status: those in force, where they are known.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::observed;
use crate::qos;
use crate::resize::PodResources;
use crate::resources::{self, List};

/// CPU requests up to this (millicores) are the same to the kernel.
const MIN_REQUEST: i128 = 2;
/// The same for limits.
const MIN_LIMIT: i128 = 10;

/// The resources in force for a run of a container; before and after the run, the allocated ones.
pub(super) fn in_force(
    container: &Container,
    run: &observed::Container,
    actuated: &PodResources,
    last_status: Option<&ContainerStatus>,
) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    if !run.is_running() {
        return resources;
    }
    let own = actuated.containers.get(&container.name);
    let last_resources = last_status.and_then(|status| status.resources.as_ref());
    let enforced = run.resources.unwrap_or_default();
    // A runtime that reports no resources enforces what it was given.
    let not_reported = run.resources.is_none();
    let given = |list: Option<&List>, name| {
        let amount = list.and_then(|list| list.get(name)).and_then(qos::milli);
        amount.filter(|amount| not_reported && *amount != 0)
    };
    let thousandths = |amount: Option<i64>| amount.map(i128::from);
    let bytes = |amount: Option<i64>| amount.map(|bytes| i128::from(bytes) * 1000);
    if let Some(limits) = &mut resources.limits {
        let own = own.and_then(|own| own.limits.as_ref());
        let last = last_resources.and_then(|last| last.limits.as_ref());
        let cpu = thousandths(enforced.cpu_limit).or(given(own, "cpu"));
        let memory = bytes(enforced.memory_limit).or(given(own, "memory"));
        set_amount(limits, "cpu", cpu, last, MIN_LIMIT);
        set_amount(limits, "memory", memory, last, 0);
    }
    if let Some(requests) = &mut resources.requests {
        let own = own.and_then(|own| own.requests.as_ref());
        let last = last_resources.and_then(|last| last.requests.as_ref());
        let cpu = thousandths(enforced.cpu_request).or(given(own, "cpu"));
        // The kernel does not know the memory request.
        let memory = own.and_then(|own| own.get("memory")).and_then(qos::milli);
        set_amount(requests, "cpu", cpu, last, MIN_REQUEST);
        set_amount(requests, "memory", memory.filter(|amount| *amount != 0), last, 0);
    }
    resources
}

/// Set the amount in force (in thousandths) where it differs from the allocated one; an unknown one
/// stays as last reported.
fn set_amount(list: &mut List, name: &str, now: Option<i128>, last: Option<&List>, min: i128) {
    let allocated = qos::milli_of(Some(list), name);
    match now {
        Some(now) if now == allocated || now <= min && allocated <= min => {}
        Some(now) => {
            list.insert(name.to_owned(), Quantity(resources::format(now, name == "memory")));
        }
        None => {
            let last = last.and_then(|last| last.get(name));
            list.extend(last.map(|last| (name.to_owned(), last.clone())));
        }
    }
}
