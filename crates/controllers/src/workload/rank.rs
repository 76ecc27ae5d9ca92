//! Which pods are deleted first when there are too many.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::{is_active, is_ready, phase, ready_since};

/// The annotation by which users make pods cheap to delete.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// What is compared, in this order; the least goes first.
type Rank = (bool, u8, bool, i32, Reverse<usize>, u32, Reverse<(i32, i32)>, u32, String);

/// The pods to delete: those without a node, then pending before running ones, unready before ready
/// ones, cheap ones, those on nodes with many related pods, and those that were ready or there for
/// the shortest time, in powers of two; of equals, those with most restarts.
pub(crate) fn first_to_delete(
    pods: &[Arc<Pod>],
    related: &[Arc<Pod>],
    count: usize,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    if count >= pods.len() {
        return pods.to_vec();
    }
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| is_active(pod)) {
        *on_node.entry(node(pod)).or_default() += 1;
    }
    let mut pods = pods.to_vec();
    pods.sort_by_cached_key(|pod| {
        rank(pod, on_node.get(node(pod)).copied().unwrap_or_default(), now)
    });
    pods.truncate(count);
    pods
}

/// The pods of a Job to delete: as above, but neither cost nor nodes count, and of ready ones the one
/// that is ready for a shorter time goes first, however long both are; of equals, the newer.
pub(crate) fn newest_first(pods: &[Arc<Pod>], count: usize) -> Vec<Arc<Pod>> {
    let mut pods = pods.to_vec();
    pods.sort_by_cached_key(|pod| {
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (
            !node(pod).is_empty(),
            ordinal(pod),
            is_ready(pod),
            is_ready(pod).then(|| ready_since(pod).map(Reverse)),
            Reverse(restarts(pod)),
            created.map(Reverse),
        )
    });
    pods.truncate(count);
    pods
}

/// How old ready pods that are deleted are, in relation to the youngest of all: `doomed` of `pods`.
pub(crate) fn age_ratios(pods: &[Arc<Pod>], doomed: &[Arc<Pod>], now: Timestamp) -> Vec<f64> {
    let age = |pod: &Arc<Pod>| {
        let created = pod.metadata.creation_timestamp.as_ref().filter(|_| is_ready(pod))?;
        Some(now.duration_since(created.0).as_millis())
    };
    let youngest = pods.iter().filter_map(age).min().filter(|age| *age > 0);
    let ratio = |age: i128| Some(age.checked_div(youngest?)? as f64);
    doomed.iter().filter_map(age).filter_map(ratio).collect()
}

fn rank(pod: &Pod, related: usize, now: Timestamp) -> Rank {
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (
        !node(pod).is_empty(),
        ordinal(pod),
        is_ready(pod),
        deletion_cost(pod),
        Reverse(related),
        if is_ready(pod) { magnitude(ready_since(pod), now) } else { 0 },
        Reverse(restarts(pod)),
        magnitude(created, now),
        pod.metadata.uid.clone().unwrap_or_default(),
    )
}

fn ordinal(pod: &Pod) -> u8 {
    match phase(pod) {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    }
}

fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

fn deletion_cost(pod: &Pod) -> i32 {
    let cost = pod.metadata.annotations.as_ref().and_then(|all| all.get(DELETION_COST));
    cost.and_then(|cost| cost.parse().ok()).unwrap_or_default()
}

/// The power of two of an age in nanoseconds; none for a time that is not known, or not past.
fn magnitude(since: Option<Timestamp>, now: Timestamp) -> u32 {
    let age = since.map(|since| now.duration_since(since).as_nanos());
    let age = age.and_then(|age| u128::try_from(age).ok());
    age.and_then(u128::checked_ilog2).map_or(0, |power| power + 1)
}

