//! What plugins are, and how those of a profile are run over nodes.
//!
//! A plugin prepares for one pod ([`Plugin::pre_filter`], [`Plugin::pre_score`]) what it then asks
//! of each node, so that nothing is allocated a node.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cache::Snapshot;
use crate::events::ClusterEvent;
use crate::metrics::{Hints, Recorder, SKIP, SUCCESS};
use crate::model::{Atom, ClaimKey, ClaimUse, NodeInfo, Objects, Pod};
use crate::queue::Nominated;

/// The highest score of a node.
pub const MAX_SCORE: i64 = 100;
/// Names of extension points in metrics.
const PRE_FILTER: &str = "PreFilter";
pub(crate) const FILTER: &str = "Filter";
const PRE_SCORE: &str = "PreScore";
const SCORE: &str = "Score";
/// The name by which extenders reject pods.
pub const EXTENDER: &str = "Extender";

/// The points at which plugins take part, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Points(u16);

impl Points {
    /// Keeps pods out of the queue.
    pub const PRE_ENQUEUE: Self = Self(1);
    /// Orders the queue.
    pub const QUEUE_SORT: Self = Self(1 << 1);
    /// Prepares filtering.
    pub const PRE_FILTER: Self = Self(1 << 2);
    /// Filters nodes.
    pub const FILTER: Self = Self(1 << 3);
    /// Helps a pod that no node fits.
    pub const POST_FILTER: Self = Self(1 << 4);
    /// Prepares scoring.
    pub const PRE_SCORE: Self = Self(1 << 5);
    /// Scores nodes.
    pub const SCORE: Self = Self(1 << 6);
    /// Reserves what a pod needs.
    pub const RESERVE: Self = Self(1 << 7);
    /// Permits the binding.
    pub const PERMIT: Self = Self(1 << 8);
    /// Prepares the binding.
    pub const PRE_BIND: Self = Self(1 << 9);
    /// Binds.
    pub const BIND: Self = Self(1 << 10);
    /// Follows a binding.
    pub const POST_BIND: Self = Self(1 << 11);

    /// All of both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of the other are there.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Filters with what they prepare.
pub const FILTERS: Points = Points::PRE_FILTER.and(Points::FILTER);
/// Scores with what they prepare.
pub const SCORES: Points = Points::PRE_SCORE.and(Points::SCORE);

/// How a rejection is to be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Preemption may help.
    Unschedulable,
    /// Preemption cannot help.
    Unresolvable,
    /// Something went wrong.
    Error,
}

impl Code {
    /// Its name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unschedulable => "Unschedulable",
            Self::Unresolvable => "UnschedulableAndUnresolvable",
            Self::Error => "Error",
        }
    }
}

/// The name of an outcome in metrics.
pub(crate) fn status_name<T>(outcome: &Result<T, Status>) -> &'static str {
    match outcome {
        Ok(_) => SUCCESS,
        Err(status) => status.code.name(),
    }
}

/// Why a plugin rejects a pod, or a node for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// How it is to be understood.
    pub code: Code,
    /// Reasons in the words of upstream.
    pub reasons: Reasons,
    /// The plugin.
    pub plugin: &'static str,
}

