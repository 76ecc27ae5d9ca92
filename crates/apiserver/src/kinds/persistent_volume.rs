//! PersistentVolume.

use serde_json::{Value, json};

use super::{Kind, Strategy, defaults, printers, validate};
use crate::api_types::{Resource, core, status};
use crate::object::{child_mut, now};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["pv"],
        namespaced: false,
        subresources: &[status("PersistentVolume")],
        ..core("persistentvolumes", "persistentvolume", "PersistentVolume", "persistentvolumes")
    },
    strategy: Strategy {
        default: defaults::storage::volume,
        prepare_create: |volume| {
            let now = now().to_string();
            let status = json!({"phase": "Pending", "lastPhaseTransitionTime": now});
            volume.insert("status".into(), status);
        },
        prepare_status: note_transition,
        validate: validate::persistent_volume::volume,
        printer: &printers::storage::VOLUMES,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

/// When a volume entered its phase.
pub(crate) fn note_transition(volume: &mut Value, old: &Value) {
    const TIME: &str = "lastPhaseTransitionTime";
    let was = &old["status"];
    let has_moved = volume["status"]["phase"] != was["phase"];
    let is_given = !volume["status"][TIME].is_null() && volume["status"][TIME] != was[TIME];
    let time = match (has_moved, is_given) {
        (_, true) => return,
        (true, false) => now().to_string().into(),
        (false, false) => was[TIME].clone(),
    };
    if !time.is_null() {
        child_mut(volume, "status").insert(TIME.into(), time);
    }
}
