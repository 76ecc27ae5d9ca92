//! Rules for the kinds that have few: configuration, nodes, leases, events, controllers, namespaces.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

use super::container::{self, quantity};
use super::{immutable, meta, non_negative, pod};
use crate::cidr;
use crate::schema::field::{Causes, Path, shortened};
use crate::schema::value::{entries, is_zero, items, same, text};
use crate::schema::{names, syntax_error, word};

const DATA_LIMIT: usize = 1 << 20;
const FROZEN: &str = "field is immutable when `immutable` is set";

pub(in crate::kinds) fn config_map(map: &Value, old: Option<&Value>, causes: &mut Causes) {
    let mut size = 0;
    for field in ["data", "binaryData"] {
        let path = Path::root(field);
        for (key, value) in entries(&map[field]) {
            causes.each(&path.key(key), key, names::config_key(key));
            if field == "data" && !map["binaryData"][key].is_null() {
                causes.invalid(&path.key(key), key, "duplicate of key present in binaryData");
            }
            size += if field == "data" { text(value).len() } else { decoded_len(value) };
        }
    }
    if size > DATA_LIMIT {
        causes.too_long(&Path::root(""), DATA_LIMIT);
    }
    frozen(map, old, &["data", "binaryData"], causes);
}

pub(in crate::kinds) fn secret(secret: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("data");
    let data = &secret["data"];
    let mut size = 0;
    for (key, value) in entries(data) {
        causes.each(&path.key(key), key, names::config_key(key));
        size += decoded_len(value);
    }
    if size > DATA_LIMIT {
        causes.too_long(&path, DATA_LIMIT);
    }
    let mut need = |key: &str| {
        if data[key].is_null() {
            causes.required(&path.key(key), "");
        }
    };
    match text(&secret["type"]) {
        "kubernetes.io/dockercfg" => need(".dockercfg"),
        "kubernetes.io/dockerconfigjson" => need(".dockerconfigjson"),
        "kubernetes.io/tls" => ["tls.crt", "tls.key"].into_iter().for_each(need),
        "kubernetes.io/ssh-auth" => need("ssh-privatekey"),
        "kubernetes.io/basic-auth" if data["username"].is_null() && data["password"].is_null() => {
            ["username", "password"].into_iter().for_each(need);
        }
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            if text(&secret["metadata"]["annotations"][key]).is_empty() {
                causes.required(&Path::root("metadata").child("annotations").key(key), "");
            }
        }
        _ => {}
    }
    for key in [".dockercfg", ".dockerconfigjson"] {
        let wanted =
            text(&secret["type"]).strip_prefix("kubernetes.io/").is_some_and(|t| t == &key[1..]);
        if let Some(why) = fault_of_object(&data[key]).filter(|_| wanted && !data[key].is_null()) {
            causes.invalid(&path.key(key), "<secret contents redacted>", why);
        }
    }
    if let Some(old) = old {
        immutable(&Path::root("type"), &secret["type"], &old["type"], causes);
    }
    frozen(secret, old, &["data"], causes);
}

/// What is wrong with a value that is to be a JSON object, or null.
fn fault_of_object(base64: &Value) -> Option<String> {
    let bytes = STANDARD.decode(text(base64)).unwrap_or_default();
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(_) | Value::Null) => None,
        Ok(other) => Some(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            word(&other)
        )),
        Err(error) => Some(syntax_error(&bytes).unwrap_or_else(|| error.to_string())),
    }
}

fn decoded_len(base64: &Value) -> usize {
    let text = text(base64);
    text.len() / 4 * 3
        - text.bytes().rev().take_while(|b| *b == b'=').count().min(text.len() / 4 * 3)
}

/// `immutable: true` can neither be taken back nor worked around.
fn frozen(object: &Value, old: Option<&Value>, fields: &[&str], causes: &mut Causes) {
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return };
    if object["immutable"] != true {
        causes.forbidden(&Path::root("immutable"), FROZEN);
    }
    for field in fields {
        if !same(&object[*field], &old[*field]) {
            causes.forbidden(&Path::root(field), FROZEN);
        }
    }
}

