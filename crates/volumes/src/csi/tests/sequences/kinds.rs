//! Names of volumes, in pods, on the node and at the driver.

use serde_json::{Value, json};

use super::super::super::paths::inline_handle;
use super::super::world::DRIVER;
use super::{KINDS, Kind, PODS};

impl Kind {
    /// Its name in pods.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Twin => "twin",
            Self::ReadOnly => "read-only",
            Self::Generic => "generic",
            Self::Inline => "inline",
            Self::Raw => "raw",
            Self::Local => "local",
            Self::HostPath => "host-path",
        }
    }

    /// Its name on the node, which is that of its PersistentVolume, if it has one.
    pub(super) fn volume(self, uid: &str) -> String {
        match self {
            Self::Generic => format!("pod-{uid}-generic"),
            _ => self.name().to_owned(),
        }
    }

    /// Its name at the driver.
    pub(super) fn handle(self, uid: &str) -> Option<String> {
        match self {
            Self::Local | Self::HostPath => None,
            Self::Inline => Some(inline_handle(uid, self.name())),
            Self::Twin => Self::Shared.handle(uid),
            _ => Some(format!("handle-of-{}", self.volume(uid))),
        }
    }

    /// As a pod spells it.
    pub(super) fn in_pod(self) -> Value {
        let name = self.name();
        match self {
            Self::Generic => {
                json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": {}}}})
            }
            Self::Inline => json!({"name": name, "csi": {"driver": DRIVER}}),
            _ => json!({"name": name, "persistentVolumeClaim": {
                "claimName": name, "readOnly": self == Self::ReadOnly,
            }}),
        }
    }

    /// Whether fsGroup is applied to it.
    pub(super) fn is_given_to_group(self) -> bool {
        !matches!(self, Self::ReadOnly | Self::HostPath)
    }
}

/// All volumes of all pods.
pub(super) fn all_volumes() -> impl Iterator<Item = (&'static str, Kind)> {
    PODS.into_iter().flat_map(|uid| KINDS.map(|(kind, _)| (uid, kind)))
}