/// One reason or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reasons {
    /// One that is always the same.
    One(&'static str),
    /// Any.
    Many(Vec<Cow<'static, str>>),
}

impl Reasons {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let (one, many): (Option<&str>, &[Cow<'static, str>]) = match self {
            Self::One(reason) => (Some(reason), &[]),
            Self::Many(reasons) => (None, reasons),
        };
        one.into_iter().chain(many.iter().map(|reason| &**reason))
    }
}

impl Status {
    /// A rejection that preemption may resolve.
    pub const fn unschedulable(reason: &'static str) -> Self {
        Self { code: Code::Unschedulable, reasons: Reasons::One(reason), plugin: "" }
    }

    /// A rejection that preemption cannot resolve.
    pub const fn unresolvable(reason: &'static str) -> Self {
        Self { code: Code::Unresolvable, reasons: Reasons::One(reason), plugin: "" }
    }

    /// One with a reason that is made for it.
    pub fn new(code: Code, reason: String) -> Self {
        Self { code, reasons: Reasons::Many(vec![reason.into()]), plugin: "" }
    }

    /// The reasons in a line.
    pub fn message(&self) -> String {
        self.reasons.iter().collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn by(mut self, plugin: &'static str) -> Self {
        if self.plugin.is_empty() {
            self.plugin = plugin;
        }
        self
    }
}

/// What a scheduling cycle works on.
#[derive(Debug, Clone, Copy)]
pub struct Cycle<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Nodes and pods.
    pub snapshot: &'a Snapshot,
    /// Everything else.
    pub objects: &'a Objects,
    /// Pods for which room is being made.
    pub nominated: &'a Nominated,
    /// The metrics of the attempt.
    pub recorder: Recorder<'a>,
}

/// What a plugin asks of each node for one pod.
pub trait NodeFilter {
    /// Whether the node fits.
    fn filter(&self, node: &NodeInfo) -> Result<(), Status>;

    /// A pod is added to a node, for the time of a what-if. `node` has it or not.
    fn add_pod(&mut self, _pod: &Pod, _node: &NodeInfo) {}

    /// A pod is removed from a node, for the time of a what-if. Takes back [`Self::add_pod`].
    fn remove_pod(&mut self, _pod: &Pod, _node: &NodeInfo) {}
}

/// How a plugin begins with a pod.
pub enum PreFilter<'a> {
    /// It has nothing to ask.
    Skip,
    /// It asks this of each node.
    Filter(Box<dyn NodeFilter + 'a>),
    /// It asks this of these nodes, and no others can fit.
    Only(Vec<Atom>, Box<dyn NodeFilter + 'a>),
    /// No node fits.
    Reject(Status),
}

impl PreFilter<'_> {
    /// Its name in metrics.
    fn status(&self) -> &'static str {
        match self {
            Self::Skip => SKIP,
            Self::Filter(_) | Self::Only(..) => SUCCESS,
            Self::Reject(status) => status.code.name(),
        }
    }
}

/// How a plugin scores nodes for one pod.
pub trait NodeScore {
    /// The score of a node, in any range that [`Self::normalize`] brings to 0 to 100.
    fn score(&self, node: &NodeInfo) -> i64;

    /// Brings scores to 0 to 100.
    fn normalize(&self, _scores: &mut [i64]) {}
}

/// A node with the pods to preempt on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The node.
    pub node: Atom,
    /// The pods, most important first.
    pub victims: Vec<Arc<Pod>>,
    /// How many of them a budget protects.
    pub violations: usize,
}

/// What a plugin did for a pod that no node fits.
#[derive(Debug, Clone, PartialEq)]
pub enum PostFilter {
    /// Pods make room on any of these nodes.
    Preempt(Vec<Candidate>),
    /// A claim, by key and UID, loses its devices, as the pod cannot go where they are.
    Deallocate(ClaimKey, Box<str>),
    /// A claim, by key and UID, is deleted that an earlier attempt has made for the pod.
    Delete(Vec<(ClaimKey, Box<str>)>),
    /// Nothing, and why. Whether the pod's nomination is to be cleared.
    Nothing(Cow<'static, str>, bool),
}

/// An algorithm, registered by its name.
pub trait Plugin: Send + Sync + std::fmt::Debug {
    /// Its name in configurations.
    fn name(&self) -> &'static str;

    /// Where it takes part.
    fn points(&self) -> Points;

    /// Whether the pod may be tried; else the reason.
    fn pre_enqueue(&self, _pod: &Pod, _objects: &Objects) -> Result<(), Status> {
        Ok(())
    }

    /// Prepares the filter for a pod.
    fn pre_filter<'a>(&'a self, _cycle: Cycle<'a>) -> PreFilter<'a> {
        PreFilter::Skip
    }

