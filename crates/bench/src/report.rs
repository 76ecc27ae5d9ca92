//! The figures as a table for people.
use std::fmt::Write;

use crate::bench::{Figures, Round};
use crate::cluster::Uses;
use crate::floor::Floor;
use crate::process::Memory;
use crate::statistics::{Spread, median};

/// Medians of all rounds, in lines of a label and its figures.
pub(crate) fn table(figures: &Figures) -> String {
    let Figures { machine, pods, rounds, idle, restart, deaths } = figures;
    let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure));
    let uses = |figure: fn(&Round) -> Uses<f64>| Uses {
        node: median(rounds.iter().map(|round| figure(round).node)),
        apiserver: median(rounds.iter().map(|round| figure(round).apiserver)),
        containerd: median(rounds.iter().map(|round| figure(round).containerd)),
    };
    let of_floor = |figure: fn(&Floor) -> f64| {
        median(rounds.iter().filter_map(|round| round.floor().map(figure)))
    };
    let (floor, burst) = (of_floor(|floor| floor.seconds), of(|round| round.burst.seconds));

    let mut out = format!(
        "{pods} pods, {} rounds; {} cores, kernel {}, {}, node {}\n\n",
        rounds.len(),
        machine.cpu,
        machine.kernel,
        machine.runtime,
        machine.kubelet,
    );
    let mut line = |label: &str, text: String| {
        let _ = writeln!(out, "{label:<28}{text}");
    };
    line("floor", format!("{floor:.2} s ({})", tried(rounds)));
    let pod = Spread {
        p50: of_floor(|floor| floor.pod_seconds.p50),
        p99: of_floor(|floor| floor.pod_seconds.p99),
        max: of_floor(|floor| floor.pod_seconds.max),
    };
    line("  start to running, each pod", spread(Some(pod)));
    let containerd = of_floor(|floor| floor.containerd_cpu_seconds);
    let all = rounds.iter().filter_map(|round| round.floor()?.host_cpu_seconds);
    let floor_all = median(all);
    line("  CPU-seconds", format!("containerd {containerd:.2}, everything {floor_all:.2}"));
    line("burst", format!("{burst:.2} s, {:.2} of the floor", burst / floor));
    let pod = Spread {
        p50: of(|round| round.burst.pod_seconds.p50),
        p99: of(|round| round.burst.pod_seconds.p99),
        max: of(|round| round.burst.pod_seconds.max),
    };
    line("  POST to Ready, each pod", spread(Some(pod)));
    line("  last POST answered", format!("{:.2} s", of(|round| round.burst.posted_seconds)));
    line("  CPU-seconds", three(uses(|round| round.burst.cpu_seconds), 2));
    let all = median(rounds.iter().filter_map(|round| round.burst.host_cpu_seconds));
    line("", format!("everything {all:.2}, {:.2} of the floor", all / floor_all));
    if let Some(last) = rounds.last() {
        line("  MiB resident (peak)", memory(last.burst.memory));
        let requests = &last.burst.requests;
        line("  requests to the apiserver", requests.values().sum::<u64>().to_string());
        for (what, count) in requests {
            line("", format!("{count} {what}"));
        }
    }
    line("idle", format!("{:.0} s", idle.seconds));
    line("  millicores", three(idle.millicores, 1));
    line("  MiB resident (peak)", memory(idle.memory));
    line(
        "restart of the node daemon",
        format!("lease renewed after {:.2} s", restart.lease_seconds),
    );
    line("  node told Ready", format!("{:.2} s", restart.ready_seconds));
    line("  changes to pods", restart.pod_writes.to_string());
    line("  CPU-seconds in 10 s", format!("{:.2}", restart.cpu_seconds));
    line("  MiB resident (peak)", mib(restart.memory));
    line("death of a container", format!("told: {}", spread(deaths.told_seconds)));
    line("  Ready again", spread(deaths.ready_seconds));
    line("deletion", format!("{:.2} s, last object", of(|round| round.deletion.seconds)));
    let sandboxes = of(|round| round.deletion.sandboxes_seconds);
    line("  last sandbox", format!("{sandboxes:.2} s"));
    line("  CPU-seconds", three(uses(|round| round.deletion.cpu_seconds), 2));
    out
}

/// The first round's search.
fn tried(rounds: &[Round]) -> String {
    let floors = rounds.first().map_or(&[][..], |round| &round.floors);
    let tried = floors.iter().map(|floor| format!("{} {:.2}", floor.limit, floor.seconds));
    tried.collect::<Vec<_>>().join(", ")
}

fn spread(spread: Option<Spread>) -> String {
    let Some(Spread { p50, p99, max }) = spread else { return "not measured".into() };
    format!("p50 {p50:.2} s, p99 {p99:.2} s, max {max:.2} s")
}

fn three(uses: Uses<f64>, digits: usize) -> String {
    let Uses { node, apiserver, containerd } = uses;
    format!(
        "node {node:.digits$}, apiserver {apiserver:.digits$}, containerd {containerd:.digits$}"
    )
}

fn memory(memory: Uses<Memory>) -> String {
    let Uses { node, apiserver, containerd } = memory;
    format!("node {}, apiserver {}, containerd {}", mib(node), mib(apiserver), mib(containerd))
}

fn mib(memory: Memory) -> String {
    format!("{:.1} ({:.1})", memory.rss, memory.peak)
}
