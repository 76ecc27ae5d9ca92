//! The kinds of dynamic resource allocation.
//!
//! Current limitation: devices of slices are hardly validated.

use std::collections::{BTreeMap, BTreeSet};

use longshore_cel::device::compile_selector;
use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string};
use super::{Kind, Strategy, prepare, validate as rules};
use crate::api_types::{Resource, grouped, status_of};
use crate::object;
use crate::schema::names;
use crate::schema::value::{
    default, default_absent, entries, is_zero, items, items_mut, map_mut, text,
};
use crate::schema::{Causes, Path};

const GROUP: &str = "resource.k8s.io";
/// The most requests, constraints, configurations and selectors.
const MOST: usize = 32;
const MOST_ALTERNATIVES: usize = 8;
const MOST_CONSUMERS: usize = 256;
const MOST_DEVICES: usize = 128;
const MAX_EXPRESSION: usize = 10 << 10;
const MAX_DRIVER: usize = 63;
const MAX_POOL: usize = 253;
const MOST_TOLERATIONS: usize = 16;
/// The longest text of an attribute, and the longest name of one without its domain.
const MAX_ATTRIBUTE: usize = 64;
const MAX_ATTRIBUTE_NAME: usize = 32;

static CLASSES: Printer =
    Printer::new(&[NAME, AGE], |class, now| vec![name(class), age(class, now)]);

static CLAIMS: Printer = Printer::new(&[NAME, string("State"), AGE], |claim, now| {
    let status = &claim["status"];
    let is_deleting = object::is_deleting(claim);
    let mut states = Vec::new();
    if is_deleting {
        states.push("deleted");
    }
    let is_pending = status["allocation"].is_null();
    if !is_pending {
        states.push("allocated");
        if !is_zero(&status["reservedFor"]) {
            states.push("reserved");
        }
    } else if !is_deleting {
        states.push("pending");
    }
    vec![name(claim), states.join(",").into(), age(claim, now)]
});

static SLICES: Printer =
    Printer::new(&[NAME, string("Node"), string("Driver"), string("Pool"), AGE], |slice, now| {
        let spec = &slice["spec"];
        vec![
            name(slice),
            text(&spec["nodeName"]).into(),
            text(&spec["driver"]).into(),
            text(&spec["pool"]["name"]).into(),
            age(slice, now),
        ]
    });