    /// Helps a pod that no node fits.
    fn post_filter(&self, _cycle: Cycle<'_>, _failed: &mut Failed<'_, '_>) -> PostFilter {
        PostFilter::Nothing(Cow::Borrowed(""), false)
    }

    /// Prepares scores for a pod and the nodes that fit; `None`: all score the same.
    fn pre_score<'a>(
        &'a self,
        _cycle: Cycle<'a>,
        _nodes: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        None
    }

    /// What the pod takes on the node beyond resources.
    fn reserve(&self, _cycle: Cycle<'_>, _node: &NodeInfo) -> Result<ClaimUse, Status> {
        Ok(ClaimUse::default())
    }

    /// Whether the pod may be bound to the node.
    fn permit(&self, _cycle: Cycle<'_>, _node: &NodeInfo) -> Result<(), Status> {
        Ok(())
    }

    /// Whether a change may help a pod that this plugin rejected.
    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool;
}

/// Filters that are prepared for a pod.
pub struct Filters<'a> {
    filters: Vec<(&'static str, Box<dyn NodeFilter + 'a>)>,
    /// The only nodes that can fit, where a plugin knows.
    pub only: Option<BTreeSet<usize>>,
    /// Plugins that left out nodes.
    pub limited_by: Vec<&'static str>,
    recorder: Recorder<'a>,
}

impl<'a> Filters<'a> {
    /// Prepares the filters of a profile. An error: no node fits.
    pub fn prepare(profile: &'a Profile, cycle: Cycle<'a>) -> Result<Self, Status> {
        cycle.recorder.point(PRE_FILTER, status_name, || Self::prepare_all(profile, cycle))
    }

    fn prepare_all(profile: &'a Profile, cycle: Cycle<'a>) -> Result<Self, Status> {
        let recorder = cycle.recorder;
        let mut own = Self { filters: Vec::new(), only: None, limited_by: Vec::new(), recorder };
        for plugin in &profile.filters {
            let begun = recorder
                .plugin(plugin.name(), PRE_FILTER, PreFilter::status, || plugin.pre_filter(cycle));
            if !matches!(begun, PreFilter::Skip) {
                recorder.evaluated(plugin.name(), PRE_FILTER);
            }
            match begun {
                PreFilter::Skip => {}
                PreFilter::Filter(filter) => own.filters.push((plugin.name(), filter)),
                PreFilter::Only(nodes, filter) => {
                    let positions: BTreeSet<usize> =
                        nodes.iter().filter_map(|name| cycle.snapshot.position(name)).collect();
                    own.only = Some(match own.only.take() {
                        Some(only) => only.intersection(&positions).copied().collect(),
                        None => positions,
                    });
                    own.limited_by.push(plugin.name());
                    own.filters.push((plugin.name(), filter));
                }
                PreFilter::Reject(status) => return Err(status.by(plugin.name())),
            }
        }
        Ok(own)
    }

    /// Whether a node fits, with pods nominated for it counted in.
    pub fn check(&mut self, cycle: Cycle<'_>, info: &NodeInfo) -> Result<(), Status> {
        let nominated = cycle.nominated.on(&info.name);
        let is_ahead =
            |pod: &&Arc<Pod>| pod.uid != cycle.pod.uid && pod.priority >= cycle.pod.priority;
        if nominated.iter().any(|pod| is_ahead(&pod)) {
            let mut with = info.clone();
            for pod in nominated.iter().filter(is_ahead) {
                with.add(pod.clone());
                self.add_pod(pod, &with);
            }
            let checked = self.run(&with);
            for pod in nominated.iter().filter(is_ahead) {
                self.remove_pod(pod, &with);
            }
            checked?;
        }
        // Anti-affinity may hold only once they are there, affinity only while they are not.
        self.run(info)
    }

    fn run(&self, info: &NodeInfo) -> Result<(), Status> {
        for (name, filter) in &self.filters {
            let filtered = self.recorder.plugin(name, FILTER, status_name, || filter.filter(info));
            filtered.map_err(|status| status.by(name))?;
        }
        Ok(())
    }

