//! `/metrics/resource`: CPU time, memory and swap, with timestamps.

use longshore_metrics::{Kind, Labels, SampleTime, Samples, Text};
use longshore_resources::stats::{Group, MemoryUse, Snapshot};

/// Reads a value of a cgroup.
type ValueOf = fn(&Group) -> Option<f64>;

/// The metrics page; without a snapshot, the scrape error.
pub(super) fn page(snapshot: Option<&Snapshot>) -> String {
    let mut text = Text::new();
    if let Some(snapshot) = snapshot {
        write_samples(snapshot, &mut text);
    }
    let failed = f64::from(u8::from(snapshot.is_none()));
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    text.family("resource_scrape_error", help, Kind::Gauge).add(&Labels::NONE, failed);
    let help = "[ALPHA] (Deprecated since 1.29.0) 1 if there was an error while getting container \
                metrics, 0 otherwise";
    text.family("scrape_error", help, Kind::Gauge).add(&Labels::NONE, failed);
    text.finish()
}

fn write_samples(snapshot: &Snapshot, text: &mut Text) {
    let (mut containers, mut pods) = (Vec::new(), Vec::<(Labels, &Group)>::new());
    for pod in snapshot.latest_pods() {
        let (name, namespace) = (&pod.pod.name, &pod.pod.namespace);
        for (container, run) in pod.newest() {
            let labels =
                [("container", container.name.as_str()), ("namespace", namespace), ("pod", name)];
            containers.push((Labels::new(&labels), container, &run.group));
        }
        if let Some(own) = &pod.own {
            pods.push((Labels::new(&[("namespace", namespace), ("pod", name)]), own));
        }
    }
    let of_containers = |samples: &mut Samples<'_>, value_of: ValueOf| {
        containers.iter().for_each(|(labels, _, group)| add(samples, labels, group, value_of));
    };
    let of_pods = |samples: &mut Samples<'_>, value_of: ValueOf| {
        pods.iter().for_each(|(labels, group)| add(samples, labels, group, value_of));
    };
    let of_node = |samples: &mut Samples<'_>, value_of: ValueOf| {
        add(samples, &Labels::NONE, &snapshot.node, value_of);
    };

    let help = "[STABLE] Cumulative cpu time consumed by the container in core-seconds";
    of_containers(&mut text.family("container_cpu_usage_seconds_total", help, Kind::Counter), cpu);
    let help = "[STABLE] Current working set of the container in bytes";
    of_containers(
        &mut text.family("container_memory_working_set_bytes", help, Kind::Gauge),
        memory,
    );
    let help = "[STABLE] Start time of the container since unix epoch in seconds";
    let mut started = text.family("container_start_time_seconds", help, Kind::Gauge);
    for (labels, container, _) in &containers {
        started.add(labels, container.created_at.as_nanosecond() as f64 / 1e9);
    }
    let help = "[ALPHA] Current amount of the container swap limit in bytes. Reported only on \
                non-windows systems";
    of_containers(&mut text.family("container_swap_limit_bytes", help, Kind::Gauge), swap_limit);
    let help = "[ALPHA] Current amount of the container swap usage in bytes. Reported only on \
                non-windows systems";
    of_containers(&mut text.family("container_swap_usage_bytes", help, Kind::Gauge), swap);

    let help = "[STABLE] Cumulative cpu time consumed by the node in core-seconds";
    of_node(&mut text.family("node_cpu_usage_seconds_total", help, Kind::Counter), cpu);
    let help = "[STABLE] Current working set of the node in bytes";
    of_node(&mut text.family("node_memory_working_set_bytes", help, Kind::Gauge), memory);
    let help = "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows \
                systems";
    let used = snapshot.machine.swap_total.saturating_sub(snapshot.machine.swap_free);
    text.family("node_swap_usage_bytes", help, Kind::Gauge).add_at(
        &Labels::NONE,
        used as f64,
        &timestamp(&snapshot.node),
    );

    let help = "[STABLE] Cumulative cpu time consumed by the pod in core-seconds";
    of_pods(&mut text.family("pod_cpu_usage_seconds_total", help, Kind::Counter), cpu);
    let help = "[STABLE] Current working set of the pod in bytes";
    of_pods(&mut text.family("pod_memory_working_set_bytes", help, Kind::Gauge), memory);
    let help = "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems";
    of_pods(&mut text.family("pod_swap_usage_bytes", help, Kind::Gauge), swap);
}

