//! Measures how long the worker of one pod is busy, and how long the pod took to start. Also counts the
//! worker in `kubelet_working_pods`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::Timestamp;
use longshore_base::clock;
use longshore_pod::observed::{ObservedPod, State};
use longshore_pod::spec;
use longshore_telemetry::{Kind, Span, SpanContext, Tracer};
use tokio::time::Instant;

use super::metrics::{Metrics, is_static};
use crate::terminator::Order;

/// Phase of the worker's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifecycle {
    Sync,
    Terminating,
    Terminated,
}

impl Lifecycle {
    pub(super) const ALL: [Self; 3] = [Self::Sync, Self::Terminating, Self::Terminated];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Terminating => "terminating",
            Self::Terminated => "terminated",
        }
    }
}

/// Timings of one worker.
#[derive(Debug)]
pub(super) struct Stopwatch {
    metrics: Metrics,
    /// When the pod was first seen.
    created: Instant,
    /// Whether the pod is new and not running yet.
    starting: bool,
    /// Whether not all containers of the new pod have run.
    incomplete: bool,
    /// Whether the pod has been synced before.
    worked: bool,
    /// Whether only the runtime knows of the pod.
    orphan: bool,
    /// Since when the worker is busy, and why.
    busy: Option<Busy>,
    tracer: Tracer,
    /// Labels under which the worker is counted.
    counted: Option<[&'static str; 3]>,
}

/// A time without idleness.
#[derive(Debug)]
struct Busy {
    since: Instant,
    why: &'static str,
    span: Span,
}

impl Stopwatch {
    pub(super) fn new(metrics: Metrics, tracer: Tracer) -> Self {
        Self {
            tracer,
            metrics,
            created: Instant::now(),
            starting: false,
            incomplete: false,
            worked: false,
            orphan: false,
            busy: None,
            counted: None,
        }
    }

    /// The worker starts. `is_new`: the pod was not on the node before.
    pub(super) fn begin(&mut self, pod: &Pod, is_new: bool) {
        self.metrics.queued.took(self.created.elapsed());
        if is_new {
            self.metrics.pod_added(pod);
        }
        (self.starting, self.incomplete, self.worked) = (is_new, is_new, !is_new);
    }

    /// The worker starts an iteration, after an update of the pod if `ordered`.
    pub(super) fn turn(&mut self, order: &Order, phase: Lifecycle, ordered: bool) {
        let lifecycle = phase.label();
        self.count(Some(match (self.orphan, order.gone) {
            (true, _) => [lifecycle, "runtime_only", "unknown"],
            (false, true) => [lifecycle, "orphan", is_static(&order.pod)],
            (false, false) => [lifecycle, "desired", is_static(&order.pod)],
        }));
        let why = match phase {
            Lifecycle::Terminated => "terminated",
            Lifecycle::Terminating => "kill",
            Lifecycle::Sync if !self.worked => "create",
            Lifecycle::Sync if ordered => "update",
            Lifecycle::Sync => "sync",
        };
        let ends = phase != Lifecycle::Sync;
        if ends && self.busy.as_ref().is_some_and(|before| before.why != why) {
            self.idle();
        }
        if self.busy.is_none() {
            let span = self.span(phase, why, &order.pod);
            self.busy = Some(Busy { since: Instant::now(), why, span });
        }
    }

    /// The context of the work that is being done, for what it does.
    pub(super) fn context(&self) -> Option<SpanContext> {
        self.busy.as_ref()?.span.context()
    }

    fn span(&self, phase: Lifecycle, why: &'static str, pod: &Pod) -> Span {
        let name = match phase {
            Lifecycle::Sync => "syncPod",
            Lifecycle::Terminating => "syncTerminatingPod",
            Lifecycle::Terminated => "syncTerminatedPod",
        };
        let mut span = self.tracer.span(name, Kind::Internal);
        if span.is_recorded() {
            span.text("k8s.pod.uid", spec::uid(pod));
            span.text("k8s.pod", format!("{}/{}", spec::namespace(pod), spec::name(pod)));
            span.text("k8s.pod.name", spec::name(pod));
            if phase == Lifecycle::Sync {
                span.text("k8s.pod.update_type", why);
            }
            span.text("k8s.namespace.name", spec::namespace(pod));
        }
        span
    }

