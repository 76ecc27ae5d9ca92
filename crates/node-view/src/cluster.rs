//! Node, pods and events from an apiserver.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::snapshot::{Condition, EventSample, NodeSample, PodSample};

/// How many events are asked for: those of a busy cluster are many.
const EVENTS: u32 = 500;

/// Which pods are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those of the node.
    Node,
    /// All.
    Cluster,
}

/// An apiserver, asked about one node.
pub(crate) struct Cluster {
    node: String,
    scope: Scope,
    nodes: Api<Node>,
    pods: Api<Pod>,
    events: Api<Event>,
}

/// What it says. A part that it refuses is an error of that part alone: a node's credentials, for one, show no events.
pub(crate) struct Answer {
    pub(crate) node: Result<NodeSample, String>,
    pub(crate) pods: Result<Vec<PodSample>, String>,
    pub(crate) events: Result<Vec<EventSample>, String>,
}

impl Cluster {
    pub(crate) fn new(client: &Client, node: &str, scope: Scope) -> Self {
        Self {
            node: node.to_owned(),
            scope,
            nodes: Api::all(client.clone()),
            pods: Api::all(client.clone()),
            events: Api::all(client.clone()),
        }
    }

    pub(crate) async fn query(&self) -> Answer {
        let shown = match self.scope {
            Scope::Node => ListParams::default().fields(&format!("spec.nodeName={}", self.node)),
            Scope::Cluster => ListParams::default(),
        };
        let some = ListParams::default().limit(EVENTS);
        let (node, pods, events) = tokio::join!(
            self.nodes.get(&self.node),
            self.pods.list(&shown),
            self.events.list(&some)
        );
        let now = Timestamp::now();
        Answer {
            node: node.map(|node| node_sample(&node)).map_err(|error| error.to_string()),
            pods: pods
                .map(|list| list.items.iter().map(|pod| pod_sample(pod, now)).collect())
                .map_err(|error| error.to_string()),
            events: events
                .map(|list| event_samples(list.items, &self.node, now))
                .map_err(|error| error.to_string()),
        }
    }
}

fn node_sample(node: &Node) -> NodeSample {
    let status = node.status.clone().unwrap_or_default();
    let info = status.node_info.unwrap_or_default();
    let capacity = status.capacity.unwrap_or_default();
    let amount = |resource| capacity.get(resource).map_or("?", |quantity| quantity.0.as_str());
    NodeSample {
        name: node.name_any(),
        version: info.kubelet_version,
        runtime: info.container_runtime_version,
        capacity: format!(
            "{} cpu, {} memory, {} pods",
            amount("cpu"),
            gibibytes(amount("memory")),
            amount("pods")
        ),
        health: None,
        conditions: status
            .conditions
            .into_iter()
            .flatten()
            .map(|condition| Condition { kind: condition.type_, status: condition.status })
            .collect(),
    }
}

/// A quantity in Ki, as nodes give their memory, for people.
fn gibibytes(quantity: &str) -> String {
    let kibibytes = quantity.strip_suffix("Ki").and_then(|number| number.parse::<f64>().ok());
    kibibytes.map_or(quantity.to_owned(), |ki| format!("{:.1} GiB", ki / f64::from(1 << 20)))
}

fn pod_sample(pod: &Pod, now: Timestamp) -> PodSample {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let reason = containers.iter().find_map(|container| {
        let state = container.state.as_ref()?;
        let waiting = state.waiting.as_ref().and_then(|waiting| waiting.reason.clone());
        waiting.or_else(|| state.terminated.as_ref().and_then(|ended| ended.reason.clone()))
    });
    let phase = status.phase.unwrap_or_else(|| "Pending".into());
    let spec = pod.spec.clone().unwrap_or_default();
    let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    let restarts = containers.iter().filter_map(|one| u32::try_from(one.restart_count).ok());
    PodSample {
        name: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
        status: match &pod.metadata.deletion_timestamp {
            Some(_) => "Terminating".into(),
            None => reason.or(status.reason).unwrap_or(phase),
        },
        ready: Some(containers.iter().filter(|container| container.ready).count()),
        expected: spec.containers.len(),
        restarts: restarts.fold(0, u32::saturating_add),
        ip: status.pod_ip,
        port: ports.map(|port| port.container_port).next(),
        age: age(pod.metadata.creation_timestamp.as_ref(), now),
        containers: Vec::new(),
    }
}

