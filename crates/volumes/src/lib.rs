//! The volume manager: sets up the volumes of pods before containers start, refreshes their data,
//! and tears them down with the pod. Called by the pod's worker, one pod at a time. The desired
//! state is the pod's spec, the actual state is the pod's directory and the kernel's mount table,
//! so that a restarted daemon continues where this one stopped. Current limitations: size limits of
//! volumes on disk are not enforced here.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod atomic;
mod block;
mod claims;
mod collect;
mod csi;
mod devices;
mod dir;
mod empty_dir;
mod error;
mod expansion;
mod fc;
mod flex;
mod host;
mod host_path;
mod iscsi;
mod kind;
mod layout;
mod local;
mod medium;
mod metrics;
mod mounted;
mod nested;
mod nfs;
mod ownership;
mod payload;
mod persistent;
pub mod plugins;
mod reconstruct;
mod remove;
mod selinux;
mod set_up;
mod shared_disk;
mod source;
mod state;
mod stats;
mod sub_path;
mod task;
mod teardown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Pod, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_base::panics;
use longshore_machine::projects::ProjectFiles;
use longshore_metrics::Registry;
use longshore_pod::spec;
use parking_lot::Mutex;
use tokio::sync::{RwLock, watch};

pub use claims::ClaimError;
pub use devices::{Devices, InUse};
pub use error::Error;
pub use error::csi::Error as CsiError;
pub use mounted::{Mounted, PodMounts};
pub use ownership::Ownership;
pub use stats::{Condition, PersistentMount, VolumeStats};
pub use sub_path::{SubPath, validate as validate_sub_path};

use crate::plugins::Drivers;
use dir::Dir;
use error::if_exists;
use host::blocking;
use host::kernel::Kernel;
use host::mounts::{Table, real};
use host::tools::Tools;
use longshore_client::events::PodEventRecorder;
use longshore_client::objects::{Changed, Objects};
use metrics::Metrics;
use persistent::Persistent;
use reconstruct::Reconstructed;
use source::Source;
use state::State;
use state::csi::Csi;
use state::ending::Ending;
use state::flex::FlexDrivers;
use stats::{MountedAt, PersistentMounts};

/// Sets up and takes down the volumes of pods. A cheap handle.
#[derive(Clone)]
pub struct Volumes {
    inner: Arc<State>,
}

/// What the volumes of a pod are, or why that is not known; in the order of [`used`].
pub struct Resolved(Vec<Result<Option<Persistent>, Error>>);

impl Resolved {
    /// The supplemental groups that the volumes require.
    pub fn groups(&self) -> Vec<i64> {
        let known = self.0.iter().flatten().flatten();
        known.filter_map(|persistent| persistent.group).collect()
    }
}

/// What [`Volumes`] work with.
pub struct Parts {
    /// The root directory, which exists.
    pub root: PathBuf,
    /// Content of volumes. A pod is registered there before its volumes are mounted.
    pub objects: Objects,
    /// The node's allocatable resources.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Where slow operations are recorded.
    pub pod_events: PodEventRecorder,
    /// The registered drivers of CSI volumes.
    pub drivers: Drivers,
    /// The node's object, which is `None` while it is not known, if there is an apiserver.
    pub node: Option<watch::Receiver<Option<Arc<Node>>>>,
    /// The interval at which claims of volumes in use are checked for expansion.
    pub claim_poll_interval: Duration,
    /// Where FlexVolume drivers are installed (`volumePluginDir`).
    pub plugin_dir: PathBuf,
    /// The name of the node, which attaching drivers are given.
    pub node_name: String,
    /// Where projects are kept, if the emptyDir volumes of pods in user namespaces are to be counted by project quotas
    /// (`LocalStorageCapacityIsolationFSQuotaMonitoring`).
    pub projects: Option<ProjectFiles>,
}

/// Makes the mount that holds the node's root directory shared, if it is not: Bidirectional mounts need
/// that. What is mounted below stays visible.
pub fn share_root(root: &Path) -> Result<(), Error> {
    host::shared::share(root)
}

