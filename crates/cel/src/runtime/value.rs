//! Values, read from JSON where they stand: lists, maps and strings are borrowed until an operation
//! makes new ones.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use longshore_quantity::Quantity;
use serde_json::{Map as JsonObject, Value as Json};

use crate::Error;
use crate::decl::types::Type;
use crate::decl::{DYN, Decl, DeclKind, ListKind, Object};
use crate::runtime::functions::opaque::Opaque;
use crate::runtime::functions::quantities::Semver;

/// A literal.
#[derive(Debug, Clone)]
pub(crate) enum Const {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

/// What an expression evaluates to.
#[derive(Debug, Clone)]
pub enum Value<'v> {
    /// null
    Null,
    /// true or false
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// A number with a fraction.
    Double(f64),
    /// Text.
    String(Str<'v>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// In nanoseconds.
    Duration(i64),
    /// A point in time.
    Timestamp(Timestamp),
    /// A list.
    List(List<'v>),
    /// A map or an object.
    Map(Map<'v>),
    /// A type.
    Type(Type),
    /// A value that may be absent.
    Optional(Option<Arc<Value<'v>>>),
    /// A value of Kubernetes' libraries.
    Opaque(Arc<Opaque>),
}

/// Text, borrowed or shared.
#[derive(Debug, Clone)]
pub enum Str<'v> {
    /// In a document or an expression.
    Borrowed(&'v str),
    /// Made by an operation.
    Shared(Arc<str>),
}

impl Deref for Str<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

/// A list.
#[derive(Debug, Clone)]
pub enum List<'v> {
    /// In a document.
    Json(&'v [Json], &'v Decl, &'v ListKind),
    /// Made by an operation.
    Owned(Arc<Vec<Value<'v>>>),
}

/// A map or an object.
#[derive(Debug, Clone)]
pub enum Map<'v> {
    /// A map of a document, whose values are so declared.
    Json(&'v JsonObject<String, Json>, &'v Decl),
    /// An object of a document.
    Object(&'v JsonObject<String, Json>, &'v Object),
    /// Made by an operation.
    Owned(Arc<BTreeMap<Key<'v>, Value<'v>>>),
    /// The same, and an empty map for each key that it does not have.
    Nested(Arc<BTreeMap<Key<'v>, Value<'v>>>),
}

/// A key of a map. Numbers that are equal are one key.
#[derive(Debug, Clone)]
pub enum Key<'v> {
    /// true or false
    Bool(bool),
    /// Every number that fits, whatever its type was.
    Int(i64),
    /// A larger one.
    Uint(u64),
    /// Text.
    String(Str<'v>),
}

impl<'v> Key<'v> {
    /// The value as a key, if it can be one.
    pub(crate) fn new(value: &Value<'v>) -> Option<Self> {
        Some(match value {
            Value::Bool(b) => Self::Bool(*b),
            Value::Int(n) => Self::Int(*n),
            Value::Uint(n) => i64::try_from(*n).map_or(Self::Uint(*n), Self::Int),
            Value::Double(n) if n.fract() == 0.0 && n.abs() < 9e15 => Self::Int(*n as i64),
            Value::String(text) => Self::String(text.clone()),
            _ => return None,
        })
    }

    pub(crate) fn value(&self) -> Value<'v> {
        match self {
            Self::Bool(b) => Value::Bool(*b),
            Self::Int(n) => Value::Int(*n),
            Self::Uint(n) => Value::Uint(*n),
            Self::String(text) => Value::String(text.clone()),
        }
    }

    fn order(&self) -> (u8, i128, &str) {
        match self {
            Self::Bool(b) => (0, i128::from(*b), ""),
            Self::Int(n) => (1, i128::from(*n), ""),
            Self::Uint(n) => (1, i128::from(*n), ""),
            Self::String(text) => (2, 0, text),
        }
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key<'_> {}

impl From<&Const> for Value<'static> {
    fn from(value: &Const) -> Self {
        match value {
            Const::Null => Self::Null,
            Const::Bool(b) => Self::Bool(*b),
            Const::Int(n) => Self::Int(*n),
            Const::Uint(n) => Self::Uint(*n),
            Const::Double(n) => Self::Double(*n),
            Const::String(text) => Self::String(Str::Shared(text.clone())),
            Const::Bytes(bytes) => Self::Bytes(bytes.clone()),
        }
    }
}

impl<'v> Value<'v> {
    /// New text.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::String(Str::Shared(text.into()))
    }

    /// A new list.
    pub fn list(items: Vec<Self>) -> Self {
        Self::List(List::Owned(Arc::new(items)))
    }

    /// A quantity.
    pub fn quantity(quantity: Quantity) -> Self {
        Self::Opaque(Arc::new(Opaque::Quantity(quantity)))
    }

    /// A semantic version.
    ///
    /// # Errors
    /// The text is none.
    pub fn semver(text: &str) -> Result<Self, Error> {
        Semver::parse(text, false)
            .map(|own| Self::Opaque(Arc::new(Opaque::Semver(own))))
            .map_err(Error::new)
    }

    /// A present optional value.
    pub fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// A value of a document of which nothing is declared.
    pub fn of(json: &'v Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(b) => Self::Bool(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
                (Some(n), ..) => Self::Int(n),
                (None, Some(n), _) => Self::Uint(n),
                (None, None, n) => Self::Double(n.unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::String(Str::Borrowed(text)),
            Json::Array(items) => Self::List(List::Json(items, &DYN, &ListKind::Atomic)),
            Json::Object(map) => Self::Map(Map::Json(map, &DYN)),
        }
    }

    /// A value of a document that is so declared.
    pub fn declared(json: &'v Json, decl: &'v Decl) -> Result<Self, Error> {
        if json.is_null() {
            return Ok(Self::Null);
        }
        let wrong = |expected: &str| Err(Error::new(format!("invalid data, expected {expected}")));
        match &decl.kind {
            DeclKind::Dyn => Ok(Self::of(json)),
            DeclKind::IntOrString => match json {
                Json::String(_) | Json::Number(_) => Ok(Self::of(json)),
                _ => wrong("XIntOrString value to be either a string or integer"),
            },
            DeclKind::Bool => json.as_bool().map_or_else(|| wrong("bool"), |b| Ok(Self::Bool(b))),
            DeclKind::Int => match json.as_i64() {
                Some(n) => Ok(Self::Int(n)),
                None => match json.as_f64() {
                    Some(n) if n.fract() == 0.0 && n.abs() < 9e15 => Ok(Self::Int(n as i64)),
                    _ => wrong("int"),
                },
            },
            DeclKind::Double => {
                json.as_f64().map_or_else(|| wrong("double"), |n| Ok(Self::Double(n)))
            }
            DeclKind::String => match json {
                Json::String(text) => Ok(Self::String(Str::Borrowed(text))),
                _ => wrong("string"),
            },
            DeclKind::Bytes | DeclKind::Duration | DeclKind::Timestamp => match json {
                Json::String(text) => crate::runtime::functions::formatted(text, &decl.kind),
                _ => wrong("string"),
            },
            DeclKind::List(item, kind) => match json {
                Json::Array(items) => Ok(Self::List(List::Json(items, item, kind))),
                _ => wrong("an array"),
            },
            DeclKind::Map(value) => match json {
                Json::Object(map) => Ok(Self::Map(Map::Json(map, value))),
                _ => wrong("a map"),
            },
            DeclKind::Object(object) => match json {
                Json::Object(map) => Ok(Self::Map(Map::Object(map, object))),
                _ => wrong("an object"),
            },
        }
    }

    /// The type that it has now.
    pub fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
            Self::Duration(_) => Type::Duration,
            Self::Timestamp(_) => Type::Timestamp,
            Self::List(_) => Type::list(Type::Dyn),
            Self::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Self::Type(_) => Type::Type(None),
            Self::Optional(_) => Type::optional(Type::Dyn),
            Self::Opaque(opaque) => Type::Named(opaque.type_name()),
        }
    }

    /// The characters of text, bytes, items or entries; 1 for what has none.
    pub(crate) fn size(&self) -> u64 {
        let size = match self {
            Self::String(text) => text.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.len(),
            Self::Map(map) => map.len(),
            Self::Optional(Some(of)) => return of.size(),
            Self::Opaque(opaque) => return opaque.size(),
            _ => 1,
        };
        u64::try_from(size).unwrap_or(u64::MAX)
    }

    /// The value as JSON; `None` for what JSON has no form of.
    pub fn to_json(&self) -> Option<Json> {
        Some(match self {
            Self::Null => Json::Null,
            Self::Bool(b) => Json::Bool(*b),
            Self::Int(n) => (*n).into(),
            Self::Uint(n) => (*n).into(),
            Self::Double(n) => serde_json::Number::from_f64(*n).map(Json::Number)?,
            Self::String(text) => Json::String(text.to_string()),
            Self::Bytes(_) | Self::Duration(_) | Self::Timestamp(_) => {
                Json::String(crate::runtime::functions::json_text(self)?)
            }
            Self::List(List::Json(items, ..)) => Json::Array(items.to_vec()),
            Self::List(List::Owned(items)) => {
                Json::Array(items.iter().map(Self::to_json).collect::<Option<_>>()?)
            }
            Self::Map(Map::Json(map, _) | Map::Object(map, _)) => Json::Object((*map).clone()),
            Self::Map(Map::Owned(map) | Map::Nested(map)) => {
                let mut object = JsonObject::new();
                for (key, value) in map.iter() {
                    let Key::String(key) = key else { return None };
                    object.insert(key.to_string(), value.to_json()?);
                }
                Json::Object(object)
            }
            Self::Optional(Some(of)) => of.to_json()?,
            Self::Optional(None) | Self::Type(_) | Self::Opaque(_) => return None,
        })
    }
}

impl<'v> List<'v> {
    /// How many items.
    #[allow(clippy::len_without_is_empty)] // no one asks
    pub fn len(&self) -> usize {
        match self {
            Self::Json(items, ..) => items.len(),
            Self::Owned(items) => items.len(),
        }
    }

