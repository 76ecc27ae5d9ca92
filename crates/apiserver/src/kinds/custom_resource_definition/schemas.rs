//! The rules of the schemas of a definition.

use longshore_structural::{self as structural, Schema};
use serde_json::Value;

use crate::kinds::custom;
use crate::schema::value::{items, text};
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
    let structure = structural::check(&schema, path);
    if structure.is_empty() {
        let rules = longshore_cel::crd::check(json, path).into_iter().map(custom::broken_rule);
        causes.0.extend(rules.map(custom::cause));
    }
    causes.0.extend(structure.into_iter().map(custom::cause));
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
                let why =
                    "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
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