impl Volumes {
    /// Volumes with these parts, and metrics in `registry`.
    pub fn new(parts: Parts, registry: &Registry) -> Self {
        let Parts { root, objects, allocatable, pod_events, drivers, node, .. } = parts;
        let metrics = Metrics::new(registry);
        csi::clear_stale_dirs(&root);
        let reconstructed = Reconstructed::from_disk(&root);
        metrics.reconstructed(reconstructed.volumes, reconstructed.unknown.len() as u64);
        for unknown in &reconstructed.unknown {
            tracing::warn!(unknown, "failed to reconstruct a volume from the pod directory");
        }
        let inner = State {
            csi: Csi::new(drivers, objects.client().cloned(), parts.claim_poll_interval, registry),
            root,
            objects,
            allocatable,
            pod_events,
            devices: Devices::new(reconstructed.users, node),
            tools: Tools::default(),
            kernel: Kernel::default(),
            flex: FlexDrivers::new(parts.plugin_dir, parts.node_name),
            projects: parts.projects.map(Arc::new),
            locks: Mutex::default(),
            ending: Ending::default(),
            metrics,
            persistent_mounts: PersistentMounts::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The devices that pods use.
    pub fn devices(&self) -> &Devices {
        &self.inner.devices
    }

    /// Unstages and detaches volumes of an earlier daemon that no pod uses any more.
    pub async fn unstage_unused(self) {
        csi::recover(&self.inner).await;
        shared_disk::recover(&self.inner).await;
    }

    /// Where a pod's directory is or would be.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.inner.root.join(layout::PODS).join(uid)
    }

    /// Sets up the volumes that containers of a pod use, and returns where they are mounted.
    /// Existing mounts are kept, and changed data is rewritten. The error is that of the first
    /// volume that failed; the others are set up all the same.
    pub async fn mount(&self, pod: &Pod) -> Result<PodMounts, Error> {
        self.mount_resolved(pod, self.resolve(pod).await).await
    }

    /// Finds out what the claims of a pod's volumes are bound to. Mounts nothing.
    pub async fn resolve(&self, pod: &Pod) -> Resolved {
        Resolved(join_all(used(pod).map(|volume| self.persistent(pod, volume))).await)
    }

    /// [`Volumes::mount`] with what the claims are bound to.
    pub async fn mount_resolved(&self, pod: &Pod, resolved: Resolved) -> Result<PodMounts, Error> {
        let set_ups = used(pod).zip(resolved.0).map(async |(volume, persistent)| {
            let persistent = persistent?;
            let source = Source::of(volume, persistent.as_ref())?;
            self.inner.metrics.add_desired(spec::uid(pod), &volume.name, source.plugin());
            let mut mounted = self.set_up(pod, volume, &source).await?;
            let dir_name = persistent.as_ref().map(Persistent::dir_name);
            mounted.name = dir_name.unwrap_or_else(|| volume.name.clone());
            if source.has_stats() && self.inner.flex.reports_stats(persistent.as_ref()) {
                let (path, csi_volume) = (mounted.path.clone(), source.csi_volume());
                let mount = MountedAt { path, csi_volume };
                self.inner.persistent_mounts.insert(spec::uid(pod), &volume.name, mount);
            }
            Ok((volume.name.clone(), mounted))
        });
        join_all(set_ups).await.into_iter().collect()
    }

    /// Rewrites the data of those of a pod's volumes that depend on what changed. The error is that
    /// of the first volume that failed; the others are refreshed all the same.
    pub async fn refresh(&self, pod: &Pod, changed: &Changed) -> Result<(), Error> {
        let sources = used(pod).filter_map(|volume| Some((volume, Source::of(volume, None).ok()?)));
        let refreshes = sources
            .filter(|(volume, source)| source.has_data() && changed.touches(pod, volume))
            .map(async |(volume, source)| self.set_up(pod, volume, &source).await.map(drop));
        join_all(refreshes).await.into_iter().collect()
    }

    /// Unmounts and removes all volumes and sub-paths that the directory of a pod holds, whatever
    /// its spec says; the rest of the directory stays. Attempts all of it and returns the first
    /// error. A pod without directory is no error.
    pub async fn unmount(&self, uid: &str) -> Result<(), Error> {
        self.take_down(uid, remove::volumes).await
    }

    /// Removes the directory of a pod, its volumes first as by [`Volumes::unmount`].
    pub async fn remove_pod(&self, uid: &str) -> Result<(), Error> {
        self.take_down(uid, remove::pod).await
    }

    /// The UIDs of all pods that have a directory.
    pub async fn pods_on_disk(&self) -> Result<Vec<String>, Error> {
        let root = self.inner.root.clone();
        blocking(move || {
            let pods = if_exists(Dir::open_trusted(&root.join(layout::PODS)))?;
            let entries = pods.map_or(Ok(Vec::new()), |pods| pods.entries(usize::MAX))?;
            Ok(entries.into_iter().filter_map(|entry| entry.name.into_string().ok()).collect())
        })
        .await
    }

    /// Prepares a sub-path of a volume for a container, and returns the path to mount. A path that
    /// is absent is made as a directory with the mode of the volume's root. The bind mount lives
    /// until [`Volumes::unmount`]; the call is idempotent.
    pub async fn sub_path(&self, uid: &str, sub_path: SubPath<'_>) -> Result<PathBuf, Error> {
        validate_sub_path(sub_path.path)?;
        let (volume, mount) = (sub_path.volume.to_owned(), sub_path.mount.to_owned());
        let volume_path = sub_path.volume_path.to_owned();
        let (container, path) = (sub_path.container.to_owned(), sub_path.path.to_owned());
        let index = sub_path.index;
        self.in_pod_dir(uid, move |pod| {
            let (volume, mount, container, path) = (&volume, &mount, &container, &path);
            let volume_path = &volume_path;
            sub_path::bind(pod, SubPath { volume, mount, volume_path, container, index, path })
        })
        .await
    }

    /// The content of a regular file of at most `limit` bytes in a volume. Links do not lead
    /// outside of it.
    pub async fn read_file(
        &self,
        volume: &Path,
        path: &str,
        limit: usize,
    ) -> Result<Vec<u8>, Error> {
        let (volume, path) = (volume.to_owned(), PathBuf::from(path));
        blocking(move || sub_path::read(&volume, &path, limit)).await
    }

    /// Works in a pod's directory, which is made if it is absent.
    async fn in_pod_dir<T: Send + 'static>(
        &self,
        uid: &str,
        work: impl FnOnce(&Dir) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let guard = self.lock(uid).read_owned().await;
        let (root, uid) = (self.inner.root.clone(), uid.to_owned());
        blocking(move || {
            let _guard = guard;
            work(&layout::pod_dir(&root, &uid)?)
        })
        .await
    }

