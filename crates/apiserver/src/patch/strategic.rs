//! Strategic merge patches. The API facts say which lists are merged and by which key; directives
//! in the patch (`$patch`, `$retainKeys`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…`) say
//! what merging alone cannot.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::Work;
use crate::api_types::{Field, Leaf, Type, types};
use crate::schema::{printed, type_of};
use crate::status::StatusError;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE: &str = "$deleteFromPrimitiveList/";

pub(super) fn apply(
    ty: Option<&'static Type>,
    object: &mut Value,
    patch: Value,
    work: &mut Work,
) -> Result<(), StatusError> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if let (Value::Object(object), Value::Object(patch)) = (object, patch) {
        merge(ty, object, patch, work)?;
    }
    Ok(())
}

fn merge(
    ty: Option<&'static Type>,
    object: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
    work: &mut Work,
) -> Result<(), StatusError> {
    work.charge(1 + patch.len())?;
    if let Some(directive) = patch.remove(DIRECTIVE) {
        match directive.as_str() {
            Some("replace") => *object = cleaned_map(patch),
            Some("delete") => object.clear(),
            _ => return Err(unknown_directive(&directive, &patch)),
        }
        return Ok(());
    }
    retain_keys(object, &mut patch, work)?;
    let mut orders = Map::new();
    let mut deletions = Map::new();
    patch = patch
        .into_iter()
        .filter_map(|(key, value)| {
            if let Some(name) = key.strip_prefix(ORDER) {
                orders.insert(name.to_owned(), value);
            } else if let Some(name) = key.strip_prefix(DELETE) {
                deletions.insert(name.to_owned(), value);
            } else {
                return Some((key, value));
            }
            None
        })
        .collect();
    for (name, unwanted) in deletions {
        delete_from_list(object, &name, unwanted, work)?;
    }
    for (name, order) in orders {
        let field = ty.and_then(|t| t.field(&name));
        let Value::Array(order) = order else {
            return Err(StatusError::internal_plain(format!(
                "expected a []interface {{}}, but received a {}",
                type_of(&order)
            )));
        };
        set_order(field, object, &name, patch.remove(&name), &order, work)?;
    }
    for (name, value) in patch {
        merge_field(ty.and_then(|t| t.field(&name)), object, name, value, work)?;
    }
    Ok(())
}

fn merge_field(
    field: Option<&'static Field>,
    object: &mut Map<String, Value>,
    name: String,
    value: Value,
    work: &mut Work,
) -> Result<(), StatusError> {
    match (object.get_mut(&name), value) {
        (_, Value::Null) => {
            object.remove(&name);
        }
        (Some(Value::Object(old)), Value::Object(new)) => {
            merge(struct_of(field), old, new, work)?;
        }
        (Some(Value::Array(old)), Value::Array(new)) => {
            let old = std::mem::take(old);
            let merged = merge_list(field, old, new, work)?;
            object.insert(name, Value::Array(merged));
        }
        (_, value) => match cleaned(value) {
            Some(value) => {
                object.insert(name, value);
            }
            None => {
                object.remove(&name);
            }
        },
    }
    Ok(())
}

fn struct_of(field: Option<&'static Field>) -> Option<&'static Type> {
    match field?.leaf {
        Leaf::Struct(index) => Some(types().get(index)),
        _ => None,
    }
}

/// Only the keys that the patch retains survive: that is how one of several alternatives replaces another.
fn retain_keys(
    object: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    work: &mut Work,
) -> Result<(), StatusError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    work.charge(object.len())?;
    let Value::Array(keys) = keys else {
        return Err(StatusError::bad_request("invalid patch format of retainKeys"));
    };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let stray = patch.iter().find(|(k, v)| {
        !v.is_null()
            && !k.starts_with(DELETE)
            && !k.starts_with(ORDER)
            && !keys.contains(k.as_str())
    });
    if let Some((key, _)) = stray {
        tracing::debug!(key, "a field of a patch is set but missing in $retainKeys");
        return Err(StatusError::bad_request("invalid patch format of retainKeys"));
    }
    object.retain(|key, _| keys.contains(key.as_str()));
    Ok(())
}

fn delete_from_list(
    object: &mut Map<String, Value>,
    name: &str,
    unwanted: Value,
    work: &mut Work,
) -> Result<(), StatusError> {
    if let Some(Value::Array(list)) = object.get_mut(name) {
        let Value::Array(unwanted) = unwanted else {
            return Err(StatusError::bad_request("invalid patch format of primitive list"));
        };
        let unwanted: HashSet<String> = unwanted.iter().map(Value::to_string).collect();
        charge_items(list, None, work)?;
        list.retain(|item| !unwanted.contains(&item.to_string()));
    }
    Ok(())
}

