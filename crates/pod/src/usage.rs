//! What a pod uses, as the daemon's `stats` room has measured it. Plain data: eviction ranks by it,
//! and the server shows it. What could not be measured is `None` or absent.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use k8s_openapi::api::core::v1::{Pod, Volume};

/// A part of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of disk, holes not counted.
    pub bytes: u64,
    /// Files and directories, one with several names once.
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
    /// All that is charged to it.
    pub usage: u64,
    /// What of it the kernel cannot just drop: all but inactive file pages.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// What it may use at most; `None`: all there is.
    pub limit: Option<u64>,
}

impl Memory {
    /// What is left below the limit.
    pub fn available(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.working_set))
    }
}

/// What the processes of a cgroup use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// CPU time since it was made, in nanoseconds.
    pub cpu: Option<u64>,
    /// Memory.
    pub memory: Option<Memory>,
    /// Bytes in swap.
    pub swap: Option<u64>,
    /// Processes and threads.
    pub tasks: Option<u64>,
}

/// What a container that runs uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Its name in the spec.
    pub name: String,
    /// What its processes use.
    pub figures: CgroupUsage,
    /// What it has written over its image.
    pub rootfs: Option<Space>,
    /// Its logs.
    pub logs: Option<Space>,
}

/// What a pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// What its processes use.
    pub figures: CgroupUsage,
    /// Its containers that run.
    pub containers: Vec<ContainerUsage>,
    /// The volumes that the node keeps for it, by name.
    pub volumes: BTreeMap<String, Space>,
    /// Files that the node keeps for the pod as a whole, such as its `etc-hosts`.
    pub own: Space,
}

impl PodUsage {
    /// All of the node's storage that goes with the pod.
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

/// Whether a volume takes of the node's own disk.
pub fn is_on_disk(volume: &Volume) -> bool {
    let empty_dir = volume.empty_dir.as_ref();
    let on_disk = |medium: Option<&str>| medium.unwrap_or_default().is_empty();
    empty_dir.is_some_and(|source| on_disk(source.medium.as_deref())) || volume.config_map.is_some()
}