    /// Tears a pod's volumes down: first its mounts, then the device mounts that no other pod uses,
    /// then the directories. It goes on when the caller is cancelled.
    async fn take_down(
        &self,
        uid: &str,
        work: fn(&Dir, &std::ffi::OsStr) -> Result<(), Error>,
    ) -> Result<(), Error> {
        layout::component("pod UID", uid)?;
        let guard = {
            let _waiting = self.inner.ending.begin(uid);
            self.lock(uid).write_owned().await
        };
        let began = Instant::now();
        let (inner, owned) = (Arc::clone(&self.inner), uid.to_owned());
        let work = panics::task(async move {
            let _guard = guard;
            let pods = inner.root.join(layout::PODS);
            let dir = pods.join(&owned);
            let mut hidden = Vec::new();
            let sub_paths = in_pods(pods.clone(), owned.clone(), remove::sub_paths).await;
            set_hidden_aside(sub_paths, &dir, &mut hidden).await?;
            set_hidden_aside(inner.take_down_persistent(&owned).await, &dir, &mut hidden).await?;
            set_hidden_aside(in_pods(pods, owned, work).await, &dir, &mut hidden).await?;
            inner.prune_projects().await;
            if hidden.is_empty() { Ok(()) } else { Err(Error::Hidden(hidden)) }
        });
        let taken_down = work.await.unwrap_or(Err(Error::Interrupted));
        if matches!(taken_down, Ok(()) | Err(Error::Hidden(_))) {
            self.inner.persistent_mounts.forget(uid);
            self.inner.csi.labelled.forget(uid);
        }
        self.inner.metrics.unmounted(uid, began, &taken_down);
        taken_down
    }

    fn lock(&self, uid: &str) -> Arc<RwLock<()>> {
        let mut locks = self.inner.locks.lock();
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(uid).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(RwLock::new(()));
        locks.insert(uid.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// The volumes of a pod that are to be set up: not those that no container uses, nor images, which
/// the runtime mounts.
pub fn used(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let all = pod.spec.iter().flat_map(|own| {
        let volumes = own.volumes.iter().flatten();
        volumes.filter(|volume| spec::uses_volume(own, &volume.name))
    });
    all.filter(|volume| volume.image.is_none())
}

/// Passes an error on, unless something is in use and mounts of the pod are covered by another mount: these
/// are noted.
async fn set_hidden_aside(
    attempt: Result<(), Error>,
    pod_dir: &Path,
    noted: &mut Vec<PathBuf>,
) -> Result<(), Error> {
    let Err(error) = attempt else { return Ok(()) };
    if !error.is_in_use() {
        return Err(error);
    }
    let dir = pod_dir.to_owned();
    let hidden = blocking(move || Ok(Table::read()?.hidden(&real(&dir)))).await?;
    if hidden.is_empty() {
        return Err(error);
    }
    *noted = hidden;
    Ok(())
}

/// Works on a pod's directory, if it exists.
async fn in_pods(
    pods: PathBuf,
    uid: String,
    work: fn(&Dir, &std::ffi::OsStr) -> Result<(), Error>,
) -> Result<(), Error> {
    blocking(move || {
        let pods = if_exists(Dir::open_trusted(&pods))?;
        pods.map_or(Ok(()), |pods| work(&pods, uid.as_ref()))
    })
    .await
}

#[cfg(test)]
mod tests;