/// The most restarts of a container, and of a sidecar.
fn restarts(pod: &Pod) -> (i32, i32) {
    let Some(status) = &pod.status else { return (0, 0) };
    let containers = status.container_statuses.iter().flatten();
    let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars: Vec<&str> = inits
        .filter(|init| init.restart_policy.as_deref() == Some("Always"))
        .map(|init| init.name.as_str())
        .collect();
    let sidecars = status
        .init_container_statuses
        .iter()
        .flatten()
        .filter(|status| sidecars.contains(&status.name.as_str()));
    let most = |restarts: Option<i32>| restarts.unwrap_or_default();
    (
        most(containers.map(|status| status.restart_count).max()),
        most(sidecars.map(|status| status.restart_count).max()),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, node: &str, phase: &str, more: Value) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": []},
            "status": {"phase": phase},
        });
        if !node.is_empty() {
            pod["spec"]["nodeName"] = json!(node);
        }
        if let Some(since) = more.get("ready") {
            pod["status"]["conditions"] =
                json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
        }
        if let Some(cost) = more.get("cost") {
            pod["metadata"]["annotations"] = json!({ DELETION_COST: cost });
        }
        if let Some(restarts) = more.get("restarts") {
            pod["status"]["containerStatuses"] = json!([
                {"name": "c", "restartCount": restarts, "ready": true, "image": "", "imageID": ""}
            ]);
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn deletion_ages_are_relative_to_the_youngest_ready_pod() {
        let pod = |created: &str, ready: bool| -> Arc<Pod> {
            let status = if ready { "True" } else { "False" };
            let pod = json!({
                "metadata": {"creationTimestamp": created},
                "status": {"conditions": [{"type": "Ready", "status": status}]},
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let pods = [
            pod("2026-01-31T23:00:00Z", true),
            pod("2026-01-31T20:00:00Z", true),
            pod("2026-01-31T23:59:00Z", false),
        ];
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().unwrap();
        assert_eq!(age_ratios(&pods, &pods, now), [1.0, 4.0]);
        assert!(age_ratios(&pods[2..], &pods, now).is_empty());
    }

    #[test]
    fn deletion_ranks_pods_as_upstream() {
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().unwrap();
        let ready = |time: &str| json!({ "ready": time });
        let old = "2026-01-01T00:00:00Z";
        // each goes before the next
        let order = [
            pod("unassigned", "", "Pending", json!({})),
            pod("pending", "n", "Pending", json!({})),
            pod("unready", "n", "Running", json!({})),
            pod("cheap", "n", "Running", json!({"ready": old, "cost": "-5"})),
            pod("crowded", "m", "Running", ready(old)),
            pod("young", "n", "Running", ready("2026-01-31T23:00:00Z")),
            pod("restarted", "n", "Running", json!({"ready": old, "restarts": 3})),
            pod("old", "n", "Running", ready(old)),
            pod("precious", "n", "Running", json!({"ready": old, "cost": "7"})),
        ];
        let related = vec![pod("x", "m", "Running", json!({})); 2];
        let mut shuffled = order.to_vec();
        shuffled.reverse();
        for count in 0..=order.len() {
            let doomed = first_to_delete(&shuffled, &related, count, now);
            let names = |pods: &[Arc<Pod>]| -> Vec<String> {
                let mut names: Vec<_> =
                    pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect();
                names.sort();
                names
            };
            assert_eq!(names(&doomed), names(&order[..count]), "{count}");
        }
    }

    #[test]
    fn newest_pods_of_a_job_are_deleted_first() {
        let at = |name, ready: &str, created: Option<&str>, restarts: i32| {
            let more = json!({"ready": ready, "restarts": restarts, "cost": "9"});
            let mut pod = Pod::clone(&pod(name, "n", "Running", more));
            pod.metadata.creation_timestamp =
                created.map(|created| serde_json::from_value(json!(created)).unwrap());
            Arc::new(pod)
        };
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let order = [
            pod("unassigned", "", "Pending", json!({})),
            pod("pending", "n", "Pending", json!({})),
            pod("unready", "n", "Running", json!({})),
            at("ready later", new, Some(old), 0),
            at("restarted", old, Some(old), 3),
            at("of no time", old, None, 0),
            at("newer", old, Some(new), 0),
            at("older", old, Some(old), 0),
        ];
        let mut shuffled = order.to_vec();
        shuffled.reverse();
        for count in 0..=order.len() {
            let names = |pods: &[Arc<Pod>]| -> Vec<String> {
                pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
            };
            assert_eq!(names(&newest_first(&shuffled, count)), names(&order[..count]), "{count}");
        }
    }
}
