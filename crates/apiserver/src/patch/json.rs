//! JSON patches, one operation at a time, so that what each may visit, copy or shift is bounded: a
//! short patch can otherwise double an object ten thousand times, or walk through all of it as often.

use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{
    AddOperation, CopyOperation, MoveOperation, PatchOperation, RemoveOperation, ReplaceOperation,
    TestOperation, patch_unsafe,
};
use serde_json::{Map, Value};

use super::Work;
use crate::schema::value::size;
use crate::schema::{MAX_DEPTH, word};
use crate::status::StatusError;

/// Upstream's limit on the operations of one patch.
const MAX_OPERATIONS: usize = 10_000;
/// Upstream's limit on what all copies of one patch add, in bytes.
const MAX_COPIED: usize = 3 << 20;
/// List items that are shifted for the price of one value that is visited.
const SHIFTED_PER_VISIT: usize = 16;
/// The fields of an operation.
const FIELDS: [&str; 4] = ["op", "path", "from", "value"];
/// The most fields that are named as unknown.
const MAX_NAMED: usize = 100;

/// Applies a patch. Returns the fields of its operations that are unknown.
pub(super) fn apply(
    document: &mut Value,
    patch: Value,
    work: &mut Work,
) -> Result<Vec<String>, StatusError> {
    let operations = match patch {
        Value::Array(list) => list,
        Value::Null => Vec::new(),
        other => return Err(undecoded(&other, "value of type []handlers.jsonPatchOp")),
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(StatusError::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut unknown = Vec::new();
    let mut maps = Vec::with_capacity(operations.len());
    for (index, operation) in operations.into_iter().enumerate() {
        let map = match operation {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            other => return Err(undecoded(&other, "value of type handlers.jsonPatchOp")),
        };
        for field in ["op", "path", "from"] {
            match map.get(field) {
                None | Some(Value::Null | Value::String(_)) => {}
                Some(other) => {
                    let into = format!("struct field jsonPatchOp.{field} of type string");
                    return Err(undecoded(other, &into));
                }
            }
        }
        let others = map.keys().filter(|name| !FIELDS.contains(&name.as_str()));
        unknown.extend(others.map(|name| format!("[{index}].{name}")));
        unknown.truncate(MAX_NAMED);
        maps.push(map);
    }
    let mut copied = 0;
    for (index, mut map) in maps.into_iter().enumerate() {
        work.charge(1)?;
        let step = step(document, &mut map)
            .ok_or_else(|| StatusError::unprocessable(format!("operation {index} is none")))?;
        let Step::Operation(operation) = step else { continue };
        charge(document, &operation, work)?;
        if let PatchOperation::Copy(copy) = &operation {
            copied += document.pointer(copy.from.as_str()).map_or(0, size);
            if copied > MAX_COPIED {
                return Err(StatusError::too_large(format!(
                    "the copies of a JSON patch add more than {MAX_COPIED} bytes"
                )));
            }
        }
        patch_unsafe(document, std::slice::from_ref(&operation)).map_err(|e| {
            StatusError::unprocessable(format!(
                "operation {index} failed at path {:?}: {}",
                e.path.as_str(),
                e.kind
            ))
        })?;
    }
    Ok(unknown)
}

/// What cannot be read, in the words of Go's reader.
fn undecoded(value: &Value, into: &str) -> StatusError {
    let word = word(value);
    StatusError::bad_request(format!(
        "error decoding patch: json: cannot unmarshal {word} into Go {into}"
    ))
}

/// A place in a document. A tilde that escapes nothing stands for itself, as upstream has it.
fn pointer(text: &str) -> Option<PointerBuf> {
    let mut escaped = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        escaped.push(character);
        if character == '~' && !matches!(rest.peek(), Some('0' | '1')) {
            escaped.push('0');
        }
    }
    PointerBuf::parse(escaped).ok()
}

/// One step of a patch.
enum Step {
    /// Nothing is to be done.
    Nothing,
    Operation(PatchOperation),
}

/// An operation with upstream's understanding of what may be absent; `None` for one that there is not.
fn step(document: &Value, map: &mut Map<String, Value>) -> Option<Step> {
    let text = |name: &str| map.get(name).and_then(Value::as_str);
    let path = pointer(text("path")?)?;
    let from = text("from").map(pointer);
    let op = text("op")?.to_owned();
    let is_there = |pointer: &Pointer| document.pointer(pointer.as_str()).is_some();
    let is_member = |pointer: &Pointer| {
        let parent = pointer.parent().and_then(|parent| document.pointer(parent.as_str()));
        parent.is_some_and(Value::is_object)
    };
    // An absent value is null.
    let value = map.remove("value").unwrap_or_default();
    Some(Step::Operation(match op.as_str() {
        "add" | "remove" if path.is_root() => return None,
        "add" => PatchOperation::Add(AddOperation { path, value }),
        "remove" => PatchOperation::Remove(RemoveOperation { path }),
        // A member of an object may be absent.
        "replace" if !is_there(&path) && is_member(&path) => {
            PatchOperation::Add(AddOperation { path, value })
        }
        "replace" => PatchOperation::Replace(ReplaceOperation { path, value }),
        "move" => PatchOperation::Move(MoveOperation { from: from??, path }),
        "copy" => {
            let from = from??;
            match !is_there(&from) && is_member(&from) {
                // An absent member is null.
                true => PatchOperation::Add(AddOperation { path, value: Value::Null }),
                false => PatchOperation::Copy(CopyOperation { from, path }),
            }
        }
        "test" if !is_there(&path) && is_member(&path) && value.is_null() => {
            return Some(Step::Nothing);
        }
        "test" => PatchOperation::Test(TestOperation { path, value }),
        _ => return None,
    }))
}

/// Charges an operation before it is executed, for all values that it reads, compares, copies
/// or shifts, and refuses one that would nest values too deeply.
fn charge(
    document: &Value,
    operation: &PatchOperation,
    work: &mut Work,
) -> Result<(), StatusError> {
    let found = |pointer: &Pointer| document.pointer(pointer.as_str());
    let mut pointers: Vec<&Pointer> = vec![operation.path()];
    let value = match operation {
        PatchOperation::Add(add) => Some(&add.value),
        PatchOperation::Replace(replace) => Some(&replace.value),
        PatchOperation::Test(test) => Some(&test.value),
        PatchOperation::Copy(copy) => found(&copy.from),
        PatchOperation::Move(r#move) => {
            pointers.push(&r#move.from);
            found(&r#move.from)
        }
        PatchOperation::Remove(_) => None,
    };
    let levels = value.map_or(Ok(0), |value| work.visit(value))?;
    if operation.path().count() + levels > MAX_DEPTH {
        return Err(StatusError::bad_request(format!(
            "a JSON patch may not nest values deeper than {MAX_DEPTH} levels"
        )));
    }
    for pointer in pointers {
        let list = pointer.parent().and_then(found).and_then(Value::as_array);
        work.charge(pointer.count() + list.map_or(0, Vec::len) / SHIFTED_PER_VISIT)?;
    }
    Ok(())
}
