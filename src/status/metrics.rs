//! How long it takes until the apiserver has a status.

use longshore_metrics::{Buckets, Histogram, Registry};

pub(super) fn durations(registry: &Registry) -> Histogram {
    registry.histogram(
        "kubelet_pod_status_sync_duration_seconds",
        "From when a pod's status changed to when the apiserver took it, in seconds.",
        Buckets::of(&[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0]),
    )
}
