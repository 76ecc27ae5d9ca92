//! The registry of the metrics of one endpoint.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::family::{Family, Page};
use crate::text::Text;
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
}

type Collector = Box<dyn Fn(&mut Text) + Send + Sync>;

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
