//! Metrics of processes and start times.

use longshore_resources::stats::OpenFileCount;

use super::family::{Family, Subject, Values, gauge, setting};

fn open(subject: &Subject<'_>, values: &mut Values<'_, '_>, of: fn(OpenFileCount) -> u64) {
    if let Some(open) = subject.group.processes.open {
        values.add(of(open) as f64);
    }
}

pub(super) static FAMILIES: &[Family] = &[
    gauge(
        "container_last_seen",
        "Last time a container was seen by the exporter",
        |subject, values| values.add(subject.reading().at.as_second() as f64),
    ),
    // -1: no health check.
    gauge("container_health_state", "The result of the container's health check", |_, values| {
        values.add(-1.0)
    }),
    setting(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        |subject, values| {
            if let Some(started) = subject.started {
                values.add(started.as_second() as f64);
            }
        },
    ),
    gauge(
        "container_processes",
        "Number of processes running inside the container.",
        |subject, values| values.add(subject.group.processes.count as f64),
    ),
    gauge(
        "container_file_descriptors",
        "Number of open file descriptors for the container.",
        |subject, values| open(subject, values, |open| open.files),
    ),
    gauge("container_sockets", "Number of open sockets for the container.", |subject, values| {
        open(subject, values, |open| open.sockets)
    }),
    gauge(
        "container_threads_max",
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        |subject, values| {
            if let Some(tasks) = subject.reading().tasks {
                values.add(tasks.max.unwrap_or(0) as f64);
            }
        },
    ),
    gauge(
        "container_threads",
        "Number of threads running inside the container",
        |subject, values| {
            if let Some(tasks) = subject.reading().tasks {
                values.add(tasks.current as f64);
            }
        },
    ),
    gauge(
        "container_ulimits_soft",
        "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
        |subject, values| {
            let processes = &subject.group.processes;
            // For containers and sandboxes, which have processes.
            if let (Some(_), Some(_)) = (processes.first, processes.open) {
                let limit = processes.file_limit.map_or(-1.0, |limit| limit as f64);
                values.add_of(&[("ulimit", "max_open_files")], limit);
            }
        },
    ),
];
