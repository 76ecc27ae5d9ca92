//! The objects of the API, as metrics-server writes them.

use jiff::Timestamp;
use longshore_duration::GoDuration;
use serde_json::{Value, json};

use crate::directory::Identity;
use crate::samples::Usage;

/// The version of the API.
pub const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// The resources of the group, for discovery.
#[must_use]
pub fn resources() -> Value {
    let resource = |name: &str, namespaced: bool, kind: &str| {
        json!({
            "name": name, "singularName": "", "namespaced": namespaced, "kind": kind,
            "verbs": ["get", "list"],
        })
    };
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": API_VERSION,
        "resources": [resource("nodes", false, "NodeMetrics"), resource("pods", true, "PodMetrics")],
    })
}

/// A `NodeMetrics`; `now` is the time of the request.
#[must_use]
pub fn node(node: &Identity, usage: &Usage, now: Timestamp) -> Value {
    let mut object = head("NodeMetrics", node, now, usage);
    object["usage"] = amounts(usage);
    object
}

/// A `PodMetrics`; `None` without containers.
#[must_use]
pub fn pod(pod: &Identity, containers: &[(String, Usage)], now: Timestamp) -> Option<Value> {
    let earliest = containers.iter().map(|(_, usage)| usage).min_by_key(|usage| usage.at)?;
    let mut object = head("PodMetrics", pod, now, earliest);
    let container =
        |(name, usage): &(String, Usage)| json!({"name": name, "usage": amounts(usage)});
    object["containers"] = containers.iter().map(container).collect();
    Some(object)
}

/// A list of either.
#[must_use]
pub fn list(kind: &str, items: Vec<Value>) -> Value {
    json!({"kind": kind, "apiVersion": API_VERSION, "metadata": {}, "items": items})
}

/// A refusal, as the apiserver writes it.
#[must_use]
pub fn status(code: u16, reason: &str, message: &str, details: Option<Value>) -> Value {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    if let Some(details) = details {
        status["details"] = details;
    }
    status
}

fn head(kind: &str, of: &Identity, now: Timestamp, usage: &Usage) -> Value {
    let mut metadata = json!({"name": of.name, "creationTimestamp": seconds(now)});
    if let Some(namespace) = &of.namespace {
        metadata["namespace"] = json!(namespace);
    }
    if !of.labels.is_empty() {
        metadata["labels"] = json!(of.labels);
    }
    let at = Timestamp::from_millisecond(usage.at).unwrap_or(Timestamp::UNIX_EPOCH);
    json!({
        "kind": kind,
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "timestamp": seconds(at),
        "window": GoDuration::millis(usage.window).to_string(),
    })
}

/// Times have no fractions.
fn seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

fn amounts(usage: &Usage) -> Value {
    json!({"cpu": nanocores(usage.nanocores), "memory": bytes(usage.memory)})
}

fn nanocores(count: u64) -> String {
    scaled(count, 1000, &["n", "u", "m", "", "k", "M", "G"])
}

fn bytes(count: u64) -> String {
    scaled(count, 1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// The canonical form: the largest suffix with a whole number.
fn scaled(mut count: u64, base: u64, suffixes: &[&str]) -> String {
    let mut suffixes = suffixes.iter();
    let mut suffix = suffixes.next().copied().unwrap_or_default();
    while count > 0 && count.checked_rem(base) == Some(0) {
        let Some(next) = suffixes.next() else { break };
        suffix = next;
        count = count.checked_div(base).unwrap_or(count);
    }
    if count == 0 { "0".to_owned() } else { format!("{count}{suffix}") }
}
