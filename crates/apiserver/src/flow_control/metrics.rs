//! Metrics under upstream's names (`apiserver/pkg/util/flowcontrol/metrics`). Labels are names of schemas and
//! levels; the series of what is deleted go with it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Registry};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::allocation::Seats;
use super::demand::DemandStats;
use super::queue_set::{Load, Meter};

/// `flow_schema` and `priority_level`.
type BySchema<M> = Family<M, 2>;
/// `priority_level`.
type ByLevel<M> = Family<M, 1>;

const SCHEMA: [&str; 2] = ["flow_schema", "priority_level"];
const LEVEL: [&str; 1] = ["priority_level"];
/// Bounds of durations, in seconds.
const SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// The families.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    dispatched: BySchema<Counter>,
    rejected: Family<Counter, 3>,
    inqueue_requests: BySchema<Gauge>,
    inqueue_seats: BySchema<Gauge>,
    executing_requests: BySchema<Gauge>,
    executing_seats: BySchema<Gauge>,
    queue_length: BySchema<Histogram>,
    wait: Family<Histogram, 3>,
    execution: Family<Histogram, 3>,
    watch_count: BySchema<Histogram>,
    estimated_seats: BySchema<Histogram>,
    no_accommodation: BySchema<Counter>,
    nominal: ByLevel<Gauge>,
    lower: ByLevel<Gauge>,
    upper: ByLevel<Gauge>,
    current: ByLevel<Gauge>,
    high_watermark: ByLevel<Gauge>,
    average: ByLevel<Gauge>,
    deviation: ByLevel<Gauge>,
    smoothed: ByLevel<Gauge>,
    target: ByLevel<Gauge>,
    fair_part: Gauge,
    demand: ByLevel<Histogram>,
    seat_utilization: Family<Histogram, 2>,
    request_utilization: Family<Histogram, 2>,
    kinds: Family<Histogram, 2>,
    inqueue_kinds: Family<Gauge, 1>,
}

