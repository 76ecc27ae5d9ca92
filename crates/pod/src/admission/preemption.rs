//! Preemption for a critical pod that does not fit: as few victims as possible, by QoS class the
//! least guaranteed ones.

use k8s_openapi::api::core::v1::Pod;

use super::fit::InsufficientResource;
use super::ledger::{Ledger, Reservation, Ticket};
use crate::qos::QosClass;
use crate::status::Verdict;

/// The status of a pod that is preempted.
pub fn preemption_verdict() -> Verdict {
    Verdict {
        disruption: Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned()),
        ..Verdict::failed("Preempting", "Preempted in order to admit critical pod")
    }
}

/// The amounts still to be freed, by resource; all are above zero.
type Need<'a> = Vec<(&'a str, i64)>;

/// Pods to preempt to free those resources, or why there are none.
pub(super) fn victims(
    pod: &Pod,
    ledger: &Ledger,
    insufficient: &[&InsufficientResource],
) -> Result<Vec<Ticket>, String> {
    let preemptor = Reservation::new(pod);
    let of = |class: QosClass| -> Vec<(Ticket, &Reservation)> {
        let candidates = ledger
            .not_preempted()
            .filter(|(_, reservation)| is_preemptable(reservation, &preemptor));
        candidates.filter(|(_, reservation)| reservation.class == class).collect()
    };
    let need: Need<'_> =
        insufficient.iter().map(|one| (one.resource.as_str(), one.missing())).collect();
    let (best_effort, burstable, guaranteed) =
        (of(QosClass::BestEffort), of(QosClass::Burstable), of(QosClass::Guaranteed));
    let lower: Vec<_> = best_effort.iter().chain(&burstable).copied().collect();
    let all: Vec<_> = lower.iter().chain(&guaranteed).copied().collect();
    let unmet = remaining_need(&need, &all);
    if !unmet.is_empty() {
        return Err(not_found(&unmet));
    }
    // From each class what the others cannot free, starting with guaranteed pods.
    let guaranteed = closest(guaranteed, remaining_need(&need, &lower))?;
    let others: Vec<_> = best_effort.iter().chain(&guaranteed).copied().collect();
    let burstable = closest(burstable, remaining_need(&need, &others))?;
    let chosen: Vec<_> = burstable.into_iter().chain(guaranteed).collect();
    let best_effort = closest(best_effort, remaining_need(&need, &chosen))?;
    Ok(best_effort.into_iter().chain(chosen).map(|(ticket, _)| ticket).collect())
}

/// Whether `preemptor` may preempt the pod.
fn is_preemptable(reservation: &Reservation, preemptor: &Reservation) -> bool {
    let more = || match (preemptor.priority, reservation.priority) {
        (Some(own), Some(other)) => own > other,
        _ => false,
    };
    preemptor.critical && !reservation.critical || more()
}

/// Choose the pod closest to the need until it is met; of two equally close ones the one with the
/// smaller requests, then the younger one.
fn closest<'a>(
    mut pods: Vec<(Ticket, &'a Reservation)>,
    mut need: Need<'_>,
) -> Result<Vec<(Ticket, &'a Reservation)>, String> {
    let mut chosen = Vec::new();
    while !need.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (index, (_, reservation)) in pods.iter().enumerate() {
            let distance = distance(&need, reservation);
            let is_better = best.is_none_or(|(known, least)| {
                distance < least || distance == least && is_smaller(reservation, pods[known].1)
            });
            if is_better {
                best = Some((index, distance));
            }
        }
        let Some((index, _)) = best else { return Err(not_found(&need)) };
        let pod = pods.remove(index);
        need = remaining_need(&need, &[pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// The need that is left once those pods have ended.
fn remaining_need<'a>(need: &[(&'a str, i64)], pods: &[(Ticket, &Reservation)]) -> Need<'a> {
    let rest = |resource: &str, amount: i64| {
        pods.iter().fold(amount, |rest, (_, reservation)| {
            rest.saturating_sub(reserved(reservation, resource))
        })
    };
    let rest = need.iter().map(|(name, amount)| (*name, rest(name, *amount)));
    rest.filter(|(_, amount)| *amount > 0).collect()
}

/// The distance of a pod from meeting a need: the sum of the squares of the missing parts, as
/// upstream computes it.
fn distance(need: &[(&str, i64)], reservation: &Reservation) -> f64 {
    let part = |(name, amount): &(&str, i64)| {
        let rest = amount.saturating_sub(reserved(reservation, name)).max(0);
        (rest as f64 / *amount as f64).powi(2)
    };
    need.iter().map(part).sum()
}

fn reserved(reservation: &Reservation, resource: &str) -> i64 {
    if resource == "pods" { 1 } else { reservation.requests.get(resource) }
}

fn is_smaller(reservation: &Reservation, other: &Reservation) -> bool {
    let size = |reservation: &Reservation| {
        (reservation.requests.get("memory"), reservation.requests.get("cpu"))
    };
    size(reservation) <= size(other)
}

fn not_found(need: &[(&str, i64)]) -> String {
    let parts: String =
        need.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), ")).collect();
    format!("no set of running pods found to reclaim resources: [{parts}]")
}
