//! Metrics of the scheduler, under upstream's names.

use std::time::{Duration, Instant};

use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Registry};

/// The status of what succeeds.
pub(crate) const SUCCESS: &str = "Success";
/// The status of what has nothing to do.
pub(crate) const SKIP: &str = "Skip";

/// The families.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) incoming: Family<Counter, 2>,
    pub(crate) unschedulable: Family<Gauge, 2>,
    points: Family<Histogram, 3>,
    plugins: Family<Histogram, 3>,
    evaluations: Family<Counter, 3>,
    pub(crate) algorithm: Histogram,
    pub(crate) preemption_attempts: Counter,
    pub(crate) victims: Histogram,
    attempts: Family<Counter, 2>,
    durations: Family<Histogram, 2>,
    pending: Family<Gauge, 1>,
    sizes: Family<Gauge, 1>,
    sli: Family<Histogram, 1>,
    tries: Histogram,
    pub(crate) after_flush: Counter,
    goroutines: Family<Gauge, 1>,
    in_flight: Family<Gauge, 1>,
    pub(crate) hints: Hints,
    /// Devices for whose conditions pods waited, by profile, driver and status.
    pub(crate) conditional_devices: Family<Counter, 3>,
    /// How long pods waited for devices, by profile, driver and status.
    pub(crate) device_waits: Family<Histogram, 3>,
    /// Failures to bind volumes, by operation.
    pub(crate) volume_failures: Family<Counter, 1>,
    pub(crate) batches: BatchMetrics,
    permit_wait: Family<Histogram, 1>,
    pub(crate) handled: Family<Histogram, 1>,
    preemptions: Family<Counter, 1>,
    preemption_durations: Family<Histogram, 1>,
    /// Claims that are made for extended resources, by `success` or `failure`.
    pub(crate) claim_creates: Family<Counter, 1>,
}

impl Metrics {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Self {
        let seconds = || Buckets::exponential(0.001, 2.0, 15);
        Self {
            incoming: registry.counters(
                "scheduler_queue_incoming_pods_total",
                "[STABLE] Number of pods added to scheduling queues by event and queue type.",
                ["queue", "event"],
            ),
            unschedulable: registry.gauges(
                "scheduler_unschedulable_pods",
                "[BETA] The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins that caused it to not schedule and so this metric have meaning only when broken down by plugin.",
                ["plugin", "profile"],
            ),
            points: registry.histograms(
                "scheduler_framework_extension_point_duration_seconds",
                "[STABLE] Latency for running all plugins of a specific extension point.",
                ["extension_point", "status", "profile"],
                Buckets::exponential(0.0001, 2.0, 12),
            ),
            plugins: registry.histograms(
                "scheduler_plugin_execution_duration_seconds",
                "[ALPHA] Duration for running a plugin at a specific extension point.",
                ["plugin", "extension_point", "status"],
                Buckets::exponential(0.00001, 1.5, 20),
            ),
            evaluations: registry.counters(
                "scheduler_plugin_evaluation_total",
                "[BETA] Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, Filter, PreScore, and Score).",
                ["plugin", "extension_point", "profile"],
            ),
            algorithm: registry.histogram(
                "scheduler_scheduling_algorithm_duration_seconds",
                "[ALPHA] Scheduling algorithm latency in seconds",
                seconds(),
            ),
            preemption_attempts: registry.counter(
                "scheduler_preemption_attempts_total",
                "[STABLE] Total preemption attempts in the cluster till now",
            ),
            victims: registry.histogram(
                "scheduler_preemption_victims",
                "[STABLE] Number of selected preemption victims",
                Buckets::exponential(1.0, 2.0, 7),
            ),
            attempts: registry.counters(
                "scheduler_schedule_attempts_total",
                "[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.",
                ["result", "profile"],
            ),
            durations: registry.histograms(
                "scheduler_scheduling_attempt_duration_seconds",
                "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)",
                ["result", "profile"],
                seconds(),
            ),
            pending: registry.gauges(
                "scheduler_pending_pods",
                "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to schedule because they are gated.",
                ["queue"],
            ),
            sizes: registry.gauges(
                "scheduler_cache_size",
                "[ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
                ["type"],
            ),
            sli: registry.histograms(
                "scheduler_pod_scheduling_sli_duration_seconds",
                "[BETA] E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.",
                ["attempts"],
                Buckets::exponential(0.01, 2.0, 20),
            ),
            tries: registry.histogram(
                "scheduler_pod_scheduling_attempts",
                "[STABLE] Number of attempts to successfully schedule a pod.",
                Buckets::exponential(1.0, 2.0, 5),
            ),
            after_flush: registry.counter(
                "scheduler_pod_scheduled_after_flush_total",
                "[ALPHA] Number of pods that were successfully scheduled after being flushed from unschedulablePods due to timeout. This metric helps detect potential queueing hint misconfigurations or event handling issues.",
            ),
            goroutines: registry.gauges(
                "scheduler_goroutines",
                "[BETA] Number of running goroutines split by the work they do such as binding.",
                ["operation"],
            ),
            in_flight: registry.gauges(
                "scheduler_inflight_events",
                "[ALPHA] Number of events currently tracked in the scheduling queue.",
                ["event"],
            ),
            hints: Hints(registry.histograms(
                "scheduler_queueing_hint_execution_duration_seconds",
                "[ALPHA] Duration for running a queueing hint function of a plugin.",
                ["plugin", "event", "hint"],
                Buckets::exponential(0.00001, 1.5, 20),
            )),
            conditional_devices: registry.counters(
                "scheduler_dra_bindingconditions_allocations_total",
                "[ALPHA] Number of allocations using devices with BindingConditions, counted per driver per scheduling attempt",
                ["profile", "driver", "status"],
            ),
            device_waits: registry.histograms(
                "scheduler_dra_bindingconditions_wait_duration_seconds",
                "[ALPHA] Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.",
                ["profile", "driver", "status"],
                Buckets::exponential(0.1, 2.0, 14),
            ),
            volume_failures: registry.counters(
                "scheduler_volume_scheduling_stage_error_total",
                "[ALPHA] Volume scheduling stage error count",
                ["operation"],
            ),
            batches: BatchMetrics::new(registry),
            permit_wait: registry.histograms(
                "scheduler_permit_wait_duration_seconds",
                "[BETA] Duration of waiting on permit.",
                ["result"],
                seconds(),
            ),
            handled: registry.histograms(
                "scheduler_event_handling_duration_seconds",
                "[ALPHA] Event handling latency in seconds.",
                ["event"],
                Buckets::exponential(0.0001, 2.0, 12),
            ),
            preemptions: registry.counters(
                "scheduler_preemption_goroutines_execution_total",
                "[ALPHA] Number of preemption goroutines executed.",
                ["result"],
            ),
            preemption_durations: registry.histograms(
                "scheduler_preemption_goroutines_duration_seconds",
                "[ALPHA] Duration in seconds for running goroutines for the preemption.",
                ["result"],
                Buckets::exponential(0.01, 2.0, 20),
            ),
            claim_creates: registry.counters(
                "scheduler_resourceclaim_creates_total",
                "[ALPHA] Number of ResourceClaims creation requests within scheduler",
                ["status"],
            ),
        }
    }

