//! The static memory policy: containers of Guaranteed pods have their memory and huge pages from as few
//! NUMA nodes as possible. A node is used by single-node containers only, or by containers of one group
//! of nodes.

mod reuse;
mod state;
mod validate;

use std::collections::BTreeMap;

use reuse::Reusable;
pub(crate) use state::or_default;
pub use state::{Assignments, Block, NodeState, State, Table};

use crate::combinations::combinations;
use crate::hints::{Hint, Hints};
use crate::machine::Node;
use crate::mask::NumaMask;
use crate::request::{Amounts, ContainerRequest, EmptyPool, Kind, PodRequest};
use crate::{Refusal, StateError};

/// The resource that every container has.
pub const MEMORY: &str = "memory";

/// Reserved bytes by node and resource.
pub type Reserved = BTreeMap<u32, Amounts>;

/// Maximum number of nodes, as the number of sets is exponential.
const MOST_NODES: usize = 16;

/// Why the policy is not possible on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No memory is reserved.
    #[error("the Static policy requires memory to be reserved for the system")]
    NothingReserved,
    /// Too many nodes.
    #[error("{0} NUMA nodes are more than the {MOST_NODES} that the Static policy can deal with")]
    TooManyNodes(usize),
    /// Memory is reserved on a node that does not exist.
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this machine"
    )]
    NoNode(u32),
    /// The sum of reserved memory does not match the node allocatable settings.
    #[error(
        "the total amount \"{reserved}\" of type \"{resource}\" is not equal to the value \
         \"{wanted}\" determined by Node Allocatable feature"
    )]
    Sum {
        /// `memory` or huge pages.
        resource: String,
        /// The sum.
        reserved: u64,
        /// The expected sum.
        wanted: u64,
    },
}

/// Why memory cannot be allocated. The texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// No set of nodes has enough.
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )]
    NoNodes,
    /// No preferred set of nodes has enough.
    #[error("[memorymanager] failed to find the default preferred hint")]
    NotPreferred,
    /// The nodes of the merged hint do not have enough.
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NotExtended,
    /// The extended hint is not preferred.
    #[error("[memorymanager] failed to find the extended preferred hint")]
    ExtendedNotPreferred,
    /// A node would be used in single-node and multi-node assignments.
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violates,
}

/// The static policy and its state.
#[derive(Clone, Debug)]
pub struct Policy {
    empty: BTreeMap<u32, NodeState>,
    state: State,
    reusable: Reusable,
}

impl Policy {
    /// With these nodes and reservations; `wanted` is the sum by the node allocatable settings.
    ///
    /// # Errors
    /// If the reservations do not match the settings or the machine.
    pub fn new(nodes: &[Node], reserved: &Reserved, wanted: &Amounts) -> Result<Self, PolicyError> {
        if nodes.len() > MOST_NODES {
            return Err(PolicyError::TooManyNodes(nodes.len()));
        }
        validate::reserved(nodes, reserved, wanted)?;
        let empty: BTreeMap<u32, NodeState> =
            nodes.iter().map(|node| (node.id, empty(node, reserved.get(&node.id)))).collect();
        let state = State { nodes: empty.clone(), ..State::default() };
        Ok(Self { empty, state, reusable: Reusable::default() })
    }

    /// Restores a state.
    ///
    /// # Errors
    /// If it does not match the machine or the reservations.
    pub fn restore(&mut self, state: State) -> Result<(), StateError> {
        if state.nodes.is_empty() {
            if !state.assignments.is_empty() || !state.pods.is_empty() {
                return Err(StateError::Mismatch(
                    "[memorymanager] machine state can not be empty when it has memory assignments"
                        .to_owned(),
                ));
            }
            return Ok(());
        }
        validate::state(&self.empty, &state)?;
        self.state = state;
        Ok(())
    }

    /// The memory assignments.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The nodes of the memory of a container, if it has any.
    pub fn nodes(&self, uid: &str, container: &str) -> Option<NumaMask> {
        let blocks = self.state.assignments.get(uid)?.get(container)?;
        let mask: NumaMask = blocks.iter().flat_map(|block| block.nodes.iter().copied()).collect();
        (!mask.is_empty()).then_some(mask)
    }

