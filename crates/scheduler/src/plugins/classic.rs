//! Scores of the classic policies.

use std::collections::HashMap;

use crate::events::ClusterEvent;
use crate::framework::{Cycle, MAX_SCORE, NodeScore, Plugin, Points, SCORES};
use crate::model::{Atom, NodeInfo, Pod, Selector};

/// The weight of zones against nodes where nodes have zones.
const ZONE_WEIGHT: f64 = 2.0 / 3.0;

/// Spreads pods of one service or controller over nodes and zones.
#[derive(Debug, Default)]
pub(super) struct SelectorSpread {
    services_only: bool,
}

impl SelectorSpread {
    /// Of services alone, and over nodes alone.
    pub(super) fn services() -> Self {
        Self { services_only: true }
    }
}

struct Spread<'a> {
    selectors: Vec<&'a Selector>,
    namespace: &'a Atom,
    zones: HashMap<(Atom, Atom), i64>,
    /// Zones of the nodes, in their order.
    zone_of: Vec<Option<(Atom, Atom)>>,
}

impl Spread<'_> {
    fn count(&self, info: &NodeInfo) -> i64 {
        let selected = |pod: &Pod| {
            pod.namespace == *self.namespace
                && !pod.is_deleting
                && self.selectors.iter().all(|selector| selector.matches(&pod.labels))
        };
        let count = info.pods.iter().filter(|pod| selected(pod)).count();
        i64::try_from(count).unwrap_or(i64::MAX)
    }
}

impl NodeScore for Spread<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        self.count(info)
    }

    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "0 to 100")]
    fn normalize(&self, scores: &mut [i64]) {
        let most = scores.iter().copied().max().unwrap_or(0) as f64;
        let most_in_zone = self.zones.values().copied().max().unwrap_or(0) as f64;
        let part = |count: i64, most: f64| {
            if most > 0.0 { 100.0 * (most - count as f64) / most } else { 100.0 }
        };
        for (score, zone) in scores.iter_mut().zip(&self.zone_of) {
            let mut own = part(*score, most);
            if let Some(count) = zone.as_ref().and_then(|zone| self.zones.get(zone)) {
                own = own * (1.0 - ZONE_WEIGHT) + ZONE_WEIGHT * part(*count, most_in_zone);
            }
            *score = own as i64;
        }
    }
}

impl Plugin for SelectorSpread {
    fn name(&self) -> &'static str {
        if self.services_only { "ServiceSpreading" } else { "SelectorSpread" }
    }

    fn points(&self) -> Points {
        SCORES
    }

    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        nodes: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let mut selectors = cycle.objects.selectors_of(cycle.pod);
        if self.services_only {
            let own = cycle.objects.workload_selector(cycle.pod);
            selectors.retain(|selector| !own.is_some_and(|own| std::ptr::eq(own, *selector)));
        }
        if selectors.is_empty() {
            return None;
        }
        let namespace = &cycle.pod.namespace;
        let mut spread =
            Spread { selectors, namespace, zones: HashMap::new(), zone_of: Vec::new() };
        for info in nodes {
            let zone = info.node.as_ref().and_then(|node| node.zone.clone());
            let zone = zone.filter(|_| !self.services_only);
            if let Some(zone) = &zone {
                let count = spread.count(info);
                let sum = spread.zones.entry(zone.clone()).or_default();
                *sum = sum.saturating_add(count);
            }
            spread.zone_of.push(zone);
        }
        Some(Box::new(spread))
    }

    fn may_help(&self, _: ClusterEvent<'_>, _: &Pod) -> bool {
        false
    }
}

/// Scores all nodes the same.
#[derive(Debug)]
pub(super) struct EqualPriority;

struct Equal;

impl NodeScore for Equal {
    fn score(&self, _: &NodeInfo) -> i64 {
        1
    }
}

impl Plugin for EqualPriority {
    fn name(&self) -> &'static str {
        "EqualPriority"
    }

    fn points(&self) -> Points {
        Points::SCORE
    }

    fn pre_score<'a>(
        &'a self,
        _: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        Some(Box::new(Equal))
    }

    fn may_help(&self, _: ClusterEvent<'_>, _: &Pod) -> bool {
        false
    }
}

/// Avoids nodes that ask pods of a controller to avoid them.
#[derive(Debug)]
pub(super) struct NodePreferAvoidPods;

struct Avoids<'a>(&'a Pod);

impl NodeScore for Avoids<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let (Some(owner), Some(node)) = (&self.0.owner, &info.node) else { return MAX_SCORE };
        let is_avoided =
            node.avoided.iter().any(|(kind, uid)| *kind == owner.kind && *uid == owner.uid);
        if is_avoided { 0 } else { MAX_SCORE }
    }
}

impl Plugin for NodePreferAvoidPods {
    fn name(&self) -> &'static str {
        "NodePreferAvoidPods"
    }

    fn points(&self) -> Points {
        Points::SCORE
    }

    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let owner = cycle.pod.owner.as_ref()?;
        let is_known = matches!(owner.kind.as_str(), "ReplicationController" | "ReplicaSet");
        is_known.then(|| Box::new(Avoids(cycle.pod)) as Box<dyn NodeScore + 'a>)
    }

    fn may_help(&self, _: ClusterEvent<'_>, _: &Pod) -> bool {
        false
    }
}
