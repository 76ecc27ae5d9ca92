//! How the values of a kind are merged: what is one value with one owner, and what has parts with
//! owners of their own.

use std::borrow::Cow;

use serde_json::Value;

/// The types of a group of kinds.
#[derive(Debug, Clone)]
pub struct Schema {
    types: Vec<Type>,
}

/// A type within its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(usize);

/// How values of a type are merged.
#[derive(Debug, Clone)]
pub enum Type {
    /// What nothing is known of: maps have parts, lists and scalars are one value.
    Any,
    /// One value, whatever it is.
    Atomic,
    /// A number, string or boolean.
    Scalar(Scalar),
    /// A struct, a map, or both.
    Map(MapType),
    /// A list.
    List(ListType),
}

/// What a scalar must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// A number.
    Number,
    /// A string.
    Text,
    /// `true` or `false`.
    Bool,
    /// Any of them.
    Any,
}

/// A struct (with fields), a map (with an element type), or both.
#[derive(Debug, Clone, Default)]
pub struct MapType {
    /// Whether it is one value.
    pub atomic: bool,
    /// Sorted by name.
    pub fields: Vec<Field>,
    /// The type of what is no field; without it, there is nothing else.
    pub element: Option<TypeId>,
}

/// A field of a struct.
#[derive(Debug, Clone)]
pub struct Field {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its type.
    pub of: TypeId,
    /// The value that counts where the field is absent: objects always have it.
    pub implied: Option<Value>,
}

/// A list.
#[derive(Debug, Clone)]
pub struct ListType {
    /// How items are told apart.
    pub items: Items,
    /// Their type.
    pub element: TypeId,
}

/// How the items of a list are told apart.
#[derive(Debug, Clone)]
pub enum Items {
    /// They are not: the list is one value.
    Atomic,
    /// By their value; they are scalars.
    Set,
    /// By key fields, sorted by name.
    Keys(Vec<Key>),
}

/// A key field of list items.
#[derive(Debug, Clone)]
pub struct Key {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its value where it is absent.
    pub default: Option<Value>,
}

impl MapType {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        let at = self.fields.binary_search_by(|field| field.name.as_ref().cmp(name)).ok()?;
        self.fields.get(at)
    }

    /// The type of the value under this name.
    pub(crate) fn of(&self, name: &str) -> Option<TypeId> {
        self.field(name).map(|field| field.of).or(self.element)
    }

    pub(crate) fn implied(&self) -> impl Iterator<Item = (&Field, &Value)> {
        self.fields.iter().filter_map(|field| Some((field, field.implied.as_ref()?)))
    }
}

impl Type {
    /// Sorts what is looked up by name.
    fn sort(&mut self) {
        match self {
            Type::Map(map) => map.fields.sort_by(|a, b| a.name.cmp(&b.name)),
            Type::List(ListType { items: Items::Keys(keys), .. }) => {
                keys.sort_by(|a, b| a.name.cmp(&b.name));
            }
            _ => {}
        }
    }
}

impl Schema {
    /// What nothing is known of.
    pub const ANY: TypeId = TypeId(0);
    /// One value.
    pub const ATOMIC: TypeId = TypeId(1);

    /// A schema with the types that need no definition.
    #[must_use]
    pub fn new() -> Schema {
        Schema { types: vec![Type::Any, Type::Atomic] }
    }

    /// Adds a type. Fields of maps and keys of lists are sorted here.
    pub fn add(&mut self, mut of: Type) -> TypeId {
        of.sort();
        self.types.push(of);
        TypeId(self.types.len() - 1)
    }

    /// Adds a type that is defined later by [`Schema::define`]: types may be recursive.
    pub fn declare(&mut self) -> TypeId {
        self.add(Type::Any)
    }

    /// Says what a declared type is. Fields of maps and keys of lists are sorted here.
    pub fn define(&mut self, id: TypeId, mut of: Type) {
        of.sort();
        if let Some(slot) = self.types.get_mut(id.0) {
            *slot = of;
        }
    }

    /// The type.
    #[must_use]
    pub fn get(&self, id: TypeId) -> &Type {
        self.types.get(id.0).unwrap_or(&Type::Any)
    }
}

impl Default for Schema {
    fn default() -> Self {
        Schema::new()
    }
}
