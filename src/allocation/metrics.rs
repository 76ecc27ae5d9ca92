//! Metrics of resizes.

use std::sync::Weak;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Kind, Labels, Registry};
use longshore_pod::resize;

use super::Shared;

/// Metrics of resizes. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    requested: Family<Counter, 3>,
    durations: Family<Histogram, 1>,
    pub(super) infeasible: Family<Counter, 1>,
    /// Deferred resizes that were accepted, by trigger.
    pub(super) accepted: Family<Counter, 1>,
    in_progress: Gauge,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            requested: registry.counters(
                "kubelet_container_requested_resizes_total",
                "Changes of containers' resources that were asked for, each resource by itself.",
                ["resource", "requirement", "operation"],
            ),
            durations: registry.histograms(
                "kubelet_pod_resize_duration_milliseconds",
                "How long steps of pods' resizes took, in milliseconds.",
                ["success"],
                Buckets::of(&[
                    10.0, 50.0, 100.0, 500.0, 1e3, 2e3, 5e3, 10e3, 20e3, 30e3, 60e3, 120e3, 300e3,
                    600e3,
                ]),
            ),
            infeasible: registry.counters(
                "kubelet_pod_infeasible_resizes_total",
                "Resizes of pods that this node can never make.",
                ["reason_detail"],
            ),
            accepted: registry.counters(
                "kubelet_pod_deferred_accepted_resizes_total",
                "Resizes of pods that had to wait and were accepted then.",
                ["retry_trigger"],
            ),
            in_progress: registry
                .gauge("kubelet_pod_in_progress_resizes", "Pods that are being resized."),
        }
    }

    pub(super) fn requested(&self, before: &Pod, after: &Pod) {
        for operation in resize::operations(before, after) {
            self.requested.with(operation).inc();
        }
    }

    /// A step of a resize is over.
    pub(crate) fn took(&self, duration: Duration, success: bool) {
        let success = if success { "true" } else { "false" };
        self.durations.with([success]).observe(duration.as_secs_f64() * 1e3);
    }

    /// A pod is being resized, for as long as this lives.
    pub(crate) fn in_progress(&self) -> InProgress {
        self.in_progress.add(1.0);
        InProgress(self.in_progress.clone())
    }
}

/// Counts a resize while it goes on.
#[derive(Debug)]
pub(crate) struct InProgress(Gauge);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.add(-1.0);
    }
}

/// Registers the metric of pending resizes.
pub(super) fn register(registry: &Registry, shared: Weak<Shared>) {
    registry.collect(move |text| {
        let Some(shared) = shared.upgrade() else { return };
        let help = "Resizes of pods that are not made, or not yet.";
        let mut samples = text.family("kubelet_pod_pending_resizes", help, Kind::Gauge);
        for (reason, infeasible) in [("deferred", false), ("infeasible", true)] {
            let count = shared.pending(infeasible);
            if count > 0 {
                samples.add(&Labels::new(&[("reason", reason)]), count as f64);
            }
        }
    });
}
