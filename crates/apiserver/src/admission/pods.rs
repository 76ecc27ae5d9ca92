//! Admission of pods: priority, tolerations, overhead and scheduling of the runtime class. What
//! it has of its service account is in `serviceaccounts`.

use serde_json::{Value, json};

use crate::api_types::Resource;
use crate::kinds::known;
use crate::object;
use crate::registry::Registry;
use crate::schema::value::{entries, is_zero, items, same, text};
use crate::status::StatusError;

const TOLERATION_SECONDS: i64 = 300;
const PREEMPTION: &str = "PreemptLowerPriority";

const KIND: &str = "Pod";

pub(crate) async fn admit_create(
    registry: &Registry,
    resource: &Resource,
    pod: &mut Value,
) -> Result<(), StatusError> {
    if resource.kind != KIND {
        return Ok(());
    }
    let classes = priority_classes(registry, pod).await?;
    set_priority(resource, pod, &classes)?;
    add_tolerations(pod);
    apply_runtime_class(registry, resource, pod).await
}

pub(crate) fn admit_update(resource: &Resource, subresource: &str, pod: &mut Value, old: &Value) {
    if resource.kind != KIND || !subresource.is_empty() {
        return;
    }
    for field in ["priority", "preemptionPolicy"] {
        if pod["spec"][field].is_null() && !old["spec"][field].is_null() {
            object::child_mut(pod, "spec").insert(field.into(), old["spec"][field].clone());
        }
    }
    add_tolerations(pod);
}

/// The class that a pod names, or the default one. The classes whose names begin with `system-` may be
/// used in every namespace, as upstream's plugin Priority has it; where that is not wanted, a
/// ResourceQuota limits them.
async fn priority_classes(registry: &Registry, pod: &Value) -> Result<Vec<Value>, StatusError> {
    let classes = known("scheduling.k8s.io", "priorityclasses")?;
    match pod["spec"]["priorityClassName"].as_str().unwrap_or_default() {
        "" => registry.list_all(classes, "").await,
        name => Ok(registry.find(classes, "", name).await?.into_iter().collect()),
    }
}

/// Of several defaults the one of the lowest value.
pub(crate) fn default_priority_class(classes: &[Value]) -> Option<&Value> {
    let defaults = classes.iter().filter(|class| class["globalDefault"] == true);
    defaults.min_by_key(|class| class["value"].as_i64())
}

/// A second default priority class is refused. `field_of`: the written object, as far as it says something
/// about a field; `None` if that is not known.
pub(crate) async fn admit_priority_class<'a>(
    registry: &Registry,
    resource: &Resource,
    subresource: &str,
    name: &str,
    field_of: impl FnOnce(&str) -> Option<&'a Value>,
) -> Result<(), StatusError> {
    const DEFAULT: &str = "globalDefault";
    if resource.kind != "PriorityClass" || !subresource.is_empty() {
        return Ok(());
    }
    if field_of(DEFAULT).is_some_and(|class| class[DEFAULT] != true) {
        return Ok(());
    }
    let all = registry.list_all(resource, "").await?;
    match default_priority_class(&all).map(object::name).filter(|default| *default != name) {
        Some(default) => {
            let why = format!(
                "PriorityClass {default} is already marked as default. Only one default can exist"
            );
            Err(StatusError::forbidden(resource, name, &why))
        }
        None => Ok(()),
    }
}

fn set_priority(
    resource: &Resource,
    pod: &mut Value,
    classes: &[Value],
) -> Result<(), StatusError> {
    let forbidden =
        |pod: &Value, why: String| Err(StatusError::forbidden(resource, object::name(pod), &why));
    let name = text(&pod["spec"]["priorityClassName"]).to_owned();
    let class = match name.as_str() {
        "" => default_priority_class(classes),
        name => match classes.iter().find(|class| object::name(class) == name) {
            Some(class) => Some(class),
            None => return forbidden(pod, format!("no PriorityClass with name {name} was found")),
        },
    };
    let priority = class.and_then(|class| class["value"].as_i64()).unwrap_or(0);
    let wanted = match class.map_or("", |class| text(&class["preemptionPolicy"])) {
        "" => PREEMPTION,
        policy => policy,
    };
    let given = &pod["spec"]["priority"];
    if !given.is_null() && given != &json!(priority) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission \
             controller computed {priority} from the given PriorityClass name"
        );
        return forbidden(pod, why);
    }
    let policy = &pod["spec"]["preemptionPolicy"];
    if !policy.is_null() && policy != wanted {
        let why = format!(
            "the string value of PreemptionPolicy ({}) must not be provided in pod spec; priority admission \
             controller computed {wanted} from the given PriorityClass name",
            text(policy)
        );
        return forbidden(pod, why);
    }
    let spec = object::child_mut(pod, "spec");
    spec.insert("priority".into(), priority.into());
    spec.insert("preemptionPolicy".into(), wanted.into());
    if let Some(class) = class {
        spec.insert("priorityClassName".into(), object::name(class).into());
    }
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
    known("node.k8s.io", "runtimeclasses")
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
    use crate::kinds::priority_class::SYSTEM;

    /// Finding 10: priorities are exactly those of upstream's plugin Priority.
    #[test]
    fn pod_priority_comes_from_its_class() {
        let pods = crate::kinds::core("pods").unwrap();
        let system = "system-node-critical";
        let mut classes: Vec<Value> = SYSTEM
            .iter()
            .map(|(name, value, _)| json!({"metadata": {"name": name}, "value": value}))
            .collect();
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
            match (set_priority(pods, &mut pod, &classes), expected) {
                (Ok(()), Ok(priority)) => {
                    assert_eq!(pod["spec"]["priority"], priority, "{spec}");
                    assert_eq!(pod["spec"]["preemptionPolicy"], PREEMPTION, "{spec}");
                }
                (Err(error), Err(why)) => assert!(error.message.contains(why), "{error}"),
                (answer, expected) => panic!("{spec}: {answer:?}, not {expected:?}"),
            }
        }
        let class = |name: &str, value: i64| {
            json!({
                "metadata": {"name": name},
                "value": value,
                "globalDefault": true,
                "preemptionPolicy": "Never",
            })
        };
        classes.extend([class("high", 20), class("low", 10)]);
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {}});
        set_priority(pods, &mut pod, &classes).unwrap();
        let expected =
            json!({"priority": 10, "preemptionPolicy": "Never", "priorityClassName": "low"});
        assert_eq!(pod["spec"], expected);
    }
}
