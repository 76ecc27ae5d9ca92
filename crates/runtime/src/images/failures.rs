//! Backoff of failed image pulls.

use std::collections::HashMap;

use longshore_pod::Timestamp;
use longshore_pod::backoff::{Backoff, RESTART_BASE, RESTART_MAX};

/// Backoff by pod and image: see [`Failures::key`].
#[derive(Debug)]
pub(super) struct Failures {
    backoff: Backoff<String>,
    /// Time, reason and message of the last failure.
    last: HashMap<String, (Timestamp, String)>,
}

impl Failures {
    pub(super) fn new() -> Self {
        Self { backoff: Backoff::new(RESTART_BASE, RESTART_MAX), last: HashMap::new() }
    }

    /// The key of the pulls of an image for a pod.
    pub(super) fn key(uid: &str, image: &str) -> String {
        format!("{uid}_{image}")
    }

    /// The last failure, and until when to back off.
    pub(super) fn wait(&self, key: &String, now: Timestamp) -> Option<(String, Timestamp)> {
        let (at, cause) = self.last.get(key)?;
        let until = self.backoff.waits_until(key, *at, now)?;
        Some((cause.clone(), until))
    }

    pub(super) fn failed(&mut self, key: &str, cause: String, now: Timestamp) {
        self.backoff.next(&key.to_owned(), now, now);
        self.last.insert(key.to_owned(), (now, cause));
    }

    /// The backoff ends; its delay is kept for a failure that comes soon after.
    pub(super) fn succeeded(&mut self, key: &str) {
        self.last.remove(key);
    }

    /// Remove the entries of a pod that is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.backoff.retain(|key| !key.starts_with(uid));
        self.last.retain(|key, _| !key.starts_with(uid));
    }
}
