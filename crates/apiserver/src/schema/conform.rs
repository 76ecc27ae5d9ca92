//! Checks an object against its type: wrong types are refused, unknown fields dropped, and values
//! with more than one spelling (quantities, times) take the one that is stored.

use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine, alphabet};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use serde_json::{Map, Number, Value, json};

use super::FieldValidation;
use super::decode::{Decoded, MAX_NAMED_FIELDS, NO_KIND};
use super::quantity::{self, Quantity};
use super::value::text;
use crate::api_types::{Field, Gvk, Leaf, Shape, Type, go_field, types};
use crate::status::StatusError;

/// Go's type of what every object begins with.
const TYPE_META: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
/// Where upstream's kinds are registered, as its messages have it.
const SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";
/// The same of the options of requests.
const OPTIONS_SCHEME: &str = "pkg/apis/meta/internalversion/scheme/register.go:27";

/// Checks the object against the type of `gvk`: fills in a missing apiVersion and kind, drops nulls
/// and unknown fields, refuses wrong types with 400. Returns the object, and warnings for
/// `Warning:` headers about the fields that were unknown or occurred twice.
pub fn conform(
    gvk: Gvk,
    decoded: Decoded,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), StatusError> {
    let Some(ty) = types().of(gvk) else {
        return Err(StatusError::internal(format!("no type for {}", gvk.kind)));
    };
    let Decoded { value, duplicates } = decoded;
    let refuse = |why: String| match gvk == Gvk::DELETE_OPTIONS {
        true => StatusError::bad_request(why),
        false => not_handled((gvk.kind, gvk.version), gvk, &why),
    };
    check_type_meta(&value)?;
    // null is an object without fields
    let mut object = match value {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    check_kind(gvk, &mut object)?;
    let mut walk = Walk::default();
    walk.fields(ty, &mut object).map_err(refuse)?;
    if ty.field("metadata").is_some() {
        object.entry("metadata").or_insert_with(|| json!({}));
    }
    let problems =
        walk.unknown.into_iter().chain(duplicates.iter().map(|d| format!("duplicate field {d:?}")));
    match validation {
        FieldValidation::Ignore => Ok((Value::Object(object), Vec::new())),
        FieldValidation::Warn => Ok((Value::Object(object), problems.collect())),
        FieldValidation::Strict => {
            let problems: Vec<String> = problems.collect();
            if problems.is_empty() {
                return Ok((Value::Object(object), problems));
            }
            Err(refuse(format!("strict decoding error: {}", problems.join(", "))))
        }
    }
}

/// Checks the metadata of an object whose other fields are not of a type that is known here. Unknown
/// fields are dropped, and named below `path`.
pub(crate) fn conform_metadata(
    object: &mut Map<String, Value>,
    path: &str,
) -> Result<Vec<String>, String> {
    const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let Some(ty) = types().named(METADATA) else { return Ok(Vec::new()) };
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if metadata.is_null() {
        *metadata = json!({});
    }
    let Some(metadata) = metadata.as_object_mut() else {
        return Err(format!(
            "json: cannot unmarshal {} into Go value of type v1.ObjectMeta",
            word(metadata)
        ));
    };
    let dot = if path.is_empty() { "" } else { "." };
    let path = format!("{path}{dot}metadata");
    let mut walk = Walk { path, fields: Vec::new(), unknown: Vec::new() };
    walk.fields(ty, metadata)?;
    Ok(walk.unknown)
}

fn not_handled((kind, version): (&str, &str), gvk: Gvk, why: &str) -> StatusError {
    StatusError::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {}: {why}",
        gvk.kind
    ))
}

/// Refuses what is no object, and one whose apiVersion and kind cannot be read.
pub(crate) fn check_type_meta(value: &Value) -> Result<(), StatusError> {
    let refuse = |why: String| Err(StatusError::bad_request(format!("{NO_KIND}json: {why}")));
    let object = match value {
        Value::Object(object) => object,
        Value::Null => return Ok(()),
        other => {
            let word = word(other);
            return refuse(format!("cannot unmarshal {word} into Go value of type {TYPE_META}"));
        }
    };
    for field in ["apiVersion", "kind"] {
        match object.get(field) {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => {
                let word = word(other);
                return refuse(format!(
                    "cannot unmarshal {word} into Go struct field .{field} of type string"
                ));
            }
        }
    }
    let given = object.get("apiVersion").map_or("", text);
    match given.matches('/').count() {
        0 | 1 => Ok(()),
        _ => Err(StatusError::bad_request(format!("unexpected GroupVersion string: {given}"))),
    }
}

