//! The scheduler without I/O: changes of the cluster and outcomes of actions go in, actions come out.
//!
//! One attempt is [`Scheduler::begin`] (a pod, and the nodes that fit), [`Scheduler::candidates`] if
//! none fits, and [`Scheduler::finish`]; extenders are called between these. Times are spans since any
//! fixed point.

mod bindings;
mod changes;

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::cache::{Cache, Snapshot};
use crate::events::ClusterEvent;
use crate::framework::{
    Candidate, Code, Cycle, Diagnosis, FILTER, Failed, Filters, PostFilter, Profile, Status,
    enough_nodes, status_name,
};
use crate::metrics::{Metrics, Recorder, SKIP, SUCCESS};
use crate::model::{
    Atom, ClaimKey, ClaimUse, DeviceReservation, NodeInfo, Objects, Pod, ResourceClaim, Uid,
};
use crate::plugins::preemption::cheapest;
use crate::queue::{Failure, Queue, Queued, Waits};

pub use self::changes::Change;

/// The longest note of an event.
const MAX_NOTE: usize = 1024;
/// The reason of the condition when no node fits.
const UNSCHEDULABLE: &str = "Unschedulable";
/// The reason of the condition when something went wrong.
const ERROR: &str = "SchedulerError";
/// What rejects pods while there is no node.
const NO_NODES: &str = "no nodes";
/// Names of extension points in metrics.
const PRE_ENQUEUE: &str = "PreEnqueue";
const RESERVE: &str = "Reserve";
const PERMIT: &str = "Permit";
const PRE_BIND_PRE_FLIGHT: &str = "PreBindPreFlight";
const PRE_BIND: &str = "PreBind";
const BIND: &str = "Bind";
const POST_BIND: &str = "PostBind";
const UNRESERVE: &str = "Unreserve";
/// In how many attempts of a hundred each call of a plugin is timed.
const PLUGIN_SAMPLES: u64 = 10;
/// How often pods are looked for that are unschedulable for too long.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);

/// What is to be done to the API.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Bind a pod to a node. Answered by [`Outcome::Bound`] or [`Outcome::Failed`].
    Bind {
        /// The pod.
        pod: Arc<Pod>,
        /// The node.
        node: Atom,
    },
    /// Ask for volumes of a pod, and reserve devices for it. Answered by [`Outcome::Prepared`] or
    /// [`Outcome::Failed`].
    PreBind {
        /// The pod.
        pod: Arc<Pod>,
        /// The node.
        node: Atom,
        /// Volumes that are to refer to claims.
        volumes: Vec<VolumeRequest>,
        /// Claims that are to be provisioned for the node, with the versions known.
        claims: Vec<(ClaimKey, Box<str>)>,
        /// Claims for devices that are to be allocated, or reserved for the pod.
        devices: Vec<DeviceReservation>,
        /// Whether the pod waits for devices to be prepared then.
        waits: bool,
        /// Whether the pod's status is to name the node first.
        nominates: bool,
    },
    /// Take back what was reserved for a pod that was not bound.
    Unreserve {
        /// The pod.
        pod: Arc<Pod>,
        /// Claims for devices, with their UIDs.
        claims: Vec<(ClaimKey, Box<str>)>,
    },
    /// Take devices from a claim that nobody but this pod uses.
    Deallocate {
        /// The pod.
        pod: Arc<Pod>,
        /// The claim.
        claim: ClaimKey,
        /// Its UID.
        uid: Box<str>,
    },
    /// Delete a claim that was made for a pod.
    DeleteClaim {
        /// The claim.
        claim: ClaimKey,
        /// Its UID.
        uid: Box<str>,
    },
    /// Report that a pod could not be scheduled.
    Report {
        /// The pod.
        pod: Arc<Pod>,
        /// The reason of the condition `PodScheduled`, or none if it stays.
        condition: Option<&'static str>,
        /// The message of the condition.
        message: String,
        /// The note of the event `FailedScheduling`, if there is to be one.
        note: Option<String>,
        /// What `nominatedNodeName` is to be, if it changes.
        nomination: Option<Option<Atom>>,
    },
    /// Delete pods to make room for another. Answered by [`Outcome::Preempted`].
    Preempt {
        /// The pod that needs room.
        pod: Arc<Pod>,
        /// The node.
        node: Atom,
        /// The pods.
        victims: Vec<Arc<Pod>>,
        /// Pods that lose the node before they are bound to it, and stay.
        unbound: Vec<Arc<Pod>>,
    },
}

