//! Pods that wait for a node.
//!
//! - active: to be tried next, by priority and then by time;
//! - backoff: tried before, and to be tried again after a pause that doubles;
//! - unschedulable: no node fits; a change of the cluster that may help moves them on;
//! - gated: a plugin keeps them from being tried at all.
//!
//! A pod is in exactly one place from [`Queue::add`] to [`Queue::remove`]; while it is tried or bound
//! it is in flight. Times are spans since any fixed point.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use longshore_metrics::{Counter, Family, Gauge};

use crate::metrics::Metrics;
use crate::model::{Atom, Pod, Uid};

/// The event that first brings a pod.
const POD_ADD: &str = "UnschedulablePodAdd";
/// The event that an attempt failed.
const FAILURE: &str = "ScheduleAttemptFailure";
/// Pauses end together in windows of this length, so that priority counts among pods of a window.
const WINDOW: Duration = Duration::from_secs(1);

/// Where a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// To be tried next.
    Active,
    /// To be tried after a pause.
    Backoff,
    /// To be tried after a change.
    Unschedulable,
    /// Not to be tried.
    Gated,
    /// Being tried or bound.
    InFlight,
}

/// A pod of the queue.
#[derive(Debug, Clone)]
pub struct Queued {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Where it is.
    pub place: Place,
    /// When it was tried first.
    pub first_attempt: Option<Duration>,
    /// How often it was tried.
    pub attempts: u32,
    /// Plugins that rejected it at the last attempt.
    pub rejectors: Vec<&'static str>,
    since: Duration,
    number: u64,
    /// Whether its rejectors are counted in metrics.
    is_counted: bool,
    rejections: u32,
    errors: u32,
    backoff_until: Duration,
    /// Whether its preemption is being carried out, so that it is not tried yet.
    is_preempting: bool,
    /// Whether a change came that may help, while it was not free to be tried.
    is_requeued: bool,
    /// Whether it is tried again because it was unschedulable for too long.
    pub is_flushed: bool,
}

/// The order of pods to be tried.
type Key = (Reverse<i32>, Duration, u64, Uid);

impl Queued {
    fn key(&self) -> Key {
        (Reverse(self.pod.priority), self.since, self.number, self.pod.uid.clone())
    }
}

/// How an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// These plugins rejected the pod.
    Rejected(Vec<&'static str>),
    /// Something went wrong.
    Error,
}

/// How pods wait.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// The first pause.
    pub initial_backoff: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
    /// Whether a pod in backoff is tried early when there is nothing else to do.
    pub pops_from_backoff: bool,
    /// How long a pod is unschedulable before it is tried without a reason.
    pub max_unschedulable: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            pops_from_backoff: true,
            max_unschedulable: Duration::from_secs(300),
        }
    }
}

impl Waits {
    /// When the pause ends after that many failures.
    fn end(&self, now: Duration, count: u32) -> Duration {
        let end = now.saturating_add(pause(count, self.initial_backoff, self.max_backoff));
        if !self.pops_from_backoff || end.subsec_nanos() == 0 {
            return end;
        }
        Duration::from_secs(end.as_secs()).saturating_add(WINDOW)
    }
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    pods: HashMap<Uid, Queued>,
    active: BTreeSet<Key>,
    backoff: BTreeSet<(Duration, Key)>,
    unschedulable: HashSet<Uid>,
    gated: HashSet<Uid>,
    /// Pods for which room is being made.
    pub nominated: Nominated,
    waits: Waits,
    next_number: u64,
    /// Pods added, by queue and event.
    incoming: Family<Counter, 2>,
    /// Unschedulable pods, by plugin and profile.
    rejections: Family<Gauge, 2>,
}

impl Queue {
    /// An empty queue.
    pub fn new(waits: Waits, metrics: &Metrics) -> Self {
        Self {
            pods: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeSet::new(),
            unschedulable: HashSet::new(),
            gated: HashSet::new(),
            nominated: Nominated::default(),
            waits,
            next_number: 0,
            incoming: metrics.incoming.clone(),
            rejections: metrics.unschedulable.clone(),
        }
    }

    /// Numbers of pods that are active, in backoff, unschedulable and gated.
    pub fn sizes(&self) -> [usize; 4] {
        [self.active.len(), self.backoff.len(), self.unschedulable.len(), self.gated.len()]
    }

