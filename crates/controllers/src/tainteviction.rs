//! Deletes pods from nodes whose taints of effect `NoExecute` they do not tolerate, or no longer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use longshore_base::time;
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Context;
use crate::metrics::EvictionMetrics;
use crate::nodelifecycle::taints::{evicting, tolerates};
use crate::pods::{BY_NODE, condition, delete, index_by_node, node_of, patch_status};
use crate::writes::{reference, unless_replaced, unless_stopped};

/// What becomes of a pod.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// It stays.
    Stay,
    /// It is deleted after that time since the taints came.
    After(Duration),
}

/// PURE: decides by the taints of the pod's node.
fn decide(taints: &[&Taint], tolerations: &[Toleration]) -> Decision {
    let mut least: Option<Duration> = None;
    for taint in taints {
        let mut matching = tolerations.iter().filter(|toleration| tolerates(toleration, taint));
        let Some(first) = matching.next() else { return Decision::After(Duration::ZERO) };
        for toleration in std::iter::once(first).chain(matching) {
            if let Some(seconds) = toleration.toleration_seconds {
                let tolerated = time::seconds(seconds);
                least = Some(least.map_or(tolerated, |least| least.min(tolerated)));
            }
        }
    }
    least.map_or(Decision::Stay, Decision::After)
}

struct Controller {
    client: Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    queue: WorkQueue<String>,
    recorder: Recorder,
    metrics: EvictionMetrics,
    /// Since when a pod is to be deleted, by its key and UID.
    scheduled: Mutex<HashMap<String, (Option<String>, Instant)>>,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("noexec_taint_pod", &context.queues);
    let nodes = context.informers.get::<Node>();
    let pods = context.informers.get::<Pod>();
    index_by_node(pods.store());
    nodes.subscribe({
        let (pods, queue) = (pods.clone(), queue.clone());
        move |event: &Event<Node>| {
            let node = event.latest();
            if let Event::Updated { old, new } = event
                && evicting(old) == evicting(new)
            {
                return;
            }
            let name = node.metadata.name.as_deref().unwrap_or_default();
            for pod in pods.store().by_index(BY_NODE, name) {
                queue.add(key_of(&*pod));
            }
        }
    });
    pods.subscribe({
        let queue = queue.clone();
        move |event: &Event<Pod>| {
            let tolerations =
                |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.tolerations.clone());
            if let Event::Updated { old, new } = event
                && node_of(old) == node_of(new)
                && tolerations(old) == tolerations(new)
            {
                return;
            }
            queue.add(key_of(&**event.latest()));
        }
    });
    let all = async {
        nodes.synced().await;
        pods.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let controller = Controller {
        client: context.client.clone(),
        nodes,
        pods,
        queue: queue.clone(),
        recorder: context.recorder("taint-eviction-controller"),
        metrics: context.metrics.taint_eviction.clone(),
        scheduled: Mutex::default(),
    };
    run_workers("taint-eviction-controller", &queue, 8, &context.stop, |key| controller.sync(key))
        .await;
}

impl Controller {
    fn forget(&self, key: &str) -> bool {
        let mut scheduled = self.scheduled.lock();
        scheduled.remove(key).is_some()
    }

    async fn sync(&self, key: String) -> Result<(), kube::Error> {
        let Some(pod) = self.pods.store().get(&key) else {
            self.forget(&key);
            return Ok(());
        };
        if pod.metadata.deletion_timestamp.is_some() {
            self.forget(&key);
            return Ok(());
        }
        let node = self.nodes.store().get(node_of(&pod));
        let taints = node.as_deref().map(evicting).unwrap_or_default();
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
        match decide(&taints, tolerations.unwrap_or_default()) {
            Decision::Stay => {
                if self.forget(&key) {
                    self.record(&pod, &format!("Cancelling deletion of Pod {key}"));
                }
                Ok(())
            }
            Decision::After(wait) => {
                let now = Instant::now();
                let since = {
                    let mut scheduled = self.scheduled.lock();
                    let fresh = (pod.metadata.uid.clone(), now);
                    let entry = scheduled.entry(key.clone()).or_insert_with(|| fresh.clone());
                    if entry.0 != fresh.0 {
                        *entry = fresh;
                    }
                    entry.1
                };
                let due = time::later(since, wait);
                if due > now {
                    self.queue.add_after(key, due.saturating_duration_since(now));
                    return Ok(());
                }
                self.evict(&key, &pod).await?;
                self.metrics.deletions.inc();
                self.metrics.latency.took(Instant::now().saturating_duration_since(due));
                self.forget(&key);
                Ok(())
            }
        }
    }

    fn record(&self, pod: &Arc<Pod>, message: &str) {
        let about = reference(&**pod);
        self.recorder.event(about, EventType::Normal, "TaintManagerEviction", message);
    }

    async fn evict(&self, key: &str, pod: &Arc<Pod>) -> Result<(), kube::Error> {
        self.record(pod, &format!("Marking for deletion Pod {key}"));
        let target = condition(
            pod,
            "DisruptionTarget",
            "True",
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
            Timestamp::now(),
        );
        if target.is_some() {
            unless_replaced(patch_status(&self.client, pod, target, None).await)?;
        }
        delete(&self.client, pod, None).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::{Taint, Toleration};
    use serde_json::{Value, json};

    use super::{Decision, decide};

    fn toleration(key: &str, seconds: Value) -> Toleration {
        serde_json::from_value(
            json!({"key": key, "operator": "Exists", "tolerationSeconds": seconds}),
        )
        .unwrap()
    }

    #[test]
    fn taint_eviction_waits_for_the_shortest_toleration() {
        let taint = |key: &str| -> Taint {
            serde_json::from_value(json!({"key": key, "effect": "NoExecute"})).unwrap()
        };
        let (a, b) = (taint("a"), taint("b"));
        let after = |seconds| Decision::After(Duration::from_secs(seconds));
        for (taints, tolerations, expected) in [
            (vec![], vec![], Decision::Stay),
            (vec![&a], vec![], after(0)),
            (vec![&a], vec![toleration("a", Value::Null)], Decision::Stay),
            (vec![&a, &b], vec![toleration("a", Value::Null)], after(0)),
            (vec![&a, &b], vec![toleration("a", json!(300)), toleration("b", json!(5))], after(5)),
            (vec![&a], vec![toleration("a", Value::Null), toleration("a", json!(10))], after(10)),
            (vec![&a], vec![toleration("a", json!(-1))], after(0)),
        ] {
            assert_eq!(decide(&taints, &tolerations), expected, "{tolerations:?}");
        }
    }
}
