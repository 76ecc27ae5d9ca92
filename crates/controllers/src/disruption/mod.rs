//! The status of pod disruption budgets, by which evictions are allowed.

mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use kube::core::{Request, Selector, SelectorExt};
use kube::{Api, Client};
use longshore_base::time;
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{
    Event, Informer, Object, SyncError, WorkQueue, key_of, run_workers, split_key,
};

use crate::Context;
use crate::discovery::discover;
use crate::pods::{condition, patch_status};
use crate::workload::{
    Error, controller_of, count, name_of, pod_condition, replace_status, uid_of,
};
use crate::writes::{is_conflict, reference, unless_replaced, unless_stopped};

/// After this time a pod that was to be disrupted and was not is so no more (seconds).
const STALE: i64 = 120;

/// What is synced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Budget(String),
    /// A pod whose condition `DisruptionTarget` may be out of date.
    Pod(String),
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Budget(key) | Key::Pod(key) => f.write_str(key),
        }
    }
}

struct Controller {
    client: Client,
    budgets: Informer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    replica_sets: Informer<ReplicaSet>,
    deployments: Informer<Deployment>,
    stateful_sets: Informer<StatefulSet>,
    replication_controllers: Informer<ReplicationController>,
    recorder: Recorder,
    queue: WorkQueue<Key>,
}

fn selector_of(budget: &PodDisruptionBudget) -> Option<Selector> {
    let selector = budget.spec.as_ref()?.selector.clone()?;
    Selector::try_from(selector).ok()
}

fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    selector_of(budget).is_some_and(|selector| selector.matches(&labels))
}

