//! The `fieldsV1` of a managedFields entry: a set of fields as nested objects.
//! `{"f:spec":{".":{},"f:replicas":{}}}` has the members `.spec` and `.spec.replicas`.

use serde_json::{Map, Value};

use crate::element::Element;
use crate::format_error::{FormatError, MAX_DEPTH, MAX_ELEMENTS};
use crate::set::{Node, Set};

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
