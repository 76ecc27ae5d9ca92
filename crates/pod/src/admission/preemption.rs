//! Who makes way for a critical pod that does not fit: as few as possible, and of those that are
//! guaranteed least what they have, the fewest.

use k8s_openapi::api::core::v1::Pod;

use super::fit::Lack;
use super::ledger::{Ledger, Reservation, Ticket};
use crate::qos::QosClass;
use crate::status::Verdict;

/// What a pod is told that makes way.
pub fn preempted() -> Verdict {
    Verdict {
        disruption: Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned()),
        ..Verdict::failed("Preempting", "Preempted in order to admit critical pod")
    }
}

/// What is still to be freed, by resource; all amounts are above zero.
type Need<'a> = Vec<(&'a str, i64)>;

/// Pods whose end frees what is lacking, or why there are none.
pub(super) fn victims(pod: &Pod, ledger: &Ledger, lacks: &[&Lack]) -> Result<Vec<Ticket>, String> {
    let preemptor = Reservation::new(pod);
    let of = |class: QosClass| -> Vec<(Ticket, &Reservation)> {
        let candidates = ledger.staying().filter(|(_, seat)| gives_way(seat, &preemptor));
        candidates.filter(|(_, seat)| seat.class == class).collect()
    };
    let need: Need<'_> =
        lacks.iter().map(|lack| (lack.resource.as_str(), lack.missing())).collect();
    let (best_effort, burstable, guaranteed) =
        (of(QosClass::BestEffort), of(QosClass::Burstable), of(QosClass::Guaranteed));
    let lower: Vec<_> = best_effort.iter().chain(&burstable).copied().collect();
    let all: Vec<_> = lower.iter().chain(&guaranteed).copied().collect();
    let unmet = without(&need, &all);
    if !unmet.is_empty() {
        return Err(not_found(&unmet));
    }
    // Each class gives what the others cannot, the best guaranteed one first.
    let guaranteed = nearest(guaranteed, without(&need, &lower))?;
    let others: Vec<_> = best_effort.iter().chain(&guaranteed).copied().collect();
    let burstable = nearest(burstable, without(&need, &others))?;
    let chosen: Vec<_> = burstable.into_iter().chain(guaranteed).collect();
    let best_effort = nearest(best_effort, without(&need, &chosen))?;
    Ok(best_effort.into_iter().chain(chosen).map(|(ticket, _)| ticket).collect())
}

/// Whether a pod has to end for another one.
fn gives_way(seat: &Reservation, preemptor: &Reservation) -> bool {
    let more = || match (preemptor.priority, seat.priority) {
        (Some(own), Some(other)) => own > other,
        _ => false,
    };
    preemptor.critical && !seat.critical || more()
}

/// Take the pod that comes nearest to the need until it is met; of two that come as near, the one
/// that asks for less, and of two that ask for the same, the younger one.
fn nearest<'a>(
    mut pods: Vec<(Ticket, &'a Reservation)>,
    mut need: Need<'_>,
) -> Result<Vec<(Ticket, &'a Reservation)>, String> {
    let mut chosen = Vec::new();
    while !need.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (index, (_, seat)) in pods.iter().enumerate() {
            let distance = distance(&need, seat);
            let is_better = best.is_none_or(|(known, least)| {
                distance < least || distance == least && is_smaller(seat, pods[known].1)
            });
            if is_better {
                best = Some((index, distance));
            }
        }
        let Some((index, _)) = best else { return Err(not_found(&need)) };
        let pod = pods.remove(index);
        need = without(&need, &[pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// What is still needed once those pods have ended.
fn without<'a>(need: &[(&'a str, i64)], pods: &[(Ticket, &Reservation)]) -> Need<'a> {
    let rest = |resource: &str, amount: i64| {
        pods.iter().fold(amount, |rest, (_, seat)| rest.saturating_sub(held(seat, resource)))
    };
    let rest = need.iter().map(|(name, amount)| (*name, rest(name, *amount)));
    rest.filter(|(_, amount)| *amount > 0).collect()
}

/// How far the end of a pod is from meeting a need: of each resource the part that still lacks,
/// squared.
fn distance(need: &[(&str, i64)], seat: &Reservation) -> f64 {
    let part = |(name, amount): &(&str, i64)| {
        let rest = amount.saturating_sub(held(seat, name)).max(0);
        (rest as f64 / *amount as f64).powi(2)
    };
    need.iter().map(part).sum()
}

fn held(seat: &Reservation, resource: &str) -> i64 {
    if resource == "pods" { 1 } else { seat.requests.get(resource) }
}

fn is_smaller(seat: &Reservation, other: &Reservation) -> bool {
    let size = |seat: &Reservation| (seat.requests.get("memory"), seat.requests.get("cpu"));
    size(seat) <= size(other)
}

fn not_found(need: &[(&str, i64)]) -> String {
    let parts: String =
        need.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), ")).collect();
    format!("no set of running pods found to reclaim resources: [{parts}]")
}
