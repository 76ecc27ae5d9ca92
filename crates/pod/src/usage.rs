//! Resource usage of a pod, as measured by the daemon's `stats` module. Plain data: eviction ranks
//! by it, and the server reports it. What could not be measured is `None` or absent.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use k8s_openapi::api::core::v1::{Pod, Volume};

/// Disk usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Allocated bytes.
    pub bytes: u64,
    /// Inodes; hard links count once.
    pub inodes: u64,
}

impl AddAssign for Space {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// Memory of a cgroup, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All memory that is charged to it.
    pub usage: u64,
    /// Working set: usage without inactive file pages.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Limit, if there is one.
    pub limit: Option<u64>,
}

impl Memory {
    /// Limit less working set.
    pub fn available(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.working_set))
    }
}

/// Resource usage of the processes of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// CPU time since its creation, in nanoseconds.
    pub cpu: Option<u64>,
    /// Memory.
    pub memory: Option<Memory>,
    /// Bytes of swap.
    pub swap: Option<u64>,
    /// Processes and threads.
    pub tasks: Option<u64>,
}

/// Resource usage of a running container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Its name in the spec.
    pub name: String,
    /// Usage of its processes.
    pub cgroup: CgroupUsage,
    /// Usage of its writable layer.
    pub rootfs: Option<Space>,
    /// Usage of its logs.
    pub logs: Option<Space>,
}

/// Resource usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Usage of its processes.
    pub cgroup: CgroupUsage,
    /// Its running containers.
    pub containers: Vec<ContainerUsage>,
    /// Its local volumes, by name.
    pub volumes: BTreeMap<String, Space>,
    /// Files that the node keeps for the pod as a whole, such as its `etc-hosts`.
    pub own: Space,
}

impl PodUsage {
    /// All ephemeral storage of the pod.
    pub fn ephemeral_storage(&self, pod: &Pod) -> Space {
        let mut total = self.own;
        for container in &self.containers {
            if let Some(rootfs) = container.rootfs {
                total += rootfs;
                total += container.logs.unwrap_or_default();
            }
        }
        total += self.local_volumes(pod);
        total
    }

    /// The volumes on the node's disk.
    pub fn local_volumes(&self, pod: &Pod) -> Space {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
        let local = volumes.unwrap_or_default().iter().filter(|volume| is_on_disk(volume));
        let mut total = Space::default();
        local.filter_map(|volume| self.volumes.get(&volume.name)).for_each(|space| total += *space);
        total
    }
}

/// Whether a volume is on the node's disk.
pub fn is_on_disk(volume: &Volume) -> bool {
    let empty_dir = volume.empty_dir.as_ref();
    let on_disk = |medium: Option<&str>| medium.unwrap_or_default().is_empty();
    empty_dir.is_some_and(|source| on_disk(source.medium.as_deref())) || volume.config_map.is_some()
}
