//! Counters, gauges and histograms as atomics. Clones share the value.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::text::{Kind, Labels, Samples, number};

/// Value of a series.
pub trait Metric: fmt::Debug + Clone + Send + Sync + 'static {
    /// What all series of a family have in common.
    type Shape: fmt::Debug + Clone + Send + Sync;

    /// The word for it in the text format.
    const KIND: Kind;

    /// A series at its beginning.
    fn new(shape: &Self::Shape) -> Self;

    /// Writes the sample, or samples, of the series.
    fn write(&self, labels: &Labels, samples: &mut Samples<'_>);
}

/// A counter.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Increments it.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds to it.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Metric for Counter {
    type Shape = ();

    const KIND: Kind = Kind::Counter;

    fn new((): &()) -> Self {
        Self::default()
    }

    fn write(&self, labels: &Labels, samples: &mut Samples<'_>) {
        samples.add(labels, self.get() as f64);
    }
}

/// A gauge.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Arc<Float>);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: f64) {
        self.0.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Adds a positive or negative difference.
    pub fn add(&self, difference: f64) {
        self.0.add(difference);
    }

    /// Its value.
    pub fn get(&self) -> f64 {
        self.0.get()
    }
}

impl Metric for Gauge {
    type Shape = ();

    const KIND: Kind = Kind::Gauge;

    fn new((): &()) -> Self {
        Self::default()
    }

    fn write(&self, labels: &Labels, samples: &mut Samples<'_>) {
        samples.add(labels, self.get());
    }
}

/// A histogram.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<Distribution>);

#[derive(Debug)]
struct Distribution {
    buckets: Buckets,
    /// One for each bound, and one for what is above the last.
    counts: Box<[AtomicU64]>,
    sum: Float,
}

impl Histogram {
    /// Observes a value; NaN is ignored.
    pub fn observe(&self, value: f64) {
        self.observe_many(value, 1);
    }

    /// Observes a value so many times, such as once for each nanosecond in which it was in force.
    pub fn observe_many(&self, value: f64, times: u64) {
        if value.is_nan() {
            return;
        }
        let bucket = self.0.buckets.0.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.0.counts.get(bucket) {
            count.fetch_add(times, Ordering::Relaxed);
            self.0.sum.add(value * times as f64);
        }
    }

    /// Observes a duration in seconds.
    pub fn took(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Sum of observations.
    pub fn sum(&self) -> f64 {
        self.0.sum.get()
    }
}

impl Metric for Histogram {
    type Shape = Buckets;

    const KIND: Kind = Kind::Histogram;

    fn new(buckets: &Buckets) -> Self {
        let counts = buckets.0.names.iter().map(|_| AtomicU64::default()).collect();
        Self(Arc::new(Distribution { buckets: buckets.clone(), counts, sum: Float::default() }))
    }

    fn write(&self, labels: &Labels, samples: &mut Samples<'_>) {
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let names = self.0.buckets.0.names.iter().map(AsRef::as_ref);
        samples.histogram(labels, names.zip(counts), self.sum());
    }
}

/// The bounds of a histogram's buckets: ascending, finite; the bucket above all is understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets(Arc<Bounds>);

#[derive(Debug, PartialEq)]
struct Bounds {
    bounds: Box<[f64]>,
    /// As the text format has them, and one more for what is above the last.
    names: Box<[Box<str>]>,
}

impl Buckets {
    /// The bounds that Prometheus' clients take when nothing else is said: 5 ms to 10 s.
    pub fn usual() -> Self {
        Self::of(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
    }

    /// These bounds.
    pub fn of(bounds: &[f64]) -> Self {
        Self::from_iter(bounds.iter().copied())
    }

    /// So many bounds, each `factor` times the one before.
    pub fn exponential(start: f64, factor: f64, count: usize) -> Self {
        let next = |bound: &f64| Some(bound * factor);
        Self::from_iter(std::iter::successors(Some(start), next).take(count))
    }

    /// So many bounds, each `width` above the one before.
    pub fn linear(start: f64, width: f64, count: usize) -> Self {
        let next = |bound: &f64| Some(bound + width);
        Self::from_iter(std::iter::successors(Some(start), next).take(count))
    }

    /// These, and then those.
    #[must_use]
    pub fn then(&self, more: &Self) -> Self {
        Self::from_iter(self.0.bounds.iter().chain(&more.0.bounds).copied())
    }
}

impl FromIterator<f64> for Buckets {
    fn from_iter<I: IntoIterator<Item = f64>>(bounds: I) -> Self {
        let bounds: Box<[f64]> = bounds.into_iter().collect();
        debug_assert!(bounds.is_sorted() && bounds.iter().all(|bound| bound.is_finite()));
        let name = |bound: &f64| {
            let mut name = String::new();
            number(&mut name, *bound);
            name.into()
        };
        let names = bounds.iter().chain(&[f64::INFINITY]).map(name).collect();
        Self(Arc::new(Bounds { bounds, names }))
    }
}

/// An `f64` that many may add to.
#[derive(Debug, Default)]
struct Float(AtomicU64);

impl Float {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn add(&self, difference: f64) {
        let sum = |bits| Some((f64::from_bits(bits) + difference).to_bits());
        // the closure never declines
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }
}
