//! The source of a pod's volume.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource,
    ProjectedVolumeSource, SecretVolumeSource, Volume,
};

use crate::error::{self, Error};
use crate::kind::kind_of;
use crate::metrics::Plugin;
use crate::persistent::{Persistent, REMOVED};
use crate::stats::CsiVolume;

/// The supported volume types.
pub(super) enum Source<'a> {
    EmptyDir(&'a EmptyDirVolumeSource),
    HostPath(&'a HostPathVolumeSource),
    ConfigMap(&'a ConfigMapVolumeSource),
    Secret(&'a SecretVolumeSource),
    DownwardApi(&'a DownwardAPIVolumeSource),
    Projected(&'a ProjectedVolumeSource),
    /// A persistent volume, through a claim or inline.
    Persistent(&'a Persistent),
}

impl<'a> Source<'a> {
    /// The source of a volume; `persistent` is the persistent volume, if it is one.
    pub(super) fn of(
        volume: &'a Volume,
        persistent: Option<&'a Persistent>,
    ) -> Result<Self, Error> {
        if volume.git_repo.is_some() {
            return Err(Error::GitRepo.of_volume(error::SET_UP, &volume.name));
        }
        let source = persistent
            .map(Self::Persistent)
            .or(volume.empty_dir.as_ref().map(Self::EmptyDir))
            .or(volume.host_path.as_ref().map(Self::HostPath))
            .or(volume.config_map.as_ref().map(Self::ConfigMap))
            .or(volume.secret.as_ref().map(Self::Secret))
            .or(volume.downward_api.as_ref().map(Self::DownwardApi))
            .or(volume.projected.as_ref().map(Self::Projected));
        source.ok_or_else(|| match kind_of(volume) {
            kind if REMOVED.contains(&kind.as_str()) => Error::no_plugin(&volume.name),
            kind => Error::Unsupported { volume: volume.name.clone(), kind },
        })
    }

    /// The plugin, for metrics.
    pub(super) fn plugin(&self) -> Plugin {
        let name = match self {
            Self::EmptyDir(_) => "kubernetes.io/empty-dir",
            Self::HostPath(_) => "kubernetes.io/host-path",
            Self::ConfigMap(_) => "kubernetes.io/configmap",
            Self::Secret(_) => "kubernetes.io/secret",
            Self::DownwardApi(_) => "kubernetes.io/downward-api",
            Self::Projected(_) => "kubernetes.io/projected",
            Self::Persistent(persistent) => persistent.plugin(),
        };
        Plugin { name, migrated: matches!(self, Self::Persistent(own) if own.migrated) }
    }

    /// Whether volume stats are reported: for persistent volumes but host paths.
    pub(super) fn has_stats(&self) -> bool {
        matches!(self, Self::Persistent(persistent) if !persistent.is_host_path())
    }

    /// The CSI volume, if it is one.
    pub(super) fn csi_volume(&self) -> Option<CsiVolume> {
        match self {
            Self::Persistent(persistent) => persistent.csi_volume(),
            _ => None,
        }
    }

    /// Whether its content is written by the node and can change.
    pub(super) fn has_data(&self) -> bool {
        !matches!(self, Self::EmptyDir(_) | Self::HostPath(_) | Self::Persistent(_))
    }
}
