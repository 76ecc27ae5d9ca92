//! Events, counted by upstream's names.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

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
    const ALL: [Plugin; 4] = [Plugin::Buffered, Plugin::Log, Plugin::Truncate, Plugin::Webhook];

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
#[derive(Default)]
pub(super) struct Metrics {
    events: AtomicU64,
    rejected: AtomicU64,
    levels: [AtomicU64; Level::ALL.len()],
    errors: [AtomicU64; Plugin::ALL.len()],
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Metrics {
    pub(super) fn event(&self) {
        add(&self.events, 1);
    }

    pub(super) fn rejected(&self) {
        add(&self.rejected, 1);
    }

    pub(super) fn level(&self, level: Level) {
        add(&self.levels[level as usize], 1);
    }

    /// So many events could not be recorded.
    pub(super) fn failed(&self, plugin: Plugin, events: usize) {
        add(&self.errors[plugin as usize], events as u64);
    }

    #[cfg(test)]
    pub(super) fn failures(&self, plugin: Plugin) -> u64 {
        self.errors[plugin as usize].load(Ordering::Relaxed)
    }

    /// In Prometheus' text format.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        let mut family = |name: &str, help: &str, values: Vec<(String, &AtomicU64)>| {
            if values.is_empty() {
                return;
            }
            // Writing into a string cannot fail.
            let _ = write!(text, "# HELP {name} [ALPHA] {help}\n# TYPE {name} counter\n");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{labels} {}", value.load(Ordering::Relaxed));
            }
        };
        let seen = |counter: &&AtomicU64| counter.load(Ordering::Relaxed) > 0;
        let errors = Plugin::ALL.into_iter().zip(&self.errors).filter(|(_, count)| seen(count));
        let errors = errors.map(|(plugin, n)| (format!("{{plugin=\"{}\"}}", plugin.name()), n));
        family(
            "apiserver_audit_error_total",
            "Counter of audit events that failed to be audited properly. Plugin identifies the plugin \
             affected by the error.",
            errors.collect(),
        );
        family(
            "apiserver_audit_event_total",
            "Counter of audit events generated and sent to the audit backend.",
            vec![(String::new(), &self.events)],
        );
        let levels = Level::ALL.into_iter().zip(&self.levels).filter(|(_, count)| seen(count));
        let levels = levels.map(|(level, n)| (format!("{{level=\"{}\"}}", level.name()), n));
        family(
            "apiserver_audit_level_total",
            "Counter of policy levels for audit events (1 per request).",
            levels.collect(),
        );
        family(
            "apiserver_audit_requests_rejected_total",
            "Counter of apiserver requests rejected due to an error in audit logging backend.",
            vec![(String::new(), &self.rejected)],
        );
        text
    }
}
