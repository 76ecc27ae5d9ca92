//! JSON patches, one operation at a time, so that what each may visit, copy or shift is bounded: a
//! short patch can otherwise double an object ten thousand times, or walk through all of it as often.

use json_patch::jsonptr::Pointer;
use json_patch::{AddOperation, Patch, PatchOperation, ReplaceOperation, patch_unsafe};
use serde_json::Value;

use super::Work;
use crate::schema::MAX_DEPTH;
use crate::schema::value::size;
use crate::status::StatusError;

/// Upstream's limit on the operations of one patch.
const MAX_OPERATIONS: usize = 10_000;
/// Upstream's limit on what all copies of one patch add, in bytes.
const MAX_COPIED: usize = 3 << 20;
/// List items that are shifted for the price of one value that is visited.
const SHIFTED_PER_VISIT: usize = 16;

pub(super) fn apply(
    document: &mut Value,
    patch: Value,
    work: &mut Work,
) -> Result<(), StatusError> {
    let operations = patch.as_array().map_or(0, Vec::len);
    if operations > MAX_OPERATIONS {
        return Err(StatusError::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {operations}"
        )));
    }
    let is_list = patch.as_array().is_some_and(|list| list.iter().all(Value::is_object));
    let Patch(operations) = serde_json::from_value(patch).map_err(|error| match is_list {
        // an operation or a path that there is not
        true => StatusError::unprocessable(error.to_string()),
        false => StatusError::bad_request(format!("error decoding patch: {error}")),
    })?;
    let mut copied = 0;
    for (index, operation) in operations.into_iter().enumerate() {
        let operation = made_if_absent(document, operation);
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
    Ok(())
}

/// A member of an object that is replaced may be absent, as upstream's library has it.
fn made_if_absent(document: &Value, operation: PatchOperation) -> PatchOperation {
    match operation {
        PatchOperation::Replace(ReplaceOperation { path, value })
            if document.pointer(path.as_str()).is_none() =>
        {
            let parent = path.parent().and_then(|parent| document.pointer(parent.as_str()));
            match parent.is_some_and(Value::is_object) {
                true => PatchOperation::Add(AddOperation { path, value }),
                false => PatchOperation::Replace(ReplaceOperation { path, value }),
            }
        }
        other => other,
    }
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
