//! CustomResourceDefinition: the kind itself. What a definition makes of the objects that it defines is
//! in `custom`; how it is brought into effect in `tasks::definitions`.
//!
//! Current limitations: rules in CEL are stored and not checked; defaults are checked by the schema
//! alone, and not as parts of an object.

use std::collections::BTreeSet;

use longshore_structural::{self as structural, Path as JsonPath, Schema};
use serde_json::{Map, Value, json};

use super::printers::{NAME, Printer, name, string};
use super::{Kind, Strategy, custom, validate as rules};
use crate::api_types::{Resource, grouped, status_of};
use crate::object::{child_mut, metadata_mut};
use crate::schema::value::{default, default_absent, is_zero, items, items_mut, map_mut, text};
use crate::schema::{Causes, Path, names};

pub(crate) const GROUP: &str = "apiextensions.k8s.io";
pub(crate) const PLURAL: &str = "customresourcedefinitions";
/// What keeps a definition until its objects are gone.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// The annotation by which the community approves of definitions in its groups.
pub(crate) const APPROVAL: &str = "api-approved.kubernetes.io";
const MAX_SELECTABLE: usize = 8;

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
        validate: check,
        validate_status: |definition, _, causes| names_of_status(definition, causes),
        warnings: |definition, old| warnings(definition, old),
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

fn warnings(definition: &Value, old: Option<&Value>) -> Vec<String> {
    let rules = |definition: &Value| -> usize { count_rules(&definition["spec"]["versions"], 0) };
    let conversion = &definition["spec"]["conversion"]["strategy"];
    let is_new = |of: fn(&Value) -> &Value| old.is_none_or(|old| of(old) != of(definition));
    let mut warnings = Vec::new();
    if rules(definition) > 0 && is_new(|definition| &definition["spec"]["versions"]) {
        warnings.push(
            "x-kubernetes-validations: the rules are stored, and not evaluated by this server"
                .to_owned(),
        );
    }
    if *conversion == "Webhook" && is_new(|definition| &definition["spec"]["conversion"]) {
        warnings.push(
            "spec.conversion: webhooks are not called by this server; objects are served in the \
             storage version only"
                .to_owned(),
        );
    }
    warnings
}

fn count_rules(value: &Value, depth: usize) -> usize {
    if depth > 2 * crate::schema::MAX_DEPTH {
        return 0;
    }
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(name, value)| {
                let own = usize::from(name == "x-kubernetes-validations" && value.is_array());
                own.saturating_add(count_rules(value, depth.saturating_add(1)))
            })
            .sum(),
        Value::Array(list) => list.iter().map(|v| count_rules(v, depth.saturating_add(1))).sum(),
        _ => 0,
    }
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
    let why = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
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

fn check(definition: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &definition["spec"];
    let wanted = format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"]));
    let given = text(&definition["metadata"]["name"]);
    if old.is_none() && given != wanted {
        let path = Path::root("metadata");
        causes.invalid(&path.child("name"), given, "must be spec.names.plural+\".\"+spec.group");
    }
    let path = Path::root("spec");
    check_spec(&path, spec, old, causes);
    let established = old.filter(|old| has_condition(old, "Established", "True"));
    if let Some(old) = established {
        rules::immutable(&path.child("scope"), &spec["scope"], &old["spec"]["scope"], causes);
        let names = path.child("names");
        let (new, old) = (&spec["names"]["kind"], &old["spec"]["names"]["kind"]);
        rules::immutable(&names.child("kind"), new, old, causes);
    }
    if let Some(old) = old {
        rules::immutable(&path.child("group"), &spec["group"], &old["spec"]["group"], causes);
        let names = path.child("names");
        let (new, old) = (&spec["names"]["plural"], &old["spec"]["names"]["plural"]);
        rules::immutable(&names.child("plural"), new, old, causes);
    }
    names_of_status(definition, causes);
    stored_versions(definition, causes);
    check_approval(definition, old, causes);
    let kept = old.is_some_and(|old| old["spec"]["preserveUnknownFields"] == true);
    if spec["preserveUnknownFields"] == true && !kept {
        causes.invalid(
            &path.child("preserveUnknownFields"),
            &true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
             spec.versions[*].schema instead",
        );
    }
}

