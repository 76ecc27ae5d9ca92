//! Objects of custom kinds: what a definition makes of a body, of a stored object, and of a change.

use std::sync::Arc;

use longshore_cel as cel;
use longshore_structural::{self as structural, FieldError, Kind};
use serde_json::{Map, Value, json};

use super::Strategy;
use crate::api_types::{Conversion, Definition, Resource, Version};
use crate::schema::value::text;
use crate::schema::{self, Causes, Decoded, FieldValidation};
use crate::status::{Cause, StatusError};

/// What all custom kinds have in common; the rest is in their definitions.
pub(super) static STRATEGY: Strategy = Strategy {
    versioned_updates: true,
    returned_when_deleted: false,
    reset_by_status: &["spec"],
    ..Strategy::PLAIN
};

/// The most fields that are named in an answer.
const MAX_NAMED: usize = 100;

fn version<'a>(
    resource: &Resource,
    definition: &'a Definition,
) -> Result<&'a Version, StatusError> {
    definition.version(resource.version).ok_or_else(StatusError::no_such_path)
}

/// Reads a body: JSON or YAML.
pub(super) fn decode(
    resource: &Resource,
    body: &[u8],
    content_type: Option<&str>,
) -> Result<Decoded, StatusError> {
    let decoded = schema::recognized(resource.gvk(), body, content_type)?;
    if decoded.value["kind"].as_str().is_none_or(str::is_empty) {
        let text = schema::field::shortened(String::from_utf8_lossy(body).into_owned());
        let error = StatusError::bad_request(format!("Object 'Kind' is missing in '{text}'"));
        return Err(schema::unrecognized(resource.gvk(), body, error));
    }
    Ok(decoded)
}

/// Refuses what a patch makes of an object when it is of another version.
pub(crate) fn check_version(resource: &Resource, patched: &Value) -> Result<(), StatusError> {
    let (given, wanted) = (text(&patched["apiVersion"]), resource.gvk().api_version());
    if given == wanted {
        return Ok(());
    }
    let (group, kind) =
        (given.split_once('/').map_or("", |(group, _)| group), text(&patched["kind"]));
    let cause = Cause {
        reason: "FieldValueInvalid",
        message: format!("Invalid value: {given:?}: must be {wanted}"),
        field: "apiVersion".to_owned(),
    };
    let name = text(&patched["metadata"]["name"]);
    Err(StatusError::invalid_kind(group, kind, name, vec![cause]))
}

/// Refuses objects of another kind or version.
fn check_kind(resource: &Resource, object: &Map<String, Value>) -> Result<(), StatusError> {
    let given = |field: &str| object.get(field).map_or("", text);
    let (api_version, kind) = (given("apiVersion"), given("kind"));
    let wanted = resource.gvk().api_version();
    if api_version != wanted {
        return Err(StatusError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({wanted})"
        )));
    }
    if kind != resource.kind {
        let name = object.get("metadata").map_or("", |metadata| text(&metadata["name"]));
        let cause = Cause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {kind:?}: must be {}", resource.kind),
            field: "kind".to_owned(),
        };
        return Err(StatusError::invalid_kind(resource.group, kind, name, vec![cause]));
    }
    Ok(())
}

/// Checks kind and metadata, and drops what the schema does not name. Returns the object, and warnings
/// about fields that were unknown or occurred twice.
pub(super) fn conform(
    resource: &Resource,
    definition: &Definition,
    decoded: Decoded,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), StatusError> {
    let version = version(resource, definition)?;
    let Decoded { value, duplicates } = decoded;
    let refuse = |why: String| {
        StatusError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {why}",
            kind = resource.kind,
            version = resource.version
        ))
    };
    schema::check_type_meta(&value)?;
    let Value::Object(mut object) = value else {
        return Err(refuse("Object 'Kind' is missing in 'null'".to_owned()));
    };
    check_kind(resource, &object)?;
    let mut problems: Vec<String> =
        duplicates.iter().map(|field| format!("duplicate field {field:?}")).collect();
    let unknown = |field: String| format!("unknown field {field:?}");
    problems.extend(schema::conform_metadata(&mut object, "").map_err(refuse)?);
    let mut broken = None;
    structural::embedded(&mut object, &version.schema, &mut |path, embedded| {
        if embedded.contains_key("metadata") {
            match schema::conform_metadata(embedded, path) {
                Ok(found) => problems.extend(found),
                Err(why) => broken = Some(why),
            }
        }
    });
    if let Some(why) = broken {
        return Err(refuse(why));
    }
    if !definition.preserves_unknown {
        let mut pruned = structural::prune(&mut object, &version.schema);
        pruned.sort_unstable();
        problems.extend(pruned.into_iter().map(unknown));
    }
    problems.truncate(MAX_NAMED);
    let mut object = Value::Object(object);
    structural::drop_nulls(&mut object, &version.schema);
    match validation {
        FieldValidation::Ignore => Ok((object, Vec::new())),
        FieldValidation::Strict if !problems.is_empty() => {
            Err(refuse(format!("strict decoding error: {}", problems.join(", "))))
        }
        _ => Ok((object, problems)),
    }
}

