//! Custom kinds in documents: the schema of a definition's version, with what every object has.

use longshore_structural::{Additional, ListKind, Schema};
use serde_json::{Map, Value, json};

use crate::api_types::{Resource, Version};

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. \
     Servers should convert recognized schemas to the latest internal value, and may reject unrecognized \
     values. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may \
     infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA: &str = "Standard object's metadata. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// The types that every custom kind refers to.
pub(super) const METAS: [&str; 2] = [OBJECT_META, LIST_META];

/// The version of OpenAPI that a document is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    V2,
    V3,
}

impl Dialect {
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Dialect::V2 => "#/definitions/",
            Dialect::V3 => "#/components/schemas/",
        }
    }

    fn refer(self, name: &str, description: &str) -> Value {
        let reference = json!({"$ref": format!("{}{name}", self.prefix())});
        match self {
            Dialect::V2 => {
                let mut reference = reference;
                reference["description"] = description.into();
                reference
            }
            Dialect::V3 => json!({"allOf": [reference], "description": description}),
        }
    }
}

/// The name of the schema of a kind: that of its group turned round, version and kind.
pub(super) fn name(resource: &Resource) -> String {
    let mut parts: Vec<&str> = resource.group.split('.').rev().collect();
    parts.extend([resource.version, resource.kind]);
    parts.join(".")
}

/// The name of the schema of its lists.
pub(super) fn list_name(resource: &Resource) -> String {
    let name = name(resource);
    let stem = name.strip_suffix(resource.kind).unwrap_or_default();
    format!("{stem}{}", resource.list_kind())
}

/// The schema of the objects of a custom kind.
pub(super) fn object(resource: &Resource, version: &Version, keeps: bool, to: Dialect) -> Value {
    let mut schema = match (keeps, version.json.is_object()) {
        (false, true) => write(&version.schema, to),
        _ => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
    };
    // Old clients would take what is named for all there is.
    let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    if to == Dialect::V2 && is_open {
        schema = json!({"type": "object"});
    } else {
        let properties = ["apiVersion", "kind"].into_iter().zip([API_VERSION, KIND]);
        for (name, description) in properties {
            schema["properties"][name] = json!({"type": "string", "description": description});
        }
        schema["properties"]["metadata"] = to.refer(OBJECT_META, METADATA);
    }
    schema["x-kubernetes-group-version-kind"] = json!([gvk(resource, resource.kind)]);
    if let Some(fields) = resource.fields.filter(|fields| !fields.is_empty()) {
        let fields: Vec<Value> =
            fields.iter().map(|(field, _)| json!({"fieldPath": field})).collect();
        schema["x-kubernetes-selectable-fields"] = fields.into();
    }
    schema
}

/// The schema of lists of such objects.
pub(super) fn list(resource: &Resource, to: Dialect) -> Value {
    let of = format!("{}{}", to.prefix(), name(resource));
    let plural = resource.plural;
    json!({
        "type": "object",
        "description": format!("{} is a list of {}", resource.list_kind(), resource.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "metadata": to.refer(LIST_META, "Standard list metadata."),
            "items": {
                "type": "array",
                "description": format!("List of {plural}."),
                "items": {"$ref": of},
            },
        },
        "x-kubernetes-group-version-kind": [gvk(resource, &resource.list_kind())],
    })
}

fn gvk(resource: &Resource, kind: &str) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": kind})
}

/// A schema as a document has it. Version 2 has no combined schemas and no nulls.
fn write(schema: &Schema, to: Dialect) -> Value {
    let mut map = Map::new();
    let text = |map: &mut Map<String, Value>, name: &str, text: &str| {
        if !text.is_empty() {
            map.insert(name.to_owned(), text.into());
        }
    };
    // Clients of version 2 cannot cope with types of what may be null or hold anything.
    let is_open = schema.preserves_unknown && matches!(schema.kind.as_str(), "object" | "array");
    if to == Dialect::V3 || !(schema.nullable || is_open) {
        text(&mut map, "type", &schema.kind);
    }
    text(&mut map, "title", &schema.title);
    text(&mut map, "description", &schema.description);
    if let Some(default) = &schema.default {
        map.insert("default".into(), default.clone());
    }
    if schema.nullable && to == Dialect::V3 {
        map.insert("nullable".into(), true.into());
    }
    if to == Dialect::V3 || !(schema.nullable || schema.preserves_unknown) {
        let properties: Map<String, Value> = schema
            .properties
            .iter()
            .map(|(name, property)| (name.clone(), write(property, to)))
            .collect();
        if !properties.is_empty() {
            map.insert("properties".into(), properties.into());
        }
        if let Some(items) = &schema.items {
            map.insert("items".into(), write(items, to));
        }
    }
    match &schema.additional {
        Additional::None => {}
        Additional::Allowed(allowed) => {
            map.insert("additionalProperties".into(), (*allowed).into());
        }
        Additional::Like(additional) => {
            map.insert("additionalProperties".into(), write(additional, to));
        }
    }
    values(schema, to, &mut map);
    if schema.embedded && (to == Dialect::V3 || !schema.preserves_unknown) {
        embed(&mut map, to);
    }
    extensions(schema, &mut map);
    if to == Dialect::V3 {
        let junctors = &schema.junctors;
        for (name, parts) in
            [("allOf", &junctors.all_of), ("anyOf", &junctors.any_of), ("oneOf", &junctors.one_of)]
        {
            if !parts.is_empty() {
                let parts: Vec<Value> = parts.iter().map(|part| write(part, to)).collect();
                map.insert(name.into(), parts.into());
            }
        }
        if let Some(not) = &junctors.not {
            map.insert("not".into(), write(not, to));
        }
    }
    map.into()
}

