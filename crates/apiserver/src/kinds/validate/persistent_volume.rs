//! Rules for persistent volumes, also for those that a volume attachment carries within.

use serde_json::Value;

use super::claim::{VOLUME_MODES, access_modes, class, positive};
use super::{immutable, one_of, scheduling, storage, supported, volume};
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::value::{entries, is_zero, items, same, text};

const RECLAIM_POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];
/// What a volume's spec has beside its source.
const PLAIN_FIELDS: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];
const SECRETS: [&str; 4] = [
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
    "nodePublishSecretRef",
    "nodeExpandSecretRef",
];

pub(in crate::kinds) fn volume(volume: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("spec");
    let spec = &volume["spec"];
    modes(&path, spec, causes);
    capacity(&path.child("capacity"), &spec["capacity"], causes);
    let policy = &spec["persistentVolumeReclaimPolicy"];
    if !is_zero(policy) {
        one_of(&path.child("persistentVolumeReclaimPolicy"), policy, &RECLAIM_POLICIES, causes);
    }
    affinity(&path.child("nodeAffinity"), &spec["nodeAffinity"], causes);
    source(&path, text(&volume["metadata"]["name"]), spec, causes);
    let host_path = text(&spec["hostPath"]["path"]);
    let is_root = !host_path.is_empty() && host_path.split('/').all(|p| matches!(p, "" | "."));
    if is_root && policy == "Recycle" {
        causes.forbidden(
            &path.child("persistentVolumeReclaimPolicy"),
            "may not be 'recycle' for a hostPath mount of '/'",
        );
    }
    class(&path.child("storageClassName"), &spec["storageClassName"], causes);
    if !spec["volumeMode"].is_null() {
        supported(&path.child("volumeMode"), &spec["volumeMode"], &VOLUME_MODES, causes);
    }
    attributes_class(&path, spec, causes);
    if let Some(old) = old {
        update(spec, &old["spec"], causes);
    }
}

/// The inline volume spec of an attachment, which must be CSI without a claim.
pub(in crate::kinds) fn inline(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    const CONTEXT: &str = "in the context of inline volumes";
    for field in ["claimRef", "capacity", "storageClassName"] {
        if !is_zero(&spec[field]) {
            causes.forbidden(&path.child(field), format!("may not be specified {CONTEXT}"));
        }
    }
    if spec["csi"].is_null() {
        causes.required(&path.child("csi"), &format!("has to be specified {CONTEXT}"));
    }
    modes(path, spec, causes);
    for (field, only) in [("persistentVolumeReclaimPolicy", "Retain"), ("volumeMode", "Filesystem")]
    {
        if !is_zero(&spec[field]) && spec[field] != only {
            causes.forbidden(&path.child(field), format!("may only be {only} {CONTEXT}"));
        }
    }
    affinity(&path.child("nodeAffinity"), &spec["nodeAffinity"], causes);
    source(path, "", spec, causes);
}

fn modes(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let path = path.child("accessModes");
    if items(&spec["accessModes"]).is_empty() {
        causes.required(&path, "");
    }
    access_modes(&path, &spec["accessModes"], causes);
}

fn capacity(path: &Path<'_>, capacity: &Value, causes: &mut Causes) {
    if is_zero(capacity) {
        causes.required(path, "");
    }
    if capacity["storage"].is_null() || entries(capacity).count() > 1 {
        causes.not_supported(path, capacity, &["storage"]);
    }
    for (name, amount) in entries(capacity) {
        positive(&path.key(name), amount, causes);
    }
}

fn affinity(path: &Path<'_>, affinity: &Value, causes: &mut Causes) {
    if affinity.is_null() {
        return;
    }
    let path = path.child("required");
    let required = &affinity["required"];
    if required.is_null() {
        return causes.required(&path, "must specify required node constraints");
    }
    scheduling::node_selector(&path, required, causes);
}

