//! Capacity and usage of the machine, of file systems, and of pods and their containers. Eviction
//! reads the stats that it ranks by, the server a [`Snapshot`] of all.
//!
//! All values are read on demand. Callers give a maximum age; concurrent callers share one read,
//! and one that hangs blocks only its own callers. Disk usage is expensive, so it is read for few
//! pods at a time, less often if it takes long, and not for idle pods.
//!
//! Files of /proc and of cgroups are read directly: the crates for cgroups read and parse all files
//! of a controller.
//!
//! Current limitations: on cgroup v1 eviction does not consider swap.

mod cached;
mod cgroup;
mod cgroup_reader;
mod devices;
mod disk;
#[cfg(any(test, feature = "testing"))]
pub mod fixture;
mod idle;
mod links;
mod machine;
mod mounts;
mod open_files;
mod pods;
mod process;
mod rates;
mod runtime_pods;
mod runtime_storage;
mod snapshot;
mod storage;
mod system;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_cri::Runtime;
use longshore_pod::spec;
use longshore_pod::usage::{Memory, PodUsage};
use parking_lot::Mutex;

use cgroup::{Cgroup, Controller, Hierarchies, Reader};

use crate::cgroups::Cgroups;
use longshore_podstate::observe::Observer;
use mounts::Mounts;
use open_files::OpenFiles;
use rates::Rates;
use runtime_storage::RuntimeStorage;
use storage::{DiskEntry, WALKS};
use system::SystemGroups;

pub use cached::Cached;
pub use cached::{Error, Freshness};
pub use cgroup::{
    Cpu, Detail, DeviceIo, Faults, Limits, MemoryUse, OPERATIONS, Pressure, Reading, Stall, Stalls,
    Tasks, Throttling,
};
pub use devices::{Activity, Devices, Disk};
pub use disk::{PodDisk, VolumeUse};
pub use machine::{Machine, Pids};
pub use open_files::OpenFileCount;
pub use process::{Interface, Processes, Traffic};
pub use runtime_pods::{RuntimeContainer, RuntimePod, runtime_time};
pub use runtime_storage::{FileSystems, RuntimeFileSystems, RuntimeUse};
pub use snapshot::{Group, PodGroup, Run, Snapshot};
pub use storage::{Layers, Logs};
pub use system::SystemNames;

/// Maximum age of the paths of the runtime's file systems and of daemons' cgroups.
const STORAGE_INFO_MAX_AGE: Duration = Duration::from_secs(60);
/// Timeout of slow reads, after which stale values are used.
const SLOW_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// A handle to the stats. Cheap to clone.
#[derive(Clone)]
pub struct Stats {
    shared: Arc<Shared>,
}

struct Shared {
    runtime: Runtime,
    observer: Observer,
    cgroups: Cgroups,
    hierarchies: Hierarchies,
    /// The cgroup of all pods, if there is one.
    kubepods: Option<PathBuf>,
    root_dir: PathBuf,
    pod_logs_dir: PathBuf,
    machine: Cached<Machine>,
    runtime_storage: Cached<RuntimeStorage>,
    file_systems: Cached<FileSystems>,
    layers: Cached<Layers>,
    logs: Cached<Logs>,
    system_names: SystemNames,
    system: Cached<SystemGroups>,
    /// By [`Detail`].
    snapshots: [Cached<Snapshot>; 3],
    rates: Rates,
    runtime_pods: Cached<Option<Vec<RuntimePod>>>,
    runtime_rates: Rates,
    open_files: OpenFiles,
    mounts: Mounts,
    disks: Mutex<HashMap<String, DiskEntry>>,
    walks: Arc<tokio::sync::Semaphore>,
}

/// Which usage of pods is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// CPU, memory and processes.
    Processes,
    /// Also volumes, logs and other files, which may be slow.
    Files,
    /// Also the writable layers of containers, from the runtime.
    Disk,
}

/// Maximum ages of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    /// If the pods and containers of the node are unchanged.
    pub same: Duration,
    /// After containers were started, resized or stopped.
    pub changed: Duration,
}

