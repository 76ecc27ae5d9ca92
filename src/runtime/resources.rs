//! CPU and memory of containers and pods, in the units of the kernel.
//!
//! Current limitations: swap is left as the runtime sets it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_cri::v1::{HugepageLimit, LinuxContainerResources};
use longshore_pod::{qos, spec};

use super::Settings;

const MIN_SHARES: i128 = 2;
const MAX_SHARES: i128 = 262_144;
const MIN_QUOTA: i128 = 1000;

/// CPU shares (cgroup v1's unit) for so many thousandths of a CPU.
pub fn shares(milli_cpu: i128) -> i64 {
    let shares = (milli_cpu * 1024 / 1000).clamp(MIN_SHARES, MAX_SHARES);
    i64::try_from(shares).unwrap_or(i64::MAX)
}

/// CPU quota in microseconds for each `period` microseconds; 0 is no limit.
pub fn quota(milli_cpu: i128, period: i64) -> i64 {
    if milli_cpu == 0 {
        return 0;
    }
    let quota = (milli_cpu * i128::from(period) / 1000).max(MIN_QUOTA);
    i64::try_from(quota).unwrap_or(i64::MAX)
}

/// Thousandths of a CPU and bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU that is asked for; `None` if nothing says.
    pub cpu_request: Option<i128>,
    /// CPU at most, 0 is no limit.
    pub cpu_limit: i128,
    /// Memory at most, 0 is no limit.
    pub memory_limit: i64,
}

/// What a container asks for, with the pod's own limits where it has none.
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

/// What a pod asks for as a whole: its own amounts, or the sum of what runs at the same time,
/// or the largest init container. A limit that some container lacks is no limit of the pod.
pub fn pod_amounts(pod_spec: &PodSpec) -> Amounts {
    let own = pod_spec.resources.as_ref();
    let mut total = Amounts::default();
    let (mut init_cpu, mut sidecar_cpu) = (0, 0);
    let (mut cpu_limited, mut memory_limited) = (true, true);
    for (kind, container) in spec::containers(pod_spec) {
        let amounts = amounts(pod_spec, container);
        let request = amounts.cpu_request.unwrap_or(amounts.cpu_limit);
        if kind == spec::ContainerKind::Init {
            init_cpu = init_cpu.max(request + sidecar_cpu);
            continue;
        }
        if kind == spec::ContainerKind::Sidecar {
            sidecar_cpu += request;
        }
        total.cpu_request = Some(total.cpu_request.unwrap_or(0) + request);
        total.cpu_limit += amounts.cpu_limit;
        total.memory_limit = total.memory_limit.saturating_add(amounts.memory_limit);
        cpu_limited &= amounts.cpu_limit > 0;
        memory_limited &= amounts.memory_limit > 0;
    }
    total.cpu_request = total.cpu_request.map(|cpu| cpu.max(init_cpu));
    if !cpu_limited {
        total.cpu_limit = 0;
    }
    if !memory_limited {
        total.memory_limit = 0;
    }
    if let Some(own) = own {
        let cpu = own.requests.as_ref().and_then(|list| list.get("cpu")).and_then(qos::milli);
        total.cpu_request = cpu.or(total.cpu_request);
        let limits = own.limits.as_ref();
        if limits.is_some_and(|limits| limits.contains_key("cpu")) {
            total.cpu_limit = qos::milli_of(limits, "cpu");
        }
        if limits.is_some_and(|limits| limits.contains_key("memory")) {
            total.memory_limit = qos::units_of(limits, "memory");
        }
    }
    total
}

/// A container's resources in the runtime's words.
pub fn container(
    settings: &Settings,
    pod: &Pod,
    pod_spec: &PodSpec,
    container: &Container,
) -> LinuxContainerResources {
    let mut resources = linux(settings, amounts(pod_spec, container));
    resources.oom_score_adj = qos::oom_score_adj(pod, container, settings.memory_capacity);
    let of_pod = pod_spec.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    resources.hugepage_limits = hugepages(&HUGE_PAGES, [of_pod, qos::limits(container)]);
    resources
}

