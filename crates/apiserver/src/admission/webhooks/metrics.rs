//! Calls of webhooks, counted under upstream's names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use parking_lot::Mutex;

use super::Role;
use crate::admission::attributes::Operation;

/// Upper bounds of durations (seconds).
const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// The most names that are counted apart; others count as one.
const MAX_NAMES: usize = 500;
/// Statuses above it count as it.
const MAX_CODE: u16 = 600;
const OTHERS: &str = "others";

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ErrorKind {
    /// The webhook refused the request.
    None,
    /// The call failed.
    Calling,
    /// The fault is this server's.
    Internal,
}

#[derive(Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

type Key = (String, Role, Operation);

#[derive(Default)]
struct Series {
    names: usize,
    durations: BTreeMap<(Key, bool), Histogram>,
    requests: BTreeMap<(Key, u16, bool), u64>,
    rejections: BTreeMap<(Key, ErrorKind, u16), u64>,
    fail_open: BTreeMap<(String, Role), u64>,
    known: BTreeMap<String, ()>,
}

/// The counters.
#[derive(Default)]
pub(super) struct Metrics(Mutex<Series>);

/// A call that has ended.
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) role: Role,
    pub(super) operation: Operation,
    pub(super) took: Duration,
    pub(super) code: u16,
    /// `None`: it allowed the request.
    pub(super) error: Option<ErrorKind>,
    /// The failure is ignored.
    pub(super) ignored: bool,
}

impl Series {
    fn name(&mut self, name: &str) -> String {
        if !self.known.contains_key(name) {
            if self.names >= MAX_NAMES {
                return OTHERS.to_owned();
            }
            self.names += 1;
            self.known.insert(name.to_owned(), ());
        }
        name.to_owned()
    }
}

impl Metrics {
    pub(super) fn observe(&self, call: &Call<'_>) {
        let mut series = self.0.lock();
        let code = call.code.min(MAX_CODE);
        let rejected = call.error.is_some() && !call.ignored;
        let name = series.name(call.name);
        let key = (name.clone(), call.role, call.operation);
        let histogram = series.durations.entry((key.clone(), rejected)).or_default();
        let seconds = call.took.as_secs_f64();
        for (count, bound) in histogram.buckets.iter_mut().zip(BUCKETS) {
            *count = count.saturating_add(u64::from(seconds <= bound));
        }
        histogram.count = histogram.count.saturating_add(1);
        histogram.sum += seconds;
        add(series.requests.entry((key.clone(), code, rejected)).or_default());
        if let (Some(error), true) = (call.error, rejected) {
            let code = if error == ErrorKind::Internal { 0 } else { code };
            add(series.rejections.entry((key, error, code)).or_default());
        }
        if call.ignored {
            add(series.fail_open.entry((name, call.role)).or_default());
        }
    }

    /// In Prometheus' text format.
    pub(super) fn render(&self) -> String {
        let series = self.0.lock();
        let mut text = String::new();
        // Writing into a string cannot fail.
        head(
            &mut text,
            "webhook_admission_duration_seconds",
            "histogram",
            "Admission webhook latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
        );
        for ((key, rejected), histogram) in &series.durations {
            let labels = format!("{},rejected=\"{rejected}\"", labels(key));
            let name = "apiserver_admission_webhook_admission_duration_seconds";
            for (count, bound) in histogram.buckets.iter().zip(BUCKETS) {
                let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            let Histogram { count, sum, .. } = histogram;
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}");
            let _ = writeln!(text, "{name}_count{{{labels}}} {count}");
        }
        head(
            &mut text,
            "webhook_request_total",
            "counter",
            "Admission webhook request total, identified by name and broken out for each admission type (validating or admit) and operation.",
        );
        for ((key, code, rejected), count) in &series.requests {
            let labels = labels(key);
            let _ = writeln!(
                text,
                "apiserver_admission_webhook_request_total{{code=\"{code}\",{labels},rejected=\"{rejected}\"}} {count}"
            );
        }
        head(
            &mut text,
            "webhook_rejection_count",
            "counter",
            "Admission webhook rejection count, identified by name and broken out for each admission type (validating or admit) and operation.",
        );
        for ((key, error, code), count) in &series.rejections {
            let error = match error {
                ErrorKind::None => "no_error",
                ErrorKind::Calling => "calling_webhook_error",
                ErrorKind::Internal => "apiserver_internal_error",
            };
            let labels = labels(key);
            let _ = writeln!(
                text,
                "apiserver_admission_webhook_rejection_count{{error_type=\"{error}\",{labels},rejection_code=\"{code}\"}} {count}"
            );
        }
        head(
            &mut text,
            "webhook_fail_open_count",
            "counter",
            "Admission webhook fail open count, identified by name and broken out for each admission type (validating or admit).",
        );
        for ((name, role), count) in &series.fail_open {
            let (name, role) = (escaped(name), role.name());
            let _ = writeln!(
                text,
                "apiserver_admission_webhook_fail_open_count{{name=\"{name}\",type=\"{role}\"}} {count}"
            );
        }
        text
    }
}

fn add(count: &mut u64) {
    *count = count.saturating_add(1);
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP apiserver_admission_{name} [ALPHA] {help}");
    let _ = writeln!(text, "# TYPE apiserver_admission_{name} {kind}");
}

fn labels((name, role, operation): &Key) -> String {
    let (name, role, operation) = (escaped(name), role.name(), operation.name());
    format!("name=\"{name}\",operation=\"{operation}\",type=\"{role}\"")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_metrics_are_bounded_and_named_like_upstream() {
        let metrics = Metrics::default();
        for i in 0..2000 {
            metrics.observe(&Call {
                name: &format!("h{i}"),
                role: Role::Validating,
                operation: Operation::Create,
                took: Duration::from_millis(30),
                code: 900,
                error: Some(ErrorKind::None),
                ignored: false,
            });
        }
        let text = metrics.render();
        assert!(text.contains(
            "apiserver_admission_webhook_rejection_count{error_type=\"no_error\",name=\"h1\",\
             operation=\"CREATE\",type=\"validating\",rejection_code=\"600\"} 1"
        ));
        assert!(text.contains(
            "name=\"others\",operation=\"CREATE\",type=\"validating\",rejected=\"true\"} 1500"
        ));
        assert!(text.contains(
            "name=\"h0\",operation=\"CREATE\",type=\"validating\",rejected=\"true\",le=\"0.025\"} 0"
        ));
        assert!(text.contains("rejected=\"true\",le=\"0.1\"} 1\n"));
    }
}
