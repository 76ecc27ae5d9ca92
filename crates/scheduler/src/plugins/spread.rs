//! Spread of pods over topologies.

use std::borrow::Cow;
use std::collections::HashMap;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use serde::Deserialize;
use serde_json::Value;

use super::{PluginError, arguments, invalid};
use crate::events::ClusterEvent;
use crate::framework::{
    Code, Cycle, FILTERS, MAX_SCORE, NodeFilter, NodeScore, Plugin, Points, PreFilter, SCORES,
    Status,
};
use crate::model::{Atom, Labels, Node, NodeInfo, Pod, Selector, SpreadConstraint};

const NAME: &str = "PodTopologySpread";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The score of a node that lacks a topology, until scores are normalised.
const LACKS_TOPOLOGY: i64 = -1;

/// Rejects nodes on which the spread would be too uneven, and prefers those that even it out.
#[derive(Debug)]
pub(super) struct PodTopologySpread {
    /// Constraints of pods that have none.
    defaults: Vec<SpreadConstraint>,
    /// Whether the defaults are the system's: then nodes need not have all topologies.
    is_system: bool,
    hostname: Atom,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    default_constraints: Vec<TopologySpreadConstraint>,
    defaulting_type: String,
}

impl PodTopologySpread {
    pub(super) fn new(args: &Value) -> Result<Self, PluginError> {
        let args: Args = arguments(NAME, args)?;
        let is_system = match args.defaulting_type.as_str() {
            "" | "System" => true,
            "List" => false,
            other => {
                return Err(invalid(NAME, format!("defaultingType: Invalid value: {other:?}")));
            }
        };
        if is_system && !args.default_constraints.is_empty() {
            return Err(invalid(NAME, "defaultConstraints: only with defaultingType List"));
        }
        let constraints = if is_system {
            [(HOSTNAME, 3), ("topology.kubernetes.io/zone", 5)]
                .map(|(key, max_skew)| TopologySpreadConstraint {
                    topology_key: key.to_owned(),
                    max_skew,
                    when_unsatisfiable: "ScheduleAnyway".to_owned(),
                    ..TopologySpreadConstraint::default()
                })
                .into()
        } else {
            args.default_constraints
        };
        if constraints.iter().any(|one| one.label_selector.is_some() || one.max_skew <= 0) {
            return Err(invalid(
                NAME,
                "defaultConstraints: maxSkew must be positive, and labelSelector must not be set",
            ));
        }
        let parse = |api| SpreadConstraint::new(api, &Labels::default());
        Ok(Self {
            defaults: constraints.iter().filter_map(parse).collect(),
            is_system,
            hostname: Atom::new(HOSTNAME),
        })
    }

    /// The hard or soft constraints of a pod.
    fn constraints<'a>(
        &'a self,
        cycle: Cycle<'a>,
        is_hard: bool,
    ) -> Vec<Cow<'a, SpreadConstraint>> {
        let wanted = |own: &&SpreadConstraint| own.is_hard == is_hard;
        if !cycle.pod.spread.is_empty() {
            return cycle.pod.spread.iter().filter(wanted).map(Cow::Borrowed).collect();
        }
        let mut defaults = self.defaults.iter().filter(wanted).peekable();
        if defaults.peek().is_none() {
            return Vec::new();
        }
        let Some(selector) = cycle.objects.default_selector(cycle.pod) else { return Vec::new() };
        defaults
            .map(|own| Cow::Owned(SpreadConstraint { selector: selector.clone(), ..own.clone() }))
            .collect()
    }
}

/// The number of pods on a node that a constraint counts.
fn count(info: &NodeInfo, selector: &Selector, namespace: &Atom) -> i64 {
    if selector.is_empty() {
        return 0;
    }
    let counts = |pod: &Pod| {
        pod.namespace == *namespace && !pod.is_deleting && selector.matches(&pod.labels)
    };
    i64::try_from(info.pods.iter().filter(|pod| counts(pod)).count()).unwrap_or(i64::MAX)
}

/// Whether the constraint counts a node at all.
fn includes(constraint: &SpreadConstraint, pod: &Pod, node: &Node) -> bool {
    (!constraint.honors_affinity || pod.selects_node(&node.name, &node.labels))
        && (!constraint.honors_taints || pod.untolerated(&node.taints).is_none())
}

