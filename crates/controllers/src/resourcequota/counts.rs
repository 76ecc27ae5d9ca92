//! The numbers of objects that quotas limit, by watches of their metadata. A resource is watched once
//! a quota names it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::DynamicObject;
use kube::core::{ApiResource, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::discovery::{Discovered, discover};
use crate::writes::is_not_found;

/// How soon the apiserver is asked again for a resource that it does not have. It is asked when a quota is
/// looked at: admission has counted the first objects of a new kind before, and that must not become 0.
const RETRY: Duration = Duration::from_secs(1);

/// Called with the namespace of an object that came or went, and whether it is new.
pub(super) type Changed = Arc<dyn Fn(&str, bool) + Send + Sync>;

/// Plural and group.
type Name = (String, String);

#[derive(Default)]
struct Watched {
    synced: bool,
    /// The apiserver has the resource no more, or not in this version: the watch has ended.
    gone: bool,
    names: HashMap<String, BTreeSet<String>>,
}

struct Monitor {
    watched: Arc<Mutex<Watched>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct State {
    monitors: HashMap<Name, Monitor>,
    /// When a resource was not found last.
    unknown: HashMap<Name, Instant>,
}

/// The numbers of objects.
pub(super) struct Counts {
    client: Client,
    changed: Changed,
    state: Mutex<State>,
}

impl Counts {
    pub(super) fn new(client: Client, changed: Changed) -> Self {
        Self { client, changed, state: Mutex::default() }
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether the number is known; otherwise it is soon. Of a resource that does not exist it is 0.
    pub(super) async fn ensure(&self, plural: &str, group: &str) -> Result<bool, kube::Error> {
        let name = (plural.to_owned(), group.to_owned());
        {
            let state = self.state();
            if let Some(monitor) = state.monitors.get(&name) {
                let watched = monitor.watched.lock();
                if !watched.gone {
                    return Ok(watched.synced);
                }
            }
            if state.unknown.get(&name).is_some_and(|since| since.elapsed() < RETRY) {
                return Ok(true);
            }
        }
        let found = discover(&self.client).await?.resources.into_iter().find(|found| {
            found.resource.plural == plural
                && found.resource.group == group
                && found.allows(&["list", "watch"])
        });
        let mut state = self.state();
        state.monitors.retain(|_, monitor| !monitor.watched.lock().gone);
        match found {
            Some(Discovered { resource, .. }) => {
                state.unknown.remove(&name);
                state.monitors.entry(name).or_insert_with(|| {
                    let watched: Arc<Mutex<Watched>> = Arc::default();
                    let task = follow(
                        self.client.clone(),
                        resource,
                        watched.clone(),
                        self.changed.clone(),
                    );
                    Monitor { watched, _task: AbortOnDropHandle::new(tokio::spawn(task)) }
                });
                Ok(false)
            }
            None => {
                state.unknown.insert(name, Instant::now());
                Ok(true)
            }
        }
    }

    /// The number of objects in the namespace.
    pub(super) fn get(&self, plural: &str, group: &str, namespace: &str) -> usize {
        let state = self.state();
        let Some(monitor) = state.monitors.get(&(plural.to_owned(), group.to_owned())) else {
            return 0;
        };
        let watched = monitor.watched.lock();
        watched.names.get(namespace).map_or(0, BTreeSet::len)
    }
}

async fn follow(
    client: Client,
    resource: ApiResource,
    watched: Arc<Mutex<Watched>>,
    changed: Changed,
) {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &resource);
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut listed: HashSet<(String, String)> = HashSet::new();
    let locked = || watched.lock();
    let key = |object: &PartialObjectMeta<DynamicObject>| {
        let metadata = &object.metadata;
        (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    };
    let insert = |(namespace, name): (String, String)| {
        if locked().names.entry(namespace.clone()).or_default().insert(name) {
            changed(&namespace, true);
        }
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.insert(key(&object));
            }
            Ok(watcher::Event::InitDone) => {
                let mut names: HashMap<String, BTreeSet<String>> = HashMap::new();
                for (namespace, name) in listed.drain() {
                    names.entry(namespace).or_default().insert(name);
                }
                let before = {
                    let mut watched = locked();
                    watched.synced = true;
                    std::mem::replace(&mut watched.names, names.clone())
                };
                for namespace in before.keys().chain(names.keys()) {
                    if before.get(namespace) != names.get(namespace) {
                        changed(namespace, false);
                    }
                }
            }
            Ok(watcher::Event::Apply(object)) => insert(key(&object)),
            Ok(watcher::Event::Delete(object)) => {
                let (namespace, name) = key(&object);
                let mut watched = locked();
                if let Some(names) = watched.names.get_mut(&namespace) {
                    names.remove(&name);
                    if names.is_empty() {
                        watched.names.remove(&namespace);
                    }
                }
                drop(watched);
                changed(&namespace, false);
            }
            Err(error) if is_gone(&error) => {
                debug!(resource = resource.plural, "the resource is gone");
                let names = {
                    let mut watched = locked();
                    watched.gone = true;
                    std::mem::take(&mut watched.names)
                };
                names.keys().for_each(|namespace| changed(namespace, false));
                return;
            }
            Err(error) => debug!(resource = resource.plural, "list and watch failed: {error}"),
        }
    }
}

/// Whether the apiserver does not have what is watched.
fn is_gone(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            is_not_found(error)
        }
        _ => false,
    }
}
