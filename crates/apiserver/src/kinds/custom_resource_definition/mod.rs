//! CustomResourceDefinition: the kind itself. What a definition makes of the objects that it defines is
//! in `custom`; how it is brought into effect in `tasks::definitions`.
//!
//! Current limitations: defaults are checked by the schema alone, and not as parts of an object.

mod rules;
mod schemas;
pub(crate) mod v1beta1;

use serde_json::{Map, Value, json};

use super::printers::{NAME, Printer, name, string};
use super::{Kind, Strategy};
use crate::api_types::{Resource, grouped, status_of};
use crate::object::{child_mut, metadata_mut};
use crate::schema::value::{default, default_absent, is_zero, items, items_mut, map_mut, text};

pub(crate) const GROUP: &str = "apiextensions.k8s.io";
pub(crate) const PLURAL: &str = "customresourcedefinitions";
/// What keeps a definition until its objects are gone.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// The annotation by which the community approves of definitions in its groups.
pub(crate) const APPROVAL: &str = "api-approved.kubernetes.io";

static PRINTER: Printer = Printer::new(&[NAME, string("Created At")], |definition, _| {
    vec![name(definition), definition["metadata"]["creationTimestamp"].clone()]
});

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        subresources: &[status_of(GROUP, "CustomResourceDefinition")],
        storage: "apiextensions.k8s.io/customresourcedefinitions",
        counts_generation: true,
        ..grouped(GROUP, PLURAL, "customresourcedefinition", "CustomResourceDefinition")
    },
    strategy: Strategy {
        default: set_defaults,
        prepare_create: begin,
        prepare_update: |new, _| store_version(new),
        validate: rules::check,
        validate_status: |definition, _, causes| rules::names_of_status(definition, causes),
        printer: &PRINTER,
        deletion: super::Deletion::Definition,
        versioned_updates: true,
        ..Strategy::PLAIN
    },
};

fn set_defaults(definition: &mut Map<String, Value>) {
    if let Some(spec) = map_mut(definition, "spec") {
        if let Some(names) = map_mut(spec, "names") {
            let kind = names.get("kind").map_or("", text).to_owned();
            default(names, "singular", kind.to_lowercase());
            if !kind.is_empty() {
                default(names, "listKind", format!("{kind}List"));
            }
        }
        default_absent(spec, "conversion", json!({"strategy": "None"}));
        let service = map_mut(spec, "conversion")
            .and_then(|conversion| map_mut(conversion, "webhook"))
            .and_then(|webhook| map_mut(webhook, "clientConfig"))
            .and_then(|config| map_mut(config, "service"));
        if let Some(service) = service {
            default_absent(service, "port", 443);
        }
        for column in items_mut(spec.get_mut("versions"))
            .flat_map(|version| items_mut(version.get_mut("additionalPrinterColumns")))
        {
            if column.get("priority").is_some_and(is_zero) {
                column.remove("priority");
            }
        }
    }
}

fn begin(definition: &mut Map<String, Value>) {
    let status = json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": [], "storedVersions": []});
    definition.insert("status".into(), status);
    store_version(definition);
}

/// The version in which objects are stored from now on is one that objects are stored in.
fn store_version(definition: &mut Map<String, Value>) {
    let versions = definition.get("spec").map_or(&[][..], |spec| items(&spec["versions"]));
    let Some(stored) = versions.iter().find(|version| version["storage"] == true) else { return };
    let stored = stored["name"].clone();
    let Some(status) = map_mut(definition, "status") else { return };
    if let Value::Array(known) = status.entry("storedVersions").or_insert_with(|| json!([]))
        && !known.contains(&stored)
    {
        known.push(stored);
    }
}

/// Whether the certificates by which a definition's webhook is known can be used.
pub(crate) fn has_valid_ca_bundle(definition: &Value) -> bool {
    rules::ca_bundle_error(&definition["spec"]).is_none()
}

/// A definition whose deletion begins: it stays until its objects are gone.
pub(crate) fn begin_deletion(current: &Value, now: &str) -> Value {
    let mut new = current.clone();
    let metadata = metadata_mut(&mut new);
    metadata.insert("deletionTimestamp".into(), now.into());
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(finalizers) = finalizers
        && !finalizers.iter().any(|finalizer| finalizer == FINALIZER)
    {
        finalizers.push(FINALIZER.into());
    }
    let why =
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(&mut new, ("Terminating", "True", "InstanceDeletionPending", why), now);
    new
}

/// Sets a condition: type, status, reason and message.
pub(crate) fn set_condition(
    definition: &mut Value,
    (kind, status, reason, message): (&str, &str, &str, &str),
    now: &str,
) {
    let map = child_mut(definition, "status");
    let conditions = map.entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Value::Array(conditions) = conditions else { return };
    let known = conditions.iter_mut().find(|condition| condition["type"] == kind);
    let since = match &known {
        Some(known) if known["status"] == status => known["lastTransitionTime"].clone(),
        _ => now.into(),
    };
    let condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since,
    });
    match known {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}

/// Whether a condition has this status.
pub(crate) fn has_condition(definition: &Value, kind: &str, status: &str) -> bool {
    let conditions = items(&definition["status"]["conditions"]);
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == status)
}

/// Whether the group is the community's, which has to approve of its kinds.
pub(crate) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    })
}

/// What the annotation says: whether it is approved, the reason of the condition, and the message.
pub(crate) fn approval(definition: &Value) -> (bool, &'static str, String) {
    let given = text(&definition["metadata"]["annotations"][APPROVAL]);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let is_url = given.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/')
    });
    match given {
        "" => (
            false,
            "MissingAnnotation",
            format!("protected groups must have approval annotation {APPROVAL:?}, {see}"),
        ),
        given if given.starts_with("unapproved") => {
            (false, "UnapprovedAnnotation", format!("not approved: {given:?}"))
        }
        given if is_url => (true, "ApprovedAnnotation", format!("approved in {given}")),
        _ => (
            false,
            "InvalidAnnotation",
            format!(
                "protected groups must have approval annotation {APPROVAL:?} with either a URL or a \
                 reason starting with \"unapproved\", {see}"
            ),
        ),
    }
}
