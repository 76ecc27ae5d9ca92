//! The kinds of storage.k8s.io.

use serde_json::{Value, json};

use super::{Kind, Strategy, defaults, printers, validate};
use crate::api_types::{Resource, grouped, status_of};

pub(super) static DRIVER: Kind = Kind {
    resource: Resource {
        counts_generation: true,
        namespaced: false,
        ..grouped("storage.k8s.io", "csidrivers", "csidriver", "CSIDriver")
    },
    strategy: Strategy {
        default: defaults::storage::driver,
        validate: validate::storage::csi_driver,
        printer: &printers::storage::DRIVERS,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

pub(super) static NODE: Kind = Kind {
    resource: Resource {
        namespaced: false,
        ..grouped("storage.k8s.io", "csinodes", "csinode", "CSINode")
    },
    strategy: Strategy {
        validate: validate::storage::csi_node,
        printer: &printers::storage::NODES,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

pub(super) static CAPACITY: Kind = Kind {
    resource: grouped(
        "storage.k8s.io",
        "csistoragecapacities",
        "csistoragecapacity",
        "CSIStorageCapacity",
    ),
    strategy: Strategy {
        validate: validate::storage::capacity,
        printer: &printers::storage::CAPACITIES,
        ..Strategy::PLAIN
    },
};

pub(super) static CLASS: Kind = Kind {
    resource: Resource {
        short_names: &["sc"],
        namespaced: false,
        ..grouped("storage.k8s.io", "storageclasses", "storageclass", "StorageClass")
    },
    strategy: Strategy {
        default: defaults::storage::class,
        validate: validate::storage::storage_class,
        printer: &printers::storage::CLASSES,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

pub(super) static ATTACHMENT: Kind = Kind {
    resource: Resource {
        subresources: &[status_of("storage.k8s.io", "VolumeAttachment")],
        namespaced: false,
        ..grouped("storage.k8s.io", "volumeattachments", "volumeattachment", "VolumeAttachment")
    },
    strategy: Strategy {
        prepare_create: |attachment| {
            attachment.insert("status".into(), json!({"attached": false}));
        },
        validate: |attachment, old, causes| {
            validate::storage::attachment(attachment, old, causes);
            validate::storage::attachment_status(attachment, causes);
        },
        validate_status: |attachment, _, causes| {
            validate::storage::attachment_status(attachment, causes)
        },
        printer: &printers::storage::ATTACHMENTS,
        reset_by_status: &["metadata", "spec"],
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

pub(super) static ATTRIBUTES_CLASS: Kind = Kind {
    resource: Resource {
        short_names: &["vac"],
        namespaced: false,
        ..grouped(
            "storage.k8s.io",
            "volumeattributesclasses",
            "volumeattributesclass",
            "VolumeAttributesClass",
        )
    },
    strategy: Strategy {
        validate: validate::storage::attributes_class,
        printer: &printers::storage::ATTRIBUTES,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

/// The name of a class in an annotation, of long ago.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const IS_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// The storage class of a claim or a volume; `None` when it is not set, empty for none.
pub(crate) fn class_of(object: &Value) -> Option<&str> {
    let annotation = object["metadata"]["annotations"][BETA_CLASS].as_str();
    annotation.or_else(|| object["spec"]["storageClassName"].as_str())
}

/// Whether claims that name no class get this one.
pub(crate) fn is_default(class: &Value) -> bool {
    IS_DEFAULT.iter().any(|annotation| class["metadata"]["annotations"][*annotation] == "true")
}