impl Metrics {
    pub(super) fn new() -> Metrics {
        let registry = Registry::default();
        let by_schema = |name, help| registry.gauges(name, help, SCHEMA);
        let by_level = |name, help| registry.gauges(name, help, LEVEL);
        let seconds = || Buckets::of(&SECONDS);
        Metrics {
            dispatched: registry.counters(
                "apiserver_flowcontrol_dispatched_requests_total",
                "Requests that were executed.",
                SCHEMA,
            ),
            rejected: registry.counters(
                "apiserver_flowcontrol_rejected_requests_total",
                "Requests that were rejected, by reason.",
                ["flow_schema", "priority_level", "reason"],
            ),
            inqueue_requests: by_schema(
                "apiserver_flowcontrol_current_inqueue_requests",
                "Requests that wait in queues.",
            ),
            inqueue_seats: by_schema(
                "apiserver_flowcontrol_current_inqueue_seats",
                "Seats that requests in queues wait for.",
            ),
            executing_requests: by_schema(
                "apiserver_flowcontrol_current_executing_requests",
                "Requests that are executed; watches until they are set up.",
            ),
            executing_seats: by_schema(
                "apiserver_flowcontrol_current_executing_seats",
                "Seats of requests that are executed; of watches until they are set up.",
            ),
            queue_length: registry.histograms(
                "apiserver_flowcontrol_request_queue_length_after_enqueue",
                "Length of the queue of a request, with the request.",
                SCHEMA,
                Buckets::of(&[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0]),
            ),
            wait: registry.histograms(
                "apiserver_flowcontrol_request_wait_duration_seconds",
                "How long requests waited in queues, in seconds.",
                ["execute", "flow_schema", "priority_level"],
                seconds(),
            ),
            execution: registry.histograms(
                "apiserver_flowcontrol_request_execution_seconds",
                "How long requests were executed, in seconds; watches until they were set up.",
                ["flow_schema", "priority_level", "type"],
                seconds(),
            ),
            watch_count: registry.histograms(
                "apiserver_flowcontrol_watch_count_samples",
                "Watches that hear of what a request writes.",
                SCHEMA,
                Buckets::of(&[0.0, 1.0, 10.0, 100.0, 1000.0, 10_000.0]),
            ),
            estimated_seats: registry.histograms(
                "apiserver_flowcontrol_work_estimated_seats",
                "Seats that requests are expected to take.",
                SCHEMA,
                Buckets::of(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0]),
            ),
            no_accommodation: registry.counters(
                "apiserver_flowcontrol_request_dispatch_no_accommodation_total",
                "How often there were too few seats for the next request.",
                SCHEMA,
            ),
            nominal: by_level(
                "apiserver_flowcontrol_nominal_limit_seats",
                "Seats of a level by its shares.",
            ),
            lower: by_level(
                "apiserver_flowcontrol_lower_limit_seats",
                "Seats that a level does not lend.",
            ),
            upper: by_level(
                "apiserver_flowcontrol_upper_limit_seats",
                "Seats of a level with all that it may borrow.",
            ),
            current: by_level(
                "apiserver_flowcontrol_current_limit_seats",
                "Seats of a level at present.",
            ),
            high_watermark: by_level(
                "apiserver_flowcontrol_demand_seats_high_watermark",
                "The most seats that a level could have used in the last period.",
            ),
            average: by_level(
                "apiserver_flowcontrol_demand_seats_average",
                "Average of the seats that a level could have used in the last period.",
            ),
            deviation: by_level(
                "apiserver_flowcontrol_demand_seats_stdev",
                "Standard deviation of the seats that a level could have used in the last period.",
            ),
            smoothed: by_level(
                "apiserver_flowcontrol_demand_seats_smoothed",
                "Seats that a level could use, over several periods.",
            ),
            target: by_level(
                "apiserver_flowcontrol_target_seats",
                "Seats that a level would get if there were enough.",
            ),
            fair_part: registry.gauge(
                "apiserver_flowcontrol_seat_fair_frac",
                "The part of its target that a level gets.",
            ),
            demand: registry.histograms(
                "apiserver_flowcontrol_demand_seats",
                "Seats that a level could use, as part of those it has, for each nanosecond.",
                LEVEL,
                Buckets::of(&[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0]),
            ),
            seat_utilization: registry.histograms(
                "apiserver_flowcontrol_priority_level_seat_utilization",
                "Seats in use, as part of those a level has, for each nanosecond.",
                ["phase", "priority_level"],
                Buckets::of(&[
                    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0,
                ]),
            ),
            request_utilization: registry.histograms(
                "apiserver_flowcontrol_priority_level_request_utilization",
                "Requests that wait or are executed, as part of what a level may have, for each nanosecond.",
                ["phase", "priority_level"],
                Buckets::of(&[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0]),
            ),
            kinds: registry.histograms(
                "apiserver_flowcontrol_read_vs_write_current_requests",
                "Requests that wait or are executed, as part of what there may be, for each nanosecond.",
                ["phase", "request_kind"],
                Buckets::of(&[
                    0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0,
                ]),
            ),
            inqueue_kinds: registry.gauges(
                "apiserver_current_inqueue_requests",
                "Requests that wait in queues, by whether they change something.",
                ["request_kind"],
            ),
            registry,
        }
    }

    /// In Prometheus' text format.
    pub(super) fn text(&self) -> String {
        self.registry.text()
    }

    pub(super) fn rejected(&self, schema: &str, level: &str, reason: &str) {
        self.rejected.with([schema, level, reason]).inc();
    }

    /// A request waited, or was rejected when it arrived.
    pub(super) fn waited(&self, schema: &str, level: &str, is_executed: bool, wait: Duration) {
        let execute = if is_executed { "true" } else { "false" };
        self.wait.with([execute, schema, level]).took(wait);
    }

    pub(super) fn not_accommodated(&self, schema: &str, level: &str) {
        self.no_accommodation.with([schema, level]).inc();
    }

    pub(super) fn watches(&self, schema: &str, level: &str, count: u32) {
        self.watch_count.with([schema, level]).observe(count.into());
    }

    pub(super) fn limits(&self, level: &str, seats: &Seats) {
        self.nominal.with([level]).set(seats.nominal.into());
        self.lower.with([level]).set(seats.min.into());
        self.upper.with([level]).set(seats.max.into());
    }

    pub(super) fn adjusted(&self, level: &str, demand: &DemandStats, target: f64, current: u32) {
        self.high_watermark.with([level]).set(demand.high_watermark.into());
        self.average.with([level]).set(demand.average);
        self.deviation.with([level]).set(demand.deviation);
        self.smoothed.with([level]).set(demand.smoothed);
        self.target.with([level]).set(target);
        self.current.with([level]).set(current.into());
    }

    pub(super) fn fair_part(&self, part: f64) {
        self.fair_part.set(part);
    }

    /// Forgets all schemas and levels but these.
    pub(super) fn retain(&self, schemas: &BTreeSet<&str>, levels: &BTreeSet<&str>) {
        let is_kept =
            |schema: &str, level: &str| schemas.contains(schema) && levels.contains(level);
        self.dispatched.retain(|[schema, level]| is_kept(schema, level));
        self.no_accommodation.retain(|[schema, level]| is_kept(schema, level));
        self.rejected.retain(|[schema, level, _]| is_kept(schema, level));
        self.execution.retain(|[schema, level, _]| is_kept(schema, level));
        self.wait.retain(|[_, schema, level]| is_kept(schema, level));
        for gauges in [
            &self.inqueue_requests,
            &self.inqueue_seats,
            &self.executing_requests,
            &self.executing_seats,
        ] {
            gauges.retain(|[schema, level]| is_kept(schema, level));
        }
        for histograms in [&self.queue_length, &self.watch_count, &self.estimated_seats] {
            histograms.retain(|[schema, level]| is_kept(schema, level));
        }
        for gauges in [
            &self.nominal,
            &self.lower,
            &self.upper,
            &self.current,
            &self.high_watermark,
            &self.average,
            &self.deviation,
            &self.smoothed,
            &self.target,
        ] {
            gauges.retain(|[level]| levels.contains(&**level));
        }
        self.demand.retain(|[level]| levels.contains(&**level));
        for histograms in [&self.seat_utilization, &self.request_utilization] {
            histograms.retain(|[_, level]| levels.contains(&**level));
        }
    }
}

