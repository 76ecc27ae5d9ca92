//! What can be done with an object of a known type: the fields that it names, its merge with another
//! one, and its rest without some fields.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use crate::element::Element;
use crate::schema::{ListType, Schema, Type, TypeId};
use crate::set::{Node, Set};
use crate::validate::{Mismatch, item_element};

/// The fields that an object names: scalars, items, and what is one value.
///
/// # Errors
///
/// An item of a list has no key.
pub fn fields_of<'a>(
    schema: &'a Schema,
    of: TypeId,
    object: &'a Value,
) -> Result<Set<'a>, Mismatch> {
    Ok(fields(schema, of, object)?.1)
}

/// Whether the value itself is a field, and the fields below it.
fn fields<'a>(
    schema: &'a Schema,
    of: TypeId,
    value: &'a Value,
) -> Result<(bool, Set<'a>), Mismatch> {
    match (schema.get(of), value) {
        (Type::Any | Type::Map(_), Value::Null) => Ok((false, Set::new())),
        (Type::Any, Value::Object(map)) => {
            map_fields(schema, map, |_| Some((Schema::ANY, false))).map(|set| (false, set))
        }
        (Type::Map(of), Value::Object(map)) if !of.atomic => {
            map_fields(schema, map, |name| Some((of.of(name)?, of.field(name).is_some())))
                .map(|set| (false, set))
        }
        (Type::List(of), Value::Array(list)) if of.is_granular() => {
            list_fields(schema, of, list).map(|set| (false, set))
        }
        (Type::List(of), Value::Null) if of.is_granular() => Ok((false, Set::new())),
        _ => Ok((true, Set::new())),
    }
}

/// `of` says the type of a name, and whether it is a declared field.
fn map_fields<'a>(
    schema: &'a Schema,
    map: &'a Map<String, Value>,
    of: impl Fn(&str) -> Option<(TypeId, bool)>,
) -> Result<Set<'a>, Mismatch> {
    let mut nodes = Vec::with_capacity(map.len());
    for (name, value) in map {
        let (below, is_declared) = of(name).unwrap_or((Schema::ANY, false));
        let (is_value, children) =
            fields(schema, below, value).map_err(|error| error.below_field(name))?;
        let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        let is_member = is_value || is_empty || !is_declared;
        nodes.push(Node { element: Element::field(name.as_str()), is_member, children });
    }
    Ok(Set::from_nodes(nodes))
}

fn list_fields<'a>(
    schema: &'a Schema,
    of: &'a ListType,
    list: &'a [Value],
) -> Result<Set<'a>, Mismatch> {
    let mut elements = Vec::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        elements.push(item_element(of, i, item)?);
    }
    let mut seen = BTreeSet::new();
    let twice: BTreeSet<&Element<'a>> =
        elements.iter().filter(|element| !seen.insert(*element)).collect();
    let mut nodes = Vec::with_capacity(list.len());
    for (element, item) in elements.iter().zip(list) {
        // Items with the same key are one value.
        let children = match twice.contains(element) {
            true => Set::new(),
            false => fields(schema, of.element, item).map_err(|error| error.below(element))?.1,
        };
        nodes.push(Node { element: element.clone(), is_member: true, children });
    }
    Ok(Set::from_nodes(nodes))
}

