//! The checkpoints `cpu_manager_state` and `memory_manager_state` of Kubernetes 1.36: JSON with a
//! checksum over the Go representation of the struct.

use std::collections::BTreeMap;

use longshore_godump::{Fnv32a, Types, print};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{CpuSet, cpu, memory};

/// Why a checkpoint cannot be restored. The texts are upstream's, where it has any.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It is not in the format.
    #[error("{0}")]
    Format(String),
    /// The checksum does not match.
    #[error("checkpoint is corrupted")]
    Corrupt,
    /// It was written with another policy.
    #[error("configured policy {configured:?} differs from state checkpoint policy {kept:?}")]
    Policy {
        /// The current policy.
        configured: String,
        /// The policy of the checkpoint.
        kept: String,
    },
    /// It does not match the machine or the reservations.
    #[error("{0}")]
    Mismatch(String),
}

#[derive(Serialize, Deserialize)]
struct CpuFile {
    #[serde(rename = "policyName", default)]
    policy: String,
    #[serde(rename = "defaultCpuSet", default)]
    shared: String,
    #[serde(default, deserialize_with = "memory::or_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryFile {
    #[serde(rename = "policyName", default)]
    policy: String,
    #[serde(default, deserialize_with = "memory::or_default")]
    machine_state: BTreeMap<String, memory::NodeState>,
    #[serde(default, deserialize_with = "memory::or_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: memory::Assignments,
    #[serde(default)]
    checksum: u64,
}

/// The checkpoint of the CPU manager.
pub fn write_cpu(policy: &str, state: &cpu::State) -> String {
    let text = |containers: &BTreeMap<String, CpuSet>| {
        containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
    };
    let entries = state.assignments.iter().map(|(uid, own)| (uid.clone(), text(own))).collect();
    let shared = state.shared.to_string();
    let mut file = CpuFile { policy: policy.to_owned(), shared, entries, checksum: 0 };
    file.checksum = checksum(CPU, &to_value(&file)).into();
    to_text(&file)
}

/// Parses a checkpoint of the CPU manager.
///
/// # Errors
/// If it is invalid, or of another policy.
pub fn read_cpu(policy: &str, text: &str) -> Result<cpu::State, StateError> {
    let file: CpuFile = read(text, [CPU, CPU_NEWER], |file: &CpuFile| file.checksum)?;
    check_policy(policy, file.policy)?;
    let set = |text: &str| {
        text.parse::<CpuSet>()
            .map_err(|error| StateError::Format(format!("could not parse cpu set: {error}")))
    };
    let mut assignments = cpu::Assignments::new();
    for (uid, containers) in &file.entries {
        let own = containers.iter().map(|(name, cpus)| Ok((name.clone(), set(cpus)?)));
        assignments.insert(uid.clone(), own.collect::<Result<_, StateError>>()?);
    }
    Ok(cpu::State { shared: set(&file.shared)?, assignments })
}

/// The checkpoint of the memory manager.
pub fn write_memory(policy: &str, state: &memory::State) -> String {
    let nodes = state.nodes.iter().map(|(id, node)| (id.to_string(), node.clone()));
    let mut file = MemoryFile {
        policy: policy.to_owned(),
        machine_state: nodes.collect(),
        entries: state.assignments.clone(),
        checksum: 0,
    };
    file.checksum = checksum(MEMORY, &to_value(&file)).into();
    to_text(&file)
}

/// Parses a checkpoint of the memory manager.
///
/// # Errors
/// If it is invalid, or of another policy.
pub fn read_memory(policy: &str, text: &str) -> Result<memory::State, StateError> {
    let file: MemoryFile = read(text, [MEMORY, MEMORY_NEWER], |file: &MemoryFile| file.checksum)?;
    check_policy(policy, file.policy)?;
    let mut nodes = BTreeMap::new();
    for (id, node) in file.machine_state {
        let id = id.parse().map_err(|_| StateError::Format(format!("{id:?} is no NUMA node")))?;
        nodes.insert(id, node);
    }
    Ok(memory::State { nodes, assignments: file.entries })
}

/// Go's types of the structs; newer names are accepted as upstream does.
const CPU: &str = "*state.CPUManagerCheckpoint";
const CPU_NEWER: &str = "*state.CPUManagerCheckpointV2";
const MEMORY: &str = "*state.MemoryManagerCheckpoint";
const MEMORY_NEWER: &str = "*state.MemoryManagerCheckpointV1";
const TYPES: &str = include_str!("checkpoint.types.txt");

fn read<T: for<'de> Deserialize<'de>>(
    text: &str,
    types: [&str; 2],
    checksum_of: fn(&T) -> u64,
) -> Result<T, StateError> {
    let format = |error: serde_json::Error| StateError::Format(error.to_string());
    let value: Value = serde_json::from_str(text).map_err(format)?;
    let file: T = serde_json::from_value(value.clone()).map_err(format)?;
    // Old files have none.
    let expected = checksum_of(&file);
    let matches = |ty: &&str| u64::from(checksum(ty, &value)) == expected;
    match expected == 0 || types.iter().any(matches) {
        true => Ok(file),
        false => Err(StateError::Corrupt),
    }
}

/// The checksum of the content of a file.
fn checksum(ty: &str, file: &Value) -> u32 {
    let mut content = file.clone();
    if let Some(fields) = content.as_object_mut() {
        fields.remove("checksum");
        // Omitted maps are empty in memory, not nil.
        for map in ["entries", "machineState"] {
            fields.entry(map).or_insert_with(|| json!({}));
        }
    }
    let mut hasher = Fnv32a::default();
    // Writing to a hasher cannot fail.
    let _ = print(&Types::parse(TYPES), ty, &content, &mut hasher);
    hasher.finish()
}

fn check_policy(configured: &str, kept: String) -> Result<(), StateError> {
    match configured == kept {
        true => Ok(()),
        false => Err(StateError::Policy { configured: configured.to_owned(), kept }),
    }
}

fn to_value(file: &impl Serialize) -> Value {
    // Maps with string keys and plain fields always serialize.
    serde_json::to_value(file).unwrap_or_default()
}

fn to_text(file: &impl Serialize) -> String {
    serde_json::to_string(file).unwrap_or_default()
}

#[cfg(test)]
mod tests;