fn values(schema: &Schema, to: Dialect, map: &mut Map<String, Value>) {
    let values = &schema.values;
    let numbers = [
        ("maximum", values.maximum),
        ("minimum", values.minimum),
        ("multipleOf", values.multiple_of),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            map.insert(name.into(), json!(number));
        }
    }
    let counts = [
        ("maxLength", values.max_length),
        ("minLength", values.min_length),
        ("maxItems", values.max_items),
        ("minItems", values.min_items),
        ("maxProperties", values.max_properties),
        ("minProperties", values.min_properties),
    ];
    for (name, count) in counts {
        if let Some(count) = count {
            map.insert(name.into(), count.into());
        }
    }
    let flags = [
        ("exclusiveMaximum", values.exclusive_maximum),
        ("exclusiveMinimum", values.exclusive_minimum),
        ("uniqueItems", values.unique_items),
    ];
    for (name, _) in flags.into_iter().filter(|(_, is_set)| *is_set) {
        map.insert(name.into(), true.into());
    }
    if !values.format.is_empty() {
        map.insert("format".into(), values.format.as_str().into());
    }
    if let Some(any) = &values.any {
        map.insert("enum".into(), any.clone().into());
    }
    if let Some(pattern) = &values.pattern {
        map.insert("pattern".into(), pattern.text.as_str().into());
    }
    let may_be_null = |name: &String| schema.field(name).is_some_and(|field| field.nullable);
    let required: Vec<&String> =
        values.required.iter().filter(|name| to == Dialect::V3 || !may_be_null(name)).collect();
    if !required.is_empty() {
        map.insert("required".into(), json!(required));
    }
}

/// What an object within an object has.
fn embed(map: &mut Map<String, Value>, to: Dialect) {
    let properties = map.entry("properties").or_insert_with(|| json!({}));
    properties["apiVersion"] = json!({"type": "string", "description": API_VERSION});
    properties["kind"] = json!({"type": "string", "description": KIND});
    properties["metadata"] = to.refer(OBJECT_META, METADATA);
    if let Value::Array(required) = map.entry("required").or_insert_with(|| json!([])) {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == name) {
                required.push(name.into());
            }
        }
    }
}

fn extensions(schema: &Schema, map: &mut Map<String, Value>) {
    let flags = [
        ("x-kubernetes-preserve-unknown-fields", schema.preserves_unknown),
        ("x-kubernetes-embedded-resource", schema.embedded),
        ("x-kubernetes-int-or-string", schema.int_or_string),
    ];
    for (name, _) in flags.into_iter().filter(|(_, is_set)| *is_set) {
        map.insert(name.into(), true.into());
    }
    if let Some(list) = schema.list {
        let list = match list {
            ListKind::Atomic => "atomic",
            ListKind::Set => "set",
            ListKind::Map => "map",
        };
        map.insert("x-kubernetes-list-type".into(), list.into());
    }
    if !schema.list_keys.is_empty() {
        map.insert("x-kubernetes-list-map-keys".into(), json!(schema.list_keys));
    }
    if let Some(kind) = &schema.map_type {
        map.insert("x-kubernetes-map-type".into(), kind.as_str().into());
    }
    let rules: Vec<Value> = schema
        .rules
        .iter()
        .map(|rule| {
            let mut value = json!({"rule": rule.rule});
            for (name, text) in [
                ("message", &rule.message),
                ("messageExpression", &rule.message_expression),
                ("reason", &rule.reason),
                ("fieldPath", &rule.field_path),
            ] {
                if !text.is_empty() {
                    value[name] = text.as_str().into();
                }
            }
            if rule.optional_old_self {
                value["optionalOldSelf"] = true.into();
            }
            value
        })
        .collect();
    if !rules.is_empty() {
        map.insert("x-kubernetes-validations".into(), rules.into());
    }
}