    /// The worker is idle.
    pub(super) fn idle(&mut self) {
        if let Some(Busy { since, why, .. }) = self.busy.take() {
            self.worked = true;
            self.metrics.work.with([why]).took(since.elapsed());
        }
    }

    /// Observes a status of the pod; `pulled` is how long image pulls took.
    pub(super) fn observe_status(
        &mut self,
        pod: &Pod,
        status: &PodStatus,
        observed: &ObservedPod,
        pulled: impl FnOnce() -> Duration,
    ) {
        let runs = status.phase.as_deref() == Some("Running");
        if self.starting && runs {
            self.metrics.seen_to_running.took(self.created.elapsed());
        }
        // A pod may terminate without having run.
        self.starting &= matches!(status.phase.as_deref(), None | Some("Pending"));
        let all_run =
            status.container_statuses.iter().flatten().all(|container| {
                container.state.as_ref().is_some_and(|state| state.running.is_some())
            });
        if self.incomplete && runs && all_run {
            self.incomplete = false;
            self.complete(pod, observed, pulled());
        }
    }

    /// All containers run.
    fn complete(&self, pod: &Pod, observed: &ObservedPod, pulled: Duration) {
        // A static pod was not created anywhere.
        let Some(created) = &pod.metadata.creation_timestamp else { return };
        let total = seconds(created.0, clock::now());
        self.metrics.created_to_running.observe(total);
        if has_storage(pod) {
            return;
        }
        let own = (total - pulled.as_secs_f64() - time_of_init(pod, observed)).max(0.0);
        self.metrics.objective.observe(own);
        let first = &self.metrics.first_network;
        if !spec::host_network(pod) && first.get() == 0.0 {
            first.set(own);
        }
    }

    /// Only the runtime knows of the pod.
    pub(super) fn is_orphan(&mut self) {
        self.orphan = true;
        self.metrics.orphan_found();
    }

