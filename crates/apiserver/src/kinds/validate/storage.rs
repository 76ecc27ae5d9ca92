//! Rules for the kinds of storage.k8s.io.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{immutable, non_negative, one_of, persistent_volume, selector, supported};
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::quantity::Quantity;
use crate::schema::value::{entries, is_zero, items, same, text};

const PARAMETERS: usize = 512;
const PARAMETERS_SIZE: usize = 256 << 10;
const ERROR_SIZE: usize = 1024;
const DRIVER_NAME: usize = 63;
const NODE_ID: usize = 256;
const FS_GROUP_POLICIES: [&str; 3] = ["File", "None", "ReadWriteOnceWithFSType"];

pub(in crate::kinds) fn storage_class(class: &Value, old: Option<&Value>, causes: &mut Causes) {
    provisioner("provisioner", &class["provisioner"], causes);
    parameters(&class["parameters"], causes);
    let policy = &class["reclaimPolicy"];
    if !is_zero(policy) {
        one_of(&Path::root("reclaimPolicy"), policy, &["Delete", "Retain"], causes);
    }
    let modes = ["Immediate", "WaitForFirstConsumer"];
    supported(&Path::root("volumeBindingMode"), &class["volumeBindingMode"], &modes, causes);
    let list = Path::root("allowedTopologies");
    let mut seen = BTreeSet::new();
    for (i, term) in items(&class["allowedTopologies"]).iter().enumerate() {
        let path = list.index(i);
        topology(&path, term, causes);
        if !seen.insert(term.to_string()) {
            causes.duplicate(&path.child("matchLabelExpressions"), "", "");
        }
    }
    if let Some(old) = old {
        for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            immutable(&Path::root(field), &class[field], &old[field], causes);
        }
    }
}

fn topology(path: &Path<'_>, term: &Value, causes: &mut Causes) {
    let list = path.child("matchLabelExpressions");
    if items(&term["matchLabelExpressions"]).is_empty() {
        // As upstream has it, whose set of terms begins with the empty one.
        causes.duplicate(&list, "", "");
    }
    let mut keys = BTreeSet::new();
    for (i, expression) in items(&term["matchLabelExpressions"]).iter().enumerate() {
        let path = list.index(i);
        let key = text(&expression["key"]);
        causes.each(&path.child("key"), key, names::qualified(key));
        if !keys.insert(key) {
            causes.duplicate(&path.child("key"), key, "");
        }
        let values_path = path.child("values");
        let values = items(&expression["values"]);
        if values.is_empty() {
            causes.required(&values_path, "");
        }
        let mut seen = BTreeSet::new();
        for (j, value) in values.iter().map(text).enumerate() {
            if !seen.insert(value) {
                causes.duplicate(&values_path.index(j), value, "");
            }
        }
    }
}

/// The name of a provisioner.
fn provisioner(field: &str, name: &Value, causes: &mut Causes) {
    let path = Path::root(field);
    match text(name) {
        "" => causes.required(&path, ""),
        name => {
            let lower = name.to_lowercase();
            causes.each(&path, &lower, names::qualified(&lower));
        }
    }
}

fn parameters(parameters: &Value, causes: &mut Causes) {
    let path = Path::root("parameters");
    if entries(parameters).count() > PARAMETERS {
        return causes.too_long(&path, PARAMETERS);
    }
    if entries(parameters).any(|(key, _)| key.is_empty()) {
        causes.invalid(&path, "", "field can not be empty.");
    }
    if size(parameters) > PARAMETERS_SIZE {
        causes.too_long(&path, PARAMETERS_SIZE);
    }
}

fn size(map: &Value) -> usize {
    entries(map).map(|(key, value)| key.len() + text(value).len()).sum()
}

pub(in crate::kinds) fn attachment(attachment: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("spec");
    let spec = &attachment["spec"];
    driver_name(&path.child("attacher"), text(&spec["attacher"]), causes);
    let source_path = path.child("source");
    let source = &spec["source"];
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (source["inlineVolumeSpec"].is_null(), source["persistentVolumeName"].is_null()) {
        (true, true) => causes.required(&source_path, ONE),
        (false, false) => causes.forbidden(&source_path, ONE),
        (false, true) => {
            let path = source_path.child("inlineVolumeSpec");
            persistent_volume::inline(&path, &source["inlineVolumeSpec"], causes);
        }
        (true, false) => {
            let path = source_path.child("persistentVolumeName");
            let name = text(&source["persistentVolumeName"]);
            if name.is_empty() {
                causes.required(&path, "must specify non empty persistentVolumeName");
            }
            causes.each(&path, name, names::dns_subdomain(name));
        }
    }
    let node = text(&spec["nodeName"]);
    causes.each(&path.child("nodeName"), node, names::dns_subdomain(node));
    if let Some(old) = old {
        immutable(&path, spec, &old["spec"], causes);
    }
}

pub(in crate::kinds) fn attachment_status(attachment: &Value, causes: &mut Causes) {
    let path = Path::root("status");
    let status = &attachment["status"];
    if size(&status["attachmentMetadata"]) > PARAMETERS_SIZE {
        causes.too_long(&path.child("attachmentMetadata"), PARAMETERS_SIZE);
    }
    for field in ["attachError", "detachError"] {
        let path = path.child(field);
        if text(&status[field]["message"]).len() > ERROR_SIZE {
            causes.too_long(&path.child("message"), ERROR_SIZE);
        }
        non_negative(&path.child("errorCode"), &status[field]["errorCode"], causes);
    }
}

