use std::fmt;

/// The most warnings kept until the next sync.
const MAX_WARNINGS: usize = 64;

/// Something about an object that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The kind of the object: `Service` or `EndpointSlice`.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The reason, for an event.
    pub reason: &'static str,
    /// What and why.
    pub message: String,
}

/// Collects the warnings about one object: the first in full, and the number of the others.
pub(super) struct WarningCollector<'a> {
    kind: &'static str,
    namespace: &'a str,
    name: &'a str,
    first: Option<Warning>,
    more: usize,
}

impl<'a> WarningCollector<'a> {
    pub(super) fn about(kind: &'static str, namespace: &'a str, name: &'a str) -> Self {
        Self { kind, namespace, name, first: None, more: 0 }
    }

    pub(super) fn add(&mut self, reason: &'static str, message: fmt::Arguments<'_>) {
        if self.first.is_some() {
            self.more += 1;
            return;
        }
        self.first = Some(Warning {
            kind: self.kind,
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            reason,
            message: message.to_string(),
        });
    }

    pub(super) fn report(self, warnings: &mut Vec<Warning>) {
        let Some(mut warning) = self.first.filter(|_| warnings.len() < MAX_WARNINGS) else {
            return;
        };
        if self.more > 0 {
            warning.message.push_str(&format!(" (and {} more)", self.more));
        }
        warnings.push(warning);
    }
}
