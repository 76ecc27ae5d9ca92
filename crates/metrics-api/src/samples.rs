//! The last two samples of each node and container, and what follows from them: pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::page::{Page, PodName, Point};

/// The time between two pages of a node, in milliseconds: a container that is younger than this
/// is measured from its start.
const RESOLUTION: i64 = 15_000;
/// The youngest age at which a container is measured from its start, in milliseconds.
const MIN_AGE: i64 = 10_000;

/// What a node or container uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// CPU in billionths of a core, over the window.
    pub nanocores: u64,
    /// The working set in bytes.
    pub memory: u64,
    /// The end of the window, in milliseconds since 1970.
    pub at: i64,
    /// Its length in milliseconds.
    pub window: i64,
}

/// The last sample, and the one before where it is of the same run.
#[derive(Debug, Clone, Copy)]
struct Pair {
    before: Option<Point>,
    last: Point,
}

impl Pair {
    fn first(point: Point) -> Self {
        let age = point.at.saturating_sub(point.started);
        let is_young = point.started > 0 && (MIN_AGE..RESOLUTION).contains(&age);
        let start = Point { at: point.started, cpu: 0, ..point };
        Self { before: is_young.then_some(start), last: point }
    }

    fn then(self, point: Point) -> Self {
        if point.started >= self.last.at && point.started > 0 {
            // It was started anew.
            return Self::first(point);
        }
        if point.at <= self.last.at {
            // The node has not measured since.
            return self;
        }
        Self { before: Some(self.last), last: point }
    }

    fn usage(&self) -> Option<Usage> {
        let before = self.before?;
        let window = self.last.at.checked_sub(before.at).filter(|window| *window > 0)?;
        if self.last.started < before.started {
            return None;
        }
        let cpu = u128::from(self.last.cpu.checked_sub(before.cpu)?);
        let nanocores = cpu.saturating_mul(1000).checked_div(u128::try_from(window).ok()?)?;
        Some(Usage {
            nanocores: u64::try_from(nanocores).ok()?,
            memory: self.last.memory,
            at: self.last.at,
            window,
        })
    }
}

#[derive(Debug, Default)]
struct OfNode {
    node: Option<Pair>,
    pods: HashMap<PodName, BTreeMap<String, Pair>>,
}

/// The samples of all nodes.
#[derive(Debug, Default)]
pub struct Samples {
    nodes: HashMap<String, OfNode>,
    /// The node of each pod.
    pods: HashMap<PodName, String>,
}

impl Samples {
    /// Takes the page of a node in.
    pub fn record(&mut self, node: &str, page: Page) {
        let of_node = self.nodes.entry(node.to_owned()).or_default();
        let next = |before: Option<Pair>, point: Point| match before {
            Some(before) => before.then(point),
            None => Pair::first(point),
        };
        of_node.node = page.node.map(|point| next(of_node.node, point)).or(of_node.node);
        let mut old = std::mem::take(&mut of_node.pods);
        self.pods.retain(|pod, of| of != node || page.pods.contains_key(pod));
        for (pod, containers) in page.pods {
            let before = old.remove(&pod).unwrap_or_default();
            let each = |(name, point): (String, Point)| {
                let pair = next(before.get(&name).copied(), point);
                (name, pair)
            };
            of_node.pods.insert(pod.clone(), containers.into_iter().map(each).collect());
            self.pods.insert(pod, node.to_owned());
        }
    }

    /// Forgets all other nodes.
    pub fn retain(&mut self, nodes: &BTreeSet<String>) {
        self.nodes.retain(|node, _| nodes.contains(node));
        self.pods.retain(|_, node| nodes.contains(node));
    }

    /// What a node uses; `None` until there are two samples.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<Usage> {
        self.nodes.get(name)?.node?.usage()
    }

    /// What the containers of a pod use, by name; `None` until there are two samples of each.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Vec<(String, Usage)>> {
        let pod = (namespace.to_owned(), name.to_owned());
        let containers = self.nodes.get(self.pods.get(&pod)?)?.pods.get(&pod)?;
        let each = containers.iter().map(|(name, pair)| Some((name.clone(), pair.usage()?)));
        each.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())
    }
}

/// Samples that are written by a scraper and read by requests. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Shared(Arc<RwLock<Samples>>);

impl Shared {
    /// For reading.
    pub fn read(&self) -> RwLockReadGuard<'_, Samples> {
        self.0.read()
    }

    /// For writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, Samples> {
        self.0.write()
    }
}
