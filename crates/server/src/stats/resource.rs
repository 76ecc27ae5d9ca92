//! `/metrics/resource`: CPU time, memory and swap, with timestamps.

use k8s_openapi::jiff::Timestamp;
use longshore_cri::v1::{ContainerStats, CpuUsage, MemoryUsage, UInt64Value};
use longshore_metrics::{Kind, Labels, SampleTime, Samples, Text};
use longshore_pod::observed::ObservedPod;
use longshore_resources::stats::{Group, MemoryUse, RuntimePod, Snapshot, runtime_time};

/// A value and the time of it.
type Sample = (f64, Timestamp);

/// The page.
pub(super) fn page(snapshot: &Snapshot, runtime: Option<&[RuntimePod]>) -> String {
    let subjects = match runtime {
        Some(pods) => Subjects::of_runtime(pods),
        None => Subjects::of_cgroups(snapshot),
    };
    let mut text = Text::new();
    write_samples(snapshot, &subjects, &mut text);
    finish(text, 0.0)
}

/// The page when nothing could be read: the scrape error.
pub(super) fn failure() -> String {
    finish(Text::new(), 1.0)
}

fn finish(mut text: Text, failed: f64) -> String {
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    text.family("resource_scrape_error", help, Kind::Gauge).add(&Labels::NONE, failed);
    let help = "[ALPHA] (Deprecated since 1.29.0) 1 if there was an error while getting container \
                metrics, 0 otherwise";
    text.family("scrape_error", help, Kind::Gauge).add(&Labels::NONE, failed);
    text.finish()
}

/// The values of a pod, a container, or the node.
#[derive(Default)]
struct Values {
    cpu: Option<Sample>,
    memory: Option<Sample>,
    swap: Option<Sample>,
    swap_limit: Option<Sample>,
}

/// The pods and their containers, with their creation times.
#[derive(Default)]
struct Subjects {
    containers: Vec<(Labels, Timestamp, Values)>,
    pods: Vec<(Labels, Values)>,
}

fn container_labels(container: &str, pod: &ObservedPod) -> Labels {
    Labels::new(&[("container", container), ("namespace", &pod.namespace), ("pod", &pod.name)])
}

fn pod_labels(pod: &ObservedPod) -> Labels {
    Labels::new(&[("namespace", &pod.namespace), ("pod", &pod.name)])
}

impl Subjects {
    fn of_cgroups(snapshot: &Snapshot) -> Self {
        let mut found = Self::default();
        for pod in snapshot.latest_pods() {
            for (container, run) in pod.newest() {
                let labels = container_labels(&container.name, &pod.pod);
                found.containers.push((labels, container.created_at, Values::of(&run.group)));
            }
            if let Some(own) = &pod.own {
                found.pods.push((pod_labels(&pod.pod), Values::of(own)));
            }
        }
        found
    }

    fn of_runtime(pods: &[RuntimePod]) -> Self {
        let mut found = Self::default();
        for pod in pods {
            let mut swap: Option<Sample> = None;
            for container in &pod.containers {
                let values = Values::of_container(&container.stats);
                if let Some((used, at)) = values.swap {
                    swap = Some((swap.map_or(0.0, |(sum, _)| sum) + used, at));
                }
                let labels = container_labels(&container.name, &pod.pod);
                found.containers.push((labels, container.created_at, values));
            }
            let (cpu, memory) = (pod.stats.cpu.as_ref(), pod.stats.memory.as_ref());
            let values = Values {
                cpu: cpu.and_then(|cpu| seconds(cpu, cpu.usage_core_nano_seconds?)),
                memory: memory.and_then(|memory| bytes(memory, memory.working_set_bytes?)),
                // The runtime does not report a pod's.
                swap,
                swap_limit: None,
            };
            found.pods.push((pod_labels(&pod.pod), values));
        }
        found
    }
}

fn seconds(cpu: &CpuUsage, used: UInt64Value) -> Option<Sample> {
    Some((used.value as f64 / 1e9, runtime_time(cpu.timestamp)))
}

