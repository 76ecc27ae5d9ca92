//! One kind of object, each followed by a watch of its own for as long as a pod refers to it.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::Arc;

use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use super::cache::{Key, Named};
use super::follow::{Found, follow};
use super::{Error, REQUEST_TIMEOUT};

pub(super) struct Watched<K> {
    entries: Mutex<HashMap<Key, Entry<K>>>,
}

impl<K> Default for Watched<K> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

struct Entry<K> {
    pods: usize,
    object: Arc<Object<K>>,
    _task: AbortOnDropHandle<()>,
}

/// What is known of an object.
struct Object<K> {
    /// `None` before the first answer.
    known: watch::Sender<Option<Result<Arc<K>, Error>>>,
    /// A reader waits for it: ends the backoff.
    retry_now: Notify,
}

impl<K: Named + Send + Sync + 'static> Watched<K> {
    /// One more pod refers to the object; `changed` is called when it is another, or gone, or there
    /// again. An immutable one is read again for a new pod: it may have been replaced.
    pub(super) fn retain(
        &self,
        key: &Key,
        client: &Client,
        changed: impl Fn() + Send + Sync + 'static,
    ) {
        let begin = |object: Arc<Object<K>>| {
            let (client, key) = (client.clone(), key.clone());
            AbortOnDropHandle::new(tokio::spawn(async move {
                let report = |found| object.update(&key, found, &changed);
                follow(client, key.clone(), &object.retry_now, report).await;
            }))
        };
        match self.entries().entry(key.clone()) {
            Slot::Vacant(slot) => {
                let object =
                    Arc::new(Object { known: watch::Sender::new(None), retry_now: Notify::new() });
                let _task = begin(Arc::clone(&object));
                slot.insert(Entry { pods: 1, object, _task });
            }
            Slot::Occupied(mut slot) => {
                let entry = slot.get_mut();
                entry.pods += 1;
                if entry._task.is_finished() {
                    entry.object.known.send_replace(None);
                    entry._task = begin(Arc::clone(&entry.object));
                }
            }
        }
    }

    /// One pod less refers to the object; the last one ends its watch.
    pub(super) fn release(&self, key: &Key) {
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(key) {
            entry.pods -= 1;
            if entry.pods == 0 {
                entries.remove(key);
            }
        }
    }

    /// The object, once it is known. If its last read failed it is read again at once. `None`: no
    /// pod refers to it.
    pub(super) async fn get(&self, key: &Key) -> Option<Result<Arc<K>, Error>> {
        let object = self.entries().get(key).map(|entry| Arc::clone(&entry.object))?;
        let mut known = object.known.subscribe();
        let failed = matches!(&*known.borrow_and_update(), Some(Err(error)) if error.is_passing());
        let answer = async {
            if failed {
                object.retry_now.notify_one();
                known.changed().await.ok()?;
            }
            known.wait_for(Option::is_some).await.ok()?.clone()
        };
        let late = || Error::Request {
            action: key.action::<K>(),
            reason: format!("no answer within {REQUEST_TIMEOUT:?}").into(),
        };
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, answer).await;
        Some(answer.ok().flatten().unwrap_or_else(|| Err(late())))
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Key, Entry<K>>> {
        self.entries.lock()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries().len()
    }
}

impl<K: Named> Object<K> {
    fn update(&self, key: &Key, found: Found<K>, changed: impl Fn()) {
        let next = match found {
            Ok(Some(object)) => Ok(Arc::new(object.lean())),
            Ok(None) => Err(Error::NotFound { kind: K::NAME, name: key.name.to_string() }),
            Err(error) => Err(error),
        };
        let (mut changed_object, mut keeps) = (false, None);
        self.known.send_modify(|known| match (&*known, next) {
            // An unreachable server does not mean that the object is gone.
            (Some(Ok(_)), Err(error)) if !error.is_not_found() => keeps = Some(error),
            (before, next) => {
                changed_object = before.as_ref().is_some_and(|before| differ(before, &next));
                *known = Some(next);
            }
        });
        if let Some(error) = keeps {
            let Key { namespace, name } = key;
            tracing::warn!(%namespace, %name, %error, "using the last known {}", K::NAME);
        }
        if changed_object {
            changed();
        }
    }
}

fn differ<K: Named>(before: &Result<Arc<K>, Error>, next: &Result<Arc<K>, Error>) -> bool {
    let version = |object: &Arc<K>| object.metadata().resource_version.clone();
    match (before, next) {
        (Ok(before), Ok(next)) => version(before) != version(next),
        (Err(before), Err(next)) => before.is_not_found() != next.is_not_found(),
        _ => true,
    }
}
