//! Admission of pods: priority, tolerations, overhead and scheduling of the runtime class. What
//! it has of its service account is in `serviceaccounts`.
//!
//! Current limitations: the two built-in priority classes are the only ones.

use serde_json::{Value, json};

use crate::api_types::Resource;
use crate::kinds;
use crate::object;
use crate::registry::Registry;
use crate::schema::value::{entries, is_zero, items, same, text};
use crate::status::StatusError;

const TOLERATION_SECONDS: i64 = 300;
const PREEMPTION: &str = "PreemptLowerPriority";

pub(crate) async fn admit_create(
    registry: &Registry,
    resource: &Resource,
    pod: &mut Value,
) -> Result<(), StatusError> {
    set_priority(resource, pod)?;
    add_tolerations(pod);
    apply_runtime_class(registry, resource, pod).await
}

pub(crate) fn admit_update(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        if pod["spec"][field].is_null() && !old["spec"][field].is_null() {
            object::child_mut(pod, "spec").insert(field.into(), old["spec"][field].clone());
        }
    }
    add_tolerations(pod);
}

/// The classes whose names begin with `system-` may be used in every namespace, as upstream's plugin
/// Priority has it; where that is not wanted, a ResourceQuota limits them.
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
    // Both classes, and the absence of one, have the same policy.
    let policy = &pod["spec"]["preemptionPolicy"];
    if !policy.is_null() && policy != PREEMPTION {
        let why = format!(
            "the string value of PreemptionPolicy ({}) must not be provided in pod spec; priority admission \
             controller computed {PREEMPTION} from the given PriorityClass name",
            text(policy)
        );
        return forbidden(pod, why);
    }
    let spec = object::child_mut(pod, "spec");
    spec.insert("priority".into(), priority.into());
    spec.insert("preemptionPolicy".into(), PREEMPTION.into());
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

/// A pod's overhead is its runtime class's, and so is part of where it may run.
async fn apply_runtime_class(
    registry: &Registry,
    resource: &Resource,
    pod: &mut Value,
) -> Result<(), StatusError> {
    let name = pod["spec"]["runtimeClassName"].as_str().unwrap_or_default().to_owned();
    let class = match name.is_empty() {
        true => Value::Null,
        false => match registry.find(runtime_classes()?, "", &name).await? {
            Some(class) => class,
            None => {
                let why = format!("pod rejected: RuntimeClass {name:?} not found");
                return Err(StatusError::forbidden(resource, object::name(pod), &why));
            }
        },
    };
    follow_runtime_class(&class, pod)
        .map_err(|why| StatusError::forbidden(resource, object::name(pod), &why))
}

fn runtime_classes() -> Result<&'static Resource, StatusError> {
    kinds::lookup("node.k8s.io", "v1", "runtimeclasses")
        .ok_or_else(|| StatusError::internal("no resource runtimeclasses"))
}

fn follow_runtime_class(class: &Value, pod: &mut Value) -> Result<(), String> {
    let overhead = &class["overhead"]["podFixed"];
    let asked = &pod["spec"]["overhead"];
    if !asked.is_null() && overhead.is_null() {
        return Err(
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
                .into(),
        );
    }
    if !is_zero(asked) && !same(asked, overhead) {
        return Err(
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".into()
        );
    }
    let spec = object::child_mut(pod, "spec");
    if !overhead.is_null() {
        spec.insert("overhead".into(), overhead.clone());
    }
    let scheduling = &class["scheduling"];
    let mut selector =
        spec.get("nodeSelector").and_then(Value::as_object).cloned().unwrap_or_default();
    for (key, value) in entries(&scheduling["nodeSelector"]) {
        if let Some(own) = selector.get(key).filter(|own| *own != value) {
            let (value, own) = (text(value), text(own));
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {own}"
            ));
        }
        selector.insert(key.clone(), value.clone());
    }
    if !selector.is_empty() {
        spec.insert("nodeSelector".into(), selector.into());
    }
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if let Some(tolerations) = tolerations.as_array_mut() {
        for toleration in items(&scheduling["tolerations"]) {
            if !tolerations.contains(toleration) {
                tolerations.push(toleration.clone());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    /// Finding 10: priorities are exactly those of upstream's plugin Priority.
    #[test]
    fn pod_priority_comes_from_its_class() {
        let pods = crate::kinds::core("pods").unwrap();
        let system = "system-node-critical";
        for (namespace, spec, expected) in [
            ("shop", json!({}), Ok(0)),
            ("shop", json!({"priority": 0}), Ok(0)),
            ("shop", json!({"priorityClassName": system}), Ok(2_000_001_000)),
            ("kube-system", json!({"priorityClassName": system}), Ok(2_000_001_000)),
            (
                "kube-system",
                json!({"priorityClassName": "system-cluster-critical"}),
                Ok(2_000_000_000),
            ),
            ("shop", json!({"priority": 2_000_001_000}), Err("integer value of priority")),
            ("kube-system", json!({"priority": i64::MAX}), Err("integer value of priority")),
            (
                "shop",
                json!({"priorityClassName": "system-mine"}),
                Err("no PriorityClass with name"),
            ),
            ("shop", json!({"preemptionPolicy": "Never"}), Err("string value of PreemptionPolicy")),
            ("shop", json!({"preemptionPolicy": "PreemptLowerPriority"}), Ok(0)),
        ] {
            let mut pod = json!({"metadata": {"name": "p", "namespace": namespace}, "spec": spec});
            match (set_priority(pods, &mut pod), expected) {
                (Ok(()), Ok(priority)) => {
                    assert_eq!(pod["spec"]["priority"], priority, "{spec}");
                    assert_eq!(pod["spec"]["preemptionPolicy"], PREEMPTION, "{spec}");
                }
                (Err(error), Err(why)) => assert!(error.message.contains(why), "{error}"),
                (answer, expected) => panic!("{spec}: {answer:?}, not {expected:?}"),
            }
        }
    }
}
