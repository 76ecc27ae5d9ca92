//! Node selectors and node affinity.

use k8s_openapi::api::core::v1::NodeAffinity as ApiNodeAffinity;
use serde::Deserialize;
use serde_json::Value;

use super::{PluginError, arguments};
use crate::events::ClusterEvent;
use crate::framework::{
    Cycle, FILTERS, NodeFilter, NodeScore, Plugin, Points, PreFilter, SCORES, Status, normalize,
};
use crate::model::{Node, NodeInfo, NodeSelector, NodeTerm, Pod};

const NAME: &str = "NodeAffinity";

/// Rejects nodes that the pod does not select, and scores by what it prefers.
#[derive(Debug)]
pub(super) struct NodeAffinity {
    /// Affinity that the configuration adds to that of every pod.
    added: Option<NodeSelector>,
    added_preferred: Vec<(i64, NodeTerm)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    added_affinity: Option<ApiNodeAffinity>,
}

impl NodeAffinity {
    pub(super) fn new(args: &Value) -> Result<Self, PluginError> {
        let added = arguments::<Args>(NAME, args)?.added_affinity.unwrap_or_default();
        Ok(Self {
            added: added
                .required_during_scheduling_ignored_during_execution
                .as_ref()
                .map(NodeSelector::new),
            added_preferred: added
                .preferred_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(|term| (i64::from(term.weight), NodeTerm::new(&term.preference)))
                .collect(),
        })
    }

    fn enforces(&self, node: &Node) -> bool {
        self.added.as_ref().is_none_or(|added| added.matches(&node.name, &node.labels))
    }
}

struct Selected<'a>(&'a NodeAffinity, &'a Pod);

impl NodeFilter for Selected<'_> {
    fn filter(&self, info: &NodeInfo) -> Result<(), Status> {
        let Some(node) = &info.node else { return Ok(()) };
        if !self.0.enforces(node) {
            return Err(Status::unresolvable(
                "node(s) didn't match scheduler-enforced node affinity",
            ));
        }
        if !self.1.selects_node(&node.name, &node.labels) {
            return Err(Status::unresolvable("node(s) didn't match Pod's node affinity/selector"));
        }
        Ok(())
    }
}

struct Preferred<'a>(&'a [(i64, NodeTerm)], &'a [(i64, NodeTerm)]);

impl NodeScore for Preferred<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let all = self.0.iter().chain(self.1);
        all.filter(|(_, term)| term.matches(&node.name, &node.labels))
            .fold(0, |sum, (weight, _)| sum.saturating_add(*weight))
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores, false);
    }
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> Points {
        FILTERS.and(SCORES)
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let pod = cycle.pod;
        if self.added.is_none() && pod.node_selector.is_empty() && pod.required_nodes.is_none() {
            return PreFilter::Skip;
        }
        let filter = Box::new(Selected(self, pod));
        match pod.required_nodes.as_ref().and_then(NodeSelector::names) {
            Some(names) if names.is_empty() => {
                PreFilter::Reject(Status::unresolvable("pod affinity terms conflict"))
            }
            Some(names) => PreFilter::Only(names, filter),
            None => PreFilter::Filter(filter),
        }
    }

    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let own = &cycle.pod.preferred_nodes;
        if own.is_empty() && self.added_preferred.is_empty() {
            return None;
        }
        Some(Box::new(Preferred(own, &self.added_preferred)))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        let selects =
            |node: &Node| self.enforces(node) && pod.selects_node(&node.name, &node.labels);
        event.node().is_some_and(|(old, new)| old.is_none_or(|old| !selects(old)) && selects(new))
    }
}
