//! Conversions by webhooks, counted under upstream's names.

use std::time::Duration;

use longshore_metrics::{Buckets, Counter, Family, Histogram, Registry};

/// The most definitions and versions that are counted apart.
const MAX_SERIES: usize = 1000;

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// There was no answer.
    Call,
    /// The answer is none that counts.
    Malformed,
    /// It has another number of objects.
    Partial,
    /// It has an object that is not taken.
    InvalidObject,
}

impl Failure {
    fn name(self) -> &'static str {
        match self {
            Failure::Call => "conversion_webhook_call_failure",
            Failure::Malformed => "conversion_webhook_malformed_response_failure",
            Failure::Partial => "conversion_webhook_partial_response_failure",
            Failure::InvalidObject => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

/// The families.
pub(super) struct Metrics {
    registry: Registry,
    calls: Family<Histogram, 2>,
    requests: Family<Counter, 2>,
    conversions: Family<Histogram, 4>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::default();
        Metrics {
            calls: registry.histograms(
                "apiserver_conversion_webhook_duration_seconds",
                "[ALPHA] Conversion webhook request latency",
                ["result", "failure_type"],
                Buckets::of(&[
                    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0,
                    60.0,
                ]),
            ),
            requests: registry.counters(
                "apiserver_conversion_webhook_request_total",
                "[ALPHA] Counter for conversion webhook requests with success/failure and failure error type",
                ["result", "failure_type"],
            ),
            conversions: registry.histograms(
                "apiserver_crd_conversion_webhook_duration_seconds",
                "[ALPHA] CRD webhook conversion duration in seconds",
                ["crd_name", "from_version", "to_version", "succeeded"],
                Buckets::exponential(0.001, 2.0, 15),
            ),
            registry,
        }
    }
}

/// A conversion that has ended.
pub(super) struct Conversion<'a> {
    pub(super) definition: &'a str,
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    pub(super) took: Duration,
    pub(super) failure: Option<Failure>,
}

impl Metrics {
    pub(super) fn observe(&self, conversion: &Conversion<'_>) {
        let Conversion { definition, from, to, took, failure } = conversion;
        let result = match failure {
            None => ["success", ""],
            Some(failure) => ["failure", failure.name()],
        };
        self.calls.with(result).took(*took);
        self.requests.with(result).inc();
        let succeeded = if failure.is_none() { "true" } else { "false" };
        let series = self.conversions.with_at_most(MAX_SERIES, [definition, from, to, succeeded]);
        if let Some(series) = series {
            series.took(*took);
        }
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
    fn conversion_metrics_are_bounded_and_named_like_upstreams() {
        let metrics = Metrics::default();
        for i in 0..2000 {
            metrics.observe(&Conversion {
                definition: &format!("w{i}.example.com"),
                from: "v1",
                to: "v2",
                took: Duration::from_millis(3),
                failure: (i % 2 == 1).then_some(Failure::Call),
            });
        }
        let text = metrics.render();
        for line in [
            "apiserver_conversion_webhook_request_total{result=\"failure\",failure_type=\"conversion_webhook_call_failure\"} 1000\n",
            "apiserver_conversion_webhook_duration_seconds_bucket{result=\"success\",failure_type=\"\",le=\"0.005\"} 1000\n",
            "apiserver_crd_conversion_webhook_duration_seconds_bucket{crd_name=\"w0.example.com\",from_version=\"v1\",to_version=\"v2\",succeeded=\"true\",le=\"0.002\"} 0\n",
            "crd_name=\"w999.example.com\",from_version=\"v1\",to_version=\"v2\",succeeded=\"false\",le=\"0.004\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}");
        }
        assert!(!text.contains("w1000."));
    }
}
