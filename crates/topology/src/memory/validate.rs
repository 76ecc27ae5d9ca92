//! Validation of reservations and restored states.

use std::collections::{BTreeMap, BTreeSet};

use super::{MEMORY, NodeState, PolicyError, Reserved, State, take};
use crate::StateError;
use crate::machine::Node;
use crate::request::Amounts;

pub(super) fn reserved(
    nodes: &[Node],
    reserved: &Reserved,
    wanted: &Amounts,
) -> Result<(), PolicyError> {
    let mut sums = Amounts::new();
    for (id, amounts) in reserved {
        if !nodes.iter().any(|node| node.id == *id) {
            return Err(PolicyError::NoNode(*id));
        }
        for (resource, amount) in amounts {
            let sum = sums.entry(resource.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }
    let resources: BTreeSet<&String> = sums.keys().chain(wanted.keys()).collect();
    for resource in resources {
        let of = |amounts: &Amounts| amounts.get(resource).copied().unwrap_or(0);
        let (reserved, wanted) = (of(&sums), of(wanted));
        if reserved != wanted {
            return Err(PolicyError::Sum { resource: resource.clone(), reserved, wanted });
        }
    }
    match sums.get(MEMORY) {
        None | Some(0) => Err(PolicyError::NothingReserved),
        Some(_) => Ok(()),
    }
}

/// Whether the state follows from its assignments on this machine.
pub(super) fn state(empty: &BTreeMap<u32, NodeState>, kept: &State) -> Result<(), StateError> {
    let mut expected = empty.clone();
    let of_pods = kept.pods.iter().map(|(pod, blocks)| (pod, "", blocks));
    let others = kept.assignments.iter().filter(|(pod, _)| !kept.pods.contains_key(*pod));
    let of_containers = others.flat_map(|(pod, containers)| {
        containers.iter().map(move |(container, blocks)| (pod, container.as_str(), blocks))
    });
    for (pod, container, blocks) in of_pods.chain(of_containers) {
        for block in blocks {
            let lacks = |what: &str| {
                StateError::Mismatch(format!(
                    "[memorymanager] (pod: {pod}, container: {container}) the memory assignment \
                     uses {what} that does not exist"
                ))
            };
            // Pods may request 0 pages of sizes that the machine does not have, and nodes without
            // memory have none.
            let mut is_there = block.size == 0;
            for id in &block.nodes {
                let node = expected.get(id).ok_or_else(|| lacks("the NUMA"))?;
                is_there |= node.memory_map.contains_key(&block.resource);
            }
            if !is_there {
                return Err(lacks("memory resource"));
            }
            take(&mut expected, &block.nodes, &block.resource, block.size);
        }
    }
    let alike = expected.len() == kept.nodes.len()
        && kept.nodes.iter().all(|(id, node)| {
            expected.get(id).is_some_and(|other| {
                is_alike(node, other) && sums_are_alike(node, &kept.nodes, &expected)
            })
        });
    match alike {
        true => Ok(()),
        false => Err(StateError::Mismatch(
            "[memorymanager] the expected machine state is different from the real one".to_owned(),
        )),
    }
}

fn is_alike(one: &NodeState, other: &NodeState) -> bool {
    let cells = |node: &NodeState| {
        let mut cells = node.cells.clone();
        cells.sort_unstable();
        cells
    };
    one.number_of_assignments == other.number_of_assignments
        && cells(one) == cells(other)
        && one.memory_map.len() == other.memory_map.len()
        && one.memory_map.iter().all(|(resource, table)| {
            other.memory_map.get(resource).is_some_and(|other| {
                table.total == other.total
                    && table.system_reserved == other.system_reserved
                    && table.allocatable == other.allocatable
            })
        })
}

/// Within a group of nodes, the distribution does not matter.
fn sums_are_alike(
    node: &NodeState,
    kept: &BTreeMap<u32, NodeState>,
    expected: &BTreeMap<u32, NodeState>,
) -> bool {
    let sum = |nodes: &BTreeMap<u32, NodeState>, resource: &String| {
        let group = node.cells.iter().filter_map(|id| nodes.get(id)?.memory_map.get(resource));
        group.fold((0_u64, 0_u64), |(free, reserved), table| {
            (free.saturating_add(table.free), reserved.saturating_add(table.reserved))
        })
    };
    node.memory_map.keys().all(|resource| sum(kept, resource) == sum(expected, resource))
}
