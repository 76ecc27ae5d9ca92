//! State of the memory manager, as in its checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// The memory of one kind on one node, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Table {
    /// Total.
    pub total: u64,
    /// Reserved for the system.
    #[serde(rename = "systemReserved")]
    pub system_reserved: u64,
    /// Allocatable.
    pub allocatable: u64,
    /// Allocated to containers.
    pub reserved: u64,
    /// Free.
    pub free: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeState {
    /// Number of assigned blocks.
    pub number_of_assignments: i64,
    /// Its memory by resource.
    #[serde(deserialize_with = "or_default")]
    pub memory_map: BTreeMap<String, Table>,
    /// The node itself, or the group of nodes of its blocks.
    #[serde(deserialize_with = "or_default")]
    pub cells: Vec<u32>,
}

/// Memory of a container on these nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Block {
    /// The nodes.
    #[serde(rename = "numaAffinity", deserialize_with = "or_default")]
    pub nodes: Vec<u32>,
    /// The resource.
    #[serde(rename = "type")]
    pub resource: String,
    /// Bytes.
    pub size: u64,
}

/// Blocks by pod UID and container.
pub type Assignments = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

/// The memory assignments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The nodes by number.
    pub nodes: BTreeMap<u32, NodeState>,
    /// The blocks of containers.
    pub assignments: Assignments,
    /// The blocks of whole pods, by UID: what their containers have is of these.
    pub pods: BTreeMap<String, Vec<Block>>,
}

impl State {
    /// The allocatable memory, in use or not, by node and resource.
    pub fn allocatable(&self) -> Vec<Block> {
        let nodes = self.nodes.iter();
        let tables = nodes.flat_map(|(id, node)| node.memory_map.iter().map(move |own| (*id, own)));
        let blocks = tables.filter(|(_, (_, table))| table.allocatable > 0);
        blocks
            .map(|(id, (resource, table))| Block {
                nodes: vec![id],
                resource: resource.clone(),
                size: table.allocatable,
            })
            .collect()
    }
}

/// Go writes null for empty values.
pub(crate) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
