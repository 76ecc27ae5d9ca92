//! The resources of a container as its status tells them: what is in force, where that is known.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::observed;
use crate::qos;
use crate::resize::PodResources;
use crate::resources::{self, List};

/// Up to this many thousandths of a CPU, the kernel makes no difference between requests.
const LEAST_REQUEST: i128 = 2;
/// The same for limits.
const LEAST_LIMIT: i128 = 10;

/// What is in force for a run of a container; before it runs and after it, what it was given.
pub(super) fn in_force(
    container: &Container,
    run: &observed::Container,
    actuated: &PodResources,
    told: Option<&ContainerStatus>,
) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    if !run.is_running() {
        return resources;
    }
    let own = actuated.containers.get(&container.name);
    let told = told.and_then(|told| told.resources.as_ref());
    let enforced = run.resources.unwrap_or_default();
    // A runtime that says nothing does what it was asked for.
    let silent = run.resources.is_none();
    let asked = |list: Option<&List>, name| {
        let amount = list.and_then(|list| list.get(name)).and_then(qos::milli);
        amount.filter(|amount| silent && *amount != 0)
    };
    let thousandths = |amount: Option<i64>| amount.map(i128::from);
    let bytes = |amount: Option<i64>| amount.map(|bytes| i128::from(bytes) * 1000);
    if let Some(limits) = &mut resources.limits {
        let own = own.and_then(|own| own.limits.as_ref());
        let told = told.and_then(|told| told.limits.as_ref());
        let cpu = thousandths(enforced.cpu_limit).or(asked(own, "cpu"));
        let memory = bytes(enforced.memory_limit).or(asked(own, "memory"));
        tell(limits, "cpu", cpu, told, LEAST_LIMIT);
        tell(limits, "memory", memory, told, 0);
    }
    if let Some(requests) = &mut resources.requests {
        let own = own.and_then(|own| own.requests.as_ref());
        let told = told.and_then(|told| told.requests.as_ref());
        let cpu = thousandths(enforced.cpu_request).or(asked(own, "cpu"));
        // The kernel does not know what memory was asked for.
        let memory = own.and_then(|own| own.get("memory")).and_then(qos::milli);
        tell(requests, "cpu", cpu, told, LEAST_REQUEST);
        tell(requests, "memory", memory.filter(|amount| *amount != 0), told, 0);
    }
    resources
}

/// Put what is in force (in thousandths) where it differs from what was given; what is not known
/// stays as it was told.
fn tell(list: &mut List, name: &str, now: Option<i128>, told: Option<&List>, least: i128) {
    let given = qos::milli_of(Some(list), name);
    match now {
        Some(now) if now == given || now <= least && given <= least => {}
        Some(now) => {
            list.insert(name.to_owned(), Quantity(resources::format(now, name == "memory")));
        }
        None => {
            let told = told.and_then(|told| told.get(name));
            list.extend(told.map(|told| (name.to_owned(), told.clone())));
        }
    }
}
