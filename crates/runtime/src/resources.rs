//! CPU and memory of containers and pods, in the units of the kernel.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_cri::v1::{HugepageLimit, LinuxContainerResources};
use longshore_pod::{qos, resources as pod_resources};
use longshore_resources::cgroups::{quota, shares};
use longshore_resources::hugepages;

use super::Settings;

/// Millicores and bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU request; `None` if it is not set.
    pub cpu_request: Option<i128>,
    /// CPU limit, 0 is no limit.
    pub cpu_limit: i128,
    /// Memory limit, 0 is no limit.
    pub memory_limit: i64,
}

/// The resources of a container, with the pod's own limits where it has none.
pub fn amounts(pod_spec: &PodSpec, container: &Container) -> Amounts {
    let (requests, limits) = (qos::requests(container), qos::limits(container));
    let own = pod_spec.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let or_pods = |value: i128, resource| match value {
        0 => qos::milli_of(own, resource),
        value => value,
    };
    let memory = or_pods(qos::milli_of(limits, "memory"), "memory");
    Amounts {
        cpu_request: requests.and_then(|list| list.get("cpu")).and_then(qos::milli),
        cpu_limit: or_pods(qos::milli_of(limits, "cpu"), "cpu"),
        memory_limit: i64::try_from((memory + 999) / 1000).unwrap_or(i64::MAX),
    }
}

/// The resources of a pod as a whole, without its overhead.
pub(super) fn pod_amounts(pod_spec: &PodSpec) -> Amounts {
    let (requests, limits) =
        (pod_resources::net_requests(pod_spec), pod_resources::net_limits(pod_spec));
    Amounts {
        cpu_request: requests.get("cpu").and_then(qos::milli),
        cpu_limit: qos::milli_of(Some(&limits), "cpu"),
        memory_limit: qos::units_of(Some(&limits), "memory"),
    }
}

/// A container's resources as a CRI message.
pub fn container(
    settings: &Settings,
    pod: &Pod,
    pod_spec: &PodSpec,
    container: &Container,
) -> LinuxContainerResources {
    let mut resources = linux(settings, amounts(pod_spec, container));
    resources.oom_score_adj = qos::oom_score_adj(pod, container, settings.memory_capacity);
    let of_pod = pod_spec.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    resources.hugepage_limits =
        hugepage_limits(&hugepages::SIZES, [of_pod, qos::limits(container)]);
    settings.swap.apply(pod, container, &mut resources);
    if let Some(memory_qos) = &settings.memory_qos {
        memory_qos.apply(pod, container, &mut resources.unified);
    }
    resources
}

/// The limit of each size of huge pages, 0 if none is set.
fn hugepage_limits(
    sizes: &[u64],
    limits: [Option<&BTreeMap<String, Quantity>>; 2],
) -> Vec<HugepageLimit> {
    let named = |size| limits.into_iter().rev().flatten().find_map(|l| hugepages::amount(l, size));
    let limit = |size: &u64| HugepageLimit {
        page_size: hugepages::name(*size),
        limit: named(*size).unwrap_or(0),
    };
    sizes.iter().map(limit).collect()
}

/// The whole pod's resources, as a hint to the runtime.
pub(super) fn pod(settings: &Settings, pod_spec: &PodSpec) -> LinuxContainerResources {
    linux(settings, pod_amounts(pod_spec))
}

/// The overhead of the pod's runtime class.
pub(super) fn overhead(settings: &Settings, pod_spec: &PodSpec) -> LinuxContainerResources {
    let Some(overhead) = &pod_spec.overhead else { return LinuxContainerResources::default() };
    let cpu = qos::milli_of(Some(overhead), "cpu");
    let memory_limit = qos::units_of(Some(overhead), "memory");
    linux(settings, Amounts { cpu_request: Some(cpu), cpu_limit: cpu, memory_limit })
}

fn linux(settings: &Settings, amounts: Amounts) -> LinuxContainerResources {
    let mut resources = LinuxContainerResources {
        cpu_shares: i64::try_from(shares(amounts.cpu_request.unwrap_or(amounts.cpu_limit)))
            .unwrap_or(i64::MAX),
        memory_limit_in_bytes: amounts.memory_limit,
        ..LinuxContainerResources::default()
    };
    if let Some(period) = settings.cpu_cfs_quota_period {
        let period = i64::try_from(period.as_micros()).unwrap_or(100_000);
        resources.cpu_quota = quota(amounts.cpu_limit, period);
        resources.cpu_period = period;
    }
    if settings.oom_kills_group {
        resources.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_limit_huge_pages_to_requests() {
        let list = |pairs: &[(&str, &str)]| -> BTreeMap<String, Quantity> {
            let pair =
                |(name, value): &(&str, &str)| ((*name).to_owned(), Quantity((*value).to_owned()));
            pairs.iter().map(pair).collect()
        };
        let of_pod = list(&[("hugepages-2Mi", "8Mi"), ("hugepages-1Gi", "1Gi"), ("cpu", "1")]);
        let own = list(&[("hugepages-2Mi", "4Mi")]);
        let found = hugepage_limits(&[2 << 20, 1 << 30, 64 << 10], [Some(&of_pod), Some(&own)]);
        let found: Vec<_> = found.iter().map(|l| (l.page_size.as_str(), l.limit)).collect();
        assert_eq!(found, [("2MB", 4 << 20), ("1GB", 1 << 30), ("64KB", 0)]);
        assert_eq!(hugepage_limits(&[2 << 20], [None, None])[0].limit, 0);
    }
}
