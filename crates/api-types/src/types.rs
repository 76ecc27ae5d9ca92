//! The types of the served objects, read once from `data/types.json`. Names borrow from the
//! compiled-in text, so the table costs a few hundred KiB and no strings.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use super::Gvk;

/// What one value of a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// A string.
    String,
    /// Base64 text.
    Bytes,
    /// `true` or `false`.
    Bool,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A floating point number.
    Double,
    /// `100m`, `1Gi`, or a bare number.
    Quantity,
    /// RFC 3339 in seconds.
    Time,
    /// RFC 3339 in microseconds.
    MicroTime,
    /// A number or a string.
    IntOrString,
    /// Any object, kept as it is.
    Any,
    /// A struct of the table.
    Struct(usize),
    /// Such a struct, a list of them, or something else that is kept as it is.
    Either(usize),
}

/// How many such values a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Just one.
    One,
    /// A list.
    List,
    /// A map with string keys.
    Map,
    /// A map of lists.
    MapOfLists,
}

/// How server-side apply sees a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// One owner for the whole list.
    Atomic,
    /// Unique scalars.
    Set,
    /// Unique keys.
    Map,
}

/// One field of a type.
#[derive(Debug)]
pub struct Field {
    /// Its JSON name.
    pub name: &'static str,
    /// Its type.
    pub leaf: Leaf,
    /// How many of them.
    pub shape: Shape,
    /// Strategic merge patch merges the list item by item.
    pub patch_merge: bool,
    /// Strategic merge patch honours `$retainKeys`.
    pub patch_retain_keys: bool,
    /// The key of list items in a strategic merge patch.
    pub merge_key: Option<&'static str>,
    /// The list kind for server-side apply.
    pub list: Option<ListKind>,
    /// The key fields of items of a `Map` list.
    pub map_keys: Vec<&'static str>,
    /// The values of key fields that an item leaves out.
    pub key_defaults: Vec<(&'static str, Value)>,
    /// Server-side apply treats this map as one value.
    pub atomic_map: bool,
    /// Server-side apply treats this struct by its fields, although others of its type are one value.
    pub granular_map: bool,
}

/// One struct type.
#[derive(Debug)]
pub struct Type {
    /// Full name, for example `io.k8s.api.core.v1.Pod`.
    pub name: &'static str,
    /// Fields, sorted by name.
    pub fields: Vec<Field>,
    /// Fields that OpenAPI marks required.
    pub required: Vec<&'static str>,
    /// Fields that Go's objects always have: structs and times that are no pointers,
    /// and required lists and maps.
    pub always: Vec<&'static str>,
    /// Server-side apply treats the struct as one value.
    pub atomic: bool,
    /// The kinds it is the whole object of, as `group/version/Kind` (`version/Kind` in the core group).
    pub kinds: Vec<&'static str>,
}

impl Type {
    /// The field of that name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|f| f.name.cmp(name)).ok().map(|i| &self.fields[i])
    }

    /// The last part of the name, for example `Pod`.
    #[must_use]
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }
}

/// All types.
#[derive(Debug)]
pub struct Types {
    types: Vec<Type>,
    by_gvk: HashMap<&'static str, usize>,
}

impl Types {
    /// The type behind [`Leaf::Struct`].
    #[must_use]
    pub fn get(&self, index: usize) -> &Type {
        &self.types[index]
    }

    /// The type of objects of this kind.
    #[must_use]
    pub fn of(&self, gvk: Gvk) -> Option<&Type> {
        self.index_of(gvk).map(|i| self.get(i))
    }

    /// The index of that type.
    #[must_use]
    pub fn index_of(&self, gvk: Gvk) -> Option<usize> {
        self.by_gvk.get(format!("{}/{}", gvk.api_version(), gvk.kind).as_str()).copied()
    }

    /// The index of the type of objects that say this of themselves.
    #[must_use]
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<usize> {
        self.by_gvk.get(format!("{api_version}/{kind}").as_str()).copied()
    }

    /// All types, by index.
    #[must_use]
    pub fn all(&self) -> &[Type] {
        &self.types
    }

    /// The type of this full name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Type> {
        self.index_named(name).map(|i| self.get(i))
    }

    /// The index of that type.
    #[must_use]
    pub fn index_named(&self, name: &str) -> Option<usize> {
        self.types.binary_search_by(|t| t.name.cmp(name)).ok()
    }
}

/// The table, read on first use.
#[must_use]
pub fn types() -> &'static Types {
    static TYPES: OnceLock<Types> = OnceLock::new();
    TYPES.get_or_init(|| build(&read(DATA)))
}

/// The API facts as they are compiled in.
/// The text of `data/types.json`.
pub const DATA: &str = include_str!("../data/types.json");