    /// Releases the memory of a pod. Returns whether it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        self.reusable.forget(uid);
        let containers = self.state.assignments.remove(uid);
        if let Some(blocks) = self.state.pods.remove(uid) {
            give_back(&mut self.state.nodes, &blocks);
            return true;
        }
        let Some(containers) = containers else { return false };
        containers.values().for_each(|blocks| give_back(&mut self.state.nodes, blocks));
        true
    }

    /// A container is about to start: releases the memory of earlier init containers that was not
    /// reused. Returns whether there was any.
    pub fn begin(&mut self, pod: &PodRequest, container: &str) -> bool {
        let before = pod.containers.iter().take_while(|other| other.name != container);
        let done = before.filter(|other| other.kind == Kind::Init);
        // It is the pod's.
        if self.state.pods.contains_key(&pod.uid) {
            return false;
        }
        let Some(containers) = self.state.assignments.get_mut(&pod.uid) else { return false };
        let mut changed = false;
        for init in done {
            if let Some(blocks) = containers.remove(&init.name) {
                give_back(&mut self.state.nodes, &blocks);
                changed = true;
            }
        }
        if containers.is_empty() {
            self.state.assignments.remove(&pod.uid);
        }
        changed
    }

    fn blocks(&self, uid: &str, container: &str) -> Option<&Vec<Block>> {
        self.state.assignments.get(uid)?.get(container)
    }

    /// Topology hints of a container.
    pub(crate) fn hints(&self, pod: &PodRequest, container: &ContainerRequest) -> Hints {
        match self.blocks(&pod.uid, &container.name) {
            _ if !pod.guaranteed || container.memory.is_empty() => Hints::new(),
            Some(blocks) => same_again(blocks, &container.memory),
            None => self.suits(&pod.uid, &container.memory),
        }
    }

    /// Topology hints of a pod.
    pub(crate) fn pod_hints(&self, pod: &PodRequest) -> Hints {
        let wanted = pod.memory();
        if !pod.guaranteed || wanted.is_empty() {
            return Hints::new();
        }
        if pod.own.is_some() {
            return match self.state.pods.get(&pod.uid) {
                _ if check_pool(pod, &wanted).is_err() => {
                    wanted.into_keys().map(|resource| (resource, Vec::new())).collect()
                }
                Some(blocks) => same_again(blocks, &wanted),
                None => self.suits(&pod.uid, &wanted),
            };
        }
        let mut own = pod.containers.iter().filter_map(|c| self.blocks(&pod.uid, &c.name));
        match own.next() {
            Some(blocks) => same_again(blocks, &wanted),
            None => self.suits(&pod.uid, &wanted),
        }
    }

    /// Allocates memory to a container, if it is to have any.
    pub(crate) fn allocate(
        &mut self,
        pod: &PodRequest,
        container: &ContainerRequest,
        hint: Hint,
    ) -> Result<(), Refusal> {
        if !pod.guaranteed || container.memory.is_empty() {
            return Ok(());
        }
        if let Some(blocks) = self.blocks(&pod.uid, &container.name).cloned() {
            self.reusable.note(&pod.uid, container.kind, &blocks);
            return Ok(());
        }
        let mask = self.choose(&pod.uid, &container.memory, hint)?;
        let nodes: Vec<u32> = mask.nodes().collect();
        let mut blocks = Vec::new();
        for (resource, size) in &container.memory {
            let reused = self.reusable.of(&pod.uid, mask, resource);
            let taken = size.saturating_sub(reused);
            take(&mut self.state.nodes, &nodes, resource, taken);
            let (nodes, resource) = (nodes.clone(), resource.clone());
            blocks.push(Block { nodes, resource, size: *size });
        }
        self.reusable.note(&pod.uid, container.kind, &blocks);
        let containers = self.state.assignments.entry(pod.uid.clone()).or_default();
        reuse::take_over(containers, pod, container, &blocks);
        containers.insert(container.name.clone(), blocks);
        Ok(())
    }

    /// Allocates the memory of a pod as a whole, and parts of it to its containers: those that request none
    /// for themselves share what is left. All of it is on the same nodes.
    pub(crate) fn allocate_pod(&mut self, pod: &PodRequest, hint: Hint) -> Result<(), Refusal> {
        let wanted = pod.memory();
        if !pod.guaranteed || wanted.is_empty() || self.state.pods.contains_key(&pod.uid) {
            return Ok(());
        }
        check_pool(pod, &wanted)?;
        let mask = self.choose(&pod.uid, &wanted, hint)?;
        let nodes: Vec<u32> = mask.nodes().collect();
        for (resource, size) in &wanted {
            take(&mut self.state.nodes, &nodes, resource, *size);
        }
        self.state.assignments.insert(pod.uid.clone(), partition(pod, &wanted, &nodes));
        self.state.pods.insert(pod.uid.clone(), blocks_of(&wanted, &nodes));
        Ok(())
    }

    /// The nodes for a container: those of the merged hint, extended if they do not have enough.
    fn choose(&self, uid: &str, wanted: &Amounts, hint: Hint) -> Result<NumaMask, AllocateError> {
        let possible = || self.suits(uid, wanted).remove(MEMORY).unwrap_or_default();
        let (agreed, preferred) = match hint.nodes {
            Some(mask) => (mask, hint.preferred),
            None => best(possible()).ok_or(AllocateError::NoNodes)?,
        };
        if hint.preferred && !preferred {
            return Err(AllocateError::NotPreferred);
        }
        let mut mask = agreed;
        if !self.have(agreed, wanted) {
            let mut wider = possible();
            wider.retain(|hint| hint.nodes.is_some_and(|nodes| agreed.is_within(nodes)));
            let (wide, is_preferred) = best(wider).ok_or(AllocateError::NotExtended)?;
            if preferred && !is_preferred {
                return Err(AllocateError::ExtendedNotPreferred);
            }
            mask = wide;
        }
        match mask.len() > 1 && !self.may_group(mask) {
            true => Err(AllocateError::Violates),
            false => Ok(mask),
        }
    }

    /// Whether the nodes have enough free memory.
    fn have(&self, mask: NumaMask, wanted: &Amounts) -> bool {
        wanted.iter().all(|(resource, size)| self.sum(mask, resource, |table| table.free) >= *size)
    }

    fn sum(&self, mask: NumaMask, resource: &str, of: fn(&Table) -> u64) -> u64 {
        let nodes = mask.nodes().filter_map(|node| self.state.nodes.get(&node));
        let tables = nodes.filter_map(|node| node.memory_map.get(resource));
        tables.map(of).fold(0, u64::saturating_add)
    }

    /// Whether these nodes are one group already, or unused.
    fn may_group(&self, mask: NumaMask) -> bool {
        let is_group =
            |cells: &[u32]| cells.len() > 1 && cells.iter().copied().collect::<NumaMask>() == mask;
        mask.nodes()
            .filter_map(|node| self.state.nodes.get(&node))
            .all(|node| node.number_of_assignments == 0 || is_group(&node.cells))
    }

    /// All sets of nodes that have the requested amount, for each resource.
    fn suits(&self, uid: &str, wanted: &Amounts) -> Hints {
        let nodes: Vec<u32> = self.state.nodes.keys().copied().collect();
        let mut least = nodes.len();
        let mut found: Vec<NumaMask> = Vec::new();
        for count in 1..=nodes.len() {
            for subset in combinations(&nodes, count) {
                let mask: NumaMask = subset.into_iter().collect();
                let could = |(resource, size): (&String, &u64)| {
                    self.sum(mask, resource, |table| table.allocatable) >= *size
                };
                if !wanted.iter().all(could) {
                    continue;
                }
                least = least.min(count);
                let is_grouped = |node: u32| {
                    self.state.nodes.get(&node).is_some_and(|node| node.cells.len() > 1)
                };
                let may = match count {
                    1 => !mask.nodes().any(is_grouped),
                    _ => self.may_group(mask),
                };
                let can = |(resource, size): (&String, &u64)| {
                    let free = self.sum(mask, resource, |table| table.free);
                    free.saturating_add(self.reusable.of(uid, mask, resource)) >= *size
                };
                if may && wanted.iter().all(can) {
                    found.push(mask);
                }
            }
        }
        if found.is_empty() {
            return Hints::new();
        }
        let hint = |mask: &NumaMask| Hint { nodes: Some(*mask), preferred: mask.len() == least };
        let hints: Vec<Hint> = found.iter().map(hint).collect();
        wanted.keys().map(|resource| (resource.clone(), hints.clone())).collect()
    }
}

