//! Locks of claims by name: what is done about a claim is done one after the other.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::claims::Key;

#[derive(Default)]
pub(crate) struct Locks(Mutex<HashMap<Key, Arc<AsyncMutex<()>>>>);

impl Locks {
    /// Locks claims, in their order, so that nobody waits in a circle. Cancel safe.
    pub(crate) async fn lock(&self, keys: &BTreeSet<Key>) -> Vec<OwnedMutexGuard<()>> {
        let mut guards = Vec::with_capacity(keys.len());
        for key in keys {
            let lock = {
                let mut locks = self.0.lock();
                locks.retain(|_, lock| Arc::strong_count(lock) > 1);
                locks.entry(key.clone()).or_default().clone()
            };
            guards.push(lock.lock_owned().await);
        }
        guards
    }
}
