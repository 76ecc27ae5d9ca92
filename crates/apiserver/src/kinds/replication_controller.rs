//! ReplicationController.

use serde_json::json;

use super::{Kind, Strategy, defaults, printers, validate, warnings};
use crate::api_types::{Resource, SCALE, core, status};
use crate::schema::names;

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["rc"],
        categories: &["all"],
        subresources: &[SCALE, status("ReplicationController")],
        counts_generation: true,
        fields: Some(&[("status.replicas", "status.replicas")]),
        ..core(
            "replicationcontrollers",
            "replicationcontroller",
            "ReplicationController",
            "controllers",
        )
    },
    strategy: Strategy {
        default: defaults::replication_controller,
        prepare_create: |controller| {
            controller.insert("status".into(), json!({"replicas": 0}));
        },
        validate: |controller, _, causes| validate::plain::controller(controller, causes),
        validate_status: |controller, _, causes| {
            validate::plain::controller_status(controller, causes)
        },
        name: names::long_name,
        printer: &printers::CONTROLLERS,
        orphans_by_default: true,
        warnings: warnings::template,
        ..Strategy::PLAIN
    },
};
