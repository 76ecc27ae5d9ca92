//! Collects the stats of persistent volumes, from their file system or their CSI driver. Ephemeral
//! volumes are measured in `stats::disk`.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Pod, Volume};
use longshore_machine::FileSystem;
use longshore_pod::spec;

use crate::error::Error;
use crate::host::blocking;
use crate::stats::{Condition, PersistentMount, VolumeStats};
use crate::{Volumes, csi};

/// The `metric_source` of file system stats.
const FILE_SYSTEM: &str = "statfs";

impl Volumes {
    /// The mounted persistent volumes of a pod.
    pub fn persistent_mounts(&self, pod: &Pod) -> Vec<PersistentMount> {
        let persistent_mounts = self.inner.persistent_mounts.pods();
        let Some(known) = persistent_mounts.get(spec::uid(pod)) else { return Vec::new() };
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let persistent_mounts = volumes.filter_map(|volume| {
            let mount = known.get(&volume.name)?.clone();
            let (name, uid) = (volume.name.clone(), spec::uid(pod).to_owned());
            Some(PersistentMount { name, claim: claim(pod, volume), uid, mount })
        });
        persistent_mounts.collect()
    }

    /// The stats of a volume, from its CSI driver, or else from its file system. May block as long
    /// as either does not respond.
    pub async fn stats(&self, mount: &PersistentMount) -> Result<VolumeStats, Error> {
        if let Some(csi_volume) = &mount.mount.csi_volume
            && let Some(stats) = csi::stats(&self.inner, &mount.uid, csi_volume).await?
        {
            return Ok(stats);
        }
        let (path, began) = (mount.mount.path.clone(), Instant::now());
        let stats = blocking(move || {
            let stats = match path.metadata() {
                Ok(file) if file.file_type().is_block_device() => device(&path),
                _ => FileSystem::of(&path).map(VolumeStats::from),
            };
            stats.map_err(|error| Error::io("get the file system stats of", &path, error))
        });
        let stats = stats.await;
        self.inner.metrics.observe_collection(FILE_SYSTEM, began);
        stats
    }

    /// Records an event about an abnormal volume.
    pub fn warn_of_condition(&self, pod: &Pod, volume: &PersistentMount, condition: &Condition) {
        let message = format!("Volume {}: {}", volume.name, condition.message);
        self.inner.pod_events.pod(pod, true, "VolumeConditionAbnormal", &message);
    }
}

/// Of a block device only the size is known.
fn device(path: &Path) -> io::Result<VolumeStats> {
    let capacity = File::open(path)?.seek(SeekFrom::End(0))?;
    Ok(VolumeStats { capacity, ..VolumeStats::default() })
}

/// The claim of a volume, possibly of a generic ephemeral volume.
fn claim(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    let made = || format!("{}-{}", spec::name(pod), volume.name);
    named.or_else(|| volume.ephemeral.as_ref().map(|_| made()))
}
