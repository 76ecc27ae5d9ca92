//! Expectations: creations and deletions that a controller has requested and its informers have not
//! shown yet. While there are any, the store is stale and decides nothing.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// After this time expectations no longer count: an event was lost.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Expected creations and deletions by the key of the controlling object.
#[derive(Debug, Default)]
pub struct Expectations(Mutex<HashMap<String, Expected>>);

#[derive(Debug)]
struct Expected {
    creations: usize,
    /// The UIDs of objects to be deleted.
    deletions: HashSet<String>,
    since: Instant,
}

impl Expectations {
    /// Whether everything expected was observed, or was expected too long ago, or nothing was
    /// expected ever.
    pub fn satisfied(&self, key: &str) -> bool {
        self.all().get(key).is_none_or(|expected| {
            expected.creations == 0 && expected.deletions.is_empty()
                || expected.since.elapsed() > TIMEOUT
        })
    }

    /// Expects creations, and nothing from before.
    pub fn expect_creations(&self, key: &str, count: usize) {
        self.set(key, count, HashSet::new());
    }

    /// Expects the deletion of objects of these UIDs, and nothing from before.
    pub fn expect_deletions(&self, key: &str, uids: impl IntoIterator<Item = String>) {
        self.set(key, 0, uids.into_iter().collect());
    }

    /// Expects both, and nothing from before.
    pub fn expect(&self, key: &str, creations: usize, uids: impl IntoIterator<Item = String>) {
        self.set(key, creations, uids.into_iter().collect());
    }

    /// Expects more creations.
    pub fn raise_creations(&self, key: &str, count: usize) {
        if let Some(expected) = self.all().get_mut(key) {
            expected.creations = expected.creations.saturating_add(count);
        }
    }

    /// A creation was observed, or failed.
    pub fn creation_observed(&self, key: &str) {
        self.creations_observed(key, 1);
    }

    /// Several creations were observed, or failed, or were not tried.
    pub fn creations_observed(&self, key: &str, count: usize) {
        if let Some(expected) = self.all().get_mut(key) {
            expected.creations = expected.creations.saturating_sub(count);
        }
    }

    /// The deletion of the object of that UID was observed, or failed. Several reports of one
    /// deletion count once.
    pub fn deletion_observed(&self, key: &str, uid: &str) {
        if let Some(expected) = self.all().get_mut(key) {
            expected.deletions.remove(uid);
        }
    }

    /// Forgets the expectations of a controlling object that is gone.
    pub fn remove(&self, key: &str) {
        self.all().remove(key);
    }

    fn set(&self, key: &str, creations: usize, deletions: HashSet<String>) {
        let expected = Expected { creations, deletions, since: Instant::now() };
        self.all().insert(key.to_owned(), expected);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Expected>> {
        self.0.lock()
    }
}
