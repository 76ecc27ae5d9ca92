//! Capacity and use, read from the kernel: of the machine, of file systems, and of pods and their
//! containers. Eviction asks for what it ranks by, the server for a [`Snapshot`] of all.
//!
//! Nothing is read while nobody asks. Who asks says how old an answer may be; those who ask at the
//! same time share one reading, and one that hangs holds up nobody but who wants that very figure.
//! Reading a disk costs as much as there is on it, so that is done for few pods at a time, and the
//! more seldom the longer it takes.
//!
//! Files of /proc and of cgroups are read as they are: the crates for cgroups walk from the root for
//! each file, and make objects of all that is in it.
//!
//! Current limitations: project quotas are not asked, what lies deeper than [`disk::DEEPEST`]
//! directories in a volume is not counted, and on cgroup v1 nothing tells eviction of swap.

mod cgroup;
mod devices;
mod disk;
mod figure;
#[cfg(test)]
pub mod fixture;
mod machine;
mod pods;
mod process;
mod rates;
mod snapshot;
mod system;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use longshore_cri::Runtime;
use longshore_pod::eviction::Layout;
use longshore_pod::spec;
use longshore_pod::usage::{Memory, PodUsage, Space};
use tokio::time::timeout;
use tracing::debug;

use crate::observe::Observer;
use crate::resources::cgroups::Cgroups;
use cgroup::{Group as GroupName, Hierarchies};
use rates::Rates;
use system::SystemGroups;

pub use cgroup::{
    Cpu, Detail, DeviceIo, Faults, Limits, MemoryUse, OPERATIONS, Pressure, Reading, Stall, Stalls,
    Tasks, Throttling,
};
pub use devices::{Activity, Devices, Disk};
pub use disk::{FileSystem, PodDisk, VolumeUse};
pub use figure::Error;
pub(crate) use figure::Figure;
pub use machine::{Machine, Pids};
pub use process::{Interface, Open, Processes, Traffic};
pub use snapshot::{Group, PodGroup, Run, Snapshot};
pub use system::SystemNames;

/// How long the runtime's answer about where its file systems are holds.
const PLACES_AGE: Duration = Duration::from_secs(60);
/// How many pods' disks are read at a time.
const WALKS: usize = 2;
/// A disk that took long to read is left alone for so many times as long...
const REST: u32 = 20;
/// ...up to this.
const LONGEST_REST: Duration = Duration::from_secs(300);
/// Who asks for what is on disk waits no longer, and takes what was known before.
const PATIENCE: Duration = Duration::from_secs(5);
/// What nobody has asked for in this time is forgotten.
const FORGET: Duration = Duration::from_secs(600);

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
    machine: Figure<Machine>,
    places: Figure<Places>,
    file_systems: Figure<FileSystems>,
    layers: Figure<Layers>,
    system_names: SystemNames,
    system: Figure<SystemGroups>,
    /// By [`Detail`].
    snapshots: [Figure<Snapshot>; 3],
    rates: Rates,
    disks: Mutex<HashMap<String, Known>>,
    walks: Arc<tokio::sync::Semaphore>,
}

/// What is known of a pod's disk.
struct Known {
    disk: Figure<PodDisk>,
    asked: Instant,
}

/// What containers have written over their images, as the runtime told it.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// When it was told.
    pub at: Timestamp,
    /// By container id.
    pub used: HashMap<String, Space>,
}

/// Where the runtime keeps images, and what containers write over them.
struct Places {
    images: PathBuf,
    containers: PathBuf,
    used: RuntimeUse,
}

/// What the runtime says that it takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeUse {
    /// When it said so.
    pub at: Timestamp,
    /// Its images.
    pub images: Space,
    /// What containers have written; `None` if that is not told apart.
    pub containers: Option<Space>,
}

/// The file systems that pods live on.
#[derive(Clone, Copy, Debug)]
pub struct FileSystems {
    /// That of the node's root directory.
    pub node: FileSystem,
    /// Those of the runtime; `None` until it has said where they are.
    pub runtime: Option<RuntimeFileSystems>,
}

/// The file systems of the runtime.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeFileSystems {
    /// That of images.
    pub images: FileSystem,
    /// That of what containers write.
    pub containers: FileSystem,
    /// What the runtime says that it takes of them.
    pub used: RuntimeUse,
}

