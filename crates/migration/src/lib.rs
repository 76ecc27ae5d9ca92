//! Pure: volumes of the kinds that were part of Kubernetes once and that CSI drivers have taken
//! over, described as volumes of those drivers. Handles, attributes and topology are upstream's, to
//! the letter: the drivers know the volumes by them. Objects are JSON values, as the API has them.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod aws;
mod azure_disk;
mod azure_file;
mod cinder;
mod error;
mod gce;
mod kind;
mod portworx;
#[cfg(test)]
mod tests;
mod topology;
mod values;
mod vsphere;

use serde_json::{Value, json};

pub use error::Error;
use kind::{Found, Kind};

/// All of them, in the order of their plugins' names.
const KINDS: [&Kind; 7] = [
    &aws::KIND,
    &azure_disk::KIND,
    &azure_file::KIND,
    &cinder::KIND,
    &gce::KIND,
    &portworx::KIND,
    &vsphere::KIND,
];

/// The names of the plugins that served these kinds, in order.
pub fn plugins() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().map(|kind| kind.plugin)
}

/// The driver that has taken over the kind that this plugin served.
pub fn driver(plugin: &str) -> Option<&'static str> {
    KINDS.into_iter().find(|kind| kind.plugin == plugin).map(|kind| kind.driver)
}

/// The plugin that served the kind of this PersistentVolume, if a driver has taken it over.
pub fn plugin(volume: &Value) -> Option<&'static str> {
    kind_of(&volume["spec"]).map(|(kind, _)| kind.plugin)
}

/// A PersistentVolume as one of the driver that has taken its kind over; `None`: it is of another
/// kind.
pub fn persistent(volume: &Value) -> Result<Option<Value>, Error> {
    let Some((kind, source)) = kind_of(&volume["spec"]) else { return Ok(None) };
    let csi_volume = kind.describe(source, &Found::Persistent(volume))?;
    let mut translated = volume.clone();
    if let Some(spec) = translated["spec"].as_object_mut() {
        spec.remove(kind.field);
        spec.insert("csi".to_owned(), csi_volume.csi(kind.driver));
        if !csi_volume.access_modes.is_empty() {
            spec.insert("accessModes".to_owned(), json!(csi_volume.access_modes));
        }
    }
    kind.topology.apply(&mut translated);
    Ok(Some(translated))
}

/// The PersistentVolume of an inline volume of a pod in that namespace, if it is of one of
/// these kinds: its name is the same wherever a pod describes the same volume.
pub fn inline(volume: &Value, namespace: &str) -> Result<Option<Value>, Error> {
    let Some((kind, source)) = kind_of(volume) else { return Ok(None) };
    let name = volume["name"].as_str().unwrap_or_default();
    let csi_volume = kind.describe(source, &Found::Inline { name, namespace })?;
    Ok(Some(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": csi_volume.name},
        "spec": {
            "csi": csi_volume.csi(kind.driver),
            "accessModes": csi_volume.access_modes,
            "volumeMode": "Filesystem",
        },
    })))
}

/// The kind of a volume that holds its source in one of its fields, and the source.
fn kind_of(volume: &Value) -> Option<(&'static Kind, &Value)> {
    let sources = KINDS.into_iter().map(|kind| (kind, &volume[kind.field]));
    sources.into_iter().find(|(_, source)| source.is_object())
}