fn check_approval(definition: &Value, old: Option<&Value>, causes: &mut Causes) {
    if !is_protected(text(&definition["spec"]["group"])) {
        return;
    }
    let (_, state, why) = approval(definition);
    if old.is_some_and(|old| approval(old).1 == state) {
        return;
    }
    let metadata = Path::root("metadata");
    let annotations = metadata.child("annotations");
    let path = annotations.key(APPROVAL);
    match state {
        "MissingAnnotation" => causes.required(&path, &why),
        "InvalidAnnotation" => {
            causes.invalid(&path, &definition["metadata"]["annotations"][APPROVAL], why);
        }
        _ => {}
    }
}

fn check_spec(path: &Path<'_>, spec: &Value, old: Option<&Value>, causes: &mut Causes) {
    let group = text(&spec["group"]);
    let group_path = path.child("group");
    let complaints = names::dns_subdomain(group);
    match group {
        "" => causes.required(&group_path, ""),
        _ if !complaints.is_empty() => causes.invalid(&group_path, group, complaints.join(",")),
        _ if !group.contains('.') => {
            causes.invalid(&group_path, group, "should be a domain with at least one dot");
        }
        _ => {}
    }
    rules::one_of(&path.child("scope"), &spec["scope"], &["Cluster", "Namespaced"], causes);
    let versions = items(&spec["versions"]);
    let versions_path = path.child("versions");
    for (i, version) in versions.iter().enumerate() {
        let path = versions_path.index(i);
        let name = text(&version["name"]);
        let complaints = names::dns_1035_label(name);
        if !complaints.is_empty() {
            causes.invalid(&path.child("name"), name, complaints.join(","));
        }
        check_version(&path, version, causes);
    }
    check_schemas(spec, old, causes);
    let unique: BTreeSet<&str> = versions.iter().map(|version| text(&version["name"])).collect();
    if unique.len() != versions.len() {
        causes.invalid(&versions_path, &spec["versions"], "must contain unique version names");
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        causes.invalid(&versions_path, &spec["versions"], why);
    }
    let names_path = path.child("names");
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(&spec["names"][field]).is_empty() {
            causes.required(&names_path.child(field), "");
        }
    }
    check_names(&names_path, &spec["names"], causes);
    check_conversion(&path.child("conversion"), &spec["conversion"], causes);
}

fn check_version(path: &Path<'_>, version: &Value, causes: &mut Causes) {
    if let Value::String(warning) = &version["deprecationWarning"] {
        let path = path.child("deprecationWarning");
        if version["deprecated"] != true {
            causes.invalid(&path, warning, "can only be set for deprecated versions");
        } else if warning.is_empty() {
            causes.invalid(&path, warning, "must not be an empty string");
        } else if warning.len() > 256 {
            causes.invalid(&path, warning, "must be <= 256 characters long");
        } else if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
            let why = format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {index}"
            );
            causes.invalid(&path, warning, why);
        }
    }
    if version["schema"]["openAPIV3Schema"].is_null() {
        let schema = path.child("schema");
        causes.required(&schema.child("openAPIV3Schema"), "");
    }
    let subresources = path.child("subresources");
    let scale = &version["subresources"]["scale"];
    for (field, prefix, is_needed) in [
        ("specReplicasPath", ".spec.", true),
        ("statusReplicasPath", ".status.", true),
        ("labelSelectorPath", "", false),
    ] {
        if scale.is_null() {
            break;
        }
        let name = format!("scale.{field}");
        let path = subresources.child(&name);
        let given = text(&scale[field]);
        let is_selector = prefix.is_empty();
        match given {
            "" if is_needed => causes.required(&path, ""),
            "" => {}
            _ if !given.starts_with('.') => {
                causes.invalid(&path, given, "must be a simple json path starting with .");
            }
            _ if !is_selector && !given.starts_with(prefix) => {
                let place = prefix.trim_end_matches('.');
                causes.invalid(&path, given, format!("should be a json path under {place}"));
            }
            _ if is_selector && !given.starts_with(".spec.") && !given.starts_with(".status.") => {
                let why = "should be a json path under either .spec or .status";
                causes.invalid(&path, given, why);
            }
            _ => {}
        }
    }
    for (i, column) in items(&version["additionalPrinterColumns"]).iter().enumerate() {
        let columns = path.child("additionalPrinterColumns");
        check_column(&columns.index(i), column, causes);
    }
    check_selectable(path, version, causes);
}

