//! Affinity and anti-affinity to pods.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::{PluginError, arguments, invalid};
use crate::events::ClusterEvent;
use crate::framework::{
    Code, Cycle, FILTERS, NodeFilter, NodeScore, Plugin, Points, PreFilter, SCORES, Status,
};
use crate::model::{AffinityTerm, Atom, NodeInfo, Objects, Pod};

const NAME: &str = "InterPodAffinity";

/// Rejects nodes whose topologies the pod, or pods on them, must not share or lack, and scores by
/// preferences of both sides.
#[derive(Debug)]
pub(super) struct InterPodAffinity {
    /// What required affinity of existing pods counts in scores.
    hard_weight: i64,
    /// Whether preferences of existing pods count for pods without any.
    ignores_existing: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    hard_pod_affinity_weight: i64,
    ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for Args {
    fn default() -> Self {
        Self { hard_pod_affinity_weight: 1, ignore_preferred_terms_of_existing_pods: false }
    }
}

impl InterPodAffinity {
    pub(super) fn new(args: &Value) -> Result<Self, PluginError> {
        let args: Args = arguments(NAME, args)?;
        if !(0..=100).contains(&args.hard_pod_affinity_weight) {
            return Err(invalid(NAME, "hardPodAffinityWeight: not in valid range [0-100]"));
        }
        Ok(Self {
            hard_weight: args.hard_pod_affinity_weight,
            ignores_existing: args.ignore_preferred_terms_of_existing_pods,
        })
    }
}

/// Numbers by topology: key and value of a label of nodes.
#[derive(Debug, Default)]
struct Counts(HashMap<(Atom, Atom), i64>);

impl Counts {
    fn add(&mut self, key: &Atom, node: &NodeInfo, amount: i64) {
        if let Some(value) = node.label(key) {
            let count = self.0.entry((key.clone(), value.clone())).or_default();
            *count = count.saturating_add(amount);
        }
    }

    fn get(&self, key: &Atom, value: &Atom) -> i64 {
        if self.0.is_empty() {
            return 0;
        }
        self.0.get(&(key.clone(), value.clone())).copied().unwrap_or(0)
    }

    fn is_zero(&self) -> bool {
        self.0.values().all(|count| *count == 0)
    }
}

/// Pods that matter to the pod that is being scheduled, by topology.
struct Topologies<'a> {
    pod: &'a Pod,
    objects: &'a Objects,
    /// Terms of required anti-affinity of existing pods that match it.
    existing: Counts,
    /// Existing pods that match all its terms of required affinity.
    affinity: Counts,
    /// Existing pods that match its terms of required anti-affinity.
    anti_affinity: Counts,
}

impl Topologies<'_> {
    fn matches(&self, term: &AffinityTerm, pod: &Pod) -> bool {
        term.matches(pod, self.objects.namespace(&pod.namespace))
    }

    fn matches_all(&self, pod: &Pod) -> bool {
        self.pod.affinity.required.iter().all(|term| self.matches(term, pod))
    }

    fn count_existing(&mut self, existing: &Pod, node: &NodeInfo, amount: i64) {
        for term in &existing.anti_affinity.required {
            if self.matches(term, self.pod) {
                self.existing.add(&term.topology_key, node, amount);
            }
        }
    }

    fn count_own(&mut self, existing: &Pod, node: &NodeInfo, amount: i64) {
        let own = &self.pod.affinity.required;
        if !own.is_empty() && self.matches_all(existing) {
            for term in own {
                self.affinity.add(&term.topology_key, node, amount);
            }
        }
        for term in &self.pod.anti_affinity.required {
            if self.matches(term, existing) {
                self.anti_affinity.add(&term.topology_key, node, amount);
            }
        }
    }

    fn meets_affinity(&self, node: &NodeInfo) -> bool {
        let mut exists = true;
        for term in &self.pod.affinity.required {
            let Some(value) = node.label(&term.topology_key) else { return false };
            exists &= self.affinity.get(&term.topology_key, value) > 0;
        }
        // The first of pods that have affinity to each other goes anywhere.
        exists || (self.affinity.is_zero() && self.matches_all(self.pod))
    }

    fn meets_anti_affinity(&self, node: &NodeInfo) -> bool {
        self.pod.anti_affinity.required.iter().all(|term| {
            node.label(&term.topology_key)
                .is_none_or(|value| self.anti_affinity.get(&term.topology_key, value) <= 0)
        })
    }

    fn meets_existing(&self, node: &NodeInfo) -> bool {
        if self.existing.0.is_empty() {
            return true;
        }
        let Some(node) = &node.node else { return true };
        node.labels.iter().all(|(key, value)| self.existing.get(key, value) <= 0)
    }
}

impl NodeFilter for Topologies<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        if !self.meets_affinity(node) {
            return Err(Status::unresolvable("node(s) didn't match pod affinity rules"));
        }
        if !self.meets_anti_affinity(node) {
            return Err(Status::unschedulable("node(s) didn't match pod anti-affinity rules"));
        }
        if !self.meets_existing(node) {
            return Err(Status::unschedulable(
                "node(s) didn't satisfy existing pods anti-affinity rules",
            ));
        }
        Ok(())
    }

    fn add_pod(&mut self, pod: &Pod, node: &NodeInfo) {
        self.count_existing(pod, node, 1);
        self.count_own(pod, node, 1);
    }

    fn remove_pod(&mut self, pod: &Pod, node: &NodeInfo) {
        self.count_existing(pod, node, -1);
        self.count_own(pod, node, -1);
    }
}

