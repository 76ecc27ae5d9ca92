//! Who has which memory, in the shape in which it is kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// The memory of one kind on one node, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Table {
    /// All of it.
    pub total: u64,
    /// What is kept from pods.
    #[serde(rename = "systemReserved")]
    pub system_reserved: u64,
    /// What containers may have.
    pub allocatable: u64,
    /// What containers have.
    pub reserved: u64,
    /// What they may have yet.
    pub free: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeState {
    /// How many blocks lie on it.
    pub number_of_assignments: i64,
    /// Its memory by resource.
    #[serde(deserialize_with = "or_default")]
    pub memory_map: BTreeMap<String, Table>,
    /// Itself, or the group of nodes over which its blocks extend.
    #[serde(deserialize_with = "or_default")]
    pub cells: Vec<u32>,
}

/// Memory of one kind that a container has, over these nodes.
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

/// Who has which memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The nodes by number.
    pub nodes: BTreeMap<u32, NodeState>,
    /// What containers have.
    pub assignments: Assignments,
}

/// Go writes null for what is empty.
pub(crate) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
