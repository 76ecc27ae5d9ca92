//! The registry of the metrics of one endpoint.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::family::{Description, Family, Page};
use crate::text::{Kind, Labels, Text};
use crate::value::{Buckets, Counter, Gauge, Histogram, Metric};

/// Families and collectors. Clones are the same registry.
///
/// A name is registered once in a registry.
#[derive(Clone, Default)]
pub struct Registry(Arc<Inner>);

#[derive(Default)]
struct Inner {
    pages: Mutex<Vec<Box<dyn Page>>>,
    collectors: Mutex<Vec<Collector>>,
    /// Size of the last page, to allocate the next.
    length: AtomicUsize,
    /// Whether the page says how many families there are.
    counts_families: AtomicBool,
}

/// The levels of stability that the help of a family may begin with.
const LEVELS: [&str; 4] = ["ALPHA", "BETA", "INTERNAL", "STABLE"];

type Collector = Box<dyn Fn(&mut Text) + Send + Sync>;

/// A part of the page that somebody writes at each scrape, and that may change hands. Clones are the
/// same.
#[derive(Clone, Default)]
pub struct Slot(Arc<Mutex<Option<Collector>>>);

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

impl Slot {
    /// Has this write the part, instead of what did before.
    pub fn set(&self, collector: impl Fn(&mut Text) + Send + Sync + 'static) {
        *self.0.lock() = Some(Box::new(collector));
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.pages.lock().iter().map(|page| page.name()).collect();
        f.debug_tuple("Registry").field(&names).finish()
    }
}

impl Registry {
    /// A counter without labels.
    pub fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.counters(name, help, []).with([])
    }

    /// Counters by those labels.
    pub fn counters<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Family<Counter, N> {
        self.register(Family::new(name, help, labels, ()))
    }

    /// A gauge without labels; it is 0 until it is set.
    pub fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.gauges(name, help, []).with([])
    }

    /// Gauges by those labels.
    pub fn gauges<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Family<Gauge, N> {
        self.register(Family::new(name, help, labels, ()))
    }

    /// A histogram without labels.
    pub fn histogram(&self, name: &'static str, help: &'static str, buckets: Buckets) -> Histogram {
        self.histograms(name, help, [], buckets).with([])
    }

    /// Histograms by those labels.
    pub fn histograms<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        buckets: Buckets,
    ) -> Family<Histogram, N> {
        self.register(Family::new(name, help, labels, buckets))
    }

    /// Calls `collector` at each scrape. It must be fast, and its families must have no other source.
    pub fn collect(&self, collector: impl Fn(&mut Text) + Send + Sync + 'static) {
        self.0.collectors.lock().push(Box::new(collector));
    }

    /// A part of the page that is empty until somebody writes it; as for [`Self::collect`].
    pub fn slot(&self) -> Slot {
        let slot = Slot::default();
        let own = slot.clone();
        self.collect(move |text| {
            if let Some(collector) = &*own.0.lock() {
                collector(text);
            }
        });
        slot
    }

    /// The families, in the order of their names; what collectors write is not known.
    pub fn families(&self) -> Vec<Description> {
        self.0.pages.lock().iter().map(|page| page.describe()).collect()
    }

    /// Has the page say how many families of each level of stability there are, as programs of
    /// Kubernetes do: `registered_metrics_total`, with those that are hidden or disabled, of which there
    /// are none.
    pub fn count_families(&self) {
        self.0.counts_families.store(true, Ordering::Relaxed);
    }

    fn write_counts(&self, text: &mut Text) {
        let help = "[BETA] The count of disabled metrics.";
        text.family("disabled_metrics_total", help, Kind::Counter).add(&Labels::NONE, 0.0);
        let help = "[BETA] The count of hidden metrics.";
        text.family("hidden_metrics_total", help, Kind::Counter).add(&Labels::NONE, 0.0);
        let help = "[BETA] The count of registered metrics broken by stability level and deprecation version.";
        let families = self.families();
        let mut samples = text.family("registered_metrics_total", help, Kind::Counter);
        for level in LEVELS {
            let is_of = |family: &&Description| {
                family.help.strip_prefix('[').is_some_and(|rest| rest.starts_with(level))
            };
            let count = families.iter().filter(is_of).count();
            if count > 0 {
                let labels = [("stability_level", level), ("deprecated_version", "")];
                samples.add(&Labels::new(&labels), count as f64);
            }
        }
    }

    /// The page: families ordered by name, then the collectors.
    pub fn text(&self) -> String {
        let expected = self.0.length.load(Ordering::Relaxed);
        let mut text = Text::with_capacity(expected + expected / 8);
        for page in self.0.pages.lock().iter() {
            page.write(&mut text);
        }
        for collector in self.0.collectors.lock().iter() {
            collector(&mut text);
        }
        if self.0.counts_families.load(Ordering::Relaxed) {
            self.write_counts(&mut text);
        }
        let page = text.finish();
        self.0.length.store(page.len(), Ordering::Relaxed);
        page
    }

    fn register<M: Metric, const N: usize>(&self, family: Family<M, N>) -> Family<M, N> {
        let mut pages = self.0.pages.lock();
        let index = pages.binary_search_by_key(&family.name(), |page| page.name());
        debug_assert!(index.is_err(), "{} is registered twice", family.name());
        if let Err(index) = index {
            pages.insert(index, Box::new(family.clone()));
        }
        family
    }
}
