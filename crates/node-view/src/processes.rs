//! CPU and memory of processes, from /proc.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use crate::snapshot::ProcessSample;

/// A process to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// What it is called.
    pub name: String,
    /// The process.
    pub pid: u32,
}

/// The programs that are shown as processes: ours, those whose place they take, and runtimes.
const PROGRAMS: [&str; 12] = [
    "longshore",
    "longshore-apiserver",
    "longshore-controllers",
    "longshore-dns",
    "longshore-host",
    "kubelet",
    "kube-proxy",
    "containerd",
    "crio",
    "dockerd",
    "etcd",
    "kube-apiserver",
];

/// The processes of a node and of its control plane, as far as they run on this machine.
pub fn processes_of_node() -> Vec<Process> {
    processes_named(&PROGRAMS)
}

/// The processes whose programs have one of these names, by the order of names.
fn processes_named(names: &[&str]) -> Vec<Process> {
    let Ok(all) = procfs::process::all_processes() else { return Vec::new() };
    let mut found: Vec<(usize, Process)> = all
        .filter_map(|process| {
            let process = process.ok()?;
            let line = process.cmdline().ok()?;
            let program = Path::new(line.first()?).file_name()?.to_str()?;
            let at = names.iter().position(|name| *name == program)?;
            let pid = u32::try_from(process.pid).ok()?;
            Some((at, Process { name: program.to_owned(), pid }))
        })
        .collect();
    found.sort_by_key(|(at, process)| (*at, process.pid));
    found.into_iter().map(|(_, process)| process).collect()
}

/// Processes by their ids, with when they were last seen and how many seconds of CPU they had used.
#[derive(Default)]
pub(crate) struct Processes(HashMap<u32, (Instant, f64)>);

impl Processes {
    /// What a process uses; nothing when it is gone.
    pub(crate) fn sample(&mut self, name: &str, pid: u32) -> Option<ProcessSample> {
        let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
        let stat = process.stat().ok()?;
        let now = Instant::now();
        #[allow(clippy::cast_precision_loss, reason = "for display only")]
        let used = stat.utime.saturating_add(stat.stime) as f64 / procfs::ticks_per_second() as f64;
        let cpu = self.0.insert(pid, (now, used)).map_or(0.0, |(then, before)| {
            let seconds = now.saturating_duration_since(then).as_secs_f64();
            100.0 * (used - before) / seconds.max(f64::EPSILON)
        });
        let memory = stat.rss.saturating_mul(procfs::page_size());
        Some(ProcessSample { name: name.to_owned(), pid, cpu, memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_view_has_processes_that_are_there() {
        let mut processes = Processes::default();
        let own = processes.sample("own", std::process::id()).unwrap();
        assert!(own.memory > 0 && own.cpu == 0.0);
        assert!(processes.sample("own", std::process::id()).unwrap().cpu >= 0.0);
        assert_eq!(processes.sample("none", u32::MAX), None);
    }

    #[test]
    fn node_view_finds_processes_by_their_programs() {
        let own = std::env::args().next().unwrap();
        let own = Path::new(&own).file_name().unwrap().to_str().unwrap();
        let found = processes_named(&["no such program", own]);
        assert!(found.iter().any(|one| one.pid == std::process::id()), "{found:?}");
        assert!(found.iter().all(|one| one.name == own), "{found:?}");
    }
}
