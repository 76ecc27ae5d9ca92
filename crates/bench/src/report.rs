//! The results as a table for people.
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use crate::bench::{Measurements, Round};
use crate::burst::Burst;
use crate::cluster::Uses;
use crate::floor::Floor;
use crate::process::Memory;
use crate::statistics::{Spread, median};

/// Medians of all rounds, in lines of a label and its results.
pub(crate) fn table(results: &Measurements) -> String {
    let Measurements { machine, pods, rounds, .. } = results;
    let head = format!(
        "{pods} pods, {} rounds; {} cores, kernel {}, {}, node {}\n\n",
        rounds.len(),
        machine.cpu,
        machine.kernel,
        machine.runtime,
        machine.kubelet,
    );
    // The node says `containerd://1.7.20`.
    let runtime = machine.runtime.split(':').next().unwrap_or_default().to_owned();
    let mut table = Table { text: head, runtime };
    table.floor(rounds);
    table.burst(rounds);
    table.others(results);
    table.deletion(rounds);
    table.probes(results);
    table.text
}

struct Table {
    text: String,
    /// What the runtime is called.
    runtime: String,
}

impl Table {
    fn line(&mut self, label: &str, text: impl Display) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "{label:<30}{text}");
    }

    fn floor(&mut self, rounds: &[Round]) {
        let floors: Vec<&Floor> = rounds.iter().filter_map(Round::floor).collect();
        let of = |value: fn(&Floor) -> f64| median(floors.iter().map(|floor| value(floor)));
        let pods = Spread {
            p50: of(|floor| floor.pod_seconds.p50),
            p99: of(|floor| floor.pod_seconds.p99),
            max: of(|floor| floor.pod_seconds.max),
        };
        self.line("floor", format!("{:.2} s ({})", of(|floor| floor.seconds), tried(rounds)));
        self.line("  start to running, each pod", spread(Some(pods)));
        let seconds = of(|floor| floor.runtime_cpu_seconds);
        self.line("  CPU-seconds", format!("{} {seconds:.2}", self.runtime));
        if let Some(all) = floor_cpu(rounds) {
            self.line("", format!("everything {all:.2}"));
        }
    }

    fn burst(&mut self, rounds: &[Round]) {
        let of = |value: fn(&Burst) -> f64| median(rounds.iter().map(|round| value(&round.burst)));
        let pods = Spread {
            p50: of(|burst| burst.pod_seconds.p50),
            p99: of(|burst| burst.pod_seconds.p99),
            max: of(|burst| burst.pod_seconds.max),
        };
        let seconds = of(|burst| burst.seconds);
        let floor = median(rounds.iter().filter_map(Round::floor).map(|floor| floor.seconds));
        self.line("burst", format!("{seconds:.2} s, {:.2} of the floor", seconds / floor));
        self.line("  POST to Ready, each pod", spread(Some(pods)));
        self.line("  last POST answered", format!("{:.2} s", of(|burst| burst.posted_seconds)));
        self.line("  CPU-seconds", self.medians(rounds, |round| round.burst.cpu_seconds));
        if let Some(floor) = floor_cpu(rounds) {
            let all = median(rounds.iter().filter_map(|round| round.burst.host_cpu_seconds));
            self.line("", format!("everything {all:.2}, {:.2} of the floor", all / floor));
        }
        let Some(last) = rounds.last() else { return };
        self.line("  MiB resident (peak)", self.memory(last.burst.memory));
        self.requests(&last.burst.requests);
    }

    fn requests(&mut self, requests: &BTreeMap<String, u64>) {
        self.line("  requests to the apiserver", requests.values().sum::<u64>());
        for (what, count) in requests {
            self.line("", format!("{count} {what}"));
        }
    }

    fn others(&mut self, results: &Measurements) {
        let Measurements { idle, restart, deaths, .. } = results;
        self.line("idle", format!("{:.0} s", idle.seconds));
        self.line("  millicores", self.three(idle.millicores, millicores));
        self.line("  MiB resident (peak)", self.memory(idle.memory));
        self.line("restart of the node daemon", "");
        self.line("  lease renewed", format!("{:.2} s", restart.lease_seconds));
        self.line("  node Ready", format!("{:.2} s", restart.ready_seconds));
        self.line("  changes to pods", restart.pod_writes);
        self.line("  CPU-seconds in 10 s", format!("{:.2}", restart.cpu_seconds));
        self.line("  MiB resident (peak)", mib(restart.memory));
        self.line("death of a container", "");
        self.line("  reported", spread(deaths.reported_seconds));
        self.line("  restart counted", spread(deaths.counted_seconds));
        self.line("  Ready again", spread(deaths.ready_seconds));
    }

    fn probes(&mut self, results: &Measurements) {
        let Measurements { pods, probes, .. } = results;
        self.line("readiness", "");
        self.line("  Ready reported", spread(probes.ready_seconds));
        self.line("  not Ready reported", spread(probes.unready_seconds));
        let cost = &probes.cost;
        let each = format!("{pods} pods, {:.0} probes a second", probes.per_second);
        self.line("probes", format!("{each}, {:.0} s", cost.seconds));
        self.line("  millicores", self.three(cost.millicores, millicores));
        self.line("  MiB resident (peak)", self.memory(cost.memory));
        self.line("  descriptors", self.three(probes.descriptors, |count| count.to_string()));
        self.line("memory runs short", "");
        self.line("  until the hog's end", spread(results.pressure.kill_seconds));
    }

    fn medians(&self, rounds: &[Round], value: fn(&Round) -> Uses<f64>) -> String {
        let uses = Uses {
            node: median(rounds.iter().map(|round| value(round).node)),
            apiserver: median(rounds.iter().map(|round| value(round).apiserver)),
            runtime: median(rounds.iter().map(|round| value(round).runtime)),
        };
        self.three(uses, |seconds| format!("{seconds:.2}"))
    }

    fn memory(&self, memory: Uses<Memory>) -> String {
        self.three(memory, mib)
    }

    fn three<T>(&self, uses: Uses<T>, text: fn(T) -> String) -> String {
        let Uses { node, apiserver, runtime } = uses;
        let (node, apiserver, runtime) = (text(node), text(apiserver), text(runtime));
        format!("node {node}, apiserver {apiserver}, {} {runtime}", self.runtime)
    }

    fn deletion(&mut self, rounds: &[Round]) {
        let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
        self.line("deletion", "");
        self.line("  last object", format!("{:.2} s", of(|round| round.deletion.seconds)));
        let sandboxes = of(|round| round.deletion.sandboxes_seconds);
        let floor = median(
            rounds.iter().filter_map(Round::removal_floor).map(|floor| floor.removal_seconds),
        );
        let ratio = sandboxes / floor;
        self.line(
            "  last sandbox",
            format!("{sandboxes:.2} s, {ratio:.2} of the floor's {floor:.2} s"),
        );
        self.line("  CPU-seconds", self.medians(rounds, |round| round.deletion.cpu_seconds));
        let floors = rounds.iter().filter_map(Round::removal_floor);
        if let Some(floor) = host_cpu(floors.map(|floor| floor.removal_host_cpu_seconds)) {
            let all = median(rounds.iter().filter_map(|round| round.deletion.host_cpu_seconds));
            self.line("", format!("everything {all:.2}, {:.2} of the floor", all / floor));
        }
        let Some(last) = rounds.last() else { return };
        self.requests(&last.deletion.requests);
    }
}

/// CPU-seconds of everything on the host in the floor, if they are known.
fn floor_cpu(rounds: &[Round]) -> Option<f64> {
    let floors = rounds.iter().filter_map(Round::floor);
    host_cpu(floors.map(|floor| floor.host_cpu_seconds))
}

fn host_cpu(of: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    Some(median(of.flatten())).filter(|all| *all > 0.0)
}

/// The first round's search.
fn tried(rounds: &[Round]) -> String {
    let floors = rounds.first().map_or(&[][..], |round| &round.floors);
    let tried = floors.iter().map(|floor| format!("{} {:.2}", floor.limit, floor.seconds));
    tried.collect::<Vec<_>>().join(", ")
}

fn spread(spread: Option<Spread>) -> String {
    let Some(Spread { p50, p99, max }) = spread else { return "not measured".into() };
    format!("p50 {p50:.3} s, p99 {p99:.3} s, max {max:.3} s")
}

fn millicores(of: f64) -> String {
    format!("{of:.1}")
}

fn mib(memory: Memory) -> String {
    format!("{:.1} ({:.1})", memory.rss, memory.peak)
}
