//! What the runtime shows of one pod. Owned by the daemon's `observe` room; everybody else reads.

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
    /// Whether the runtime has something of the pod that could not be looked at yet. What is not
    /// seen must not be started a second time.
    pub partial: bool,
}

/// A pod sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// The runtime's id.
    pub id: String,
    /// Which try this sandbox is, from 0.
    pub attempt: u32,
    /// Whether the sandbox (its network namespace and pause process) stands.
    pub ready: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// The pod's addresses, primary first; empty on the host's network.
    pub ips: Vec<String>,
    /// Whether it shares the host's network namespace.
    pub host_network: bool,
}

impl Sandbox {
    /// Where its containers are reached: its own address or, on the host's network, the host's.
    /// "" if it has none.
    pub fn address<'a>(&'a self, host_ips: &'a [String]) -> &'a str {
        let ips = if self.host_network { host_ips } else { &self.ips };
        ips.first().map(String::as_str).unwrap_or_default()
    }
}

/// A container of the pod, in whichever state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id.
    pub id: String,
    /// The container's name in the spec.
    pub name: String,
    /// The sandbox that it runs in.
    pub sandbox_id: String,
    /// Restart count at the time that it was made.
    pub restart_count: u32,
    /// Hash of the spec that it was made from, if it is known.
    pub hash: Option<u64>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Image as the pod named it.
    pub image: String,
    /// Digested image reference, or the image's id.
    pub image_ref: String,
    /// File that its output goes to.
    pub log_path: String,
    /// Whom its first process runs as, if the runtime says.
    pub user: Option<User>,
    /// The signal that stops it, such as `SIGTERM`, if the runtime says.
    pub stop_signal: Option<String>,
    /// What the runtime says that it runs with, if it says so.
    pub resources: Option<Enforced>,
    /// What it does.
    pub state: State,
}

/// What a runtime enforces for a container, as far as it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforced {
    /// CPU that it asks for, in thousandths.
    pub cpu_request: Option<i64>,
    /// CPU at most, in thousandths.
    pub cpu_limit: Option<i64>,
    /// Memory at most, in bytes.
    pub memory_limit: Option<i64>,
}

/// Whom a process runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: i64,
    /// Primary group id.
    pub gid: i64,
    /// Ids of the supplemental groups.
    pub groups: Vec<i64>,
}

/// What a container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Made, not started.
    Created,
    /// Running.
    Running {
        /// Since when.
        started_at: Timestamp,
    },
    /// Ended.
    Exited {
        /// When it started; `None` if it never did.
        started_at: Option<Timestamp>,
        /// When it ended.
        finished_at: Timestamp,
        /// Its exit code; 128 + n for signal n.
        exit_code: i32,
        /// One word, such as `Completed`, `Error` or `OOMKilled`.
        reason: String,
        /// The termination message.
        message: String,
    },
    /// The runtime does not know.
    Unknown,
}

impl Container {
    /// Whether the container runs.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// Its exit code, if it has ended.
    pub fn exit_code(&self) -> Option<i32> {
        match self.state {
            State::Exited { exit_code, .. } => Some(exit_code),
            _ => None,
        }
    }

    /// Whether it has ended as it should. One that ran out of memory has not, whatever its code.
    pub fn has_succeeded(&self) -> bool {
        matches!(&self.state, State::Exited { exit_code: 0, reason, .. } if reason != "OOMKilled")
    }

    /// Whether any of its processes may still run.
    pub fn may_run(&self) -> bool {
        matches!(self.state, State::Running { .. } | State::Unknown)
    }

    /// When it ended, if it has.
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

    /// The newest sandbox that stands.
    pub fn ready_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.iter().find(|sandbox| sandbox.ready)
    }

    /// Whether any process of the pod may still run.
    pub fn is_active(&self) -> bool {
        self.containers.iter().any(Container::may_run)
            || self.sandboxes.iter().any(|sandbox| sandbox.ready)
    }

    /// Whether the runtime holds nothing of the pod.
    pub fn is_gone(&self) -> bool {
        self.containers.is_empty() && self.sandboxes.is_empty()
    }
}
