//! A cache of one kind of object, each fetched on demand and kept while a pod refers to it.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::core::ObjectMeta;
use kube::{Api, Client};
use parking_lot::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex as AsyncMutex;

use super::Error;
use crate::Item;

/// An object that pods refer to by name.
pub(super) trait Named:
    Metadata<Ty = ObjectMeta> + DeserializeOwned + Default + Clone + Debug + Send + Sync + 'static
{
    /// What messages call it.
    const NAME: &'static str;

    /// The API of the kind.
    fn api(client: Client, namespace: &str) -> Api<Item<Self>>;

    /// Whether its data can never change.
    fn immutable(&self) -> bool;

    /// Without what is of no use to the node, and often the larger part of an object.
    fn lean(mut self) -> Self {
        let metadata = self.metadata_mut();
        (metadata.managed_fields, metadata.annotations) = (None, None);
        self
    }
}

impl Named for Secret {
    const NAME: &'static str = "secret";

    fn api(client: Client, namespace: &str) -> Api<Item<Self>> {
        Api::namespaced(client, namespace)
    }

    fn immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Named for ConfigMap {
    const NAME: &'static str = "configmap";

    fn api(client: Client, namespace: &str) -> Api<Item<Self>> {
        Api::namespaced(client, namespace)
    }

    fn immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Named for RuntimeClass {
    const NAME: &'static str = "runtimeclass.node.k8s.io";

    fn api(client: Client, _: &str) -> Api<Item<Self>> {
        Api::all(client)
    }

    /// Its handler is. A class of the same name that is made later is for the pods after it.
    fn immutable(&self) -> bool {
        true
    }
}

/// Namespace, empty for an object of the whole cluster, and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
}

impl Key {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The action of fetching the object, for messages.
    pub(super) fn action<K: Named>(&self) -> String {
        match &*self.namespace {
            "" => format!("get {} {}", K::NAME, self.name),
            namespace => format!("get {} {namespace}/{}", K::NAME, self.name),
        }
    }
}

pub(super) struct Cache<K> {
    entries: Mutex<HashMap<Key, Entry<K>>>,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

struct Entry<K> {
    pods: usize,
    slot: Arc<Slot<K>>,
}

/// The latest response. The lock is held during a request, so that waiting readers share it.
type Slot<K> = AsyncMutex<Option<Cached<K>>>;

struct Cached<K> {
    at: Instant,
    result: Result<Arc<K>, Error>,
}

impl<K: Named> Cache<K> {
    /// One more pod refers to the object. The pod may have been made after the last answer, so the
    /// next reader fetches it again; requests in flight serve those who already wait for them.
    pub(super) fn retain(&self, key: &Key) {
        let mut entries = self.entries();
        let entry =
            entries.entry(key.clone()).or_insert_with(|| Entry { pods: 0, slot: Arc::default() });
        entry.pods += 1;
        entry.slot = Arc::default();
    }

    /// One pod less refers to the object; the last one takes it out of the cache.
    pub(super) fn release(&self, key: &Key) {
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(key) {
            entry.pods -= 1;
            if entry.pods == 0 {
                entries.remove(key);
            }
        }
    }

    /// The object, from the cache if it is younger than `time_to_live`, or else by `fetch`, whose
    /// argument is whether a version of it is known. An object that no pod refers to is not cached.
    pub(super) async fn get(
        &self,
        key: &Key,
        time_to_live: Duration,
        fetch: impl AsyncFnOnce(bool) -> Result<K, Error>,
    ) -> Result<Arc<K>, Error> {
        let asked = Instant::now();
        let slot = self.entries().get(key).map(|entry| entry.slot.clone());
        let slot = slot.unwrap_or_default();
        let mut last = slot.lock().await;
        if let Some(answer) = last.as_ref().filter(|answer| answer.serves(asked, time_to_live)) {
            return answer.result.clone();
        }
        let known = last.take().and_then(|answer| answer.result.ok());
        let fetched = fetch(known.is_some()).await.map(|object| Arc::new(object.lean()));
        let result = match (known, fetched) {
            // An apiserver behind the others must not turn the object back in time.
            (Some(known), Ok(fetched)) if version(&*fetched) < version(&*known) => Ok(known),
            (Some(known), Err(error)) if !error.is_not_found() => {
                let Key { namespace, name } = key;
                tracing::warn!(%namespace, %name, %error, "using the last known {}", K::NAME);
                Ok(known)
            }
            (_, fetched) => fetched,
        };
        *last = Some(Cached { at: Instant::now(), result: result.clone() });
        result
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Key, Entry<K>>> {
        self.entries.lock()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries().len()
    }
}

impl<K: Named> Cached<K> {
    /// Whether it is valid for a reader since that time: an error only for those that waited
    /// for it, an object for its time to live.
    fn serves(&self, asked: Instant, time_to_live: Duration) -> bool {
        let lives = |object: &Arc<K>| object.immutable() || self.at.elapsed() < time_to_live;
        self.at >= asked || self.result.as_ref().is_ok_and(lives)
    }
}

/// The object's version as a number; objects of unknown version are never older than others.
fn version<K: Metadata<Ty = ObjectMeta>>(object: &K) -> u64 {
    object
        .metadata()
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(u64::MAX)
}
