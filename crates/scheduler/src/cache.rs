//! Nodes and what runs on them, with pods that are assumed to be bound, and the snapshot on which one
//! scheduling cycle works.
//!
//! A node is copied when it changes while a snapshot shares it; updating the snapshot replaces the
//! nodes that changed since.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Atom, Node, NodeInfo, Pod, Uid};

/// A pod of the cache.
#[derive(Debug)]
struct CachedPod {
    pod: Arc<Pod>,
    node: Atom,
    assumed: Option<Assumed>,
}

/// A pod of which the API does not show yet that it is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assumed {
    /// It is being bound.
    Binding,
    /// The API took the binding at this time.
    Bound(Duration),
}

/// What was wrong with a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The pod is in the cache already.
    #[error("pod {0} is in the cache, so it cannot be assumed")]
    IsKnown(String),
    /// The pod is not assumed.
    #[error("pod {0} is not assumed")]
    IsNotAssumed(String),
}

/// The cache.
#[derive(Debug, Default)]
pub struct Cache {
    nodes: HashMap<Atom, Arc<NodeInfo>>,
    pods: HashMap<Uid, CachedPod>,
    assumed: usize,
    /// Numbers of nodes that have an image.
    images: Arc<HashMap<Atom, usize>>,
    changed: HashSet<Atom>,
    /// Whether nodes came, went or moved to another zone.
    is_reordered: bool,
    generation: u64,
    /// How long a binding may stay unseen; `None`: for ever, as upstream.
    ttl: Option<Duration>,
}

impl Cache {
    /// An empty cache in which assumed pods expire this long after they were bound.
    pub fn new(ttl: Option<Duration>) -> Self {
        Self { ttl, ..Self::default() }
    }

    /// Numbers of nodes, pods and assumed pods.
    pub fn sizes(&self) -> [usize; 3] {
        [self.nodes.len(), self.pods.len(), self.assumed]
    }

    /// A pod on a node.
    pub fn pod(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.pods.get(uid).map(|own| &own.pod)
    }

    /// A node with its pods.
    pub fn node(&self, name: &Atom) -> Option<&Arc<NodeInfo>> {
        self.nodes.get(name)
    }

    /// Whether the pod is assumed.
    pub fn is_assumed(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|own| own.assumed.is_some())
    }

    /// Adds or updates a node; returns what it was.
    pub fn set_node(&mut self, node: Arc<Node>) -> Option<Arc<Node>> {
        let name = node.name.clone();
        let old = self.nodes.get(&name).and_then(|info| info.node.clone());
        if old.as_ref() == Some(&node) {
            return old;
        }
        if old.as_ref().is_none_or(|old| old.zone != node.zone) {
            self.is_reordered = true;
        }
        self.count_images(old.as_deref(), Some(&node));
        self.change(&name, |info| info.node = Some(node));
        old
    }

    /// Removes a node; its pods stay until they go.
    pub fn remove_node(&mut self, name: &Atom) -> Option<Arc<Node>> {
        let old = self.nodes.get(name)?.node.clone()?;
        self.count_images(Some(&old), None);
        self.is_reordered = true;
        self.change(name, |info| info.node = None);
        self.drop_if_empty(name);
        Some(old)
    }

    fn count_images(&mut self, old: Option<&Node>, new: Option<&Node>) {
        if old.map(|node| &node.images) == new.map(|node| &node.images) {
            return;
        }
        let images = Arc::make_mut(&mut self.images);
        for (name, _) in new.into_iter().flat_map(|node| &node.images) {
            let count = images.entry(name.clone()).or_default();
            *count += 1;
        }
        for (name, _) in old.into_iter().flat_map(|node| &node.images) {
            if let Some(count) = images.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    images.remove(name);
                }
            }
        }
    }

    /// Adds or updates a pod that is bound; returns what it was. A pod that was assumed is confirmed,
    /// and moved if it was assumed on another node.
    pub fn set_pod(&mut self, pod: Arc<Pod>) -> Option<Arc<Pod>> {
        let node = pod.node.clone()?;
        let old = self.take(&pod.uid);
        self.put(pod, node, None);
        old
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<Pod>> {
        self.take(uid)
    }

    /// Counts a pod as bound to a node, before the API shows it.
    pub fn assume(&mut self, pod: Arc<Pod>, node: &Atom) -> Result<(), CacheError> {
        if self.pods.contains_key(&pod.uid) {
            return Err(CacheError::IsKnown(pod.key()));
        }
        self.put(pod, node.clone(), Some(Assumed::Binding));
        Ok(())
    }

    /// The API took the binding: it is expected to show it.
    pub fn finish_binding(&mut self, uid: &str, now: Duration) {
        if let Some(own) = self.pods.get_mut(uid)
            && own.assumed.is_some()
        {
            own.assumed = Some(Assumed::Bound(now));
        }
    }

    /// Gives up an assumed pod.
    pub fn forget(&mut self, pod: &Pod) -> Result<(), CacheError> {
        if !self.is_assumed(&pod.uid) {
            return Err(CacheError::IsNotAssumed(pod.key()));
        }
        self.take(&pod.uid);
        Ok(())
    }

    /// Gives up pods that were bound too long ago; returns them.
    pub fn expire(&mut self, now: Duration) -> Vec<Arc<Pod>> {
        let Some(ttl) = self.ttl else { return Vec::new() };
        let is_expired = |own: &CachedPod| match own.assumed {
            Some(Assumed::Bound(at)) => now.saturating_sub(at) > ttl,
            _ => false,
        };
        let expired: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, own)| is_expired(own))
            .map(|(uid, _)| uid.clone())
            .collect();
        expired.iter().filter_map(|uid| self.take(uid)).collect()
    }

    fn put(&mut self, pod: Arc<Pod>, node: Atom, assumed: Option<Assumed>) {
        self.assumed += usize::from(assumed.is_some());
        self.change(&node, |info| info.add(pod.clone()));
        self.pods.insert(pod.uid.clone(), CachedPod { pod, node, assumed });
    }

    fn take(&mut self, uid: &str) -> Option<Arc<Pod>> {
        let own = self.pods.remove(uid)?;
        self.assumed -= usize::from(own.assumed.is_some());
        self.change(&own.node, |info| {
            info.remove(uid);
        });
        self.drop_if_empty(&own.node);
        Some(own.pod)
    }

    fn change(&mut self, name: &Atom, change: impl FnOnce(&mut NodeInfo)) {
        let info = self
            .nodes
            .entry(name.clone())
            .or_insert_with(|| Arc::new(NodeInfo::new(name.clone(), None)));
        let info = Arc::make_mut(info);
        change(info);
        self.generation = self.generation.saturating_add(1);
        info.generation = self.generation;
        self.changed.insert(name.clone());
    }

    fn drop_if_empty(&mut self, name: &Atom) {
        if self.nodes.get(name).is_some_and(|info| info.node.is_none() && info.pods.is_empty()) {
            self.nodes.remove(name);
        }
    }

    /// Brings a snapshot up to date.
    pub fn update(&mut self, snapshot: &mut Snapshot) {
        let affinity_changed = if self.is_reordered {
            snapshot.order(self.ordered());
            true
        } else {
            let mut changed = false;
            for name in &self.changed {
                if let Some(info) = self.nodes.get(name) {
                    changed |= snapshot.replace(info);
                }
            }
            changed
        };
        if affinity_changed {
            snapshot.index_affinity();
        }
        self.changed.clear();
        self.is_reordered = false;
        if !Arc::ptr_eq(&snapshot.images, &self.images) {
            snapshot.images = self.images.clone();
        }
        snapshot.generation = self.generation;
    }

    /// Nodes one of each zone in turn, so that the first ones of a search are of all zones.
    fn ordered(&self) -> Vec<Arc<NodeInfo>> {
        let mut zones: BTreeMap<(&str, &str), Vec<&Arc<NodeInfo>>> = BTreeMap::new();
        for info in self.nodes.values() {
            let Some(node) = &info.node else { continue };
            let zone = node.zone.as_ref().map_or(("", ""), |(region, zone)| (region, zone));
            zones.entry(zone).or_default().push(info);
        }
        for nodes in zones.values_mut() {
            nodes.sort_by(|a, b| a.name.as_str().cmp(&b.name));
        }
        let longest = zones.values().map(Vec::len).max().unwrap_or(0);
        (0..longest)
            .flat_map(|index| zones.values().filter_map(move |nodes| nodes.get(index)))
            .map(|info| Arc::clone(info))
            .collect()
    }
}

