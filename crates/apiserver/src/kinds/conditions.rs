//! What becomes of a certificate request's conditions when its status or its approval is written.

use serde_json::Value;

use crate::csr::{APPROVED, DENIED};
use crate::object::{self, child_mut};
use crate::schema::value::{items, items_mut, text};

/// A status update leaves decisions as they are; adding and removing them is for validation to refuse.
pub(super) fn keep_decisions(request: &mut Value, old: &Value) {
    let had = items(&old["status"]["conditions"]);
    for condition in items_mut(child_mut(request, "status").get_mut("conditions")) {
        let kind = condition.get("type").map_or("", text);
        let is_decision = matches!(kind, APPROVED | DENIED);
        let same = had.iter().find(|had| is_decision && had["type"] == kind);
        if let Some(Value::Object(same)) = same {
            *condition = same.clone();
        }
    }
    stamp(request, old);
}

/// The status as it was, with these conditions.
pub(super) fn decide(request: &mut Value, old: &Value, conditions: Option<Value>) {
    let mut status = old.get("status").cloned().unwrap_or_else(|| serde_json::json!({}));
    match conditions {
        Some(conditions) => status["conditions"] = conditions,
        None => drop(status.as_object_mut().and_then(|status| status.remove("conditions"))),
    }
    request["status"] = status;
    stamp(request, old);
}

/// Times that the client left out.
fn stamp(request: &mut Value, old: &Value) {
    let now = object::now().to_string();
    let had = items(&old["status"]["conditions"]);
    for condition in items_mut(child_mut(request, "status").get_mut("conditions")) {
        let same = had.iter().find(|had| {
            Some(&had["type"]) == condition.get("type")
                && Some(&had["status"]) == condition.get("status")
        });
        let since = same.and_then(|same| same["lastTransitionTime"].as_str()).unwrap_or(&now);
        condition.entry("lastTransitionTime").or_insert_with(|| since.into());
        condition.entry("lastUpdateTime").or_insert_with(|| now.as_str().into());
    }
}
