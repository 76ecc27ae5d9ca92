//! Capacity and use, read from the kernel: of the machine, of file systems, and of pods and their
//! containers. Eviction asks for what it ranks by, the server for a [`Snapshot`] of all.
//!
//! Nothing is read while nobody asks. Who asks says how old an answer may be; those who ask at the
//! same time share one reading, and one that hangs holds up nobody but who wants that very figure.
//! Reading a disk costs as much as there is on it, so that is done for few pods at a time, the more
//! seldom the longer it takes, and for no pod that has done nothing since.
//!
//! Files of /proc and of cgroups are read as they are: the crates for cgroups read all files of a
//! controller, and make objects of all that is in them.
//!
//! Current limitations: project quotas are not asked, and on cgroup v1 nothing tells eviction of swap.

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
mod opened;
mod pods;
mod process;
mod rates;
mod runtime_storage;
mod snapshot;
mod storage;
mod system;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_cri::Runtime;
use longshore_pod::spec;
use longshore_pod::usage::{Memory, PodUsage};

use cgroup::{Cgroup, Controller, Hierarchies, Reader};

use crate::cgroups::Cgroups;
use longshore_podstate::observe::Observer;
use mounts::Mounts;
use opened::Opened;
use rates::Rates;
use runtime_storage::RuntimeStorage;
use storage::{Known, WALKS};
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
pub use opened::Open;
pub use process::{Interface, Processes, Traffic};
pub use runtime_storage::{FileSystems, RuntimeFileSystems, RuntimeUse};
pub use snapshot::{Group, PodGroup, Run, Snapshot};
pub use storage::{Layers, Logs};
pub use system::SystemNames;

/// How long it holds where the runtime's file systems and the cgroups of daemons are.
const PLACES_AGE: Duration = Duration::from_secs(60);
/// Who asks for what may be slow waits no longer, and takes what was known before.
const PATIENCE: Duration = Duration::from_secs(5);

/// Handle to the figures. Cheap to clone.
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
    places: Cached<RuntimeStorage>,
    file_systems: Cached<FileSystems>,
    layers: Cached<Layers>,
    logs: Cached<Logs>,
    system_names: SystemNames,
    system: Cached<SystemGroups>,
    /// By [`Detail`].
    snapshots: [Cached<Snapshot>; 3],
    rates: Rates,
    opened: Opened,
    mounts: Mounts,
    disks: Mutex<HashMap<String, Known>>,
    walks: Arc<tokio::sync::Semaphore>,
}

/// How much is to be known of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// What its processes use.
    Processes,
    /// Also its volumes, logs and other files of the node, which may take a while to find out.
    Files,
    /// Also what its containers have written over their images, which the runtime has to tell.
    Disk,
}

/// How old a snapshot may be.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    /// While the same runs on the node.
    pub same: Duration,
    /// When something has been started or given other resources, or has ended.
    pub changed: Duration,
}

impl Stats {
    /// Figures of the pods in those cgroups, with their files in these directories.
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
            places: Cached::default(),
            file_systems: Cached::default(),
            layers: Cached::default(),
            logs: Cached::default(),
            system_names,
            system: Cached::default(),
            snapshots: Default::default(),
            rates: Rates::default(),
            opened: Opened::default(),
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

    /// The memory of all pods together; `None` if they have no cgroup of their own.
    pub async fn pods_memory(&self) -> Result<Option<Memory>, Error> {
        let Some(group) = self.shared.kubepods.as_deref() else { return Ok(None) };
        let group = Cgroup::new(&self.shared.hierarchies, group);
        let read = move || Ok(group.memory(&mut Reader::default(), false)?.memory);
        cached::blocking(read).await.map(Some)
    }

    /// The file (of whichever cgroup version) about the memory of all pods together.
    pub fn pods_memory_file(&self, name: &str) -> Option<PathBuf> {
        let group = Cgroup::new(&self.shared.hierarchies, self.shared.kubepods.as_deref()?);
        Some(group.path_of(Controller::Memory, name).into())
    }

    /// The file about the machine's memory in the root of cgroup v1.
    pub fn root_memory_file(&self, name: &str) -> PathBuf {
        Cgroup::root(&self.shared.hierarchies).path_of(Controller::Memory, name).into()
    }

    /// Whether the machine has cgroup v2 alone.
    pub fn is_unified(&self) -> bool {
        self.shared.hierarchies.is_unified()
    }

    /// All cgroups that the server tells of, at that detail or more: a fuller one that is young enough
    /// is not read again.
    pub async fn snapshot(&self, detail: Detail, ages: Ages) -> Result<Arc<Snapshot>, Error> {
        let full = self.shared.snapshots.get(detail as usize..).unwrap_or_default();
        let before = full.iter().filter_map(Cached::last).max_by_key(|known| known.node.reading.at);
        let max_age = match &before {
            Some(before) if before.is_of(&self.shared.observer.all()) => ages.same,
            _ => ages.changed,
        };
        if let Some(young) = full.iter().find_map(|known| known.young(max_age)) {
            return Ok(young);
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
        let found = self.shared.system.get(PLACES_AGE, find).await;
        found.unwrap_or_default()
    }

    /// What those pods use, by UID. A pod of which nothing can be read is left out.
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
            let terms = Freshness::waiting(max_age, PATIENCE);
            let layers = match depth {
                Depth::Disk => self.layers(terms).await,
                _ => None,
            };
            let disks = pods.iter().map(|pod| self.disk(pod, terms));
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