/// Merges the list, then puts it into the order that the client has.
fn set_order(
    field: Option<&'static Field>,
    object: &mut Map<String, Value>,
    name: &str,
    patch: Option<Value>,
    order: &[Value],
    work: &mut Work,
) -> Result<(), StatusError> {
    let key = field.and_then(|f| f.merge_key);
    let patch = match patch {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) => Some(list),
        Some(_) => return Err(malformed(&format!("{name} must be a list"))),
    };
    let ordered = identities(order, key);
    let known: HashSet<&String> = ordered.iter().flatten().collect();
    let unordered = |item: &&Value| {
        let deleted = item.get(DIRECTIVE).is_some();
        !deleted && identity(item, key).is_none_or(|id| !known.contains(&id))
    };
    if patch.iter().flatten().any(|item| unordered(&item)) {
        let given = patch.clone().unwrap_or_default();
        let (given, wanted) = (Value::Array(given), Value::Array(order.to_vec()));
        return Err(StatusError::internal_plain(format!(
            "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
            printed(&given),
            printed(&wanted)
        )));
    }
    let old = match object.get_mut(name) {
        Some(Value::Array(list)) => std::mem::take(list),
        None | Some(Value::Null) if patch.is_none() => return Ok(()),
        None | Some(Value::Null) => Vec::new(),
        Some(_) => return Err(malformed(&format!("{name} must be a list"))),
    };
    charge_items(&old, key, work)?;
    let before = identities(&old, key);
    let merged = match patch {
        Some(patch) => merge_list(field, old, patch, work)?,
        None => old,
    };
    object.insert(name.to_owned(), Value::Array(in_order(merged, &ordered, &before, key)));
    Ok(())
}

fn merge_list(
    field: Option<&'static Field>,
    old: Vec<Value>,
    patch: Vec<Value>,
    work: &mut Work,
) -> Result<Vec<Value>, StatusError> {
    if !field.is_some_and(|f| f.patch_merge) {
        return Ok(patch.into_iter().filter_map(cleaned).collect());
    }
    let key = field.and_then(|f| f.merge_key);
    charge_items(&old, key, work)?;
    let before = identities(&old, key);
    let (merged, order) = match key {
        Some(key) => merge_keyed(struct_of(field), key, old, patch, work)?,
        None => {
            let order = identities(&patch, None);
            let mut seen = HashSet::new();
            let all = old.into_iter().chain(patch).filter(|v| seen.insert(v.to_string())).collect();
            (all, order)
        }
    };
    Ok(in_order(merged, &order, &before, key))
}

type Identities = Vec<Option<String>>;

/// Merges items of the same key; returns them with the keys of the patch's items in order.
fn merge_keyed(
    ty: Option<&'static Type>,
    key: &str,
    mut old: Vec<Value>,
    patch: Vec<Value>,
    work: &mut Work,
) -> Result<(Vec<Value>, Identities), StatusError> {
    let mut changes = Vec::new();
    let mut deleted = HashSet::new();
    let mut replace = false;
    for item in patch {
        let Value::Object(mut item) = item else {
            return Err(malformed(&format!("items of a list merged by {key:?} must be objects")));
        };
        match item.remove(DIRECTIVE) {
            None => changes.push(item),
            Some(Value::String(d)) if d == "delete" => {
                let Some(value) = item.get(key).map(Value::to_string) else {
                    item.insert(DIRECTIVE.to_owned(), d.into());
                    return Err(no_key(&item, key));
                };
                deleted.insert(value);
            }
            Some(Value::String(d)) if d == "replace" => replace = true,
            Some(Value::String(d)) if d == "merge" => {
                let why = "merging lists cannot yet be specified in the patch";
                return Err(StatusError::internal_plain(why));
            }
            Some(other) => return Err(unknown_directive(&other, &item)),
        }
    }
    if replace {
        return Ok((
            changes.into_iter().map(|m| Value::Object(cleaned_map(m))).collect(),
            Vec::new(),
        ));
    }
    old.retain(|item| item.get(key).is_none_or(|k| !deleted.contains(&k.to_string())));
    let mut positions: HashMap<String, usize> = HashMap::new();
    for (i, item) in old.iter().enumerate() {
        if let Some(value) = item.get(key) {
            positions.entry(value.to_string()).or_insert(i);
        }
    }
    let mut order = Vec::with_capacity(changes.len());
    for change in changes {
        let id = change.get(key).ok_or_else(|| no_key(&change, key))?.to_string();
        order.push(Some(id.clone()));
        match positions.get(&id).map(|i| &mut old[*i]) {
            Some(Value::Object(item)) => merge(ty, item, change, work)?,
            _ => {
                positions.insert(id, old.len());
                old.push(Value::Object(cleaned_map(change)));
            }
        }
    }
    Ok((old, order))
}

