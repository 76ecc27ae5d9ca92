//! Types that schemas declare, with how much they hold at most.

pub(crate) mod types;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::decl::types::Type;
use crate::keywords::is_keyword;

/// The largest request, in bytes: an unlimited string or list holds no more.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// What a value of a schema is, and how large it may be.
#[derive(Debug)]
pub struct Decl {
    /// What it is.
    pub kind: DeclKind,
    /// The most characters, items or entries; zero for what has none.
    pub max_elements: u64,
    /// The least bytes that it takes as JSON.
    pub min_size: u64,
}

/// What a value is.
#[derive(Debug)]
pub enum DeclKind {
    /// Whatever it is at evaluation.
    Dyn,
    /// A whole number or a string.
    IntOrString,
    /// A boolean.
    Bool,
    /// A whole number.
    Int,
    /// A number.
    Double,
    /// A string.
    String,
    /// A string in base64.
    Bytes,
    /// A string with a duration.
    Duration,
    /// A string with a date or a time.
    Timestamp,
    /// A list.
    List(Arc<Decl>, ListKind),
    /// A map from strings.
    Map(Arc<Decl>),
    /// An object with known fields.
    Object(Object),
}

/// How the items of a list are distinguished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListKind {
    /// By their place.
    Atomic,
    /// Each is there once.
    Set,
    /// By the values of these fields.
    Map(Vec<String>),
}

/// An object with known fields.
#[derive(Debug)]
pub struct Object {
    /// The name of the type.
    pub name: String,
    /// By their names in expressions.
    pub fields: BTreeMap<String, Field>,
}

/// A field of an object.
#[derive(Debug)]
pub struct Field {
    /// The name in JSON.
    pub name: String,
    /// What it is.
    pub decl: Arc<Decl>,
}

/// For values of which nothing is known.
pub static DYN: Decl = Decl { kind: DeclKind::Dyn, max_elements: 0, min_size: 1 };

impl Decl {
    fn new(kind: DeclKind, max_elements: u64, min_size: u64) -> Arc<Self> {
        Arc::new(Self { kind, max_elements, min_size })
    }

    /// An object with these fields.
    pub fn object(name: &str, fields: impl IntoIterator<Item = (String, Arc<Self>)>) -> Arc<Self> {
        let fields = fields
            .into_iter()
            .filter_map(|(name, decl)| Some((escape(&name)?, Field { name, decl })))
            .collect();
        Self::new(DeclKind::Object(Object { name: name.to_owned(), fields }), 0, 2)
    }

    /// A list of these.
    pub fn list(item: Arc<Self>) -> Arc<Self> {
        let most = most_items(item.min_size);
        Self::new(DeclKind::List(item, ListKind::Atomic), most, 2)
    }

    /// A map to these.
    pub fn map(value: Arc<Self>) -> Arc<Self> {
        let most = most_entries(value.min_size);
        Self::new(DeclKind::Map(value), most, 2)
    }

    /// A string without a limit.
    pub fn string() -> Arc<Self> {
        Self::new(DeclKind::String, MAX_REQUEST.saturating_sub(2), 2)
    }

    /// A value without parts.
    pub fn simple(kind: DeclKind) -> Arc<Self> {
        let size = if matches!(kind, DeclKind::Bool) { 4 } else { 1 };
        Self::new(kind, 0, size)
    }

