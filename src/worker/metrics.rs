//! Metrics of pod workers.

use k8s_openapi::api::core::v1::Pod;
use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Registry};
use longshore_pod::spec::{self, ContainerKind};

use longshore_telemetry::Tracer;

use super::stopwatch::{Lifecycle, Stopwatch};

/// Metrics of pod workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(super) work: Family<Histogram, 1>,
    pub(super) queued: Histogram,
    pub(super) seen_to_running: Histogram,
    pub(super) created_to_running: Histogram,
    pub(super) objective: Histogram,
    pub(super) first_network: Gauge,
    pub(super) workers: Family<Gauge, 3>,
    containers_per_pod: Histogram,
    sandboxes: Counter,
    sandbox_failures: Counter,
    user_namespaces: Counter,
    user_namespace_failures: Counter,
    containers: Family<Counter, 1>,
    container_failures: Family<Counter, 2>,
    restarted: Family<Counter, 1>,
    orphans: Counter,
    orphans_cleaned: Gauge,
    orphan_cleanup_errors: Gauge,
}

impl Metrics {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Self {
        // From half a second to an hour.
        let starts = Buckets::of(&[
            0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0,
            240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
        ]);
        let restarted = registry.counters(
            "kubelet_restarted_pods_total",
            "Pods that were deleted and came again with the same UID.",
            ["static"],
        );
        // As upstream, before there is any.
        restarted.with(["true"]);
        restarted.with([""]);
        Self {
            restarted,
            work: registry.histograms(
                "kubelet_pod_worker_duration_seconds",
                "How long workers were busy with a pod at a stretch, in seconds, by the reason.",
                ["operation_type"],
                Buckets::usual(),
            ),
            queued: registry.histogram(
                "kubelet_pod_worker_start_duration_seconds",
                "From when a pod was seen first to when its worker began, in seconds.",
                Buckets::usual(),
            ),
            seen_to_running: registry.histogram(
                "kubelet_pod_start_duration_seconds",
                "From when a pod was seen first to when it ran, in seconds.",
                starts.clone(),
            ),
            created_to_running: registry.histogram(
                "kubelet_pod_start_total_duration_seconds",
                "From when a pod was created to when all its containers ran, in seconds.",
                starts.clone(),
            ),
            objective: registry.histogram(
                "kubelet_pod_start_sli_duration_seconds",
                "From when a pod without storage of its own was created to when all its \
                 containers ran, in seconds, without pulls of images and init containers.",
                starts,
            ),
            first_network: registry.gauge(
                "kubelet_first_network_pod_start_sli_duration_seconds",
                "The same, of the first pod with a network of its own.",
            ),
            workers: workers(registry),
            containers_per_pod: registry.histogram(
                "kubelet_containers_per_pod_count",
                "How many containers pods have.",
                Buckets::exponential(1.0, 2.0, 5),
            ),
            sandboxes: registry
                .counter("kubelet_started_pods_total", "Sandboxes of pods that were to be made."),
            sandbox_failures: registry.counter(
                "kubelet_started_pods_errors_total",
                "Sandboxes of pods that could not be made.",
            ),
            user_namespaces: registry.counter(
                "kubelet_started_user_namespaced_pods_total",
                "Sandboxes with users of their own that were to be made.",
            ),
            user_namespace_failures: registry.counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "Sandboxes with users of their own, or containers in them, that could not be made.",
            ),
            containers: registry.counters(
                "kubelet_started_containers_total",
                "Containers that were to be started, by their kind.",
                ["container_type"],
            ),
            container_failures: registry.counters(
                "kubelet_started_containers_errors_total",
                "Containers that could not be started, by their kind and the reason.",
                ["container_type", "code"],
            ),
            orphans: registry.counter(
                "kubelet_orphaned_runtime_pods_total",
                "Pods that only the runtime knew of.",
            ),
            orphans_cleaned: registry.gauge(
                "kubelet_orphan_pod_cleaned_volumes",
                "Pods that were gone and whose directories the last sweep took down.",
            ),
            orphan_cleanup_errors: registry.gauge(
                "kubelet_orphan_pod_cleaned_volumes_errors",
                "Whether the last sweep for directories of pods that are gone failed.",
            ),
        }
    }

    /// The stopwatch of a new worker.
    pub(super) fn stopwatch(&self, tracer: Tracer) -> Stopwatch {
        Stopwatch::new(self.clone(), tracer)
    }

    /// A pod was added.
    pub(super) fn pod_added(&self, pod: &Pod) {
        let count = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
        self.containers_per_pod.observe(count as f64);
    }

    /// A sandbox was created, or its creation failed.
    pub(super) fn sandbox_created(&self, pod: &Pod, made: bool) {
        self.sandboxes.inc();
        if has_own_users(pod) {
            self.user_namespaces.inc();
        }
        if !made {
            self.sandbox_failures.inc();
            self.failed(pod);
        }
    }

    fn failed(&self, pod: &Pod) {
        if has_own_users(pod) {
            self.user_namespace_failures.inc();
        }
    }

    /// A container was started, or failed with that reason.
    pub(super) fn container_started(
        &self,
        pod: &Pod,
        kind: ContainerKind,
        failure: Option<&'static str>,
    ) {
        let kind = match kind {
            ContainerKind::Init | ContainerKind::Sidecar => "init_container",
            ContainerKind::Regular => "container",
            ContainerKind::Ephemeral => "ephemeral_container",
        };
        self.containers.with([kind]).inc();
        if let Some(code) = failure {
            self.container_failures.with([kind, code]).inc();
            self.failed(pod);
        }
    }

    /// A pod was added again after its termination.
    pub(super) fn pod_restarted(&self, pod: &Pod) {
        self.restarted.with([is_static(pod)]).inc();
    }

    /// An orphan was found in the runtime.
    pub(super) fn orphan_found(&self) {
        self.orphans.inc();
    }

    /// Number of pod directories that were cleaned up; `None`: they could not be read.
    pub(super) fn set_orphans_cleaned(&self, pods: Option<usize>) {
        self.orphans_cleaned.set(pods.unwrap_or(0) as f64);
        self.orphan_cleanup_errors.set(if pods.is_none() { 1.0 } else { 0.0 });
    }
}

/// Pods with a worker. All series are there from the start, as upstream's are: 0 is not the same as absent.
fn workers(registry: &Registry) -> Family<Gauge, 3> {
    let family = registry.gauges(
        "kubelet_working_pods",
        "Pods with a worker, by phase of their life, whether they are desired, orphans or known to \
         the runtime alone, and whether they are static.",
        ["lifecycle", "config", "static"],
    );
    for lifecycle in Lifecycle::ALL.map(Lifecycle::label) {
        for (config, is_static) in [
            ("desired", ""),
            ("desired", "true"),
            ("orphan", ""),
            ("orphan", "true"),
            ("runtime_only", "unknown"),
        ] {
            family.with([lifecycle, config, is_static]).set(0.0);
        }
    }
    family
}

/// Whether a pod has a user namespace.
fn has_own_users(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(spec::has_user_namespace)
}

/// The label for whether a pod is static.
pub(super) fn is_static(pod: &Pod) -> &'static str {
    if spec::is_static(pod) { "true" } else { "" }
}
