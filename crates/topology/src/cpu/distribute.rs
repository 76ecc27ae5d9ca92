//! Distributes CPUs evenly over as few NUMA nodes as possible, if one is not enough.

use std::collections::BTreeMap;

use super::assign::{AssignError, Manner, Picker, packed};
use crate::CpuSet;
use crate::combinations::combinations;
use crate::machine::{Cpus, Level};

/// Free CPUs of each node.
type FreeCpus = BTreeMap<i64, usize>;

/// Picks `wanted` of the `available` CPUs, `group` at a time from each node.
pub(crate) fn distributed(
    cpus: &Cpus,
    available: &CpuSet,
    wanted: usize,
    group: usize,
    manner: Manner,
) -> Result<CpuSet, AssignError> {
    let manner = Manner { by_uncore: false, ..manner };
    let group = group.max(1);
    if !wanted.is_multiple_of(group) {
        return packed(cpus, available, wanted, manner);
    }
    let mut picker = Picker::new(cpus, available, wanted)?;
    if wanted == 0 {
        return Ok(picker.picked);
    }
    let nodes = picker.sorted(Level::Numa);
    let free_cpus: FreeCpus =
        nodes.iter().map(|node| (*node, picker.free.count_in(Level::Numa, *node))).collect();
    let (fewest, most) = range(cpus, &free_cpus, wanted, group);
    for count in fewest..=most {
        let Some(share) = best_share(&nodes, count, &free_cpus, wanted, group) else { continue };
        let each = share.each;
        let takes = share.nodes.into_iter().map(|node| (node, each));
        for (node, count) in takes.chain(share.rest.into_iter().map(|node| (node, group))) {
            let free = picker.free.cpus_in(Level::Numa, node);
            picker.take(&packed(cpus, &free, count, manner)?);
        }
        return if picker.needed == 0 { Ok(picker.picked) } else { Err(AssignError::Failed) };
    }
    packed(cpus, available, wanted, manner)
}

/// Minimum and maximum number of nodes that can satisfy the request.
fn range(cpus: &Cpus, free_cpus: &FreeCpus, wanted: usize, group: usize) -> (usize, usize) {
    let nodes = cpus.groups(Level::Numa).len().max(1);
    let groups_of_node = cpus.len().div_ceil(group).div_ceil(nodes).max(1);
    let groups = wanted.div_ceil(group);
    (groups.div_ceil(groups_of_node), groups.min(free_cpus.len()))
}

/// The share of each node.
struct Share {
    nodes: Vec<i64>,
    /// CPUs from each node.
    each: usize,
    /// Nodes with one more group, in order.
    rest: Vec<i64>,
}

/// Of all sets of `count` nodes, the one that leaves the nodes most balanced.
fn best_share(
    nodes: &[i64],
    count: usize,
    free_cpus: &FreeCpus,
    wanted: usize,
    group: usize,
) -> Option<Share> {
    let free = |free_cpus: &FreeCpus, node: &i64| free_cpus.get(node).copied().unwrap_or(0);
    let each = wanted / count.max(1) / group * group;
    let remainder = wanted.saturating_sub(each * count);
    let mut best: Option<(f64, Share)> = None;
    for combination in combinations(nodes, count) {
        if best.as_ref().is_some_and(|(balance, _)| *balance == 0.0) {
            break;
        }
        let groups: usize = combination.iter().map(|node| free(free_cpus, node) / group).sum();
        if groups * group < wanted || combination.iter().any(|node| free(free_cpus, node) < each) {
            continue;
        }
        let mut after = free_cpus.clone();
        for node in &combination {
            after.entry(*node).and_modify(|free| *free -= each);
        }
        let Some((balance, rest)) = best_rest(&combination, &after, remainder, group) else {
            continue;
        };
        if best.as_ref().is_none_or(|(least, _)| balance < *least) {
            best = Some((balance, Share { nodes: combination, each, rest }));
        }
    }
    best.map(|(_, share)| share)
}

/// The nodes for the remainder that leave the nodes most balanced.
fn best_rest(
    nodes: &[i64],
    free_cpus: &FreeCpus,
    remainder: usize,
    group: usize,
) -> Option<(f64, Vec<i64>)> {
    if remainder == 0 {
        return Some((deviation(free_cpus), Vec::new()));
    }
    let has_group = |node: &&i64| free_cpus.get(node).is_some_and(|free| *free >= group);
    let nodes: Vec<i64> = nodes.iter().filter(has_group).copied().collect();
    let mut best: Option<(f64, Vec<i64>)> = None;
    for count in (1..=nodes.len()).rev() {
        for subset in combinations(&nodes, count) {
            let mut after = free_cpus.clone();
            let Some(rest) = deal(&subset, &mut after, remainder, group) else { continue };
            let balance = deviation(&after);
            if best.as_ref().is_none_or(|(least, _)| balance < *least) {
                best = Some((balance, rest));
            }
        }
    }
    best
}

/// Takes groups from the nodes in turn until the remainder is distributed; `None` if they have too few.
fn deal(
    nodes: &[i64],
    free_cpus: &mut FreeCpus,
    remainder: usize,
    group: usize,
) -> Option<Vec<i64>> {
    let mut rest = Vec::new();
    while rest.len() * group < remainder {
        let before = rest.len();
        for node in nodes {
            if rest.len() * group >= remainder {
                break;
            }
            if let Some(free) = free_cpus.get_mut(node).filter(|free| **free >= group) {
                *free -= group;
                rest.push(*node);
            }
        }
        if rest.len() == before {
            return None;
        }
    }
    Some(rest)
}

/// The standard deviation, rounded to three decimal places for comparison.
fn deviation(free_cpus: &FreeCpus) -> f64 {
    let thousandths = |value: f64| (value * 1000.0).round() / 1000.0;
    let count = free_cpus.len() as f64;
    let mean = thousandths(free_cpus.values().map(|free| *free as f64).sum::<f64>() / count);
    let sum: f64 = free_cpus.values().map(|free| (*free as f64 - mean).powi(2)).sum();
    thousandths((sum / count).sqrt())
}