    /// Counts that nodes are filtered.
    pub(crate) fn count_evaluations(&self) {
        for (name, _) in &self.filters {
            self.recorder.evaluated(name, FILTER);
        }
    }

    /// Adds a pod to a node, for the time of a what-if.
    pub fn add_pod(&mut self, pod: &Pod, node: &NodeInfo) {
        for (_, filter) in &mut self.filters {
            filter.add_pod(pod, node);
        }
    }

    /// Removes a pod from a node, for the time of a what-if.
    pub fn remove_pod(&mut self, pod: &Pod, node: &NodeInfo) {
        for (_, filter) in &mut self.filters {
            filter.remove_pod(pod, node);
        }
    }
}

/// Why no node fits.
#[derive(Debug, Default)]
pub struct Diagnosis {
    /// Statuses of nodes, by their place in the snapshot.
    pub nodes: BTreeMap<usize, Status>,
    /// The status of all others.
    pub others: Option<Status>,
    /// Why filtering did not begin.
    pub pre_filter: Option<String>,
    /// What plugins said that tried to help.
    pub post_filter: String,
    /// Plugins that rejected nodes.
    pub rejectors: BTreeSet<&'static str>,
    /// Number of nodes in all.
    pub total: usize,
}

impl Diagnosis {
    /// Records the status of a node.
    pub fn set(&mut self, node: usize, status: Status) {
        self.rejectors.insert(status.plugin);
        self.nodes.insert(node, status);
    }

    /// Whether preemption may help on a node.
    pub fn code(&self, node: usize) -> Code {
        let status = self.nodes.get(&node).or(self.others.as_ref());
        status.map_or(Code::Unresolvable, |status| status.code)
    }

    /// All of it in the words of upstream.
    pub fn message(&self) -> String {
        let mut message = format!("0/{} nodes are available:", self.total);
        if let Some(reason) = &self.pre_filter {
            message.push_str(&format!(" {reason}."));
        } else {
            let reasons = self.reasons();
            if !reasons.is_empty() {
                message.push_str(&format!(" {}.", reasons.join(", ")));
            }
        }
        if !self.post_filter.is_empty() {
            message.push(' ');
            message.push_str(&self.post_filter);
        }
        message
    }

    fn reasons(&self) -> Vec<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let others = self.total.saturating_sub(self.nodes.len());
        let rest = self.others.as_ref().filter(|_| others > 0).map(|status| (status, others));
        for (status, nodes) in self.nodes.values().map(|status| (status, 1)).chain(rest) {
            for reason in status.reasons.iter() {
                *counts.entry(reason).or_default() += nodes;
            }
        }
        let mut reasons: Vec<_> =
            counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        reasons.sort();
        reasons
    }
}

/// A pod that no node fits, with what is needed to find out what would help.
pub struct Failed<'d, 'f> {
    /// Why.
    pub diagnosis: &'d Diagnosis,
    /// The filters; `None` if filtering did not begin.
    pub filters: Option<&'d mut Filters<'f>>,
    /// A number to start a search at.
    pub offset: usize,
}

/// The plugins of a profile, by where they take part.
#[derive(Debug)]
pub struct Profile {
    /// The name of the scheduler.
    pub name: Atom,
    /// Plugins that keep pods out of the queue.
    pub pre_enqueue: Vec<Arc<dyn Plugin>>,
    /// Plugins that filter.
    pub filters: Vec<Arc<dyn Plugin>>,
    /// Plugins that help.
    pub post_filters: Vec<Arc<dyn Plugin>>,
    /// Plugins that score, with weights.
    pub scores: Vec<(Arc<dyn Plugin>, i64)>,
    /// Plugins that reserve.
    pub reserve: Vec<Arc<dyn Plugin>>,
    /// Plugins that permit.
    pub permit: Vec<Arc<dyn Plugin>>,
    /// The percentage of nodes to score; 0: adapted to the size of the cluster.
    pub percentage: i32,
}

