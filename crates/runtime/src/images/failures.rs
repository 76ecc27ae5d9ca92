//! Pulls that failed, and how long to wait before the next.

use std::collections::HashMap;

use longshore_pod::Timestamp;
use longshore_pod::backoff::{Backoff, RESTART_BASE, RESTART_MAX};

/// By pod and image: see [`Failures::key`].
#[derive(Debug)]
pub(super) struct Failures {
    backoff: Backoff<String>,
    /// When a pull failed last, and the reason and message of it.
    last: HashMap<String, (Timestamp, String)>,
}

impl Failures {
    pub(super) fn new() -> Self {
        Self { backoff: Backoff::new(RESTART_BASE, RESTART_MAX), last: HashMap::new() }
    }

    /// What the pulls of an image for a pod are known by.
    pub(super) fn key(uid: &str, image: &str) -> String {
        format!("{uid}_{image}")
    }

    /// Why the last pull failed, and until when no other is tried.
    pub(super) fn wait(&self, key: &String, now: Timestamp) -> Option<(String, Timestamp)> {
        let (at, cause) = self.last.get(key)?;
        let until = self.backoff.waits_until(key, *at, now)?;
        Some((cause.clone(), until))
    }

    pub(super) fn failed(&mut self, key: &str, cause: String, now: Timestamp) {
        self.backoff.next(&key.to_owned(), now, now);
        self.last.insert(key.to_owned(), (now, cause));
    }

    /// Nothing is waited for; a failure that comes soon after waits for as long as it would have.
    pub(super) fn succeeded(&mut self, key: &str) {
        self.last.remove(key);
    }

    /// Forgets those of a pod that is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.backoff.retain(|key| !key.starts_with(uid));
        self.last.retain(|key, _| !key.starts_with(uid));
    }
}
