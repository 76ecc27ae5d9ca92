//! The results as a table for people, in the form of docs/benchmarks-proxy.md.
use std::fmt::Write;

use super::{Measurements, Phase};
use crate::statistics::{Spread, median};

/// A line a phase: medians, and the worst time.
pub(crate) fn table(results: &[Measurements]) -> String {
    let mut table = String::from(
        "| services | iptables | | time | worst | CPU-seconds, own | with programs | lock held | MiB (peak) |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for Measurements { backend, services, phases, .. } in results {
        for phase in phases {
            // writing into a string cannot fail
            let _ = writeln!(table, "| {services} | {backend} | {}", cells(phase));
        }
    }
    table.push_str("\n| services | all rules as text |\n|---|---|\n");
    // the same for all variants
    let mut last = None;
    for Measurements { services, render_seconds, .. } in results {
        if last.replace(services) != Some(services) {
            let _ = writeln!(table, "| {services} | {} |", time(*render_seconds));
        }
    }
    table
}

fn cells(phase: &Phase) -> String {
    let middle = |results: &[f64]| median(results.iter().copied());
    let worst = Spread::of(phase.seconds.clone()).map_or(0.0, |spread| spread.max);
    let lock = phase.lock_seconds.as_deref().map_or("none".into(), |lock| time(middle(lock)));
    format!(
        "{} | {} | {} | {:.3} | {:.3} | {lock} | {:.1} ({:.1}) |",
        phase.name,
        time(middle(&phase.seconds)),
        time(worst),
        middle(&phase.cpu_seconds),
        middle(&phase.all_cpu_seconds),
        phase.memory.rss,
        phase.memory.peak,
    )
}

fn time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Memory;
    use crate::proxy::world::Backend;

    #[test]
    fn medians_and_the_worst() {
        let phase = Phase {
            name: "cold",
            seconds: vec![1.5, 0.01, 0.02],
            cpu_seconds: vec![0.1],
            all_cpu_seconds: vec![0.2],
            lock_seconds: None,
            memory: Memory { rss: 10.0, pss: 9.0, peak: 12.0 },
        };
        let results = Measurements {
            backend: Backend::Nft,
            services: 10,
            render_seconds: 0.05,
            phases: vec![phase],
        };
        let legacy = Measurements { backend: Backend::Legacy, ..results.clone() };
        let table = table(&[results, legacy]);
        let third = table.lines().nth(2);
        let line = "| 10 | nft | cold | 20 ms | 1.50 s | 0.100 | 0.200 | none | 10.0 (12.0) |";
        assert_eq!(third, Some(line));
        assert!(table.ends_with("|---|---|\n| 10 | 50 ms |\n"), "{table}");
    }
}