impl Profile {
    /// Whether the pod may be tried; else the reason.
    pub fn pre_enqueue(&self, pod: &Pod, objects: &Objects) -> Result<(), Status> {
        self.pre_enqueue.iter().try_for_each(|plugin| {
            plugin.pre_enqueue(pod, objects).map_err(|status| status.by(plugin.name()))
        })
    }

    /// Whether a change may help a pod that these plugins rejected.
    pub(crate) fn may_help(
        &self,
        event: ClusterEvent<'_>,
        pod: &Pod,
        rejectors: &[&'static str],
        hints: &Hints,
    ) -> bool {
        let all = [&self.filters, &self.reserve, &self.permit, &self.post_filters];
        rejectors.iter().any(|name| {
            let plugin = all.iter().flat_map(|own| own.iter()).find(|own| own.name() == *name);
            // What extenders need is not known.
            plugin.is_none_or(|plugin| {
                hints.record(plugin.name(), event.label(), || plugin.may_help(event, pod))
            })
        })
    }

    /// The weighted sum of scores of nodes that fit.
    pub fn score<'a>(&'a self, cycle: Cycle<'a>, nodes: &[&'a NodeInfo]) -> Vec<i64> {
        let recorder = cycle.recorder;
        let prepare = |plugin: &'a Arc<dyn Plugin>| {
            let status = |own: &Option<Box<dyn NodeScore + 'a>>| match own {
                Some(_) => SUCCESS,
                None => SKIP,
            };
            let run = || plugin.pre_score(cycle, nodes);
            recorder.plugin(plugin.name(), PRE_SCORE, status, run)
        };
        let prepared: Vec<_> = recorder.point(
            PRE_SCORE,
            |_| SUCCESS,
            || {
                self.scores
                    .iter()
                    .map(|(plugin, weight)| (plugin, prepare(plugin), weight))
                    .collect()
            },
        );
        let score_all = || {
            let mut totals = vec![0i64; nodes.len()];
            let mut scores = vec![0i64; nodes.len()];
            for (plugin, own, weight) in prepared {
                let Some(own) = own else { continue };
                recorder.evaluated(plugin.name(), PRE_SCORE);
                recorder.evaluated(plugin.name(), SCORE);
                for (score, node) in scores.iter_mut().zip(nodes) {
                    *score = recorder.plugin(plugin.name(), SCORE, |_| SUCCESS, || own.score(node));
                }
                own.normalize(&mut scores);
                for (total, score) in totals.iter_mut().zip(&scores) {
                    let score = (*score).clamp(0, MAX_SCORE);
                    *total = total.saturating_add(score.saturating_mul(*weight));
                }
            }
            totals
        };
        recorder.point(SCORE, |_| SUCCESS, score_all)
    }
}

/// Brings scores to 0 to 100 by the highest of them; `reverse`: the highest is the worst.
pub fn normalize(scores: &mut [i64], reverse: bool) {
    let highest = scores.iter().copied().max().unwrap_or(0);
    for score in scores.iter_mut() {
        let scaled = score.saturating_mul(MAX_SCORE).checked_div(highest).unwrap_or(0);
        let scaled = if highest <= 0 { 0 } else { scaled };
        *score = if reverse { MAX_SCORE.saturating_sub(scaled) } else { scaled };
    }
}

/// How many nodes that fit are enough.
pub fn enough_nodes(percentage: i32, total: usize) -> usize {
    const MIN_NODES: usize = 100;
    const MIN_PERCENTAGE: usize = 5;
    if total < MIN_NODES {
        return total;
    }
    let percentage = match usize::try_from(percentage).unwrap_or(0) {
        0 => 50usize.saturating_sub(total / 125).max(MIN_PERCENTAGE),
        percentage => percentage.min(100),
    };
    (total * percentage / 100).max(MIN_NODES)
}
