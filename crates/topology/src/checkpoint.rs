//! The checkpoints `cpu_manager_state` and `memory_manager_state` of Kubernetes 1.36: JSON with a
//! checksum over the Go representation of the struct. There are two forms of each, as [`Form`] says.

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

/// The form of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// That of old.
    #[default]
    Plain,
    /// With what whole pods have (gate `PodLevelResourceManagers`). A file of the other form is read, too;
    /// as upstream, one of this form is not without the gate.
    WithPods,
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
    #[serde(rename = "podEntries", default, deserialize_with = "memory::or_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pods: BTreeMap<String, CpuEntry>,
    #[serde(default)]
    checksum: u64,
}

/// The CPUs of a pod.
#[derive(Default, Serialize, Deserialize)]
struct CpuEntry {
    #[serde(rename = "cpuSet", default, skip_serializing_if = "String::is_empty")]
    cpus: String,
}

/// The memory of a pod.
#[derive(Default, Serialize, Deserialize)]
struct MemoryEntry {
    #[serde(rename = "memoryBlocks", default, deserialize_with = "memory::or_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<memory::Block>,
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
    #[serde(rename = "podEntries", default, deserialize_with = "memory::or_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pods: BTreeMap<String, MemoryEntry>,
    #[serde(default)]
    checksum: u64,
}

/// The checkpoint of the CPU manager.
pub fn write_cpu(form: Form, policy: &str, state: &cpu::State) -> String {
    let text = |containers: &BTreeMap<String, CpuSet>| {
        containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
    };
    let entries = state.assignments.iter().map(|(uid, own)| (uid.clone(), text(own))).collect();
    let shared = state.shared.to_string();
    let entry = |cpus: &CpuSet| CpuEntry { cpus: cpus.to_string() };
    let pods = state.pods.iter().map(|(uid, cpus)| (uid.clone(), entry(cpus))).collect();
    let mut file = CpuFile { policy: policy.to_owned(), shared, entries, pods, checksum: 0 };
    file.checksum = checksum(form, CPU, &to_value(&file)).into();
    to_text(&file)
}

/// Parses a checkpoint of the CPU manager.
///
/// # Errors
/// If it is invalid, or of another policy.
pub fn read_cpu(form: Form, policy: &str, text: &str) -> Result<cpu::State, StateError> {
    let file: CpuFile = read(form, text, [CPU, CPU_NEWER], |file: &CpuFile| file.checksum)?;
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
    let pods = file.pods.iter().filter(|_| form == Form::WithPods);
    let pods = pods.map(|(uid, entry)| Ok((uid.clone(), set(&entry.cpus)?)));
    let pods = pods.collect::<Result<_, StateError>>()?;
    Ok(cpu::State { shared: set(&file.shared)?, assignments, pods })
}

/// The checkpoint of the memory manager.
pub fn write_memory(form: Form, policy: &str, state: &memory::State) -> String {
    let entry = |blocks: &Vec<memory::Block>| MemoryEntry { blocks: blocks.clone() };
    let pods = state.pods.iter().map(|(uid, blocks)| (uid.clone(), entry(blocks)));
    let nodes = state.nodes.iter().map(|(id, node)| (id.to_string(), node.clone()));
    let mut file = MemoryFile {
        policy: policy.to_owned(),
        machine_state: nodes.collect(),
        entries: state.assignments.clone(),
        pods: pods.collect(),
        checksum: 0,
    };
    file.checksum = checksum(form, MEMORY, &to_value(&file)).into();
    to_text(&file)
}

/// Parses a checkpoint of the memory manager.
///
/// # Errors
/// If it is invalid, or of another policy.
pub fn read_memory(form: Form, policy: &str, text: &str) -> Result<memory::State, StateError> {
    let types = [MEMORY, MEMORY_NEWER];
    let file: MemoryFile = read(form, text, types, |file: &MemoryFile| file.checksum)?;
    check_policy(policy, file.policy)?;
    let mut nodes = BTreeMap::new();
    for (id, node) in file.machine_state {
        let id = id.parse().map_err(|_| StateError::Format(format!("{id:?} is no NUMA node")))?;
        nodes.insert(id, node);
    }
    let pods = file.pods.into_iter().filter(|_| form == Form::WithPods);
    let pods = pods.map(|(uid, entry)| (uid, entry.blocks)).collect();
    Ok(memory::State { nodes, assignments: file.entries, pods })
}

/// Go's types of the structs; newer names are accepted as upstream does.
const CPU: &str = "*state.CPUManagerCheckpoint";
const CPU_NEWER: &str = "*state.CPUManagerCheckpointV2";
const MEMORY: &str = "*state.MemoryManagerCheckpoint";
const MEMORY_NEWER: &str = "*state.MemoryManagerCheckpointV1";
const PLAIN_TYPES: &str =
    concat!(include_str!("checkpoint.plain.txt"), include_str!("checkpoint.types.txt"));
const POD_TYPES: &str =
    concat!(include_str!("checkpoint.pods.txt"), include_str!("checkpoint.types.txt"));

fn read<T: for<'de> Deserialize<'de>>(
    form: Form,
    text: &str,
    types: [&str; 2],
    checksum_of: fn(&T) -> u64,
) -> Result<T, StateError> {
    let format = |error: serde_json::Error| StateError::Format(error.to_string());
    let value: Value = serde_json::from_str(text).map_err(format)?;
    let file: T = serde_json::from_value(value.clone()).map_err(format)?;
    // Old files have none.
    let expected = checksum_of(&file);
    let is_of = |form| types.iter().any(|ty| u64::from(checksum(form, ty, &value)) == expected);
    match expected == 0 || is_of(Form::Plain) || form == Form::WithPods && is_of(form) {
        true => Ok(file),
        false => Err(StateError::Corrupt),
    }
}

/// The checksum of the content of a file.
fn checksum(form: Form, ty: &str, file: &Value) -> u32 {
    let mut content = file.clone();
    if let Some(fields) = content.as_object_mut() {
        fields.remove("checksum");
        // Omitted maps are empty in memory, not nil.
        for map in ["entries", "machineState", "podEntries"] {
            fields.entry(map).or_insert_with(|| json!({}));
        }
        let pods = fields.get_mut("podEntries").and_then(Value::as_object_mut);
        pods.into_iter().flat_map(|pods| pods.values_mut()).for_each(expand);
    }
    let mut hasher = Fnv32a::default();
    // Writing to a hasher cannot fail.
    let types = if form == Form::Plain { PLAIN_TYPES } else { POD_TYPES };
    let _ = print(&Types::parse(types), ty, &content, &mut hasher);
    hasher.finish()
}

/// In memory, Go's set of CPUs is a map whose keys they are.
fn expand(entry: &mut Value) {
    let text = entry["cpuSet"].as_str().unwrap_or_default();
    let cpus: CpuSet = text.parse().unwrap_or_default();
    let elements: serde_json::Map<_, _> =
        cpus.iter().map(|cpu| (cpu.to_string(), json!({}))).collect();
    if let Some(fields) = entry.as_object_mut() {
        fields.insert("cpuSet".to_owned(), json!({ "elems": elements }));
    }
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