fn check_column(path: &Path<'_>, column: &Value, causes: &mut Causes) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 9] =
        ["byte", "date", "date-time", "double", "float", "int32", "int64", "password", "string"];
    if text(&column["name"]).is_empty() {
        causes.required(&path.child("name"), "");
    }
    let kind = text(&column["type"]);
    let why = format!("must be one of {}", TYPES.join(","));
    match kind {
        "" => causes.required(&path.child("type"), &why),
        kind if !TYPES.contains(&kind) => causes.invalid(&path.child("type"), kind, why),
        _ => {}
    }
    let format = text(&column["format"]);
    if !format.is_empty() && !FORMATS.contains(&format) {
        let why = format!("must be one of {}", FORMATS.join(","));
        causes.invalid(&path.child("format"), format, why);
    }
    match text(&column["jsonPath"]) {
        "" => causes.required(&path.child("JSONPath"), ""),
        given if !given.starts_with('.') => {
            let why = "must be a simple json path starting with .";
            causes.invalid(&path.child("JSONPath"), given, why);
        }
        _ => {}
    }
}

fn check_selectable(path: &Path<'_>, version: &Value, causes: &mut Causes) {
    let fields = items(&version["selectableFields"]);
    let list_path = path.child("selectableFields");
    let Ok(schema) = Schema::read(&version["schema"]["openAPIV3Schema"]) else { return };
    let mut seen = BTreeSet::new();
    for (i, field) in fields.iter().enumerate() {
        let given = text(&field["jsonPath"]);
        let place = list_path.index(i);
        let path = place.child("jsonPath");
        let steps = JsonPath::parse(given).filter(|_| given.starts_with('.'));
        let steps = steps.as_ref().and_then(JsonPath::fields);
        match steps.as_deref() {
            _ if given.is_empty() => causes.required(&path, ""),
            None | Some([]) => {
                causes.invalid(&path, given, "is an invalid path: it does not name a field");
            }
            Some(["metadata", ..]) => {
                causes.invalid(&path, given, "must not point to fields in metadata");
            }
            Some(steps) => {
                let found = steps.iter().try_fold(&schema, |schema, step| schema.field(step));
                match found {
                    None => causes.invalid(
                        &path,
                        given,
                        "is an invalid path: does not refer to a valid field",
                    ),
                    Some(found)
                        if !matches!(found.kind.as_str(), "string" | "boolean" | "integer") =>
                    {
                        causes.invalid(
                            &path,
                            given,
                            "must point to a field of type string, boolean or integer. Enum string \
                             fields and strings with formats are allowed.",
                        );
                    }
                    Some(_) if !seen.insert(given) => causes.duplicate(&path, given, ""),
                    Some(_) => {}
                }
            }
        }
    }
    if seen.len() > MAX_SELECTABLE {
        causes.too_many(&list_path, seen.len(), MAX_SELECTABLE);
    }
}

