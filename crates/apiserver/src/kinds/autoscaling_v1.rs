//! HorizontalPodAutoscaler of autoscaling/v1: stored in the form of v2. What v1 has no fields for is in
//! annotations, as upstream's conversion has it.

use serde_json::{Map, Value, json};

use crate::object::{child_mut, metadata_mut};
use crate::schema::value::{items, text};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const ANNOTATIONS: [&str; 6] = [
    METRICS,
    CURRENT_METRICS,
    CONDITIONS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];
const DEFAULT_UTILIZATION: i64 = 80;
/// The sources of metrics: their types, and their fields.
const SOURCES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

/// An object of v1 as it is stored.
pub(super) fn to_storage(mut scaler: Value) -> Value {
    if !scaler.is_object() {
        return scaler;
    }
    scaler["apiVersion"] = "autoscaling/v2".into();
    let annotation = |name: &str| -> Option<Value> {
        let text = scaler["metadata"]["annotations"][name].as_str()?;
        longshore_json::read(text.as_bytes()).ok()
    };
    let list = |name: &str| annotation(name).and_then(|list| list.as_array().cloned());
    let mut metrics: Vec<Value> =
        list(METRICS).into_iter().flatten().map(|metric| spec_to_v2(&metric)).collect();
    let current =
        list(CURRENT_METRICS).map(|list| list.iter().map(status_to_v2).collect::<Vec<Value>>());
    let conditions = list(CONDITIONS);
    let behavior = annotation(BEHAVIOR).map(|behavior| renamed(&behavior, lower));
    let spec = child_mut(&mut scaler, "spec");
    if let Some(utilization) = spec.remove("targetCPUUtilizationPercentage") {
        metrics
            .push(cpu(json!({"type": "Utilization", "averageUtilization": utilization}), "target"));
    }
    if metrics.is_empty() {
        let target = json!({"type": "Utilization", "averageUtilization": DEFAULT_UTILIZATION});
        metrics.push(cpu(target, "target"));
    }
    spec.insert("metrics".into(), metrics.into());
    if let Some(behavior @ Value::Object(_)) = behavior {
        spec.insert("behavior".into(), behavior);
    }
    if let Some(status) = scaler.get_mut("status").and_then(Value::as_object_mut) {
        let utilization = status.remove("currentCPUUtilizationPercentage");
        let plain =
            utilization.map(|percent| vec![cpu(json!({"averageUtilization": percent}), "current")]);
        if let Some(current) = current.or(plain) {
            status.insert("currentMetrics".into(), current.into());
        }
        if let Some(conditions) = conditions {
            status.insert("conditions".into(), conditions.into());
        }
    }
    drop_annotations(&mut scaler);
    scaler
}

/// A stored object in the form of v1.
pub(super) fn from_storage(mut scaler: Value) -> Value {
    if !scaler.is_object() {
        return scaler;
    }
    scaler["apiVersion"] = "autoscaling/v1".into();
    drop_annotations(&mut scaler);
    let is_cpu =
        |metric: &Value| metric["type"] == "Resource" && metric["resource"]["name"] == "cpu";
    let spec = child_mut(&mut scaler, "spec");
    let metrics = spec.remove("metrics").unwrap_or_default();
    let has_utilization = |metric: &&Value| {
        is_cpu(metric) && !metric["resource"]["target"]["averageUtilization"].is_null()
    };
    let first = items(&metrics).iter().find(has_utilization);
    let others: Vec<Value> =
        items(&metrics).iter().filter(|one| !has_utilization(one)).map(spec_to_v1).collect();
    if let Some(metric) = first {
        let utilization = metric["resource"]["target"]["averageUtilization"].clone();
        spec.insert("targetCPUUtilizationPercentage".into(), utilization);
    }
    let behavior = spec.remove("behavior").map(|behavior| renamed(&behavior, upper));
    let mut annotations = Map::new();
    let mut keep = |name: &str, value: &Value| {
        annotations.insert(name.to_owned(), value.to_string().into());
    };
    if !others.is_empty() {
        keep(METRICS, &others.into());
    }
    if let Some(behavior) = behavior {
        keep(BEHAVIOR, &behavior);
    }
    if let Some(status) = scaler.get_mut("status").and_then(Value::as_object_mut) {
        let current = status.remove("currentMetrics").unwrap_or_default();
        for metric in items(&current).iter().filter(|metric| is_cpu(metric)) {
            let percent = &metric["resource"]["current"]["averageUtilization"];
            if !percent.is_null() {
                status.insert("currentCPUUtilizationPercentage".into(), percent.clone());
            }
        }
        if !items(&current).is_empty() {
            let list: Vec<Value> = items(&current).iter().map(status_to_v1).collect();
            keep(CURRENT_METRICS, &list.into());
        }
        if let Some(conditions) = status.remove("conditions")
            && !items(&conditions).is_empty()
        {
            keep(CONDITIONS, &conditions);
        }
        status.entry("currentReplicas").or_insert_with(|| 0.into());
    }
    if !annotations.is_empty() {
        let own = metadata_mut(&mut scaler).entry("annotations").or_insert_with(|| json!({}));
        if let Some(own) = own.as_object_mut() {
            own.extend(annotations);
        }
    }
    scaler
}

