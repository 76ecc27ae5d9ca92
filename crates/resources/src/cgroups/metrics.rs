//! Metrics of cgroup operations.

use std::time::Instant;

use longshore_metrics::{Buckets, Family, Histogram, Registry};

#[derive(Debug)]
pub(super) struct Metrics {
    durations: Family<Histogram, 1>,
}

impl Metrics {
    pub(super) fn new(registry: &Registry, unified: bool) -> Self {
        let version = registry.gauge("kubelet_cgroup_version", "The version of cgroups in use.");
        version.set(if unified { 2.0 } else { 1.0 });
        Self {
            durations: registry.histograms(
                "kubelet_cgroup_manager_duration_seconds",
                "How long changes of cgroups took, in seconds.",
                ["operation_type"],
                Buckets::usual(),
            ),
        }
    }

    /// Starts the timer of an operation: `create`, `update` or `destroy`.
    pub(super) fn begin(&self, operation: &'static str) -> Timer {
        Timer { began: Instant::now(), duration: self.durations.with([operation]) }
    }
}

/// Observes the duration of an operation when dropped.
#[must_use]
#[derive(Debug)]
pub(super) struct Timer {
    began: Instant,
    duration: Histogram,
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.duration.took(self.began.elapsed());
    }
}
