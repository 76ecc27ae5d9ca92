//! CPUs evenly from as few NUMA nodes as can serve, where one alone cannot.

use std::collections::BTreeMap;

use super::assign::{AssignError, Manner, Picker, packed};
use crate::CpuSet;
use crate::combinations::combinations;
use crate::machine::{Cpus, Level};

/// Free CPUs of each node.
type Room = BTreeMap<i64, usize>;

/// Pick `wanted` CPUs of those that are `available`, `group` at a time from each node.
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
    let room: Room =
        nodes.iter().map(|node| (*node, picker.free.count_in(Level::Numa, *node))).collect();
    let (fewest, most) = range(cpus, &room, wanted, group);
    for count in fewest..=most {
        let Some(share) = best_share(&nodes, count, &room, wanted, group) else { continue };
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

/// With how few nodes the request may be served, and with how many at most.
fn range(cpus: &Cpus, room: &Room, wanted: usize, group: usize) -> (usize, usize) {
    let nodes = cpus.groups(Level::Numa).len().max(1);
    let groups_of_node = cpus.len().div_ceil(group).div_ceil(nodes).max(1);
    let groups = wanted.div_ceil(group);
    (groups.div_ceil(groups_of_node), groups.min(room.len()))
}

/// What each node gives.
struct Share {
    nodes: Vec<i64>,
    /// CPUs from each of them.
    each: usize,
    /// Nodes that give one more group each, in that order.
    rest: Vec<i64>,
}

/// Of all sets of `count` nodes that can serve, the one that leaves the nodes most alike.
fn best_share(
    nodes: &[i64],
    count: usize,
    room: &Room,
    wanted: usize,
    group: usize,
) -> Option<Share> {
    let free = |room: &Room, node: &i64| room.get(node).copied().unwrap_or(0);
    let each = wanted / count.max(1) / group * group;
    let remainder = wanted.saturating_sub(each * count);
    let mut best: Option<(f64, Share)> = None;
    for combination in combinations(nodes, count) {
        if best.as_ref().is_some_and(|(balance, _)| *balance == 0.0) {
            break;
        }
        let groups: usize = combination.iter().map(|node| free(room, node) / group).sum();
        if groups * group < wanted || combination.iter().any(|node| free(room, node) < each) {
            continue;
        }
        let mut after = room.clone();
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

/// From which nodes the remainder comes, so that the nodes are most alike after it.
fn best_rest(
    nodes: &[i64],
    room: &Room,
    remainder: usize,
    group: usize,
) -> Option<(f64, Vec<i64>)> {
    if remainder == 0 {
        return Some((deviation(room), Vec::new()));
    }
    let has_group = |node: &&i64| room.get(node).is_some_and(|free| *free >= group);
    let nodes: Vec<i64> = nodes.iter().filter(has_group).copied().collect();
    let mut best: Option<(f64, Vec<i64>)> = None;
    for count in (1..=nodes.len()).rev() {
        for subset in combinations(&nodes, count) {
            let mut after = room.clone();
            let Some(rest) = deal(&subset, &mut after, remainder, group) else { continue };
            let balance = deviation(&after);
            if best.as_ref().is_none_or(|(least, _)| balance < *least) {
                best = Some((balance, rest));
            }
        }
    }
    best
}

/// Take groups in turn from the nodes until the remainder is dealt out; `None` if they lack it.
fn deal(nodes: &[i64], room: &mut Room, remainder: usize, group: usize) -> Option<Vec<i64>> {
    let mut rest = Vec::new();
    while rest.len() * group < remainder {
        let before = rest.len();
        for node in nodes {
            if rest.len() * group >= remainder {
                break;
            }
            if let Some(free) = room.get_mut(node).filter(|free| **free >= group) {
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

/// The standard deviation to three decimal places, as it is compared.
fn deviation(room: &Room) -> f64 {
    let thousandths = |value: f64| (value * 1000.0).round() / 1000.0;
    let count = room.len() as f64;
    let mean = thousandths(room.values().map(|free| *free as f64).sum::<f64>() / count);
    let sum: f64 = room.values().map(|free| (*free as f64 - mean).powi(2)).sum();
    thousandths((sum / count).sqrt())
}
