//! Metrics of the scheduler, under upstream's names.

use std::time::Duration;

use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Registry};

/// The families.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) incoming: Family<Counter, 2>,
    pub(crate) algorithm: Histogram,
    pub(crate) preemption_attempts: Counter,
    pub(crate) victims: Histogram,
    attempts: Family<Counter, 2>,
    durations: Family<Histogram, 2>,
    pending: Family<Gauge, 1>,
    sizes: Family<Gauge, 1>,
    sli: Family<Histogram, 1>,
    tries: Histogram,
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
        }
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

    #[allow(clippy::cast_precision_loss, reason = "numbers of pods and nodes")]
    pub(crate) fn sizes(&self, queues: [usize; 4], cache: [usize; 3]) {
        for (queue, size) in ["active", "backoff", "unschedulable", "gated"].iter().zip(queues) {
            self.pending.with([queue]).set(size as f64);
        }
        for (type_, size) in ["nodes", "pods", "assumed_pods"].iter().zip(cache) {
            self.sizes.with([type_]).set(size as f64);
        }
    }
}
