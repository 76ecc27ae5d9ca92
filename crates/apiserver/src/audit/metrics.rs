//! Events, counted by upstream's names.

use longshore_metrics::{Counter, Family, Registry};

use super::event::Level;

/// The parts that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plugin {
    Buffered,
    Log,
    Truncate,
    Webhook,
}

impl Plugin {
    pub(super) fn name(self) -> &'static str {
        match self {
            Plugin::Buffered => "buffered",
            Plugin::Log => "log",
            Plugin::Truncate => "truncate",
            Plugin::Webhook => "webhook",
        }
    }
}

/// Counters of events.
pub(super) struct Metrics {
    registry: Registry,
    events: Counter,
    rejected: Counter,
    levels: Family<Counter, 1>,
    errors: Family<Counter, 1>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::default();
        Metrics {
            errors: registry.counters(
                "apiserver_audit_error_total",
                "[ALPHA] Counter of audit events that failed to be audited properly. Plugin identifies the plugin \
                 affected by the error.",
                ["plugin"],
            ),
            events: registry.counter(
                "apiserver_audit_event_total",
                "[ALPHA] Counter of audit events generated and sent to the audit backend.",
            ),
            levels: registry.counters(
                "apiserver_audit_level_total",
                "[ALPHA] Counter of policy levels for audit events (1 per request).",
                ["level"],
            ),
            rejected: registry.counter(
                "apiserver_audit_requests_rejected_total",
                "[ALPHA] Counter of apiserver requests rejected due to an error in audit logging backend.",
            ),
            registry,
        }
    }
}

impl Metrics {
    pub(super) fn event(&self) {
        self.events.inc();
    }

    pub(super) fn rejected(&self) {
        self.rejected.inc();
    }

    pub(super) fn level(&self, level: Level) {
        self.levels.with([level.name()]).inc();
    }

    /// So many events could not be recorded.
    pub(super) fn failed(&self, plugin: Plugin, events: usize) {
        self.errors.with([plugin.name()]).add(events as u64);
    }

    #[cfg(test)]
    pub(super) fn failures(&self, plugin: Plugin) -> u64 {
        self.errors.with([plugin.name()]).get()
    }

    /// In Prometheus' text format.
    pub(super) fn render(&self) -> String {
        self.registry.text()
    }
}