    fn count(&mut self, labels: Option<[&'static str; 3]>) {
        if self.counted == labels {
            return;
        }
        for (labels, change) in [(self.counted, -1.0), (labels, 1.0)] {
            if let Some(labels) = labels {
                self.metrics.workers.with(labels).add(change);
            }
        }
        self.counted = labels;
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.idle();
        self.count(None);
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

/// Whether the pod has volumes that hold more than the cluster and the pod itself put in.
fn has_storage(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(|volume| {
        volume.secret.is_none()
            && volume.config_map.is_none()
            && volume.downward_api.is_none()
            && volume.empty_dir.is_none()
            && volume.projected.is_none()
    })
}

/// How long the pod's init containers ran, in seconds.
fn time_of_init(pod: &Pod, observed: &ObservedPod) -> f64 {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let is_init = |name: &str| {
        init.clone().any(|own| own.name == name && own.restart_policy.as_deref() != Some("Always"))
    };
    let runs = observed.containers.iter().filter(|run| is_init(&run.name));
    runs.map(|run| match &run.state {
        State::Exited { started_at: Some(start), finished_at, .. } => seconds(*start, *finished_at),
        _ => 0.0,
    })
    .sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use longshore_metrics::Registry;
    use longshore_metrics::parse::{Page, parse};
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let created = Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_secs(60);
        serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "creationTimestamp": created.to_string()},
            "spec": spec,
        }))
        .unwrap()
    }

    fn status(phase: &str, running: &[bool]) -> PodStatus {
        let states = running.iter().map(|runs| match runs {
            true => json!({"running": {}}),
            false => json!({"waiting": {}}),
        });
        let containers: Vec<Value> = states
            .map(|state| {
                json!({"name": "c", "state": state, "ready": false, "restartCount": 0,
                       "image": "", "imageID": ""})
            })
            .collect();
        serde_json::from_value(json!({"phase": phase, "containerStatuses": containers})).unwrap()
    }

    fn read(registry: &Registry) -> Page {
        parse(&registry.text()).unwrap()
    }

    #[test]
    fn pod_start_duration_is_measured_once() {
        for (volumes, static_pod, objective, total) in [
            (json!([{"name": "v", "emptyDir": {}}]), false, 1.0, 1.0),
            (json!([{"name": "v", "hostPath": {"path": "/"}}]), false, 0.0, 1.0),
            (json!([]), true, 0.0, 0.0),
        ] {
            let registry = Registry::default();
            let mut stopwatch = Metrics::new(&registry).stopwatch(Tracer::default());
            let mut pod = pod(json!({"containers": [{"name": "c"}], "volumes": volumes}));
            if static_pod {
                pod.metadata.creation_timestamp = None;
            }
            stopwatch.begin(&pod, true);
            let steps = [
                status("Pending", &[false, false]),
                status("Running", &[true, false]),
                status("Running", &[true, true]),
                status("Running", &[true, false]),
                status("Running", &[true, true]),
            ];
            for status in steps {
                let pulled = || Duration::from_secs(20);
                stopwatch.observe_status(&pod, &status, &ObservedPod::default(), pulled);
            }
            let page = read(&registry);
            let of = |name: &str| page.sum(&format!("kubelet_pod_start_{name}"), &[]);
            assert_eq!(of("duration_seconds_count"), Some(1.0), "{volumes}");
            assert_eq!(of("total_duration_seconds_count"), Some(total), "{volumes}");
            assert_eq!(of("sli_duration_seconds_count"), Some(objective), "{volumes}");
            if objective > 0.0 {
                let took = of("sli_duration_seconds_sum").unwrap();
                assert!((39.0..45.0).contains(&took), "{took}");
            }
        }
    }

    #[test]
    fn pod_start_duration_is_not_measured_for_running_pods() {
        let registry = Registry::default();
        let mut stopwatch = Metrics::new(&registry).stopwatch(Tracer::default());
        let pod = pod(json!({"containers": [{"name": "c"}]}));
        stopwatch.begin(&pod, false);
        let pulled = || Duration::ZERO;
        stopwatch.observe_status(
            &pod,
            &status("Running", &[true]),
            &ObservedPod::default(),
            pulled,
        );
        let page = read(&registry);
        assert_eq!(page.sum("kubelet_pod_start_duration_seconds_count", &[]), Some(0.0));
        assert_eq!(page.sum("kubelet_pod_start_total_duration_seconds_count", &[]), Some(0.0));
    }

    #[test]
    fn pod_worker_metrics_have_operation_and_lifecycle() {
        let registry = Registry::default();
        let mut stopwatch = Metrics::new(&registry).stopwatch(Tracer::default());
        for config in ["desired", "orphan", "runtime_only"] {
            for lifecycle in ["sync", "terminating", "terminated"] {
                for is_static in
                    if config == "runtime_only" { vec!["unknown"] } else { vec!["", "true"] }
                {
                    let labels =
                        [("lifecycle", lifecycle), ("config", config), ("static", is_static)];
                    assert_eq!(read(&registry).sum("kubelet_working_pods", &labels), Some(0.0));
                }
            }
        }
        let pod = Arc::new(pod(json!({"containers": []})));
        let mut order = Order::new(pod);
        let workers = |page: &Page, lifecycle, config| {
            let labels = [("lifecycle", lifecycle), ("config", config), ("static", "")];
            page.sum("kubelet_working_pods", &labels)
        };
        stopwatch.begin(&order.pod, true);
        for ordered in [true, false] {
            stopwatch.turn(&order, Lifecycle::Sync, ordered);
        }
        stopwatch.idle();
        stopwatch.turn(&order, Lifecycle::Sync, false);
        stopwatch.idle();
        stopwatch.turn(&order, Lifecycle::Sync, true);
        assert_eq!(workers(&read(&registry), "sync", "desired"), Some(1.0));
        order.gone = true;
        stopwatch.turn(&order, Lifecycle::Terminating, true);
        assert_eq!(workers(&read(&registry), "sync", "desired"), Some(0.0));
        assert_eq!(workers(&read(&registry), "terminating", "orphan"), Some(1.0));
        stopwatch.turn(&order, Lifecycle::Terminated, false);
        drop(stopwatch);
        let page = read(&registry);
        assert_eq!(page.sum("kubelet_working_pods", &[]), Some(0.0));
        for why in ["create", "sync", "update", "kill", "terminated"] {
            let name = "kubelet_pod_worker_duration_seconds_count";
            assert_eq!(page.sum(name, &[("operation_type", why)]), Some(1.0), "{why}");
        }
    }
}