/// The sizes of the machine's huge pages in bytes.
static HUGE_PAGES: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let entries = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let name = entry.file_name();
        let kib = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        Some(kib.parse::<u64>().ok()? << 10)
    });
    sizes.collect()
});

/// A limit for each size of huge pages: what the last list that names it says, or none.
fn hugepages(
    sizes: &[u64],
    limits: [Option<&BTreeMap<String, Quantity>>; 2],
) -> Vec<HugepageLimit> {
    let named = |size: u64| {
        let mut limits = limits.into_iter().rev().flatten().flatten();
        let of_size = limits.find(|(name, _)| {
            let bytes = name.strip_prefix("hugepages-").map(|size| Quantity(size.to_owned()));
            bytes.as_ref().and_then(qos::milli) == Some(i128::from(size) * 1000)
        });
        of_size.and_then(|(_, limit)| u64::try_from(qos::milli(limit)? / 1000).ok())
    };
    let limit = |size: &u64| {
        let (unit, shift) = match *size {
            size if size >= 1 << 30 => ("GB", 30),
            size if size >= 1 << 20 => ("MB", 20),
            _ => ("KB", 10),
        };
        let page_size = format!("{}{unit}", size >> shift);
        HugepageLimit { page_size, limit: named(*size).unwrap_or(0) }
    };
    sizes.iter().map(limit).collect()
}

/// The whole pod's resources, as a hint to the runtime.
pub(super) fn pod(settings: &Settings, pod_spec: &PodSpec) -> LinuxContainerResources {
    linux(settings, pod_amounts(pod_spec))
}

/// What the sandbox itself costs, by the pod's runtime class.
pub(super) fn overhead(settings: &Settings, pod_spec: &PodSpec) -> LinuxContainerResources {
    let Some(overhead) = &pod_spec.overhead else { return LinuxContainerResources::default() };
    let cpu = qos::milli_of(Some(overhead), "cpu");
    let memory_limit = qos::units_of(Some(overhead), "memory");
    linux(settings, Amounts { cpu_request: Some(cpu), cpu_limit: cpu, memory_limit })
}

fn linux(settings: &Settings, amounts: Amounts) -> LinuxContainerResources {
    let mut resources = LinuxContainerResources {
        cpu_shares: shares(amounts.cpu_request.unwrap_or(amounts.cpu_limit)),
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
    fn huge_pages_are_given_to_those_who_ask_alone() {
        let list = |pairs: &[(&str, &str)]| -> BTreeMap<String, Quantity> {
            let pair =
                |(name, value): &(&str, &str)| ((*name).to_owned(), Quantity((*value).to_owned()));
            pairs.iter().map(pair).collect()
        };
        let of_pod = list(&[("hugepages-2Mi", "8Mi"), ("hugepages-1Gi", "1Gi"), ("cpu", "1")]);
        let own = list(&[("hugepages-2Mi", "4Mi")]);
        let found = hugepages(&[2 << 20, 1 << 30, 64 << 10], [Some(&of_pod), Some(&own)]);
        let found: Vec<_> = found.iter().map(|l| (l.page_size.as_str(), l.limit)).collect();
        assert_eq!(found, [("2MB", 4 << 20), ("1GB", 1 << 30), ("64KB", 0)]);
        assert_eq!(hugepages(&[2 << 20], [None, None])[0].limit, 0);
    }

    #[test]
    fn shares_and_quota_follow_the_kernels_bounds() {
        for (milli, expected) in [(0, 2), (1, 2), (100, 102), (1000, 1024), (500_000, 262_144)] {
            assert_eq!(shares(milli), expected, "{milli}m");
        }
        for (milli, expected) in [(0, 0), (5, 1000), (10, 1000), (500, 50_000), (2000, 200_000)] {
            assert_eq!(quota(milli, 100_000), expected, "{milli}m");
        }
    }
}
