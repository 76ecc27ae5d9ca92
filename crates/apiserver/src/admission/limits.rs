//! The LimitRanger admission plugin: what the LimitRanges of a namespace set in pods, and what they
//! let pass. Upstream's rules are in `plugin/pkg/admission/limitranger`.

use serde_json::{Map, Value, json};

use crate::api_types::Resource;
use crate::kinds::core;
use crate::object;
use crate::registry::Registry;
use crate::schema::quantity::Quantity;
use crate::schema::resources::{Amounts, pod_limits, pod_requests};
use crate::schema::value::{entries, items, items_mut, text};
use crate::status::StatusError;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The LimitRanges of a namespace.
pub(crate) async fn ranges(
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
) -> Result<Vec<Value>, StatusError> {
    if !is_limited(resource) {
        return Ok(Vec::new());
    }
    registry.list_all(core("limitranges")?, namespace).await
}

/// The same for an update, which can change the resources of a claim, and of a pod by its subresource
/// `resize`.
pub(crate) async fn ranges_for_update(
    registry: &Registry,
    resource: &Resource,
    subresource: &str,
    namespace: &str,
) -> Result<Vec<Value>, StatusError> {
    match (resource.kind, subresource) {
        ("PersistentVolumeClaim", "") | ("Pod", "resize") => {
            ranges(registry, resource, namespace).await
        }
        _ => Ok(Vec::new()),
    }
}

/// Gives containers the requests and limits that they do not have.
pub(crate) fn set_defaults(resource: &Resource, ranges: &[Value], pod: &mut Value) {
    if resource.kind != "Pod" {
        return;
    }
    for range in ranges {
        let mut set = Vec::new();
        let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
        for (list, prefix) in [("containers", "container"), ("initContainers", "init container")] {
            for container in items_mut(spec.get_mut(list)) {
                merge(range, container, prefix, &mut set);
            }
        }
        if !set.is_empty() {
            let annotations =
                object::metadata_mut(pod).entry("annotations").or_insert_with(|| json!({}));
            annotations[ANNOTATION] = format!("LimitRanger plugin set: {}", set.join("; ")).into();
        }
    }
}

fn merge(range: &Value, container: &mut Map<String, Value>, prefix: &str, set: &mut Vec<String>) {
    let name = container.get("name").map_or("", text).to_owned();
    for (field, from, word) in
        [("requests", "defaultRequest", "request"), ("limits", "default", "limit")]
    {
        let limits = items(&range["spec"]["limits"]).iter();
        let defaults = limits
            .filter(|limit| limit["type"] == "Container")
            .flat_map(|limit| entries(&limit[from]));
        let mut added = Vec::new();
        for (resource, amount) in defaults {
            let resources = container.entry("resources").or_insert_with(|| json!({}));
            let own = &mut resources[field];
            if own[resource.as_str()].is_null() {
                own[resource.as_str()] = amount.clone();
                added.push(resource.as_str());
            }
        }
        added.sort_unstable();
        if !added.is_empty() {
            set.push(format!("{} {word} for {prefix} {name}", added.join(", ")));
        }
    }
}

/// Refuses a pod or a claim that is outside the limits.
pub(crate) fn check(
    resource: &Resource,
    ranges: &[Value],
    object: &Value,
) -> Result<(), StatusError> {
    for range in ranges {
        let mut faults = Vec::new();
        for limit in items(&range["spec"]["limits"]) {
            match (resource.plural, text(&limit["type"])) {
                ("pods", "Container") => {
                    for list in ["containers", "initContainers"] {
                        for container in items(&object["spec"][list]) {
                            let own = &container["resources"];
                            let requests = Amounts::of(&own["requests"]);
                            let limits = Amounts::of(&own["limits"]);
                            constrain("Container", limit, &requests, Some(&limits), &mut faults);
                        }
                    }
                }
                ("pods", "Pod") => {
                    let (requests, limits) = (pod_requests(object), pod_limits(object));
                    constrain("Pod", limit, &requests, Some(&limits), &mut faults);
                }
                ("persistentvolumeclaims", "PersistentVolumeClaim") => {
                    let requests = Amounts::of(&object["spec"]["resources"]["requests"]);
                    constrain("PersistentVolumeClaim", limit, &requests, None, &mut faults);
                }
                _ => {}
            }
        }
        match faults.as_slice() {
            [] => {}
            [fault] => return Err(StatusError::forbidden(resource, object::name(object), fault)),
            faults => {
                let all = format!("[{}]", faults.join(", "));
                return Err(StatusError::forbidden(resource, object::name(object), &all));
            }
        }
    }
    Ok(())
}

