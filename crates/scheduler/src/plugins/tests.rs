//! Filters and scores by tables, and their properties.
#![allow(clippy::unwrap_used)]

mod filters;
mod scores;
mod storage;

use std::sync::Arc;

use serde_json::Value;

use crate::cache::{Cache, Snapshot};
use crate::framework::{Cycle, Filters, NodeScore, Plugin, Profile, Status};
use crate::model::{Atom, Node, NodeInfo, Objects, Pod};
use crate::plugins::Registry;
use crate::queue::Nominated;

/// Nodes with pods on them, and everything else.
#[derive(Default)]
pub(super) struct Cluster {
    pub(super) snapshot: Snapshot,
    pub(super) objects: Objects,
    pub(super) nominated: Nominated,
}

impl Cluster {
    pub(super) fn new(nodes: &[Arc<Node>], pods: &[Arc<Pod>]) -> Self {
        let mut cache = Cache::new(None);
        for node in nodes {
            cache.set_node(node.clone());
        }
        for pod in pods {
            cache.set_pod(pod.clone());
        }
        let mut own = Self::default();
        cache.update(&mut own.snapshot);
        own
    }

    pub(super) fn cycle<'a>(&'a self, pod: &'a Pod) -> Cycle<'a> {
        Cycle {
            pod,
            snapshot: &self.snapshot,
            objects: &self.objects,
            nominated: &self.nominated,
            recorder: Default::default(),
        }
    }

    /// What the filters of a profile say of a node; empty if it fits.
    pub(super) fn reasons(&self, profile: &Profile, pod: &Pod, node: &str) -> String {
        self.check(profile, pod, node).err().map(|status| status.message()).unwrap_or_default()
    }

    pub(super) fn check(&self, profile: &Profile, pod: &Pod, node: &str) -> Result<(), Status> {
        let cycle = self.cycle(pod);
        let mut filters = Filters::prepare(profile, cycle)?;
        filters.check(cycle, self.snapshot.node(&Atom::new(node)).unwrap())
    }

    /// Scores of one plugin, by nodes in the order of their names.
    pub(super) fn scores(&self, name: &str, args: Value, pod: &Pod) -> Vec<i64> {
        let plugin = Registry::default().make(name, &args).unwrap().unwrap();
        let mut infos: Vec<&NodeInfo> = self.snapshot.nodes().iter().map(|info| &**info).collect();
        infos.sort_by_key(|info| info.name.to_string());
        score(&*plugin, self.cycle(pod), &infos)
    }
}

fn score<'a>(plugin: &'a dyn Plugin, cycle: Cycle<'a>, infos: &[&'a NodeInfo]) -> Vec<i64> {
    let Some(own) = plugin.pre_score(cycle, infos) else { return vec![0; infos.len()] };
    let own: Box<dyn NodeScore + 'a> = own;
    let mut scores: Vec<i64> = infos.iter().map(|info| own.score(info)).collect();
    own.normalize(&mut scores);
    scores
}
