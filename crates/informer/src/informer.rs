//! Informers: the objects of a kind, kept up to date by one list and watch, and their changes.

use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::{Stream, StreamExt};
use kube::runtime::watcher;
use kube::{Client, Resource};
use longshore_base::panics;
use longshore_client::{Encoded, Reports, watch_encoded};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::{Object, Store, key_of};

/// A change of the store, which has it already.
///
/// An object that was deleted and created again is reported as both, even if that happened between
/// two lists.
#[derive(Debug, Clone)]
pub enum Event<K> {
    /// A new object, or one of those that were there before the subscription.
    Added(Arc<K>),
    /// A changed object of the same UID.
    Updated {
        /// Before.
        old: Arc<K>,
        /// Now.
        new: Arc<K>,
    },
    /// An object that is gone, as it was known last.
    Deleted(Arc<K>),
}

impl<K> Event<K> {
    /// The object as it is now, or was last.
    pub fn latest(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Deleted(object) | Self::Updated { new: object, .. } => {
                object
            }
        }
    }

    /// The object as it was before: of an addition there is none.
    pub fn old(&self) -> Option<&Arc<K>> {
        match self {
            Self::Added(_) => None,
            Self::Deleted(old) | Self::Updated { old, .. } => Some(old),
        }
    }
}

type Handler<K> = Box<dyn Fn(&Event<K>) + Send + Sync>;

/// What an informer follows, and what it keeps of an object.
pub struct Options<K> {
    /// A label selector.
    pub labels: Option<String>,
    /// A field selector.
    pub fields: Option<String>,
    /// Removes what no controller reads, to save memory. `managedFields` are never kept.
    pub transform: Option<fn(&mut K)>,
}

impl<K> Default for Options<K> {
    fn default() -> Self {
        Self { labels: None, fields: None, transform: None }
    }
}

/// The objects of one kind. Clones share the same store and watch, which ends with the last of them.
pub struct Informer<K: Object>(Arc<Inner<K>>);

struct Inner<K: Object> {
    cache: Arc<Cache<K>>,
    synced: watch::Receiver<bool>,
    _task: AbortOnDropHandle<()>,
}

/// The store with those who are notified of its changes.
struct Cache<K> {
    store: Store<K>,
    /// Locked while a change is stored and delivered, so that each handler sees all changes in order.
    handlers: Mutex<Vec<Handler<K>>>,
    transform: Option<fn(&mut K)>,
    /// Objects that do not decode.
    reports: Mutex<Reports>,
}

impl<K: Object> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Object> Informer<K> {
    /// Starts an informer.
    pub fn start(client: &Client, options: Options<K>) -> Self
    where
        K: k8s_openapi::Resource,
    {
        let cache = Arc::new(Cache {
            store: Store::default(),
            handlers: Mutex::default(),
            transform: options.transform,
            reports: Mutex::default(),
        });
        let (synced, is_synced) = watch::channel(false);
        let config = watcher::Config {
            label_selector: options.labels,
            field_selector: options.fields,
            ..watcher::Config::default()
        };
        let events = watch_encoded::<K>(client.clone(), config);
        let kind = <K as k8s_openapi::Resource>::KIND;
        let task = tokio::spawn(follow(kind, events, cache.clone(), synced));
        let task = AbortOnDropHandle::new(task);
        Self(Arc::new(Inner { cache, synced: is_synced, _task: task }))
    }

    /// The objects.
    pub fn store(&self) -> &Store<K> {
        &self.0.cache.store
    }

    /// Whether the first list is complete, and delivered to all subscribers.
    pub fn has_synced(&self) -> bool {
        *self.0.synced.borrow()
    }

    /// Waits until the first list is complete, and delivered to all subscribers.
    pub async fn synced(&self) {
        let mut synced = self.0.synced.clone();
        if synced.wait_for(|synced| *synced).await.is_err() {
            // the informer's task is gone: the runtime shuts down
            std::future::pending::<()>().await;
        }
    }

    /// Stores what the apiserver answered to a write, so that it is known before the watch reports it.
    ///
    /// Only a newer version of an object that is there replaces it: what was deleted meanwhile does
    /// not come back.
    pub fn observe(&self, written: K) {
        let cache = &self.0.cache;
        let handlers = cache.handlers();
        let key = key_of(&written);
        let Some(old) = cache.store.get(&key) else { return };
        if old.metadata().uid != written.metadata().uid || !is_newer(&written, &old) {
            return;
        }
        let new = Arc::new(written);
        cache.store.insert(&key, new.clone());
        let event = Event::Updated { old, new };
        handlers.iter().for_each(|handler| deliver(handler, &event));
    }

    /// Calls `handler` for each object that is there, and from then on for each change in order.
    ///
    /// A handler is quick and never waits: it adds keys to a queue, or updates a cache. It must not
    /// subscribe to the same informer.
    pub fn subscribe(&self, handler: impl Fn(&Event<K>) + Send + Sync + 'static) {
        let cache = &self.0.cache;
        let mut handlers = cache.handlers();
        let handler: Handler<K> = Box::new(handler);
        for object in cache.store.list() {
            deliver(&handler, &Event::Added(object));
        }
        handlers.push(handler);
    }
}

/// Whether the first is a later version of the same object.
fn is_newer<K: Object>(first: &K, second: &K) -> bool {
    let version = |object: &K| -> Option<u64> {
        object.metadata().resource_version.as_ref().and_then(|version| version.parse().ok())
    };
    matches!((version(first), version(second)), (Some(first), Some(second)) if first > second)
}

