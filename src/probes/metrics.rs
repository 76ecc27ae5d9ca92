//! How probes turn out: the page `/metrics/probes`.

use std::time::Duration;

use longshore_metrics::{Buckets, Counter, Family, Histogram, Registry};
use longshore_pod::spec;

use super::task::Subject;
use crate::handlers::{Error, Outcome};
use longshore_pod::probes::ProbeKind;

/// What probes count. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// By kind, result, container, pod, namespace and UID.
    results: Family<Counter, 6>,
    /// By kind, container, pod and namespace.
    durations: Family<Histogram, 4>,
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
        }
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
        self.results.with([kind, result, container, name, namespace, spec::uid(pod)]).inc();
        if result != "failed" {
            self.durations.with([kind, container, name, namespace]).took(took);
        }
    }

    /// The pod with that UID is gone.
    pub(super) fn forget(&self, uid: &str) {
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
}
