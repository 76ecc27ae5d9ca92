//! Calls of webhooks, counted under upstream's names.

use std::collections::HashSet;
use std::time::Duration;

use longshore_metrics::{Buckets, Counter, Family, Histogram, Registry};
use parking_lot::Mutex;

use super::Role;
use crate::admission::attributes::Operation;

/// The most names that are counted apart; others count as one.
const MAX_NAMES: usize = 500;
/// Statuses above it count as it.
const MAX_CODE: u16 = 600;
const OTHERS: &str = "others";

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorKind {
    /// The webhook refused the request.
    None,
    /// The call failed.
    Calling,
    /// The fault is this server's.
    Internal,
}

impl ErrorKind {
    fn name(self) -> &'static str {
        match self {
            ErrorKind::None => "no_error",
            ErrorKind::Calling => "calling_webhook_error",
            ErrorKind::Internal => "apiserver_internal_error",
        }
    }
}

/// The families.
pub(super) struct Metrics {
    registry: Registry,
    durations: Family<Histogram, 4>,
    requests: Family<Counter, 5>,
    rejections: Family<Counter, 5>,
    fail_open: Family<Counter, 2>,
    known: Mutex<HashSet<String>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::default();
        Metrics {
            durations: registry.histograms(
                "apiserver_admission_webhook_admission_duration_seconds",
                "[ALPHA] Admission webhook latency histogram in seconds, identified by name and broken out for each \
                 operation and API resource and type (validate or admit).",
                ["name", "operation", "type", "rejected"],
                Buckets::of(&[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0]),
            ),
            requests: registry.counters(
                "apiserver_admission_webhook_request_total",
                "[ALPHA] Admission webhook request total, identified by name and broken out for each admission type \
                 (validating or admit) and operation.",
                ["code", "name", "operation", "type", "rejected"],
            ),
            rejections: registry.counters(
                "apiserver_admission_webhook_rejection_count",
                "[ALPHA] Admission webhook rejection count, identified by name and broken out for each admission \
                 type (validating or admit) and operation.",
                ["error_type", "name", "operation", "type", "rejection_code"],
            ),
            fail_open: registry.counters(
                "apiserver_admission_webhook_fail_open_count",
                "[ALPHA] Admission webhook fail open count, identified by name and broken out for each admission \
                 type (validating or admit).",
                ["name", "type"],
            ),
            known: Mutex::default(),
            registry,
        }
    }
}

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

impl Metrics {
    pub(super) fn observe(&self, call: &Call<'_>) {
        let code = call.code.min(MAX_CODE);
        let is_rejected = call.error.is_some() && !call.ignored;
        let rejected = if is_rejected { "true" } else { "false" };
        let name = if self.is_counted_apart(call.name) { call.name } else { OTHERS };
        let (operation, role) = (call.operation.name(), call.role.name());
        self.durations.with([name, operation, role, rejected]).took(call.took);
        self.requests.with([&code.to_string(), name, operation, role, rejected]).inc();
        if let (Some(error), true) = (call.error, is_rejected) {
            let code = if error == ErrorKind::Internal { 0 } else { code };
            let labels = [error.name(), name, operation, role, &code.to_string()];
            self.rejections.with(labels).inc();
        }
        if call.ignored {
            self.fail_open.with([name, role]).inc();
        }
    }

    fn is_counted_apart(&self, name: &str) -> bool {
        let mut known = self.known.lock();
        known.contains(name) || known.len() < MAX_NAMES && known.insert(name.to_owned())
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
