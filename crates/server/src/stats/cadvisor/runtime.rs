//! `/metrics/cadvisor` with the metrics of the runtime (gate PodAndContainerStatsFromCRI). The runtime
//! names families and labels; what would make the page unreadable to scrapers is left out.

use std::collections::{HashMap, HashSet};

use longshore_cri::v1::{Metric, MetricDescriptor, MetricType, PodSandboxMetrics};
use longshore_metrics::{Kind, Labels, SampleTime, Text};

/// The families of these metrics, by name. Metrics without a descriptor are left out, and so are
/// families with a name in `taken`.
pub(super) fn families(
    mut descriptors: Vec<MetricDescriptor>,
    pods: &[PodSandboxMetrics],
    taken: &HashSet<&str>,
    text: &mut Text,
) {
    let mut by_name = HashMap::<&str, Vec<&Metric>>::new();
    for pod in pods {
        let of_containers = pod.container_metrics.iter().flat_map(|container| &container.metrics);
        for metric in pod.metrics.iter().chain(of_containers) {
            by_name.entry(&metric.name).or_default().push(metric);
        }
    }
    descriptors.sort_by(|a, b| a.name.cmp(&b.name));
    descriptors.dedup_by(|a, b| a.name == b.name);
    for descriptor in descriptors {
        let name = descriptor.name.as_str();
        let metrics = by_name.remove(name).unwrap_or_default();
        let keys: HashSet<&String> = descriptor.label_keys.iter().collect();
        let valid = is_name(name, true)
            && keys.len() == descriptor.label_keys.len()
            && keys.iter().all(|key| is_name(key, false));
        if valid && !taken.contains(name) {
            family(&descriptor, &metrics, text);
        } else {
            tracing::debug!(name, "the runtime's metric is not valid");
        }
    }
}

fn family(descriptor: &MetricDescriptor, metrics: &[&Metric], text: &mut Text) {
    let Some(first) = metrics.first() else { return };
    let kind = match first.metric_type() {
        MetricType::Counter => Kind::Counter,
        MetricType::Gauge => Kind::Gauge,
    };
    let mut samples = text.family(&descriptor.name, &descriptor.help, kind);
    let mut seen = HashSet::new();
    for metric in metrics {
        let (keys, values) = (&descriptor.label_keys, &metric.label_values);
        if metric.metric_type != first.metric_type
            || keys.len() != values.len()
            || !seen.insert(values)
        {
            continue;
        }
        let Some(value) = metric.value else { continue };
        let labels: Vec<(&str, &str)> =
            keys.iter().map(String::as_str).zip(values.iter().map(String::as_str)).collect();
        let (labels, value) = (Labels::new(&labels), value.value as f64);
        // 0: it was read for this request.
        match metric.timestamp {
            0 => samples.add(&labels, value),
            at => {
                let at = SampleTime::of_millis(at.checked_div(1_000_000).unwrap_or_default());
                samples.add_at(&labels, value, &at);
            }
        }
    }
}

/// Whether it is a valid name of a metric, or of a label (which has no colons and is not reserved).
fn is_name(name: &str, of_metric: bool) -> bool {
    let valid =
        |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || of_metric && byte == b':';
    name.bytes().all(valid)
        && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        && (of_metric || !name.starts_with("__"))
}

#[cfg(test)]
mod tests {
    use longshore_cri::v1::{ContainerMetrics, UInt64Value};
    use longshore_metrics::parse::parse;
    use proptest::prelude::*;

    use super::*;

    fn descriptor(name: &str, keys: &[&str]) -> MetricDescriptor {
        MetricDescriptor {
            name: name.to_owned(),
            help: "Help.\nMore".to_owned(),
            label_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        }
    }

    fn metric(name: &str, values: &[&str], value: u64) -> Metric {
        Metric {
            name: name.to_owned(),
            timestamp: 0,
            metric_type: MetricType::Gauge.into(),
            label_values: values.iter().map(|value| (*value).to_owned()).collect(),
            value: Some(UInt64Value { value }),
        }
    }

    fn page(descriptors: Vec<MetricDescriptor>, pods: &[PodSandboxMetrics]) -> String {
        let mut text = Text::new();
        families(descriptors, pods, &HashSet::from(["machine_cpu_cores"]), &mut text);
        text.finish()
    }

    #[test]
    fn cadvisor_page_of_the_runtime() {
        let cached = Metric { timestamp: 5_000_000_000, ..metric("b_bytes", &["c1"], 7) };
        let counter = |values: &[&str], value| Metric {
            metric_type: MetricType::Counter.into(),
            ..metric("a_total", values, value)
        };
        let of_pod = PodSandboxMetrics {
            pod_sandbox_id: "s".to_owned(),
            metrics: vec![counter(&["p", "n\"s"], 1), metric("no_descriptor", &[], 1)],
            container_metrics: vec![ContainerMetrics {
                container_id: "c1".to_owned(),
                metrics: vec![
                    cached,
                    metric("b_bytes", &["c1"], 8),
                    metric("b_bytes", &["too", "many"], 9),
                    Metric {
                        metric_type: MetricType::Counter.into(),
                        ..metric("b_bytes", &["x"], 9)
                    },
                    Metric { value: None, ..metric("b_bytes", &["y"], 9) },
                    metric("machine_cpu_cores", &[], 9),
                    metric("not a name", &[], 9),
                    metric("twice", &["1", "2"], 9),
                    metric("reserved", &["1"], 9),
                ],
            }],
        };
        let descriptors = vec![
            descriptor("b_bytes", &["container"]),
            descriptor("a_total", &["pod", "namespace"]),
            descriptor("machine_cpu_cores", &[]),
            descriptor("not a name", &[]),
            descriptor("twice", &["a", "a"]),
            descriptor("reserved", &["__name__"]),
            descriptor("without_samples", &[]),
            descriptor("b_bytes", &["other"]),
        ];
        let expected = "# HELP a_total Help.\\nMore\n# TYPE a_total counter\n\
                        a_total{pod=\"p\",namespace=\"n\\\"s\"} 1\n\
                        # HELP b_bytes Help.\\nMore\n# TYPE b_bytes gauge\n\
                        b_bytes{container=\"c1\"} 7 5000\n";
        assert_eq!(page(descriptors, &[of_pod]), expected);
    }

    proptest! {
        /// Whatever the runtime names, the page can be parsed.
        #[test]
        fn extremes_of_runtime_metrics(
            names in prop::collection::vec("[a_:0\\-\\PC]{0,3}", 1..4),
            keys in prop::collection::vec("[a_:0\\-\\PC]{0,3}", 0..3),
            values in prop::collection::vec(any::<String>(), 0..4),
            at in any::<i64>(),
            (value, kind) in (any::<u64>(), -1..3_i32),
        ) {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let descriptors = names.iter().map(|name| descriptor(name, &keys)).collect();
            let metrics = names.iter().map(|name| Metric {
                name: name.clone(),
                timestamp: at,
                metric_type: kind,
                label_values: values.clone(),
                value: Some(UInt64Value { value }),
            });
            let metrics = metrics.collect();
            let pods = [PodSandboxMetrics { metrics, ..PodSandboxMetrics::default() }];
            let text = page(descriptors, &pods);
            parse(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
        }
    }
}