    /// The number of pods that are being tried or bound.
    pub fn in_flight(&self) -> usize {
        self.pods.len().saturating_sub(self.sizes().into_iter().sum())
    }

    /// A pod of the queue.
    pub fn get(&self, uid: &str) -> Option<&Queued> {
        self.pods.get(uid)
    }

    /// Pods that no node fits, and gated ones.
    pub fn rejected(&self) -> impl Iterator<Item = &Queued> {
        self.unschedulable.iter().chain(&self.gated).filter_map(|uid| self.pods.get(uid))
    }

    /// Pods that are not to be tried.
    pub fn gated(&self) -> impl Iterator<Item = &Queued> {
        self.gated.iter().filter_map(|uid| self.pods.get(uid))
    }

    /// Adds a pod, which a plugin may gate. One that is there is updated.
    pub fn add(&mut self, pod: Arc<Pod>, gated_by: Option<&'static str>, now: Duration) {
        if self.pods.contains_key(&pod.uid) {
            return self.update(pod, gated_by, ("UnschedulablePodUpdate", false), now);
        }
        self.next_number = self.next_number.saturating_add(1);
        self.nominated.set(&pod, None);
        let queued = Queued {
            place: Place::InFlight,
            first_attempt: None,
            attempts: 0,
            rejectors: Vec::new(),
            since: now,
            number: self.next_number,
            is_counted: false,
            rejections: 0,
            errors: 0,
            backoff_until: Duration::ZERO,
            is_preempting: false,
            is_requeued: false,
            is_flushed: false,
            pod,
        };
        let uid = queued.pod.uid.clone();
        self.pods.insert(uid.clone(), queued);
        match gated_by {
            Some(plugin) => self.gate(&uid, plugin, POD_ADD),
            None => self.put(&uid, Place::Active, POD_ADD),
        }
    }

