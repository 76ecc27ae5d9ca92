//! A FlexVolume: the driver and its options.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    FlexPersistentVolumeSource, FlexVolumeSource, LocalObjectReference, SecretReference,
};
use serde::{Deserialize, Serialize};

/// A volume of a FlexVolume driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlexSource {
    pub(crate) driver: String,
    pub(crate) file_system: String,
    pub(crate) options: BTreeMap<String, String>,
    pub(crate) read_only: bool,
    /// Namespace (default: the pod's) and name of the secret that the driver is given.
    pub(crate) secret: Option<(Option<String>, String)>,
}

impl FlexSource {
    /// The source of a PersistentVolume.
    pub(crate) fn of_volume(source: &FlexPersistentVolumeSource) -> Self {
        let secret = |reference: &SecretReference| {
            let namespace = reference.namespace.clone().filter(|namespace| !namespace.is_empty());
            Some((namespace, reference.name.clone()?))
        };
        Self {
            driver: source.driver.clone(),
            file_system: source.fs_type.clone().unwrap_or_default(),
            options: source.options.clone().unwrap_or_default(),
            read_only: source.read_only.unwrap_or(false),
            secret: source.secret_ref.as_ref().and_then(secret),
        }
    }

    /// The source of an inline volume.
    pub(crate) fn of_pod(source: &FlexVolumeSource) -> Self {
        let secret = |reference: &LocalObjectReference| (None, reference.name.clone());
        Self {
            driver: source.driver.clone(),
            file_system: source.fs_type.clone().unwrap_or_default(),
            options: source.options.clone().unwrap_or_default(),
            read_only: source.read_only.unwrap_or(false),
            secret: source.secret_ref.as_ref().map(secret),
        }
    }
}
