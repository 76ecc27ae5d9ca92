//! Deletes pods whose devices have taints of effect `NoExecute` that their claims do not tolerate, or no
//! longer.
//!
//! Current limitations: taints come from ResourceSlices alone; DeviceTaintRules are off by default.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    Device, DeviceRequestAllocationResult, DeviceTaint, DeviceToleration, ResourceClaim,
    ResourceSlice,
};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use longshore_base::time;
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{Event, Informer, Store, WorkQueue, key_of, run_workers};
use parking_lot::Mutex;

use crate::Context;
use crate::metrics::EvictionMetrics;
use crate::pods::{condition, delete, node_of, patch_status};
use crate::resourceclaim::{BY_CLAIM, claims_of, index_by_claim};
use crate::workload::uid_of;
use crate::writes::{reference, unless_replaced, unless_stopped};

const NAME: &str = "device-taint-eviction-controller";
/// The index of slices by their pools, and of claims by those of their devices.
const BY_POOL: &str = "pool";
const NO_EXECUTE: &str = "NoExecute";

fn pool(driver: &str, name: &str) -> String {
    format!("{driver}/{name}")
}

fn results(claim: &ResourceClaim) -> &[DeviceRequestAllocationResult] {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    devices.and_then(|devices| devices.results.as_deref()).unwrap_or_default()
}

/// PURE: the device of that name in the newest generation of a pool.
fn device<'a>(slices: &'a [Arc<ResourceSlice>], name: &str) -> Option<&'a Device> {
    let generation = slices.iter().map(|slice| slice.spec.pool.generation).max()?;
    slices
        .iter()
        .filter(|slice| slice.spec.pool.generation == generation)
        .flat_map(|slice| slice.spec.devices.iter().flatten())
        .find(|device| device.name == name)
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let key = text(&toleration.key);
    text(&toleration.effect) == NO_EXECUTE
        && (key.is_empty() || key == taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => text(&toleration.value) == text(&taint.value),
            "Exists" => true,
            _ => false,
        }
}

/// PURE: when a pod with these taints of a device has to go; `None`: it may stay.
fn due(taints: &[DeviceTaint], tolerations: &[DeviceToleration]) -> Option<Timestamp> {
    let of_taint = |taint: &DeviceTaint| {
        let since = taint.time_added.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let mut matching = tolerations.iter().filter(|own| tolerates(own, taint)).peekable();
        if matching.peek().is_none() {
            return Some(since);
        }
        // One without a limit tolerates for ever.
        let limits: Option<Vec<i64>> = matching.map(|own| own.toleration_seconds).collect();
        let tolerated = time::seconds(limits?.into_iter().min().unwrap_or(0));
        Some(since.checked_add(tolerated).unwrap_or(Timestamp::MAX))
    };
    taints.iter().filter(|taint| taint.effect == NO_EXECUTE).filter_map(of_taint).min()
}

struct Controller {
    client: Client,
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
    slices: Informer<ResourceSlice>,
    queue: WorkQueue<String>,
    recorder: Recorder,
    metrics: EvictionMetrics,
    /// Pods that are to be deleted later: UIDs by their keys.
    waiting: Mutex<HashMap<String, String>>,
}

