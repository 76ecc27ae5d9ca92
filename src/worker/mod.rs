//! One serial task per pod, and the pool that starts them. A pod's phase is one enum; completion,
//! deletion, removal and every decision against it take the same way to its end. A task goes in
//! turns: it looks, tells, begins the steps that are due, and waits for one of them to be done or
//! for something to change. Workers of different pods share nothing, so one that hangs delays no
//! other.

mod act;
mod data;
mod end;
mod entry;
mod metrics;
mod pool;
mod resize;
mod startup_limiter;
mod steps;
mod stop;
mod stopwatch;
mod supervisor;
mod sync;
mod task;
mod tell;

use std::time::Duration;

pub use metrics::Metrics;
pub use pool::{Pool, WorkerContext};
pub use startup_limiter::StartupLimiter;

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