fn drop_annotations(scaler: &mut Value) {
    let metadata = metadata_mut(scaler);
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else {
        return;
    };
    for name in ANNOTATIONS {
        annotations.remove(name);
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

fn cpu(value: Value, field: &str) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", field: value}})
}

/// Without the fields that are null.
fn compact(mut object: Value) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    object
}

/// One metric with its source changed.
fn with_source(metric: &Value, change: impl Fn(&str, &Value) -> Value) -> Value {
    let kind = text(&metric["type"]);
    let mut new = json!({"type": kind});
    if let Some((_, field)) = SOURCES.iter().find(|(known, _)| *known == kind)
        && !metric[*field].is_null()
    {
        new[*field] = change(kind, &metric[*field]);
    }
    new
}

fn spec_to_v1(metric: &Value) -> Value {
    with_source(metric, |kind, source| {
        let (target, named) = (&source["target"], &source["metric"]);
        let zero = |value: &Value| if value.is_null() { json!("0") } else { value.clone() };
        compact(match kind {
            "External" => json!({
                "metricName": named["name"],
                "metricSelector": named["selector"],
                "targetValue": target["value"],
                "targetAverageValue": target["averageValue"],
            }),
            "Object" => json!({
                "target": source["describedObject"],
                "metricName": named["name"],
                "targetValue": zero(&target["value"]),
                "selector": named["selector"],
                "averageValue": target["averageValue"],
            }),
            "Pods" => json!({
                "metricName": named["name"],
                "targetAverageValue": zero(&target["averageValue"]),
                "selector": named["selector"],
            }),
            _ => json!({
                "name": source["name"],
                "container": source["container"],
                "targetAverageUtilization": target["averageUtilization"],
                "targetAverageValue": target["averageValue"],
            }),
        })
    })
}

fn spec_to_v2(metric: &Value) -> Value {
    with_source(metric, |kind, source| {
        let named = |selector: &str| {
            compact(json!({"name": source["metricName"], "selector": source[selector]}))
        };
        let target = |kind: &str, field: &str, value: &Value, average: &Value| {
            compact(json!({"type": kind, field: value, "averageValue": average}))
        };
        let kind_of = |value: &Value, kind| if value.is_null() { "AverageValue" } else { kind };
        match kind {
            "External" => {
                let (value, average) = (&source["targetValue"], &source["targetAverageValue"]);
                let target = target(kind_of(value, "Value"), "value", value, average);
                json!({"metric": named("metricSelector"), "target": target})
            }
            "Object" => {
                let (value, average) = (&source["targetValue"], &source["averageValue"]);
                let is_zero = value.is_null() || value == "0" || value == 0;
                let target = match average.is_null() {
                    true => target("Value", "value", value, average),
                    false if is_zero => target("AverageValue", "value", &Value::Null, average),
                    false => target("AverageValue", "value", value, average),
                };
                let described = &source["target"];
                json!({
                    "describedObject": described,
                    "target": target,
                    "metric": named("selector"),
                })
            }
            "Pods" => {
                let average = &source["targetAverageValue"];
                let target = target("AverageValue", "value", &Value::Null, average);
                json!({"metric": named("selector"), "target": target})
            }
            _ => {
                let percent = &source["targetAverageUtilization"];
                let average = &source["targetAverageValue"];
                let kind = kind_of(percent, "Utilization");
                let target = target(kind, "averageUtilization", percent, average);
                compact(json!({
                    "name": source["name"],
                    "container": source["container"],
                    "target": target,
                }))
            }
        }
    })
}

fn status_to_v1(metric: &Value) -> Value {
    with_source(metric, |kind, source| {
        let (current, named) = (&source["current"], &source["metric"]);
        let zero = |value: &Value| if value.is_null() { json!("0") } else { value.clone() };
        compact(match kind {
            "External" => json!({
                "metricName": named["name"],
                "metricSelector": named["selector"],
                "currentValue": zero(&current["value"]),
                "currentAverageValue": current["averageValue"],
            }),
            "Object" => json!({
                "target": source["describedObject"],
                "metricName": named["name"],
                "currentValue": zero(&current["value"]),
                "selector": named["selector"],
                "averageValue": current["averageValue"],
            }),
            "Pods" => json!({
                "metricName": named["name"],
                "currentAverageValue": zero(&current["averageValue"]),
                "selector": named["selector"],
            }),
            _ => json!({
                "name": source["name"],
                "container": source["container"],
                "currentAverageUtilization": current["averageUtilization"],
                "currentAverageValue": zero(&current["averageValue"]),
            }),
        })
    })
}