/// The first object with what the second one says; `None` when nothing is left.
///
/// # Errors
///
/// An item of a list has no key, or two of the second object have the same.
pub fn merge(
    schema: &Schema,
    of: TypeId,
    base: Option<&Value>,
    over: Option<&Value>,
) -> Result<Option<Value>, Mismatch> {
    let is_empty = |value: Option<&Value>| match value {
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        _ => true,
    };
    let leaf = || Ok(over.or(base).cloned());
    if is_empty(base) && is_empty(over) {
        return leaf();
    }
    let merge_maps = |below: &dyn Fn(&str) -> TypeId| {
        let (base, over) = (as_map(base), as_map(over));
        let names: BTreeSet<&String> = base.into_iter().chain(over).flat_map(Map::keys).collect();
        let mut merged = Map::new();
        for name in names {
            let (base, over) =
                (base.and_then(|map| map.get(name)), over.and_then(|map| map.get(name)));
            let value =
                merge(schema, below(name), base, over).map_err(|error| error.below_field(name))?;
            if let Some(value) = value {
                merged.insert(name.clone(), value);
            }
        }
        Ok((!merged.is_empty()).then_some(Value::Object(merged)))
    };
    match schema.get(of) {
        Type::Any => match (base, over) {
            (_, Some(Value::Object(_))) | (Some(Value::Object(_)), None | Some(Value::Null)) => {
                merge_maps(&|_| Schema::ANY)
            }
            _ => leaf(),
        },
        Type::Map(of) if !of.atomic => merge_maps(&|name| of.of(name).unwrap_or(Schema::ANY)),
        Type::List(of) if of.is_granular() => {
            let merged = merge_lists(schema, of, as_list(base), as_list(over))?;
            Ok((!merged.is_empty()).then_some(Value::Array(merged)))
        }
        _ => leaf(),
    }
}

/// Items that only one list has keep their places among the others; where both lists order the same
/// items, the second one's order counts.
fn merge_lists(
    schema: &Schema,
    of: &ListType,
    base: &[Value],
    over: &[Value],
) -> Result<Vec<Value>, Mismatch> {
    let elements = |list| -> Result<Vec<Element<'_>>, Mismatch> {
        let list: &[Value] = list;
        list.iter().enumerate().map(|(i, item)| item_element(of, i, item)).collect()
    };
    let (old, new) = (elements(base)?, elements(over)?);
    let mut in_old: BTreeMap<&Element<'_>, &Value> = BTreeMap::new();
    for (element, item) in old.iter().zip(base) {
        // Several with the same key are not merged but replaced.
        in_old.entry(element).and_modify(|item| *item = &Value::Null).or_insert(item);
    }
    let mut in_new: BTreeMap<&Element<'_>, &Value> = BTreeMap::new();
    for (element, item) in new.iter().zip(over) {
        if in_new.insert(element, item).is_some() {
            let message = format!("duplicate entries for key {element}");
            return Err(Mismatch { path: String::new(), message });
        }
    }
    let mut shared: VecDeque<&Element<'_>> =
        new.iter().filter(|element| in_old.contains_key(element)).collect();
    let mut done: BTreeSet<&Element<'_>> = BTreeSet::new();
    let mut merged = Vec::with_capacity(old.len().max(new.len()));
    let mut push = |element: &Element<'_>, base: Option<&Value>, over: Option<&Value>| {
        let item = merge(schema, of.element, base, over).map_err(|error| error.below(element))?;
        merged.extend(item);
        Ok::<(), Mismatch>(())
    };
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if let (Some(left), Some(right)) = (old.get(i), new.get(j)) {
            if left == right {
                done.insert(left);
                push(left, in_old.get(left).copied(), in_new.get(left).copied())?;
                (i, j) = (i + 1, j + 1);
                shared.pop_front();
                continue;
            }
            let is_due_later = shared.front().is_some_and(|next| *next != left);
            if in_new.contains_key(left) && is_due_later {
                i += 1;
                continue;
            }
        }
        if let Some(left) = old.get(i) {
            if !in_new.contains_key(left) {
                push(left, base.get(i), None)?;
                i += 1;
                continue;
            }
            if done.contains(left) {
                i += 1;
            }
        }
        if let Some(right) = new.get(j) {
            done.insert(right);
            push(right, in_old.get(right).copied(), in_new.get(right).copied())?;
            j += 1;
            if shared.front() == Some(&right) {
                shared.pop_front();
            }
        }
    }
    Ok(merged)
}

