//! PersistentVolumeClaim.

use serde_json::{Map, Value, json};

use super::{Kind, Strategy, defaults, printers, validate};
use crate::api_types::{Resource, core, status};
use crate::schema::value::map_mut;

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["pvc"],
        subresources: &[status("PersistentVolumeClaim")],
        ..core(
            "persistentvolumeclaims",
            "persistentvolumeclaim",
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
        )
    },
    strategy: Strategy {
        default: defaults::storage::claim,
        prepare_create: |claim| {
            claim.insert("status".into(), json!({"phase": "Pending"}));
            same_data_source(claim);
        },
        prepare_update: |claim, _| same_data_source(claim),
        validate: validate::claim::claim,
        validate_status: |claim, _, causes| validate::claim::status(claim, causes),
        printer: &printers::storage::CLAIMS,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

/// Where a claim's first data comes from has two fields, an old one and one that can say more:
/// what one says goes for both.
fn same_data_source(claim: &mut Map<String, Value>) {
    let Some(spec) = map_mut(claim, "spec") else { return };
    let get = |field: &str| spec.get(field).filter(|source| !source.is_null()).cloned();
    match (get("dataSource"), get("dataSourceRef")) {
        (Some(source), None) => spec.insert("dataSourceRef".into(), source),
        (None, Some(source)) if source["namespace"].is_null() => {
            spec.insert("dataSource".into(), source)
        }
        _ => None,
    };
}