type Raw<'a> = BTreeMap<&'a str, RawType<'a>>;

#[derive(Deserialize)]
struct RawType<'a> {
    #[serde(default, borrow)]
    gvk: Vec<&'a str>,
    #[serde(default, borrow)]
    required: Vec<&'a str>,
    #[serde(default, borrow)]
    always: Vec<&'a str>,
    map: Option<&'a str>,
    r#type: Option<&'a str>,
    #[serde(default, borrow)]
    fields: BTreeMap<&'a str, RawField<'a>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawField<'a> {
    Plain(&'a str),
    #[serde(borrow)]
    Detailed(RawDetails<'a>),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawDetails<'a> {
    t: &'a str,
    #[serde(default)]
    patch: &'a str,
    merge_key: Option<&'a str>,
    #[serde(default)]
    list: &'a str,
    #[serde(default)]
    map: &'a str,
    #[serde(default, borrow)]
    map_keys: Vec<&'a str>,
    #[serde(default, borrow)]
    key_defaults: BTreeMap<&'a str, Value>,
}

/// The text is compiled in, so it either parses for every user or fails the crate's first test.
#[allow(clippy::expect_used)]
fn read(text: &'static str) -> Raw<'static> {
    serde_json::from_str(text).expect("data/types.json is well formed")
}

fn build(raw: &Raw<'static>) -> Types {
    let names: Vec<&'static str> = raw.keys().copied().collect();
    let leaf = |name: &'static str| leaf(name, raw, &names);
    let types: Vec<Type> = raw
        .iter()
        .map(|(name, t)| Type {
            name,
            required: t.required.clone(),
            always: t.always.clone(),
            atomic: t.map == Some("atomic"),
            kinds: t.gvk.clone(),
            fields: t.fields.iter().map(|(name, f)| field(name, f, leaf)).collect(),
        })
        .collect();
    let by_gvk =
        raw.values().enumerate().flat_map(|(i, t)| t.gvk.iter().map(move |g| (*g, i))).collect();
    Types { types, by_gvk }
}

fn field(
    name: &'static str,
    raw: &RawField<'static>,
    leaf: impl Fn(&'static str) -> Leaf,
) -> Field {
    let plain;
    let raw = match raw {
        RawField::Detailed(details) => details,
        RawField::Plain(t) => {
            plain = RawDetails { t, ..RawDetails::default() };
            &plain
        }
    };
    let (shape, of) = shape(raw.t);
    Field {
        name,
        leaf: leaf(of),
        shape,
        patch_merge: raw.patch.split(',').any(|p| p == "merge"),
        patch_retain_keys: raw.patch.split(',').any(|p| p == "retainKeys"),
        merge_key: raw.merge_key,
        list: match raw.list {
            "atomic" => Some(ListKind::Atomic),
            "set" => Some(ListKind::Set),
            "map" => Some(ListKind::Map),
            _ => None,
        },
        map_keys: raw.map_keys.clone(),
        key_defaults: raw.key_defaults.iter().map(|(name, value)| (*name, value.clone())).collect(),
        atomic_map: raw.map == "atomic",
        granular_map: raw.map == "granular",
    }
}

fn shape(text: &'static str) -> (Shape, &'static str) {
    let inside = |open, close| text.strip_prefix(open).and_then(|t: &str| t.strip_suffix(close));
    if let Some(of) = inside("{[", "]}") {
        (Shape::MapOfLists, of)
    } else if let Some(of) = inside("{", "}") {
        (Shape::Map, of)
    } else if let Some(of) = inside("[", "]") {
        (Shape::List, of)
    } else {
        (Shape::One, text)
    }
}

fn leaf(name: &'static str, raw: &Raw<'static>, names: &[&'static str]) -> Leaf {
    match name {
        "string" => return Leaf::String,
        "string:byte" => return Leaf::Bytes,
        "boolean" => return Leaf::Bool,
        "integer:int32" => return Leaf::Int32,
        "integer:int64" => return Leaf::Int64,
        "number:double" => return Leaf::Double,
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => return Leaf::Quantity,
        "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime" => return Leaf::MicroTime,
        "io.k8s.apimachinery.pkg.apis.meta.v1.Time" => return Leaf::Time,
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => return Leaf::IntOrString,
        _ => {}
    }
    if let Some(name) = name.strip_prefix("either:") {
        return names.binary_search(&name).map_or(Leaf::Any, Leaf::Either);
    }
    match names.binary_search(&name) {
        Ok(index) if raw.get(name).is_some_and(|t| t.r#type.is_none()) => Leaf::Struct(index),
        _ => Leaf::Any,
    }
}