    /// An item; `None` past the end.
    pub fn get(&self, index: usize) -> Option<Result<Value<'v>, Error>> {
        match self {
            Self::Json(items, decl, _) => items.get(index).map(|json| Value::declared(json, decl)),
            Self::Owned(items) => items.get(index).cloned().map(Ok),
        }
    }

    /// Its items, in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'v>, Error>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl<'v> Map<'v> {
    /// How many entries.
    #[allow(clippy::len_without_is_empty)] // no one asks
    pub fn len(&self) -> usize {
        match self {
            Self::Json(map, _) => map.len(),
            Self::Object(map, object) => {
                object.fields.values().filter(|field| map.contains_key(&field.name)).count()
            }
            Self::Owned(map) | Self::Nested(map) => map.len(),
        }
    }

    /// The value of a key of text.
    pub(crate) fn field(&self, name: &str) -> Option<Result<Value<'v>, Error>> {
        match self {
            Self::Json(map, decl) => map.get(name).map(|json| Value::declared(json, decl)),
            Self::Object(map, object) => {
                let field = object.field(name)?;
                map.get(&field.name).map(|json| Value::declared(json, &field.decl))
            }
            Self::Owned(_) | Self::Nested(_) => self.get(&Value::text(name)),
        }
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &Value<'v>) -> Option<Result<Value<'v>, Error>> {
        match (self, key) {
            (Self::Owned(map), key) => map.get(&Key::new(key)?).cloned().map(Ok),
            (Self::Nested(map), key) => {
                let found = map.get(&Key::new(key)?).cloned();
                Some(Ok(found.unwrap_or_else(|| Value::Map(Self::Owned(Arc::default())))))
            }
            (_, Value::String(name)) => self.field(name),
            _ => None,
        }
    }

    /// Its keys.
    pub(crate) fn keys(&self) -> Vec<Value<'v>> {
        match self {
            Self::Json(map, _) => map.keys().map(|key| Value::String(Str::Borrowed(key))).collect(),
            Self::Object(map, object) => {
                let fields = object.fields.iter();
                let there = fields.filter(|(_, field)| map.contains_key(&field.name));
                there.map(|(key, _)| Value::String(Str::Borrowed(key))).collect()
            }
            Self::Owned(map) | Self::Nested(map) => map.keys().map(Key::value).collect(),
        }
    }
}
