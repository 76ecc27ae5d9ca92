//! The metrics of work queues, under client-go's names.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Kind, Labels, Registry};
use parking_lot::Mutex;

/// What a queue says of the items being processed: the sum of their times and the longest, in seconds.
pub(crate) trait Processing: Send + Sync {
    fn unfinished(&self) -> (f64, f64);
}

/// The metrics `workqueue_*` of all queues of a registry.
#[derive(Clone)]
pub struct QueueMetrics {
    depth: Family<Gauge, 1>,
    adds: Family<Counter, 1>,
    waited: Family<Histogram, 1>,
    worked: Family<Histogram, 1>,
    retries: Family<Counter, 1>,
    queues: Arc<Mutex<Vec<Known>>>,
}

/// What of the times of a queue a family has.
type Value = fn((f64, f64)) -> f64;
type Known = (&'static str, Weak<dyn Processing>);

/// The metrics of one queue.
pub(crate) struct Metrics {
    pub(crate) depth: Gauge,
    pub(crate) adds: Counter,
    pub(crate) waited: Histogram,
    pub(crate) worked: Histogram,
    pub(crate) retries: Counter,
}

impl QueueMetrics {
    /// Registers the families; once for a registry.
    pub fn new(registry: &Registry) -> Self {
        let buckets = Buckets::exponential(1e-8, 10.0, 10);
        let queues: Arc<Mutex<Vec<Known>>> = Arc::default();
        let metrics = Self {
            depth: registry.gauges(
                "workqueue_depth",
                "[BETA] Current depth of workqueue",
                ["name"],
            ),
            adds: registry.counters(
                "workqueue_adds_total",
                "[BETA] Total number of adds handled by workqueue",
                ["name"],
            ),
            waited: registry.histograms(
                "workqueue_queue_duration_seconds",
                "[BETA] How long in seconds an item stays in workqueue before being requested.",
                ["name"],
                buckets.clone(),
            ),
            worked: registry.histograms(
                "workqueue_work_duration_seconds",
                "[BETA] How long in seconds processing an item from workqueue takes.",
                ["name"],
                buckets,
            ),
            retries: registry.counters(
                "workqueue_retries_total",
                "[BETA] Total number of retries handled by workqueue",
                ["name"],
            ),
            queues: queues.clone(),
        };
        registry.collect(move |text| {
            let mut queues = queues.lock();
            queues.retain(|(_, queue)| queue.strong_count() > 0);
            // queues of one name are one, as they are in the other families
            let mut times: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
            for (name, queue) in queues.iter() {
                let Some((sum, longest)) = queue.upgrade().map(|queue| queue.unfinished()) else {
                    continue;
                };
                let known = times.entry(name).or_default();
                *known = (known.0 + sum, known.1.max(longest));
            }
            drop(queues);
            let families: [(_, _, Value); 2] = [
                (
                    "workqueue_unfinished_work_seconds",
                    "[BETA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.",
                    |(sum, _)| sum,
                ),
                (
                    "workqueue_longest_running_processor_seconds",
                    "[BETA] How many seconds has the longest running processor for workqueue been running.",
                    |(_, longest)| longest,
                ),
            ];
            for (family, help, value) in families {
                let mut samples = text.family(family, help, Kind::Gauge);
                for (name, times) in &times {
                    samples.add(&Labels::new(&[("name", name)]), value(*times));
                }
            }
        });
        metrics
    }

    /// Those that nobody reads.
    pub fn unregistered() -> Self {
        Self::new(&Registry::default())
    }

    pub(crate) fn of(&self, name: &'static str, queue: Weak<dyn Processing>) -> Metrics {
        self.queues.lock().push((name, queue));
        Metrics {
            depth: self.depth.with([name]),
            adds: self.adds.with([name]),
            waited: self.waited.with([name]),
            worked: self.worked.with([name]),
            retries: self.retries.with([name]),
        }
    }
}