/// Fills in the defaults of the schema.
pub(super) fn default(resource: &Resource, definition: &Definition, object: &mut Value) {
    if let Some(version) = definition.version(resource.version) {
        structural::default(object, &version.schema);
    }
}

/// The object as it is stored: in the version that the definition stores. One that a webhook converts is
/// in that version already.
pub(super) fn to_storage(resource: &Resource, definition: &Definition, object: Value) -> Value {
    match definition.conversion {
        Conversion::None => relabelled(resource, definition, object, &definition.stored),
        Conversion::Webhook(_) => object,
    }
}

/// A stored object as this resource shows it: in its version, with the defaults that it has by now. One
/// that a webhook converts is in that version already.
pub(super) fn from_storage(resource: &Resource, definition: &Definition, stored: Value) -> Value {
    let mut object = match definition.conversion {
        Conversion::None => relabelled(resource, definition, stored, resource.version),
        Conversion::Webhook(_) => stored,
    };
    let Some(version) = definition.version(resource.version) else { return object };
    if let Some(map) = object.as_object_mut().filter(|_| !definition.preserves_unknown) {
        structural::prune(map, &version.schema);
    }
    structural::drop_nulls(&mut object, &version.schema);
    structural::default(&mut object, &version.schema);
    object
}

/// An object in another version, where nothing but `apiVersion` differs, without what that version does
/// not name.
pub(crate) fn relabelled(
    resource: &Resource,
    definition: &Definition,
    mut object: Value,
    version: &str,
) -> Value {
    let api_version = format!("{}/{version}", resource.group);
    if object["apiVersion"] == api_version {
        return object;
    }
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".into(), api_version.into());
    }
    pruned(definition, object, version)
}

/// An object of a version without what that does not name.
pub(crate) fn pruned(definition: &Definition, mut object: Value, version: &str) -> Value {
    if let Some(version) = definition.version(version)
        && let Some(map) = object.as_object_mut().filter(|_| !definition.preserves_unknown)
    {
        structural::prune(map, &version.schema);
    }
    object
}

/// The warning for clients that use a deprecated version.
pub(crate) fn deprecation(resource: &Resource) -> Option<String> {
    with_version(resource, |version| version.deprecation.clone()).flatten()
}

/// Rules of a new object, or of an update of the stored one.
pub(super) fn validate(
    resource: &Resource,
    definition: &Definition,
    object: &Value,
    old: Option<&Value>,
    causes: &mut Causes,
) {
    let Some(version) = definition.version(resource.version) else { return };
    let mut errors = structural::validate(object, old, &version.schema);
    errors.extend(scale_errors(version, object));
    let were_unique =
        old.is_none_or(|old| structural::check_lists(old, &version.schema).is_empty());
    if were_unique {
        errors.extend(structural::check_lists(object, &version.schema));
    }
    rules(version, object, old, &mut errors);
    causes.0.extend(errors.into_iter().take(MAX_NAMED).map(cause));
}

