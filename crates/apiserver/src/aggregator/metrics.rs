//! Aggregated servers that are not available, under upstream's names.

use longshore_metrics::{Counter, Family, Gauge, Registry};

/// The gauges and counters, by the name of the APIService.
pub(crate) struct Metrics {
    registry: Registry,
    /// 1 while it is unavailable.
    unavailable: Family<Gauge, 1>,
    /// How often it became so, by reason.
    became: Family<Counter, 2>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::default();
        Metrics {
            unavailable: registry.gauges(
                "aggregator_unavailable_apiservice",
                "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.",
                ["name"],
            ),
            became: registry.counters(
                "aggregator_unavailable_apiservice_total",
                "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and \
                 reason.",
                ["name", "reason"],
            ),
            registry,
        }
    }
}

impl Metrics {
    /// Takes in what a check found. Checks of one APIService follow each other.
    pub(crate) fn set(&self, name: &str, is_available: bool, reason: &'static str) {
        let unavailable = self.unavailable.with([name]);
        if !is_available && unavailable.get() == 0.0 {
            self.became.with([name, reason]).inc();
        }
        unavailable.set(if is_available { 0.0 } else { 1.0 });
    }

    /// Forgets those that are gone.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.unavailable.retain(|[name]| is_known(name));
        self.became.retain(|[name, _]| is_known(name));
    }

    /// In Prometheus' text format.
    pub(super) fn render(&self) -> String {
        self.registry.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregator_metrics_count_transitions() {
        let metrics = Metrics::default();
        for available in [false, false, true, false] {
            metrics.set("v1.g", available, "ServiceNotFound");
        }
        let text = metrics.render();
        assert!(text.contains("aggregator_unavailable_apiservice{name=\"v1.g\"} 1"));
        assert!(text.contains(
            "aggregator_unavailable_apiservice_total{name=\"v1.g\",reason=\"ServiceNotFound\"} 2"
        ));
        metrics.retain(|_| false);
        assert!(!metrics.render().contains("v1.g"));
    }
}
