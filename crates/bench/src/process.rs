//! What a process has used, from /proc.
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use longshore_testkit::{Daemon, Host};
use nix::time::ClockId;
use nix::unistd::Pid;
use procfs::process::Process;
use serde::Serialize;

/// What a process uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Use {
    /// User and system time of all its threads, children left out.
    pub(crate) cpu_seconds: f64,
    pub(crate) memory: Memory,
}

/// In MiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Memory {
    /// Resident: VmRSS.
    pub(crate) rss: f64,
    /// Resident, shared pages divided among their users.
    pub(crate) pss: f64,
    /// Resident at most, since it started: VmHWM.
    pub(crate) peak: f64,
}

/// Looks at a process now.
#[allow(clippy::cast_precision_loss, reason = "for display only")]
pub(crate) fn look(pid: u32) -> Result<Use> {
    let process = Process::new(i32::try_from(pid)?)?;
    let (status, clock) =
        (process.status()?, ClockId::pid_cpu_clock_id(Pid::from_raw(process.pid))?);
    let rollup = process.smaps_rollup()?.memory_map_rollup;
    let pss = rollup.0.first().and_then(|map| map.extension.map.get("Pss")).context("no Pss")?;
    let kib = |field: Option<u64>| field.map_or(0.0, |kib| kib as f64 / 1024.0);
    Ok(Use {
        cpu_seconds: Duration::from(clock.now()?).as_secs_f64(),
        memory: Memory {
            rss: kib(status.vmrss),
            pss: *pss as f64 / f64::from(1 << 20),
            peak: kib(status.vmhwm),
        },
    })
}

/// Looks at a daemon, which must run.
pub(crate) fn look_at_daemon(daemon: &mut Daemon) -> Result<Use> {
    daemon.check_running()?;
    look(daemon.pid()).with_context(|| daemon.name().to_owned())
}

/// What several processes use together.
pub(crate) fn look_at_all(pids: &[u32]) -> Result<Use> {
    let mut all = Use { cpu_seconds: 0.0, memory: Memory::default() };
    for pid in pids {
        let Use { cpu_seconds, memory } = look(*pid)?;
        all.cpu_seconds += cpu_seconds;
        all.memory.rss += memory.rss;
        all.memory.pss += memory.pss;
        all.memory.peak += memory.peak;
    }
    Ok(all)
}

/// The first process of every container of the host's containerd, by the container's ID.
pub(crate) fn of_containers(host: &Host) -> Result<HashMap<String, Pid>> {
    Ok(pids(&host.ctr(["tasks", "ls"])?))
}

/// From the table of `ctr tasks ls`: a heading, then id, pid and status.
fn pids(table: &str) -> HashMap<String, Pid> {
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), Pid::from_raw(words.next()?.parse().ok()?)))
    };
    table.lines().filter_map(of).collect()
}

/// How often each thread of a process was set to work since it started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WakeUps(HashMap<i32, u64>);

impl WakeUps {
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let mut threads = HashMap::new();
        for task in Process::new(i32::try_from(pid)?)?.tasks()? {
            let task = task?;
            // One that ends meanwhile has none.
            if let Ok(status) = task.status() {
                threads.insert(task.tid, status.voluntary_ctxt_switches.unwrap_or(0));
            }
        }
        Ok(Self(threads))
    }

    /// How often since then. What a thread did that has ended is not known.
    pub(crate) fn since(&self, before: &Self) -> u64 {
        let earlier = |tid| before.0.get(tid).copied().unwrap_or(0);
        self.0.iter().map(|(tid, woken)| woken.saturating_sub(earlier(tid))).sum()
    }
}

/// How many descriptors a process has open.
pub(crate) fn descriptors(pid: u32) -> Result<usize> {
    Ok(Process::new(i32::try_from(pid)?)?.fd_count()?)
}

/// CPU-seconds of everything that ran on the host, however short it lived; none without cgroup v2.
///
/// Unlike a duration it hardly depends on what else the machine has to do.
pub(crate) fn host_cpu_seconds(host: &Host) -> Option<f64> {
    let group = host.cgroup_root();
    let mut trees = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter().map(Path::new);
    let stat = trees.find_map(|tree| {
        fs::read_to_string(tree.join(group.trim_start_matches('/')).join("cpu.stat")).ok()
    })?;
    let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(usage.parse::<f64>().ok()? / 1e6)
}

/// What is between two values of [`host_cpu_seconds`].
pub(crate) fn host_cpu_since(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    Some(after? - before?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_units_are_consistent() {
        let memory = look(std::process::id()).unwrap().memory;
        assert!(memory.pss > 0.5 && memory.pss <= memory.rss * 1.1, "{memory:?}");
        assert!(memory.rss <= memory.peak && memory.peak < 1024.0, "{memory:?}");
    }

    #[test]
    fn process_task_table_is_parsed() {
        let table = "TASK    PID     STATUS    \nab12    417     RUNNING\ncd34    9    STOPPED\n";
        let expected = [("ab12", 417), ("cd34", 9)];
        let expected = expected.map(|(id, pid)| (id.to_owned(), Pid::from_raw(pid)));
        assert_eq!(pids(table), HashMap::from(expected));
    }

    #[test]
    fn process_wake_ups_are_counted() {
        let before = WakeUps([(1, 100), (2, 50)].into());
        let after = WakeUps([(1, 103), (3, 4)].into());
        assert_eq!(after.since(&before), 7);
        let own = WakeUps::of(std::process::id()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(WakeUps::of(std::process::id()).unwrap().since(&own) > 0);
    }

    #[test]
    fn process_work_is_counted() {
        let before = look(std::process::id()).unwrap().cpu_seconds;
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 200 {}
        let used = look(std::process::id()).unwrap().cpu_seconds - before;
        assert!(used > 0.03, "{used} s");
    }
}
