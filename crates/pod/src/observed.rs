//! The state of one pod in the runtime. Written by the daemon's `observe` module; all others read.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

/// One pod as the runtime shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedPod {
    /// The pod's UID.
    pub uid: String,
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// Sandboxes, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Containers, newest first.
    pub containers: Vec<Container>,
    /// Whether a sandbox or container of the pod could not be inspected yet. What is not seen must
    /// not be started a second time.
    pub partial: bool,
}

/// A pod sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// The runtime's id.
    pub id: String,
    /// The attempt, from 0.
    pub attempt: u32,
    /// Whether the sandbox (its network namespace and pause process) is ready.
    pub ready: bool,
    /// Creation time.
    pub created_at: Timestamp,
    /// The pod's addresses, primary first; empty on the host's network.
    pub ips: Vec<String>,
    /// Whether it shares the host's network namespace.
    pub host_network: bool,
    /// The runtime handler; empty for the default.
    pub handler: String,
}

impl Sandbox {
    /// The address of its containers: its own or, on the host's network, the host's. "" if it has
    /// none.
    pub fn address<'a>(&'a self, host_ips: &'a [String]) -> &'a str {
        let ips = if self.host_network { host_ips } else { &self.ips };
        ips.first().map(String::as_str).unwrap_or_default()
    }
}

/// A container of the pod, in any state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id.
    pub id: String,
    /// The container's name in the spec.
    pub name: String,
    /// The sandbox it belongs to.
    pub sandbox_id: String,
    /// Restart count at its creation.
    pub restart_count: u32,
    /// Hash of the spec it was created from, if it is known.
    pub hash: Option<u64>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Image as the pod named it.
    pub image: String,
    /// Digested image reference, or the image's id.
    pub image_ref: String,
    /// The images that are mounted as volumes: their ids, by the path in the container.
    pub mounted_images: BTreeMap<String, String>,
    /// Log file.
    pub log_path: String,
    /// User of its first process, if the runtime reports it.
    pub user: Option<User>,
    /// Stop signal, such as `SIGTERM`, if the runtime reports it.
    pub stop_signal: Option<String>,
    /// Resources in force, if the runtime reports them.
    pub resources: Option<Enforced>,
    /// Its state.
    pub state: State,
}

/// Resources that a runtime enforces for a container, as far as it reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforced {
    /// CPU request, in millicores.
    pub cpu_request: Option<i64>,
    /// CPU limit, in millicores.
    pub cpu_limit: Option<i64>,
    /// Memory limit, in bytes.
    pub memory_limit: Option<i64>,
}

/// The user of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: i64,
    /// Primary group id.
    pub gid: i64,
    /// Ids of the supplemental groups.
    pub groups: Vec<i64>,
}

/// State of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Created, not started.
    Created,
    /// Running.
    Running {
        /// Start time.
        started_at: Timestamp,
    },
    /// Ended.
    Exited {
        /// Start time; `None` if it never started.
        started_at: Option<Timestamp>,
        /// Time of its end.
        finished_at: Timestamp,
        /// Its exit code; 128 + n for signal n.
        exit_code: i32,
        /// One word, such as `Completed`, `Error` or `OOMKilled`.
        reason: String,
        /// The termination message.
        message: String,
    },
    /// Unknown to the runtime.
    Unknown,
}

impl Container {
    /// Whether the container is running.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// Its exit code, if it has exited.
    pub fn exit_code(&self) -> Option<i32> {
        match self.state {
            State::Exited { exit_code, .. } => Some(exit_code),
            _ => None,
        }
    }

    /// Whether it has succeeded. An OOM-killed one has not, whatever its exit code.
    pub fn has_succeeded(&self) -> bool {
        matches!(&self.state, State::Exited { exit_code: 0, reason, .. } if reason != "OOMKilled")
    }

    /// Whether any of its processes may still be running.
    pub fn may_run(&self) -> bool {
        matches!(self.state, State::Running { .. } | State::Unknown)
    }

    /// When it exited, if it has.
    pub fn finished_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Exited { finished_at, .. } => Some(finished_at),
            _ => None,
        }
    }
}

impl ObservedPod {
    /// The newest container of that name.
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The newest sandbox that is ready.
    pub fn ready_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.iter().find(|sandbox| sandbox.ready)
    }

    /// Whether any process of the pod may still be running.
    pub fn is_active(&self) -> bool {
        self.containers.iter().any(Container::may_run)
            || self.sandboxes.iter().any(|sandbox| sandbox.ready)
    }

    /// Whether the runtime has nothing of the pod.
    pub fn is_gone(&self) -> bool {
        self.containers.is_empty() && self.sandboxes.is_empty()
    }
}
