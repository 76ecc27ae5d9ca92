//! Folds repetitions together, as upstream does: the same event again counts up the first one; many
//! that differ in their message alone become one; and an object that will not be quiet is muted.
//!
//! Pure: it knows no clock but the one passed in.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use longshore_base::rate::TokenBucket;

use super::event_name;

/// Events of one object that pass at once, and how many more each second.
const SPAM_BURST: f64 = 25.0;
const SPAM_RATE: f64 = 1.0 / 300.0;
/// So many messages of one kind within the interval stay separate events; more are combined.
const SIMILAR: usize = 10;
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);
/// Objects and events remembered: the pods of a full node several times over.
const MAX_CACHED: usize = 1024;

/// What is remembered of an event that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) name: String,
    pub(super) count: i32,
}

/// The recent events.
#[derive(Debug, Default)]
pub(super) struct Correlator {
    hasher: RandomState,
    seen: Recent<Seen>,
    similar: Recent<Similar>,
    spam: Recent<TokenBucket>,
}

#[derive(Debug, Clone)]
struct Seen {
    written: Written,
    first: Option<Time>,
}

#[derive(Debug, Default)]
struct Similar {
    messages: HashSet<u64>,
    last: Option<Instant>,
}

impl Correlator {
    /// The event to write for a new one, with its key: itself, a repetition (its count is above 1 and
    /// its name that of the first), or nothing.
    pub(super) fn fold(&mut self, mut event: Event, now: Instant) -> Option<(u64, Event)> {
        let key = self.combine(&mut event, now);
        if let Some(seen) = self.seen.get(key, now) {
            event.metadata.name = Some(seen.written.name.clone());
            event.first_timestamp = seen.first.clone();
            event.count = Some(seen.written.count.saturating_add(1));
        }
        let written = Written {
            name: event.metadata.name.clone().unwrap_or_default(),
            count: event.count.unwrap_or(1),
        };
        self.seen.insert(key, now, Seen { written, first: event.first_timestamp.clone() });
        self.passes(&event, now).then_some((key, event))
    }

    /// Takes note of how the apiserver holds an event.
    pub(super) fn written(&mut self, key: u64, written: Written) {
        if let Some(seen) = self.seen.peek(key) {
            seen.written = written;
        }
    }

    /// The key of the event; one message too many turns it into the combined event of its kind.
    fn combine(&mut self, event: &mut Event, now: Instant) -> u64 {
        let kind = (object(&event.involved_object), &event.type_, &event.reason);
        let kind_key = self.hasher.hash_one((&kind, "combined"));
        let path = &event.involved_object.field_path;
        let own_key = self.hasher.hash_one((&kind, path, &event.message));
        let similar = self.similar.get_or_insert_with(kind_key, now, Similar::default);
        if similar.last.is_some_and(|last| now.saturating_duration_since(last) > SIMILAR_INTERVAL) {
            similar.messages.clear();
        }
        similar.last = Some(now);
        let message = self.hasher.hash_one(&event.message);
        if similar.messages.contains(&message) || similar.messages.len() + 1 < SIMILAR {
            similar.messages.insert(message);
            return own_key;
        }
        let at = event.last_timestamp.as_ref().map(|time| time.0).unwrap_or_default();
        let name = event.involved_object.name.as_deref().unwrap_or_default();
        event.metadata.name = Some(event_name(name, at));
        let message = event.message.take().unwrap_or_default();
        event.message = Some(format!("(combined from similar events): {message}"));
        kind_key
    }

    fn passes(&mut self, event: &Event, now: Instant) -> bool {
        let key = self.hasher.hash_one((object(&event.involved_object), &event.type_));
        self.spam
            .get_or_insert_with(key, now, || TokenBucket::new(SPAM_RATE, SPAM_BURST, now))
            .try_take(now)
    }
}

fn object(about: &ObjectReference) -> impl Hash + '_ {
    (&about.kind, &about.namespace, &about.name, &about.uid, &about.api_version)
}

/// A map that forgets what was not used for the longest time when it is full.
#[derive(Debug)]
struct Recent<V> {
    entries: HashMap<u64, (Instant, V)>,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { entries: HashMap::new() }
    }
}

impl<V> Recent<V> {
    fn get(&mut self, key: u64, now: Instant) -> Option<&mut V> {
        self.entries.get_mut(&key).map(|(used, value)| {
            *used = now;
            value
        })
    }

    fn peek(&mut self, key: u64) -> Option<&mut V> {
        self.entries.get_mut(&key).map(|(_, value)| value)
    }

    fn insert(&mut self, key: u64, now: Instant, value: V) {
        self.make_room(key);
        self.entries.insert(key, (now, value));
    }

    fn get_or_insert_with(&mut self, key: u64, now: Instant, make: impl FnOnce() -> V) -> &mut V {
        self.make_room(key);
        let (used, value) = self.entries.entry(key).or_insert_with(|| (now, make()));
        *used = now;
        value
    }

    fn make_room(&mut self, key: u64) {
        if self.entries.len() < MAX_CACHED || self.entries.contains_key(&key) {
            return;
        }
        // seldom, and over a short map: no second index is worth its memory
        let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
        oldest.map(|oldest| self.entries.remove(&oldest));
    }
}

#[cfg(test)]
impl Correlator {
    pub(super) fn remembered(&self) -> usize {
        self.seen.entries.len().max(self.similar.entries.len()).max(self.spam.entries.len())
    }
}