/// Schemas are named by the one place in which they all are if all versions have the same.
fn check_schemas(spec: &Value, old: Option<&Value>, causes: &mut Causes) {
    let versions = items(&spec["versions"]);
    let schemas: Vec<&Value> =
        versions.iter().map(|version| &version["schema"]["openAPIV3Schema"]).collect();
    let is_same = schemas.windows(2).all(|pair| matches!(pair, [a, b] if a == b));
    let of_old = |name: &Value| {
        let versions = old.map_or(&[][..], |old| items(&old["spec"]["versions"]));
        versions.iter().find(|version| version["name"] == *name)
    };
    for (i, (schema, version)) in schemas.iter().zip(versions).enumerate() {
        // What was accepted before stays acceptable.
        let is_old = of_old(&version["name"])
            .is_some_and(|old| old["schema"]["openAPIV3Schema"] == **schema);
        if schema.is_null() || is_old {
            continue;
        }
        let path = match is_same {
            true => "spec.validation.openAPIV3Schema".to_owned(),
            false => format!("spec.versions[{i}].schema.openAPIV3Schema"),
        };
        check_schema(schema, &path, causes);
        if is_same {
            break;
        }
    }
}

fn check_schema(json: &Value, path: &str, causes: &mut Causes) {
    let schema = match Schema::read(json) {
        Ok(schema) => schema,
        Err(error) => {
            causes.invalid(&Path::root(path), "", error);
            return;
        }
    };
    if schema.nullable {
        let path = format!("{path}.nullable");
        causes.forbidden(&Path::root(&path), "nullable cannot be true at the root");
    }
    causes.0.extend(structural::check(&schema, path).into_iter().map(custom::cause));
    let mut at = path.to_owned();
    standard(json, &mut at, Place { is_root: true, ..Place::default() }, causes);
    check_defaults(&schema, path, causes);
}

/// A default is what its schema allows.
fn check_defaults(schema: &Schema, path: &str, causes: &mut Causes) {
    if let Some(default) = &schema.default {
        let mut pruned = default.clone();
        if let Some(map) = pruned.as_object_mut() {
            structural::prune(map, schema);
        }
        if pruned != *default && !schema.preserves_unknown && !schema.embedded {
            let path = format!("{path}.default");
            causes.invalid(&Path::root(&path), default, "must not have unknown fields");
        }
        for mut error in structural::validate(default, None, schema) {
            error.path = match error.path.as_str() {
                "" | "<nil>" => format!("{path}.default"),
                below => format!("{path}.default.{below}"),
            };
            causes.0.push(custom::cause(error));
        }
    }
    for (name, property) in &schema.properties {
        check_defaults(property, &format!("{path}.properties[{name}]"), causes);
    }
    if let Some(items) = &schema.items {
        check_defaults(items, &format!("{path}.items"), causes);
    }
    if let structural::Additional::Like(additional) = &schema.additional {
        check_defaults(additional, &format!("{path}.additionalProperties"), causes);
    }
}

#[derive(Clone, Copy, Default)]
struct Place {
    is_root: bool,
    forbids_defaults: Option<&'static str>,
}

/// What OpenAPI has and definitions have not, and rules of lists and maps.
fn standard(json: &Value, path: &mut String, place: Place, causes: &mut Causes) {
    const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
    let end = path.len();
    let kind = text(&json["type"]);
    let at = |field: &str| format!("{path}.{field}");
    if kind == "null" {
        let why = "type cannot be set to null, use nullable as an alternative";
        causes.forbidden(&Path::root(&at("type")), why);
    } else if !kind.is_empty() && !TYPES.contains(&kind) {
        causes.not_supported(&Path::root(&at("type")), kind, &TYPES);
    }
    if let (Some(where_), Some(_)) = (place.forbids_defaults, json.get("default")) {
        causes.forbidden(&Path::root(&at("default")), format!("must not be set {where_}"));
    }
    for field in
        ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"]
    {
        if !json[field].is_null() {
            causes.forbidden(&Path::root(&at(field)), format!("{field} is not supported"));
        }
    }
    if json["items"].is_array() {
        let why = "items must be a schema object and not an array";
        causes.forbidden(&Path::root(&at("items")), why);
    }
    if json["uniqueItems"] == true {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        causes.forbidden(&Path::root(&at("uniqueItems")), why);
    }
    let additional = &json["additionalProperties"];
    let has_properties = json["properties"].as_object().is_some_and(|map| !map.is_empty());
    if has_properties && (additional.is_object() || *additional == false) {
        let why = "additionalProperties and properties are mutual exclusive";
        causes.forbidden(&Path::root(&at("additionalProperties")), why);
    }
    merge_types(json, path, causes);
    let below = Place { is_root: false, ..place };
    for (name, property) in json["properties"].as_object().into_iter().flatten() {
        path.push_str(&format!(".properties[{name}]"));
        let forbids = match name.as_str() {
            "metadata" => Some("in top-level metadata"),
            "kind" => Some("in top-level kind"),
            "apiVersion" => Some("in top-level apiVersion"),
            _ => None,
        };
        let forbids = forbids.filter(|_| place.is_root).or(place.forbids_defaults);
        standard(property, path, Place { forbids_defaults: forbids, ..below }, causes);
        path.truncate(end);
    }
    for field in ["items", "additionalProperties", "not"] {
        if json[field].is_object() {
            path.push_str(&format!(".{field}"));
            standard(&json[field], path, below, causes);
            path.truncate(end);
        }
    }
    for field in ["allOf", "anyOf", "oneOf"] {
        for (i, part) in items(&json[field]).iter().enumerate() {
            path.push_str(&format!(".{field}[{i}]"));
            standard(part, path, below, causes);
            path.truncate(end);
        }
    }
}