pub(super) static DEVICE_CLASS: Kind = Kind {
    resource: Resource {
        namespaced: false,
        counts_generation: true,
        ..grouped(GROUP, "deviceclasses", "deviceclass", "DeviceClass")
    },
    strategy: Strategy {
        validate: |class, _, causes| {
            let (spec, path) = (&class["spec"], Path::root("spec"));
            selectors(&path.child("selectors"), &spec["selectors"], causes);
            let list = path.child("config");
            at_most(&list, &spec["config"], MOST, causes);
            for (i, config) in items(&spec["config"]).iter().enumerate() {
                configuration(&list.index(i), config, causes);
            }
        },
        name: names::long_name,
        printer: &CLASSES,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        subresources: &[status_of(GROUP, "ResourceClaim")],
        ..grouped(GROUP, "resourceclaims", "resourceclaim", "ResourceClaim")
    },
    strategy: Strategy {
        default: |claim| {
            if let Some(spec) = map_mut(claim, "spec") {
                claim_defaults(spec);
            }
        },
        prepare_create: |claim| drop(claim.insert("status".into(), json!({}))),
        prepare_status: prepare::keep_all_metadata,
        validate: |claim, old, causes| {
            let path = Path::root("spec");
            match old {
                Some(old) => rules::immutable(&path, &claim["spec"], &old["spec"], causes),
                None => claim_spec(&path, &claim["spec"], causes),
            }
        },
        validate_status: |claim, old, causes| status(claim, old, causes),
        printer: &CLAIMS,
        reset_by_status: &["metadata", "spec"],
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

pub(super) static TEMPLATE: Kind = Kind {
    resource: grouped(
        GROUP,
        "resourceclaimtemplates",
        "resourceclaimtemplate",
        "ResourceClaimTemplate",
    ),
    strategy: Strategy {
        default: |template| {
            let spec = map_mut(template, "spec").and_then(|spec| map_mut(spec, "spec"));
            if let Some(spec) = spec {
                claim_defaults(spec);
            }
        },
        validate: |template, old, causes| {
            let path = Path::root("spec");
            match old {
                Some(old) => rules::immutable(&path, &template["spec"], &old["spec"], causes),
                None => {
                    let (own, metadata) = (&template["spec"]["metadata"], path.child("metadata"));
                    rules::labels(&metadata.child("labels"), &own["labels"], causes);
                    claim_spec(&path.child("spec"), &template["spec"]["spec"], causes);
                }
            }
        },
        printer: &CLASSES,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

pub(super) static SLICE: Kind = Kind {
    resource: Resource {
        namespaced: false,
        counts_generation: true,
        fields: Some(&[("spec.nodeName", "spec.nodeName"), ("spec.driver", "spec.driver")]),
        ..grouped(GROUP, "resourceslices", "resourceslice", "ResourceSlice")
    },
    strategy: Strategy {
        default: |slice| {
            let Some(spec) = map_mut(slice, "spec") else { return };
            for device in items_mut(spec.get_mut("devices")) {
                for taint in items_mut(device.get_mut("taints")) {
                    default_absent(taint, "timeAdded", object::now().to_string());
                }
            }
        },
        validate: slice,
        printer: &SLICES,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

fn claim_defaults(spec: &mut Map<String, Value>) {
    let Some(devices) = map_mut(spec, "devices") else { return };
    for request in items_mut(devices.get_mut("requests")) {
        if let Some(exactly) = map_mut(request, "exactly") {
            request_defaults(exactly);
        }
        items_mut(request.get_mut("firstAvailable")).for_each(request_defaults);
    }
}

fn request_defaults(request: &mut Map<String, Value>) {
    default(request, "allocationMode", "ExactCount");
    if request.get("allocationMode").is_some_and(|mode| mode == "ExactCount") {
        default(request, "count", 1);
    }
}

fn at_most(path: &Path<'_>, list: &Value, most: usize, causes: &mut Causes) {
    let count = items(list).len();
    if count > most {
        causes.too_many(path, count, most);
    }
}

/// The requests of a claim, each with its alternatives.
type Requests<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

fn requests_of(devices: &Value) -> Requests<'_> {
    let requests = items(&devices["requests"]).iter();
    let named = requests.map(|request| {
        let alternatives = items(&request["firstAvailable"]).iter();
        (text(&request["name"]), alternatives.map(|one| text(&one["name"])).collect())
    });
    named.collect()
}

fn claim_spec(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let (devices, path) = (&spec["devices"], path.child("devices"));
    let known = requests_of(devices);
    let list = path.child("requests");
    at_most(&list, &devices["requests"], MOST, causes);
    let mut seen = BTreeSet::new();
    for (i, request) in items(&devices["requests"]).iter().enumerate() {
        let path = list.index(i);
        request_rules(&path, request, causes);
        if !seen.insert(text(&request["name"])) {
            causes.duplicate(&path, text(&request["name"]), "");
        }
    }
    let list = path.child("constraints");
    at_most(&list, &devices["constraints"], MOST, causes);
    for (i, constraint) in items(&devices["constraints"]).iter().enumerate() {
        let path = list.index(i);
        references(&path.child("requests"), &constraint["requests"], &known, causes);
        for field in ["matchAttribute", "distinctAttribute"] {
            if !constraint[field].is_null() {
                full_name(&path.child(field), text(&constraint[field]), causes);
            }
        }
        let set = ["matchAttribute", "distinctAttribute"].map(|field| !constraint[field].is_null());
        if set == [false, false] {
            let detail = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
            causes.required(&path, detail);
        }
    }
    let list = path.child("config");
    at_most(&list, &devices["config"], MOST, causes);
    for (i, config) in items(&devices["config"]).iter().enumerate() {
        let path = list.index(i);
        references(&path.child("requests"), &config["requests"], &known, causes);
        configuration(&path, config, causes);
    }
}

fn request_name(path: &Path<'_>, request: &Value, causes: &mut Causes) {
    let name = text(&request["name"]);
    causes.each(&path.child("name"), name, names::dns_label(name));
}

fn request_rules(path: &Path<'_>, request: &Value, causes: &mut Causes) {
    request_name(path, request, causes);
    let (exactly, alternatives) = (&request["exactly"], &request["firstAvailable"]);
    match (exactly.is_null(), is_zero(alternatives)) {
        (true, true) => {
            causes.required(path, "exactly one of `exactly` or `firstAvailable` is required");
        }
        (false, false) => {
            let detail = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            causes.invalid(path, &Value::Null, detail);
        }
        (false, true) => device_request(&path.child("exactly"), exactly, causes),
        (true, false) => {
            let list = path.child("firstAvailable");
            at_most(&list, alternatives, MOST_ALTERNATIVES, causes);
            let mut seen = BTreeSet::new();
            for (i, one) in items(alternatives).iter().enumerate() {
                let path = list.index(i);
                request_name(&path, one, causes);
                device_request(&path, one, causes);
                if !seen.insert(text(&one["name"])) {
                    causes.duplicate(&path, text(&one["name"]), "");
                }
            }
        }
    }
}

fn device_request(path: &Path<'_>, request: &Value, causes: &mut Causes) {
    let class_path = path.child("deviceClassName");
    match text(&request["deviceClassName"]) {
        "" => causes.required(&class_path, ""),
        class => causes.each(&class_path, class, names::dns_subdomain(class)),
    }
    selectors(&path.child("selectors"), &request["selectors"], causes);
    tolerations(&path.child("tolerations"), &request["tolerations"], causes);
    let count = request["count"].as_i64().unwrap_or(0);
    match text(&request["allocationMode"]) {
        "All" if count != 0 => {
            let detail = "must not be specified when allocationMode is 'All'";
            causes.invalid(&path.child("count"), &count, detail);
        }
        "ExactCount" if count <= 0 => {
            causes.invalid(&path.child("count"), &count, "must be greater than zero");
        }
        "All" | "ExactCount" => {}
        other => {
            causes.not_supported(&path.child("allocationMode"), other, &["All", "ExactCount"]);
        }
    }
}

fn tolerations(path: &Path<'_>, tolerations: &Value, causes: &mut Causes) {
    at_most(path, tolerations, MOST_TOLERATIONS, causes);
    for (i, toleration) in items(tolerations).iter().enumerate() {
        let path = path.index(i);
        let of = |field: &str| text(&toleration[field]);
        let (key, operator, value) = (of("key"), of("operator"), of("value"));
        if !key.is_empty() {
            causes.each(&path.child("key"), key, names::qualified(key));
        }
        match operator {
            "Exists" if !value.is_empty() => {
                let why = "must be empty for operator `Exists`";
                causes.invalid(&path.child("value"), value, why);
            }
            "Exists" => {}
            "Equal" => causes.each(&path.child("value"), value, names::label_value(value)),
            "" => {}
            _ => rules::supported(
                &path.child("operator"),
                &toleration["operator"],
                &["Equal", "Exists"],
                causes,
            ),
        }
        if key.is_empty() && operator == "Equal" {
            causes.required(&path.child("key"), "must be set for operator `Equal`");
        }
        if !of("effect").is_empty() {
            let effects = ["NoExecute", "NoSchedule", "None"];
            rules::supported(&path.child("effect"), &toleration["effect"], &effects, causes);
        }
    }
}

fn selectors(path: &Path<'_>, selectors: &Value, causes: &mut Causes) {
    at_most(path, selectors, MOST, causes);
    for (i, selector) in items(selectors).iter().enumerate() {
        let path = path.index(i);
        let (cel, path) = (&selector["cel"], path.child("cel"));
        if cel.is_null() {
            causes.required(&path, "");
            continue;
        }
        let (expression, path) = (text(&cel["expression"]), path.child("expression"));
        if expression.len() > MAX_EXPRESSION {
            causes.too_long(&path, MAX_EXPRESSION);
        } else if let Err(error) = compile_selector(expression) {
            causes.invalid(&path, expression, &error);
        }
    }
}

fn configuration(path: &Path<'_>, config: &Value, causes: &mut Causes) {
    let (opaque, path) = (&config["opaque"], path.child("opaque"));
    if opaque.is_null() {
        return causes.required(&path, "");
    }
    driver(&path.child("driver"), &opaque["driver"], causes);
    if opaque["parameters"].is_null() {
        causes.required(&path.child("parameters"), "");
    } else if !opaque["parameters"].is_object() {
        let why = "must be a valid JSON object";
        causes.invalid(&path.child("parameters"), "<value omitted>", why);
    }
}

/// The name of an attribute with its domain.
fn full_name(path: &Path<'_>, given: &str, causes: &mut Causes) {
    let (domain, name) = given.split_once('/').unwrap_or(("", given));
    if !given.contains('/') {
        let why = "a fully qualified name must be a domain and a name separated by a slash";
        causes.invalid(path, given, why);
    } else {
        driver(path, &domain.into(), causes);
    }
    if name.len() > MAX_ATTRIBUTE_NAME {
        causes.too_long(path, MAX_ATTRIBUTE_NAME);
    }
    causes.each(path, name, names::c_identifier(name));
}

fn driver(path: &Path<'_>, driver: &Value, causes: &mut Causes) {
    match text(driver) {
        "" => causes.required(path, ""),
        name => {
            if name.len() > MAX_DRIVER {
                causes.too_long(path, MAX_DRIVER);
            }
            causes.each(path, name, names::dns_subdomain(&name.to_lowercase()));
        }
    }
}

fn references(path: &Path<'_>, list: &Value, known: &Requests<'_>, causes: &mut Causes) {
    at_most(path, list, MOST, causes);
    let mut seen = BTreeSet::new();
    for (i, reference) in items(list).iter().map(text).enumerate() {
        if !seen.insert(reference) {
            causes.duplicate(&path.index(i), reference, "");
        }
        self::reference(&path.index(i), reference, known, causes);
    }
}

/// The name of a request, alone or with that of one of its alternatives.
fn reference(path: &Path<'_>, reference: &str, known: &Requests<'_>, causes: &mut Causes) {
    let mut parts = reference.split('/');
    let (request, one, more) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    if more.is_none() {
        for part in reference.split('/') {
            causes.each(path, part, names::dns_label(part));
        }
    }
    let is_known = more.is_none()
        && known.get(request).is_some_and(|all| one.is_none_or(|one| all.contains(one)));
    if !is_known {
        let detail = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        causes.invalid(path, reference, detail);
    }
}

fn status(claim: &Value, old: &Value, causes: &mut Causes) {
    let path = Path::root("status");
    let (new, was) = (&claim["status"], &old["status"]);
    let list = path.child("reservedFor");
    at_most(&list, &new["reservedFor"], MOST_CONSUMERS, causes);
    let mut seen = BTreeSet::new();
    for (i, consumer) in items(&new["reservedFor"]).iter().enumerate() {
        let path = list.index(i);
        for field in ["resource", "name", "uid"] {
            if text(&consumer[field]).is_empty() {
                causes.required(&path.child(field), "");
            }
        }
        if !seen.insert(text(&consumer["uid"])) {
            causes.duplicate(&path.child("uid"), text(&consumer["uid"]), "");
        }
    }
    let (allocation, allocation_path) = (&new["allocation"], path.child("allocation"));
    if allocation.is_null() && !is_zero(&new["reservedFor"]) {
        causes.forbidden(&list, "may not be specified when `allocated` is not set");
    }
    if !allocation.is_null() && !was["allocation"].is_null() {
        return rules::immutable(&allocation_path, allocation, &was["allocation"], causes);
    }
    let known = requests_of(&claim["spec"]["devices"]);
    let devices_path = allocation_path.child("devices");
    let list = devices_path.child("results");
    for (i, result) in items(&allocation["devices"]["results"]).iter().enumerate() {
        let path = list.index(i);
        reference(&path.child("request"), text(&result["request"]), &known, causes);
        driver(&path.child("driver"), &result["driver"], causes);
        for field in ["pool", "device"] {
            if text(&result[field]).is_empty() {
                causes.required(&path.child(field), "");
            }
        }
    }
}

fn slice(slice: &Value, old: Option<&Value>, causes: &mut Causes) {
    let (spec, path) = (&slice["spec"], Path::root("spec"));
    driver(&path.child("driver"), &spec["driver"], causes);
    let (pool, pool_path) = (&spec["pool"], path.child("pool"));
    let pool_name = pool_path.child("name");
    match text(&pool["name"]) {
        "" => causes.required(&pool_name, ""),
        name => {
            if name.len() > MAX_POOL {
                causes.too_long(&pool_name, MAX_POOL);
            }
            for part in name.split('/') {
                causes.each(&pool_name, part, names::dns_subdomain(part));
            }
        }
    }
    if pool["resourceSliceCount"].as_i64().unwrap_or(0) <= 0 {
        let count = pool["resourceSliceCount"].as_i64().unwrap_or(0);
        causes.invalid(&pool_path.child("resourceSliceCount"), &count, "must be greater than zero");
    }
    if let Some(generation) = pool["generation"].as_i64().filter(|generation| *generation < 0) {
        let why = "must be greater than or equal to zero";
        causes.invalid(&pool_path.child("generation"), &generation, why);
    }
    if let Some(old) = old {
        let was = &old["spec"];
        rules::immutable(&pool_path.child("name"), &pool["name"], &was["pool"]["name"], causes);
        for field in ["driver", "nodeName"] {
            rules::immutable(&path.child(field), &spec[field], &was[field], causes);
        }
    }
    if spec["nodeName"] == "" {
        let detail = "must be either unset or set to a non-empty string";
        causes.invalid(&path.child("nodeName"), "", detail);
    } else if let Some(node) = spec["nodeName"].as_str() {
        causes.each(&path.child("nodeName"), node, names::dns_subdomain(node));
    }
    for field in ["allNodes", "perDeviceNodeSelection"] {
        if spec[field] == false {
            causes.invalid(&path.child(field), &false, "must be either unset or set to true");
        }
    }
    let set: Vec<String> = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"]
        .into_iter()
        .filter(|field| !is_zero(&spec[*field]))
        .map(|field| format!("`{field}`"))
        .collect();
    const EXACTLY: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.as_slice() {
        [] => causes.required(&path, EXACTLY),
        [_] => {}
        many => {
            let detail = format!("{EXACTLY}, but multiple fields are set");
            causes.invalid(&path, &format!("{{{}}}", many.join(", ")), detail);
        }
    }
    let list = path.child("devices");
    at_most(&list, &spec["devices"], MOST_DEVICES, causes);
    let mut seen = BTreeSet::new();
    for (i, device) in items(&spec["devices"]).iter().enumerate() {
        let path = list.index(i);
        let name = text(&device["name"]);
        causes.each(&path.child("name"), name, names::dns_label(name));
        if !seen.insert(name) {
            causes.duplicate(&path, name, "");
        }
        let attributes = path.child("attributes");
        for (name, value) in entries(&device["attributes"]) {
            attribute(&attributes.key(name), value, causes);
        }
    }
}

/// One value of one type.
fn attribute(path: &Path<'_>, value: &Value, causes: &mut Causes) {
    let fields = ["bool", "int", "string", "version", "bools", "ints", "strings", "versions"];
    match fields.iter().filter(|field| !value[**field].is_null()).count() {
        1 => {}
        0 => causes.invalid(path, "", "exactly one value must be specified"),
        _ => causes.invalid(path, value, "exactly one value must be specified"),
    }
    for field in ["string", "version"] {
        if text(&value[field]).len() > MAX_ATTRIBUTE {
            causes.too_long(&path.child(field), MAX_ATTRIBUTE);
        }
    }
    if let Some(version) =
        value["version"].as_str().filter(|version| longshore_cel::Value::semver(version).is_err())
    {
        let why = "must be a string compatible with semver.org spec 2.0.0";
        causes.invalid(&path.child("version"), version, why);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn found(kind: &Kind, mut object: Value, old: Option<&Value>) -> String {
        (kind.strategy.default)(object.as_object_mut().unwrap());
        let mut causes = Causes::default();
        (kind.strategy.validate)(&object, old, &mut causes);
        let lines = causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn check(kind: &Kind, good: &Value, bad: &[(&str, Value, &str)]) {
        assert_eq!(found(kind, good.clone(), None), "");
        for (at, value, expected) in bad {
            let mut object = good.clone();
            *object.pointer_mut(at).unwrap() = value.clone();
            let found = found(kind, object, None);
            assert!(found.contains(expected), "{at} {value}: {found}");
        }
    }

    #[test]
    fn resource_claims_are_validated() {
        let claim = json!({
            "spec": {
                "devices": {
                    "requests": [
                        {"name": "one", "exactly": {"deviceClassName": "dra.example.com"}},
                        {"name": "two", "firstAvailable": [
                            {"name": "big", "deviceClassName": "a", "allocationMode": "All"},
                        ]},
                    ],
                    "constraints": [{"requests": ["one", "two/big"], "matchAttribute": "a/b"}],
                    "config": [{"opaque": {"driver": "d", "parameters": {}}}],
                },
            },
        });
        check(
            &KIND,
            &claim,
            &[
                ("/spec/devices/requests/0/name", json!("Bad"), "spec.devices.requests[0].name"),
                ("/spec/devices/requests/0/exactly", json!(null), "exactly one of `exactly`"),
                ("/spec/devices/requests/1/name", json!("one"), "Duplicate value"),
                ("/spec/devices/requests/0/exactly/deviceClassName", json!(""), "Required value"),
                (
                    "/spec/devices/constraints/0/requests/1",
                    json!("two/small"),
                    "must be the name of a request",
                ),
                ("/spec/devices/constraints/0/matchAttribute", json!(null), "distinctAttribute"),
                ("/spec/devices/config/0/opaque", json!(null), "opaque: Required value"),
                (
                    "/spec/devices/requests/1/firstAvailable/0/allocationMode",
                    json!("x"),
                    "Unsupported value",
                ),
            ],
        );
        let mut changed = claim.clone();
        changed["spec"]["devices"]["config"] = json!([]);
        assert!(found(&KIND, changed, Some(&claim)).contains("field is immutable"));
        let mut defaulted = claim;
        (KIND.strategy.default)(defaulted.as_object_mut().unwrap());
        let exactly = &defaulted["spec"]["devices"]["requests"][0]["exactly"];
        assert_eq!(
            (&exactly["allocationMode"], &exactly["count"]),
            (&json!("ExactCount"), &json!(1))
        );
    }

    #[test]
    fn resource_claim_allocations_do_not_change() {
        let with = |status: Value| json!({"spec": {"devices": {}}, "status": status});
        let causes = |new: Value, old: Value| {
            let mut causes = Causes::default();
            status(&with(new), &with(old), &mut causes);
            causes.0.len()
        };
        let consumer = json!({"resource": "pods", "name": "p", "uid": "1"});
        assert_eq!(causes(json!({"allocation": {}}), json!({})), 0);
        assert_eq!(causes(json!({"allocation": {}, "reservedFor": [consumer]}), json!({})), 0);
        assert_eq!(causes(json!({"reservedFor": [consumer]}), json!({})), 1);
        assert_eq!(causes(json!({}), json!({"allocation": {}})), 0);
        let other = json!({"allocation": {"devices": {"results": [{"request": "x"}]}}});
        assert_eq!(causes(other.clone(), json!({"allocation": {}})), 1);
        assert!(causes(other, json!({})) > 1);
    }

    #[test]
    fn resource_slices_are_of_one_place() {
        let slice = json!({
            "spec": {
                "driver": "dra.example.com",
                "pool": {"name": "cluster", "generation": 1, "resourceSliceCount": 1},
                "nodeName": "n",
                "devices": [{"name": "device-0"}],
            },
        });
        check(
            &SLICE,
            &slice,
            &[
                ("/spec/nodeName", json!(null), "exactly one of `nodeName`"),
                ("/spec/pool/resourceSliceCount", json!(0), "must be greater than zero"),
                ("/spec/devices/0/name", json!(""), "spec.devices[0].name: Invalid value"),
                ("/spec/driver", json!(""), "spec.driver: Required value"),
            ],
        );
        let class = json!({"spec": {"selectors": [{"cel": {"expression": "false"}}]}});
        check(
            &DEVICE_CLASS,
            &class,
            &[
                ("/spec/selectors/0/cel", json!(null), "cel: Required value"),
                (
                    "/spec/selectors/0/cel/expression",
                    json!("Not Valid!"),
                    "compilation failed: ERROR",
                ),
                (
                    "/spec/selectors/0/cel/expression",
                    json!("nope"),
                    "undeclared reference to 'nope'",
                ),
                (
                    "/spec/selectors/0/cel/expression",
                    json!("device.driver"),
                    "must evaluate to bool",
                ),
                (
                    "/spec/selectors/0/cel/expression",
                    json!("device.driver == 1"),
                    "no matching overload",
                ),
            ],
        );
    }
}