/// Whether the containers of a pod that share its memory have some of each kind.
fn check_pool(pod: &PodRequest, total: &Amounts) -> Result<(), EmptyPool> {
    total.iter().try_for_each(|(resource, total)| {
        let own = |container: &ContainerRequest| {
            let has_own = !container.memory.is_empty();
            has_own.then(|| container.memory.get(resource).copied().unwrap_or(0))
        };
        pod.check_pool(resource, *total, own)
    })
}

/// The memory of each container of a pod that has this on these nodes.
fn partition(pod: &PodRequest, total: &Amounts, nodes: &[u32]) -> BTreeMap<String, Vec<Block>> {
    let mut parts = BTreeMap::new();
    // Init containers run one after the other, beside the sidecars before them.
    let mut left = total.clone();
    for container in &pod.containers {
        let own = &container.memory;
        let blocks = match container.kind {
            Kind::Init if own.is_empty() => blocks_of(&left, nodes),
            Kind::Sidecar | Kind::Main if own.is_empty() => continue,
            _ => blocks_of(own, nodes),
        };
        if container.kind != Kind::Init {
            for (resource, size) in own {
                let rest = left.entry(resource.clone()).or_default();
                *rest = rest.saturating_sub(*size);
            }
        }
        parts.insert(container.name.clone(), blocks);
    }
    for container in &pod.containers {
        parts.entry(container.name.clone()).or_insert_with(|| blocks_of(&left, nodes));
    }
    parts
}

