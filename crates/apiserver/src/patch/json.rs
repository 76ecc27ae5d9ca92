//! JSON patches, one operation at a time, so that what each may copy or shift is bounded: a short
//! patch can otherwise double an object ten thousand times.

use json_patch::jsonptr::Pointer;
use json_patch::{Patch, PatchOperation, patch_unsafe};
use serde_json::Value;

use crate::schema::MAX_DEPTH;
use crate::schema::value::depth;
use crate::status::StatusError;

/// Upstream's limit on the operations of one patch.
const MAX_OPERATIONS: usize = 10_000;
/// Upstream's limit on what all copies of one patch add, in bytes.
const MAX_COPIED: usize = 3 << 20;
/// How many list items all insertions and removals of one patch may shift.
const MAX_SHIFTED: usize = 50_000_000;

pub(super) fn apply(document: &mut Value, patch: Value) -> Result<(), StatusError> {
    let operations = patch.as_array().map_or(0, Vec::len);
    if operations > MAX_OPERATIONS {
        return Err(StatusError::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {operations}"
        )));
    }
    let Patch(operations) = serde_json::from_value(patch)
        .map_err(|e| StatusError::bad_request(format!("error decoding patch: {e}")))?;
    let mut budget = Budget::default();
    for (index, operation) in operations.into_iter().enumerate() {
        budget.spend(document, &operation)?;
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

#[derive(Default)]
struct Budget {
    copied: usize,
    shifted: usize,
}

impl Budget {
    fn spend(&mut self, document: &Value, operation: &PatchOperation) -> Result<(), StatusError> {
        let found = |pointer: &Pointer| document.pointer(pointer.as_str());
        let mut places: Vec<&Pointer> = vec![operation.path()];
        let levels = match operation {
            PatchOperation::Add(add) => depth(&add.value),
            PatchOperation::Replace(replace) => depth(&replace.value),
            PatchOperation::Copy(copy) => {
                let source = found(&copy.from);
                self.copied += source.map_or(0, size);
                source.map_or(0, depth)
            }
            PatchOperation::Move(r#move) => {
                places.push(&r#move.from);
                found(&r#move.from).map_or(0, depth)
            }
            PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
        };
        if self.copied > MAX_COPIED {
            return Err(StatusError::too_large(format!(
                "the copies of a JSON patch add more than {MAX_COPIED} bytes"
            )));
        }
        if operation.path().count() + levels > MAX_DEPTH {
            return Err(StatusError::bad_request(format!(
                "a JSON patch may not nest values deeper than {MAX_DEPTH} levels"
            )));
        }
        for place in places {
            let list = place.parent().and_then(found).and_then(Value::as_array);
            self.shifted += list.map_or(0, Vec::len);
        }
        if self.shifted > MAX_SHIFTED {
            return Err(StatusError::too_large("the JSON patch moves too many list items"));
        }
        Ok(())
    }
}

/// About as many bytes as the value has in JSON.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(list) => 2 + list.iter().map(|v| 1 + size(v)).sum::<usize>(),
        Value::Object(map) => 2 + map.iter().map(|(k, v)| k.len() + 4 + size(v)).sum::<usize>(),
    }
}