    /// What a structural schema declares; `None` where upstream leaves the field out. `name` is the name
    /// of the type. `root`: of a whole resource, which has type and metadata whether declared or not.
    pub fn of_schema(schema: &Json, name: &str, root: bool) -> Option<Arc<Self>> {
        let limit = |field: &str| limit_of(schema, field);
        let request = MAX_REQUEST.saturating_sub(2);
        if schema["x-kubernetes-int-or-string"] == true {
            let most = limit("maxLength").map_or(request, |most| most.saturating_mul(4));
            return Some(Self::new(DeclKind::IntOrString, most, 1));
        }
        let declared = match schema["type"].as_str()? {
            "array" => {
                let items = schema.get("items")?;
                let embedded = items["x-kubernetes-embedded-resource"] == true;
                let item = Self::of_schema(items, &format!("{name}.@idx"), embedded)?;
                let most = limit("maxItems").unwrap_or_else(|| most_items(item.min_size));
                let kind = match schema["x-kubernetes-list-type"].as_str() {
                    Some("set") => ListKind::Set,
                    Some("map") => ListKind::Map(texts(&schema["x-kubernetes-list-map-keys"])),
                    _ => ListKind::Atomic,
                };
                Self::new(DeclKind::List(item, kind), most, 2)
            }
            "object" => {
                if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
                    let embedded = values["x-kubernetes-embedded-resource"] == true;
                    let value = Self::of_schema(values, &format!("{name}.@elem"), embedded)?;
                    let most =
                        limit("maxProperties").unwrap_or_else(|| most_entries(value.min_size));
                    return Some(Self::new(DeclKind::Map(value), most, 2));
                }
                object_of_schema(schema, name, root)
            }
            "string" => match schema["format"].as_str() {
                Some("byte") => {
                    Self::new(DeclKind::Bytes, limit("maxLength").unwrap_or(request), 2)
                }
                Some("duration") => Self::new(DeclKind::Duration, 32, 3),
                Some("date") => Self::new(DeclKind::Timestamp, 12, 12),
                Some("date-time") => Self::new(DeclKind::Timestamp, 32, 21),
                _ => {
                    let most = match (limit("maxLength"), schema["enum"].as_array()) {
                        (Some(most), _) => most.saturating_mul(4),
                        (None, Some(values)) if !values.is_empty() => {
                            let sizes = values.iter().filter_map(|v| v.as_str()).map(str::len);
                            sizes.max().and_then(|most| u64::try_from(most).ok()).unwrap_or(0)
                        }
                        _ => request,
                    };
                    Self::new(DeclKind::String, most, 2)
                }
            },
            "boolean" => Self::new(DeclKind::Bool, 0, 4),
            "number" => Self::new(DeclKind::Double, 0, 1),
            "integer" => Self::new(DeclKind::Int, 0, 1),
            _ => return None,
        };
        Some(declared)
    }

    /// The type of its values.
    pub fn cel_type(self: &Arc<Self>) -> Type {
        match &self.kind {
            DeclKind::Dyn | DeclKind::IntOrString => Type::Dyn,
            DeclKind::Bool => Type::Bool,
            DeclKind::Int => Type::Int,
            DeclKind::Double => Type::Double,
            DeclKind::String => Type::String,
            DeclKind::Bytes => Type::Bytes,
            DeclKind::Duration => Type::Duration,
            DeclKind::Timestamp => Type::Timestamp,
            DeclKind::List(item, _) => Type::list(item.cel_type()),
            DeclKind::Map(value) => Type::map(Type::String, value.cel_type()),
            DeclKind::Object(_) => Type::Object(self.clone()),
        }
    }

    /// A field by its name in expressions.
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        match &self.kind {
            DeclKind::Object(object) => object.field(name),
            _ => None,
        }
    }

    /// What items of a list, or values of a map, are.
    pub fn element(&self) -> Option<&Arc<Self>> {
        match &self.kind {
            DeclKind::List(item, _) => Some(item),
            DeclKind::Map(value) => Some(value),
            _ => None,
        }
    }
}

impl Object {
    /// A field by its name in expressions; a reserved word may stand for itself.
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields
            .get(name)
            .or_else(|| is_keyword(name).then(|| self.fields.get(&format!("__{name}__"))).flatten())
    }
}

fn object_of_schema(schema: &Json, name: &str, root: bool) -> Arc<Decl> {
    let required = texts(&schema["required"]);
    let mut fields = BTreeMap::new();
    let mut min_size: u64 = 2;
    for (own, property) in schema["properties"].as_object().into_iter().flatten() {
        let type_name = format!("{name}.{}", escape(own).as_deref().unwrap_or(own));
        let embedded = property["x-kubernetes-embedded-resource"] == true;
        let Some(decl) = Decl::of_schema(property, &type_name, embedded) else { continue };
        if required.contains(own) && property["default"].is_null() {
            let size = u64::try_from(own.len()).unwrap_or(u64::MAX);
            min_size =
                min_size.saturating_add(size).saturating_add(decl.min_size).saturating_add(4);
        }
        if let Some(escaped) = escape(own) {
            fields.insert(escaped, Field { name: own.clone(), decl });
        }
    }
    if root {
        for own in ["apiVersion", "kind"] {
            fields.insert(own.to_owned(), Field { name: own.to_owned(), decl: Decl::string() });
        }
        let names = ["name", "generateName"].map(|own| (own.to_owned(), Decl::string()));
        let decl = Decl::object(&format!("{name}.metadata"), names);
        fields.insert("metadata".to_owned(), Field { name: "metadata".to_owned(), decl });
    }
    Decl::new(DeclKind::Object(Object { name: name.to_owned(), fields }), 0, min_size)
}

fn limit_of(schema: &Json, field: &str) -> Option<u64> {
    let limit = &schema[field];
    match limit.as_u64() {
        Some(limit) => Some(limit),
        None => limit.as_f64().map(|limit| limit.max(0.0) as u64),
    }
}

fn texts(list: &Json) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|text| text.as_str()).map(str::to_owned).collect()
}

fn most_items(min_size: u64) -> u64 {
    MAX_REQUEST.saturating_sub(2).checked_div(min_size.saturating_add(1)).unwrap_or(0)
}

fn most_entries(min_size: u64) -> u64 {
    MAX_REQUEST.saturating_sub(2).checked_div(min_size.saturating_add(6)).unwrap_or(0)
}

/// How often a value of this size may be in a request at most.
pub(crate) fn max_cardinality(min_size: u64) -> u64 {
    MAX_REQUEST.checked_div(min_size.saturating_add(1)).unwrap_or(0)
}

/// The name of a property in expressions; `None` where it has none.
pub fn escape(name: &str) -> Option<String> {
    if name.starts_with(|c: char| c.is_ascii_digit()) || name.is_empty() {
        return None;
    }
    if is_keyword(name) {
        return Some(format!("__{name}__"));
    }
    let mut escaped = String::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '_' if chars.next_if_eq(&'_').is_some() => escaped.push_str("__underscores__"),
            '.' => escaped.push_str("__dot__"),
            '-' => escaped.push_str("__dash__"),
            '/' => escaped.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => escaped.push(c),
            _ => return None,
        }
    }
    Some(escaped)
}
