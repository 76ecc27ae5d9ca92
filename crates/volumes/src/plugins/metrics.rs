//! Metrics of CSI calls.

use std::time::Duration;

use longshore_csi::Observer;
use longshore_metrics::{Buckets, Family, Histogram, Registry};

/// Metrics of calls to CSI drivers.
pub(super) struct Calls {
    durations: Family<Histogram, 4>,
}

impl Calls {
    pub(super) fn new(registry: &Registry) -> Self {
        let durations = registry.histograms(
            "csi_operations_seconds",
            "How long calls to CSI drivers took, in seconds, by their gRPC status.",
            ["driver_name", "method_name", "grpc_status_code", "migrated"],
            Buckets::of(&[
                0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
            ]),
        );
        Self { durations }
    }
}

impl Observer for Calls {
    fn observe(&self, driver: &str, method: &str, took: Duration, code: &str) {
        self.durations.with([driver, method, code, "false"]).took(took);
    }
}