/// Weights by topology key and value.
struct Preferences(Vec<(Atom, HashMap<Atom, i64>)>);

impl Preferences {
    fn add(&mut self, key: &Atom, node: &NodeInfo, weight: i64) {
        let Some(value) = node.label(key) else { return };
        let index = match self.0.iter().position(|(own, _)| own == key) {
            Some(index) => index,
            None => {
                self.0.push((key.clone(), HashMap::new()));
                self.0.len() - 1
            }
        };
        if let Some((_, weights)) = self.0.get_mut(index) {
            let sum = weights.entry(value.clone()).or_default();
            *sum = sum.saturating_add(weight);
        }
    }
}

impl NodeScore for Preferences {
    fn score(&self, node: &NodeInfo) -> i64 {
        let weight = |(key, weights): &(Atom, HashMap<Atom, i64>)| {
            node.label(key).and_then(|value| weights.get(value)).copied().unwrap_or(0)
        };
        self.0.iter().map(weight).fold(0, i64::saturating_add)
    }

    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "0 to 100")]
    fn normalize(&self, scores: &mut [i64]) {
        let least = scores.iter().copied().min().unwrap_or(0);
        let range = scores.iter().copied().max().unwrap_or(0).saturating_sub(least);
        for score in scores {
            let above = score.saturating_sub(least);
            *score = if range > 0 { (100.0 * (above as f64 / range as f64)) as i64 } else { 0 };
        }
    }
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> Points {
        FILTERS.and(SCORES)
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let pod = cycle.pod;
        if let Some(error) = &pod.error {
            return PreFilter::Reject(Status::new(
                Code::Unresolvable,
                format!("parsing pod: {error}"),
            ));
        }
        let mut own = Topologies {
            pod,
            objects: cycle.objects,
            existing: Counts::default(),
            affinity: Counts::default(),
            anti_affinity: Counts::default(),
        };
        for node in cycle.snapshot.with_anti_affinity() {
            for existing in node.pods.iter().filter(|pod| !pod.anti_affinity.required.is_empty()) {
                own.count_existing(existing, node, 1);
            }
        }
        let has_own = !pod.affinity.required.is_empty() || !pod.anti_affinity.required.is_empty();
        if own.existing.0.is_empty() && !has_own {
            return PreFilter::Skip;
        }
        if has_own {
            for node in cycle.snapshot.nodes() {
                for existing in &node.pods {
                    own.count_own(existing, node, 1);
                }
            }
        }
        PreFilter::Filter(Box::new(own))
    }

    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let pod = cycle.pod;
        let has_own = !pod.affinity.preferred.is_empty() || !pod.anti_affinity.preferred.is_empty();
        if self.ignores_existing && !has_own {
            return None;
        }
        let mut sums = Preferences(Vec::new());
        let own_namespace = cycle.objects.namespace(&pod.namespace);
        let mut count = |existing: &Pod, node: &NodeInfo| {
            let namespace = cycle.objects.namespace(&existing.namespace);
            for (terms, sign) in [(&pod.affinity, 1i64), (&pod.anti_affinity, -1)] {
                for own in &terms.preferred {
                    if own.term.matches(existing, namespace) {
                        sums.add(&own.term.topology_key, node, own.weight.saturating_mul(sign));
                    }
                }
            }
            if self.hard_weight > 0 {
                for term in &existing.affinity.required {
                    if term.matches(pod, own_namespace) {
                        sums.add(&term.topology_key, node, self.hard_weight);
                    }
                }
            }
            for (terms, sign) in [(&existing.affinity, 1i64), (&existing.anti_affinity, -1)] {
                for own in &terms.preferred {
                    if own.term.matches(pod, own_namespace) {
                        sums.add(&own.term.topology_key, node, own.weight.saturating_mul(sign));
                    }
                }
            }
        };
        if has_own {
            for node in cycle.snapshot.nodes() {
                node.pods.iter().for_each(|existing| count(existing, node));
            }
        } else {
            for node in cycle.snapshot.with_affinity() {
                let pods = node.pods.iter().filter(|existing| existing.has_affinity());
                pods.for_each(|existing| count(existing, node));
            }
        }
        (!sums.0.is_empty()).then(|| Box::new(sums) as Box<dyn NodeScore + 'a>)
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        // Namespaces are not at hand here: a selector of namespaces counts as matching.
        let selects = AffinityTerm::may_match;
        let wants = |other: &Pod| pod.affinity.required.iter().any(|term| selects(term, other));
        let shuns = |other: &Pod| {
            pod.anti_affinity.required.iter().any(|term| selects(term, other))
                || other.anti_affinity.required.iter().any(|term| selects(term, pod))
        };
        match event {
            ClusterEvent::PodAdded(new) => wants(new),
            ClusterEvent::PodDeleted(old) => shuns(old),
            ClusterEvent::PodUpdated(old, new) => {
                old.labels != new.labels
                    && ((wants(new) && !wants(old)) || (shuns(old) && !shuns(new)))
            }
            ClusterEvent::UnscheduledPodUpdated(old, new) => {
                new.uid == pod.uid && old.labels != new.labels
            }
            _ => event
                .node()
                .is_some_and(|(old, new)| old.is_none_or(|old| old.labels != new.labels)),
        }
    }
}
