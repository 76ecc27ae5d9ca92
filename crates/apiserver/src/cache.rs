//! What decisions are made from: an index of the objects of one resource, which follows the store.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use longshore_store::Revision;
use parking_lot::{RwLock, RwLockReadGuard};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::api_types::Resource;
use crate::kinds::lookup;
use crate::registry::{Change, ListRequest, Registry, VersionMatch};
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::StatusError;

const RETRY: Duration = Duration::from_secs(1);
/// Between the end of one watch and the next, in case it ends at once each time.
const BACKOFF: Duration = Duration::from_millis(50);
/// How long a refusal waits for what this server has just written.
const WAIT_TIMEOUT: Duration = Duration::from_millis(500);

/// What is kept of objects.
pub(crate) trait Index: Default + Send + Sync {
    /// Takes an object in, instead of the one of that name.
    fn put(&mut self, object: &Value);
    /// Forgets an object.
    fn remove(&mut self, namespace: &str, name: &str);
}

/// An index that follows the store.
pub(crate) struct Cache<T> {
    resource: &'static Resource,
    index: RwLock<T>,
    /// All was last read at this revision.
    loaded: AtomicI64,
    /// Everything up to this revision is in the index.
    seen: watch::Sender<Revision>,
}

impl<T: Index> Cache<T> {
    pub(crate) fn new(group: &str, plural: &str) -> Result<Cache<T>, StatusError> {
        let resource = lookup(group, "v1", plural)
            .ok_or_else(|| StatusError::internal(format!("no resource {plural}")))?;
        Ok(Cache::of(resource))
    }

    pub(crate) fn of(resource: &'static Resource) -> Cache<T> {
        Cache {
            resource,
            index: RwLock::default(),
            loaded: AtomicI64::new(0),
            seen: watch::Sender::new(0),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.index.read()
    }

    /// Reads all objects.
    pub(crate) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        let request = ListRequest {
            resource: self.resource,
            namespace: "",
            labels: LabelSelector::default(),
            fields: FieldSelector::default(),
            limit: 0,
            continue_token: "",
            version: VersionMatch::Newest,
        };
        let mut index = T::default();
        let meta = registry
            .list(&request, |object| {
                index.put(&object);
                Ok(())
            })
            .await?;
        let mut current = self.index.write();
        // Whatever follows the store meanwhile may be ahead.
        if meta.revision >= *self.seen.borrow() {
            *current = index;
            self.loaded.store(meta.revision, Ordering::Relaxed);
            self.seen.send_replace(meta.revision);
        }
        Ok(())
    }

    /// Follows the store until `stop`, from where [`Cache::load`] left off.
    pub(crate) async fn run(&self, registry: &Registry, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow(registry) => {}
        }
    }

    async fn follow(&self, registry: &Registry) {
        loop {
            let seen = *self.seen.borrow();
            match registry.feeds().subscribe(self.resource, seen).await {
                Ok(mut changes) => {
                    while let Ok(Some(change)) = changes.next().await {
                        self.apply(&change);
                    }
                    sleep(BACKOFF).await;
                }
                Err(error) => {
                    tracing::warn!(%error, resource = self.resource.plural, "cannot watch the store");
                    sleep(RETRY).await;
                }
            }
            // Behind, or broken: relist, since missed changes may be compacted.
            while let Err(error) = self.load(registry).await {
                tracing::warn!(%error, resource = self.resource.plural, "cannot read the store");
                sleep(RETRY).await;
            }
        }
    }

    fn apply(&self, change: &Change) {
        let mut index = self.index.write();
        // It was read with all others meanwhile.
        if change.revision <= self.loaded.load(Ordering::Relaxed) {
            return;
        }
        match (&change.current, &change.previous) {
            (Some(current), _) => match current.value() {
                Some(object) => index.put(object),
                // What cannot be read gives no rights.
                None => {
                    let (namespace, name) = current.names(self.resource);
                    index.remove(namespace, name);
                }
            },
            (None, Some(previous)) => {
                let (namespace, name) = previous.names(self.resource);
                index.remove(namespace, name);
            }
            (None, None) => {}
        }
        self.seen.send_replace(change.revision);
    }

    /// Waits a moment until the index holds what this server wrote so far. `false`: it does already.
    pub(crate) async fn catch_up(&self, registry: &Registry) -> bool {
        let written = registry.written(self.resource);
        if *self.seen.borrow() >= written {
            return false;
        }
        let mut seen = self.seen.subscribe();
        timeout(WAIT_TIMEOUT, seen.wait_for(|seen| *seen >= written)).await.is_ok()
    }

    #[cfg(test)]
    pub(crate) fn put(&self, object: &Value) {
        self.index.write().put(object);
    }
}
