//! Strategic merge patches of node status and labels.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::qos::milli;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Whether `new` differs from `old`, apart from the heartbeat time.
pub(super) fn has_changes(old: &NodeStatus, new: &NodeStatus) -> bool {
    conditions_differ(old, new) || !changes(old, new).is_empty()
}

/// The patch from `old` to `new`, with all conditions as heartbeat.
pub(super) fn status_patch(old: &NodeStatus, new: &NodeStatus) -> Value {
    let mut status = changes(old, new);
    status.insert("conditions".to_owned(), json!(new.conditions));
    json!({ "status": status })
}

fn conditions_differ(old: &NodeStatus, new: &NodeStatus) -> bool {
    let without_heartbeat = |condition: &NodeCondition| NodeCondition {
        last_heartbeat_time: None,
        ..condition.clone()
    };
    let comparable = |status: &NodeStatus| -> Vec<_> {
        status.conditions.iter().flatten().map(without_heartbeat).collect()
    };
    comparable(old) != comparable(new)
}

/// The fields that differ, without conditions.
fn changes(old: &NodeStatus, new: &NodeStatus) -> Map<String, Value> {
    let mut changes = Map::new();
    let mut set = |field: &str, value: Value| changes.insert(field.to_owned(), value);
    for (field, old, new) in [
        ("capacity", &old.capacity, &new.capacity),
        ("allocatable", &old.allocatable, &new.allocatable),
    ] {
        let amounts = amount_changes(old.as_ref(), new.as_ref());
        if !amounts.is_empty() {
            set(field, Value::Object(amounts));
        }
    }
    if old.addresses != new.addresses {
        // the merge key is the type, which is not unique: the list is replaced
        let mut addresses = json!(new.addresses.as_deref().unwrap_or_default());
        if let Value::Array(addresses) = &mut addresses {
            addresses.push(json!({"$patch": "replace"}));
        }
        set("addresses", addresses);
    }
    if old.node_info != new.node_info {
        let mut info = json!(new.node_info);
        if let Value::Object(info) = &mut info {
            info.entry("swap").or_insert(Value::Null);
        }
        set("nodeInfo", info);
    }
    for (field, old, new) in [
        ("daemonEndpoints", tree(&old.daemon_endpoints), tree(&new.daemon_endpoints)),
        ("images", tree(&old.images), tree(&new.images)),
        ("runtimeHandlers", tree(&old.runtime_handlers), tree(&new.runtime_handlers)),
        ("features", tree(&old.features), tree(&new.features)),
        ("volumesInUse", tree(&old.volumes_in_use), tree(&new.volumes_in_use)),
        ("declaredFeatures", tree(&old.declared_features), tree(&new.declared_features)),
    ] {
        if old != new {
            set(field, new);
        }
    }
    changes
}

/// The value as JSON; empty lists are null.
fn tree<T: Serialize>(value: &Option<T>) -> Value {
    match json!(value) {
        Value::Array(items) if items.is_empty() => Value::Null,
        value => value,
    }
}

type Quantities = BTreeMap<String, Quantity>;

/// Quantities that differ in value; removed ones are null.
fn amount_changes(old: Option<&Quantities>, new: Option<&Quantities>) -> Map<String, Value> {
    let empty = Quantities::new();
    let (old, new) = (old.unwrap_or(&empty), new.unwrap_or(&empty));
    let gone = old.keys().filter(|resource| !new.contains_key(*resource));
    let changed = new
        .iter()
        .filter(|(resource, amount)| old.get(*resource).map(milli) != Some(milli(amount)));
    changed
        .map(|(resource, amount)| (resource.clone(), json!(amount)))
        .chain(gone.map(|resource| (resource.clone(), Value::Null)))
        .collect()
}

/// Patch to set labels or annotations to the wanted values (`None`: remove).
pub(super) fn metadata_changes<'a>(
    existing: Option<&BTreeMap<String, String>>,
    wanted: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Map<String, Value> {
    let existing = |key: &str| existing.and_then(|existing| existing.get(key)).map(String::as_str);
    wanted
        .into_iter()
        .filter(|(key, value)| existing(key) != *value)
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect()
}