/// The nodes as one scheduling cycle sees them.
#[derive(Debug, Default)]
pub struct Snapshot {
    nodes: Vec<Arc<NodeInfo>>,
    index: HashMap<Atom, usize>,
    with_affinity: Vec<usize>,
    with_anti_affinity: Vec<usize>,
    images: Arc<HashMap<Atom, usize>>,
    /// That of the cache when it was made.
    pub generation: u64,
}

impl Snapshot {
    /// All nodes, zones in turn.
    pub fn nodes(&self) -> &[Arc<NodeInfo>] {
        &self.nodes
    }

    /// A node by name.
    pub fn node(&self, name: &Atom) -> Option<&Arc<NodeInfo>> {
        self.nodes.get(*self.index.get(name)?)
    }

    /// The place of a node among all.
    pub fn position(&self, name: &Atom) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// Nodes on which a pod has affinity or anti-affinity to pods.
    pub fn with_affinity(&self) -> impl Iterator<Item = &Arc<NodeInfo>> {
        self.with_affinity.iter().filter_map(|index| self.nodes.get(*index))
    }

    /// Nodes on which a pod has required anti-affinity.
    pub fn with_anti_affinity(&self) -> impl Iterator<Item = &Arc<NodeInfo>> {
        self.with_anti_affinity.iter().filter_map(|index| self.nodes.get(*index))
    }

    /// The number of nodes that have an image.
    pub fn nodes_with_image(&self, image: &Atom) -> usize {
        self.images.get(image).copied().unwrap_or(0)
    }

    fn order(&mut self, nodes: Vec<Arc<NodeInfo>>) {
        self.index =
            nodes.iter().enumerate().map(|(index, info)| (info.name.clone(), index)).collect();
        self.nodes = nodes;
    }

    /// Replaces a node; whether its place among those with affinity may have changed.
    fn replace(&mut self, info: &Arc<NodeInfo>) -> bool {
        let Some(own) = self.index.get(&info.name).and_then(|index| self.nodes.get_mut(*index))
        else {
            return false;
        };
        if own.generation == info.generation {
            return false;
        }
        let any = |info: &NodeInfo| (info.with_affinity > 0, info.with_anti_affinity > 0);
        let changed = any(own) != any(info);
        *own = info.clone();
        changed
    }

    fn index_affinity(&mut self) {
        let indexes = |wanted: fn(&NodeInfo) -> usize| {
            let all = self.nodes.iter().enumerate();
            all.filter(|(_, info)| wanted(info) > 0).map(|(index, _)| index).collect()
        };
        self.with_affinity = indexes(|info| info.with_affinity);
        self.with_anti_affinity = indexes(|info| info.with_anti_affinity);
    }
}

#[cfg(test)]
mod tests;
