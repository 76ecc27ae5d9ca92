//! Deletes pods that nobody else deletes: those that ended long ago, when there are many; those of
//! nodes that are gone or out of service; and deleted ones that never had a node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use longshore_informer::Informer;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::warn;

use crate::Context;
use crate::Metrics;
use crate::nodelifecycle::taints::{OUT_OF_SERVICE, condition as node_condition, has_taint};
use crate::pods::{condition, delete, node_of, patch_status};
use crate::workload::is_finished;
use crate::writes::{unless_replaced, unless_stopped};

const PERIOD: Duration = Duration::from_secs(20);
/// How long a node must be missing.
const QUARANTINE: Duration = Duration::from_secs(40);

/// Why a pod goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Terminated,
    Orphaned,
    Unscheduled,
    OutOfService,
}

impl Reason {
    /// The label in metrics.
    fn label(self) -> &'static str {
        match self {
            Self::Terminated => "terminated",
            Self::Orphaned => "orphaned",
            Self::Unscheduled => "unscheduled",
            Self::OutOfService => "out-of-service",
        }
    }
}

fn is_evicted(pod: &Pod) -> bool {
    let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
    reason == Some("Evicted")
}

/// PURE: which pods go. `nodes` are those that exist, `gone` those that are missing for long enough.
fn plan<'a>(
    pods: &'a [Arc<Pod>],
    nodes: &BTreeMap<&str, &Node>,
    gone: &BTreeSet<String>,
    threshold: usize,
) -> Vec<(&'a Arc<Pod>, Reason)> {
    let mut chosen = Vec::new();
    let mut ended = Vec::new();
    for pod in pods {
        let name = node_of(pod);
        let is_deleting = pod.metadata.deletion_timestamp.is_some();
        let is_out = |node: &&Node| {
            has_taint(node, OUT_OF_SERVICE) && node_condition(node, "Ready") != Some("True")
        };
        if gone.contains(name) {
            chosen.push((pod, Reason::Orphaned));
        } else if is_deleting && name.is_empty() {
            chosen.push((pod, Reason::Unscheduled));
        } else if is_deleting && nodes.get(name).is_some_and(is_out) {
            chosen.push((pod, Reason::OutOfService));
        } else if is_finished(pod) {
            ended.push(pod);
        }
    }
    let surplus = ended.len().saturating_sub(threshold);
    if threshold > 0 && surplus > 0 {
        ended.sort_by_key(|pod| {
            let metadata = &pod.metadata;
            let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
            (!is_evicted(pod), created, metadata.name.clone())
        });
        chosen.extend(ended.into_iter().take(surplus).map(|pod| (pod, Reason::Terminated)));
    }
    chosen
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let nodes = context.informers.get::<Node>();
    let pods = context.informers.get::<Pod>();
    let all = async {
        nodes.synced().await;
        pods.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let threshold = context.settings.cluster.terminated_pod_threshold;
    let mut collector = Collector {
        client: context.client.clone(),
        metrics: context.metrics.clone(),
        missing: HashMap::new(),
    };
    unless_stopped(&context, async {
        let mut tick = interval(PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            collector.pass(&nodes, &pods, threshold).await;
        }
    })
    .await;
}

struct Collector {
    client: Client,
    metrics: Arc<Metrics>,
    /// Since when a node that pods name is missing.
    missing: HashMap<String, Instant>,
}

impl Collector {
    async fn pass(&mut self, nodes: &Informer<Node>, pods: &Informer<Pod>, threshold: usize) {
        let (nodes, pods) = (nodes.store().list(), pods.store().list());
        let by_name: BTreeMap<&str, &Node> = nodes
            .iter()
            .filter_map(|node| Some((node.metadata.name.as_deref()?, &**node)))
            .collect();
        let gone = self.gone(&by_name, &pods).await;
        for (pod, reason) in plan(&pods, &by_name, &gone, threshold) {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let labels = [namespace, reason.label()];
            self.metrics.collected_pods.with(labels).inc();
            if let Err(error) = self.delete(pod, reason).await {
                self.metrics.collected_pod_errors.with(labels).inc();
                warn!(
                    namespace = pod.metadata.namespace,
                    name = pod.metadata.name,
                    ?reason,
                    "cannot delete the pod: {error}"
                );
            }
        }
    }

    /// The nodes that are missing for long enough, and do not exist after all.
    async fn gone(&mut self, nodes: &BTreeMap<&str, &Node>, pods: &[Arc<Pod>]) -> BTreeSet<String> {
        let is_missing = |name: &&str| !name.is_empty() && !nodes.contains_key(name);
        let missing: BTreeSet<&str> =
            pods.iter().map(|pod| node_of(pod)).filter(is_missing).collect();
        self.missing.retain(|name, _| missing.contains(name.as_str()));
        let now = Instant::now();
        let mut gone = BTreeSet::new();
        for name in missing {
            let since = *self.missing.entry(name.to_owned()).or_insert(now);
            if now.saturating_duration_since(since) < QUARANTINE {
                continue;
            }
            let api: Api<Node> = Api::all(self.client.clone());
            match api.get_metadata_opt(name).await {
                Ok(None) => {
                    gone.insert(name.to_owned());
                }
                Ok(Some(_)) => {}
                Err(error) => warn!(node = name, "cannot look for the node: {error}"),
            }
        }
        gone
    }

    async fn delete(&self, pod: &Arc<Pod>, reason: Reason) -> Result<(), kube::Error> {
        if !is_finished(pod) {
            let target = (reason == Reason::Orphaned)
                .then(|| {
                    condition(
                        pod,
                        "DisruptionTarget",
                        "True",
                        "DeletionByPodGC",
                        "PodGC: node no longer exists",
                        Timestamp::now(),
                    )
                })
                .flatten();
            unless_replaced(patch_status(&self.client, pod, target, Some("Failed")).await)?;
        }
        delete(&self.client, pod, Some(0)).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{Node, Pod};
    use serde_json::json;

    use super::{Reason, plan};

    fn pod(name: &str, node: &str, phase: &str, created: u8, deleting: bool) -> Arc<Pod> {
        let pod = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"),
                "deletionTimestamp": deleting.then_some("2026-01-02T00:00:00Z"),
            },
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase, "reason": (name == "evicted").then_some("Evicted")},
        }))
        .unwrap();
        Arc::new(pod)
    }

    #[test]
    fn pod_gc_takes_what_nobody_else_deletes() {
        let out: Node = serde_json::from_value(json!({
            "metadata": {"name": "out"},
            "spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        }))
        .unwrap();
        let good: Node = serde_json::from_value(json!({"metadata": {"name": "good"}})).unwrap();
        let nodes = BTreeMap::from([("out", &out), ("good", &good)]);
        let pods = [
            pod("a", "good", "Running", 1, false),
            pod("b", "good", "Running", 1, true),
            pod("c", "lost", "Running", 1, false),
            pod("d", "", "Pending", 1, true),
            pod("e", "", "Pending", 1, false),
            pod("f", "out", "Running", 1, true),
            pod("g", "out", "Running", 1, false),
            pod("old", "good", "Succeeded", 2, false),
            pod("new", "good", "Failed", 9, false),
            pod("evicted", "good", "Failed", 8, false),
        ];
        let gone = BTreeSet::from(["lost".to_owned()]);
        let chosen = |gone: &BTreeSet<String>, threshold| -> Vec<(String, Reason)> {
            plan(&pods, &nodes, gone, threshold)
                .into_iter()
                .map(|(pod, reason)| (pod.metadata.name.clone().unwrap(), reason))
                .collect()
        };
        let always =
            [("d".to_owned(), Reason::Unscheduled), ("f".to_owned(), Reason::OutOfService)];
        assert_eq!(chosen(&BTreeSet::new(), 3), always);
        assert_eq!(chosen(&BTreeSet::new(), 0), always, "no threshold");
        assert_eq!(
            chosen(&gone, 1),
            [
                ("c".to_owned(), Reason::Orphaned),
                ("d".to_owned(), Reason::Unscheduled),
                ("f".to_owned(), Reason::OutOfService),
                ("evicted".to_owned(), Reason::Terminated),
                ("old".to_owned(), Reason::Terminated),
            ]
        );
    }
}