/// A taint as Go shows it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ShownTaint<'a> {
    key: &'a str,
    value: &'a str,
    effect: &'a str,
    time_added: &'a Value,
}

/// A toleration as Go shows it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ShownToleration<'a> {
    key: &'a str,
    operator: &'a str,
    value: &'a str,
    effect: &'a str,
    toleration_seconds: &'a Value,
}

pub(in crate::kinds) fn node(node: &Value, causes: &mut Causes) {
    let path = Path::root("metadata");
    let path = path.child("taints");
    let mut seen = BTreeSet::new();
    for (i, taint) in items(&node["spec"]["taints"]).iter().enumerate() {
        let path = path.index(i);
        let (key, value, effect) =
            (text(&taint["key"]), text(&taint["value"]), text(&taint["effect"]));
        causes.each(&path.child("key"), key, names::qualified(key));
        let complaints = names::label_value(value);
        if !complaints.is_empty() {
            causes.invalid(&path.child("value"), value, complaints.join(";"));
        }
        super::one_of(&path.child("effect"), &taint["effect"], &pod::EFFECTS, causes);
        if !seen.insert((key, effect)) {
            let shown = ShownTaint { key, value, effect, time_added: &taint["timeAdded"] };
            causes.duplicate(&path, &shown, "taints must be unique by key and effect pair");
        }
    }
    pod_ranges(&Path::root("spec").child("podCIDRs"), &node["spec"]["podCIDRs"], causes);
    let status = Path::root("status");
    for field in ["capacity", "allocatable"] {
        for (name, amount) in entries(&node["status"][field]) {
            quantity(&status.child(field).child(name), name, amount, causes);
        }
    }
    declared_features(node, causes);
}

/// The features that a node declares: names, sorted.
pub(in crate::kinds) fn declared_features(node: &Value, causes: &mut Causes) {
    let path = Path::root("status");
    let path = path.child("declaredFeatures");
    let all = items(&node["status"]["declaredFeatures"]);
    for (i, feature) in all.iter().map(text).enumerate() {
        if let Some(why) = fault_of_feature(feature) {
            let name = shortened(format!("{feature:?}"));
            let why = format!("invalid feature name {name}: {why}");
            causes.invalid(&path.index(i), feature, why);
        }
        let Some(next) = all.get(i + 1).map(text) else { continue };
        if feature == next {
            causes.duplicate(&path.index(i + 1), &next, "");
        } else if feature > next {
            causes.invalid(&path.index(i + 1), next, "list must be sorted alphabetically");
        }
    }
}

