//! For tests: the CPU time that work takes, which does not depend on what else the machine does.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The result of the work, and the CPU time of this thread that it took.
pub(crate) fn cpu_time<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let before = now();
    let result = work();
    (result, now().saturating_sub(before))
}