/// `x-kubernetes-list-type`, `-list-map-keys` and `-map-type`.
fn merge_types(json: &Value, path: &str, causes: &mut Causes) {
    let at = |field: &str| format!("{path}.{field}");
    let list = text(&json["x-kubernetes-list-type"]);
    let keys = items(&json["x-kubernetes-list-map-keys"]);
    let map = text(&json["x-kubernetes-map-type"]);
    let kind = text(&json["type"]);
    let list_path = at("x-kubernetes-list-type");
    if !list.is_empty() {
        if !matches!(list, "atomic" | "set" | "map") {
            causes.not_supported(&Path::root(&list_path), list, &["atomic", "set", "map"]);
        }
        if kind != "array" {
            let path = at("type");
            let why = "must be array if x-kubernetes-list-type is specified";
            match kind {
                "" => causes.required(&Path::root(&path), why),
                kind => causes.invalid(&Path::root(&path), kind, why),
            }
        }
    }
    if !keys.is_empty() && list != "map" {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list {
            "" => causes.required(&Path::root(&list_path), why),
            list => causes.invalid(&Path::root(&list_path), list, why),
        }
    }
    if list == "map" {
        let keys_path = at("x-kubernetes-list-map-keys");
        if keys.is_empty() {
            let why = "must not be empty if x-kubernetes-list-type is map";
            causes.required(&Path::root(&keys_path), why);
        }
        let item = &json["items"];
        let required = items(&item["required"]);
        for (i, key) in keys.iter().enumerate() {
            let name = text(key);
            let property = &item["properties"][name];
            if property.is_null() {
                let path = format!("{keys_path}[{i}]");
                let why = "entries must all be names of item properties";
                causes.invalid(&Path::root(&path), name, why);
                continue;
            }
            if matches!(text(&property["type"]), "array" | "object") {
                let path = format!("{path}.items.properties[{name}].type");
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                causes.invalid(&Path::root(&path), &property["type"], why);
            }
            if !required.contains(key) && property["default"].is_null() {
                let path = format!("{path}.items.properties[{name}].default");
                let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                causes.required(&Path::root(&path), why);
            }
            if property["nullable"] == true {
                let path = format!("{path}.items.properties[{name}].nullable");
                let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                causes.forbidden(&Path::root(&path), why);
            }
        }
        if text(&item["type"]) != "object" && item.is_object() {
            let path = format!("{path}.items.type");
            let why = "must be object if parent array's x-kubernetes-list-type is map";
            causes.invalid(&Path::root(&path), &item["type"], why);
        }
    }
    if matches!(list, "set" | "map") && json["items"]["nullable"] == true {
        let path = format!("{path}.items.nullable");
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list}");
        causes.forbidden(&Path::root(&path), why);
    }
    if !map.is_empty() {
        if !matches!(map, "atomic" | "granular") {
            let path = at("x-kubernetes-map-type");
            causes.not_supported(&Path::root(&path), map, &["atomic", "granular"]);
        }
        if kind != "object" {
            let path = at("type");
            let why = "must be object if x-kubernetes-map-type is specified";
            match kind {
                "" => causes.required(&Path::root(&path), why),
                kind => causes.invalid(&Path::root(&path), kind, why),
            }
        }
    }
}