/// Fills in apiVersion and kind; refuses those of another kind.
pub(crate) fn check_kind(gvk: Gvk, object: &mut Map<String, Value>) -> Result<(), StatusError> {
    let wanted = gvk.api_version();
    let or = |field: &str, default: &str| match object.get(field).map_or("", text) {
        "" => default.to_owned(),
        given => given.to_owned(),
    };
    let (given, kind) = (or("apiVersion", &wanted), or("kind", gvk.kind));
    let is_same = match kind == gvk.kind {
        false => false,
        // It is the same object in every group.
        true if gvk == Gvk::DELETE_OPTIONS => true,
        // An older version with the same fields, which clients still send.
        true if kind == "Eviction" && given == "policy/v1beta1" => true,
        true => given == wanted,
    };
    if !is_same {
        return Err(match gvk == Gvk::DELETE_OPTIONS {
            true => {
                let given = or("apiVersion", "meta.k8s.io/v1");
                StatusError::bad_request(not_registered(&kind, &given, OPTIONS_SCHEME))
            }
            false => other_kind(gvk, &given, &kind),
        });
    }
    object.insert("apiVersion".into(), wanted.into());
    object.insert("kind".into(), gvk.kind.into());
    Ok(())
}

fn not_registered(kind: &str, api_version: &str, scheme: &str) -> String {
    format!("no kind {kind:?} is registered for version {api_version:?} in scheme {scheme:?}")
}

/// The refusal of an object of another kind, or of another version of its kind.
fn other_kind(gvk: Gvk, api_version: &str, kind: &str) -> StatusError {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let why = match types().of_kind(api_version, kind) {
        None => not_registered(kind, api_version, SCHEME),
        Some(_) if is_version_of(gvk, group, kind) => {
            return StatusError::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({})",
                gvk.api_version()
            ));
        }
        Some(_) => format!(
            "converting ({version}.{kind}) to ({}.{}): unknown conversion",
            internal_package(gvk),
            gvk.kind
        ),
    };
    not_handled((kind, version), gvk, &why)
}

/// Whether a kind is another version of this one.
fn is_version_of(gvk: Gvk, group: &str, kind: &str) -> bool {
    let is_event = |group: &str| matches!(group, "" | "events.k8s.io");
    kind == gvk.kind
        && (group == gvk.group || kind == "Event" && is_event(group) && is_event(gvk.group))
}

/// The Go package of upstream's type for all versions of a kind.
pub(crate) fn internal_package(gvk: Gvk) -> &'static str {
    let name = types().of(gvk).map_or("", |ty| ty.name);
    match name.rsplit('.').nth(2).unwrap_or_default() {
        "events" => "core",
        package => package,
    }
}

#[derive(Default)]
struct Walk {
    /// Where it is, with indexes and keys.
    path: String,
    /// The fields that led there alone, as Go's JSON reader has them.
    fields: Vec<(&'static Type, String)>,
    unknown: Vec<String>,
}

impl Walk {
    fn fields(&mut self, ty: &'static Type, object: &mut Map<String, Value>) -> Result<(), String> {
        let end = self.path.len();
        let mut dropped: Vec<String> = Vec::new();
        for (name, value) in object.iter_mut() {
            if end > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
            self.fields.push((ty, name.clone()));
            match ty.field(name) {
                None => {
                    if self.unknown.len() < MAX_NAMED_FIELDS {
                        self.unknown.push(format!("unknown field {:?}", self.path));
                    }
                    dropped.push(name.clone());
                }
                Some(field) => {
                    if !value.is_null() {
                        self.field(ty, field, value)?;
                    }
                    let keeps_empty = ty.required.contains(&field.name)
                        || EMPTY_COUNTS.contains(&(ty.short_name(), field.name));
                    if value.is_null() || (is_empty_collection(field, value) && !keeps_empty) {
                        dropped.push(name.clone());
                    }
                }
            }
            self.path.truncate(end);
            self.fields.pop();
        }
        for name in &dropped {
            object.remove(name);
        }
        Ok(())
    }

