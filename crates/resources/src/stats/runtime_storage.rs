//! The node's file system, and those of the runtime.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::TryFutureExt;
use k8s_openapi::jiff::Timestamp;
use longshore_cri::Runtime;
use longshore_machine::FileSystem;
use longshore_pod::eviction::Layout;
use longshore_pod::usage::Space;
use tracing::debug;

use super::cached::{self, Error, Freshness};
use super::{SLOW_READ_TIMEOUT, STORAGE_INFO_MAX_AGE, Stats};

/// Paths of the runtime's images and writable layers.
pub(super) struct RuntimeStorage {
    images: PathBuf,
    containers: PathBuf,
    used: RuntimeUse,
}

/// Disk usage as reported by the runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeUse {
    /// The time of the report.
    pub at: Timestamp,
    /// Images.
    pub images: Space,
    /// Writable layers; `None` if not reported separately.
    pub containers: Option<Space>,
}

/// The node's and the runtime's file systems.
#[derive(Clone, Copy, Debug)]
pub struct FileSystems {
    /// The file system of the node's root directory.
    pub node: FileSystem,
    /// The runtime's; `None` until it has reported them.
    pub runtime: Option<RuntimeFileSystems>,
}

/// The file systems of the runtime.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeFileSystems {
    /// The file system of images.
    pub images: FileSystem,
    /// The file system of writable layers.
    pub containers: FileSystem,
    /// Disk usage as reported by the runtime.
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

impl Stats {
    /// The node's and the runtime's file systems.
    pub async fn file_systems(&self, max_age: Duration) -> Result<Arc<FileSystems>, Error> {
        let stats = self.clone();
        self.shared
            .file_systems
            .get(max_age, || async move { stats.read_file_systems().await })
            .await
    }

    /// Refreshes the runtime's file system info.
    pub async fn refresh_runtime_storage(&self, freshness: Freshness) {
        self.runtime_storage(freshness).await;
    }

    async fn runtime_storage(&self, freshness: Freshness) -> Option<Arc<RuntimeStorage>> {
        let runtime = self.shared.runtime.clone();
        let read = || {
            let read = query_runtime_storage(runtime);
            read.inspect_err(|error| debug!(%error, "failed to get the runtime's file system info"))
        };
        self.shared.runtime_storage.get_or_stale(freshness, read).await
    }

    async fn read_file_systems(&self) -> Result<FileSystems, Error> {
        // The paths do not change while the runtime is unavailable.
        let freshness = Freshness {
            max_age: STORAGE_INFO_MAX_AGE,
            acceptable_age: Duration::MAX,
            timeout: SLOW_READ_TIMEOUT,
        };
        let runtime_storage = self.runtime_storage(freshness).await;
        let node = self.shared.root_dir.clone();
        cached::blocking(move || {
            let runtime = runtime_storage.map(|runtime_storage| {
                let images = file_system(&runtime_storage.images)?;
                let containers = file_system(&runtime_storage.containers)?;
                io::Result::Ok(RuntimeFileSystems {
                    images,
                    containers,
                    used: runtime_storage.used,
                })
            });
            Ok(FileSystems { node: file_system(&node)?, runtime: runtime.transpose()? })
        })
        .await
    }
}

async fn query_runtime_storage(runtime: Runtime) -> Result<RuntimeStorage, Error> {
    let answer = runtime.image_fs_info().await.map_err(Error::of)?;
    let path = |file_systems: &[longshore_cri::v1::FilesystemUsage]| {
        let first = file_systems.first()?.fs_id.as_ref()?;
        Some(PathBuf::from(&first.mountpoint)).filter(|path| path.is_absolute())
    };
    let images = path(&answer.image_filesystems)
        .ok_or_else(|| Error::of("the runtime reports no image file system"))?;
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
    Ok(RuntimeStorage { images, containers, used })
}

/// The file system of a path; errors name the path.
fn file_system(path: &Path) -> io::Result<FileSystem> {
    FileSystem::of(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
