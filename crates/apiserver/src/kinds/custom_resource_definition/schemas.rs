//! The rules of the schemas of a definition.

use std::collections::BTreeSet;

use longshore_cel::crd::Failure;
use longshore_structural::{self as structural, Schema};
use serde::Serialize;
use serde_json::Value;

use crate::kinds::custom;
use crate::schema::value::{is_zero, items, text};
use crate::schema::{Causes, Path};

/// Schemas are named by the one place in which they all are if all versions have the same.
pub(super) fn check(spec: &Value, old: Option<&Value>, causes: &mut Causes) {
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
        let has_status = |version: &Value| !version["subresources"]["status"].is_null();
        let of_status = if is_same { versions.iter().any(has_status) } else { has_status(version) };
        if of_status {
            check_root(schema, &path, causes);
        }
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
    let mut standards = Causes::default();
    let mut at = path.to_owned();
    standard(json, &mut at, Place { is_root: true, ..Place::default() }, &mut standards);
    let structure = structural::check(&schema, path);
    let mut defaults = Causes::default();
    if structure.is_empty() {
        check_defaults(&schema, path, &mut defaults);
    }
    if structure.is_empty() && defaults.0.is_empty() {
        let faults = longshore_cel::crd::check(json, path).into_iter();
        // rules of a schema with other faults, in it or in what it has, are not looked at
        let faults = faults.filter(|fault| match fault.path.rsplit_once(RULES) {
            Some((of, _)) => !standards.0.iter().any(|cause| is_within(of, &cause.field)),
            None => true,
        });
        faults.for_each(|fault| broken_rule(fault, causes));
    }
    causes.0.extend(structure.into_iter().map(custom::cause));
    causes.0.extend(standards.0);
    causes.0.extend(defaults.0);
}

const RULES: &str = ".x-kubernetes-validations";

/// Whether a field is that of this path or below it.
fn is_within(path: &str, field: &str) -> bool {
    field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// A rule as Go shows it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ShownRule<'a> {
    rule: &'a str,
    message: &'a str,
    message_expression: &'a str,
    reason: &'a Value,
    field_path: &'a str,
    optional_old_self: &'a Value,
}

/// What is wrong with a rule. Where it is shown, it is as a whole.
fn broken_rule(fault: Failure, causes: &mut Causes) {
    let Some(rule @ Value::Object(_)) = &fault.value else {
        return causes.0.push(custom::cause(custom::broken_rule(fault)));
    };
    let shown = ShownRule {
        rule: text(&rule["rule"]),
        message: text(&rule["message"]),
        message_expression: text(&rule["messageExpression"]),
        reason: &rule["reason"],
        field_path: text(&rule["fieldPath"]),
        optional_old_self: &rule["optionalOldSelf"],
    };
    causes.invalid(&Path::root(&fault.path), &shown, &fault.detail);
}

/// What a schema may have at its root where the status is a subresource, in Go's names.
const ROOT_FIELDS: [&str; 22] = [
    "Description",
    "Type",
    "Format",
    "Title",
    "Maximum",
    "ExclusiveMaximum",
    "Minimum",
    "ExclusiveMinimum",
    "MaxLength",
    "MinLength",
    "Pattern",
    "MaxItems",
    "MinItems",
    "UniqueItems",
    "MultipleOf",
    "Required",
    "Items",
    "Properties",
    "ExternalDocs",
    "Example",
    "XPreserveUnknownFields",
    "XValidations",
];

