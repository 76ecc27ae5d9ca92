//! Metric families of cgroups: their names and collect functions.

use k8s_openapi::jiff::Timestamp;
use longshore_metrics::{Kind, Labels, SampleTime, Samples};
use longshore_resources::stats::{Cpu, Group, MemoryUse, Reading, Snapshot, Throttling};

/// Collects the samples of a cgroup.
type Collect = fn(&Subject<'_>, &mut Values<'_, '_>);

/// A metric family.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    /// Whether its samples have timestamps.
    pub(super) timed: bool,
    pub(super) collect: Collect,
}

/// A counter.
pub(super) const fn counter(name: &'static str, help: &'static str, collect: Collect) -> Family {
    Family { name, help, kind: Kind::Counter, timed: true, collect }
}

/// A gauge.
pub(super) const fn gauge(name: &'static str, help: &'static str, collect: Collect) -> Family {
    Family { name, help, kind: Kind::Gauge, timed: true, collect }
}

/// A gauge of a setting, without timestamps.
pub(super) const fn setting(name: &'static str, help: &'static str, collect: Collect) -> Family {
    Family { name, help, kind: Kind::Gauge, timed: false, collect }
}

/// A cgroup.
pub(super) struct Subject<'a> {
    pub(super) group: &'a Group,
    pub(super) snapshot: &'a Snapshot,
    /// Its creation time.
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

    /// Adds a throttling value, if there is a quota.
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
    at: Option<&'a SampleTime>,
}

impl<'a, 'b> Values<'a, 'b> {
    pub(super) fn new(
        samples: &'a mut Samples<'b>,
        labels: &'a Labels,
        at: Option<&'a SampleTime>,
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

    /// One of several samples with more labels.
    pub(super) fn add_of(&mut self, more: &[(&str, &str)], value: f64) {
        self.samples.add_of(self.labels, more, value, self.at);
    }
}
