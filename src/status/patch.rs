//! The strategic merge patch between two pod statuses.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PodStatus;
use longshore_pod::status::is_owned;
use serde_json::{Map, Value, json};

/// Fields that are written by others.
const FOREIGN: [&str; 4] = [
    "nominatedNodeName",
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
];

/// The patch of the object with that UID; `None` if nothing differs.
///
/// Only changed fields and conditions of the node are sent: those of others may be outdated.
pub(super) fn between(uid: &str, old: &PodStatus, new: &PodStatus) -> Option<Value> {
    let (old, new) = (fields(old), fields(new));
    let mut status = Map::new();
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let (before, after) = (old.get(key), new.get(key));
        if before == after {
            continue;
        }
        let value = match (key.as_str(), after) {
            // Others may have put them in another order.
            ("conditions", after) => match conditions(before, after) {
                changed if changed.is_empty() => continue,
                changed => Value::Array(changed),
            },
            // The merge key is the address: replace the list.
            ("podIPs" | "hostIPs", Some(Value::Array(list))) => {
                let mut list = list.clone();
                list.push(json!({"$patch": "replace"}));
                Value::Array(list)
            }
            ("resources" | "allocatedResources", Some(Value::Object(after))) => {
                Value::Object(entries(before.and_then(Value::as_object), after))
            }
            (_, Some(value)) => value.clone(),
            (_, None) => Value::Null,
        };
        status.insert(key.clone(), value);
    }
    (!status.is_empty()).then(|| json!({"metadata": {"uid": uid}, "status": status}))
}

/// Splits a patch into one per field of the status, with the name of the field.
pub(super) fn parts(patch: &Value) -> impl Iterator<Item = (&str, Value)> {
    let fields = patch["status"].as_object().into_iter().flatten();
    fields.map(|(field, value)| {
        (field.as_str(), json!({"metadata": patch["metadata"], "status": {field: value}}))
    })
}

fn fields(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(mut fields)) => {
            fields.retain(|key, _| !FOREIGN.contains(&key.as_str()));
            if let Some(Value::Array(conditions)) = fields.get_mut("conditions") {
                conditions.retain(|condition| {
                    let reason = condition["reason"].as_str();
                    condition["type"].as_str().is_some_and(|type_| is_owned(type_, reason))
                });
            }
            fields.retain(|_, value| *value != json!([]));
            fields
        }
        // A PodStatus always serializes to an object.
        _ => Map::new(),
    }
}

/// Merge patch between two objects: removed keys are null.
fn entries(before: Option<&Map<String, Value>>, after: &Map<String, Value>) -> Map<String, Value> {
    let gone = before.into_iter().flatten().filter(|(key, _)| !after.contains_key(*key));
    let gone = gone.map(|(key, _)| (key.clone(), Value::Null));
    let there = after.iter().map(|(key, value)| {
        let old = before.and_then(|before| before.get(key)).and_then(Value::as_object);
        let value = match value {
            Value::Object(value) => Value::Object(entries(old, value)),
            other => other.clone(),
        };
        (key.clone(), value)
    });
    gone.chain(there).collect()
}

fn conditions(before: Option<&Value>, after: Option<&Value>) -> Vec<Value> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let (before, after) = (list(before), list(after));
    let gone = before.iter().filter(|old| !after.iter().any(|new| new["type"] == old["type"]));
    let gone: Vec<Value> =
        gone.map(|old| json!({"$patch": "delete", "type": old["type"]})).collect();
    let changed = after.into_iter().filter(|condition| !before.contains(condition)).map(complete);
    changed.chain(gone).collect()
}

/// Sets missing reason and message to null, as a merge keeps them otherwise.
fn complete(mut condition: Value) -> Value {
    if let Value::Object(fields) = &mut condition {
        for key in ["reason", "message"] {
            fields.entry(key).or_insert(Value::Null);
        }
    }
    condition
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodCondition, PodIP};

    use super::*;

    fn condition(type_: &str, status: &str) -> PodCondition {
        PodCondition { type_: type_.into(), status: status.into(), ..PodCondition::default() }
    }

    #[test]
    fn status_patch_nulls_removed_resources() {
        let status =
            |value: Value| -> PodStatus { serde_json::from_value(value).expect("a status") };
        let old = json!({
            "resources": {"requests": {"cpu": "1", "x": "2"}, "limits": {"cpu": "1"}},
            "allocatedResources": {"cpu": "1", "x": "2"},
        });
        let new = json!({
            "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1"},
        });
        let patch = between("u", &status(old), &status(new)).expect("a patch");
        let expected = json!({
            "resources": {"requests": {"cpu": "2", "x": null}, "limits": null},
            "allocatedResources": {"cpu": "1", "x": null},
        });
        assert_eq!(patch["status"], expected);
    }

    #[test]
    fn status_patch_includes_only_own_disruption_condition() {
        let with = |reason: &str| {
            let mut disruption = condition("DisruptionTarget", "True");
            disruption.reason = Some(reason.to_owned());
            PodStatus { conditions: Some(vec![disruption]), ..PodStatus::default() }
        };
        assert_eq!(between("u", &PodStatus::default(), &with("EvictionByEvictionAPI")), None);
        assert!(between("u", &PodStatus::default(), &with("TerminationByKubelet")).is_some());
    }

    #[test]
    fn status_patch_is_empty_for_another_order_of_conditions() {
        let with = |types: [&str; 2]| PodStatus {
            conditions: Some(types.map(|type_| condition(type_, "True")).into()),
            ..PodStatus::default()
        };
        let (old, new) = (with(["Ready", "Initialized"]), with(["Initialized", "Ready"]));
        assert_eq!(between("u", &old, &new), None);
    }

    #[test]
    fn status_patch_is_empty_for_equal_statuses() {
        let status = PodStatus { phase: Some("Running".into()), ..PodStatus::default() };
        assert_eq!(between("u", &status, &status), None);
    }

    #[test]
    fn status_patch_excludes_fields_of_others() {
        let old = PodStatus::default();
        let new = PodStatus {
            conditions: Some(vec![condition("example.com/gate", "True")]),
            nominated_node_name: Some("n".into()),
            ..PodStatus::default()
        };
        assert_eq!(between("u", &old, &new), None);
    }

    #[test]
    fn status_patch_has_only_changes_and_nulls() {
        let old = PodStatus {
            phase: Some("Pending".into()),
            reason: Some("Because".into()),
            host_ip: Some("10.0.0.1".into()),
            conditions: Some(vec![condition("Ready", "False"), condition("PodScheduled", "True")]),
            ..PodStatus::default()
        };
        let new = PodStatus {
            phase: Some("Running".into()),
            host_ip: Some("10.0.0.1".into()),
            pod_ips: Some(vec![PodIP { ip: "10.1.0.2".into() }]),
            conditions: Some(vec![condition("Ready", "True"), condition("PodScheduled", "True")]),
            ..PodStatus::default()
        };
        let expected = json!({
            "metadata": {"uid": "u"},
            "status": {
                "phase": "Running",
                "reason": null,
                "podIPs": [{"ip": "10.1.0.2"}, {"$patch": "replace"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}],
            },
        });
        assert_eq!(between("u", &old, &new), Some(expected));
    }
}