/// Blocks of these amounts, without empty ones.
fn blocks_of(amounts: &Amounts, nodes: &[u32]) -> Vec<Block> {
    let amounts = amounts.iter().filter(|(_, size)| **size > 0);
    let block = |(resource, size): (&String, &u64)| Block {
        nodes: nodes.to_vec(),
        resource: resource.clone(),
        size: *size,
    };
    amounts.map(block).collect()
}

/// A node without assignments.
fn empty(node: &Node, reserved: Option<&Amounts>) -> NodeState {
    let held = |resource: &str| reserved.and_then(|own| own.get(resource)).copied().unwrap_or(0);
    let table = |resource: &str, total: u64, usable: u64| {
        let allocatable = usable.saturating_sub(held(resource));
        Table {
            total,
            system_reserved: held(resource),
            allocatable,
            reserved: 0,
            free: allocatable,
        }
    };
    let mut tables = BTreeMap::new();
    let mut in_pages = 0_u64;
    for (size, count) in &node.huge_pages {
        let total = size.saturating_mul(*count);
        in_pages = in_pages.saturating_add(total);
        let resource = huge_pages(*size);
        let table = table(&resource, total, total);
        tables.insert(resource, table);
    }
    let usable = node.memory.saturating_sub(in_pages);
    tables.insert(MEMORY.to_owned(), table(MEMORY, node.memory, usable));
    NodeState { number_of_assignments: 0, memory_map: tables, cells: vec![node.id] }
}

/// The resource of huge pages of that size (bytes): `hugepages-2Mi`.
pub fn huge_pages(size: u64) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut size, mut unit) = (size, 0);
    while size > 0 && size % 1024 == 0 && unit + 1 < units.len() {
        size /= 1024;
        unit += 1;
    }
    format!("hugepages-{size}{}", units.get(unit).unwrap_or(&""))
}

/// Takes memory from the nodes in order, and makes them a group.
fn take(nodes: &mut BTreeMap<u32, NodeState>, group: &[u32], resource: &str, size: u64) {
    let mut left = size;
    for id in group {
        let Some(node) = nodes.get_mut(id) else { continue };
        node.number_of_assignments = node.number_of_assignments.saturating_add(1);
        node.cells = group.to_vec();
        let Some(table) = node.memory_map.get_mut(resource) else { continue };
        let taken = left.min(table.free);
        table.free = table.free.saturating_sub(taken);
        table.reserved = table.reserved.saturating_add(taken);
        left = left.saturating_sub(taken);
    }
}

fn give_back(nodes: &mut BTreeMap<u32, NodeState>, blocks: &[Block]) {
    for block in blocks {
        let mut left = block.size;
        for id in &block.nodes {
            let Some(node) = nodes.get_mut(id) else { continue };
            node.number_of_assignments = node.number_of_assignments.saturating_sub(1);
            if node.number_of_assignments == 0 {
                node.cells = vec![*id];
            }
            let Some(table) = node.memory_map.get_mut(&block.resource) else { continue };
            let given = left.min(table.reserved);
            table.reserved = table.reserved.saturating_sub(given);
            table.free = table.free.saturating_add(given);
            left = left.saturating_sub(given);
        }
    }
}

/// Hints of an existing assignment; no preference if the request has changed.
fn same_again(blocks: &[Block], wanted: &Amounts) -> Hints {
    let same = |block: &Block| wanted.get(&block.resource) == Some(&block.size);
    if blocks.len() != wanted.len() || !blocks.iter().all(same) {
        return Hints::new();
    }
    let mut hints: Hints = wanted.keys().map(|resource| (resource.clone(), Vec::new())).collect();
    for block in blocks {
        let nodes = Some(block.nodes.iter().copied().collect());
        hints.entry(block.resource.clone()).or_default().push(Hint { nodes, preferred: true });
    }
    hints
}

/// The preferred hint with the fewest nodes, or else the one with the fewest.
fn best(hints: Vec<Hint>) -> Option<(NumaMask, bool)> {
    let hints = hints.into_iter().filter_map(|hint| Some((hint.nodes?, hint.preferred)));
    hints.min_by_key(|(mask, preferred)| (!preferred, mask.len(), *mask))
}

#[cfg(test)]
mod tests;