fn bytes(memory: &MemoryUsage, used: UInt64Value) -> Option<Sample> {
    Some((used.value as f64, runtime_time(memory.timestamp)))
}

impl Values {
    fn of(group: &Group) -> Self {
        let at = group.reading.at;
        let of_memory = |value_of: fn(&MemoryUse) -> Option<u64>| {
            let value = group.reading.memory.as_ref().and_then(value_of);
            value.map(|bytes| (bytes as f64, at))
        };
        Self {
            cpu: group.reading.cpu.map(|cpu| (cpu.total as f64 / 1e9, at)),
            memory: of_memory(|memory| Some(memory.memory.working_set)),
            swap: of_memory(|memory| memory.swap),
            swap_limit: of_memory(|memory| memory.swap_limit),
        }
    }

    /// What the runtime does not report of a container is zero, as upstream has it.
    fn of_container(stats: &ContainerStats) -> Self {
        let now = Timestamp::now();
        let zero = || Some((0.0, now));
        let or_zero = |value: Option<UInt64Value>| value.unwrap_or_default();
        let cpu = stats.cpu.as_ref();
        let memory = stats.memory.as_ref();
        let (swap, swap_limit) = match &stats.swap {
            Some(swap) => {
                let at = runtime_time(swap.timestamp);
                let used = or_zero(swap.swap_usage_bytes).value;
                let limit = or_zero(swap.swap_available_bytes).value.saturating_add(used);
                (Some((used as f64, at)), Some((limit as f64, at)))
            }
            None => (zero(), zero()),
        };
        Self {
            cpu: cpu.map_or_else(zero, |cpu| seconds(cpu, or_zero(cpu.usage_core_nano_seconds))),
            memory: memory
                .map_or_else(zero, |memory| bytes(memory, or_zero(memory.working_set_bytes))),
            swap,
            swap_limit,
        }
    }
}

fn write_samples(snapshot: &Snapshot, subjects: &Subjects, text: &mut Text) {
    let of_containers = |samples: &mut Samples<'_>, value_of: fn(&Values) -> Option<Sample>| {
        let all = subjects.containers.iter();
        all.for_each(|(labels, _, values)| add(samples, labels, value_of(values)));
    };
    let of_pods = |samples: &mut Samples<'_>, value_of: fn(&Values) -> Option<Sample>| {
        subjects.pods.iter().for_each(|(labels, values)| add(samples, labels, value_of(values)));
    };
    let node = Values::of(&snapshot.node);

    let help = "[STABLE] Cumulative cpu time consumed by the container in core-seconds";
    let family = |text: &mut Text, name, help, kind, value_of| {
        of_containers(&mut text.family(name, help, kind), value_of);
    };
    family(text, "container_cpu_usage_seconds_total", help, Kind::Counter, |values| values.cpu);
    let help = "[STABLE] Current working set of the container in bytes";
    family(text, "container_memory_working_set_bytes", help, Kind::Gauge, |values| values.memory);
    let help = "[STABLE] Start time of the container since unix epoch in seconds";
    let mut started = text.family("container_start_time_seconds", help, Kind::Gauge);
    for (labels, created_at, _) in &subjects.containers {
        started.add(labels, created_at.as_nanosecond() as f64 / 1e9);
    }
    let help = "[ALPHA] Current amount of the container swap limit in bytes. Reported only on \
                non-windows systems";
    family(text, "container_swap_limit_bytes", help, Kind::Gauge, |values| values.swap_limit);
    let help = "[ALPHA] Current amount of the container swap usage in bytes. Reported only on \
                non-windows systems";
    family(text, "container_swap_usage_bytes", help, Kind::Gauge, |values| values.swap);

    let none = &Labels::NONE;
    let help = "[STABLE] Cumulative cpu time consumed by the node in core-seconds";
    add(&mut text.family("node_cpu_usage_seconds_total", help, Kind::Counter), none, node.cpu);
    let help = "[STABLE] Current working set of the node in bytes";
    add(&mut text.family("node_memory_working_set_bytes", help, Kind::Gauge), none, node.memory);
    let help = "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows \
                systems";
    let used = snapshot.machine.swap_total.saturating_sub(snapshot.machine.swap_free);
    let used = Some((used as f64, snapshot.node.reading.at));
    add(&mut text.family("node_swap_usage_bytes", help, Kind::Gauge), none, used);

    let help = "[STABLE] Cumulative cpu time consumed by the pod in core-seconds";
    let name = "pod_cpu_usage_seconds_total";
    of_pods(&mut text.family(name, help, Kind::Counter), |values| values.cpu);
    let help = "[STABLE] Current working set of the pod in bytes";
    let name = "pod_memory_working_set_bytes";
    of_pods(&mut text.family(name, help, Kind::Gauge), |values| values.memory);
    let help = "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems";
    of_pods(&mut text.family("pod_swap_usage_bytes", help, Kind::Gauge), |values| values.swap);
}