/// Events of that node and of what is on it, as far as they say; oldest first.
fn event_samples(mut events: Vec<Event>, node: &str, now: Timestamp) -> Vec<EventSample> {
    // An event that names no machine is of the control plane: it may be about a pod of this node.
    events.retain(|event| {
        let host = event.source.as_ref().and_then(|source| source.host.as_deref());
        host.is_none_or(|host| host.is_empty() || host == node)
    });
    // Times are whole seconds; within one, the resource version decides.
    let written = |event: &Event| event.resource_version()?.parse::<u64>().ok();
    events.sort_by_key(|event| (time(event).map(|time| time.0), written(event)));
    events.iter().map(|event| event_sample(event, now)).collect()
}

fn event_sample(event: &Event, now: Timestamp) -> EventSample {
    let object = &event.involved_object;
    EventSample {
        age: age(time(event).as_ref(), now),
        pod: (object.kind.as_deref() == Some("Pod")).then(|| {
            let part = |part: &Option<String>| part.clone().unwrap_or_default();
            format!("{}/{}", part(&object.namespace), part(&object.name))
        }),
        warning: event.type_.as_deref() == Some("Warning"),
        text: format!(
            "{} {}/{}: {}",
            event.reason.as_deref().unwrap_or("?"),
            object.kind.as_deref().unwrap_or_default().to_lowercase(),
            object.name.as_deref().unwrap_or_default(),
            event.message.as_deref().unwrap_or_default().trim(),
        ),
    }
}

/// When it was last seen, in whichever of its fields that is written.
fn time(event: &Event) -> Option<Time> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let precise = series.or(event.event_time.as_ref()).map(|time| Time(time.0));
    event.last_timestamp.clone().or(precise).or(event.first_timestamp.clone())
}

fn age(time: Option<&Time>, now: Timestamp) -> i64 {
    time.map_or(0, |time| now.duration_since(time.0).as_secs().max(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-02T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn node_view_pods_have_the_reason_that_keeps_them() {
        let pod = |status: serde_json::Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"namespace": "n", "name": "p", "creationTimestamp": "2026-01-01T23:58:00Z"},
                "spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}, {"name": "b"}]},
                "status": status,
            }))
            .unwrap()
        };
        let container = |state: serde_json::Value, restarts: i32| json!({"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state});
        for (status, expected) in [
            (json!({}), "Pending"),
            (json!({"phase": "Running"}), "Running"),
            (json!({"phase": "Failed", "reason": "Evicted"}), "Evicted"),
            (
                json!({"phase": "Running", "containerStatuses":
                    [container(json!({"waiting": {"reason": "CrashLoopBackOff"}}), -1)]}),
                "CrashLoopBackOff",
            ),
            (
                json!({"phase": "Failed", "containerStatuses":
                    [container(json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}}), 0)]}),
                "OOMKilled",
            ),
        ] {
            let sample = pod_sample(&pod(status), now());
            assert_eq!(sample.status, expected);
            assert_eq!((sample.name.as_str(), sample.expected, sample.age), ("n/p", 2, 120));
            assert_eq!((sample.port, sample.restarts), (Some(80), 0));
        }
    }

    #[test]
    fn node_view_events_are_those_of_the_node_oldest_first() {
        let event = |reason: &str, host: &str, time: &str| -> Event {
            serde_json::from_value(json!({
                "metadata": {"name": reason}, "reason": reason, "message": " m\n", "type": "Warning",
                "source": {"host": host}, "lastTimestamp": time,
                "involvedObject": {"kind": "Pod", "namespace": "n", "name": "p"},
            }))
            .unwrap()
        };
        let events = vec![
            event("Late", "n1", "2026-01-01T23:59:59Z"),
            event("Other", "n2", "2026-01-01T23:59:58Z"),
            event("Early", "", "2026-01-01T23:59:57Z"),
        ];
        let samples = event_samples(events, "n1", now());
        let texts: Vec<&str> = samples.iter().map(|event| event.text.as_str()).collect();
        assert_eq!(texts, ["Early pod/p: m", "Late pod/p: m"]);
        assert!(samples[0].warning && samples[0].age == 3);
        assert_eq!(samples[0].pod.as_deref(), Some("n/p"));
    }
}
