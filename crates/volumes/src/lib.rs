//! The volumes of the node's pods: sets them up before containers start, keeps their data up to
//! date, and takes them down when the pod is gone. Called by the pod's worker, one pod at a time.
//! What a pod asks for is in its spec and what there is in its directory and in the kernel's table
//! of mounts, so that a daemon that comes later goes on where this one was.
//! Current limitations: size limits of volumes on disk are not enforced here; the file system of a
//! local volume's device does not grow with its PersistentVolume, as upstream's does.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod atomic;
mod block;
mod claims;
mod csi;
mod devices;
mod dir;
mod empty_dir;
mod error;
mod gone;
mod host;
mod host_path;
mod iscsi;
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
mod remove;
mod set_up;
mod source;
mod stats;
mod sub_path;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_base::panics;
use longshore_metrics::Registry;
use longshore_pod::spec;
use tokio::sync::RwLock;

pub use claims::ClaimError;
pub use csi::Error as CsiError;
pub use devices::{Devices, InUse};
pub use error::Error;
pub use mounted::{Mounted, PodMounts};
pub use ownership::Ownership;
pub use stats::{Condition, PersistentMount, VolumeStats};
pub use sub_path::{SubPath, validate as validate_sub_path};

use crate::plugins::Drivers;
use csi::Csi;
use dir::Dir;
use error::if_exists;
use host::tools::Tools;
use longshore_client::events::PodEventRecorder;
use longshore_client::objects::{Changed, Objects};
use metrics::Metrics;
use persistent::Persistent;
use source::{Source, kind_of};
use stats::{MountedAt, PersistentMounts};

/// Sets up and takes down the volumes of pods. A cheap handle.
#[derive(Clone)]
pub struct Volumes {
    inner: Arc<Inner>,
}

struct Inner {
    root: PathBuf,
    objects: Objects,
    allocatable: BTreeMap<String, Quantity>,
    pod_events: PodEventRecorder,
    devices: Devices,
    tools: Tools,
    kernel: iscsi::Kernel,
    csi: Csi,
    /// One lock per pod at work: set-ups share it, tear-down has it alone. It is held by the work
    /// itself, which goes on when the caller does not wait for it any more.
    locks: Mutex<HashMap<String, Weak<RwLock<()>>>>,
    metrics: Metrics,
    standing: PersistentMounts,
}

impl Volumes {
    /// Volumes below a root directory that exists, with content from `objects` (where a pod is to
    /// be registered before it is mounted); `allocatable` is what the node can give to pods. What
    /// takes long is told to pods by `pod_events`, how the work goes to `registry`. Those of CSI are
    /// set up by `drivers`, as far as they are registered.
    pub fn new(
        root: impl Into<PathBuf>,
        objects: Objects,
        allocatable: BTreeMap<String, Quantity>,
        pod_events: PodEventRecorder,
        drivers: Drivers,
        registry: &Registry,
    ) -> Self {
        let root = root.into();
        let metrics = Metrics::new(registry);
        csi::clear_unnoted(&root);
        let (devices, found) = Devices::find(&root);
        metrics.found(&found);
        for unknown in &found.unknown {
            tracing::warn!(unknown, "a volume of an earlier daemon is not understood");
        }
        let inner = Inner {
            csi: Csi::new(drivers, objects.client().cloned()),
            root,
            objects,
            allocatable,
            pod_events,
            devices,
            tools: Tools::default(),
            kernel: iscsi::Kernel::default(),
            locks: Mutex::default(),
            metrics,
            standing: PersistentMounts::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// With claims of volumes in use looked at so often, for whether they are to grow.
    #[must_use]
    pub fn looking_every(mut self, period: Duration) -> Self {
        // Nobody else has a handle yet.
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.csi.look_every(period);
        }
        self
    }

    /// What pods share below their volumes.
    pub fn devices(&self) -> &Devices {
        &self.inner.devices
    }

    /// Takes back what an earlier daemon has left of volumes that no pod uses any more.
    pub async fn unstage_unused(self) {
        csi::recover(&self.inner).await;
    }

    /// Where a pod's directory is or would be.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.inner.root.join(layout::PODS).join(uid)
    }