/// The root of a schema whose status is a subresource: what is said there of the whole would not be of the
/// status.
fn check_root(json: &Value, path: &str, causes: &mut Causes) {
    let kind = text(&json["type"]);
    if !kind.is_empty() && kind != "object" {
        let path = format!("{path}.type");
        let why = "only \"object\" is allowed as the type at the root of the schema if the status \
                   subresource is enabled";
        return causes.invalid(&Path::root(&path), kind, why);
    }
    let is_allowed = |field: &str| {
        let name = match field {
            "x-kubernetes-preserve-unknown-fields" => "XPreserveUnknownFields",
            "x-kubernetes-validations" => "XValidations",
            other => other,
        };
        ROOT_FIELDS.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    };
    // a number or a schema says something even where it is zero
    let says = |field: &str, value: &Value| {
        !is_zero(value) || value.is_number() || matches!(field, "additionalProperties" | "not")
    };
    let mut given = json.as_object().into_iter().flatten();
    if given.any(|(field, value)| says(field, value) && !is_allowed(field)) {
        let why = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            ROOT_FIELDS.join(" ")
        );
        causes.invalid(&Path::root(path), json, why);
    }
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
    if !items(&json["items"]).is_empty() {
        let why = "items must be a schema object and not an array";
        causes.forbidden(&Path::root(&at("items")), why);
    }
    if json["uniqueItems"] == true {
        let why =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
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
    let (list_type, item) = (&json["x-kubernetes-list-type"], &json["items"]);
    let list = text(list_type);
    let keys = items(&json["x-kubernetes-list-map-keys"]);
    let map = text(&json["x-kubernetes-map-type"]);
    let kind = text(&json["type"]);
    let list_path = at("x-kubernetes-list-type");
    if !list_type.is_null() {
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
        } else if list == "set" {
            items_of_set(item, path, causes);
        }
    }
    if !keys.is_empty() && list != "map" {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            Value::Null => causes.required(&Path::root(&list_path), why),
            _ => causes.invalid(&Path::root(&list_path), list, why),
        }
    }
    if list == "map" {
        items_of_map(keys, item, path, causes);
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

/// The items of a set are compared as wholes.
fn items_of_set(item: &Value, path: &str, causes: &mut Causes) {
    let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let (list, map) = (&item["x-kubernetes-list-type"], &item["x-kubernetes-map-type"]);
    match text(&item["type"]) {
        "array" if !list.is_null() && list != "atomic" => {
            let path = format!("{path}.items.x-kubernetes-list-type");
            causes.invalid(&Path::root(&path), list, why);
        }
        "object" if map != "atomic" => {
            let path = format!("{path}.items.x-kubernetes-map-type");
            // upstream shows the type of the list
            causes.invalid(&Path::root(&path), list, why);
        }
        _ => {}
    }
}

/// `items` as Go shows it.
#[derive(Serialize)]
struct ShownItems<'a> {
    #[serde(rename = "Schema")]
    schema: Option<&'a Value>,
    #[serde(rename = "JSONSchemas")]
    schemas: &'a Value,
}

/// The items of a map are objects that have its keys.
fn items_of_map(keys: &[Value], item: &Value, path: &str, causes: &mut Causes) {
    let keys_path = format!("{path}.x-kubernetes-list-map-keys");
    let items_path = format!("{path}.items");
    if keys.is_empty() {
        let why = "must not be empty if x-kubernetes-list-type is map";
        causes.required(&Path::root(&keys_path), why);
    }
    match item {
        Value::Null => {
            let why = "must have a schema if x-kubernetes-list-type is map";
            causes.required(&Path::root(&items_path), why);
        }
        Value::Object(_) if item["type"] == "object" => {
            let mut seen = BTreeSet::new();
            for name in keys.iter().map(text) {
                let property = &item["properties"][name];
                if property.is_null() {
                    let why = "entries must all be names of item properties";
                    causes.invalid(&Path::root(&keys_path), keys, why);
                } else if matches!(text(&property["type"]), "array" | "object") {
                    let path = format!("{items_path}.properties[{name}].type");
                    let why =
                        "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    // upstream shows the type of the items
                    causes.invalid(&Path::root(&path), "object", why);
                }
                if !seen.insert(name) {
                    let why = "must not contain duplicate entries";
                    causes.invalid(&Path::root(&keys_path), keys, why);
                }
            }
        }
        Value::Object(_) => {
            let path = format!("{items_path}.type");
            let why = "must be object if parent array's x-kubernetes-list-type is map";
            causes.invalid(&Path::root(&path), text(&item["type"]), why);
        }
        schemas => {
            let why = "must only have a single schema if x-kubernetes-list-type is map";
            let shown = ShownItems { schema: None, schemas };
            causes.invalid(&Path::root(&items_path), &shown, why);
        }
    }
    let required = items(&item["required"]);
    for key in keys {
        let name = text(key);
        let property = &item["properties"][name];
        if property.is_null() {
            continue;
        }
        if !required.contains(key) && property["default"].is_null() {
            let path = format!("{items_path}.properties[{name}].default");
            let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            causes.required(&Path::root(&path), why);
        }
        if property["nullable"] == true {
            let path = format!("{items_path}.properties[{name}].nullable");
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            causes.forbidden(&Path::root(&path), why);
        }
    }
}
