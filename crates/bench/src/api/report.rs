//! The results as a table for people.
use std::fmt;

use super::{Measurements, Results};

/// One figure of the measurements.
type Figure = fn(&Measurements) -> f64;

const LINES: [(&str, Figure); 22] = [
    ("ms until ready, empty store", |own| own.start_ms),
    ("MiB resident, empty", |own| own.empty.apiserver),
    ("  etcd", |own| own.empty.etcd),
    ("creates of 1 KiB a second, 8 clients", |own| own.creates.per_second),
    ("  ms of CPU each", |own| own.creates.cpu_ms),
    ("gets a second, 8 clients", |own| own.gets.per_second),
    ("  ms of CPU each", |own| own.gets.cpu_ms),
    ("list of all config maps, ms at p50", |own| own.list_ms.p50),
    ("  ms at most", |own| own.list_ms.max),
    ("change until a watcher has it, ms at p50", |own| own.events.latency_ms.p50),
    ("  ms at p99", |own| own.events.latency_ms.p99),
    ("  CPU-seconds for all watchers", |own| own.events.cpu_seconds),
    ("us of CPU of a create, one client", |own| own.policy.without_us),
    ("  with a policy", |own| own.policy.with_us),
    ("MiB resident, full", |own| own.full.apiserver),
    ("  at most", |own| own.full.peak),
    ("  etcd", |own| own.full.etcd),
    ("restart, full: ms until ready", |own| own.reconnections.ready_ms),
    ("  MiB resident", |own| own.reconnections.memory.apiserver),
    ("  ms until all watchers have a new event", |own| own.reconnections.all_ms),
    ("  CPU-seconds", |own| own.reconnections.cpu_seconds),
    ("  watches refused", |own| own.reconnections.refused),
];

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { maps, pods, watchers, changes, servers } = self;
        writeln!(
            f,
            "{maps} config maps, {pods} pods when full, {watchers} watchers, {changes} changes\n"
        )?;
        write!(f, "{:<44}", "")?;
        for server in servers {
            write!(f, "{:>19}", server.programs)?;
        }
        writeln!(f)?;
        for (label, value) in LINES {
            write!(f, "{label:<44}")?;
            for server in servers {
                write!(f, "{:>19.2}", value(&server.measurements))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
