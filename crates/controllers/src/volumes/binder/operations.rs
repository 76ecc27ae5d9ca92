//! How long volumes take to be provisioned and deleted, from the first try to the end.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::OperationMetrics;

/// The operations that have begun, by the key of the claim that is provisioned for, or the name of the
/// volume that is deleted.
pub(super) struct Operations {
    metrics: OperationMetrics,
    begun: Mutex<HashMap<String, Operation>>,
}

struct Operation {
    plugin: String,
    name: &'static str,
    since: Instant,
}

impl Operations {
    pub(super) fn new(metrics: OperationMetrics) -> Self {
        Self { metrics, begun: Mutex::default() }
    }

    /// An operation goes on, or begins.
    pub(super) fn begin(&self, key: &str, plugin: &str, name: &'static str) {
        let mut begun = self.begun.lock();
        if !begun.contains_key(key) {
            let operation = Operation { plugin: plugin.to_owned(), name, since: Instant::now() };
            begun.insert(key.to_owned(), operation);
        }
    }

    /// A try ended; after one that failed the operation goes on.
    pub(super) fn ended<T, E>(&self, key: &str, result: &Result<T, E>) {
        let mut begun = self.begun.lock();
        match (begun.get(key), result) {
            (None, _) => {}
            (Some(Operation { plugin, name, .. }), Err(_)) => {
                self.metrics.errors.iter().for_each(|errors| errors.with([plugin, name]).inc());
            }
            (Some(Operation { plugin, name, since }), Ok(_)) => {
                self.metrics.seconds.with([plugin, name]).took(since.elapsed());
                begun.remove(key);
            }
        }
    }

    /// The operation is not wanted any more.
    pub(super) fn forget(&self, key: &str) {
        self.begun.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longshore_metrics::Registry;

    use super::Operations;
    use crate::Metrics;

    #[tokio::test(start_paused = true)]
    async fn volume_operations_take_from_the_first_try_to_the_end() {
        let registry = Registry::default();
        let operations = Operations::new(Metrics::new(&registry).volume_operations);
        operations.ended::<_, ()>("ns/c", &Ok(()));
        operations.begin("ns/c", "csi.example.com", "provision");
        tokio::time::advance(Duration::from_secs(3)).await;
        operations.ended::<(), _>("ns/c", &Err(()));
        operations.begin("ns/c", "csi.example.com", "provision");
        tokio::time::advance(Duration::from_secs(1)).await;
        operations.ended::<_, ()>("ns/c", &Ok(()));
        operations.ended::<_, ()>("ns/c", &Ok(()));
        operations.begin("v", "N/A", "delete");
        operations.forget("v");
        operations.ended::<_, ()>("v", &Ok(()));
        let page = registry.text();
        let labels = "{plugin_name=\"csi.example.com\",operation_name=\"provision\"}";
        for line in [
            format!("volume_operation_total_seconds_sum{labels} 4\n"),
            format!("volume_operation_total_seconds_count{labels} 1\n"),
            format!("volume_operation_total_errors{labels} 1\n"),
            format!("volume_operation_errors_total{labels} 1\n"),
        ] {
            assert!(page.contains(&line), "{line}{page}");
        }
        assert!(!page.contains("operation_name=\"delete\""));
    }
}