/// The name of a CSI driver, in any case of letters.
pub(in crate::kinds) fn driver_name(path: &Path<'_>, name: &str, causes: &mut Causes) {
    if name.is_empty() {
        return causes.required(path, "");
    }
    if name.len() > DRIVER_NAME {
        causes.too_long(path, DRIVER_NAME);
    }
    causes.each(path, name, names::dns_subdomain(&name.to_lowercase()));
}

pub(in crate::kinds) fn csi_node(node: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("spec");
    let list = path.child("drivers");
    let drivers = items(&node["spec"]["drivers"]);
    let mut seen = BTreeSet::new();
    for (i, driver) in drivers.iter().enumerate() {
        let path = list.index(i);
        let name = text(&driver["name"]);
        driver_name(&path.child("name"), name, causes);
        if !seen.insert(name) {
            causes.duplicate(&path.child("name"), name, "");
        }
        let id = text(&driver["nodeID"]);
        if id.is_empty() {
            causes.required(&path.child("nodeID"), "");
        }
        if id.len() > NODE_ID {
            let why = format!("must be {NODE_ID} characters or less");
            causes.invalid(&path.child("nodeID"), id, why);
        }
        let allocatable = path.child("allocatable");
        non_negative(&allocatable.child("count"), &driver["allocatable"]["count"], causes);
        let mut keys = BTreeSet::new();
        for key in items(&driver["topologyKeys"]).iter().map(text) {
            if key.is_empty() {
                causes.required(&path, "");
            }
            causes.each(&path, key, names::qualified(key));
            if !keys.insert(key) {
                causes.duplicate(&path, key, "");
            }
        }
    }
    let Some(old) = old else { return };
    // What a driver said of itself stays; how much it can take may change.
    let but_count = |driver: &Value| -> Value {
        entries(driver)
            .filter(|(field, _)| *field != "allocatable")
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect()
    };
    for was in items(&old["spec"]["drivers"]) {
        let same_name = |driver: &&Value| driver["name"] == was["name"];
        if let Some(now) = drivers.iter().find(same_name)
            && !same(&but_count(now), &but_count(was))
        {
            causes.invalid(&list, now, "field is immutable");
        }
    }
}

pub(in crate::kinds) fn csi_driver(driver: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("spec");
    let spec = &driver["spec"];
    for (field, name) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
        ("seLinuxMount", "seLinuxMount"),
    ] {
        if spec[field].is_null() {
            causes.required(&path.child(name), "");
        }
    }
    if !spec["fsGroupPolicy"].is_null() {
        supported(&path.child("fsGroupPolicy"), &spec["fsGroupPolicy"], &FS_GROUP_POLICIES, causes);
    }
    token_requests(&path.child("tokenRequests"), &spec["tokenRequests"], causes);
    for mode in items(&spec["volumeLifecycleModes"]) {
        let supported = ["Persistent", "Ephemeral"];
        if !supported.contains(&text(mode)) {
            causes.not_supported(&path.child("volumeLifecycleModes"), mode, &supported);
        }
    }
    let period = &spec["nodeAllocatableUpdatePeriodSeconds"];
    if period.as_i64().is_some_and(|seconds| seconds < 10) {
        let path = path.child("nodeAllocatableUpdatePeriodSeconds");
        causes.invalid(&path, period, "must be greater than or equal to 10 seconds");
    }
    let in_secrets = &spec["serviceAccountTokenInSecrets"];
    if !in_secrets.is_null() && items(&spec["tokenRequests"]).is_empty() {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        causes.invalid(&path.child("serviceAccountTokenInSecrets"), in_secrets, why);
    }
    if let Some(old) = old {
        for (field, name) in [
            ("attachRequired", "attachedRequired"),
            ("volumeLifecycleModes", "volumeLifecycleModes"),
        ] {
            immutable(&path.child(name), &spec[field], &old["spec"][field], causes);
        }
    }
}

fn token_requests(path: &Path<'_>, requests: &Value, causes: &mut Causes) {
    let mut audiences = BTreeSet::new();
    for (i, request) in items(requests).iter().enumerate() {
        let path = path.index(i);
        let audience = text(&request["audience"]);
        if !audiences.insert(audience) {
            causes.duplicate(&path.child("audience"), audience, "");
            continue;
        }
        if let Some(seconds) = request["expirationSeconds"].as_i64() {
            super::volume::token_life(&path.child("expirationSeconds"), seconds, causes);
        }
    }
}

pub(in crate::kinds) fn capacity(capacity: &Value, old: Option<&Value>, causes: &mut Causes) {
    selector(&Path::root("nodeTopology"), &capacity["nodeTopology"], causes);
    let class = text(&capacity["storageClassName"]);
    causes.each(&Path::root("storageClassName"), class, names::dns_subdomain(class));
    let amount = &capacity["capacity"];
    if Quantity::parse(text(amount)).is_some_and(Quantity::is_negative) {
        causes.invalid(&Path::root("capacity"), amount, "must be greater than or equal to 0");
    }
    if let Some(old) = old {
        for field in ["nodeTopology", "storageClassName"] {
            immutable(&Path::root(field), &capacity[field], &old[field], causes);
        }
    }
}

pub(in crate::kinds) fn attributes_class(class: &Value, old: Option<&Value>, causes: &mut Causes) {
    if let Some(old) = old {
        for field in ["driverName", "parameters"] {
            if !same(&class[field], &old[field]) {
                let why = format!("updates to {field} are forbidden.");
                causes.forbidden(&Path::root(field), why);
            }
        }
    }
    provisioner("driverName", &class["driverName"], causes);
    parameters(&class["parameters"], causes);
    if is_zero(&class["parameters"]) {
        let why = "must contain at least one key/value pair";
        causes.required(&Path::root("parameters"), why);
    }
}
