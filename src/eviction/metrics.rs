//! Metrics of eviction.

use longshore_metrics::{Buckets, Counter, Family, Histogram, Registry};
use tokio::time::Instant;

/// Metrics of eviction. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    evictions: Family<Counter, 1>,
    ages: Family<Histogram, 1>,
}

impl Metrics {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Self {
        Self {
            evictions: registry.counters(
                "kubelet_evictions",
                "Pods that were evicted, by what showed that they had to go.",
                ["eviction_signal"],
            ),
            ages: registry.histograms(
                "kubelet_eviction_stats_age_seconds",
                "How old the figures were when a pod was evicted for them, in seconds.",
                ["eviction_signal"],
                Buckets::usual(),
            ),
        }
    }

    /// A pod was evicted for that signal.
    pub(super) fn evicted(&self, signal: &'static str) {
        self.evictions.with([signal]).inc();
    }

    /// A pod was selected by statistics that were read at that time.
    pub(super) fn decided(&self, signal: &'static str, read: Instant) {
        self.ages.with([signal]).took(read.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use longshore_metrics::parse::parse;

    use super::*;

    #[test]
    fn eviction_metrics_have_upstream_names() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        metrics.evicted("memory.available");
        metrics.decided("memory.available", Instant::now());
        let page = parse(&registry.text()).unwrap();
        let by = [("eviction_signal", "memory.available")];
        assert_eq!(page.sum("kubelet_evictions", &by), Some(1.0));
        assert_eq!(page.families["kubelet_evictions"].kind, "counter");
        assert_eq!(page.sum("kubelet_eviction_stats_age_seconds_count", &by), Some(1.0));
    }
}