fn is_stale_candidate(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
        && !crate::workload::is_finished(pod)
        && pod_condition(pod, "DisruptionTarget").is_some_and(|condition| {
            condition.status == "True"
                && condition.reason.as_deref() != Some("TerminationByKubelet")
        })
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<Key> = WorkQueue::new("disruption", &context.queues);
    let informers = &context.informers;
    let controller = Controller {
        client: context.client.clone(),
        budgets: informers.get(),
        pods: informers.get(),
        replica_sets: informers.get(),
        deployments: informers.get(),
        stateful_sets: informers.get(),
        replication_controllers: informers.get(),
        recorder: context.recorder("controllermanager"),
        queue: queue.clone(),
    };
    controller.budgets.subscribe({
        let queue = queue.clone();
        move |event: &Event<PodDisruptionBudget>| {
            if !matches!(event, Event::Deleted(_)) {
                queue.add(Key::Budget(key_of(&**event.latest())));
            }
        }
    });
    controller.pods.subscribe({
        let (queue, budgets) = (queue.clone(), controller.budgets.clone());
        let recorder = controller.recorder.clone();
        move |event: &Event<Pod>| {
            let pod = event.latest();
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let mut of_pod = Vec::new();
            for budget in budgets.store().list_namespace(namespace) {
                let is_selected = selects(&budget, pod);
                if is_selected || event.old().is_some_and(|old| selects(&budget, old)) {
                    queue.add(Key::Budget(key_of(&*budget)));
                }
                if is_selected {
                    of_pod.push(name_of(&*budget).to_owned());
                }
            }
            if let Some(message) = plan::several(pod, of_pod) {
                let about = reference(&**pod);
                let reason = "MultiplePodDisruptionBudgets";
                recorder.event(about, EventType::Warning, reason, &message);
            }
            if !matches!(event, Event::Deleted(_)) && is_stale_candidate(pod) {
                queue.add(Key::Pod(key_of(&**pod)));
            }
        }
    });
    // A change of scale changes what is expected of the pods.
    fn follow<K: Object>(
        owners: &Informer<K>,
        budgets: &Informer<PodDisruptionBudget>,
        queue: &WorkQueue<Key>,
        replicas: fn(&K) -> Option<i32>,
    ) {
        let (queue, budgets) = (queue.clone(), budgets.clone());
        owners.subscribe(move |event: &Event<K>| {
            let Event::Updated { old, new } = event else { return };
            if replicas(old) == replicas(new) {
                return;
            }
            let namespace = k8s_openapi::Metadata::metadata(&**new).namespace.as_deref();
            for budget in budgets.store().list_namespace(namespace.unwrap_or_default()) {
                queue.add(Key::Budget(key_of(&*budget)));
            }
        });
    }
    let budgets = &controller.budgets;
    follow(&controller.replica_sets, budgets, &queue, |set| set.spec.as_ref()?.replicas);
    follow(&controller.deployments, budgets, &queue, |own| own.spec.as_ref()?.replicas);
    follow(&controller.stateful_sets, budgets, &queue, |set| set.spec.as_ref()?.replicas);
    follow(&controller.replication_controllers, budgets, &queue, |own| own.spec.as_ref()?.replicas);
    let all = async {
        controller.budgets.synced().await;
        controller.pods.synced().await;
        controller.replica_sets.synced().await;
        controller.deployments.synced().await;
        controller.stateful_sets.synced().await;
        controller.replication_controllers.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    run_workers("disruption-controller", &queue, 1, &context.stop, |key| controller.sync(key))
        .await;
}

impl Controller {
    async fn sync(&self, key: Key) -> Result<(), Error> {
        match key {
            Key::Budget(key) => self.sync_budget(key).await,
            Key::Pod(key) => self.sync_pod(key).await,
        }
    }

    /// Takes a condition `DisruptionTarget` back that nobody acted on.
    async fn sync_pod(&self, key: String) -> Result<(), Error> {
        let Some(pod) = self.pods.store().get(&key) else { return Ok(()) };
        if !is_stale_candidate(&pod) {
            return Ok(());
        }
        let since = pod_condition(&pod, "DisruptionTarget")
            .and_then(|condition| condition.last_transition_time.as_ref())
            .map_or(0, |time| time.0.as_second());
        let now = Timestamp::now();
        let left = since.saturating_add(STALE).saturating_sub(now.as_second());
        if left > 0 {
            self.queue.add_after(Key::Pod(key), time::seconds(left));
            return Ok(());
        }
        let reset = condition(&pod, "DisruptionTarget", "False", "", "", now);
        unless_replaced(patch_status(&self.client, &pod, reset, None).await)?;
        Ok(())
    }

    async fn sync_budget(&self, key: String) -> Result<(), Error> {
        let Some(budget) = self.budgets.store().get(&key) else { return Ok(()) };
        let mut failure = Ok(());
        let status = match self.try_sync(&key, &budget).await {
            Ok(status) => status,
            Err(error) if error.is_conflict() => return Err(error),
            // nothing is allowed to be disrupted before it is known how much may be
            Err(error) => {
                let why = error.to_string();
                let message = format!("Failed to calculate the number of expected pods: {why}");
                self.warn(&budget, "CalculateExpectedPodCountFailed", &message);
                if let Error::Api(_) = error {
                    failure = Err(error);
                }
                plan::failed(&budget, &why, Timestamp::now())
            }
        };
        if plan::is_same(budget.status.as_ref(), &status) {
            return failure;
        }
        let mut new = (*budget).clone();
        new.status = Some(status);
        match replace_status(&self.client, &new).await {
            // An eviction was counted meanwhile: the informer shows it soon.
            Err(error) if is_conflict(&error) => {
                self.queue.add_after(Key::Budget(key), Duration::from_millis(50));
                Ok(())
            }
            written => {
                unless_replaced(written)?;
                failure
            }
        }
    }

    fn warn(&self, budget: &PodDisruptionBudget, reason: &str, message: &str) {
        self.recorder.event(reference(budget), EventType::Warning, reason, message);
    }

    async fn try_sync(
        &self,
        key: &str,
        budget: &Arc<PodDisruptionBudget>,
    ) -> Result<k8s_openapi::api::policy::v1::PodDisruptionBudgetStatus, Error> {
        let (namespace, _) = split_key(key);
        let pods: Vec<Arc<Pod>> = match selector_of(budget) {
            Some(selector) => {
                let mut pods = self.pods.store().list_namespace(namespace);
                pods.retain(|pod| {
                    selector.matches(&pod.metadata.labels.clone().unwrap_or_default())
                });
                pods
            }
            None => Vec::new(),
        };
        if pods.is_empty() {
            let message = "No matching pods found";
            self.recorder.event(reference(&**budget), EventType::Normal, "NoPods", message);
        }
        let scale = match plan::needs_scale(budget) {
            true => self.scale(budget, namespace, &pods).await?,
            false => 0,
        };
        let expected = plan::expected(budget, pods.len(), scale).map_err(Error::Invalid)?;
        let outcome = plan::plan(budget, &pods, expected, Timestamp::now());
        for pod in &outcome.not_deleted {
            let message = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
            let about = reference(&**pod);
            self.recorder.event(about, EventType::Warning, "NotDeleted", &message);
        }
        if let Some(due) = outcome.recheck {
            let left = due.as_second().saturating_sub(Timestamp::now().as_second());
            let wait = time::seconds(left.saturating_add(1));
            self.queue.add_after(Key::Budget(key.to_owned()), wait);
        }
        Ok(outcome.status)
    }

    /// The sum of the replicas of the pods' owners.
    async fn scale(
        &self,
        budget: &PodDisruptionBudget,
        namespace: &str,
        pods: &[Arc<Pod>],
    ) -> Result<isize, Error> {
        let mut scales: BTreeMap<String, isize> = BTreeMap::new();
        let mut known: Vec<String> = Vec::new();
        let mut is_unmanaged = false;
        for pod in pods {
            let Some(owner) = controller_of(&pod.metadata) else {
                is_unmanaged = true;
                continue;
            };
            if known.contains(&owner.uid) {
                continue;
            }
            known.push(owner.uid.clone());
            match self.owner_scale(namespace, owner).await? {
                Some((uid, scale)) => {
                    scales.insert(uid, scale);
                }
                None => {
                    let name = name_of(&**pod);
                    return Err(Error::Invalid(format!("found no controllers for pod {name:?}")));
                }
            }
        }
        if is_unmanaged {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let selector = selector.map(plan::printed);
            let message = format!(
                "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
                selector.unwrap_or_default()
            );
            self.warn(budget, "UnmanagedPods", &message);
        }
        Ok(scales.values().fold(0, |sum: isize, scale| sum.saturating_add(*scale)))
    }

    /// The UID of the object that decides on the number of pods, and that number.
    async fn owner_scale(
        &self,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<Option<(String, isize)>, Error> {
        let name = owner.name.as_str();
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let replicas = |number: Option<Option<i32>>| count(number.flatten().or(Some(1)));
        let found = match (group, owner.kind.as_str()) {
            ("apps", "ReplicaSet") => {
                let set = self.replica_sets.store().get_named(namespace, name);
                set.filter(|set| uid_of(&**set) == owner.uid).map(|set| {
                    let own = replicas(set.spec.as_ref().map(|spec| spec.replicas));
                    let above = controller_of(&set.metadata)
                        .filter(|above| above.kind == "Deployment")
                        .and_then(|above| {
                            let store = self.deployments.store();
                            let found = store.get_named(namespace, &above.name)?;
                            (uid_of(&*found) == above.uid).then_some(found)
                        });
                    match above {
                        Some(above) => (
                            uid_of(&*above).to_owned(),
                            replicas(above.spec.as_ref().map(|spec| spec.replicas)),
                        ),
                        None => (owner.uid.clone(), own),
                    }
                })
            }
            ("apps", "StatefulSet") => {
                let set = self.stateful_sets.store().get_named(namespace, name);
                set.filter(|set| uid_of(&**set) == owner.uid).map(|set| {
                    (owner.uid.clone(), replicas(set.spec.as_ref().map(|spec| spec.replicas)))
                })
            }
            ("", "ReplicationController") => {
                let own = self.replication_controllers.store().get_named(namespace, name);
                own.filter(|own| uid_of(&**own) == owner.uid).map(|own| {
                    (owner.uid.clone(), replicas(own.spec.as_ref().map(|spec| spec.replicas)))
                })
            }
            _ => return self.scale_subresource(namespace, owner).await,
        };
        Ok(found)
    }

    /// The scale of any other kind that has one.
    async fn scale_subresource(
        &self,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<Option<(String, isize)>, Error> {
        let discovery = discover(&self.client).await?;
        let is_it = |group: &str| owner.api_version.split_once('/').map_or("", |(g, _)| g) == group;
        let Some(found) = discovery
            .resources
            .iter()
            .find(|found| found.resource.kind == owner.kind && is_it(&found.resource.group))
        else {
            return Ok(None);
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &found.resource);
        let request = Request::new(api.resource_url())
            .get_subresource("scale", &owner.name)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        let scale: Result<serde_json::Value, kube::Error> = self.client.request(request).await;
        match scale {
            Err(error) if crate::writes::is_not_found(&error) => Err(Error::Invalid(format!(
                "{} does not implement the scale subresource",
                found.name()
            ))),
            Err(error) => Err(error.into()),
            Ok(scale) => {
                let is_same = scale["metadata"]["uid"] == owner.uid.as_str();
                let replicas = scale["spec"]["replicas"].as_i64().unwrap_or_default();
                let replicas = isize::try_from(replicas).unwrap_or_default().max(0);
                Ok(is_same.then(|| (owner.uid.clone(), replicas)))
            }
        }
    }
}
