//! Process metrics, under the names of Prometheus clients.

use procfs::process::{Process, Stat};
use rustix::process::{Resource, getrlimit};
use tokio::runtime::Handle;

use crate::Registry;
use crate::text::{Kind, Labels, Text};

/// Registers `process_*`, and the number of tokio tasks as `go_goroutines`, which dashboards show.
pub fn register_process_metrics(registry: &Registry, runtime: Handle) {
    register_start_time(registry);
    registry.collect(move |text| {
        // what cannot be read is left out
        if let Ok(own) = Process::myself() {
            if let Ok(stat) = own.stat() {
                usage(text, &stat);
                let help = "Threads of the process.";
                one(text, "go_threads", help, Kind::Gauge, stat.num_threads as f64);
            }
            if let Some((received, sent)) = octets() {
                let help = "Bytes that came in over the network, to whatever process.";
                one(text, "process_network_receive_bytes_total", help, Kind::Counter, received);
                let help = "Bytes that went out over the network, from whatever process.";
                one(text, "process_network_transmit_bytes_total", help, Kind::Counter, sent);
            }
            if let Ok(count) = own.fd_count() {
                let help = "Open file descriptors.";
                one(text, "process_open_fds", help, Kind::Gauge, count as f64);
            }
        }
        let files = getrlimit(Resource::Nofile).current;
        let help = "How many file descriptors may be open.";
        one(text, "process_max_fds", help, Kind::Gauge, limit(files));
        let tasks = runtime.metrics().num_alive_tasks();
        let help = "Tasks that are alive: what goroutines are to a daemon in Go.";
        one(text, "go_goroutines", help, Kind::Gauge, tasks as f64);
    });
}

/// Registers `process_start_time_seconds`.
pub fn register_start_time(registry: &Registry) {
    let started = Process::myself().and_then(|own| own.stat()).ok().and_then(|stat| start(&stat));
    let Some(started) = started else { return };
    registry.collect(move |text| {
        let help = "When the process began, in seconds since 1970.";
        one(text, "process_start_time_seconds", help, Kind::Gauge, started);
    });
}

fn usage(text: &mut Text, stat: &Stat) {
    let ticks = stat.utime.saturating_add(stat.stime) as f64;
    let help = "CPU time spent, in seconds.";
    let seconds = ticks / procfs::ticks_per_second() as f64;
    one(text, "process_cpu_seconds_total", help, Kind::Counter, seconds);
    let resident = stat.rss as f64 * procfs::page_size() as f64;
    let help = "Resident memory, in bytes.";
    one(text, "process_resident_memory_bytes", help, Kind::Gauge, resident);
    let help = "Virtual memory, in bytes.";
    one(text, "process_virtual_memory_bytes", help, Kind::Gauge, stat.vsize as f64);
    let help = "How much virtual memory there may be, in bytes.";
    let space = limit(getrlimit(Resource::As).current);
    one(text, "process_virtual_memory_max_bytes", help, Kind::Gauge, space);
}

/// IP bytes received and sent in this network namespace, as in other clients: the kernel has no counters
/// per process.
fn octets() -> Option<(f64, f64)> {
    octets_of(&std::fs::read_to_string("/proc/self/net/netstat").ok()?)
}

fn octets_of(table: &str) -> Option<(f64, f64)> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let find = |name: &str| {
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        pairs.find(|(known, _)| *known == name)?.1.parse::<f64>().ok()
    };
    Some((find("InOctets")?, find("OutOctets")?))
}

/// In seconds since 1970.
fn start(stat: &Stat) -> Option<f64> {
    let boot = procfs::boot_time_secs().ok()?;
    Some(boot as f64 + stat.starttime as f64 / procfs::ticks_per_second() as f64)
}

/// Unlimited is the maximum, as in other clients.
fn limit(limit: Option<u64>) -> f64 {
    limit.unwrap_or(u64::MAX) as f64
}

fn one(text: &mut Text, name: &str, help: &str, kind: Kind, value: f64) {
    text.family(name, help, kind).add(&Labels::NONE, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_network_bytes_are_parsed() {
        let table = "TcpExt: SyncookiesSent InOctets\nTcpExt: 1 2\n\
                     IpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 1234 99\n";
        assert_eq!(octets_of(table), Some((1234.0, 99.0)));
        assert_eq!(octets_of("IpExt: InOctets\n"), None);
        assert_eq!(octets_of(""), None);
        assert!(octets().is_some());
    }
}
