//! One serial task per pod, and the pool that starts them. A pod's phase is one enum, whose variants
//! have what only that phase needs; completion, deletion, removal, eviction and preemption terminate a
//! pod in the same way. A worker runs in sync iterations: it reads the observed state, reports the
//! status, starts the steps that are due, and waits for a step to finish or for a change. Workers of
//! different pods share nothing, so one that hangs delays no other.

mod act;
mod admit;
mod data;
mod end;
mod failures;
mod inputs;
mod limiter;
mod metrics;
mod pool;
mod report;
mod resize;
mod state;
mod steps;
mod stop;
mod stopwatch;
mod supervisor;
mod sync;
mod task;
#[cfg(test)]
mod tests;

pub use limiter::Limiter;
pub use metrics::Metrics;
pub use pool::{Pool, RestartDelays, WorkerContext};

/// Why a pod is terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Its containers have done their work, or failed for good.
    Completed,
    /// The node terminates it; the verdict has the reason.
    Decided,
    /// Its object is being deleted.
    Deleted,
    /// It was removed from its source.
    Gone,
}
