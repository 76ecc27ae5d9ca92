//! A family of figures of cgroups as data: its name, and how it is told of one.

use k8s_openapi::jiff::Timestamp;
use longshore_metrics::{Kind, Labels, Moment, Samples};
use longshore_resources::stats::{Cpu, Group, MemoryUse, Reading, Snapshot, Throttling};

/// Writes what there is to tell of a cgroup.
type Tell = fn(&Subject<'_>, &mut Values<'_, '_>);

/// A family.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    /// Whether its samples tell the moment at which they were read.
    pub(super) timed: bool,
    pub(super) tell: Tell,
}

/// What only grows.
pub(super) const fn counter(name: &'static str, help: &'static str, tell: Tell) -> Family {
    Family { name, help, kind: Kind::Counter, timed: true, tell }
}

/// What goes up and down.
pub(super) const fn gauge(name: &'static str, help: &'static str, tell: Tell) -> Family {
    Family { name, help, kind: Kind::Gauge, timed: true, tell }
}

/// What a cgroup was made with.
pub(super) const fn setting(name: &'static str, help: &'static str, tell: Tell) -> Family {
    Family { name, help, kind: Kind::Gauge, timed: false, tell }
}

/// A cgroup that is told of.
pub(super) struct Subject<'a> {
    pub(super) group: &'a Group,
    pub(super) snapshot: &'a Snapshot,
    /// When it was made.
    pub(super) started: Option<Timestamp>,
    pub(super) is_node: bool,
}

impl Subject<'_> {
    pub(super) fn reading(&self) -> &Reading {
        &self.group.reading
    }

    pub(super) fn cpu(&self, values: &mut Values<'_, '_>, of: fn(&Cpu) -> u64) {
        if let Some(cpu) = &self.reading().cpu {
            values.add(of(cpu) as f64 / 1e9);
        }
    }

    /// Of a quota, if there is one.
    pub(super) fn quota(&self, values: &mut Values<'_, '_>, of: fn(&Throttling) -> f64) {
        let throttling = self.reading().cpu.and_then(|cpu| cpu.throttling);
        if let Some(throttling) = throttling.filter(|_| self.reading().limits.quota.is_some()) {
            values.add(of(&throttling));
        }
    }

    pub(super) fn memory(&self, values: &mut Values<'_, '_>, of: fn(&MemoryUse) -> u64) {
        if let Some(memory) = &self.reading().memory {
            values.add(of(memory) as f64);
        }
    }
}

/// The samples of one cgroup in one family.
pub(super) struct Values<'a, 'b> {
    samples: &'a mut Samples<'b>,
    labels: &'a Labels,
    at: Option<&'a Moment>,
}

impl<'a, 'b> Values<'a, 'b> {
    pub(super) fn new(
        samples: &'a mut Samples<'b>,
        labels: &'a Labels,
        at: Option<&'a Moment>,
    ) -> Self {
        Self { samples, labels, at }
    }

    /// One sample.
    pub(super) fn add(&mut self, value: f64) {
        match self.at {
            Some(at) => self.samples.add_at(self.labels, value, at),
            None => self.samples.add(self.labels, value),
        }
    }

    /// One of several samples that these labels tell apart.
    pub(super) fn add_of(&mut self, more: &[(&str, &str)], value: f64) {
        self.samples.add_of(self.labels, more, value, self.at);
    }
}