    /// Sets up the volumes that containers of a pod use, each on its own, and tells where they lie.
    /// What stands already is kept, and data that changed is written anew. The error is that of the
    /// first volume that failed; the others are set up all the same.
    pub async fn mount(&self, pod: &Pod) -> Result<PodMounts, Error> {
        let set_ups = used(pod).map(async |volume| {
            let persistent = self.persistent(pod, volume).await?;
            let source = Source::of(volume, persistent.as_ref())?;
            self.inner.metrics.wants(spec::uid(pod), &volume.name, source.plugin());
            let mut mounted = self.set_up(pod, volume, &source).await?;
            let lasting = persistent.as_ref().map(Persistent::dir_name);
            mounted.name = lasting.unwrap_or_else(|| volume.name.clone());
            if source.outlives_pod() {
                let stand = MountedAt::new(&source, &mounted);
                self.inner.standing.note(spec::uid(pod), &volume.name, stand);
            }
            Ok((volume.name.clone(), mounted))
        });
        join_all(set_ups).await.into_iter().collect()
    }

    /// Writes the data of a pod's volumes anew, of those that hold something of what changed. The
    /// error is that of the first volume that failed; the others are refreshed all the same.
    pub async fn refresh(&self, pod: &Pod, changed: &Changed) -> Result<(), Error> {
        let sources = used(pod).filter_map(|volume| Some((volume, Source::of(volume, None).ok()?)));
        let refreshes = sources
            .filter(|(volume, source)| source.has_data() && changed.touches(pod, volume))
            .map(async |(volume, source)| self.set_up(pod, volume, &source).await.map(drop));
        join_all(refreshes).await.into_iter().collect()
    }

    /// Unmounts and removes all volumes and sub-paths that the directory of a pod holds, whatever
    /// its spec says; the rest of the directory stays. Attempts all of it and tells the first
    /// error. A pod without directory is no error.
    pub async fn unmount(&self, uid: &str) -> Result<(), Error> {
        self.take_down(uid, remove::volumes).await
    }

    /// Removes the directory of a pod, its volumes first as by [`Volumes::unmount`].
    pub async fn remove_pod(&self, uid: &str) -> Result<(), Error> {
        self.take_down(uid, remove::pod).await
    }

    /// The UIDs of all pods that have a directory, whether they should or not.
    pub async fn pods_on_disk(&self) -> Result<Vec<String>, Error> {
        let root = self.inner.root.clone();
        blocking(move || {
            let pods = if_exists(Dir::open_trusted(&root.join(layout::PODS)))?;
            let entries = pods.map_or(Ok(Vec::new()), |pods| pods.entries(usize::MAX))?;
            Ok(entries.into_iter().filter_map(|entry| entry.name.into_string().ok()).collect())
        })
        .await
    }

    /// Makes the path inside a volume available to a container, and tells where to mount it from.
    /// A path that is absent is made as a directory with the mode of the volume's root. The bind
    /// lives until [`Volumes::unmount`]; asking again for the same one gives the same.
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

    /// The content of a regular file of at most `limit` bytes in the volume that lies there. Links
    /// lead nowhere outside of it.
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

    /// Takes a pod's volumes down: first what is mounted of them, then what it is mounted from, as
    /// far as no other pod uses it, then their directories. It goes on when nobody waits for it any
    /// more.
    async fn take_down(
        &self,
        uid: &str,
        work: fn(&Dir, &std::ffi::OsStr) -> Result<(), Error>,
    ) -> Result<(), Error> {
        layout::component("pod UID", uid)?;
        let guard = self.lock(uid).write_owned().await;
        let began = Instant::now();
        let (inner, owned) = (Arc::clone(&self.inner), uid.to_owned());
        let work = panics::task(async move {
            let _guard = guard;
            let pods = inner.root.join(layout::PODS);
            in_pods(pods.clone(), owned.clone(), remove::sub_paths).await?;
            inner.take_down_persistent(&owned).await?;
            in_pods(pods, owned, work).await
        });
        let taken_down = work.await.unwrap_or(Err(Error::Interrupted));
        if taken_down.is_ok() {
            self.inner.standing.forget(uid);
        }
        self.inner.metrics.took_down(uid, began, &taken_down);
        taken_down
    }

    fn lock(&self, uid: &str) -> Arc<RwLock<()>> {
        let mut locks = self.inner.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(uid).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(RwLock::new(()));
        locks.insert(uid.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// The volumes of a pod that are to be set up: those that no container uses stand in the way of
/// nothing, and an image is mounted by the runtime, straight into the container.
pub fn used(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let all = pod.spec.iter().flat_map(|own| {
        let volumes = own.volumes.iter().flatten();
        volumes.filter(|volume| spec::uses_volume(own, &volume.name))
    });
    all.filter(|volume| volume.image.is_none())
}

/// Works on a pod's directory in that of all pods. Without either there is nothing to do.
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

/// Runs file work where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    panics::blocking(work).await.unwrap_or(Err(Error::Interrupted))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
