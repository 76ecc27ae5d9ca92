//! Preemption: pods of lower priority whose removal makes room on a node.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{PluginError, arguments, invalid};
use crate::events::ClusterEvent;
use crate::framework::{
    Candidate, Code, Cycle, Diagnosis, Failed, Filters, Plugin, Points, PostFilter, Status,
};
use crate::model::{Budget, NodeInfo, Pod};

const NAME: &str = "DefaultPreemption";

/// Finds the node and the pods whose preemption costs least.
#[derive(Debug)]
pub(super) struct DefaultPreemption {
    /// The least part of nodes, in percent, and number of nodes on which candidates are sought.
    percentage: usize,
    absolute: usize,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    min_candidate_nodes_percentage: i64,
    min_candidate_nodes_absolute: i64,
}

impl Default for Args {
    fn default() -> Self {
        Self { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

impl DefaultPreemption {
    pub(super) fn new(args: &Value) -> Result<Self, PluginError> {
        let args: Args = arguments(NAME, args)?;
        if !(0..=100).contains(&args.min_candidate_nodes_percentage) {
            return Err(invalid(NAME, "minCandidateNodesPercentage: not in valid range [0, 100]"));
        }
        if args.min_candidate_nodes_absolute < 0 {
            return Err(invalid(NAME, "minCandidateNodesAbsolute: not in valid range [0, inf)"));
        }
        if args.min_candidate_nodes_percentage == 0 && args.min_candidate_nodes_absolute == 0 {
            return Err(invalid(
                NAME,
                "minCandidateNodesPercentage, minCandidateNodesAbsolute: cannot be zero at the same time",
            ));
        }
        Ok(Self {
            percentage: usize::try_from(args.min_candidate_nodes_percentage).unwrap_or(0),
            absolute: usize::try_from(args.min_candidate_nodes_absolute).unwrap_or(0),
        })
    }

    /// How many candidates are enough.
    fn enough(&self, nodes: usize) -> usize {
        (nodes * self.percentage / 100).max(self.absolute).min(nodes)
    }

    /// Why the pod may not preempt now.
    fn ineligible(cycle: Cycle<'_>, diagnosis: &Diagnosis) -> Option<&'static str> {
        let pod = cycle.pod;
        if !pod.may_preempt {
            return Some("not eligible due to preemptionPolicy=Never.");
        }
        let nominated = pod.nominated_node.as_ref()?;
        let position = cycle.snapshot.position(nominated)?;
        if diagnosis.code(position) == Code::Unresolvable {
            return None;
        }
        let node = cycle.snapshot.node(nominated)?;
        let is_making_room = |other: &Arc<Pod>| other.priority < pod.priority && other.is_preempted;
        node.pods
            .iter()
            .any(is_making_room)
            .then_some("not eligible due to a terminating pod on the nominated node.")
    }

    fn candidates(
        &self,
        cycle: Cycle<'_>,
        failed: &mut Failed<'_, '_>,
    ) -> Result<Vec<Candidate>, String> {
        let total = cycle.snapshot.nodes().len();
        let mut why = Diagnosis {
            total,
            others: Some(Status::unresolvable("Preemption is not helpful for scheduling")),
            ..Diagnosis::default()
        };
        let potential: Vec<usize> =
            (0..total).filter(|node| failed.diagnosis.code(*node) == Code::Unschedulable).collect();
        let Some(filters) = failed.filters.as_deref_mut() else { return Err(why.message()) };
        if potential.is_empty() {
            return Err(why.message());
        }
        let budgets: Vec<&Budget> = cycle.objects.budgets.values().collect();
        let enough = self.enough(potential.len());
        let mut found = Vec::new();
        for index in 0..potential.len() {
            let Some(position) = potential.get((failed.offset + index) % potential.len()) else {
                continue;
            };
            let Some(info) = cycle.snapshot.nodes().get(*position) else { continue };
            match victims(cycle, filters, info, &budgets) {
                Ok(candidate) => {
                    found.push(candidate);
                    // One that violates no budget is there, and enough to choose from.
                    if found.len() >= enough && found.iter().any(|own| own.violations == 0) {
                        break;
                    }
                }
                Err(status) => {
                    why.nodes.insert(*position, status);
                }
            }
        }
        if found.is_empty() { Err(why.message()) } else { Ok(found) }
    }
}

/// The order of importance: priority, and age on the node.
fn importance(pod: &Pod) -> (Reverse<i32>, i64) {
    (Reverse(pod.priority), pod.started.unwrap_or(i64::MAX))
}

/// The fewest and least important pods on a node whose removal lets the pod fit.
pub(crate) fn victims(
    cycle: Cycle<'_>,
    filters: &mut Filters<'_>,
    info: &NodeInfo,
    budgets: &[&Budget],
) -> Result<Candidate, Status> {
    let mut node = info.clone();
    let mut potential: Vec<Arc<Pod>> =
        info.pods.iter().filter(|pod| pod.priority < cycle.pod.priority).cloned().collect();
    if potential.is_empty() {
        return Err(Status::unresolvable("No preemption victims found for incoming pod"));
    }
    potential.sort_by_key(|pod| importance(pod));
    for pod in &potential {
        node.remove(&pod.uid);
        filters.remove_pod(pod, &node);
    }
    let mut removed: Vec<Arc<Pod>> = potential.clone();
    let fits = filters.check(cycle, &node);
    let mut chosen = Vec::new();
    let mut violations = 0;
    if fits.is_ok() {
        removed.clear();
        let (protected, others) = by_protection(&potential, budgets);
        for (pod, is_protected) in
            protected.iter().map(|pod| (pod, true)).chain(others.iter().map(|pod| (pod, false)))
        {
            // Each stays if the pod fits beside it.
            node.add(Arc::clone(pod));
            filters.add_pod(pod, &node);
            if filters.check(cycle, &node).is_err() {
                node.remove(&pod.uid);
                filters.remove_pod(pod, &node);
                removed.push(Arc::clone(pod));
                chosen.push(Arc::clone(pod));
                violations += usize::from(is_protected);
            }
        }
    }
    // Filters are as they were.
    for pod in &removed {
        filters.add_pod(pod, &node);
    }
    fits?;
    chosen.sort_by_key(|pod| importance(pod));
    Ok(Candidate { node: info.name.clone(), victims: chosen, violations })
}

/// Pods whose removal violates a budget, and the others.
fn by_protection(pods: &[Arc<Pod>], budgets: &[&Budget]) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    let mut allowed: Vec<i64> = budgets.iter().map(|budget| budget.allowed).collect();
    pods.iter().cloned().partition(|pod| {
        let mut is_violated = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            if budget.protects(pod) {
                *allowed = allowed.saturating_sub(1);
                is_violated |= *allowed < 0;
            }
        }
        is_violated
    })
}

/// The candidate that costs least: by budgets, the highest priority, the sum of priorities, the number
/// of pods, and the latest start of the most important ones.
pub(crate) fn cheapest(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(|candidate| {
        let pods = &candidate.victims;
        let highest = pods.iter().map(|pod| pod.priority).max();
        let sum = pods.iter().fold(0i64, |sum, pod| {
            // from zero on, so that more pods cost more
            let own = i64::from(pod.priority).saturating_sub(i64::from(i32::MIN));
            sum.saturating_add(own)
        });
        let earliest = pods
            .iter()
            .filter(|pod| Some(pod.priority) == highest)
            .map(|pod| pod.started.unwrap_or(i64::MAX))
            .min();
        (candidate.violations, highest, sum, pods.len(), Reverse(earliest))
    })
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> Points {
        Points::POST_FILTER
    }

    fn post_filter(&self, cycle: Cycle<'_>, failed: &mut Failed<'_, '_>) -> PostFilter {
        let nothing = |reason: &str, clears| {
            PostFilter::Nothing(format!("preemption: {reason}").into(), clears)
        };
        if let Some(reason) = Self::ineligible(cycle, failed.diagnosis) {
            return nothing(reason, false);
        }
        match self.candidates(cycle, failed) {
            Err(reason) => nothing(&reason, true),
            Ok(candidates) => PostFilter::Preempt(candidates),
        }
    }

    fn may_help(&self, _: ClusterEvent<'_>, _: &Pod) -> bool {
        false
    }
}
