//! CSI migration: in-tree volumes are translated to volumes of CSI drivers.

use std::fmt::Display;

use k8s_openapi::api::core::v1::{PersistentVolume, Volume};
use longshore_json::decode::decode_value;
use longshore_migration::{Error, inline, persistent};
use serde::Serialize;
use serde_json::Value;

use super::ClaimError;

/// A translated PersistentVolume; `None`: its type is not migrated.
pub(super) fn of_claim(volume: &PersistentVolume) -> Result<Option<PersistentVolume>, ClaimError> {
    translate(volume, persistent)
}

/// The same for an inline volume of a pod in that namespace.
pub(crate) fn of_pod(
    volume: &Volume,
    namespace: &str,
) -> Result<Option<PersistentVolume>, ClaimError> {
    translate(volume, |volume| inline(volume, namespace))
}

fn translate(
    volume: &impl Serialize,
    rule: impl FnOnce(&Value) -> Result<Option<Value>, Error>,
) -> Result<Option<PersistentVolume>, ClaimError> {
    fn malformed(error: impl Display) -> ClaimError {
        ClaimError::NotMigrated(error.to_string())
    }
    let volume = serde_json::to_value(volume).map_err(malformed)?;
    let translated = rule(&volume).map_err(malformed)?;
    translated.map(|volume| decode_value(&volume).map_err(malformed)).transpose()
}
