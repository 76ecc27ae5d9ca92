//! Aggregated servers that are not available, under upstream's names.

use std::collections::BTreeMap;
use std::fmt::Write;

use parking_lot::Mutex;

/// By APIService: whether it is unavailable, and how often it became so, by reason.
#[derive(Default)]
struct Series {
    unavailable: bool,
    became: BTreeMap<&'static str, u64>,
}

/// The gauges and counters.
#[derive(Default)]
pub(crate) struct Metrics(Mutex<BTreeMap<String, Series>>);

impl Metrics {
    /// Takes in what a check found.
    pub(crate) fn set(&self, name: &str, is_available: bool, reason: &'static str) {
        let mut all = self.0.lock();
        let series = all.entry(name.to_owned()).or_default();
        if !is_available && !series.unavailable {
            let count = series.became.entry(reason).or_default();
            *count = count.saturating_add(1);
        }
        series.unavailable = !is_available;
    }

    /// Forgets those that are gone.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.0.lock().retain(|name, _| is_known(name));
    }

    /// In Prometheus' text format.
    pub(super) fn render(&self) -> String {
        let all = self.0.lock();
        let mut text = String::from(
            "# HELP aggregator_unavailable_apiservice [ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.\n\
             # TYPE aggregator_unavailable_apiservice gauge\n",
        );
        // Names of APIServices have no characters that need an escape; writing into a string cannot fail.
        for (name, series) in all.iter() {
            let value = u8::from(series.unavailable);
            let _ = writeln!(text, "aggregator_unavailable_apiservice{{name={name:?}}} {value}");
        }
        text.push_str(
            "# HELP aggregator_unavailable_apiservice_total [ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.\n\
             # TYPE aggregator_unavailable_apiservice_total counter\n",
        );
        for (name, series) in all.iter() {
            for (reason, count) in &series.became {
                let _ = writeln!(
                    text,
                    "aggregator_unavailable_apiservice_total{{name={name:?},reason={reason:?}}} {count}"
                );
            }
        }
        text
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