/// `limits`: `None` for what only has requests.
fn constrain(
    kind: &str,
    limit: &Value,
    requests: &Amounts,
    limits: Option<&Amounts>,
    faults: &mut Vec<String>,
) {
    let quantity = |value: &Value| Quantity::parse(text(value));
    let limit_of = |resource: &str| limits.and_then(|limits| limits.get(resource));
    for (resource, min) in entries(&limit["min"]) {
        let Some(min) = quantity(min) else { continue };
        let start = format!("minimum {resource} usage per {kind} is {min}");
        match (requests.get(resource), limit_of(resource)) {
            (None, _) => faults.push(format!("{start}.  No request is specified")),
            (Some(request), _) if request.amount() < min.amount() => {
                faults.push(format!("{start}, but request is {request}"));
            }
            (_, Some(limit)) if limit.amount() < min.amount() => {
                faults.push(format!("{start}, but limit is {limit}"));
            }
            _ => {}
        }
    }
    for (resource, max) in entries(&limit["max"]) {
        let Some(max) = quantity(max) else { continue };
        let start = format!("maximum {resource} usage per {kind} is {max}");
        let request = requests.get(resource);
        match (request, limit_of(resource)) {
            (None, _) if limits.is_none() => {
                faults.push(format!("{start}.  No request is specified"));
            }
            (_, None) if limits.is_some() => {
                faults.push(format!("{start}.  No limit is specified"));
            }
            (_, Some(limit)) if limit.amount() > max.amount() => {
                faults.push(format!("{start}, but limit is {limit}"));
            }
            (Some(request), _) if request.amount() > max.amount() => {
                faults.push(format!("{start}, but request is {request}"));
            }
            _ => {}
        }
    }
    for (resource, ratio) in entries(&limit["maxLimitRequestRatio"]) {
        let Some(ratio) = quantity(ratio) else { continue };
        let start = format!("{resource} max limit to request ratio per {kind} is {ratio}");
        let some = |quantity: Option<Quantity>| quantity.filter(|quantity| quantity.amount() != 0);
        match (some(requests.get(resource)), some(limit_of(resource))) {
            (None, _) => {
                faults.push(format!("{start}, but no request is specified or request is 0"));
            }
            (_, None) => faults.push(format!("{start}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                // Amounts are billionths, far from what a float cannot tell apart here.
                let given = limit.amount() as f64 / request.amount() as f64;
                if given > ratio.amount() as f64 / 1e9 {
                    faults.push(format!("{start}, but provided ratio is {given:.6}"));
                }
            }
        }
    }
}

/// Whether limits apply to objects of this resource.
fn is_limited(resource: &Resource) -> bool {
    resource.group.is_empty() && matches!(resource.plural, "pods" | "persistentvolumeclaims")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn range(limits: Value) -> Vec<Value> {
        vec![json!({"spec": {"limits": [limits]}})]
    }

    fn pod(resources: Value) -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "a"},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
        })
    }

    #[test]
    fn limits_are_defaulted_with_an_annotation() {
        let ranges = range(json!({
            "type": "Container",
            "defaultRequest": {"cpu": "100m", "memory": "200Mi"},
            "default": {"cpu": "500m"},
        }));
        let mut object = pod(json!({"requests": {"memory": "1Gi"}}));
        set_defaults(core("pods").unwrap(), &ranges, &mut object);
        assert_eq!(
            object["spec"]["containers"][0]["resources"],
            json!({"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "500m"}})
        );
        assert_eq!(
            object["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
        );
        let mut full =
            pod(json!({"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1"}}));
        let before = full.clone();
        set_defaults(core("pods").unwrap(), &ranges, &mut full);
        assert_eq!(full, before);
    }

    #[test]
    fn limits_refuse_what_is_outside() {
        let pods = core("pods").unwrap();
        for (limit, resources, fault) in [
            (
                json!({"min": {"cpu": "50m"}}),
                json!({"requests": {"cpu": "10m"}}),
                Some("minimum cpu usage per Container is 50m, but request is 10m"),
            ),
            (json!({"min": {"cpu": "50m"}}), json!({}), Some("No request is specified")),
            (
                json!({"max": {"memory": "500Mi"}}),
                json!({"limits": {"memory": "600Mi"}}),
                Some("maximum memory usage per Container is 500Mi, but limit is 600Mi"),
            ),
            (json!({"max": {"cpu": "1"}}), json!({}), Some("No limit is specified")),
            (json!({"max": {"cpu": "1"}}), json!({"limits": {"cpu": "1000m"}}), None),
            (
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "300m"}}),
                Some("but provided ratio is 3.000000"),
            ),
            (
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}),
                None,
            ),
        ] {
            let mut limit = limit;
            limit["type"] = "Container".into();
            let answer = check(pods, &range(limit.clone()), &pod(resources));
            match (answer, fault) {
                (Ok(()), None) => {}
                (Err(error), Some(fault)) => {
                    assert_eq!(error.code, 403);
                    assert!(error.message.contains(fault), "{error}");
                }
                (answer, fault) => panic!("{limit}: {answer:?}, not {fault:?}"),
            }
        }
    }
}