fn status_to_v2(metric: &Value) -> Value {
    with_source(metric, |kind, source| {
        let named = |selector: &str| {
            compact(json!({"name": source["metricName"], "selector": source[selector]}))
        };
        match kind {
            "External" => json!({
                "metric": named("metricSelector"),
                "current": compact(json!({
                    "value": source["currentValue"],
                    "averageValue": source["currentAverageValue"],
                })),
            }),
            "Object" => json!({
                "describedObject": source["target"],
                "metric": named("selector"),
                "current": compact(json!({
                    "value": source["currentValue"],
                    "averageValue": source["averageValue"],
                })),
            }),
            "Pods" => json!({
                "metric": named("selector"),
                "current": compact(json!({"averageValue": source["currentAverageValue"]})),
            }),
            _ => compact(json!({
                "name": source["name"],
                "container": source["container"],
                "current": compact(json!({
                    "averageUtilization": source["currentAverageUtilization"],
                    "averageValue": source["currentAverageValue"],
                })),
            })),
        }
    })
}

/// All fields with other names, and without those that are null: the annotation of the behavior has the
/// names of Go's fields.
fn renamed(value: &Value, name: fn(char) -> char) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| {
                let mut letters = key.chars();
                let first = letters.next().map(name);
                (first.into_iter().chain(letters).collect::<String>(), renamed(value, name))
            })
            .collect::<Map<String, Value>>()
            .into(),
        Value::Array(list) => list.iter().map(|value| renamed(value, name)).collect(),
        other => other.clone(),
    }
}

fn lower(letter: char) -> char {
    letter.to_ascii_lowercase()
}

fn upper(letter: char) -> char {
    letter.to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn autoscaler_v1_keeps_what_only_v2_has() {
        let metric = json!({"name": "queue", "selector": {"matchLabels": {"a": "b"}}});
        let stored = json!({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "a", "annotations": {"own": "1"}},
            "spec": {
                "maxReplicas": 3,
                "metrics": [
                    {"type": "Pods", "pods": {
                        "metric": metric,
                        "target": {"type": "AverageValue", "averageValue": "10"},
                    }},
                    {"type": "External", "external": {
                        "metric": metric,
                        "target": {"type": "Value", "value": "10"},
                    }},
                    {"type": "Object", "object": {
                        "describedObject": {"kind": "Service", "name": "s"},
                        "metric": metric,
                        "target": {"type": "Value", "value": "10"},
                    }},
                    {"type": "ContainerResource", "containerResource": {
                        "name": "cpu",
                        "container": "c",
                        "target": {"type": "Utilization", "averageUtilization": 7},
                    }},
                    cpu(json!({"type": "Utilization", "averageUtilization": 50}), "target"),
                ],
                "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}},
            },
            "status": {
                "currentReplicas": 1,
                "conditions": [{"type": "AbleToScale", "status": "True"}],
                "currentMetrics": [
                    cpu(json!({"averageUtilization": 12, "averageValue": "3m"}), "current"),
                ],
            },
        });
        let shown = from_storage(stored.clone());
        assert_eq!(shown["apiVersion"], "autoscaling/v1");
        assert_eq!(shown["spec"]["targetCPUUtilizationPercentage"], 50);
        assert_eq!(shown["status"]["currentCPUUtilizationPercentage"], 12);
        assert_eq!(shown["spec"].get("metrics"), None);
        let annotations = &shown["metadata"]["annotations"];
        assert!(text(&annotations[BEHAVIOR]).contains("\"ScaleUp\""), "{annotations}");
        assert!(text(&annotations[METRICS]).contains("\"targetAverageValue\":\"10\""));
        assert_eq!(to_storage(shown), stored);
    }

    #[test]
    fn autoscaler_v1_without_a_target_has_the_default_one() {
        let plain = json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 3}});
        let stored = to_storage(plain);
        let target = &stored["spec"]["metrics"][0]["resource"]["target"];
        assert_eq!(target["averageUtilization"], DEFAULT_UTILIZATION);
        assert_eq!(from_storage(stored)["spec"]["targetCPUUtilizationPercentage"], 80);
        for hostile in ["[", "{}", "[1]", "[{\"type\":\"Pods\",\"pods\":3}]", "null"] {
            let annotations = json!({METRICS: hostile, BEHAVIOR: hostile, CONDITIONS: hostile});
            let object = json!({"metadata": {"annotations": annotations}, "status": {}});
            let _ = from_storage(to_storage(object));
        }
    }
}