    /// Updates a pod. One that is unschedulable is tried again if the change (`event`) helps it, and a gated
    /// one when no plugin gates it any more.
    pub fn update(
        &mut self,
        pod: Arc<Pod>,
        gated_by: Option<&'static str>,
        (event, helps): (&'static str, bool),
        now: Duration,
    ) {
        let uid = pod.uid.clone();
        let Some(place) = self.pods.get(&uid).map(|own| own.place) else {
            return self.add(pod, gated_by, now);
        };
        if place != Place::InFlight {
            self.nominated.set(&pod, None);
        }
        let from = self.take(&uid);
        if let Some(own) = self.pods.get_mut(&uid) {
            own.pod = pod;
        }
        match (from, gated_by) {
            (Place::InFlight, _) => {
                if let Some(own) = self.pods.get_mut(&uid) {
                    own.is_requeued |= helps;
                }
            }
            (Place::Gated, None) => {
                self.forgive(&uid);
                if let Some(own) = self.pods.get_mut(&uid) {
                    own.rejectors.clear();
                }
                self.put(&uid, Place::Active, event);
            }
            (Place::Gated, Some(_)) => self.insert(&uid, from),
            (_, Some(plugin)) => {
                self.forgive(&uid);
                self.gate(&uid, plugin, event);
            }
            (Place::Unschedulable, None) if helps => self.move_on(&uid, event, now),
            (from, None) => self.insert(&uid, from),
        }
    }

    /// A plugin keeps a pod from being tried.
    fn gate(&mut self, uid: &Uid, plugin: &'static str, event: &'static str) {
        self.reject(uid, vec![plugin]);
        self.put(uid, Place::Gated, event);
    }

    /// Plugins reject a pod.
    fn reject(&mut self, uid: &str, rejectors: Vec<&'static str>) {
        let Some(own) = self.pods.get_mut(uid) else { return };
        for plugin in &rejectors {
            self.rejections.with([plugin, &own.pod.scheduler]).add(1.0);
        }
        own.rejectors = rejectors;
        own.is_counted = true;
    }

    /// The rejection of a pod does not count any more: it is tried again, or gone.
    fn forgive(&mut self, uid: &str) {
        let Some(own) = self.pods.get_mut(uid) else { return };
        if std::mem::take(&mut own.is_counted) {
            for plugin in &own.rejectors {
                self.rejections.with([plugin, &own.pod.scheduler]).add(-1.0);
            }
        }
    }

    /// Takes a pod out: it is bound, or gone.
    pub fn remove(&mut self, uid: &str) -> Option<Queued> {
        self.nominated.remove(uid);
        self.take(uid);
        self.forgive(uid);
        self.pods.remove(uid)
    }

    /// The pod to be tried next, which is then in flight. Without active ones a pod in backoff that
    /// was rejected before is next, as nothing else is there to do.
    pub fn pop(&mut self, now: Duration) -> Option<Queued> {
        self.end_backoffs(now);
        let uid = match self.active.pop_first() {
            Some((.., uid)) => uid,
            None if !self.waits.pops_from_backoff => return None,
            None => {
                let early = |(_, (.., uid)): &&(Duration, Key)| {
                    self.pods.get(uid).is_some_and(|own| !own.rejectors.is_empty())
                };
                let entry = self.backoff.iter().find(early)?.clone();
                self.backoff.remove(&entry);
                self.incoming.with(["active", "PopFromBackoffQ"]).inc();
                entry.1.3
            }
        };
        self.forgive(&uid);
        let own = self.pods.get_mut(&uid)?;
        own.place = Place::InFlight;
        own.attempts = own.attempts.saturating_add(1);
        own.first_attempt.get_or_insert(now);
        own.is_requeued = false;
        Some(own.clone())
    }

    /// The attempt failed: the pod waits for a change, or for a pause.
    pub fn fail(&mut self, uid: &str, failure: Failure, now: Duration) {
        if self.pods.get(uid).is_none_or(|own| own.place != Place::InFlight) {
            return;
        }
        let is_error = failure == Failure::Error;
        if let Failure::Rejected(rejectors) = failure {
            self.reject(uid, rejectors);
        }
        let Some(own) = self.pods.get_mut(uid) else { return };
        own.since = now;
        own.is_flushed = false;
        let count = if is_error {
            own.rejectors.clear();
            own.errors = own.errors.saturating_add(1);
            own.errors
        } else {
            own.rejections = own.rejections.saturating_add(1);
            own.errors = 0;
            own.rejections
        };
        own.backoff_until = self.waits.end(now, count);
        let own_uid = own.pod.uid.clone();
        if is_error || std::mem::take(&mut own.is_requeued) {
            self.move_on(&own_uid, FAILURE, now);
        } else {
            self.put(&own_uid, Place::Unschedulable, FAILURE);
        }
    }

    /// Whether no pod waits for a change.
    pub fn is_unschedulable_empty(&self) -> bool {
        self.unschedulable.is_empty()
    }

    /// Preemption for the pod begins: it is not tried until that is done.
    pub fn set_preempting(&mut self, uid: &str) {
        if let Some(own) = self.pods.get_mut(uid) {
            own.is_preempting = true;
        }
    }

    /// Preemption for the pod is carried out.
    pub fn preempted(&mut self, uid: &str, now: Duration) {
        let Some(own) = self.pods.get_mut(uid) else { return };
        own.is_preempting = false;
        if std::mem::take(&mut own.is_requeued) && own.place == Place::Unschedulable {
            let uid = own.pod.uid.clone();
            self.take(&uid);
            self.move_on(&uid, "AssignedPodDelete", now);
        }
    }

    /// Moves on those unschedulable pods that a change may help.
    pub fn requeue(
        &mut self,
        event: &'static str,
        now: Duration,
        mut helps: impl FnMut(&Queued) -> bool,
    ) {
        if self.unschedulable.is_empty() {
            return;
        }
        let all = self.unschedulable.iter().filter_map(|uid| self.pods.get(uid));
        let helped: Vec<Uid> =
            all.filter(|own| helps(own)).map(|own| own.pod.uid.clone()).collect();
        for uid in helped {
            match self.pods.get_mut(&uid) {
                Some(own) if own.is_preempting => own.is_requeued = true,
                _ => {
                    self.take(&uid);
                    self.move_on(&uid, event, now);
                }
            }
        }
    }

    /// Moves on pods that have been unschedulable for too long.
    pub fn flush(&mut self, now: Duration) {
        let longest = self.waits.max_unschedulable;
        let is_late = |own: &Queued| now.saturating_sub(own.since) > longest;
        for uid in &self.unschedulable {
            if let Some(own) = self.pods.get_mut(uid).filter(|own| is_late(own)) {
                own.is_flushed = true;
            }
        }
        self.requeue("UnschedulableTimeout", now, is_late);
    }

    /// When the next pause ends.
    pub fn next_backoff(&self) -> Option<Duration> {
        self.backoff.first().map(|(until, _)| *until)
    }

    /// Makes those active whose pause is over.
    pub fn end_backoffs(&mut self, now: Duration) {
        while let Some((until, _)) = self.backoff.first()
            && *until <= now
        {
            if let Some((_, (.., uid))) = self.backoff.pop_first() {
                self.put(&uid, Place::Active, "BackoffComplete");
            }
        }
    }

    fn move_on(&mut self, uid: &Uid, event: &'static str, now: Duration) {
        let is_paused = self.pods.get(uid).is_some_and(|own| own.backoff_until > now);
        self.put(uid, if is_paused { Place::Backoff } else { Place::Active }, event);
    }

    /// Puts a pod into a place where it has not been.
    fn put(&mut self, uid: &Uid, place: Place, event: &'static str) {
        self.insert(uid, place);
        let queue = match place {
            Place::Active => "active",
            Place::Backoff => "backoff",
            Place::Unschedulable | Place::Gated => "unschedulable",
            Place::InFlight => return,
        };
        self.incoming.with([queue, event]).inc();
    }

    fn insert(&mut self, uid: &Uid, place: Place) {
        let Some(own) = self.pods.get_mut(uid) else { return };
        own.place = place;
        match place {
            Place::Active => drop(self.active.insert(own.key())),
            Place::Backoff => drop(self.backoff.insert((own.backoff_until, own.key()))),
            Place::Unschedulable => drop(self.unschedulable.insert(uid.clone())),
            Place::Gated => drop(self.gated.insert(uid.clone())),
            Place::InFlight => {}
        }
    }

    /// Takes a pod from its place; in flight it has none.
    fn take(&mut self, uid: &str) -> Place {
        let Some(own) = self.pods.get_mut(uid) else { return Place::InFlight };
        let place = std::mem::replace(&mut own.place, Place::InFlight);
        match place {
            Place::Active => {
                self.active.remove(&own.key());
            }
            Place::Backoff => {
                self.backoff.remove(&(own.backoff_until, own.key()));
            }
            Place::Unschedulable => {
                self.unschedulable.remove(uid);
            }
            Place::Gated => {
                self.gated.remove(uid);
            }
            Place::InFlight => {}
        }
        place
    }
}

/// The pause after that many failures.
fn pause(count: u32, initial: Duration, max: Duration) -> Duration {
    let doublings = count.saturating_sub(1);
    let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
    initial.checked_mul(factor).unwrap_or(max).min(max)
}

/// Pods for which room is being made on a node. They count there for pods of no higher priority.
#[derive(Debug, Default)]
pub struct Nominated {
    on: HashMap<Atom, Vec<Arc<Pod>>>,
    node: HashMap<Uid, Atom>,
}

impl Nominated {
    /// Nominates a pod for a node: the one given, or that of its status.
    pub fn set(&mut self, pod: &Arc<Pod>, node: Option<&Atom>) {
        self.remove(&pod.uid);
        let Some(node) = node.or(pod.nominated_node.as_ref()) else { return };
        self.on.entry(node.clone()).or_default().push(pod.clone());
        self.node.insert(pod.uid.clone(), node.clone());
    }

    /// The pod is nominated for no node any more.
    pub fn remove(&mut self, uid: &str) {
        let Some(node) = self.node.remove(uid) else { return };
        if let Some(pods) = self.on.get_mut(&node) {
            pods.retain(|pod| *pod.uid != *uid);
            if pods.is_empty() {
                self.on.remove(&node);
            }
        }
    }

    /// Pods nominated for a node.
    pub fn on(&self, node: &Atom) -> &[Arc<Pod>] {
        if self.on.is_empty() {
            return &[];
        }
        self.on.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The node that a pod is nominated for.
    pub fn node_of(&self, uid: &str) -> Option<&Atom> {
        self.node.get(uid)
    }
}

#[cfg(test)]
mod tests;
