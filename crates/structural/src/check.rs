//! Whether a schema is structural: every field that is spoken of is also described, with a type, outside
//! of the schemas that are combined by `allOf`, `anyOf`, `oneOf` and `not`.

use serde_json::Value;

use crate::error::{FieldError, Kind};
use crate::schema::{Additional, Schema, Values};

/// Where a schema stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// What keeps a schema from being structural, sorted. `path` is that of the schema.
#[must_use]
pub fn check(schema: &Schema, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    invariants(schema, Level::Root, path, &mut errors);
    complete(Some(schema), schema, path, &mut errors);
    errors.sort_by(|a, b| (&a.path, &a.detail).cmp(&(&b.path, &b.detail)));
    errors
}

fn required(path: String, detail: &str, errors: &mut Vec<FieldError>) {
    errors.push(FieldError::new(Kind::Required, &path, Value::Null, detail));
}

fn forbidden(path: String, detail: &str, errors: &mut Vec<FieldError>) {
    errors.push(FieldError::new(Kind::Forbidden, &path, Value::Null, detail));
}

fn invalid(path: String, value: impl Into<Value>, detail: &str, errors: &mut Vec<FieldError>) {
    errors.push(FieldError::new(Kind::Invalid, &path, value, detail));
}

fn invariants(schema: &Schema, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    match &schema.items {
        Some(items) => invariants(items, Level::Item, &format!("{path}.items"), errors),
        None if schema.kind == "array" => {
            required(format!("{path}.items"), "must be specified", errors);
        }
        None => {}
    }
    for (name, property) in &schema.properties {
        let path = format!("{path}.properties[{name}]");
        invariants(property, Level::Field, &path, errors);
    }
    let additional = format!("{path}.additionalProperties");
    if schema.additional != Additional::None && level == Level::Root {
        forbidden(additional.clone(), "must not be used at the root", errors);
    }
    if let Additional::Like(schema) = &schema.additional {
        invariants(schema, Level::Field, &additional, errors);
    }
    extensions(schema, path, errors);
    combined(schema, true, level, path, errors);
    kind(schema, level, path, errors);
    if schema.embedded && schema.additional != Additional::None {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        forbidden(additional, why, errors);
    }
    let is_object = level == Level::Root || schema.embedded;
    for name in ["kind", "apiVersion"] {
        if let Some(property) = schema.properties.get(name).filter(|_| is_object)
            && property.kind != "string"
        {
            let path = format!("{path}.properties[{name}].type");
            invalid(path, property.kind.as_str(), "must be string", errors);
        }
    }
    if let Some(metadata) = schema.properties.get("metadata") {
        let path = format!("{path}.properties[metadata]");
        if is_object && metadata.kind != "object" {
            let kind = metadata.kind.as_str();
            invalid(format!("{path}.type"), kind, "must be object", errors);
        }
        if level == Level::Root && !is_plain_metadata(metadata) {
            let why = "must not specify anything other than name and generateName, \
                       but metadata is implicitly specified";
            forbidden(path, why, errors);
        }
    }
    if schema.embedded && !schema.preserves_unknown && schema.properties.is_empty() {
        let why = "must not be empty if x-kubernetes-embedded-resource is true \
                   without x-kubernetes-preserve-unknown-fields";
        required(format!("{path}.properties"), why, errors);
    }
}

/// Of metadata, only rules of names can be given.
fn is_plain_metadata(metadata: &Schema) -> bool {
    let mut rest = metadata.clone();
    if rest.properties.keys().all(|name| name == "name" || name == "generateName") {
        rest.properties.clear();
    }
    rest.kind.clear();
    rest.default = None;
    rest == Schema::default()
}

fn extensions(schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let why = "must be false if x-kubernetes-int-or-string is true";
    if schema.int_or_string && schema.preserves_unknown {
        invalid(format!("{path}.x-kubernetes-preserve-unknown-fields"), true, why, errors);
    }
    if schema.int_or_string && schema.embedded {
        invalid(format!("{path}.x-kubernetes-embedded-resource"), true, why, errors);
    }
}

fn kind(schema: &Schema, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let path = format!("{path}.type");
    let kind = schema.kind.as_str();
    if schema.embedded && kind != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        match kind {
            "" => required(path.clone(), why, errors),
            kind => invalid(path.clone(), kind, why, errors),
        }
    } else if kind.is_empty() && !schema.int_or_string && !schema.preserves_unknown {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        required(path.clone(), why, errors);
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        invalid(path, kind, "must be object at the root", errors);
    }
}

/// A number or a text is the one combination that may name types.
fn is_int_or_string(any_of: &[Schema]) -> bool {
    let of = |kind: &str| Schema { kind: kind.to_owned(), ..Schema::default() };
    any_of == [of("integer"), of("string")]
}