/// Rules of an update of the status: those of the schema of `status`.
pub(super) fn validate_status(
    resource: &Resource,
    definition: &Definition,
    object: &Value,
    old: &Value,
    causes: &mut Causes,
) {
    let Some(version) = definition.version(resource.version) else { return };
    // The rest of the object is as it was, and so are the rules that it breaks.
    let is_of_status = |error: &FieldError| {
        error.path == "status" || error.path.starts_with("status.") || error.path == "<nil>"
    };
    let mut errors = structural::validate(object, Some(old), &version.schema);
    if structural::check_lists(old, &version.schema).is_empty() {
        errors.extend(structural::check_lists(object, &version.schema));
    }
    errors.extend(scale_errors(version, object));
    errors.retain(is_of_status);
    rules(version, object, Some(old), &mut errors);
    causes.0.extend(errors.into_iter().take(MAX_NAMED).map(cause));
}

/// Adds the rules in CEL that do not hold, if the object is sound enough to look at them.
fn rules(version: &Version, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let blocks = |error: &FieldError| !matches!(error.kind, Kind::Invalid | Kind::Duplicate);
    let Some(validator) = &version.rules else { return };
    if errors.iter().any(blocks) {
        errors.push(FieldError {
            kind: Kind::Invalid,
            path: "<nil>".into(),
            value: Some(Value::Null),
            detail: "some validation rules were not checked because the object was invalid; \
                     correct the existing errors to complete validation"
                .into(),
        });
        return;
    }
    errors.extend(validate_rules(validator, object, old));
}

/// Evaluates `x-kubernetes-validations` of a schema and of all below it: what does not hold.
fn validate_rules(
    validator: &cel::crd::Validator,
    object: &Value,
    old: Option<&Value>,
) -> Vec<FieldError> {
    let mut budget = cel::Budget(cel::RUNTIME_BUDGET);
    let report = validator.validate(object, old, &mut budget);
    report.failures.into_iter().map(broken_rule).collect()
}

/// A rule that does not hold, or one of a definition that is none.
pub(in crate::kinds) fn broken_rule(failure: cel::crd::Failure) -> FieldError {
    use cel::crd::FailureKind;
    let kind = match failure.kind {
        FailureKind::Required => Kind::Required,
        FailureKind::Forbidden => Kind::Forbidden,
        FailureKind::Duplicate => Kind::Duplicate,
        FailureKind::NotSupported => Kind::NotSupported(Vec::new()),
        FailureKind::Invalid | FailureKind::Internal => Kind::Invalid,
    };
    let path = failure.path.strip_prefix('.').unwrap_or(&failure.path).to_owned();
    FieldError { kind, path, value: failure.value, detail: failure.detail }
}

/// The replicas of a scale are whole numbers from 0 to 2³¹-1.
fn scale_errors(version: &Version, object: &Value) -> Vec<FieldError> {
    let Some(scale) = &version.scale else { return Vec::new() };
    [&scale.spec, &scale.status]
        .into_iter()
        .filter_map(|path| {
            let fields = path.fields()?;
            let path = format!(".{}", fields.join("."));
            let (value, detail) = match number_at(object, &fields) {
                Ok(Some(number @ ..0)) => (number, "should be a non-negative integer".to_owned()),
                Ok(Some(number)) if number > i64::from(i32::MAX) => {
                    (number, "should be less than or equal to 2147483647".to_owned())
                }
                Ok(_) => return None,
                Err(why) => (0, format!("{path} accessor error: {why}")),
            };
            Some(FieldError { kind: Kind::Invalid, path, value: Some(value.into()), detail })
        })
        .collect()
}

/// The number that these fields lead to, if there is any.
fn number_at(object: &Value, fields: &[&str]) -> Result<Option<i64>, String> {
    let wrong = |value: &Value, wanted: &str| {
        let value_text = schema::field::shortened(schema::printed(value));
        let found = schema::type_of(value).replace(" {}", "{}");
        format!("{value_text} is of the type {found}, expected {wanted}")
    };
    let mut value = object;
    for field in fields {
        let map = value.as_object().ok_or_else(|| wrong(value, "map[string]interface{}"))?;
        match map.get(*field) {
            Some(found) => value = found,
            None => return Ok(None),
        }
    }
    value.as_i64().map(Some).ok_or_else(|| wrong(value, "int64"))
}

