//! Defaults of volumes, claims, and the kinds of storage.k8s.io.

use serde_json::{Map, Value, json};

use crate::schema::value::{default, default_absent, map_mut};

pub(in crate::kinds) fn volume(volume: &mut Map<String, Value>) {
    status(volume);
    let Some(spec) = map_mut(volume, "spec") else { return };
    default(spec, "persistentVolumeReclaimPolicy", "Retain");
    default_absent(spec, "volumeMode", "Filesystem");
    source(spec);
}

pub(in crate::kinds) fn claim(claim: &mut Map<String, Value>) {
    status(claim);
    if let Some(spec) = map_mut(claim, "spec") {
        claim_spec(spec);
    }
}

/// The spec of a claim, or of the template of one.
pub(in crate::kinds) fn claim_spec(spec: &mut Map<String, Value>) {
    default_absent(spec, "volumeMode", "Filesystem");
}

/// A new claim is pending.
fn status(object: &mut Map<String, Value>) {
    let status = object.entry("status").or_insert_with(|| json!({}));
    if let Some(status) = status.as_object_mut() {
        default(status, "phase", "Pending");
    }
}

/// The source of a volume, in a pod or of its own.
pub(in crate::kinds) fn source(volume: &mut Map<String, Value>) {
    if let Some(path) = map_mut(volume, "hostPath") {
        default_absent(path, "type", "");
    }
    if let Some(iscsi) = map_mut(volume, "iscsi") {
        default(iscsi, "iscsiInterface", "default");
    }
}

pub(in crate::kinds) fn class(class: &mut Map<String, Value>) {
    default_absent(class, "reclaimPolicy", "Delete");
    default_absent(class, "volumeBindingMode", "Immediate");
}

pub(in crate::kinds) fn driver(driver: &mut Map<String, Value>) {
    let spec = driver.entry("spec").or_insert_with(|| json!({}));
    let Some(spec) = spec.as_object_mut() else { return };
    default_absent(spec, "attachRequired", true);
    for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
        default_absent(spec, field, false);
    }
    default_absent(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    default(spec, "volumeLifecycleModes", json!(["Persistent"]));
}
