//! Namespace.

use serde_json::{Map, Value, json};

use super::prepare::restore;
use super::{Deletion, Kind, Strategy, defaults, printers, validate};
use crate::api_types::{Gvk, NO_COLLECTION_DELETE, Resource, Subresource, core, status};
use crate::schema::value::{items, text};
use crate::schema::{Path, names};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["ns"],
        namespaced: false,
        verbs: NO_COLLECTION_DELETE,
        subresources: &[
            Subresource { name: "finalize", gvk: Gvk::core("Namespace"), verbs: &["update"] },
            status("Namespace"),
        ],
        fields: Some(&[("status.phase", "status.phase")]),
        ..core("namespaces", "namespace", "Namespace", "namespaces")
    },
    strategy: Strategy {
        default: defaults::namespace,
        prepare_create,
        prepare_update: |namespace, old| {
            namespace.remove("spec");
            restore(namespace, old, "spec");
        },
        validate_status: |namespace, _, causes| {
            validate::plain::namespace_status(namespace, causes)
        },
        validate: |namespace, _, causes| {
            let path = Path::root("spec");
            for finalizer in items(&namespace["spec"]["finalizers"]) {
                validate::finalizer(&path.child("finalizers"), text(finalizer), causes);
            }
        },
        name: names::dns_label,
        printer: &printers::NAMESPACES,
        deletion: Deletion::Namespace,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

fn prepare_create(namespace: &mut Map<String, Value>) {
    namespace.insert("status".into(), json!({"phase": "Active"}));
    keep_until_empty(namespace);
}

/// The finalizer that holds a namespace until its objects are gone.
fn keep_until_empty(namespace: &mut Map<String, Value>) {
    let spec = namespace.entry("spec").or_insert_with(|| json!({}));
    let Some(spec) = spec.as_object_mut() else { return };
    let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|f| f == "kubernetes")
    {
        list.push("kubernetes".into());
    }
}