fn has_topologies(constraints: &[Cow<'_, SpreadConstraint>], node: &Node) -> bool {
    constraints.iter().all(|own| node.labels.get(&own.topology_key).is_some())
}

struct Spread<'a> {
    pod: &'a Pod,
    constraints: Vec<Cow<'a, SpreadConstraint>>,
    /// Numbers of pods by topology, for each constraint.
    counts: Vec<HashMap<Atom, i64>>,
    /// The least of them, for each constraint.
    least: Vec<i64>,
}

impl Spread<'_> {
    fn find_least(&mut self) {
        self.least = self
            .counts
            .iter()
            .zip(&self.constraints)
            .map(|(counts, constraint)| {
                if counts.len() < constraint.min_domains {
                    return 0;
                }
                counts.values().copied().min().unwrap_or(0)
            })
            .collect();
    }

    fn change(&mut self, pod: &Pod, info: &NodeInfo, amount: i64) {
        let Some(node) = &info.node else { return };
        if pod.namespace != self.pod.namespace || !has_topologies(&self.constraints, node) {
            return;
        }
        let mut is_changed = false;
        for (constraint, counts) in self.constraints.iter().zip(&mut self.counts) {
            if !constraint.selector.matches(&pod.labels) || !includes(constraint, self.pod, node) {
                continue;
            }
            if let Some(value) = node.labels.get(&constraint.topology_key) {
                let count = counts.entry(value.clone()).or_default();
                *count = count.saturating_add(amount);
                is_changed = true;
            }
        }
        if is_changed {
            self.find_least();
        }
    }
}

impl NodeFilter for Spread<'_> {
    fn filter(&self, info: &NodeInfo) -> Result<(), Status> {
        for ((constraint, counts), least) in
            self.constraints.iter().zip(&self.counts).zip(&self.least)
        {
            let Some(value) = info.label(&constraint.topology_key) else {
                return Err(Status::unresolvable(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                ));
            };
            let own = i64::from(constraint.selector.matches(&self.pod.labels));
            let others = counts.get(value).copied().unwrap_or(0);
            if others.saturating_add(own).saturating_sub(*least) > constraint.max_skew {
                return Err(Status::unschedulable(
                    "node(s) didn't match pod topology spread constraints",
                ));
            }
        }
        Ok(())
    }

    fn add_pod(&mut self, pod: &Pod, node: &NodeInfo) {
        self.change(pod, node, 1);
    }

    fn remove_pod(&mut self, pod: &Pod, node: &NodeInfo) {
        self.change(pod, node, -1);
    }
}

struct Evenness<'a> {
    pod: &'a Pod,
    constraints: Vec<Cow<'a, SpreadConstraint>>,
    /// Numbers of pods by topology, for each constraint; `None`: topologies are nodes.
    counts: Vec<Option<HashMap<Atom, i64>>>,
    weights: Vec<f64>,
    needs_all: bool,
}

