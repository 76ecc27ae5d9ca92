//! Memory and swap.

use super::family::{Family, counter, gauge, setting};

pub(super) static FAMILIES: &[Family] = &[
    gauge("container_memory_cache", "Number of bytes of page cache memory.", |subject, values| {
        subject.memory(values, |memory| memory.cache)
    }),
    gauge("container_memory_rss", "Size of RSS in bytes.", |subject, values| {
        subject.memory(values, |memory| memory.memory.rss);
    }),
    gauge(
        "container_memory_kernel_usage",
        "Size of kernel memory allocated in bytes.",
        |subject, values| subject.memory(values, |memory| memory.kernel.unwrap_or(0)),
    ),
    gauge(
        "container_memory_mapped_file",
        "Size of memory mapped files in bytes.",
        |subject, values| subject.memory(values, |memory| memory.mapped_file),
    ),
    gauge("container_memory_swap", "Container swap usage in bytes.", |subject, values| {
        if subject.is_node {
            let machine = &subject.snapshot.machine;
            values.add(machine.swap_total.saturating_sub(machine.swap_free) as f64);
        } else {
            subject.memory(values, |memory| memory.swap.unwrap_or(0));
        }
    }),
    counter("container_memory_failcnt", "Number of memory usage hits limits", |subject, values| {
        subject.memory(values, |memory| memory.failures)
    }),
    gauge(
        "container_memory_usage_bytes",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |subject, values| subject.memory(values, |memory| memory.memory.usage),
    ),
    gauge(
        "container_memory_max_usage_bytes",
        "Maximum memory usage recorded in bytes",
        |subject, values| subject.memory(values, |memory| memory.peak.unwrap_or(0)),
    ),
    gauge(
        "container_memory_working_set_bytes",
        "Current working set in bytes.",
        |subject, values| subject.memory(values, |memory| memory.memory.working_set),
    ),
    gauge(
        "container_memory_total_active_file_bytes",
        "Current total active file in bytes.",
        |subject, values| subject.memory(values, |memory| memory.active_file),
    ),
    gauge(
        "container_memory_total_inactive_file_bytes",
        "Current total inactive file in bytes.",
        |subject, values| subject.memory(values, |memory| memory.inactive_file),
    ),
    counter(
        "container_memory_failures_total",
        "Cumulative count of memory allocation failures.",
        |subject, values| {
            let Some(memory) = &subject.reading().memory else { return };
            for (scope, faults) in [("container", memory.own_faults), ("hierarchy", memory.faults)]
            {
                for (kind, count) in [("pgfault", faults.minor), ("pgmajfault", faults.major)] {
                    values.add_of(&[("failure_type", kind), ("scope", scope)], count as f64);
                }
            }
        },
    ),
    counter(
        "container_oom_events_total",
        "Count of out of memory events observed for the container",
        |subject, values| values.add(subject.reading().oom_kills.unwrap_or(0) as f64),
    ),
    // 0 is no limit; the root's limit is the machine's memory.
    setting(
        "container_spec_memory_limit_bytes",
        "Memory limit for the container.",
        |subject, values| match subject.is_node {
            true => values.add(subject.snapshot.machine.memory.limit.unwrap_or(0) as f64),
            false => subject.memory(values, |memory| memory.memory.limit.unwrap_or(0)),
        },
    ),
    setting(
        "container_spec_memory_swap_limit_bytes",
        "Memory swap limit for the container.",
        |subject, values| match subject.is_node {
            true => values.add(subject.snapshot.machine.swap_total as f64),
            false => subject.memory(values, |memory| memory.swap_limit.unwrap_or(0)),
        },
    ),
    setting(
        "container_spec_memory_reservation_limit_bytes",
        "Memory reservation limit for the container.",
        |subject, values| subject.memory(values, |memory| memory.reserved),
    ),
];