/// A broken rule as clients see it.
pub(crate) fn cause(error: FieldError) -> Cause {
    let FieldError { kind, path, value, detail } = error;
    let named = |what: &str| match &value {
        Some(value) => format!("{what}: {}", schema::field::shortened(value.to_string())),
        None => what.to_owned(),
    };
    let and = |what: String, detail: &str| match detail {
        "" => what,
        detail => format!("{what}: {detail}"),
    };
    let (reason, message) = match kind {
        Kind::Required => ("FieldValueRequired", and("Required value".into(), &detail)),
        Kind::Forbidden => ("FieldValueForbidden", and("Forbidden".into(), &detail)),
        Kind::Invalid => ("FieldValueInvalid", and(named("Invalid value"), &detail)),
        Kind::TypeInvalid => ("FieldValueTypeInvalid", and(named("Invalid value"), &detail)),
        Kind::Duplicate => ("FieldValueDuplicate", and(named("Duplicate value"), &detail)),
        Kind::NotSupported(supported) => {
            let quoted: Vec<String> = supported.iter().map(|text| format!("{text:?}")).collect();
            let detail = format!("supported values: {}", quoted.join(", "));
            ("FieldValueNotSupported", and(named("Unsupported value"), &detail))
        }
        Kind::TooLong(..0) => ("FieldValueTooLong", "Too long: value is too long".to_owned()),
        Kind::TooLong(most) => {
            ("FieldValueTooLong", format!("Too long: may not be more than {most} bytes"))
        }
        Kind::TooMany(count, most) => {
            ("FieldValueTooMany", format!("Too many: {count}: must have at most {most} items"))
        }
    };
    Cause { reason, message, field: path }
}

/// The number of replicas that a scale says, its status, and the selector as text.
pub(crate) fn scale(resource: &Resource, object: &Value) -> Option<(i64, i64, String)> {
    let definition = resource.definition()?;
    let scale = definition.version(resource.version)?.scale.as_ref()?;
    let number = |path: &structural::Path| path.first(object).and_then(Value::as_i64).unwrap_or(0);
    let selector = scale.selector.as_ref().and_then(|path| path.first(object)).map(text);
    Some((number(&scale.spec), number(&scale.status), selector.unwrap_or_default().to_owned()))
}

/// Sets the number of replicas. `false`: the object has no place for it.
pub(crate) fn set_replicas(resource: &Resource, object: &mut Value, replicas: i64) -> bool {
    let definition = resource.definition();
    let version = definition.as_ref().and_then(|definition| definition.version(resource.version));
    match version.and_then(|version| version.scale.as_ref()) {
        Some(scale) => scale.spec.set(object, replicas.into()),
        None => false,
    }
}

/// The cells of a row beside the name.
pub(crate) fn cells(version: &Version, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
    let cell = |column: &crate::api_types::Column| {
        let Some(value) = column.path.as_ref().and_then(|path| path.first(object)) else {
            return Value::Null;
        };
        match (column.kind.as_str(), value) {
            ("integer", Value::Number(number)) if number.is_f64() => {
                number.as_f64().map_or(Value::Null, |number| json!(number.trunc()))
            }
            ("integer" | "number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
            ("string", Value::String(_)) => value.clone(),
            ("string", Value::Null) => Value::Null,
            ("string", other) => other.to_string().into(),
            ("date", Value::String(_)) => super::printers::since(value, now).into(),
            _ => Value::Null,
        }
    };
    let name = Value::from(text(&object["metadata"]["name"]));
    std::iter::once(name).chain(version.columns.iter().map(cell)).collect()
}

/// The column definitions of a table.
pub(crate) fn columns(version: &Version) -> Value {
    let name = json!({"name": "Name", "type": "string", "format": "name", "priority": 0,
        "description": "Name must be unique within a namespace."});
    let column = |column: &crate::api_types::Column| {
        json!({
            "name": column.name, "type": column.kind, "format": column.format,
            "description": column.description, "priority": column.priority,
        })
    };
    std::iter::once(name).chain(version.columns.iter().map(column)).collect()
}

/// The definition and what it says of the resource's version.
pub(crate) fn with_version<T>(resource: &Resource, see: impl FnOnce(&Version) -> T) -> Option<T> {
    let definition: Arc<Definition> = resource.definition()?;
    definition.version(resource.version).map(see)
}