/// A volume that is to refer to a claim.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeRequest {
    /// The volume.
    pub name: Atom,
    /// The version known.
    pub version: Box<str>,
    /// The claim.
    pub claim: ClaimKey,
    /// The claim's UID.
    pub uid: Box<str>,
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A pod is bound.
    Bound(Uid),
    /// Volumes of a pod are asked for, and these claims for devices are reserved for it.
    Prepared(Uid, Vec<ResourceClaim>),
    /// Not all claims of a pod could be reserved, with the reason; these were.
    Unprepared(Uid, String, Vec<ResourceClaim>),
    /// A pod could not be bound, or what it claims not be had.
    Failed(Uid, String),
    /// Pods were deleted for this one; whether all were.
    Preempted(Uid, bool),
}

/// An attempt to schedule a pod.
#[derive(Debug)]
pub struct Attempt {
    queued: Queued,
    /// Places of nodes that fit.
    pub fitting: Vec<usize>,
    /// Why others do not.
    pub diagnosis: Diagnosis,
    started: Duration,
    error: Option<String>,
    nomination: Option<Option<Atom>>,
    /// Whether each call of a plugin is timed.
    is_sampled: bool,
    /// Whether no other node was looked at than the one that the pod is nominated for.
    is_nominated: bool,
}

impl Attempt {
    /// The pod.
    pub fn pod(&self) -> &Arc<Pod> {
        &self.queued.pod
    }

    /// A node does not fit. If its filter failed, so does the attempt.
    fn reject(&mut self, node: usize, status: Status) {
        if status.code == Code::Error {
            let (plugin, reason) = (status.plugin, status.message());
            self.fail(format!("running \"{plugin}\" filter plugin: {reason}"));
        } else {
            self.diagnosis.set(node, status);
        }
    }

    /// Something went wrong: the attempt ends with this error.
    pub(crate) fn fail(&mut self, error: String) {
        self.fitting.clear();
        self.error = Some(error);
    }
}

/// A pod that is being bound.
#[derive(Debug)]
struct Binding {
    assumed: Arc<Pod>,
    original: Arc<Pod>,
    node: Atom,
    claims: ClaimUse,
    /// The claim that was made for the pod, and its UID.
    made: Option<(ClaimKey, Box<str>)>,
    /// Claims of which the selected node has been seen.
    seen: Vec<ClaimKey>,
    /// From when and until when volumes may take to be bound and devices to be prepared, once they are asked
    /// for.
    claims_wait: Option<(Duration, Duration)>,
    /// Whether volumes or devices are still to be prepared.
    is_preparing: bool,
    /// Whether another pod is to have the room, once it is known what was asked for.
    is_preempted: bool,
    started: Duration,
    /// Since when the current action is under way.
    since: Duration,
    attempts: u32,
    first_attempt: Duration,
    /// Whether the pod was tried for no other reason than that it had waited for too long.
    is_flushed: bool,
}

/// Settings of a scheduler.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How pods wait in the queue.
    pub waits: Waits,
    /// Whether a pod names its node in its status while its volumes and devices are prepared.
    pub nominates_expected: bool,
    /// How long volumes of a pod may take to be bound.
    pub volumes_timeout: Duration,
    /// How long a binding may stay unseen; `None`: for ever.
    pub assumed_ttl: Option<Duration>,
    /// Whether extenders filter or score nodes.
    pub has_extenders: bool,
    /// The time of the point that spans are since.
    pub epoch: Timestamp,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            waits: Waits::default(),
            nominates_expected: true,
            volumes_timeout: Duration::from_secs(600),
            assumed_ttl: None,
            has_extenders: false,
            epoch: Timestamp::UNIX_EPOCH,
        }
    }
}

