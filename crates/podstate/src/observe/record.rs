//! What is known of one pod, and what of it is shown.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use longshore_pod::observed::{Container, ObservedPod, Sandbox};
use tokio::sync::watch;
use tracing::{debug, warn};

/// So many looks that fail in a row are no passing trouble.
const PERSISTENT: u32 = 3;
/// Looks at one pod under way, of which it is not shown what each has found.
const MANY: usize = 64;

/// A fact and the moment at which it was asked for.
#[derive(Debug)]
pub(super) struct Seen<T> {
    pub(super) at: Instant,
    /// The state that lists show for it; a list with another one calls for a closer look.
    pub(super) listed: i32,
    pub(super) value: T,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) sandboxes: HashMap<String, Seen<Sandbox>>,
    pub(super) containers: HashMap<String, Seen<Container>>,
    /// Facts that are being looked up after a relist, by id.
    pub(super) looking: HashSet<String>,
    /// Containers whose end is awaited, by id.
    pub(super) followed: HashSet<String>,
    /// What is there and no look has seen yet, by id, and since when that is known.
    pub(super) unseen: HashMap<String, Instant>,
    /// How many looks have failed since the last one that did not, and the last error, by id.
    pub(super) failures: HashMap<String, (u32, String)>,
    pub(super) published: watch::Sender<Arc<ObservedPod>>,
}

impl Record {
    /// A look has found out about it.
    pub(super) fn seen(&mut self, id: &str) {
        self.unseen.remove(id);
        self.failures.remove(id);
    }

    /// A look has failed. The first few may be a passing trouble; saying the rest once is enough.
    pub(super) fn failed(&mut self, uid: &str, id: &str, error: &longshore_cri::Error) {
        let (failures, last) = self.failures.entry(id.to_owned()).or_default();
        *failures = failures.saturating_add(1);
        *last = error.to_string();
        if *failures == PERSISTENT {
            let (pod, namespace) = (&self.name, &self.namespace);
            warn!(%pod, namespace, uid, id, %error, "what runs of a pod cannot be seen");
        } else {
            debug!(uid, id, %error, "look failed");
        }
    }

    /// Note that something is there, if that is all that is known of it.
    pub(super) fn note(&mut self, uid: &str, id: &str, at: Instant) {
        let is_known = self.sandboxes.contains_key(id) || self.containers.contains_key(id);
        if !is_known && self.unseen.insert(id.to_owned(), at).is_none() {
            self.publish(uid);
        }
    }

    /// Show what a look has found, unless that is one of very many: while a pod is known in part,
    /// nobody acts upon it, and to show thousands of containers thousands of times takes too long.
    pub(super) fn publish_in_time(&self, uid: &str) {
        if self.unseen.len() <= MANY || self.looking.len() <= MANY {
            self.publish(uid);
        }
    }

    /// Show the same anew, without a word to those who wait for a change.
    pub(super) fn renew(&self) {
        self.published.send_if_modified(|published| {
            *published = Arc::new(ObservedPod::clone(published));
            false
        });
    }

    /// A look that a relist called for is over.
    pub(super) fn looked(&mut self, uid: &str, id: &str) {
        self.looking.remove(id);
        if self.looking.is_empty() {
            self.publish(uid);
        }
    }

    pub(super) fn publish(&self, uid: &str) {
        let mut sandboxes: Vec<Sandbox> =
            self.sandboxes.values().map(|seen| seen.value.clone()).collect();
        let mut containers: Vec<Container> =
            self.containers.values().map(|seen| seen.value.clone()).collect();
        sandboxes.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
        containers.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
        let pod = ObservedPod {
            uid: uid.to_owned(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            sandboxes,
            containers,
            partial: !self.unseen.is_empty(),
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
        looking: HashSet::new(),
        followed: HashSet::new(),
        unseen: HashMap::new(),
        failures: HashMap::new(),
        published: watch::Sender::new(Arc::new(ObservedPod {
            uid: uid.to_owned(),
            ..ObservedPod::default()
        })),
    })
}

pub(super) fn put<T>(map: &mut HashMap<String, Seen<T>>, id: String, seen: Seen<T>) {
    match map.get(&id) {
        Some(known) if known.at > seen.at => {}
        _ => {
            map.insert(id, seen);
        }
    }
}