/// Queues the pods that have a claim.
fn queue_users(queue: &WorkQueue<String>, pods: &Store<Pod>, claim: &ResourceClaim) {
    let users = pods.by_index(BY_CLAIM, &key_of(claim));
    users.iter().for_each(|pod| queue.add(key_of(&**pod)));
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let controller = Controller {
        client: context.client.clone(),
        pods: context.informers.get(),
        claims: context.informers.get(),
        slices: context.informers.get(),
        queue: WorkQueue::new("device-taint-eviction-controller", &context.queues),
        recorder: context.recorder("device-taint-eviction-controller"),
        metrics: context.metrics.device_taint_eviction.clone(),
        waiting: Mutex::default(),
    };
    controller.subscribe();
    let all = async {
        controller.pods.synced().await;
        controller.claims.synced().await;
        controller.slices.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let workers = context.settings.cluster.device_taint_workers;
    run_workers(NAME, &controller.queue, workers, &context.stop, |key| controller.sync(key)).await;
}

impl Controller {
    fn subscribe(&self) {
        index_by_claim(self.pods.store());
        self.slices
            .store()
            .add_index(BY_POOL, |slice| vec![pool(&slice.spec.driver, &slice.spec.pool.name)]);
        self.claims.store().add_index(BY_POOL, |claim| {
            results(claim).iter().map(|one| pool(&one.driver, &one.pool)).collect()
        });
        self.pods.subscribe({
            let queue = self.queue.clone();
            move |event: &Event<Pod>| {
                let pod = event.latest();
                if claims_of(pod).next().is_some() {
                    queue.add(key_of(&**pod));
                }
            }
        });
        self.claims.subscribe({
            let (queue, pods) = (self.queue.clone(), self.pods.clone());
            move |event: &Event<ResourceClaim>| queue_users(&queue, pods.store(), event.latest())
        });
        self.slices.subscribe({
            let (queue, pods, claims) =
                (self.queue.clone(), self.pods.clone(), self.claims.clone());
            move |event: &Event<ResourceSlice>| {
                let spec = &event.latest().spec;
                let own = pool(&spec.driver, &spec.pool.name);
                for claim in claims.store().by_index(BY_POOL, &own) {
                    queue_users(&queue, pods.store(), &claim);
                }
            }
        });
    }

    /// When the pod has to go.
    fn due(&self, pod: &Pod) -> Option<Timestamp> {
        if node_of(pod).is_empty() {
            return None;
        }
        let claims = claims_of(pod).filter_map(|key| self.claims.store().get(&key));
        claims
            .filter(|claim| {
                let consumers = claim.status.as_ref().and_then(|own| own.reserved_for.as_ref());
                consumers.into_iter().flatten().any(|one| one.uid == uid_of(pod))
            })
            .flat_map(|claim| {
                let of_device = |one: &DeviceRequestAllocationResult| {
                    let pool = pool(&one.driver, &one.pool);
                    let slices = self.slices.store().by_index(BY_POOL, &pool);
                    let taints = device(&slices, &one.device)?.taints.as_deref()?;
                    due(taints, one.tolerations.as_deref().unwrap_or_default())
                };
                results(&claim).iter().filter_map(of_device).min()
            })
            .min()
    }

    async fn sync(&self, key: String) -> Result<(), kube::Error> {
        let pod = self.pods.store().get(&key);
        let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let Some(pod) = pod else {
            self.waiting.lock().remove(&key);
            return Ok(());
        };
        let Some(due) = self.due(&pod) else {
            let waited = self.waiting.lock().remove(&key);
            if waited.is_some_and(|uid| uid == uid_of(&*pod)) {
                self.record(&pod, "Cancelling deletion");
            }
            return Ok(());
        };
        let left = Duration::try_from(due.duration_since(Timestamp::now())).unwrap_or_default();
        if !left.is_zero() {
            self.waiting.lock().insert(key.clone(), uid_of(&*pod).to_owned());
            self.queue.add_after(key, left);
            return Ok(());
        }
        self.evict(&pod).await?;
        self.metrics.deletions.inc();
        let late = Duration::try_from(Timestamp::now().duration_since(due)).unwrap_or_default();
        self.metrics.latency.took(late);
        self.waiting.lock().remove(&key);
        Ok(())
    }

    fn record(&self, pod: &Pod, message: &str) {
        let about = reference(pod);
        self.recorder.event(about, EventType::Normal, "DeviceTaintManagerEviction", message);
    }

    async fn evict(&self, pod: &Pod) -> Result<(), kube::Error> {
        self.record(pod, "Marking for deletion");
        let target = condition(
            pod,
            "DisruptionTarget",
            "True",
            "DeletionByDeviceTaintManager",
            "Device Taint manager: deleting due to NoExecute taint",
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
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn device_taints_are_tolerated_for_the_shortest_time() {
        let taint = |key: &str, effect: &str| -> DeviceTaint {
            let added = "2026-01-01T00:00:00Z";
            let taint = json!({"key": key, "effect": effect, "timeAdded": added});
            serde_json::from_value(taint).unwrap()
        };
        let tolerates = |key: &str, effect: &str, seconds: Value| -> DeviceToleration {
            let own = json!({"key": key, "operator": "Exists", "effect": effect, "tolerationSeconds": seconds});
            serde_json::from_value(own).unwrap()
        };
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let after = |seconds: u64| Some(start.checked_add(Duration::from_secs(seconds)).unwrap());
        let (a, b) = (taint("a", NO_EXECUTE), taint("b", NO_EXECUTE));
        let table = [
            (vec![], vec![], None),
            (vec![taint("a", "NoSchedule")], vec![], None),
            (vec![a.clone()], vec![], after(0)),
            (vec![a.clone()], vec![tolerates("a", NO_EXECUTE, Value::Null)], None),
            (vec![a.clone()], vec![tolerates("a", "", Value::Null)], after(0)),
            (vec![a.clone(), b.clone()], vec![tolerates("a", NO_EXECUTE, Value::Null)], after(0)),
            (
                vec![a.clone(), b],
                vec![tolerates("a", NO_EXECUTE, 60.into()), tolerates("b", NO_EXECUTE, 5.into())],
                after(5),
            ),
            (vec![a], vec![tolerates("", NO_EXECUTE, i64::MAX.into())], None),
        ];
        for (taints, tolerations, expected) in table {
            let found = due(&taints, &tolerations);
            // times without end are decades away
            let found = found.filter(|at| Some(*at) < after(1 << 29));
            assert_eq!(found, expected, "{taints:?} {tolerations:?}");
        }
    }

    #[test]
    fn device_taints_are_those_of_the_newest_generation() {
        let slice = |generation: i64, taint: &str| -> Arc<ResourceSlice> {
            let slice = json!({"metadata": {"name": taint}, "spec": {
                "driver": "d", "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1},
                "devices": [{"name": "x", "taints": [{"key": taint, "effect": NO_EXECUTE}]}]}});
            Arc::new(serde_json::from_value(slice).unwrap())
        };
        let slices = [slice(1, "old"), slice(2, "new")];
        let found = device(&slices, "x").unwrap();
        assert_eq!(found.taints.as_ref().unwrap()[0].key, "new");
        assert!(device(&slices, "y").is_none());
    }
}