/// The scheduler.
#[derive(Debug)]
pub struct Scheduler {
    profiles: HashMap<Atom, Profile>,
    settings: Settings,
    cache: Cache,
    snapshot: Snapshot,
    objects: Objects,
    queue: Queue,
    bindings: HashMap<Uid, Binding>,
    /// Since when pods are deleted for others.
    preemptions: HashMap<Uid, Duration>,
    actions: Vec<Action>,
    metrics: Metrics,
    next_start: usize,
    random: u64,
    flushed: Duration,
}

impl Scheduler {
    /// A scheduler that knows nothing yet.
    pub fn new(profiles: Vec<Profile>, settings: Settings, metrics: Metrics) -> Self {
        Self {
            queue: Queue::new(settings.waits, &metrics),
            cache: Cache::new(settings.assumed_ttl),
            profiles: profiles.into_iter().map(|own| (own.name.clone(), own)).collect(),
            settings,
            snapshot: Snapshot::default(),
            objects: Objects::default(),
            bindings: HashMap::new(),
            preemptions: HashMap::new(),
            actions: Vec::new(),
            metrics,
            next_start: 0,
            random: RandomState::new().hash_one(0u8) | 1,
            flushed: Duration::ZERO,
        }
    }

    /// Actions that have come up.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The nodes of the attempt that is under way.
    pub fn nodes(&self) -> &[Arc<NodeInfo>] {
        self.snapshot.nodes()
    }

    /// Numbers of pods that are active, in backoff, unschedulable and gated.
    pub fn pending(&self) -> [usize; 4] {
        self.queue.sizes()
    }

    /// When there is something to do, if no change comes before; `None`: never.
    pub fn wake_at(&self) -> Option<Duration> {
        let [active, ..] = self.queue.sizes();
        if active > 0 {
            return Some(Duration::ZERO);
        }
        let timeouts = self.bindings.values().filter_map(|own| Some(own.claims_wait?.1));
        let flush = (!self.queue.is_unschedulable_empty())
            .then(|| self.flushed.saturating_add(FLUSH_INTERVAL));
        timeouts.chain(self.queue.next_backoff()).chain(flush).min()
    }

    fn set_clock(&mut self, now: Duration) {
        self.objects.clock = self.settings.epoch.checked_add(now).unwrap_or(Timestamp::MAX);
    }

    /// Does what is due by time.
    pub fn tick(&mut self, now: Duration) {
        self.set_clock(now);
        self.queue.end_backoffs(now);
        if now.saturating_sub(self.flushed) >= FLUSH_INTERVAL {
            self.flushed = now;
            self.queue.flush(now);
        }
        for pod in self.cache.expire(now) {
            self.requeue(ClusterEvent::PodDeleted(&pod), now);
        }
        self.end_bindings(now);
        self.record_sizes();
    }

    /// Sets the gauges of queues and cache.
    pub fn record_sizes(&self) {
        self.metrics.sizes(self.queue.sizes(), self.cache.sizes(), self.bindings.len());
        self.metrics.in_flight(self.queue.in_flight());
    }