    fn field(&mut self, ty: &'static Type, field: &Field, value: &mut Value) -> Result<(), String> {
        match (field.shape, &mut *value) {
            (Shape::One, value) => self.leaf(ty, field, value),
            (Shape::List, Value::Array(list)) => self.list(ty, field, list),
            (Shape::Map, Value::Object(map)) => {
                let end = self.path.len();
                for (key, value) in map {
                    self.path.push('.');
                    self.path.push_str(key);
                    self.element(ty, field, value)?;
                    self.path.truncate(end);
                }
                Ok(())
            }
            (Shape::MapOfLists, Value::Object(map)) => {
                for value in map.values_mut() {
                    match value {
                        Value::Array(list) => self.list(ty, field, list)?,
                        Value::Null => *value = json!([]),
                        other => return Err(self.mismatch(ty, other, &go_type(ty, field))),
                    }
                }
                Ok(())
            }
            (_, other) => Err(self.mismatch(ty, other, &go_type(ty, field))),
        }
    }

    fn list(&mut self, ty: &'static Type, field: &Field, list: &mut [Value]) -> Result<(), String> {
        let end = self.path.len();
        for (i, value) in list.iter_mut().enumerate() {
            self.path.push_str(&format!("[{i}]"));
            self.element(ty, field, value)?;
            self.path.truncate(end);
        }
        Ok(())
    }

    /// A value within a list or map, where null stands for the zero value.
    fn element(
        &mut self,
        ty: &'static Type,
        field: &Field,
        value: &mut Value,
    ) -> Result<(), String> {
        if value.is_null() {
            *value = zero(field.leaf);
        }
        self.leaf(ty, field, value)
    }