/// The object without these fields. What becomes empty by it stays, empty.
pub fn remove(schema: &Schema, of: TypeId, value: Value, fields: &Set<'_>) -> Value {
    let of_name = |name: &str| match schema.get(of) {
        Type::Any => Some(Schema::ANY),
        Type::Map(of) if !of.atomic => Some(of.of(name).unwrap_or(Schema::ANY)),
        _ => None,
    };
    match (schema.get(of), value) {
        (Type::Any | Type::Map(_), Value::Object(map)) => {
            let mut rest = Map::new();
            let mut has_match = false;
            for (name, value) in map {
                let Some(below) = of_name(&name) else { return Value::Null };
                let node = fields.node(&Element::field(name.as_str()));
                if node.is_some_and(|node| node.is_member) {
                    continue;
                }
                let value = match node {
                    Some(node) => {
                        has_match = true;
                        remove_below(schema, below, value, &node.children)
                    }
                    None => value,
                };
                rest.insert(name, value);
            }
            if rest.is_empty() && !has_match { Value::Null } else { Value::Object(rest) }
        }
        (Type::List(of), Value::Array(list)) if of.is_granular() => {
            let mut rest = Vec::with_capacity(list.len());
            let mut has_match = false;
            for (i, item) in list.into_iter().enumerate() {
                let node =
                    item_element(of, i, &item).ok().and_then(|element| fields.node(&element));
                match node {
                    Some(node) if node.is_member => {}
                    Some(node) => {
                        has_match = true;
                        rest.push(remove_below(schema, of.element, item, &node.children));
                    }
                    None => rest.push(item),
                }
            }
            if rest.is_empty() && !has_match { Value::Null } else { Value::Array(rest) }
        }
        (Type::Any, Value::Array(_))
        | (Type::Atomic, Value::Array(_) | Value::Object(_))
        | (Type::List(_) | Type::Map(_), _) => Value::Null,
        (_, scalar) => scalar,
    }
}

fn remove_below(schema: &Schema, of: TypeId, value: Value, fields: &Set<'_>) -> Value {
    let empty = match &value {
        Value::Object(_) => Value::Object(Map::new()),
        Value::Array(_) => Value::Array(Vec::new()),
        _ => Value::Null,
    };
    match remove(schema, of, value, fields) {
        Value::Null => empty,
        rest => rest,
    }
}

/// The set with the structs' fields that lead to its members: a struct's field is no member by itself.
#[must_use]
pub fn with_named_fields<'a>(schema: &Schema, of: TypeId, set: Set<'a>) -> Set<'a> {
    let mut set = set;
    mark_named_fields(schema, of, &mut set);
    set
}

fn mark_named_fields(schema: &Schema, of: TypeId, set: &mut Set<'_>) {
    for node in set.nodes_mut() {
        if let (Element::Field(name), Type::Map(of)) = (&node.element, schema.get(of)) {
            node.is_member |= of.field(name).is_some();
        }
        mark_named_fields(schema, below(schema, of, &node.element), &mut node.children);
    }
}

/// Makes one field of those that the schema knows as one value: it may have known them by their parts
/// when the set was written. Says whether there were any.
pub(crate) fn collapse(schema: &Schema, of: TypeId, set: &mut Set<'_>) -> bool {
    let mut changed = false;
    for node in set.nodes_mut() {
        let of = below(schema, of, &node.element);
        let is_atomic = match schema.get(of) {
            Type::Atomic => true,
            Type::Map(of) => of.atomic,
            Type::List(of) => !of.is_granular(),
            Type::Any | Type::Scalar(_) => false,
        };
        if is_atomic && !node.children.is_empty() {
            node.is_member = true;
            node.children = Set::new();
            changed = true;
        } else {
            changed |= collapse(schema, of, &mut node.children);
        }
    }
    changed
}

fn below(schema: &Schema, of: TypeId, element: &Element<'_>) -> TypeId {
    match (schema.get(of), element) {
        (Type::Map(of), Element::Field(name)) => of.of(name).unwrap_or(Schema::ANY),
        (Type::List(of), Element::Key(_)) => of.element,
        _ => Schema::ANY,
    }
}

fn as_map(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

fn as_list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