impl FileSystems {
    /// Which of them are the same.
    pub fn layout(&self) -> Option<Layout> {
        let runtime = self.runtime?;
        let (images, containers) = (runtime.images.device, runtime.containers.device);
        Some(Layout::of(self.node.device, images, containers))
    }
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
            machine: Figure::default(),
            places: Figure::default(),
            file_systems: Figure::default(),
            layers: Figure::default(),
            system_names,
            system: Figure::default(),
            snapshots: Default::default(),
            rates: Rates::default(),
            disks: Mutex::default(),
            walks: Arc::new(tokio::sync::Semaphore::new(WALKS)),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The machine as a whole.
    pub async fn machine(&self, max_age: Duration) -> Result<Arc<Machine>, Error> {
        let hierarchies = self.shared.hierarchies.clone();
        let read = move || Machine::read(&hierarchies);
        self.shared.machine.get(max_age, || figure::blocking(read)).await
    }

    /// The memory of all pods together; `None` if they have no cgroup of their own.
    pub async fn pods_memory(&self) -> Result<Option<Memory>, Error> {
        let Some(group) = self.shared.kubepods.as_deref() else { return Ok(None) };
        let group = GroupName::new(&self.shared.hierarchies, group);
        figure::blocking(move || group.memory()).await.map(Some)
    }

    /// The file (of whichever cgroup version) about the memory of all pods together.
    pub fn pods_memory_file(&self, name: &str) -> Option<PathBuf> {
        let group = self.shared.kubepods.as_deref()?;
        Some(GroupName::new(&self.shared.hierarchies, group).memory_file(name))
    }

    /// The file about the machine's memory in the root of cgroup v1.
    pub fn root_memory_file(&self, name: &str) -> PathBuf {
        GroupName::root(&self.shared.hierarchies).memory_file(name)
    }

    /// Whether the machine has cgroup v2 alone.
    pub fn is_unified(&self) -> bool {
        self.shared.hierarchies.is_unified()
    }

    /// The file systems that pods live on.
    pub async fn file_systems(&self, max_age: Duration) -> Result<Arc<FileSystems>, Error> {
        let stats = self.clone();
        self.shared
            .file_systems
            .get(max_age, || async move { stats.read_file_systems().await })
            .await
    }

    /// Ask the runtime again where its file systems are and what it takes of them, if what it said
    /// is older than `max_age`; who asks waits for no longer than `patience`.
    pub async fn ask_runtime(&self, max_age: Duration, patience: Duration) {
        let runtime = self.shared.runtime.clone();
        let asked = self.shared.places.get(max_age, || find_places(runtime));
        // What comes late is known the next time.
        let _ = timeout(patience, asked).await;
    }

    async fn read_file_systems(&self) -> Result<FileSystems, Error> {
        let runtime = self.shared.runtime.clone();
        let places = self.shared.places.get(PLACES_AGE, || find_places(runtime)).await;
        let places =
            places.inspect_err(|error| debug!(%error, "the runtime's disks are not known"));
        // They stay where they are while it is away.
        let places = places.ok().or_else(|| self.shared.places.last());
        let node = self.shared.root_dir.clone();
        figure::blocking(move || {
            let runtime = places.map(|places| {
                let images = file_system(&places.images)?;
                let containers = file_system(&places.containers)?;
                io::Result::Ok(RuntimeFileSystems { images, containers, used: places.used })
            });
            Ok(FileSystems { node: file_system(&node)?, runtime: runtime.transpose()? })
        })
        .await
    }

