//! Metrics of CPU time, quotas and pressure.

use longshore_resources::stats::{Limits, Pressure, Stalls};

use super::family::{Family, Subject, Values, counter, gauge, setting};

/// Task states, as upstream's.
const STATES: [&str; 5] = ["iowaiting", "running", "sleeping", "stopped", "uninterruptible"];

type Resource = fn(&Pressure) -> Option<Stalls>;

/// Time with some tasks stalled. The kernel counts microseconds.
fn waiting(subject: &Subject<'_>, values: &mut Values<'_, '_>, of: Resource) {
    if let Some(stalls) = of(&subject.reading().pressure) {
        values.add(stalls.some.total as f64 / 1e6);
    }
}

/// Time with all tasks stalled.
fn stalled(subject: &Subject<'_>, values: &mut Values<'_, '_>, of: Resource) {
    if let Some(stalls) = of(&subject.reading().pressure) {
        values.add(stalls.full.total as f64 / 1e6);
    }
}

fn limit(subject: &Subject<'_>, values: &mut Values<'_, '_>, of: fn(&Limits) -> Option<u64>) {
    if let Some(limit) = of(&subject.reading().limits) {
        values.add(limit as f64);
    }
}

pub(super) static FAMILIES: &[Family] = &[
    counter(
        "container_cpu_usage_seconds_total",
        "Cumulative cpu time consumed in seconds.",
        |subject, values| {
            if let Some(cpu) = subject.reading().cpu {
                values.add_of(&[("cpu", "total")], cpu.total as f64 / 1e9);
            }
        },
    ),
    counter(
        "container_cpu_user_seconds_total",
        "Cumulative user cpu time consumed in seconds.",
        |subject, values| subject.cpu(values, |cpu| cpu.user),
    ),
    counter(
        "container_cpu_system_seconds_total",
        "Cumulative system cpu time consumed in seconds.",
        |subject, values| subject.cpu(values, |cpu| cpu.system),
    ),
    counter(
        "container_cpu_cfs_periods_total",
        "Number of elapsed enforcement period intervals.",
        |subject, values| subject.quota(values, |quota| quota.periods as f64),
    ),
    counter(
        "container_cpu_cfs_throttled_periods_total",
        "Number of throttled period intervals.",
        |subject, values| subject.quota(values, |quota| quota.throttled as f64),
    ),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        |subject, values| subject.quota(values, |quota| quota.throttled_time as f64 / 1e9),
    ),
    counter(
        "container_cpu_cfs_burst_periods_total",
        "Number of periods when burst occurs.",
        |subject, values| subject.quota(values, |quota| quota.bursts as f64),
    ),
    counter(
        "container_cpu_cfs_burst_seconds_total",
        "Total time duration the container has been bursted.",
        |subject, values| subject.quota(values, |quota| quota.burst_time as f64 / 1e9),
    ),
    // Always 0 upstream, too, as its load reader is disabled.
    gauge(
        "container_cpu_load_average_10s",
        "Value of container cpu load average over the last 10 seconds.",
        |_, values| values.add(0.0),
    ),
    gauge(
        "container_cpu_load_d_average_10s",
        "Value of container cpu load.d average over the last 10 seconds.",
        |_, values| values.add(0.0),
    ),
    gauge("container_tasks_state", "Number of tasks in given state", |_, values| {
        STATES.iter().for_each(|state| values.add_of(&[("state", state)], 0.0));
    }),
    setting("container_spec_cpu_period", "CPU period of the container.", |subject, values| {
        limit(subject, values, |limits| limits.period)
    }),
    setting("container_spec_cpu_quota", "CPU quota of the container.", |subject, values| {
        limit(subject, values, |limits| limits.quota)
    }),
    setting("container_spec_cpu_shares", "CPU share of the container.", |subject, values| {
        limit(subject, values, |limits| limits.shares)
    }),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        |subject, values| stalled(subject, values, |pressure| pressure.cpu),
    ),
    counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to CPU congestion.",
        |subject, values| waiting(subject, values, |pressure| pressure.cpu),
    ),
    counter(
        "container_pressure_memory_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to memory congestion.",
        |subject, values| stalled(subject, values, |pressure| pressure.memory),
    ),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to memory congestion.",
        |subject, values| waiting(subject, values, |pressure| pressure.memory),
    ),
    counter(
        "container_pressure_io_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        |subject, values| stalled(subject, values, |pressure| pressure.io),
    ),
    counter(
        "container_pressure_io_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to IO congestion.",
        |subject, values| waiting(subject, values, |pressure| pressure.io),
    ),
];