/// What is counted of each request of a schema.
#[derive(Debug)]
pub(super) struct SchemaMeters {
    pub(super) dispatched: Counter,
    pub(super) inqueue_requests: Gauge,
    pub(super) inqueue_seats: Gauge,
    pub(super) executing_requests: Gauge,
    pub(super) executing_seats: Gauge,
    pub(super) queue_length: Histogram,
    pub(super) estimated_seats: Histogram,
    execution: [Histogram; 2],
}

impl SchemaMeters {
    pub(super) fn new(metrics: &Metrics, schema: &str, level: &str) -> SchemaMeters {
        let labels = [schema, level];
        SchemaMeters {
            dispatched: metrics.dispatched.with(labels),
            inqueue_requests: metrics.inqueue_requests.with(labels),
            inqueue_seats: metrics.inqueue_seats.with(labels),
            executing_requests: metrics.executing_requests.with(labels),
            executing_seats: metrics.executing_seats.with(labels),
            queue_length: metrics.queue_length.with(labels),
            estimated_seats: metrics.estimated_seats.with(labels),
            execution: ["regular", "watch"]
                .map(|kind| metrics.execution.with([schema, level, kind])),
        }
    }

    pub(super) fn executed(&self, is_watch: bool, took: Duration) {
        self.execution[usize::from(is_watch)].took(took);
    }
}

/// What the load of a level is compared with.
#[derive(Debug)]
pub(super) struct Capacity {
    /// Requests in all queues.
    pub(super) waiting: AtomicU32,
    pub(super) seats: AtomicU32,
}

impl Default for Capacity {
    fn default() -> Capacity {
        Capacity { waiting: AtomicU32::new(1), seats: AtomicU32::new(1) }
    }
}