impl<K: Object> Cache<K> {
    fn handlers(&self) -> MutexGuard<'_, Vec<Handler<K>>> {
        self.handlers.lock()
    }

    /// An object of a list, or a change that the watch reports. Of an object that was written here the
    /// watch may report older versions; what is listed always counts: an etcd that was restored has
    /// lower versions.
    fn replace(&self, object: K, is_listed: bool) {
        let handlers = self.handlers();
        let (key, new) = (key_of(&object), Arc::new(object));
        let send = |event: Event<K>| handlers.iter().for_each(|handler| deliver(handler, &event));
        match self.store.get(&key) {
            Some(old) if new.metadata().uid != old.metadata().uid => {
                self.store.remove(&key);
                send(Event::Deleted(old));
                self.store.insert(&key, new.clone());
                send(Event::Added(new));
            }
            Some(old) if !is_listed && is_newer(&*old, &*new) => {}
            Some(old) => {
                self.store.insert(&key, new.clone());
                // a new list has mostly what is known
                if old.metadata().resource_version != new.metadata().resource_version {
                    send(Event::Updated { old, new });
                }
            }
            None => {
                self.store.insert(&key, new.clone());
                send(Event::Added(new));
            }
        }
    }
}

fn deliver<K>(handler: &Handler<K>, event: &Event<K>) {
    // the panic is logged where it happens
    let _ = panics::contain_sync(|| handler(event));
}

/// What keeps the objects of one kind.
trait Sink: Send + Sync {
    /// Takes over an object of a list, or a change that the watch reports; returns its key. An object
    /// that does not decode is left as it was known last, if it was.
    fn apply(&self, object: &Encoded, is_listed: bool) -> String;
    /// Removes an object.
    fn remove(&self, key: &str);
    /// Removes what the new list does not have.
    fn retain(&self, listed: &HashSet<String>);
}

impl<K: Object + k8s_openapi::Resource> Sink for Cache<K> {
    fn apply(&self, object: &Encoded, is_listed: bool) -> String {
        match object.decode::<K>().read() {
            Ok(mut object) => {
                if let Some(transform) = self.transform {
                    transform(&mut object);
                }
                let key = key_of(&object);
                self.replace(object, is_listed);
                key
            }
            Err(unreadable) => {
                self.reports.lock().log(&unreadable);
                encoded_key(object)
            }
        }
    }

    fn remove(&self, key: &str) {
        let handlers = self.handlers();
        if let Some(old) = self.store.remove(key) {
            let event = Event::Deleted(old);
            handlers.iter().for_each(|handler| deliver(handler, &event));
        }
    }

    fn retain(&self, listed: &HashSet<String>) {
        for key in self.store.keys() {
            if !listed.contains(&*key) {
                self.remove(&key);
            }
        }
    }
}

fn encoded_key(object: &Encoded) -> String {
    let metadata = object.meta();
    let name = metadata.name.as_deref().unwrap_or_default();
    crate::object_key(metadata.namespace.as_deref().unwrap_or_default(), name)
}

/// Keeps a cache up to date. What depends on the kind is behind [`Sink`], so that there is one copy of it.
async fn follow(
    kind: &'static str,
    mut events: impl Stream<Item = Result<watcher::Event<Encoded>, watcher::Error>> + Unpin,
    cache: Arc<dyn Sink>,
    synced: watch::Sender<bool>,
) {
    let mut listed = HashSet::new();
    let mut failed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.insert(cache.apply(&object, true));
            }
            Ok(watcher::Event::InitDone) => {
                cache.retain(&std::mem::take(&mut listed));
                synced.send_replace(true);
                failed = false;
            }
            Ok(watcher::Event::Apply(object)) => {
                cache.apply(&object, false);
            }
            Ok(watcher::Event::Delete(object)) => cache.remove(&encoded_key(&object)),
            // The next try says so too.
            Err(error) if failed => debug!(kind, "list and watch failed: {error}"),
            Err(error) => {
                failed = true;
                warn!(kind, "list and watch failed: {error}");
            }
        }
    }
}

/// One informer for each kind, shared by all controllers of a process. Clones are the same.
#[derive(Clone)]
pub struct Informers(Arc<Shared>);

struct Shared {
    client: Client,
    /// [`Informer`]s by the type of their objects.
    informers: Mutex<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
}

impl Informers {
    /// No informers yet: each starts when it is first used.
    pub fn new(client: Client) -> Self {
        Self(Arc::new(Shared { client, informers: Mutex::default() }))
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// The informer of a kind.
    pub fn get<K: Object + k8s_openapi::Resource>(&self) -> Informer<K> {
        self.get_with(Options::default)
    }

    /// The informer of a kind; it is started with these options if this is its first use.
    pub fn get_with<K: Object + k8s_openapi::Resource>(
        &self,
        options: impl FnOnce() -> Options<K>,
    ) -> Informer<K> {
        let mut informers = self.0.informers.lock();
        let known = informers.get(&TypeId::of::<K>());
        if let Some(informer) = known.and_then(|known| known.downcast_ref::<Informer<K>>()) {
            return informer.clone();
        }
        let informer = Informer::start(&self.0.client, options());
        informers.insert(TypeId::of::<K>(), Box::new(informer.clone()));
        informer
    }
}
