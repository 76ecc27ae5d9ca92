//! What a cluster fills in for a pod: service account, priority, tolerations.
//!
//! Current limitations: no token volume is added, since no tokens are issued yet; the two built-in
//! priority classes are the only ones.

use serde_json::{Value, json};

use super::core;
use crate::facts::Resource;
use crate::object;
use crate::registry::Registry;
use crate::status::StatusError;

/// The mark of a pod that a node made from a manifest of its own.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
const DEFAULT_ACCOUNT: &str = "default";
const TOLERATION_SECONDS: i64 = 300;

pub(crate) async fn admit_create(
    registry: &Registry,
    resource: &Resource,
    pod: &mut Value,
) -> Result<(), StatusError> {
    set_priority(resource, pod)?;
    add_tolerations(pod);
    // A mirror pod refers to no API object, its service account included.
    if !is_mirror(pod) {
        set_service_account(registry, resource, pod).await?;
    }
    Ok(())
}

pub(crate) fn admit_update(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        if pod["spec"][field].is_null() && !old["spec"][field].is_null() {
            object::child_mut(pod, "spec").insert(field.into(), old["spec"][field].clone());
        }
    }
    add_tolerations(pod);
}

pub(super) fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"][MIRROR].is_string()
}

fn set_priority(resource: &Resource, pod: &mut Value) -> Result<(), StatusError> {
    let forbidden =
        |pod: &Value, why: String| Err(StatusError::forbidden(resource, object::name(pod), &why));
    let class = pod["spec"]["priorityClassName"].as_str().unwrap_or_default();
    let priority = match class {
        "" => 0,
        "system-cluster-critical" => 2_000_000_000,
        "system-node-critical" => 2_000_001_000,
        class => {
            let why = format!("no PriorityClass with name {class} was found");
            return forbidden(pod, why);
        }
    };
    let given = &pod["spec"]["priority"];
    if !given.is_null() && given != &json!(priority) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission \
             controller computed {priority} from the given PriorityClass name"
        );
        return forbidden(pod, why);
    }
    let spec = object::child_mut(pod, "spec");
    spec.insert("priority".into(), priority.into());
    spec.entry("preemptionPolicy").or_insert_with(|| "PreemptLowerPriority".into());
    Ok(())
}

fn add_tolerations(pod: &mut Value) {
    let tolerations =
        object::child_mut(pod, "spec").entry("tolerations").or_insert_with(|| json!([]));
    let Some(tolerations) = tolerations.as_array_mut() else {
        return;
    };
    for taint in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerates = tolerations.iter().any(|toleration| {
            let has = |field: &str, wanted: &str| {
                let value = toleration[field].as_str().unwrap_or_default();
                value.is_empty() || value == wanted
            };
            has("key", taint) && has("effect", "NoExecute")
        });
        if !tolerates {
            tolerations.push(json!({
                "key": taint,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": TOLERATION_SECONDS,
            }));
        }
    }
}

async fn set_service_account(
    registry: &Registry,
    resource: &Resource,
    pod: &mut Value,
) -> Result<(), StatusError> {
    let spec = object::child_mut(pod, "spec");
    let named = spec.get("serviceAccountName").and_then(Value::as_str).unwrap_or_default();
    let account = if named.is_empty() { DEFAULT_ACCOUNT } else { named }.to_owned();
    spec.insert("serviceAccountName".into(), account.as_str().into());
    spec.insert("serviceAccount".into(), account.as_str().into());
    let namespace = object::namespace(pod);
    if registry.find(core("serviceaccounts")?, namespace, &account).await?.is_some() {
        return Ok(());
    }
    let why = format!(
        "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
    );
    Err(StatusError::forbidden(resource, object::name(pod), &why))
}