fn add(samples: &mut Samples<'_>, labels: &Labels, group: &Group, value_of: ValueOf) {
    if let Some(value) = value_of(group) {
        samples.add_at(labels, value, &timestamp(group));
    }
}

fn timestamp(group: &Group) -> SampleTime {
    SampleTime::of_millis(group.reading.at.as_millisecond())
}

fn cpu(group: &Group) -> Option<f64> {
    group.reading.cpu.map(|cpu| cpu.total as f64 / 1e9)
}

fn of_memory(group: &Group, value_of: fn(&MemoryUse) -> Option<u64>) -> Option<f64> {
    group.reading.memory.as_ref().and_then(value_of).map(|bytes| bytes as f64)
}

fn memory(group: &Group) -> Option<f64> {
    of_memory(group, |memory| Some(memory.memory.working_set))
}

fn swap(group: &Group) -> Option<f64> {
    of_memory(group, |memory| memory.swap)
}

fn swap_limit(group: &Group) -> Option<f64> {
    of_memory(group, |memory| memory.swap_limit)
}

#[cfg(test)]
mod tests {
    use longshore_metrics::parse::parse;
    use proptest::prelude::*;

    use longshore_resources::stats::fixture::{AT, any_snapshot, container, pod, snapshot};

    use super::*;

    #[test]
    fn resource_metrics_have_timestamps_and_no_duplicates() {
        let newest_first = || vec![container("c2", "c", AT - 5), container("c1", "c", AT - 9)];
        let pods = vec![
            pod("a", "1", AT - 20, newest_first()),
            pod("a", "2", AT - 10, newest_first()),
            pod("b", "3", AT - 10, vec![container("d", "d", AT - 9)]),
        ];
        let text = page(Some(&snapshot(pods)));
        let found = parse(&text).unwrap();
        let labels = [("container", "c"), ("namespace", "ns"), ("pod", "a")];
        for (name, value) in [
            ("container_cpu_usage_seconds_total", 2.5),
            ("container_memory_working_set_bytes", 2000.0),
            ("container_swap_usage_bytes", 7.0),
        ] {
            let samples: Vec<_> = found.samples(name, &labels).collect();
            assert_eq!(samples.len(), 1, "{name}: neither old runs nor pods of that name");
            assert_eq!((samples[0].value, samples[0].at), (value, Some(AT * 1000)), "{name}");
        }
        let started = found.samples("container_start_time_seconds", &labels).next().unwrap();
        assert_eq!((started.value, started.at), ((AT - 5) as f64, None));
        assert_eq!(found.families["pod_cpu_usage_seconds_total"].samples.len(), 2);
        assert!(!found.families.contains_key("container_swap_limit_bytes"), "there is none");
        for (name, value) in [
            ("node_cpu_usage_seconds_total", 2.5),
            ("node_memory_working_set_bytes", 2000.0),
            ("node_swap_usage_bytes", 200.0),
            ("scrape_error", 0.0),
            ("resource_scrape_error", 0.0),
        ] {
            assert_eq!(found.sum(name, &[]), Some(value), "{name}");
        }
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
            .collect();
        assert!(names.is_sorted(), "{names:?}");
    }

    #[test]
    fn resource_metrics_scrape_error() {
        let found = parse(&page(None)).unwrap();
        assert_eq!(found.series(), 2);
        assert_eq!(found.sum("resource_scrape_error", &[]), Some(1.0));
    }

    proptest! {
        /// Finding 1: with extreme stats and names, the page can be parsed.
        #[test]
        fn extremes_of_resource_metrics(snapshot in any_snapshot()) {
            let text = page(Some(&snapshot));
            let found = parse(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(found.sum("resource_scrape_error", &[]), Some(0.0));
            prop_assert!(text.len() <= 64 << 10);
        }
    }
}