fn add(samples: &mut Samples<'_>, labels: &Labels, sample: Option<Sample>) {
    if let Some((value, at)) = sample {
        samples.add_at(labels, value, &SampleTime::of_millis(at.as_millisecond()));
    }
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
        let text = page(&snapshot(pods), None);
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
    fn resource_metrics_of_the_runtime() {
        use longshore_cri::v1::{LinuxPodSandboxStats, SwapUsage};
        use longshore_resources::stats::RuntimeContainer;

        let amount = |value| Some(UInt64Value { value });
        let second = |second: i64| second * 1_000_000_000;
        let cpu = CpuUsage {
            timestamp: second(AT),
            usage_core_nano_seconds: amount(1_500_000_000),
            ..CpuUsage::default()
        };
        let swap = SwapUsage {
            timestamp: second(AT),
            swap_available_bytes: amount(10),
            swap_usage_bytes: amount(5),
        };
        let stats = ContainerStats { cpu: Some(cpu), swap: Some(swap), ..Default::default() };
        let known = pod("a", "1", AT, vec![]);
        let pods = [RuntimePod {
            pod: known.pod,
            created_at: Timestamp::default(),
            stats: LinuxPodSandboxStats { cpu: Some(cpu), ..Default::default() },
            containers: vec![RuntimeContainer {
                id: "c1".to_owned(),
                name: "c".to_owned(),
                created_at: Timestamp::default(),
                stats,
            }],
        }];
        let text = page(&snapshot(vec![]), Some(&pods));
        let found = parse(&text).unwrap();
        let labels = [("container", "c"), ("namespace", "ns"), ("pod", "a")];
        for (name, value) in [
            ("container_cpu_usage_seconds_total", 1.5),
            ("container_memory_working_set_bytes", 0.0),
            ("container_swap_usage_bytes", 5.0),
            ("container_swap_limit_bytes", 15.0),
        ] {
            let samples: Vec<_> = found.samples(name, &labels).collect();
            assert_eq!(samples.len(), 1, "{name}");
            assert_eq!(samples[0].value, value, "{name}");
        }
        let labels = [("namespace", "ns"), ("pod", "a")];
        let total = found.samples("pod_cpu_usage_seconds_total", &labels).next().unwrap();
        assert_eq!((total.value, total.at), (1.5, Some(AT * 1000)));
        assert_eq!(found.sum("pod_swap_usage_bytes", &labels), Some(5.0));
        assert!(!found.families.contains_key("pod_memory_working_set_bytes"), "it is not reported");
        assert_eq!(found.sum("node_cpu_usage_seconds_total", &[]), Some(2.5));
    }

    #[test]
    fn resource_metrics_scrape_error() {
        let found = parse(&failure()).unwrap();
        assert_eq!(found.series(), 2);
        assert_eq!(found.sum("resource_scrape_error", &[]), Some(1.0));
    }

    proptest! {
        /// Finding 1: with extreme stats and names, the page can be parsed.
        #[test]
        fn extremes_of_resource_metrics(snapshot in any_snapshot()) {
            let text = page(&snapshot, None);
            let found = parse(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(found.sum("resource_scrape_error", &[]), Some(0.0));
            prop_assert!(text.len() <= 64 << 10);
        }
    }
}