    /// Records the plugins of an attempt; `is_sampled`: each call of them too.
    pub(crate) fn recorder<'a>(&'a self, profile: &'a str, is_sampled: bool) -> Recorder<'a> {
        Recorder { metrics: Some(self), profile, is_sampled }
    }

    /// An extension point that took that long.
    pub(crate) fn point(&self, point: &str, status: &str, profile: &str, took: Duration) {
        self.points.with([point, status, profile]).took(took);
    }

    pub(crate) fn attempt(&self, is_error: bool, profile: &str, took: Duration) {
        let result = if is_error { "error" } else { "unschedulable" };
        self.attempts.with([result, profile]).inc();
        self.durations.with([result, profile]).took(took);
    }

    pub(crate) fn bound(&self, profile: &str, took: Duration, waited: Duration, attempts: u32) {
        self.attempts.with(["scheduled", profile]).inc();
        self.durations.with(["scheduled", profile]).took(took);
        self.tries.observe(f64::from(attempts));
        let label = if attempts >= 15 { "15+".to_owned() } else { attempts.to_string() };
        self.sli.with([&label]).took(waited);
    }

    /// Pods were deleted to make room, or not all of them.
    pub(crate) fn preempted(&self, is_done: bool, took: Duration) {
        let result = if is_done { "success" } else { "error" };
        self.preemptions.with([result]).inc();
        self.preemption_durations.with([result]).took(took);
    }

    /// A pod waited for a permit: not at all, as none of the plugins here lets pods wait.
    pub(crate) fn permitted(&self) {
        self.permit_wait.with([SUCCESS]).took(Duration::ZERO);
    }

    /// The number of pods that are being tried or bound. Changes of the cluster come between attempts, so that
    /// none has to be kept for a pod in flight.
    #[allow(clippy::cast_precision_loss, reason = "a number of pods")]
    pub(crate) fn in_flight(&self, pods: usize) {
        self.in_flight.with(["PodPopped"]).set(pods as f64);
    }

    #[allow(clippy::cast_precision_loss, reason = "numbers of pods and nodes")]
    pub(crate) fn sizes(&self, queues: [usize; 4], cache: [usize; 3], bindings: usize) {
        self.goroutines.with(["binding"]).set(bindings as f64);
        for (queue, size) in ["active", "backoff", "unschedulable", "gated"].iter().zip(queues) {
            self.pending.with([queue]).set(size as f64);
        }
        for (type_, size) in ["nodes", "pods", "assumed_pods"].iter().zip(cache) {
            self.sizes.with([type_]).set(size as f64);
        }
    }
}

/// How long plugins take to say whether an event may help a pod, by plugin, event and answer.
#[derive(Debug, Clone)]
pub(crate) struct Hints(Family<Histogram, 3>);