impl Stats {
    /// Stats of the pods in those cgroups, with their files in these directories.
    pub fn new(
        runtime: Runtime,
        observer: Observer,
        cgroups: Cgroups,
        root_dir: &Path,
        pod_logs_dir: &Path,
        system_names: SystemNames,
    ) -> Self {
        let shared = Shared {
            runtime,
            observer,
            hierarchies: Hierarchies::find(cgroups.is_unified()),
            kubepods: cgroups.of_pods(),
            cgroups,
            root_dir: root_dir.to_owned(),
            pod_logs_dir: pod_logs_dir.to_owned(),
            machine: Cached::default(),
            runtime_storage: Cached::default(),
            file_systems: Cached::default(),
            layers: Cached::default(),
            logs: Cached::default(),
            system_names,
            system: Cached::default(),
            snapshots: Default::default(),
            rates: Rates::default(),
            runtime_pods: Cached::default(),
            runtime_rates: Rates::default(),
            open_files: OpenFiles::default(),
            mounts: Mounts::default(),
            disks: Mutex::default(),
            walks: Arc::new(tokio::sync::Semaphore::new(WALKS)),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The machine as a whole.
    pub async fn machine(&self, max_age: Duration) -> Result<Arc<Machine>, Error> {
        let hierarchies = self.shared.hierarchies.clone();
        let read = move || Machine::read(&hierarchies);
        self.shared.machine.get(max_age, || cached::blocking(read)).await
    }

    /// The memory of all pods; `None` if they have no cgroup.
    pub async fn pods_memory(&self) -> Result<Option<Memory>, Error> {
        let Some(group) = self.shared.kubepods.as_deref() else { return Ok(None) };
        let group = Cgroup::new(&self.shared.hierarchies, group);
        let read = move || Ok(group.memory(&mut Reader::default(), false)?.memory);
        cached::blocking(read).await.map(Some)
    }

    /// The path of a memory controller file of the cgroup of all pods.
    pub fn pods_memory_file(&self, name: &str) -> Option<PathBuf> {
        let group = Cgroup::new(&self.shared.hierarchies, self.shared.kubepods.as_deref()?);
        Some(group.path_of(Controller::Memory, name).into())
    }

    /// The path of a memory controller file of the root cgroup (v1).
    pub fn root_memory_file(&self, name: &str) -> PathBuf {
        Cgroup::root(&self.shared.hierarchies).path_of(Controller::Memory, name).into()
    }

    /// Whether the machine uses cgroup v2.
    pub fn is_unified(&self) -> bool {
        self.shared.hierarchies.is_unified()
    }

    /// A snapshot of all cgroups for the server, at that detail or more: a fresh one of more detail
    /// is reused.
    pub async fn snapshot(&self, detail: Detail, ages: Ages) -> Result<Arc<Snapshot>, Error> {
        let full = self.shared.snapshots.get(detail as usize..).unwrap_or_default();
        let before = full.iter().filter_map(Cached::last).max_by_key(|known| known.node.reading.at);
        let max_age = match &before {
            Some(before) if before.is_current(&self.shared.observer.all()) => ages.same,
            _ => ages.changed,
        };
        if let Some(fresh) = full.iter().find_map(|known| known.fresh(max_age)) {
            return Ok(fresh);
        }
        let system = self.system_groups().await;
        let shared = self.shared.clone();
        let read = || async move {
            cached::blocking(move || {
                let mut snapshot = Snapshot::read(&shared, detail, &system, before.as_deref())?;
                shared.rates.apply(&mut snapshot);
                Ok(snapshot)
            })
            .await
        };
        self.shared.snapshots[detail as usize].get(max_age, read).await
    }

    async fn system_groups(&self) -> Arc<SystemGroups> {
        let names = self.shared.system_names.clone();
        let unified = self.is_unified();
        let find = || cached::blocking(move || names.find(unified));
        let found = self.shared.system.get(STORAGE_INFO_MAX_AGE, find).await;
        found.unwrap_or_default()
    }

    /// The usage of those pods, by UID. Unreadable pods are skipped.
    pub async fn pods(
        &self,
        pods: &[Arc<Pod>],
        depth: Depth,
        max_age: Duration,
    ) -> HashMap<String, PodUsage> {
        let shared = self.shared.clone();
        let asked = pods.to_vec();
        let read = move || Ok(pods::read(&shared, &asked));
        let mut usages = cached::blocking(read).await.unwrap_or_default();
        if depth >= Depth::Files {
            let freshness = Freshness::blocking_for(max_age, SLOW_READ_TIMEOUT);
            let layers = match depth {
                Depth::Disk => self.layers(freshness).await,
                _ => None,
            };
            let disks = pods.iter().map(|pod| self.disk(pod, freshness));
            let disks = futures::future::join_all(disks).await;
            for (pod, disk) in pods.iter().zip(disks) {
                if let (Some(usage), Some(disk)) = (usages.get_mut(spec::uid(pod)), disk) {
                    let observed = self.shared.observer.pod(spec::uid(pod));
                    pods::add_disk(usage, &disk, layers.as_deref(), observed.as_deref());
                }
            }
        }
        usages
    }
}

#[cfg(test)]
mod tests;
