//! The table of Go's types.

use std::borrow::Cow;
use std::collections::HashMap;

/// What a type is made of.
pub(super) enum Shape<'a> {
    Pointer(&'a str),
    Slice(&'a str),
    Map {
        key: &'a str,
        inner: &'a str,
    },
    Struct(&'a [Field]),
    /// Another type by name.
    Alias(&'a str),
    /// A built-in type, or one that has its own way to be printed.
    Other,
}

/// A field of a struct.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) ty: &'static str,
    pub(super) json: Cow<'static, str>,
    /// Whether JSON has it even if it is Go's zero value.
    pub(super) is_always: bool,
}

enum Entry {
    Struct(Vec<Field>),
    Alias(&'static str),
}

/// All types that a value is made of, by name.
pub struct Types(HashMap<&'static str, Entry>);

impl Types {
    /// Read a table: a struct, then its fields in order, each with its Go type and, where that is
    /// not the field's own name, its name in JSON: `.` is the struct's own object, `-` is nowhere.
    /// A `!` behind that: JSON has the field even if it is empty. `NAME = TYPE` is a type that is another one by name. `#` begins a comment.
    pub fn parse(table: &'static str) -> Self {
        let mut types = HashMap::new();
        let mut of = "";
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let (Some(first), second, third) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            match (second, third) {
                (None, _) => {
                    of = first;
                    types.insert(of, Entry::Struct(Vec::new()));
                }
                (Some("="), Some(ty)) => {
                    types.insert(first, Entry::Alias(ty));
                }
                (Some(ty), json) => {
                    let is_always = words.next() == Some("!");
                    let json = json.map_or_else(|| own_name(first), Cow::Borrowed);
                    if let Some(Entry::Struct(fields)) = types.get_mut(of) {
                        fields.push(Field { name: first, ty, json, is_always });
                    }
                }
            }
        }
        Self(types)
    }

    pub(super) fn shape<'a>(&'a self, ty: &'a str) -> Shape<'a> {
        if let Some(inner) = ty.strip_prefix('*') {
            return Shape::Pointer(inner);
        }
        if let Some(inner) = ty.strip_prefix("[]") {
            return Shape::Slice(inner);
        }
        if let Some((key, inner)) = ty.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
            return Shape::Map { key, inner };
        }
        if ty == "struct{}" {
            return Shape::Struct(&[]);
        }
        match self.0.get(ty) {
            Some(Entry::Struct(fields)) => Shape::Struct(fields),
            Some(Entry::Alias(inner)) => Shape::Alias(inner),
            None => Shape::Other,
        }
    }
}

/// The name in JSON of a field that has its Go name there.
fn own_name(name: &str) -> Cow<'static, str> {
    let mut own = name.to_owned();
    if let Some(first) = own.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    Cow::Owned(own)
}