    /// Moves on pods that an event may help. Returns its name in metrics.
    fn requeue(&mut self, event: ClusterEvent<'_>, now: Duration) -> &'static str {
        let (profiles, hints, label) = (&self.profiles, &self.metrics.hints, event.label());
        self.queue.requeue(label, now, |own| {
            profiles
                .get(&own.pod.scheduler)
                .is_some_and(|profile| profile.may_help(event, &own.pod, &own.rejectors, hints))
        });
        label
    }

    /// Takes the next pod and finds the nodes that fit; `None`: no pod is to be tried.
    pub fn begin(&mut self, now: Duration) -> Option<Attempt> {
        let queued = loop {
            let queued = self.queue.pop(now)?;
            if queued.pod.is_deleting {
                let note = format!("skip schedule deleting pod: {}", queued.pod.key());
                self.queue.remove(&queued.pod.uid);
                self.actions.push(Action::Report {
                    pod: queued.pod,
                    condition: None,
                    message: String::new(),
                    note: Some(note),
                    nomination: None,
                });
                continue;
            }
            if self.cache.is_assumed(&queued.pod.uid) {
                continue;
            }
            break queued;
        };
        self.cache.update(&mut self.snapshot);
        let total = self.snapshot.nodes().len();
        let mut attempt = Attempt {
            queued,
            fitting: Vec::new(),
            diagnosis: Diagnosis { total, ..Diagnosis::default() },
            started: now,
            error: None,
            nomination: None,
            is_sampled: self.next_random() % 100 < PLUGIN_SAMPLES,
            is_nominated: true,
        };
        self.find(&mut attempt);
        Some(attempt)
    }

    /// Looks at all nodes, if extenders have rejected the one that the pod is nominated for and no other was
    /// looked at. `false`: nothing has changed.
    pub fn widen(&mut self, attempt: &mut Attempt) -> bool {
        let was_nominated = std::mem::take(&mut attempt.is_nominated);
        let is_over = !attempt.fitting.is_empty() || attempt.error.is_some();
        if !was_nominated || is_over {
            return false;
        }
        self.find(attempt);
        true
    }

    /// Finds the nodes that fit: the one that the pod is nominated for, if `is_nominated`, or any.
    fn find(&mut self, attempt: &mut Attempt) {
        let tries_nominated = std::mem::take(&mut attempt.is_nominated);
        let total = attempt.diagnosis.total;
        let pod = &attempt.queued.pod.clone();
        let Some(profile) = self.profiles.get(&pod.scheduler) else {
            let name = &pod.scheduler;
            attempt.error = Some(format!("profile not found for scheduler name \"{name}\""));
            return;
        };
        if total == 0 {
            return;
        }
        let cycle = Cycle {
            pod,
            snapshot: &self.snapshot,
            objects: &self.objects,
            nominated: &self.queue.nominated,
            recorder: self.metrics.recorder(&pod.scheduler, attempt.is_sampled),
        };
        let mut filters = match Filters::prepare(profile, cycle) {
            Ok(filters) => filters,
            Err(status) if status.code == Code::Error => {
                let (plugin, reason) = (status.plugin, status.message());
                attempt.error = Some(format!("running PreFilter plugin \"{plugin}\": {reason}"));
                return;
            }
            Err(status) => {
                attempt.diagnosis.pre_filter = Some(status.message());
                attempt.diagnosis.rejectors.insert(status.plugin);
                attempt.diagnosis.others = Some(status);
                return;
            }
        };
        filters.count_evaluations();
        self.metrics.batches.begin(&pod.scheduler);
        let filter = || {
            let nodes = self.snapshot.nodes();
            let own_node = self.queue.nominated.node_of(&pod.uid).or(pod.nominated_node.as_ref());
            let own_node = own_node.filter(|_| tries_nominated);
            if let Some(position) = own_node.and_then(|name| self.snapshot.position(name))
                && let Some(info) = nodes.get(position)
                && filters.check(cycle, info).is_ok()
            {
                attempt.fitting.push(position);
                attempt.is_nominated = true;
                return;
            }
            if let Some(only) = filters.only.take() {
                attempt.diagnosis.rejectors.extend(&filters.limited_by);
                let names = filters.limited_by.join(" ");
                attempt.diagnosis.others = Some(Status::new(
                    Code::Unresolvable,
                    format!("node(s) didn't satisfy plugin(s) [{names}]"),
                ));
                for position in only {
                    if let Some(info) = nodes.get(position) {
                        match filters.check(cycle, info) {
                            Ok(()) => attempt.fitting.push(position),
                            Err(status) => attempt.reject(position, status),
                        }
                    }
                }
                return;
            }
            let enough = if profile.scores.is_empty() && !self.settings.has_extenders {
                1
            } else {
                enough_nodes(profile.percentage, total)
            };
            let mut seen = 0;
            for index in 0..total {
                if attempt.fitting.len() >= enough || attempt.error.is_some() {
                    break;
                }
                let position = (self.next_start + index) % total;
                let Some(info) = nodes.get(position) else { continue };
                seen += 1;
                match filters.check(cycle, info) {
                    Ok(()) => attempt.fitting.push(position),
                    Err(status) => attempt.reject(position, status),
                }
            }
            self.next_start = (self.next_start + seen) % total;
        };
        cycle.recorder.point(FILTER, |()| SUCCESS, filter);
    }

    /// What would make room for a pod that no node fits; empty if nothing would.
    pub fn candidates(&mut self, attempt: &mut Attempt) -> Vec<Candidate> {
        if attempt.error.is_some() || attempt.diagnosis.total == 0 || !attempt.fitting.is_empty() {
            return Vec::new();
        }
        let (metrics, profile) = (self.metrics.clone(), attempt.queued.pod.scheduler.clone());
        let status = |found: &Vec<Candidate>| match found.is_empty() {
            true => Code::Unschedulable.name(),
            false => SUCCESS,
        };
        let run = || self.post_filter(attempt);
        metrics.recorder(&profile, false).point("PostFilter", status, run)
    }

    fn post_filter(&mut self, attempt: &mut Attempt) -> Vec<Candidate> {
        let offset = self.next_random();
        let pod = &attempt.queued.pod;
        let Some(profile) = self.profiles.get(&pod.scheduler) else { return Vec::new() };
        if profile.post_filters.is_empty() {
            return Vec::new();
        }
        let cycle = Cycle {
            pod,
            snapshot: &self.snapshot,
            objects: &self.objects,
            nominated: &self.queue.nominated,
            // the filters are prepared again: that is part of this point
            recorder: Recorder::default(),
        };
        let mut filters = Filters::prepare(profile, cycle).ok();
        let mut reasons = Vec::new();
        for plugin in &profile.post_filters {
            let mut failed = Failed {
                diagnosis: &attempt.diagnosis,
                filters: filters.as_mut(),
                offset: usize::try_from(offset >> 33).unwrap_or(0),
            };
            match plugin.post_filter(cycle, &mut failed) {
                PostFilter::Preempt(candidates) => return candidates,
                PostFilter::Deallocate(claim, uid) => {
                    let pod = pod.clone();
                    self.actions.push(Action::Deallocate { pod, claim, uid });
                    reasons.push(Cow::Borrowed("deallocation of ResourceClaim completed"));
                }
                PostFilter::Delete(claims) => {
                    let delete = |(claim, uid)| Action::DeleteClaim { claim, uid };
                    self.actions.extend(claims.into_iter().map(delete));
                    reasons.push(Cow::Borrowed("deletion of ResourceClaim completed"));
                }
                PostFilter::Nothing(reason, clears) => {
                    if clears {
                        attempt.nomination = Some(None);
                    }
                    if !reason.is_empty() {
                        reasons.push(reason);
                    }
                }
            }
        }
        self.metrics.preemption_attempts.inc();
        attempt.diagnosis.post_filter = reasons.join(", ");
        Vec::new()
    }

    /// Ends an attempt: binds to the best node that fits, makes room, or reports why not. `scores` of
    /// extenders are added to those of the nodes that fit, in their order.
    pub fn finish(
        &mut self,
        mut attempt: Attempt,
        candidates: Vec<Candidate>,
        scores: Option<Vec<i64>>,
        now: Duration,
    ) {
        self.metrics.algorithm.took(now.saturating_sub(attempt.started));
        if let Some(error) = attempt.error.take() {
            if error.contains("\"VolumeBinding\"") {
                self.metrics.volume_failures.with(["predicate"]).inc();
            }
            self.fail(&attempt, Failure::Error, error, Some(None), now);
        } else if attempt.diagnosis.total == 0 {
            let message = "no nodes available to schedule pods".to_owned();
            self.fail(&attempt, Failure::Rejected(vec![NO_NODES]), message, Some(None), now);
        } else if attempt.fitting.is_empty() {
            self.make_room(attempt, candidates, now);
        } else {
            let position = self.choose(&attempt, scores);
            let profile = &attempt.queued.pod.scheduler;
            self.metrics.batches.flush(profile, attempt.fitting.len());
            self.bind(attempt, position, now);
        }
    }

    fn choose(&mut self, attempt: &Attempt, extra: Option<Vec<i64>>) -> usize {
        let (&first, others) = match attempt.fitting.split_first() {
            Some((first, others)) => (first, others),
            None => return 0,
        };
        let pod = &attempt.queued.pod;
        let Some(profile) = self.profiles.get(&pod.scheduler).filter(|_| !others.is_empty()) else {
            return first;
        };
        let cycle = Cycle {
            pod,
            snapshot: &self.snapshot,
            objects: &self.objects,
            nominated: &self.queue.nominated,
            recorder: self.metrics.recorder(&pod.scheduler, attempt.is_sampled),
        };
        let infos: Vec<&NodeInfo> = attempt
            .fitting
            .iter()
            .filter_map(|position| self.snapshot.nodes().get(*position))
            .map(|info| &**info)
            .collect();
        let mut scores = profile.score(cycle, &infos);
        for (score, extra) in scores.iter_mut().zip(extra.into_iter().flatten()) {
            *score = score.saturating_add(extra);
        }
        let best = scores.iter().copied().max().unwrap_or(0);
        let ties = scores.iter().filter(|score| **score == best).count().max(1);
        let chosen = usize::try_from(self.next_random() >> 33).unwrap_or(0) % ties;
        let mut best_ones =
            attempt.fitting.iter().zip(&scores).filter(|(_, score)| **score == best);
        best_ones.nth(chosen).map_or(first, |(position, _)| *position)
    }

    fn bind(&mut self, mut attempt: Attempt, position: usize, now: Duration) {
        let Some(info) = self.snapshot.nodes().get(position).cloned() else { return };
        let pod = attempt.queued.pod.clone();
        let Some(profile) = self.profiles.get(&pod.scheduler) else { return };
        let cycle = Cycle {
            pod: &pod,
            snapshot: &self.snapshot,
            objects: &self.objects,
            nominated: &self.queue.nominated,
            recorder: self.metrics.recorder(&pod.scheduler, attempt.is_sampled),
        };
        let claims = match reserve(profile, cycle, &info) {
            Ok(claims) => claims,
            Err(status) => {
                let failure = match status.code {
                    Code::Error => Failure::Error,
                    _ => Failure::Rejected(vec![status.plugin]),
                };
                attempt.diagnosis =
                    Diagnosis { total: 1, others: Some(status), ..Diagnosis::default() };
                let message = attempt.diagnosis.message();
                return self.fail(&attempt, failure, message, Some(None), now);
            }
        };
        self.metrics.permitted();
        let assumed = Arc::new(pod.on(&info.name));
        if let Err(error) = self.cache.assume(assumed.clone(), &info.name) {
            return self.fail(&attempt, Failure::Error, error.to_string(), Some(None), now);
        }
        self.queue.nominated.remove(&pod.uid);
        self.objects.assume(&claims);
        let node = info.name.clone();
        let is_preparing = !claims.is_empty();
        if self.settings.nominates_expected {
            let status = if is_preparing { SUCCESS } else { SKIP };
            self.metrics.point(PRE_BIND_PRE_FLIGHT, status, &pod.scheduler, Duration::ZERO);
        }
        if !is_preparing {
            self.metrics.point(PRE_BIND, SUCCESS, &pod.scheduler, Duration::ZERO);
        }
        let (action, original) = self.request(pod, &node, &claims);
        self.actions.push(action);
        self.bindings.insert(
            original.uid.clone(),
            Binding {
                assumed,
                original,
                node,
                claims,
                made: None,
                seen: Vec::new(),
                claims_wait: None,
                is_preparing,
                is_preempted: false,
                started: attempt.started,
                since: now,
                attempts: attempt.queued.attempts,
                first_attempt: attempt.queued.first_attempt.unwrap_or(attempt.started),
                is_flushed: attempt.queued.is_flushed,
            },
        );
    }

    fn make_room(&mut self, attempt: Attempt, candidates: Vec<Candidate>, now: Duration) {
        let rejectors = attempt.diagnosis.rejectors.iter().copied().collect();
        let message = attempt.diagnosis.message();
        let failure = Failure::Rejected(rejectors);
        let Some(Candidate { node, victims, .. }) = cheapest(candidates) else {
            let nomination = attempt.nomination.clone();
            return self.fail(&attempt, failure, message, nomination, now);
        };
        self.metrics.preemption_attempts.inc();
        let pod = attempt.queued.pod.clone();
        // Those of lower priority that wait for the same node wait in vain.
        let demoted: Vec<Arc<Pod>> = self
            .queue
            .nominated
            .on(&node)
            .iter()
            .filter(|other| other.priority < pod.priority)
            .cloned()
            .collect();
        for other in demoted {
            self.queue.nominated.remove(&other.uid);
            if other.nominated_node.is_some() {
                self.actions.push(Action::Report {
                    pod: other,
                    condition: None,
                    message: String::new(),
                    note: None,
                    nomination: Some(None),
                });
            }
        }
        let victims = victims.into_iter().filter(|victim| !victim.is_deleting);
        let (unbound, victims): (Vec<_>, Vec<_>) =
            victims.partition(|victim| self.is_preparing(&victim.uid));
        self.fail(&attempt, failure, message, Some(Some(node.clone())), now);
        let count = victims.len().saturating_add(unbound.len());
        if count > 0 {
            #[allow(clippy::cast_precision_loss, reason = "a number of pods")]
            self.metrics.victims.observe(count as f64);
            self.queue.set_preempting(&pod.uid);
            self.preemptions.insert(pod.uid.clone(), now);
            for victim in &unbound {
                self.preempt_binding(&victim.uid, now);
            }
            self.actions.push(Action::Preempt { pod, node, victims, unbound });
        }
    }

    /// Reports a failed attempt, and puts the pod back.
    fn fail(
        &mut self,
        attempt: &Attempt,
        failure: Failure,
        message: String,
        nomination: Option<Option<Atom>>,
        now: Duration,
    ) {
        let took = now.saturating_sub(attempt.started);
        self.put_back(&attempt.queued.pod, failure, message, nomination, took, now);
    }

    fn put_back(
        &mut self,
        tried: &Arc<Pod>,
        failure: Failure,
        message: String,
        nomination: Option<Option<Atom>>,
        took: Duration,
        now: Duration,
    ) {
        let reason = match failure {
            Failure::Rejected(_) => UNSCHEDULABLE,
            Failure::Error => ERROR,
        };
        self.metrics.attempt(reason == ERROR, &tried.scheduler, took);
        // It may have changed since it was taken, or be gone.
        let Some(pod) = self.queue.get(&tried.uid).map(|own| own.pod.clone()) else { return };
        self.queue.fail(&pod.uid, failure, now);
        if let Some(nomination) = &nomination {
            match nomination {
                Some(node) => self.queue.nominated.set(&pod, Some(node)),
                None => self.queue.nominated.remove(&pod.uid),
            }
        }
        // What was written last may not be known yet.
        let nomination =
            nomination.filter(|node| *node != pod.nominated_node || *node != tried.nominated_node);
        let is_new = pod.unscheduled.as_ref().is_none_or(|own| own.0 != reason || own.1 != message);
        let note = Some(truncated(&message));
        let condition = is_new.then_some(reason);
        self.actions.push(Action::Report { pod, condition, message, note, nomination });
    }

    fn next_random(&mut self) -> u64 {
        // xorshift: ties need no better one
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

fn reserve(profile: &Profile, cycle: Cycle<'_>, info: &NodeInfo) -> Result<ClaimUse, Status> {
    let recorder = cycle.recorder;
    let reserve_all = || {
        let mut claims = ClaimUse::default();
        for plugin in &profile.reserve {
            let run = || plugin.reserve(cycle, info);
            let own = recorder.plugin(plugin.name(), RESERVE, status_name, run);
            let own = own.map_err(|status| status.by(plugin.name()))?;
            claims.merge(own);
        }
        Ok(claims)
    };
    let claims = recorder.point(RESERVE, status_name, reserve_all)?;
    let permit_all = || {
        profile.permit.iter().try_for_each(|plugin| {
            let run = || plugin.permit(cycle, info);
            let permitted = recorder.plugin(plugin.name(), PERMIT, status_name, run);
            permitted.map_err(|status| status.by(plugin.name()))
        })
    };
    recorder.point(PERMIT, status_name, permit_all)?;
    Ok(claims)
}

fn truncated(message: &str) -> String {
    const SUFFIX: &str = " ...";
    if message.len() <= MAX_NOTE {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MAX_NOTE - SUFFIX.len());
    format!("{}{SUFFIX}", message.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;