fn check_names(path: &Path<'_>, given: &Value, causes: &mut Causes) {
    for (field, is_kind) in
        [("plural", false), ("singular", false), ("kind", true), ("listKind", true)]
    {
        let name = text(&given[field]);
        let complaints = match is_kind {
            true => names::dns_1035_label(&name.to_lowercase()),
            false => names::dns_1035_label(name),
        };
        if name.is_empty() || complaints.is_empty() {
            continue;
        }
        let complaints = complaints.join(",");
        let why = match is_kind {
            true => format!("may have mixed case, but should otherwise match: {complaints}"),
            false => complaints,
        };
        causes.invalid(&path.child(field), name, why);
    }
    for field in ["shortNames", "categories"] {
        let path = path.child(field);
        for (i, name) in items(&given[field]).iter().enumerate() {
            let complaints = names::dns_1035_label(text(name));
            if !complaints.is_empty() {
                causes.invalid(&path.index(i), name, complaints.join(","));
            }
        }
    }
    let (kind, list) = (text(&given["kind"]), text(&given["listKind"]));
    if !kind.is_empty() && kind == list {
        causes.invalid(&path.child("listKind"), list, "kind and listKind may not be the same");
    }
}

fn check_conversion(path: &Path<'_>, conversion: &Value, causes: &mut Causes) {
    if conversion.is_null() {
        return;
    }
    rules::one_of(&path.child("strategy"), &conversion["strategy"], &["None", "Webhook"], causes);
    let is_webhook = conversion["strategy"] == "Webhook";
    let webhook = &conversion["webhook"];
    let config = &webhook["clientConfig"];
    let config_path = path.child("webhookClientConfig");
    let versions_path = path.child("conversionReviewVersions");
    if !is_webhook {
        let why = "should not be set when strategy is not set to Webhook";
        if !config.is_null() {
            causes.forbidden(&config_path, why);
        }
        if !items(&webhook["conversionReviewVersions"]).is_empty() {
            causes.forbidden(&versions_path, why);
        }
        return;
    }
    if config.is_null() {
        causes.required(&config_path, "required when strategy is set to Webhook");
    } else if config["url"].is_null() == config["service"].is_null() {
        causes.required(&config_path, "exactly one of url or service is required");
    }
    let versions = items(&webhook["conversionReviewVersions"]);
    if versions.is_empty() {
        causes.required(&versions_path, "");
    } else if !versions.iter().any(|version| *version == "v1" || *version == "v1beta1") {
        let why = "must include at least one of v1, v1beta1";
        causes.invalid(&versions_path, &webhook["conversionReviewVersions"], why);
    }
}

fn names_of_status(definition: &Value, causes: &mut Causes) {
    let status = Path::root("status");
    check_names(&status.child("acceptedNames"), &definition["status"]["acceptedNames"], causes);
}

fn stored_versions(definition: &Value, causes: &mut Causes) {
    let status = Path::root("status");
    let path = status.child("storedVersions");
    let stored = items(&definition["status"]["storedVersions"]);
    let versions = items(&definition["spec"]["versions"]);
    if stored.is_empty() {
        causes.invalid(&path, &json!([]), "must have at least one stored version");
        return;
    }
    for (i, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| version["name"] == *name) {
            let shown = text(name);
            let why = format!(
                "missing from spec.versions; {shown} was previously a storage version, and must \
                 remain in spec.versions until a storage migration ensures no data remains persisted \
                 in {shown} and removes {shown} from status.storedVersions"
            );
            causes.invalid(&path.index(i), shown, why);
        }
    }
}
