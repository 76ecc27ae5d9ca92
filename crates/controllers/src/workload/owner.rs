//! From pods to the objects that control them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::core::{Selector, SelectorExt};
use longshore_informer::{
    Event, Expectations, Informer, Object, Store, WorkQueue, key_of, object_key,
};

use super::{Namespaced, controller_of, uid_of};

/// The index of objects by the UID of what controls them, or by `namespace/` where nothing does.
pub(crate) const CONTROLLER_INDEX: &str = "controller";

/// Adds [`CONTROLLER_INDEX`] to a store.
pub(crate) fn index_by_controller<K: Object>(store: &Store<K>) {
    store.add_index(CONTROLLER_INDEX, |object| {
        let metadata = k8s_openapi::Metadata::metadata(object);
        vec![controller_of(metadata).map_or_else(|| orphans(metadata), |owner| owner.uid.clone())]
    });
}

fn orphans(metadata: &ObjectMeta) -> String {
    [metadata.namespace.as_deref().unwrap_or_default(), "/"].concat()
}

/// The objects that the owner controls.
pub(crate) fn owned<K: Object, O: Object>(store: &Store<K>, owner: &O) -> Vec<Arc<K>> {
    store.by_index(CONTROLLER_INDEX, uid_of(owner))
}

/// The objects that the owner controls, and those of its namespace that nothing controls.
pub(crate) fn owned_or_orphans<K: Object, O: Object>(store: &Store<K>, owner: &O) -> Vec<Arc<K>> {
    let mut objects = owned(store, owner);
    objects
        .extend(store.by_index(CONTROLLER_INDEX, &orphans(k8s_openapi::Metadata::metadata(owner))));
    objects
}

/// The objects of a kind that control pods, and the queue of their keys.
#[derive(Clone)]
pub(crate) struct Owners<K: Namespaced> {
    pub(crate) informer: Informer<K>,
    pub(crate) queue: WorkQueue<String>,
    pub(crate) expectations: Arc<Expectations>,
    pub(crate) selector: fn(&K) -> Option<LabelSelector>,
    /// How long an owner waits for more changes of its pods.
    pub(crate) delay: Duration,
}

impl<K: Namespaced> Owners<K> {
    /// Queues owners that change, and those of pods that do.
    pub(crate) fn follow(&self, pods: &Informer<Pod>) {
        index_by_controller(pods.store());
        let owners = self.clone();
        self.informer.subscribe(move |event| {
            let key = key_of(&**event.latest());
            if let Event::Deleted(_) = event {
                owners.expectations.remove(&key);
            }
            owners.queue.add(key);
        });
        let owners = self.clone();
        pods.subscribe(move |event| owners.pod_changed(event));
    }

    /// The key of the owner that a reference of an object in that namespace means.
    pub(crate) fn resolve(&self, namespace: &str, reference: &OwnerReference) -> Option<String> {
        if reference.kind != <K as k8s_openapi::Resource>::KIND {
            return None;
        }
        let key = object_key(namespace, &reference.name);
        self.informer.store().get(&key).filter(|owner| uid_of(&**owner) == reference.uid)?;
        Some(key)
    }

    fn owner_of(&self, pod: &Pod) -> Option<String> {
        let reference = controller_of(&pod.metadata)?;
        self.resolve(pod.metadata.namespace.as_deref().unwrap_or_default(), reference)
    }

    fn pod_changed(&self, event: &Event<Pod>) {
        match event {
            Event::Deleted(pod) => self.pod_deleted(pod),
            Event::Added(pod) | Event::Updated { new: pod, .. }
                if pod.metadata.deletion_timestamp.is_some() =>
            {
                self.pod_deleted(pod);
            }
            Event::Added(pod) => match self.owner_of(pod) {
                Some(key) => {
                    self.expectations.creation_observed(&key);
                    self.queue.add_after(key, self.delay);
                }
                None => self.add_matching(&pod.metadata),
            },
            Event::Updated { old, new } => {
                let (before, after) = (controller_of(&old.metadata), controller_of(&new.metadata));
                if before != after
                    && let Some(key) = self.owner_of(old)
                {
                    self.queue.add_after(key, self.delay);
                }
                if let Some(key) = self.owner_of(new) {
                    self.queue.add_after(key, self.delay);
                } else if before != after || old.metadata.labels != new.metadata.labels {
                    self.add_matching(&new.metadata);
                }
            }
        }
    }

    fn pod_deleted(&self, pod: &Pod) {
        if let Some(key) = self.owner_of(pod) {
            self.expectations.deletion_observed(&key, uid_of(pod));
            self.queue.add_after(key, self.delay);
        }
    }

    /// Queues those that may adopt an object without a controller.
    fn add_matching(&self, metadata: &ObjectMeta) {
        let (None, Some(labels)) = (controller_of(metadata), &metadata.labels) else { return };
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        for owner in self.informer.store().list_namespace(namespace) {
            let selector = (self.selector)(&owner).map(Selector::try_from);
            if let Some(Ok(selector)) = selector
                && !selector.selects_all()
                && selector.matches(labels)
            {
                self.queue.add(key_of(&*owner));
            }
        }
    }
}
