//! A family: series of one name with different label values.

use std::cmp::Ordering;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::text::{Kind, Labels, Text};
use crate::value::Metric;

/// Series of one name with `N` labels each. Clones lead to the same series.
///
/// Callers must keep the number of label values small, see [`Family::with_at_most`].
#[derive(Debug)]
pub struct Family<M: Metric, const N: usize>(Arc<Inner<M, N>>);

#[derive(Debug)]
struct Inner<M: Metric, const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    shape: M::Shape,
    /// In the order of their values.
    series: RwLock<Vec<Series<M, N>>>,
}

#[derive(Debug)]
struct Series<M, const N: usize> {
    values: [Box<str>; N],
    metric: M,
}

impl<M: Metric, const N: usize> Clone for Family<M, N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Metric, const N: usize> Family<M, N> {
    pub(crate) fn new(
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        shape: M::Shape,
    ) -> Self {
        Self(Arc::new(Inner { name, help, labels, shape, series: RwLock::default() }))
    }

    /// The series with these label values; created on first use.
    pub fn with(&self, values: [&str; N]) -> M {
        let found = {
            let series = self.0.series.read();
            find(&series, values).ok().map(|at| series[at].metric.clone())
        };
        found.unwrap_or_else(|| self.begin(values))
    }

    /// The series with these label values; `None` when it would be new and there are `max` already. For
    /// labels that others choose.
    pub fn with_at_most(&self, max: usize, values: [&str; N]) -> Option<M> {
        let is_full = {
            let series = self.0.series.read();
            match find(&series, values) {
                Ok(at) => return Some(series[at].metric.clone()),
                Err(_) => series.len() >= max,
            }
        };
        (!is_full).then(|| self.begin(values))
    }

    fn begin(&self, values: [&str; N]) -> M {
        let mut series = self.0.series.write();
        match find(&series, values) {
            Ok(at) => series[at].metric.clone(),
            Err(at) => {
                let metric = M::new(&self.0.shape);
                let values = values.map(Box::from);
                series.insert(at, Series { values, metric: metric.clone() });
                metric
            }
        }
    }

    /// Removes the series with these label values.
    pub fn remove(&self, values: [&str; N]) {
        let mut series = self.0.series.write();
        if let Ok(at) = find(&series, values) {
            series.remove(at);
        }
    }

    /// Removes all series whose label values do not match `keep`.
    pub fn retain(&self, mut keep: impl FnMut(&[Box<str>; N]) -> bool) {
        let mut series = self.0.series.write();
        series.retain(|one| keep(&one.values));
    }
}

fn find<M, const N: usize>(series: &[Series<M, N>], values: [&str; N]) -> Result<usize, usize> {
    series.binary_search_by(|one| {
        let pairs = one.values.iter().map(Box::as_ref).zip(values);
        pairs.fold(Ordering::Equal, |order, (a, b): (&str, &str)| order.then_with(|| a.cmp(b)))
    })
}

/// What a family is called and what its series have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub help: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: Vec<&'static str>,
}

/// A family, as the registry sees it.
pub(crate) trait Page: Send + Sync {
    fn name(&self) -> &'static str;
    fn describe(&self) -> Description;
    fn write(&self, text: &mut Text);
}

impl<M: Metric, const N: usize> Page for Family<M, N> {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn describe(&self) -> Description {
        let Inner { name, help, labels, .. } = *self.0;
        Description { name, help, kind: M::KIND, labels: labels.to_vec() }
    }

    fn write(&self, text: &mut Text) {
        let Inner { name, help, labels, .. } = *self.0;
        let mut samples = text.family(name, help, M::KIND);
        let series = self.0.series.read();
        let mut written = Labels::NONE;
        for one in series.iter() {
            written.clear();
            labels.into_iter().zip(&one.values).for_each(|(name, value)| written.add(name, value));
            one.metric.write(&written, &mut samples);
        }
    }
}
