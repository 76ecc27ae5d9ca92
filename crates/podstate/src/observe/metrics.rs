//! Metrics of relists and of running pods and containers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_metrics::{Buckets, Counter, Gauge, Histogram, Kind, Labels, Registry, Text};
use longshore_pod::observed::State;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Observer;

/// Metrics of relists and events.
#[derive(Debug)]
pub(super) struct Metrics {
    durations: Histogram,
    intervals: Histogram,
    last: Gauge,
    /// The start of the last relist.
    before: Mutex<Option<Instant>>,
    /// Duration of relists of one pod.
    pub(super) pods: Histogram,
    pub(super) streams: Counter,
    pub(super) stream_failures: Counter,
    latencies: Histogram,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        // No event is ever discarded: subscribers see the latest state.
        registry.counter("kubelet_pleg_discard_events", "Events of the PLEG that were discarded.");
        Self {
            durations: registry.histogram(
                "kubelet_pleg_relist_duration_seconds",
                "How long relists of pods took, in seconds.",
                Buckets::usual(),
            ),
            intervals: registry.histogram(
                "kubelet_pleg_relist_interval_seconds",
                "How long after each other relists began, in seconds.",
                Buckets::usual(),
            ),
            last: registry.gauge(
                "kubelet_pleg_last_seen_seconds",
                "When the last relist began, in seconds since 1970.",
            ),
            before: Mutex::default(),
            pods: registry.histogram(
                "kubelet_pleg_pod_relist_duration_seconds",
                "How long relists of one pod took, in seconds.",
                Buckets::usual(),
            ),
            streams: registry.counter(
                "kubelet_evented_pleg_connection_success_count",
                "Streams of the runtime's events that were opened.",
            ),
            stream_failures: registry.counter(
                "kubelet_evented_pleg_connection_error_count",
                "Streams of the runtime's events that could not be opened.",
            ),
            latencies: registry.histogram(
                "kubelet_evented_pleg_connection_latency_seconds",
                "From an event of the runtime to when it came here, in seconds.",
                Buckets::usual(),
            ),
        }
    }

    /// A relist that started at `began` is over, successful or not.
    pub(super) fn relisted(&self, began: Instant) {
        let took = began.elapsed();
        let mut before = self.before.lock();
        if let Some(before) = before.replace(began) {
            self.intervals.took(began.duration_since(before));
        }
        self.durations.took(took);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.last.set(now.saturating_sub(took).as_secs() as f64);
    }

    /// The runtime sent an event, created at that time in nanoseconds since 1970.
    pub(super) fn event_received(&self, created: i64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let created = Duration::from_nanos(u64::try_from(created).unwrap_or(0));
        self.latencies.took(now.saturating_sub(created));
    }
}

/// Register the metrics of running pods and containers.
pub(super) fn register(registry: &Registry, observer: Observer) {
    registry.collect(move |text| write(text, &observer));
}

fn write(text: &mut Text, observer: &Observer) {
    let pods = observer.all();
    let running = pods.iter().filter(|pod| pod.ready_sandbox().is_some()).count();
    let help = "Pods whose sandbox stands.";
    text.gauge("kubelet_running_pods", help, running as f64);
    let help = "Containers that the runtime has, by their state.";
    let mut samples = text.family("kubelet_running_containers", help, Kind::Gauge);
    for state in ["created", "exited", "running", "unknown"] {
        let runs = pods.iter().flat_map(|pod| &pod.containers);
        let count = runs.filter(|run| state_label(&run.state) == state).count();
        samples.add(&Labels::new(&[("container_state", state)]), count as f64);
    }
}

fn state_label(state: &State) -> &'static str {
    match state {
        State::Created => "created",
        State::Running { .. } => "running",
        State::Exited { .. } => "exited",
        State::Unknown => "unknown",
    }
}