fn combined(
    schema: &Schema,
    is_outer: bool,
    level: Level,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let junctors = &schema.junctors;
    if !(is_outer && is_int_or_string(&junctors.any_of)) {
        for (i, part) in junctors.any_of.iter().enumerate() {
            nested(part, false, level, &format!("{path}.anyOf[{i}]"), errors);
        }
    }
    for (i, part) in junctors.all_of.iter().enumerate() {
        let is_first = is_outer && i == 0;
        nested(part, is_first, level, &format!("{path}.allOf[{i}]"), errors);
    }
    for (i, part) in junctors.one_of.iter().enumerate() {
        nested(part, false, level, &format!("{path}.oneOf[{i}]"), errors);
    }
    if let Some(not) = &junctors.not {
        nested(not, false, level, &format!("{path}.not"), errors);
    }
    if let Some(pattern) = &schema.values.pattern
        && let Err(why) = &pattern.compiled
    {
        let detail = format!("must be a valid regular expression, but isn't: {why}");
        invalid(format!("{path}.pattern"), pattern.text.as_str(), &detail, errors);
    }
}

fn nested(
    schema: &Schema,
    may_be_int_or_string: bool,
    level: Level,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    combined(schema, may_be_int_or_string, level, path, errors);
    if let Some(items) = &schema.items {
        nested(items, false, level, &format!("{path}.items"), errors);
    }
    for (name, property) in &schema.properties {
        nested(property, false, Level::Field, &format!("{path}.properties[{name}]"), errors);
    }
    let empty = "must be empty to be structural";
    let absent = "must be undefined to be structural";
    let unset = "must be false to be structural";
    for (field, is_set, why) in [
        ("type", !schema.kind.is_empty(), empty),
        ("additionalProperties", schema.additional != Additional::None, absent),
        ("default", schema.default.is_some(), absent),
        ("title", !schema.title.is_empty(), empty),
        ("description", !schema.description.is_empty(), empty),
        ("nullable", schema.nullable, unset),
        ("x-kubernetes-preserve-unknown-fields", schema.preserves_unknown, unset),
        ("x-kubernetes-embedded-resource", schema.embedded, unset),
        ("x-kubernetes-int-or-string", schema.int_or_string, unset),
        ("x-kubernetes-list-map-keys", !schema.list_keys.is_empty(), empty),
        ("x-kubernetes-list-type", schema.list_type.is_some(), absent),
        ("x-kubernetes-map-type", schema.map_type.is_some(), absent),
        ("x-kubernetes-validations", !schema.rules.is_empty(), empty),
    ] {
        if is_set {
            forbidden(format!("{path}.{field}"), why, errors);
        }
    }
    if schema.properties.contains_key("metadata") {
        let path = format!("{path}.properties[metadata]");
        forbidden(path, "must not be specified in a nested context", errors);
    }
}

/// What combined schemas speak of is described by the schema that they are part of.
fn complete(described: Option<&Schema>, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let junctors = &schema.junctors;
    for (name, parts) in
        [("anyOf", &junctors.any_of), ("allOf", &junctors.all_of), ("oneOf", &junctors.one_of)]
    {
        for (i, part) in parts.iter().enumerate() {
            spoken(described, part, &format!("{path}.{name}[{i}]"), path, errors);
        }
    }
    if let Some(not) = &junctors.not {
        spoken(described, not, &format!("{path}.not"), path, errors);
    }
    if let Some(items) = &schema.items {
        complete(Some(items), items, &format!("{path}.items"), errors);
    }
    for (name, property) in &schema.properties {
        complete(Some(property), property, &format!("{path}.properties[{name}]"), errors);
    }
    if let Additional::Like(additional) = &schema.additional {
        complete(Some(additional), additional, &format!("{path}.additionalProperties"), errors);
    }
}

fn spoken(
    described: Option<&Schema>,
    part: &Schema,
    path: &str,
    outer: &str,
    errors: &mut Vec<FieldError>,
) {
    let Some(described) = described else {
        let is_empty =
            part.values == Values::default() && part.properties.is_empty() && part.items.is_none();
        if !is_empty {
            let why = format!("because it is defined in {path}");
            required(outer.to_owned(), &why, errors);
        }
        return;
    };
    let junctors = &part.junctors;
    for (name, parts) in
        [("anyOf", &junctors.any_of), ("allOf", &junctors.all_of), ("oneOf", &junctors.one_of)]
    {
        for (i, part) in parts.iter().enumerate() {
            spoken(Some(described), part, &format!("{path}.{name}[{i}]"), outer, errors);
        }
    }
    if let Some(not) = &junctors.not {
        spoken(Some(described), not, &format!("{path}.not"), outer, errors);
    }
    if let Some(items) = &part.items {
        let (path, outer) = (format!("{path}.items"), format!("{outer}.items"));
        spoken(described.items.as_deref(), items, &path, &outer, errors);
    }
    for (name, property) in &part.properties {
        let path = format!("{path}.properties[{name}]");
        let outer = format!("{outer}.properties[{name}]");
        spoken(described.properties.get(name), property, &path, &outer, errors);
    }
}