impl NodeScore for Evenness<'_> {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "saturates")]
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        if self.needs_all && !has_topologies(&self.constraints, node) {
            return LACKS_TOPOLOGY;
        }
        let mut score = 0.0;
        for ((constraint, counts), weight) in
            self.constraints.iter().zip(&self.counts).zip(&self.weights)
        {
            let Some(value) = node.labels.get(&constraint.topology_key) else { continue };
            let count = match counts {
                Some(counts) => counts.get(value).copied().unwrap_or(0),
                None => count(info, &constraint.selector, &self.pod.namespace),
            };
            score += count as f64 * weight + constraint.max_skew.saturating_sub(1) as f64;
        }
        score.round() as i64
    }

    fn normalize(&self, scores: &mut [i64]) {
        let known = || scores.iter().copied().filter(|score| *score != LACKS_TOPOLOGY);
        let (least, most) = (known().min().unwrap_or(0), known().max().unwrap_or(0));
        for score in scores {
            *score = match *score {
                LACKS_TOPOLOGY => 0,
                _ if most == 0 => MAX_SCORE,
                own => {
                    let above = most.saturating_add(least).saturating_sub(own);
                    above.saturating_mul(MAX_SCORE).checked_div(most).unwrap_or(0)
                }
            };
        }
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> Points {
        FILTERS.and(SCORES)
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        if let Some(error) = &cycle.pod.error {
            return PreFilter::Reject(Status::new(Code::Unresolvable, error.to_string()));
        }
        let constraints = self.constraints(cycle, true);
        if constraints.is_empty() {
            return PreFilter::Skip;
        }
        let mut spread = Spread {
            pod: cycle.pod,
            counts: vec![HashMap::new(); constraints.len()],
            least: Vec::new(),
            constraints,
        };
        for info in cycle.snapshot.nodes() {
            let Some(node) = &info.node else { continue };
            if !has_topologies(&spread.constraints, node) {
                continue;
            }
            for (constraint, counts) in spread.constraints.iter().zip(&mut spread.counts) {
                if !includes(constraint, cycle.pod, node) {
                    continue;
                }
                if let Some(value) = node.labels.get(&constraint.topology_key) {
                    let more = count(info, &constraint.selector, &cycle.pod.namespace);
                    let sum = counts.entry(value.clone()).or_default();
                    *sum = sum.saturating_add(more);
                }
            }
        }
        spread.find_least();
        PreFilter::Filter(Box::new(spread))
    }

    #[allow(clippy::cast_precision_loss, reason = "numbers of topologies")]
    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        nodes: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let constraints = self.constraints(cycle, false);
        if constraints.is_empty() {
            return None;
        }
        let needs_all = !cycle.pod.spread.is_empty() || !self.is_system;
        let mut counts: Vec<Option<HashMap<Atom, i64>>> = constraints
            .iter()
            .map(|own| (own.topology_key != self.hostname).then(HashMap::new))
            .collect();
        // Only topologies that a candidate is in count.
        let mut candidates = 0usize;
        for info in nodes {
            let Some(node) = &info.node else { continue };
            if needs_all && !has_topologies(&constraints, node) {
                continue;
            }
            candidates += 1;
            for (constraint, counts) in constraints.iter().zip(&mut counts) {
                if let (Some(counts), Some(value)) =
                    (counts.as_mut(), node.labels.get(&constraint.topology_key))
                {
                    counts.entry(value.clone()).or_default();
                }
            }
        }
        let weights = counts
            .iter()
            .map(|counts| {
                let topologies = counts.as_ref().map_or(candidates, HashMap::len);
                ((topologies + 2) as f64).ln()
            })
            .collect();
        if counts.iter().any(|counts| counts.as_ref().is_some_and(|counts| !counts.is_empty())) {
            for info in cycle.snapshot.nodes() {
                let Some(node) = &info.node else { continue };
                if needs_all && !has_topologies(&constraints, node) {
                    continue;
                }
                for (constraint, counts) in constraints.iter().zip(&mut counts) {
                    let Some(sum) = counts.as_mut().and_then(|counts| {
                        counts.get_mut(node.labels.get(&constraint.topology_key)?)
                    }) else {
                        continue;
                    };
                    if includes(constraint, cycle.pod, node) {
                        let more = count(info, &constraint.selector, &cycle.pod.namespace);
                        *sum = sum.saturating_add(more);
                    }
                }
            }
        }
        Some(Box::new(Evenness { pod: cycle.pod, constraints, counts, weights, needs_all }))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        let counts = |other: &Pod| {
            other.namespace == pod.namespace
                && (pod.spread.is_empty()
                    || pod.spread.iter().any(|own| own.selector.matches(&other.labels)))
        };
        match event {
            ClusterEvent::PodAdded(new) => counts(new),
            ClusterEvent::PodDeleted(old) => counts(old),
            ClusterEvent::PodUpdated(old, new) => {
                (old.labels != new.labels || old.is_deleting != new.is_deleting)
                    && (counts(old) || counts(new))
            }
            ClusterEvent::UnscheduledPodUpdated(old, new) => {
                new.uid == pod.uid
                    && (old.labels != new.labels || old.tolerations != new.tolerations)
            }
            ClusterEvent::NodeDeleted(_) => true,
            _ => event.node().is_some_and(|(old, new)| {
                old.is_none_or(|old| old.labels != new.labels || old.taints != new.taints)
            }),
        }
    }
}
