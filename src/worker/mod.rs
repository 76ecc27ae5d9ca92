//! One serial task per pod, and the pool that starts them. A pod's phase is one enum; deletion,
//! completion and removal take the same way to its end. Workers of different pods share nothing,
//! so one that hangs delays no other.

mod act;
mod end;
mod pool;
mod task;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

pub use pool::{Pool, Tools};

/// What the worker of a pod is asked for.
#[derive(Clone, Debug)]
struct Order {
    pod: Arc<Pod>,
    /// The pod is gone from its source: leave nothing of it.
    gone: bool,
}

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It should run.
    Syncing,
    /// It is being stopped.
    Terminating {
        /// How long its containers may take.
        grace: Duration,
        /// What brought it here.
        why: Why,
    },
    /// Nothing of it runs, and nothing will.
    Terminated,
}

/// Why a pod comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Its containers have done their work, or failed for good.
    Completed,
    /// Its object is being deleted.
    Deleted,
    /// Its source has it no more.
    Gone,
}
