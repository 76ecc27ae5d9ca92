//! What is shown, as plain data; `-o json` prints it as it is.

use serde::Serialize;

/// A node at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The node.
    pub node: NodeSample,
    /// Processes of the cluster on this machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessSample>,
    /// Pods, by namespace and name.
    pub pods: Vec<PodSample>,
    /// Oldest first.
    pub events: Vec<EventSample>,
    /// Sources that gave no answer, and why: what they say is from an earlier snapshot.
    pub errors: Vec<String>,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSample {
    /// The name.
    pub name: String,
    /// The version of its kubelet.
    pub version: String,
    /// The container runtime and its version.
    pub runtime: String,
    /// CPUs, memory, pods.
    pub capacity: String,
    /// What the node says of itself at its health port, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Type and status of each condition.
    pub conditions: Vec<Condition>,
}

/// A condition of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// Such as MemoryPressure.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ProcessSample {
    /// The name.
    pub name: String,
    /// The process.
    pub pid: u32,
    /// Percent of one core, since the last snapshot.
    pub cpu: f64,
    /// Resident, in bytes.
    pub memory: u64,
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSample {
    /// Namespace and name, with a slash between.
    pub name: String,
    /// What keeps a container from running, or the phase.
    pub status: String,
    /// Containers that are ready; unknown without an apiserver.
    pub ready: Option<usize>,
    /// Containers that it should have.
    pub expected: usize,
    /// Restarts of all its containers.
    pub restarts: u32,
    /// Its address.
    pub ip: Option<String>,
    /// The first port of its containers.
    pub port: Option<i32>,
    /// In seconds.
    pub age: i64,
    /// The containers that the runtime has, the last of each name.
    pub containers: Vec<ContainerSample>,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerSample {
    /// The name.
    pub name: String,
    /// The runtime's identifier.
    pub id: String,
    /// Created, Running, Exited or Unknown.
    pub state: &'static str,
    /// How often it was started again.
    pub restarts: u32,
    /// Thousandths of a core, since the last snapshot.
    pub millicores: Option<u64>,
    /// The working set, in bytes.
    pub memory: Option<u64>,
}

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EventSample {
    /// In seconds.
    pub age: i64,
    /// Whether it is a warning.
    pub warning: bool,
    /// Reason, object and message.
    pub text: String,
    /// The pod that it is about, by namespace and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

impl PodSample {
    /// The use of CPU of all containers, as far as it is known.
    pub fn millicores(&self) -> Option<u64> {
        sum(self.containers.iter().map(|container| container.millicores))
    }

    /// The same of memory.
    pub fn memory(&self) -> Option<u64> {
        sum(self.containers.iter().map(|container| container.memory))
    }
}

fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.flatten().reduce(u64::saturating_add)
}