    fn leaf(&mut self, ty: &'static Type, field: &Field, value: &mut Value) -> Result<(), String> {
        let fits = match (field.leaf, &mut *value) {
            (Leaf::Struct(index), Value::Object(map)) => {
                return self.fields(types().get(index), map);
            }
            (Leaf::Either(index), Value::Object(map)) => {
                // upstream reads these by themselves, and tells nobody what it does not know in them
                let known = self.unknown.len();
                let read = self.fields(types().get(index), map);
                self.unknown.truncate(known);
                return read;
            }
            (Leaf::Either(_), value) if OR_BOOLEAN.contains(&field.name) => {
                return match value {
                    Value::Bool(_) => Ok(()),
                    _ => Err("boolean or JSON schema expected".to_owned()),
                };
            }
            (Leaf::Either(_), Value::Array(list)) => return self.list(ty, field, list),
            (Leaf::Any | Leaf::Either(_), _)
            | (Leaf::String, Value::String(_))
            | (Leaf::Bool, Value::Bool(_)) => true,
            (Leaf::Double, Value::Number(_)) => true,
            (Leaf::Int64, Value::Number(n)) => n.is_i64(),
            (Leaf::Int32, Value::Number(n)) => is_int32(n),
            (Leaf::IntOrString, Value::Number(n)) => is_int32(n),
            (Leaf::IntOrString, Value::String(_)) => true,
            (Leaf::Quantity, Value::Number(_) | Value::String(_)) => {
                let normalized_name =
                    value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let quantity = Quantity::parse(&normalized_name).ok_or(quantity::SYNTAX)?;
                *value = quantity.to_string().into();
                true
            }
            (Leaf::Time, Value::String(s)) => {
                *s = time(s, SECONDS)?.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                true
            }
            (Leaf::MicroTime, Value::String(s)) => {
                *s = time(s, MICROSECONDS)?.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
                true
            }
            (Leaf::Bytes, Value::String(s)) => {
                if s.contains(['\n', '\r']) {
                    s.retain(|c| c != '\n' && c != '\r');
                }
                BASE64.decode(s.as_bytes()).map_err(|error| not_base64(s, &error))?;
                true
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(self.mismatch(ty, value, &go_element(ty, field, value))) }
    }

    fn mismatch(&self, ty: &Type, value: &Value, go_type: &str) -> String {
        let mut path: Vec<&str> = Vec::new();
        for (ty, field) in &self.fields {
            path.extend(go_field(ty, field).and_then(|go| go.embedded));
            path.push(field);
        }
        format!(
            "json: cannot unmarshal {} into Go struct field {}.{} of type {go_type}",
            match value {
                // A number of the wrong size is named, one in the wrong place is not.
                Value::Number(number) if is_go_number(go_type) => format!("number {number}"),
                value => word(value).to_owned(),
            },
            ty.short_name(),
            path.join(".")
        )
    }
}

/// Go's layouts of times.
const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROSECONDS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// A time in UTC. Go's times, and so the API's, reach a day further than jiff's timestamps, to the
/// end of the year 9999.
fn time(text: &str, layout: &str) -> Result<DateTime, String> {
    let time = text.parse::<Timestamp>().map(|time| Offset::UTC.to_datetime(time));
    let is_last = |text: &&str| text.starts_with("9999-12-3") && text.contains('T');
    let last = || text.strip_suffix('Z').filter(is_last)?.parse::<DateTime>().ok();
    // A year before 0 can be written, and no client reads it back.
    time.ok().or_else(last).filter(|time| time.year() >= 0).ok_or_else(|| {
        format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"")
    })
}

/// Go does not mind bits that are left over at the end.
pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Go's words for text that is not base64; it counts from the group of four that is incomplete.
fn not_base64(text: &str, error: &DecodeError) -> String {
    let at = match error {
        DecodeError::InvalidByte(at, _) => *at,
        _ => text.len().saturating_sub(1) / 4 * 4,
    };
    format!("illegal base64 data at input byte {at}")
}

fn is_int32(n: &Number) -> bool {
    n.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
}

/// Fields that are a schema or whether there is one.
const OR_BOOLEAN: [&str; 2] = ["additionalProperties", "additionalItems"];

/// Lists that are not the same when they are empty as when nothing is said of them. None of these is stored
/// empty.
const EMPTY_COUNTS: [(&str, &str); 2] =
    [("ObjectMeta", "managedFields"), ("HPAScalingRules", "policies")];

/// Go leaves empty lists and maps out; an empty struct stays, since it can mean something (`emptyDir: {}`).
fn is_empty_collection(field: &Field, value: &Value) -> bool {
    match (field.shape, value) {
        (Shape::List, Value::Array(list)) => list.is_empty(),
        (Shape::Map | Shape::MapOfLists, Value::Object(map)) => map.is_empty(),
        _ => false,
    }
}

fn zero(leaf: Leaf) -> Value {
    match leaf {
        Leaf::String | Leaf::Bytes => json!(""),
        Leaf::Bool => json!(false),
        Leaf::Int32 | Leaf::Int64 | Leaf::Double | Leaf::IntOrString => json!(0),
        Leaf::Quantity => json!("0"),
        Leaf::Struct(_) => json!({}),
        Leaf::Time | Leaf::MicroTime | Leaf::Any | Leaf::Either(_) => Value::Null,
    }
}

/// What the value is, in the words of Go's JSON reader.
pub(crate) fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_go_number(go_type: &str) -> bool {
    matches!(go_type, "int32" | "int64" | "float64")
}

/// The Go type that a value is read into.
fn go_leaf(leaf: Leaf, value: &Value) -> String {
    let name = match leaf {
        Leaf::String => "string",
        Leaf::Bytes => "[]uint8",
        Leaf::Bool => "bool",
        Leaf::Int32 => "int32",
        Leaf::Int64 => "int64",
        Leaf::Double => "float64",
        Leaf::Quantity => "resource.Quantity",
        // Times are read as text first, a number or text as an integer.
        Leaf::Time | Leaf::MicroTime => "string",
        Leaf::IntOrString if value.is_number() => "int32",
        Leaf::IntOrString => "intstr.IntOrString",
        Leaf::Any | Leaf::Either(_) => "runtime.RawExtension",
        Leaf::Struct(index) => {
            let name = types().get(index).name;
            let dot = name.rmatch_indices('.').nth(1).map_or(0, |(i, _)| i + 1);
            &name[dot..]
        }
    };
    name.to_owned()
}

/// The Go type that an item or a value of a field is read into.
fn go_element(ty: &Type, field: &Field, value: &Value) -> String {
    let named = go_field(ty, field.name).and_then(|go| go.go_type);
    let of_text = named.filter(|_| field.leaf == Leaf::String).and_then(|name| match field.shape {
        Shape::One => Some(name),
        Shape::List => name.strip_prefix("[]"),
        Shape::Map => {
            name.strip_prefix("map[").and_then(|rest| rest.split_once(']')).map(|(_, of)| of)
        }
        Shape::MapOfLists => None,
    });
    of_text.map_or_else(|| go_leaf(field.leaf, value), str::to_owned)
}

/// The Go type that a field is read into.
fn go_type(ty: &Type, field: &Field) -> String {
    if let Some(name) = go_field(ty, field.name).and_then(|go| go.go_type) {
        return name.to_owned();
    }
    let leaf = match field.leaf {
        Leaf::Any if ty.short_name() == "JSONSchemaProps" => "v1.JSON".to_owned(),
        leaf => go_leaf(leaf, &Value::Null),
    };
    match field.shape {
        Shape::One => leaf,
        Shape::List => format!("[]{leaf}"),
        Shape::Map => format!("map[string]{leaf}"),
        Shape::MapOfLists => format!("map[string][]{leaf}"),
    }
}
