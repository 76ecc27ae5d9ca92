//! The `fieldsV1` of a managedFields entry: a set of fields as nested objects.
//! `{"f:spec":{".":{},"f:replicas":{}}}` has the members `.spec` and `.spec.replicas`.

use serde_json::{Map, Value};

use crate::element::Element;
use crate::set::{Node, Set};

/// The deepest nesting; objects themselves may have about as many levels.
const MAX_DEPTH: usize = 128;
/// The most elements of one entry; the largest objects have some ten thousand fields.
const MAX_ELEMENTS: usize = 100_000;

/// Why `fieldsV1` is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A key is no element of a path.
    #[error("the key {key:?} is no path element: {why}")]
    Key {
        /// The key, shortened.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A key is longer than any field's.
    #[error("a key of {0} bytes is too long for a path element")]
    LongKey(usize),
    /// A value is no object.
    #[error("the value of a path element is no object")]
    NoObject,
    /// It is nested too deeply.
    #[error("the fields are nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// It is too large.
    #[error("there are more than {MAX_ELEMENTS} path elements")]
    TooMany,
}

impl<'a> Set<'a> {
    /// Reads `fieldsV1`.
    ///
    /// # Errors
    ///
    /// It is malformed, or beyond the limits. Elements of unknown kinds are ignored.
    pub fn from_fields(fields: &'a Value) -> Result<Set<'a>, FormatError> {
        let mut left = MAX_ELEMENTS;
        Ok(read(fields, 0, &mut left)?.0)
    }

    /// The `fieldsV1` of the set.
    #[must_use]
    pub fn to_fields(&self) -> Value {
        Value::Object(write(self, false))
    }
}

/// The fields below, and whether the field itself is a member.
fn read<'a>(
    fields: &'a Value,
    depth: usize,
    left: &mut usize,
) -> Result<(Set<'a>, bool), FormatError> {
    if depth > MAX_DEPTH {
        return Err(FormatError::TooDeep);
    }
    let map = match fields {
        Value::Object(map) => map,
        Value::Null => return Ok((Set::new(), true)),
        _ => return Err(FormatError::NoObject),
    };
    *left = left.checked_sub(map.len()).ok_or(FormatError::TooMany)?;
    let mut is_member = false;
    let mut nodes = Vec::with_capacity(map.len());
    for (key, below) in map {
        if key == "." {
            is_member = true;
            continue;
        }
        let Some(element) = Element::parse(key)? else { continue };
        let (children, is_member) = read(below, depth + 1, left)?;
        nodes.push(Node { element, is_member, children });
    }
    let set = Set::from_nodes(nodes);
    let is_leaf = set.is_empty();
    Ok((set, is_member || is_leaf))
}

fn write(set: &Set<'_>, is_member: bool) -> Map<String, Value> {
    let mut map = Map::new();
    if is_member && !set.is_empty() {
        map.insert(".".into(), Value::Object(Map::new()));
    }
    for node in set.nodes() {
        let below = write(&node.children, node.is_member);
        map.insert(node.element.to_text(), Value::Object(below));
    }
    map
}
