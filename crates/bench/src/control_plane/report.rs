//! The results as a table for people.
use std::fmt;

use super::{Measurements, Results};

/// One figure of the measurements.
type Figure = fn(&Measurements) -> f64;

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, pods, services, ours, upstream } = self;
        writeln!(f, "{pods} pods on {nodes} simulated nodes\n")?;
        let titles = if upstream.is_some() { "longshore   upstream   ratio" } else { "longshore" };
        writeln!(f, "{:<44}{titles}", "")?;
        let many = format!("  with {services} other services");
        let lines: [(&str, Figure); 13] = [
            ("bindings a second", |own| own.bindings.per_second),
            ("  seconds", |own| own.bindings.seconds),
            ("  CPU-seconds, scheduler", |own| own.bindings.scheduler_cpu_seconds),
            ("  CPU-seconds, apiserver", |own| own.bindings.apiserver_cpu_seconds),
            ("  MiB resident, scheduler", |own| own.bindings.memory.rss),
            ("  MiB at most, scheduler", |own| own.bindings.memory.peak),
            ("  MiB resident, apiserver", |own| own.bindings.apiserver_memory.rss),
            ("idle with 100 pods, millicores", |own| own.idle.millicores),
            ("  MiB resident", |own| own.idle.memory.rss),
            ("  MiB without what is shared", |own| own.idle.memory.pss),
            ("  millicores of the apiserver", |own| own.idle.apiserver_millicores),
            ("ms of CPU for one pod's change", |own| own.changes.few_services_ms),
            (&many, |own| own.changes.many_services_ms),
        ];
        for (label, value) in lines {
            let own = value(ours);
            write!(f, "{label:<44}{own:>9.2}")?;
            if let Some(upstream) = upstream {
                let other = value(upstream);
                write!(f, "  {other:>9.2}  {:>6.2}", own / other)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
