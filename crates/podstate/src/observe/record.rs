//! The observations of one pod, and what is published of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use longshore_pod::observed::{Container, ObservedPod, Sandbox};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

/// So many failures in a row are reported.
const REPORTED_FAILURES: u32 = 3;
/// Concurrent inspections of one pod above which results are not published one by one.
const MAX_PUBLISHED_SINGLY: usize = 64;

/// An observation and the time of its request.
#[derive(Debug)]
pub(super) struct Observation<T> {
    pub(super) at: Instant,
    /// The state in lists; an inspection is due when a list shows another one.
    pub(super) listed: i32,
    pub(super) value: T,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) sandboxes: HashMap<String, Observation<Sandbox>>,
    pub(super) containers: HashMap<String, Observation<Container>>,
    /// Sandboxes and containers being inspected after a relist, by id.
    pub(super) inspecting: HashSet<String>,
    /// Containers whose exit is awaited, by id.
    pub(super) followed: HashSet<String>,
    /// Sandboxes and containers that were listed and not yet inspected, by id, and since when.
    pub(super) uninspected: HashMap<String, Instant>,
    /// Sandboxes and containers that were removed since the last relist, by id, and when.
    pub(super) removed: HashMap<String, Instant>,
    /// The number of failures in a row and the last error, by id.
    pub(super) failures: HashMap<String, (u32, String)>,
    pub(super) published: watch::Sender<Arc<ObservedPod>>,
}

impl Record {
    /// Whether a response to a request of that time is older than what is known of its subject: a later
    /// observation, its removal, or a list (the last one was requested at `relisted`) without it.
    pub(super) fn is_outdated(&self, id: &str, at: Instant, relisted: Option<Instant>) -> bool {
        let sandbox = self.sandboxes.get(id).map(|observation| observation.at);
        let container = || self.containers.get(id).map(|observation| observation.at);
        match sandbox.or_else(container) {
            Some(known) => known > at,
            None => {
                let removed = self.removed.get(id).is_some_and(|removed| *removed >= at);
                let is_absent = relisted.is_some_and(|relisted| relisted > at);
                removed || is_absent && !self.uninspected.contains_key(id)
            }
        }
    }

    /// An inspection has succeeded.
    pub(super) fn inspected(&mut self, id: &str) {
        self.uninspected.remove(id);
        self.failures.remove(id);
    }

    /// An inspection has failed. The first failures may be temporary; the rest is reported once.
    pub(super) fn inspection_failed(&mut self, uid: &str, id: &str, error: &longshore_cri::Error) {
        let (failures, last) = self.failures.entry(id.to_owned()).or_default();
        *failures = failures.saturating_add(1);
        *last = error.to_string();
        if *failures == REPORTED_FAILURES {
            let (pod, namespace) = (&self.name, &self.namespace);
            warn!(%pod, namespace, uid, id, %error, "cannot inspect sandboxes and containers of a pod");
        } else {
            debug!(uid, id, %error, "inspection failed");
        }
    }

    /// Note that a sandbox or container exists, if it is not known yet.
    pub(super) fn add_uninspected(&mut self, uid: &str, id: &str, at: Instant) {
        let is_known = self.sandboxes.contains_key(id) || self.containers.contains_key(id);
        if !is_known && self.uninspected.insert(id.to_owned(), at).is_none() {
            self.publish(uid);
        }
    }

    /// Publish an observation, unless very many are under way: a pod that is known in part is not
    /// acted upon, and publishing thousands of containers thousands of times takes too long.
    pub(super) fn publish_unless_many(&self, uid: &str) {
        if self.uninspected.len() <= MAX_PUBLISHED_SINGLY
            || self.inspecting.len() <= MAX_PUBLISHED_SINGLY
        {
            self.publish(uid);
        }
    }

    /// Replace the published state by an equal one, without notifying subscribers.
    pub(super) fn republish_silently(&self) {
        self.published.send_if_modified(|published| {
            *published = Arc::new(ObservedPod::clone(published));
            false
        });
    }

    /// An inspection that a relist required is over.
    pub(super) fn inspection_done(&mut self, uid: &str, id: &str) {
        self.inspecting.remove(id);
        if self.inspecting.is_empty() {
            self.publish(uid);
        }
    }

    pub(super) fn publish(&self, uid: &str) {
        let mut sandboxes: Vec<Sandbox> =
            self.sandboxes.values().map(|observation| observation.value.clone()).collect();
        let mut containers: Vec<Container> =
            self.containers.values().map(|observation| observation.value.clone()).collect();
        sandboxes.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
        containers.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
        let pod = ObservedPod {
            uid: uid.to_owned(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            sandboxes,
            containers,
            partial: !self.uninspected.is_empty(),
        };
        self.published.send_if_modified(|published| {
            let changed = **published != pod;
            if changed {
                *published = Arc::new(pod);
            }
            changed
        });
    }
}

pub(super) fn record<'a>(pods: &'a mut HashMap<String, Record>, uid: &str) -> &'a mut Record {
    pods.entry(uid.to_owned()).or_insert_with(|| Record {
        name: String::new(),
        namespace: String::new(),
        sandboxes: HashMap::new(),
        containers: HashMap::new(),
        inspecting: HashSet::new(),
        followed: HashSet::new(),
        uninspected: HashMap::new(),
        removed: HashMap::new(),
        failures: HashMap::new(),
        published: watch::Sender::new(Arc::new(ObservedPod {
            uid: uid.to_owned(),
            ..ObservedPod::default()
        })),
    })
}