/// What is wrong with the name of a declared feature.
fn fault_of_feature(name: &str) -> Option<String> {
    const LONGEST: usize = 253;
    if name.len() > LONGEST {
        return Some(format!("must be no more than {LONGEST} characters"));
    }
    let mut is_first = true;
    let is_valid = name.split('/').all(|segment| {
        let is_first = std::mem::replace(&mut is_first, false);
        segment.starts_with(|c: char| c.is_ascii_uppercase() || !is_first && c.is_ascii_lowercase())
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    (!is_valid).then(|| {
        "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., \
         MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            .to_owned()
    })
}

/// The ranges of a node's pods: one of each family at most.
fn pod_ranges(list: &Path<'_>, ranges: &Value, causes: &mut Causes) {
    let mut families = Vec::new();
    for (i, range) in items(ranges).iter().enumerate() {
        match cidr::parse(text(range)) {
            Some(parsed) => families.push(parsed.addr().is_ipv4()),
            None => {
                let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                causes.invalid(&list.index(i), range, why);
            }
        }
    }
    let all = families.len();
    families.sort_unstable();
    families.dedup();
    if families.len() < all {
        let why = "may specify no more than one CIDR for each IP family";
        causes.invalid(list, ranges, why);
    }
}

/// What may not change in a node once it is set.
pub(in crate::kinds) fn node_update(node: &Value, old: &Value, causes: &mut Causes) {
    let path = Path::root("spec");
    let (new, was) = (&node["spec"], &old["spec"]);
    for (field, name) in [("podCIDRs", "podCIDR"), ("providerID", "providerID")] {
        if !is_zero(&was[field]) && !same(&new[field], &was[field]) {
            causes.forbidden(
                &path.child(field),
                format!("node updates may not change {name} except from \"\" to valid"),
            );
        }
    }
    let list = Path::root("status");
    let list = list.child("addresses");
    let mut seen = BTreeSet::new();
    for (i, address) in items(&node["status"]["addresses"]).iter().enumerate() {
        if !seen.insert((text(&address["type"]), text(&address["address"]))) {
            causes.duplicate(&list.index(i), address, "");
        }
    }
}

pub(in crate::kinds) fn lease(lease: &Value, causes: &mut Causes) {
    let path = Path::root("spec");
    let spec = &lease["spec"];
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64().filter(|s| *s <= 0) {
        causes.invalid(&path.child("leaseDurationSeconds"), &seconds, "must be greater than 0");
    }
    non_negative(&path.child("leaseTransitions"), &spec["leaseTransitions"], causes);
    if !is_zero(&spec["preferredHolder"]) && is_zero(&spec["strategy"]) {
        causes.forbidden(
            &path.child("preferredHolder"),
            "may only be specified if `strategy` is defined",
        );
    }
}

pub(in crate::kinds) fn runtime_class(class: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("handler");
    match text(&class["handler"]) {
        "" => causes.required(&path, ""),
        handler => causes.each(&path, handler, names::dns_label(handler)),
    }
    if let Some(old) = old {
        immutable(&path, &class["handler"], &old["handler"], causes);
    }
    let overhead = json!({"limits": class["overhead"]["podFixed"]});
    container::resources(&Path::root("overhead"), &overhead, causes);
    let scheduling = Path::root("scheduling");
    let selector = &class["scheduling"]["nodeSelector"];
    meta::labels(&scheduling.child("nodeSelector"), selector, causes);
    let tolerations = &class["scheduling"]["tolerations"];
    let list = scheduling.child("tolerations");
    pod::tolerations(&list, tolerations, causes);
    let mut seen = BTreeSet::new();
    for (i, toleration) in items(tolerations).iter().enumerate() {
        let [key, operator, value, effect] =
            ["key", "operator", "value", "effect"].map(|field| text(&toleration[field]));
        if !seen.insert([key, operator, value, effect]) {
            let toleration_seconds = &toleration["tolerationSeconds"];
            let shown = ShownToleration { key, operator, value, effect, toleration_seconds };
            causes.duplicate(&list.index(i), &shown, "");
        }
    }
}

pub(in crate::kinds) fn namespace_status(namespace: &Value, causes: &mut Causes) {
    let deleting = namespace["metadata"]["deletionTimestamp"].is_string();
    let phase = text(&namespace["status"]["phase"]);
    let (wanted, when) = if deleting { ("Terminating", "not empty") } else { ("Active", "empty") };
    if phase != wanted {
        causes.invalid(
            &Path::root("status").child("Phase"),
            phase,
            format!("may only be '{wanted}' if `deletionTimestamp` is {when}"),
        );
    }
}

pub(in crate::kinds) fn controller(controller: &Value, causes: &mut Causes) {
    let path = Path::root("spec");
    let spec = &controller["spec"];
    non_negative(&path.child("minReadySeconds"), &spec["minReadySeconds"], causes);
    non_negative(&path.child("replicas"), &spec["replicas"], causes);
    let selector = &spec["selector"];
    if is_zero(selector) {
        causes.required(&path.child("selector"), "");
    }
    let template_path = path.child("template");
    let template = &spec["template"];
    if template.is_null() {
        return causes.required(&template_path, "");
    }
    let labels = &template["metadata"]["labels"];
    if entries(selector).any(|(k, v)| labels.get(k) != Some(v)) {
        causes.invalid(
            &template_path.child("metadata").child("labels"),
            labels,
            "`selector` does not match template `labels`",
        );
    }
    pod::template(&template_path, template, causes);
    let spec_path = template_path.child("spec");
    let policy = text(&template["spec"]["restartPolicy"]);
    if !matches!(policy, "" | "Always") {
        causes.not_supported(&spec_path.child("restartPolicy"), policy, &["Always"]);
    }
    if !template["spec"]["activeDeadlineSeconds"].is_null() {
        causes.forbidden(
            &spec_path.child("activeDeadlineSeconds"),
            "activeDeadlineSeconds in ReplicationController is not Supported",
        );
    }
}

pub(in crate::kinds) fn controller_status(controller: &Value, causes: &mut Causes) {
    let path = Path::root("status");
    let status = &controller["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    for field in [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
    ] {
        non_negative(&path.child(field), &status[field], causes);
    }
    for field in ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"] {
        if count(field) > count("replicas") {
            causes.invalid(
                &path.child(field),
                &count(field),
                "cannot be greater than status.replicas",
            );
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        causes.invalid(
            &path.child("availableReplicas"),
            &count("availableReplicas"),
            "cannot be greater than readyReplicas",
        );
    }
}

/// An event in its stored shape; `strict` when it came through events.k8s.io, whose rules are tighter.
pub(in crate::kinds) fn event(
    event: &Value,
    old: Option<&Value>,
    strict: bool,
    causes: &mut Causes,
) {
    let namespace = text(&event["metadata"]["namespace"]);
    let about = text(&event["involvedObject"]["namespace"]);
    let path = Path::root("involvedObject");
    let path = path.child("namespace");
    const MISMATCH: &str = "does not match event.namespace";
    if event["eventTime"].is_null() {
        if about != namespace && !(about.is_empty() && namespace == "default") {
            causes.invalid(&path, about, MISMATCH);
        }
    } else {
        if about.is_empty() && !matches!(namespace, "default" | "kube-system") {
            causes.invalid(&path, about, MISMATCH);
        }
        new_style(event, strict, causes);
    }
    match old {
        None if strict => strict_create(event, causes),
        Some(old) if strict => {
            for field in [
                "involvedObject",
                "reason",
                "message",
                "source",
                "type",
                "action",
                "related",
                "eventTime",
            ] {
                immutable(&Path::root(field), &event[field], &old[field], causes);
            }
        }
        _ => {}
    }
}

fn new_style(event: &Value, strict: bool, causes: &mut Causes) {
    let controller = text(&event["reportingComponent"]);
    let name = Path::root(if strict { "reportingController" } else { "reportingComponent" });
    if controller.is_empty() {
        causes.required(&name, "");
    }
    causes.each(&name, controller, names::qualified(controller));
    for (field, limit) in
        [("reportingInstance", 128), ("action", 128), ("reason", 128), ("message", 1024)]
    {
        let given = text(&event[field]);
        if given.is_empty() && field != "message" {
            causes.required(&Path::root(field), "");
        }
        if given.len() > limit {
            causes.invalid(&Path::root(field), "", format!("can have at most {limit} characters"));
        }
    }
}

fn strict_create(event: &Value, causes: &mut Causes) {
    if event["eventTime"].is_null() {
        causes.required(&Path::root("eventTime"), "");
    }
    let kind = text(&event["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        causes.invalid(&Path::root("type"), "", format!("has invalid value: {kind}"));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if !is_zero(&event[field]) {
            causes.invalid(&Path::root(field), "", "needs to be unset");
        }
    }
    if !event["series"].is_null() && event["series"]["count"].as_i64().unwrap_or(0) < 2 {
        causes.invalid(&Path::root("series").child("count"), "", "should be at least 2");
    }
    if !event["series"].is_null() && event["series"]["lastObservedTime"].is_null() {
        causes.required(&Path::root("series").child("lastObservedTime"), "");
    }
}