    /// All cgroups that the server tells of, at that detail or more.
    pub async fn snapshot(
        &self,
        detail: Detail,
        max_age: Duration,
    ) -> Result<Arc<Snapshot>, Error> {
        let system = self.system_groups().await;
        let shared = self.shared.clone();
        let read = || async move {
            figure::blocking(move || {
                let mut snapshot = Snapshot::read(&shared, detail, &system)?;
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
        let find = || figure::blocking(move || names.find(unified));
        let found = self.shared.system.get(PLACES_AGE, find).await;
        found.unwrap_or_default()
    }

    /// What those pods have on disk, by UID, and what their containers have written over their
    /// images: as well as it is known after `patience`. What is older than `max_age` by then is
    /// being read again.
    pub async fn storage(
        &self,
        pods: &[Arc<Pod>],
        max_age: Duration,
        patience: Duration,
    ) -> (HashMap<String, Arc<PodDisk>>, Option<Arc<Layers>>) {
        let disks = pods.iter().map(|pod| self.disk(pod, max_age, patience));
        let (disks, layers) =
            tokio::join!(futures::future::join_all(disks), self.layers(max_age, patience));
        let by_uid = pods.iter().zip(disks);
        let by_uid = by_uid.filter_map(|(pod, disk)| Some((spec::uid(pod).to_owned(), disk?)));
        (by_uid.collect(), layers)
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
        let mut usages = figure::blocking(read).await.unwrap_or_default();
        if depth >= Depth::Files {
            let layers = match depth {
                Depth::Disk => self.layers(max_age, PATIENCE).await,
                _ => None,
            };
            let disks = pods.iter().map(|pod| self.disk(pod, max_age, PATIENCE));
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

    /// What containers have written over their images, by container id.
    async fn layers(&self, max_age: Duration, patience: Duration) -> Option<Arc<Layers>> {
        let runtime = self.shared.runtime.clone();
        let layers = self.shared.layers.get(max_age, || pods::layers(runtime));
        let layers = timeout(patience, layers).await.unwrap_or_else(|late| Err(Error::of(late)));
        let layers = layers.inspect_err(|error| debug!(%error, "no news of writable layers"));
        layers.ok().or_else(|| self.shared.layers.last())
    }

    async fn disk(&self, pod: &Pod, max_age: Duration, patience: Duration) -> Option<Arc<PodDisk>> {
        let places = disk::Places::of(pod, &self.shared.root_dir, &self.shared.pod_logs_dir);
        let figure = self.known_disk(spec::uid(pod));
        let rest = figure.cost().saturating_mul(REST).min(LONGEST_REST);
        let walks = self.shared.walks.clone();
        let read = || async move {
            let turn = walks.acquire_owned().await;
            figure::blocking(move || {
                let _turn = turn;
                Ok(places.read())
            })
            .await
        };
        let disk = timeout(patience, figure.get(max_age.max(rest), read)).await;
        disk.ok().and_then(Result::ok).or_else(|| figure.last())
    }

    fn known_disk(&self, uid: &str) -> Figure<PodDisk> {
        let now = Instant::now();
        // No code panics while it holds the lock.
        let mut disks = self.shared.disks.lock().unwrap_or_else(PoisonError::into_inner);
        if !disks.contains_key(uid) {
            disks.retain(|_, known| now.duration_since(known.asked) < FORGET);
        }
        let new = || Known { disk: Figure::default(), asked: now };
        let known = disks.entry(uid.to_owned()).or_insert_with(new);
        known.asked = now;
        known.disk.clone()
    }
}

async fn find_places(runtime: Runtime) -> Result<Places, Error> {
    let answer = runtime.image_fs_info().await.map_err(Error::of)?;
    let path = |file_systems: &[longshore_cri::v1::FilesystemUsage]| {
        let first = file_systems.first()?.fs_id.as_ref()?;
        Some(PathBuf::from(&first.mountpoint)).filter(|path| path.is_absolute())
    };
    let images = path(&answer.image_filesystems)
        .ok_or_else(|| Error::of("the runtime tells no file system of images"))?;
    let containers = path(&answer.container_filesystems).unwrap_or_else(|| images.clone());
    let space = |file_systems: &[longshore_cri::v1::FilesystemUsage]| {
        let first = file_systems.first()?;
        let of = |value: &Option<longshore_cri::v1::UInt64Value>| {
            value.as_ref().map_or(0, |value| value.value)
        };
        Some(Space { bytes: of(&first.used_bytes), inodes: of(&first.inodes_used) })
    };
    let used = RuntimeUse {
        at: Timestamp::now(),
        images: space(&answer.image_filesystems).unwrap_or_default(),
        containers: space(&answer.container_filesystems),
    };
    Ok(Places { images, containers, used })
}

/// The file system of a path, which the error names.
fn file_system(path: &Path) -> io::Result<FileSystem> {
    FileSystem::of(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests;
