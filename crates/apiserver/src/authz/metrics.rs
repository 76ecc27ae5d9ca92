//! Decisions and calls of webhooks, counted under upstream's names. Clones share the counters.

use longshore_metrics::{Counter, Family, Registry};

#[derive(Clone)]
pub(super) struct Metrics {
    registry: Registry,
    attempts: Family<Counter, 1>,
    decisions: Family<Counter, 3>,
    evaluations: Family<Counter, 2>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::default();
        Metrics {
            attempts: registry.counters(
                "authorization_attempts_total",
                "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', \
                 'denied', 'no-opinion' or 'error'.",
                ["result"],
            ),
            decisions: registry.counters(
                "apiserver_authorization_decisions_total",
                "[ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, \
                 and decision.",
                ["type", "name", "decision"],
            ),
            evaluations: registry.counters(
                "apiserver_authorization_webhook_evaluations_total",
                "[ALPHA] Round-trips to authorization webhooks.",
                ["name", "result"],
            ),
            registry,
        }
    }
}

impl Metrics {
    /// A request was authorized, with that result.
    pub(super) fn attempt(&self, result: &str) {
        self.attempts.with([result]).inc();
    }

    /// An authorizer of that type and name has decided.
    pub(super) fn decided(&self, kind: &str, name: &str, decision: &str) {
        self.decisions.with([kind, name, decision]).inc();
    }

    /// A webhook was called.
    pub(super) fn called(&self, webhook: &str, is_ok: bool) {
        let result = if is_ok { "success" } else { "error" };
        self.evaluations.with([webhook, result]).inc();
    }

    /// In Prometheus' text format.
    pub(super) fn text(&self) -> String {
        self.registry.text()
    }
}