impl Hints {
    pub(crate) fn record(&self, plugin: &str, event: &str, run: impl FnOnce() -> bool) -> bool {
        let start = Instant::now();
        let helps = run();
        let hint = if helps { "Queue" } else { "QueueSkip" };
        self.0.with([plugin, event, hint]).took(start.elapsed());
        helps
    }
}

/// How often nodes of an attempt are used for the next one: never, as with upstream's default profile, whose
/// pods all spread over topologies.
#[derive(Debug, Clone)]
pub(crate) struct BatchMetrics {
    /// By profile and result.
    attempts: Family<Counter, 2>,
    /// By profile and reason.
    flushes: Family<Counter, 2>,
    /// By `hint` or `no_hint`, and profile.
    lookups: Family<Histogram, 2>,
    /// By profile.
    stores: Family<Histogram, 1>,
}

impl BatchMetrics {
    fn new(registry: &Registry) -> Self {
        let seconds = || Buckets::exponential(0.00001, 2.0, 12);
        Self {
            attempts: registry.counters(
                "scheduler_batch_attempts_total",
                "[ALPHA] Counts of results when we attempt to use batching.",
                ["profile", "result"],
            ),
            flushes: registry.counters(
                "scheduler_batch_cache_flushed_total",
                "[ALPHA] Counts of cache flushes by reason.",
                ["profile", "reason"],
            ),
            lookups: registry.histograms(
                "scheduler_get_node_hint_duration_seconds",
                "[ALPHA] Latency for getting a node hint.",
                ["hinted", "profile"],
                seconds(),
            ),
            stores: registry.histograms(
                "scheduler_store_schedule_results_duration_seconds",
                "[ALPHA] Latency for getting a no.",
                ["profile"],
                seconds(),
            ),
        }
    }

    /// An attempt begins without nodes of another one.
    pub(crate) fn begin(&self, profile: &str) {
        self.attempts.with([profile, "no_hint"]).inc();
        self.lookups.with(["no_hint", profile]).took(Duration::ZERO);
    }

    /// The nodes that fit in an attempt are not kept.
    pub(crate) fn flush(&self, profile: &str, nodes: usize) {
        let reason = if nodes > 1 { "pod_not_batchable" } else { "empty_list" };
        self.flushes.with([profile, reason]).inc();
        self.stores.with([profile]).took(Duration::ZERO);
    }
}

/// Records how long plugins take, and how often they are asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recorder<'a> {
    /// None in tests of plugins.
    metrics: Option<&'a Metrics>,
    profile: &'a str,
    is_sampled: bool,
}

impl Recorder<'_> {
    /// Runs all plugins of an extension point; `status` is that of the outcome.
    pub(crate) fn point<T>(
        &self,
        point: &str,
        status: impl FnOnce(&T) -> &'static str,
        run: impl FnOnce() -> T,
    ) -> T {
        let Some(metrics) = self.metrics else { return run() };
        let start = Instant::now();
        let outcome = run();
        metrics.points.with([point, status(&outcome), self.profile]).took(start.elapsed());
        outcome
    }

    /// Runs one plugin, which is timed in some attempts: there are many calls.
    pub(crate) fn plugin<T>(
        &self,
        plugin: &str,
        point: &str,
        status: impl FnOnce(&T) -> &'static str,
        run: impl FnOnce() -> T,
    ) -> T {
        let Some(metrics) = self.metrics.filter(|_| self.is_sampled) else { return run() };
        let start = Instant::now();
        let outcome = run();
        metrics.plugins.with([plugin, point, status(&outcome)]).took(start.elapsed());
        outcome
    }

    /// Counts that a plugin takes part in an attempt.
    pub(crate) fn evaluated(&self, plugin: &str, point: &str) {
        if let Some(metrics) = self.metrics {
            metrics.evaluations.with([plugin, point, self.profile]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use longshore_metrics::{Description, Registry};

    use super::Metrics;

    /// The file has the families that upstream documents for kube-scheduler, as far as what they
    /// measure is here; all that are stable or beta are.
    #[test]
    fn metrics_of_the_scheduler_are_those_that_upstream_documents() {
        let registry = Registry::default();
        let _metrics = Metrics::new(&registry);
        let line = |family: &Description| {
            let (level, _) = family.help.strip_prefix('[').unwrap().split_once(']').unwrap();
            let mut labels = family.labels.clone();
            labels.sort_unstable();
            let line =
                format!("{level} {} {} {}", family.kind.as_str(), family.name, labels.join(","));
            line.trim_end().to_owned()
        };
        let served: BTreeSet<String> = registry.families().iter().map(line).collect();
        let documented: BTreeSet<String> = include_str!("testdata/metrics.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect();
        let missing: Vec<_> = documented.difference(&served).collect();
        let unknown: Vec<_> = served.difference(&documented).collect();
        assert!(missing.is_empty() && unknown.is_empty(), "{missing:#?} {unknown:#?}");
    }
}
