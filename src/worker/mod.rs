//! One serial task per pod, and the pool that starts them. A pod's phase is one enum; completion,
//! deletion, removal and every decision against it take the same way to its end. A task goes in
//! turns: it looks, tells, begins the steps that are due, and waits for one of them to be done or
//! for something to change. Workers of different pods share nothing, so one that hangs delays no
//! other.

mod act;
mod data;
mod end;
mod ender;
mod entry;
mod metrics;
mod place;
mod pool;
mod resize;
mod steps;
mod stop;
mod stopwatch;
mod supervisor;
mod sync;
mod task;
mod tell;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::status::Verdict;

pub(crate) use end::grace;
pub use ender::Ender;
pub use metrics::Metrics;
pub use place::Places;
pub use pool::{Pool, Tools};

/// A decision to end a pod for a reason of the node's own: eviction, preemption, shutdown, deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// What its status says, once nothing of it runs any more.
    pub verdict: Verdict,
    /// How long its containers may take, if not as long as the pod itself allows.
    pub grace: Option<Duration>,
}

/// What the worker of a pod is asked for.
#[derive(Clone, Debug)]
struct Order {
    pod: Arc<Pod>,
    /// The pod is gone from its source: leave nothing of it.
    gone: bool,
    /// The pod is to end, for this reason.
    end: Option<End>,
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
    /// The node has decided so; the verdict tells the reason.
    Decided,
    /// Its object is being deleted.
    Deleted,
    /// Its source has it no more.
    Gone,
}
