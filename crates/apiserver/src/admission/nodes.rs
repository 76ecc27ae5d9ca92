//! The TaintNodesByCondition admission plugin: a new node takes no pods until it is ready.

use serde_json::{Value, json};

use crate::api_types::Resource;
use crate::object;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Adds the taint that the node lifecycle controller removes once the node is ready.
pub(crate) fn taint_not_ready(resource: &Resource, node: &mut Value) {
    if resource.kind != "Node" {
        return;
    }
    let taints = object::child_mut(node, "spec").entry("taints").or_insert_with(|| json!([]));
    let Some(list) = taints.as_array_mut() else { return };
    let is_there =
        list.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule");
    if !is_there {
        list.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}