fn source(path: &Path<'_>, name: &str, spec: &Value, causes: &mut Causes) {
    let given = entries(spec)
        .filter(|(field, value)| !PLAIN_FIELDS.contains(&field.as_str()) && !value.is_null());
    let mut any = false;
    for (kind, source) in given {
        let path = path.child(kind);
        if any {
            causes.forbidden(&path, "may not specify more than 1 volume type");
            continue;
        }
        any = true;
        match kind.as_str() {
            "hostPath" => volume::host_path(&path, source, causes),
            "nfs" => volume::nfs(&path, source, causes),
            "iscsi" => iscsi(&path, name, source, causes),
            "csi" => csi(&path, source, causes),
            "local" => {
                volume::path(&path.child("path"), &source["path"], causes);
                if spec["nodeAffinity"].is_null() {
                    let affinity = Path::root("spec");
                    let affinity = affinity.child("nodeAffinity");
                    causes.required(&affinity, "Local volume requires node affinity");
                }
            }
            _ => {}
        }
    }
    if !any {
        causes.required(path, "must specify a volume type");
    }
}

fn iscsi(path: &Path<'_>, name: &str, source: &Value, causes: &mut Causes) {
    let portal = text(&source["targetPortal"]);
    if !source["initiatorName"].is_null() && name.len() + 1 + portal.len() > 64 {
        let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters \
                   if iscsi.initiatorName is specified.";
        causes.invalid(&path.child("targetportal"), portal, why);
    }
    volume::iscsi(path, source, causes);
}

fn csi(path: &Path<'_>, source: &Value, causes: &mut Causes) {
    storage::driver_name(&path.child("driver"), text(&source["driver"]), causes);
    if text(&source["volumeHandle"]).is_empty() {
        causes.required(&path.child("volumeHandle"), "");
    }
    for field in SECRETS.iter().filter(|field| !source[**field].is_null()) {
        let path = path.child(field);
        for (part, rule) in [
            ("name", names::dns_subdomain as fn(&str) -> Vec<String>),
            ("namespace", names::dns_label),
        ] {
            match text(&source[*field][part]) {
                "" => causes.required(&path.child(part), ""),
                given => causes.each(&path.child(part), given, rule(given)),
            }
        }
    }
}

fn attributes_class(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let name = &spec["volumeAttributesClassName"];
    if name.is_null() {
        return;
    }
    let field = path.child("volumeAttributesClassName");
    if text(name).is_empty() {
        causes.required(&field, "an empty string is disallowed");
    }
    class(&field, name, causes);
    if spec["csi"].is_null() {
        let why = "has to be specified when using volumeAttributesClassName";
        causes.required(&path.child("csi"), why);
    }
}

/// Where the data is stays as it is; a secret for expanding it may be added.
fn update(spec: &Value, old: &Value, causes: &mut Causes) {
    let path = Path::root("spec");
    let only_source = |spec: &Value| -> Value {
        let fields = entries(spec).filter(|(field, _)| !PLAIN_FIELDS.contains(&field.as_str()));
        fields.map(|(field, value)| (field.clone(), value.clone())).collect()
    };
    let (mut new_source, old_source) = (only_source(spec), only_source(old));
    if old_source["csi"]["controllerExpandSecretRef"].is_null()
        && let Some(csi) = new_source.get_mut("csi").and_then(Value::as_object_mut)
    {
        csi.remove("controllerExpandSecretRef");
    }
    if !same(&new_source, &old_source) {
        causes.forbidden(
            &path.child("persistentvolumesource"),
            "spec.persistentvolumesource is immutable after creation",
        );
    }
    immutable(&Path::root("volumeMode"), &spec["volumeMode"], &old["volumeMode"], causes);
    if !old["nodeAffinity"].is_null() {
        let (new, old) = (&spec["nodeAffinity"], &old["nodeAffinity"]);
        if !same(new, old) {
            let why = "field is immutable, except for updating from beta label to GA";
            causes.invalid(&Path::root("nodeAffinity"), new, why);
        }
    }
    if spec["volumeAttributesClassName"].is_null() && !old["volumeAttributesClassName"].is_null() {
        let why = "update from non-nil value to nil is forbidden";
        causes.forbidden(&path.child("volumeAttributesClassName"), why);
    }
}
