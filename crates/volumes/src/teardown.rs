//! Tears down persistent volumes of pods. They are found by the pod's directory, so that it does
//! not matter which daemon has set them up.

use std::sync::Arc;

use futures::future::join_all;
use tracing::warn;

use crate::error::{Error, FirstError};
use crate::host::blocking;
use crate::layout::{self, ReconstructedVolume};
use crate::persistent::{Disk, FibreDisk};
use crate::state::State;
use crate::{csi, flex, local, nfs, shared_disk};

impl State {
    /// Attempts all of them and returns the first error.
    pub(super) async fn take_down_persistent(self: &Arc<Self>, uid: &str) -> Result<(), Error> {
        let (root, owned) = (self.root.clone(), uid.to_owned());
        let volume = blocking(move || ReconstructedVolume::of_pod(&root, &owned)).await?;
        let mut errors = FirstError::default();
        for outcome in join_all(volume.iter().map(|volume| self.take_one_down(uid, volume))).await {
            errors.note(outcome);
        }
        errors.result()?;
        // Devices of volumes that were not set up completely.
        self.devices.forget(uid);
        Ok(())
    }

    /// Forgets the projects of emptyDir volumes that are gone.
    pub(super) async fn prune_projects(&self) {
        let Some(projects) = self.projects.clone() else { return };
        let pruned = blocking(move || {
            projects.prune().map_err(|error| Error::io("write projects to", "/etc".as_ref(), error))
        });
        if let Err(error) = pruned.await {
            warn!(%error, "projects of volumes that are gone are kept");
        }
    }

    async fn take_one_down(
        self: &Arc<Self>,
        uid: &str,
        volume: &ReconstructedVolume,
    ) -> Result<(), Error> {
        match volume.plugin.as_str() {
            layout::LOCAL => local::take_down(self, uid, volume).await,
            layout::NFS => nfs::take_down(self, uid, volume).await,
            layout::ISCSI => shared_disk::take_down::<Disk>(self, uid, volume).await,
            layout::FC => shared_disk::take_down::<FibreDisk>(self, uid, volume).await,
            layout::CSI => csi::take_down(self, uid, volume).await,
            _ if flex::is_of_driver(volume) => flex::take_down(self, uid, volume).await,
            // Ephemeral volumes, or unknown plugins, which are left alone.
            _ => Ok(()),
        }
    }
}
