//! Metrics of probes: the page `/metrics/probes`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use longshore_metrics::{Buckets, Counter, Family, Histogram, Registry};
use longshore_pod::probes::ProbeKind;
use longshore_pod::spec;
use parking_lot::{Mutex, MutexGuard};

use super::task::Subject;
use crate::handlers::{Error, Outcome};

/// Metrics of probes. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// By kind, result, container, pod, namespace and UID.
    results: Family<Counter, 6>,
    /// By kind, container, pod and namespace.
    durations: Family<Histogram, 4>,
    /// UIDs of pods that are probed: a task that is being stopped is not counted.
    pods: Arc<Mutex<HashSet<String>>>,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            results: registry.counters(
                "prober_probe_total",
                "Probes of containers, by their result.",
                ["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
            ),
            durations: registry.histograms(
                "prober_probe_duration_seconds",
                "How long probes that did not fail took, in seconds.",
                ["probe_type", "container", "pod", "namespace"],
                Buckets::usual(),
            ),
            pods: Arc::default(),
        }
    }

    /// The pod with that UID is probed from now on.
    pub(super) fn begin(&self, uid: &str) {
        self.pods().insert(uid.to_owned());
    }

    /// A probe is over.
    pub(super) fn probed(
        &self,
        subject: &Subject,
        kind: ProbeKind,
        outcome: &Result<Outcome, Error>,
        took: Duration,
    ) {
        let (pod, container) = (&subject.pod, &subject.container.name);
        let (kind, name, namespace) = (kind.as_str(), spec::name(pod), spec::namespace(pod));
        let result = match outcome {
            Ok(Outcome::Success | Outcome::Warning(_)) => "successful",
            Ok(Outcome::Failure(_)) => "failed",
            Err(_) => "unknown",
        };
        let pods = self.pods();
        if !pods.contains(spec::uid(pod)) {
            return;
        }
        self.results.with([kind, result, container, name, namespace, spec::uid(pod)]).inc();
        if result != "failed" {
            self.durations.with([kind, container, name, namespace]).took(took);
        }
    }

    /// Remove the pod with that UID.
    pub(super) fn forget(&self, uid: &str) {
        let mut pods = self.pods();
        if !pods.remove(uid) {
            return;
        }
        let mut gone = Vec::new();
        self.results.retain(|[_, _, _, name, namespace, own]| {
            let keep = own.as_ref() != uid;
            if !keep {
                gone.push((name.clone(), namespace.clone()));
            }
            keep
        });
        if !gone.is_empty() {
            self.durations.retain(|[_, _, name, namespace]| {
                !gone.iter().any(|pod| (&pod.0, &pod.1) == (name, namespace))
            });
        }
    }

    fn pods(&self) -> MutexGuard<'_, HashSet<String>> {
        self.pods.lock()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;
    use longshore_metrics::parse::{Page, parse};
    use longshore_pod::Timestamp;
    use longshore_pod::spec::ContainerKind;
    use serde_json::json;

    use super::*;

    fn subject(uid: &str, name: &str) -> Subject {
        let metadata = json!({"name": name, "namespace": "ns", "uid": uid});
        Subject {
            pod: serde_json::from_value(json!({"metadata": metadata})).unwrap(),
            kind: ContainerKind::Regular,
            container: Container { name: "c".to_owned(), ..Container::default() },
            id: String::new(),
            ip: String::new(),
            started_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn probe_metrics_are_removed_with_their_pod() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        let read = || -> Page { parse(&registry.text()).unwrap() };
        let (web, other) = (subject("u", "web"), subject("v", "other"));
        let probed = |subject: &Subject, outcome| {
            metrics.probed(subject, ProbeKind::Liveness, &outcome, Duration::from_millis(3));
        };
        metrics.begin("u");
        metrics.begin("v");
        probed(&web, Ok(Outcome::Success));
        probed(&web, Ok(Outcome::Warning("slow".to_owned())));
        probed(&web, Ok(Outcome::Failure("down".to_owned())));
        probed(&web, Err(Error::PortNumber(0)));
        probed(&other, Ok(Outcome::Success));
        let count = |page: &Page, result| {
            let labels = [("pod", "web"), ("pod_uid", "u"), ("result", result)];
            page.sum("prober_probe_total", &labels)
        };
        let page = read();
        for (result, expected) in [("successful", 2.0), ("failed", 1.0), ("unknown", 1.0)] {
            assert_eq!(count(&page, result), Some(expected), "{result}");
        }
        let durations = [("pod", "web"), ("probe_type", "Liveness"), ("namespace", "ns")];
        assert_eq!(page.sum("prober_probe_duration_seconds_count", &durations), Some(3.0));
        metrics.forget("u");
        // a probe that was in progress
        probed(&web, Ok(Outcome::Success));
        let page = read();
        assert_eq!(page.samples("prober_probe_total", &[]).count(), 1);
        assert_eq!(page.sum("prober_probe_duration_seconds_count", &[]), Some(1.0));
        metrics.forget("v");
        assert_eq!(read().series(), 0);
    }
}