/// Charges for the identities of a stored list's items. A patch may name one item many times, and
/// have the lists within it merged as often.
fn charge_items(list: &[Value], key: Option<&str>, work: &mut Work) -> Result<(), StatusError> {
    /// An identity is built as text, several times.
    const VISITS: usize = 32;
    for item in list {
        work.charge(VISITS)?;
        if key.is_none() {
            work.visit(item)?;
        }
    }
    Ok(())
}

/// What makes an item the same item: its key, or for scalars itself.
fn identity(item: &Value, key: Option<&str>) -> Option<String> {
    match key {
        Some(key) => item.get(key).map(Value::to_string),
        None => Some(item.to_string()),
    }
}

fn identities(list: &[Value], key: Option<&str>) -> Identities {
    list.iter().map(|item| identity(item, key)).collect()
}

/// Items named in `order` come in that order; the others stay where they stood in `before` among them.
fn in_order(
    list: Vec<Value>,
    order: &Identities,
    before: &Identities,
    key: Option<&str>,
) -> Vec<Value> {
    let positions = |ids: &Identities| -> HashMap<String, usize> {
        ids.iter().enumerate().rev().filter_map(|(i, id)| Some((id.clone()?, i))).collect()
    };
    let (wanted, stood) = (positions(order), positions(before));
    let position = |positions: &HashMap<String, usize>, item: &Value| {
        identity(item, key).and_then(|id| positions.get(&id).copied())
    };
    let (mut ours, theirs): (Vec<Value>, Vec<Value>) =
        list.into_iter().partition(|i| position(&wanted, i).is_some());
    ours.sort_by_key(|item| position(&wanted, item));
    let mut result = Vec::with_capacity(ours.len() + theirs.len());
    let mut theirs = theirs.into_iter().peekable();
    for item in ours {
        let here = position(&stood, &item);
        while let Some(other) = theirs.peek() {
            match (position(&stood, other), here) {
                (Some(other), Some(here)) if other < here => result.extend(theirs.next()),
                _ => break,
            }
        }
        result.push(item);
    }
    result.extend(theirs);
    result
}

/// A value that is new to the object: without directives and nulls. `None` when it deletes itself.
fn cleaned(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.get(DIRECTIVE).is_some_and(|d| d == "delete") => None,
        Value::Object(map) => Some(Value::Object(cleaned_map(map))),
        Value::Array(list) => {
            // in a list, `$patch: replace` is an item of its own that says how to take the others
            let is_item = |item: &Value| item.get(DIRECTIVE).is_none_or(|d| d != "replace");
            Some(Value::Array(list.into_iter().filter(is_item).filter_map(cleaned).collect()))
        }
        other => Some(other),
    }
}

fn cleaned_map(map: Map<String, Value>) -> Map<String, Value> {
    let directive = |key: &str| {
        key == DIRECTIVE || key == RETAIN_KEYS || key.starts_with(ORDER) || key.starts_with(DELETE)
    };
    map.into_iter()
        .filter(|(key, value)| !value.is_null() && !directive(key))
        .filter_map(|(key, value)| Some((key, cleaned(value)?)))
        .collect()
}

fn malformed(why: &str) -> StatusError {
    StatusError::bad_request(format!("invalid strategic merge patch format: {why}"))
}

fn unknown_directive(directive: &Value, map: &Map<String, Value>) -> StatusError {
    let found = match directive {
        Value::String(text) => text.clone(),
        other => format!("%!s({}={})", type_of(other), printed(other)),
    };
    let mut map = map.clone();
    map.insert(DIRECTIVE.to_owned(), directive.clone());
    let map = printed(&Value::Object(map));
    StatusError::internal_plain(format!("unknown patch type: {found} in map: {map}"))
}

fn no_key(item: &Map<String, Value>, key: &str) -> StatusError {
    let item = printed(&Value::Object(item.clone()));
    StatusError::internal_plain(format!("map: {item} does not contain declared merge key: {key}"))
}
