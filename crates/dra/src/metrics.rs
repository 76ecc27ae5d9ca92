//! Metrics under upstream's names.

use std::sync::Arc;
use std::time::Duration;

use longshore_metrics::{Buckets, Family, Histogram, Kind, Labels, Registry};
use parking_lot::Mutex;

use crate::claims::Claims;

/// The label of claims regardless of their drivers.
const ANY_DRIVER: &str = "<any>";

#[derive(Clone)]
pub(crate) struct Metrics {
    operations: Family<Histogram, 2>,
    calls: Family<Histogram, 3>,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry, claims: Arc<Mutex<Claims>>) -> Self {
        registry.collect(move |text| {
            let help = "The number of claims that are in use on the node, by driver, and of all. A claim \
                        may have devices of several drivers.";
            let mut samples = text.family("dra_resource_claims_in_use", help, Kind::Gauge);
            let claims = claims.lock();
            let (by_driver, all) = claims.in_use();
            for (driver, count) in by_driver.into_iter().chain([(ANY_DRIVER, all)]) {
                samples.add(&Labels::new(&[("driver_name", driver)]), count as f64);
            }
        });
        let operations = registry.histograms(
            "dra_operations_duration_seconds",
            "How long it took to prepare or unprepare all claims of a pod, in seconds.",
            ["operation_name", "is_error"],
            buckets(),
        );
        let calls = registry.histograms(
            "dra_grpc_operations_duration_seconds",
            "How long calls to DRA drivers took, in seconds, by their gRPC status.",
            ["driver_name", "method_name", "grpc_status_code"],
            buckets(),
        );
        Self { operations, calls }
    }

    pub(crate) fn operation(&self, name: &str, is_error: bool, took: Duration) {
        let is_error = if is_error { "true" } else { "false" };
        self.operations.with([name, is_error]).took(took);
    }

    pub(crate) fn call(&self, driver: &str, method: &str, code: &str, took: Duration) {
        self.calls.with([driver, method, code]).took(took);
    }
}

/// Fifteen bounds from 0.1 to 40, each as many times the one before.
fn buckets() -> Buckets {
    let factor = (40.0_f64 / 0.1).powf(1.0 / 14.0);
    Buckets::exponential(0.1, factor, 15)
}
