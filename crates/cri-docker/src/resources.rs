//! CPU, memory and cgroups: CRI → the engine, and back. Pure.
//!
//! Current limitations: the engine has no limits of huge pages and no raw files of cgroup v2 (`unified`): both
//! are passed over for containers, and hold for the pod's cgroup, which is the kubelet's.

use bollard::models::{ContainerUpdateBody, HostConfig};
use longshore_cri::v1::{ContainerResources, LinuxContainerResources};

/// How the engine makes cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

/// A cgroup as the engine takes it as a parent: systemd's slices by their last name, others by their path.
pub(crate) fn cgroup_parent(parent: &str, driver: CgroupDriver) -> Option<String> {
    let name = match driver {
        CgroupDriver::Cgroupfs => parent,
        CgroupDriver::Systemd => parent.trim_end_matches('/').rsplit('/').next().unwrap_or(parent),
    };
    (!name.is_empty()).then(|| name.to_owned())
}

/// Zero is unsaid.
fn said(number: i64) -> Option<i64> {
    (number != 0).then_some(number)
}

fn named(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// What memory and swap together may be: without a limit of its own no swap is used.
fn swap(resources: &LinuxContainerResources) -> Option<i64> {
    said(resources.memory_swap_limit_in_bytes).or(said(resources.memory_limit_in_bytes))
}

/// Puts limits into a host configuration.
pub(crate) fn apply(resources: &LinuxContainerResources, host: &mut HostConfig) {
    host.memory = said(resources.memory_limit_in_bytes);
    host.memory_swap = swap(resources);
    host.cpu_shares = said(resources.cpu_shares);
    host.cpu_quota = said(resources.cpu_quota);
    host.cpu_period = said(resources.cpu_period);
    host.cpuset_cpus = named(&resources.cpuset_cpus);
    host.cpuset_mems = named(&resources.cpuset_mems);
}

/// The change of a container's limits.
pub(crate) fn update(resources: &LinuxContainerResources) -> ContainerUpdateBody {
    ContainerUpdateBody {
        memory: said(resources.memory_limit_in_bytes),
        memory_swap: swap(resources),
        cpu_shares: said(resources.cpu_shares),
        cpu_quota: said(resources.cpu_quota),
        cpu_period: said(resources.cpu_period),
        cpuset_cpus: named(&resources.cpuset_cpus),
        cpuset_mems: named(&resources.cpuset_mems),
        ..ContainerUpdateBody::default()
    }
}

/// The limits that a container has.
pub(crate) fn current(host: &HostConfig) -> ContainerResources {
    let linux = LinuxContainerResources {
        cpu_period: host.cpu_period.unwrap_or(0),
        cpu_quota: host.cpu_quota.unwrap_or(0),
        cpu_shares: host.cpu_shares.unwrap_or(0),
        memory_limit_in_bytes: host.memory.unwrap_or(0),
        memory_swap_limit_in_bytes: host.memory_swap.unwrap_or(0),
        oom_score_adj: host.oom_score_adj.unwrap_or(0),
        cpuset_cpus: host.cpuset_cpus.clone().unwrap_or_default(),
        cpuset_mems: host.cpuset_mems.clone().unwrap_or_default(),
        ..LinuxContainerResources::default()
    };
    ContainerResources { linux: Some(linux), windows: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_as_their_driver_has_them() {
        let slice = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice";
        let cases = [
            (slice, CgroupDriver::Systemd, Some("kubepods-besteffort-pod1.slice")),
            ("/kubepods/pod1", CgroupDriver::Cgroupfs, Some("/kubepods/pod1")),
            ("", CgroupDriver::Cgroupfs, None),
            ("", CgroupDriver::Systemd, None),
            ("/", CgroupDriver::Systemd, None),
        ];
        for (parent, driver, expected) in cases {
            assert_eq!(cgroup_parent(parent, driver).as_deref(), expected, "{parent} {driver:?}");
        }
    }

    #[test]
    fn limits_are_set_changed_and_read() {
        let resources = LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: 50_000,
            cpu_shares: 512,
            memory_limit_in_bytes: 64 << 20,
            cpuset_cpus: "0-1".into(),
            ..LinuxContainerResources::default()
        };
        let mut host = HostConfig::default();
        apply(&resources, &mut host);
        assert_eq!((host.memory, host.memory_swap), (Some(64 << 20), Some(64 << 20)));
        assert_eq!((host.cpu_quota, host.cpuset_mems.clone()), (Some(50_000), None));
        let read = current(&host).linux.unwrap();
        assert_eq!(
            read,
            LinuxContainerResources { memory_swap_limit_in_bytes: 64 << 20, ..resources.clone() }
        );

        let swap = LinuxContainerResources { memory_swap_limit_in_bytes: 96 << 20, ..resources };
        assert_eq!(update(&swap).memory_swap, Some(96 << 20));
        assert_eq!(update(&LinuxContainerResources::default()), ContainerUpdateBody::default());
    }
}