/// Observes the load of a level, for each nanosecond.
#[derive(Debug)]
pub(super) struct LevelMeter {
    capacity: Arc<Capacity>,
    demand: Histogram,
    seats: Histogram,
    waiting: Histogram,
    executing: Histogram,
}

impl LevelMeter {
    pub(super) fn new(metrics: &Metrics, level: &str, capacity: Arc<Capacity>) -> LevelMeter {
        LevelMeter {
            capacity,
            demand: metrics.demand.with([level]),
            seats: metrics.seat_utilization.with(["executing", level]),
            waiting: metrics.request_utilization.with(["waiting", level]),
            executing: metrics.request_utilization.with(["executing", level]),
        }
    }
}

impl Meter for LevelMeter {
    fn observe(&mut self, elapsed: Duration, load: &Load) {
        let times = nanoseconds(elapsed);
        let part = |of: u32, all: &AtomicU32| {
            f64::from(of) / f64::from(all.load(Ordering::Relaxed).max(1))
        };
        let demand = load.seats_in_use.saturating_add(load.seats_waiting);
        let Capacity { waiting, seats } = &*self.capacity;
        self.demand.observe_many(part(demand, seats), times);
        self.seats.observe_many(part(load.seats_in_use, seats), times);
        self.waiting.observe_many(part(load.waiting, waiting), times);
        self.executing.observe_many(part(load.executing, seats), times);
    }
}

fn nanoseconds(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// What a request is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Executing,
}

/// How many requests wait and are executed, by whether they change something.
#[derive(Debug)]
pub(super) struct Kinds {
    state: Mutex<KindState>,
    histograms: [[Histogram; 2]; 2],
    waiting: [Gauge; 2],
}

#[derive(Debug)]
struct KindState {
    since: Instant,
    /// By phase, and by whether they change something.
    counts: [[u32; 2]; 2],
    /// The most of each phase.
    most: [u32; 2],
}

/// Upstream's names of them.
pub(super) const KINDS: [&str; 2] = ["readOnly", "mutating"];

impl Kinds {
    pub(super) fn new(metrics: &Metrics, now: Instant) -> Kinds {
        let state = KindState { since: now, counts: [[0; 2]; 2], most: [1; 2] };
        Kinds {
            state: Mutex::new(state),
            histograms: ["waiting", "executing"]
                .map(|phase| KINDS.map(|kind| metrics.kinds.with([phase, kind]))),
            waiting: KINDS.map(|kind| metrics.inqueue_kinds.with([kind])),
        }
    }

    pub(super) fn set_most(&self, now: Instant, waiting: u32, executing: u32) {
        let mut state = self.state.lock();
        self.observe_until(&mut state, now);
        state.most = [waiting.max(1), executing.max(1)];
    }

    /// One more, or one less.
    pub(super) fn count(&self, now: Instant, phase: Phase, is_mutating: bool, is_more: bool) {
        let mut state = self.state.lock();
        self.observe_until(&mut state, now);
        let count = &mut state.counts[phase as usize][usize::from(is_mutating)];
        *count = if is_more { count.saturating_add(1) } else { count.saturating_sub(1) };
    }

    fn observe_until(&self, state: &mut KindState, now: Instant) {
        let times = nanoseconds(now.saturating_duration_since(state.since));
        if times == 0 {
            return;
        }
        state.since = now;
        for (phase, histograms) in self.histograms.iter().enumerate() {
            for (kind, histogram) in histograms.iter().enumerate() {
                let part = f64::from(state.counts[phase][kind]) / f64::from(state.most[phase]);
                histogram.observe_many(part, times);
            }
        }
    }

    /// Brings the metrics up to date.
    pub(super) fn observe(&self, now: Instant) {
        let mut state = self.state.lock();
        self.observe_until(&mut state, now);
        for (gauge, count) in self.waiting.iter().zip(state.counts[Phase::Waiting as usize]) {
            gauge.set(count.into());
        }
    }

    /// How many are executed.
    pub(super) fn executing(&self) -> [u32; 2] {
        self.state.lock().counts[Phase::Executing as usize]
    }
}
