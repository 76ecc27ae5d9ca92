//! Conversions by webhooks, counted under upstream's names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use parking_lot::Mutex;

/// Upper bounds of the durations of calls (seconds).
const CALLS: [f64; 15] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// The same of conversions by definition.
const CONVERSIONS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];
/// The most definitions and versions that are counted apart.
const MAX_SERIES: usize = 1000;

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

#[derive(Default)]
struct Histogram {
    buckets: [u64; 15],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, bounds: &[f64; 15], seconds: f64) {
        for (count, bound) in self.buckets.iter_mut().zip(bounds) {
            *count = count.saturating_add(u64::from(seconds <= *bound));
        }
        self.count = self.count.saturating_add(1);
        self.sum += seconds;
    }

    fn render(&self, text: &mut String, name: &str, labels: &str, bounds: &[f64; 15]) {
        // Writing into a string cannot fail.
        for (count, bound) in self.buckets.iter().zip(bounds) {
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let Histogram { count, sum, .. } = self;
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}");
        let _ = writeln!(text, "{name}_count{{{labels}}} {count}");
    }
}

#[derive(Default)]
struct Series {
    calls: BTreeMap<Option<Failure>, Histogram>,
    /// By name of the definition, the versions from and to, and whether it succeeded.
    conversions: BTreeMap<(String, String, String, bool), Histogram>,
}

/// The counters.
#[derive(Default)]
pub(super) struct Metrics(Mutex<Series>);

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
        let seconds = took.as_secs_f64();
        let mut series = self.0.lock();
        series.calls.entry(*failure).or_default().observe(&CALLS, seconds);
        let text = |text: &str| text.to_owned();
        let key = (text(definition), text(from), text(to), failure.is_none());
        let is_full = series.conversions.len() >= MAX_SERIES;
        if !is_full || series.conversions.contains_key(&key) {
            series.conversions.entry(key).or_default().observe(&CONVERSIONS, seconds);
        }
    }

    /// In Prometheus' text format.
    pub(super) fn render(&self) -> String {
        let series = self.0.lock();
        let mut text = String::new();
        let name = "apiserver_conversion_webhook_duration_seconds";
        head(&mut text, name, "histogram", "Conversion webhook request latency");
        let labels = |failure: &Option<Failure>| match failure {
            None => "result=\"success\",failure_type=\"\"".to_owned(),
            Some(failure) => format!("result=\"failure\",failure_type=\"{}\"", failure.name()),
        };
        for (failure, histogram) in &series.calls {
            histogram.render(&mut text, name, &labels(failure), &CALLS);
        }
        let name = "apiserver_conversion_webhook_request_total";
        let help =
            "Counter for conversion webhook requests with success/failure and failure error type";
        head(&mut text, name, "counter", help);
        for (failure, histogram) in &series.calls {
            let _ = writeln!(text, "{name}{{{}}} {}", labels(failure), histogram.count);
        }
        let name = "apiserver_crd_conversion_webhook_duration_seconds";
        head(&mut text, name, "histogram", "CRD webhook conversion duration in seconds");
        for ((definition, from, to, succeeded), histogram) in &series.conversions {
            // Names of definitions and versions have no character to escape.
            let labels = format!(
                "crd_name=\"{definition}\",from_version=\"{from}\",to_version=\"{to}\",succeeded=\"{succeeded}\""
            );
            histogram.render(&mut text, name, &labels, &CONVERSIONS);
        }
        text
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} [ALPHA] {help}");
    let _ = writeln!(text, "# TYPE {name} {kind}");
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
