//! Taints and tolerations.

use crate::events::ClusterEvent;
use crate::framework::{
    Cycle, NodeFilter, NodeScore, Plugin, Points, PreFilter, SCORES, Status, normalize,
};
use crate::model::{NodeInfo, Pod, Taint, TaintEffect, Toleration};

/// Rejects nodes with taints that the pod does not tolerate, and prefers those with fewer.
#[derive(Debug)]
pub(super) struct TaintToleration;

struct Untainted<'a>(&'a Pod);

impl NodeFilter for Untainted<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        let taints = node.node.as_ref().map(|node| &*node.taints).unwrap_or_default();
        match self.0.untolerated(taints) {
            None => Ok(()),
            Some(_) => Err(Status::unresolvable("node(s) had untolerated taint(s)")),
        }
    }
}

struct Disliked<'a>(Vec<&'a Toleration>);

impl Disliked<'_> {
    fn dislikes(&self, taint: &Taint) -> bool {
        taint.effect == TaintEffect::PreferNoSchedule
            && !self.0.iter().any(|toleration| toleration.tolerates(taint))
    }
}

impl NodeScore for Disliked<'_> {
    fn score(&self, node: &NodeInfo) -> i64 {
        let taints = node.node.as_ref().map(|node| &*node.taints).unwrap_or_default();
        let disliked = taints.iter().filter(|taint| self.dislikes(taint)).count();
        i64::try_from(disliked).unwrap_or(i64::MAX)
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores, true);
    }
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn points(&self) -> Points {
        SCORES.and(Points::FILTER)
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        PreFilter::Filter(Box::new(Untainted(cycle.pod)))
    }

    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let prefers =
            |own: &&Toleration| matches!(own.effect, None | Some(TaintEffect::PreferNoSchedule));
        Some(Box::new(Disliked(cycle.pod.tolerations.iter().filter(prefers).collect())))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::UnscheduledPodUpdated(old, new) => {
                new.uid == pod.uid && old.tolerations != new.tolerations
            }
            _ => event.node().is_some_and(|(old, new)| {
                old.is_none_or(|old| pod.untolerated(&old.taints).is_some())
                    && pod.untolerated(&new.taints).is_none()
            }),
        }
    }
}
