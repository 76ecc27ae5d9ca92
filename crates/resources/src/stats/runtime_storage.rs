//! The file systems that pods live on: the node's own, and those that the runtime names.

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
use super::{PATIENCE, PLACES_AGE, Stats};

/// Where the runtime keeps images, and what containers write over them.
pub(super) struct RuntimeStorage {
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

impl Stats {
    /// The file systems that pods live on.
    pub async fn file_systems(&self, max_age: Duration) -> Result<Arc<FileSystems>, Error> {
        let stats = self.clone();
        self.shared
            .file_systems
            .get(max_age, || async move { stats.read_file_systems().await })
            .await
    }

    /// What the runtime says of its file systems, asked for again on those terms.
    pub async fn ask_runtime(&self, terms: Freshness) {
        self.places(terms).await;
    }

    async fn places(&self, terms: Freshness) -> Option<Arc<RuntimeStorage>> {
        let runtime = self.shared.runtime.clone();
        let read = || {
            let told = find_places(runtime);
            told.inspect_err(|error| debug!(%error, "the runtime's disks are not known"))
        };
        self.shared.places.known(terms, read).await
    }

    async fn read_file_systems(&self) -> Result<FileSystems, Error> {
        // They stay where they are, also while it is away.
        let terms = Freshness { renewed: PLACES_AGE, good: Duration::MAX, patience: PATIENCE };
        let places = self.places(terms).await;
        let node = self.shared.root_dir.clone();
        cached::blocking(move || {
            let runtime = places.map(|places| {
                let images = file_system(&places.images)?;
                let containers = file_system(&places.containers)?;
                io::Result::Ok(RuntimeFileSystems { images, containers, used: places.used })
            });
            Ok(FileSystems { node: file_system(&node)?, runtime: runtime.transpose()? })
        })
        .await
    }
}

async fn find_places(runtime: Runtime) -> Result<RuntimeStorage, Error> {
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
    Ok(RuntimeStorage { images, containers, used })
}

/// The file system of a path, which the error names.
fn file_system(path: &Path) -> io::Result<FileSystem> {
    FileSystem::of(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
