//! A node as the scheduler needs it, and what runs on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node as ApiNode, Taint as ApiTaint};
use longshore_gates::DeclaredFeatures;
use serde_json::Value;

use super::pod::normalized;
use super::{Atom, ClaimKey, HostPort, Labels, Pod, Resources};

/// The annotation by which a node asks that pods of controllers avoid it.
const PREFER_AVOID_PODS: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

/// The effect of a taint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaintEffect {
    /// Keeps pods from being scheduled.
    NoSchedule,
    /// Makes it less preferred.
    PreferNoSchedule,
    /// Keeps pods from being scheduled, and evicts those that run.
    NoExecute,
    /// Not known here.
    Other,
}

impl TaintEffect {
    /// By the API's word.
    pub fn new(word: &str) -> Self {
        match word {
            "NoSchedule" => Self::NoSchedule,
            "PreferNoSchedule" => Self::PreferNoSchedule,
            "NoExecute" => Self::NoExecute,
            _ => Self::Other,
        }
    }

    /// Whether pods that do not tolerate it are kept from the node.
    pub fn repels(self) -> bool {
        matches!(self, Self::NoSchedule | Self::NoExecute)
    }
}

/// A taint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: Atom,
    /// Its value.
    pub value: Atom,
    /// Its effect.
    pub effect: TaintEffect,
}

impl Taint {
    fn new(api: &ApiTaint) -> Self {
        Self {
            key: Atom::new(&api.key),
            value: Atom::new(api.value.as_deref().unwrap_or_default()),
            effect: TaintEffect::new(&api.effect),
        }
    }

    /// The taint that `spec.unschedulable` stands for.
    pub fn unschedulable() -> Self {
        Self {
            key: Atom::new("node.kubernetes.io/unschedulable"),
            value: Atom::new(""),
            effect: TaintEffect::NoSchedule,
        }
    }
}

/// A node. Immutable: an update makes another.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: Atom,
    /// Its labels.
    pub labels: Labels,
    /// Its taints.
    pub taints: Box<[Taint]>,
    /// Whether it takes no new pods.
    pub is_unschedulable: bool,
    /// What it can give to pods.
    pub allocatable: Resources,
    /// Images on it, by name, with sizes in bytes.
    pub images: Box<[(Atom, i64)]>,
    /// Controllers, by kind and UID, whose pods are to avoid it.
    pub avoided: Box<[(Atom, Atom)]>,
    /// Types and statuses of its conditions.
    pub conditions: BTreeMap<String, String>,
    /// Features that it declares.
    pub declared_features: DeclaredFeatures,
    /// Region and zone.
    pub zone: Option<(Atom, Atom)>,
}

impl Node {
    /// From the API's object.
    pub fn new(api: &ApiNode) -> Self {
        let spec = api.spec.as_ref();
        let status = api.status.as_ref();
        let labels = Labels::new(api.metadata.labels.as_ref());
        let images = status.and_then(|status| status.images.as_ref()).into_iter().flatten();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        Self {
            name: Atom::new(api.metadata.name.as_deref().unwrap_or_default()),
            taints: spec
                .and_then(|spec| spec.taints.as_ref())
                .into_iter()
                .flatten()
                .map(Taint::new)
                .collect(),
            is_unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
            allocatable: Resources::new(status.and_then(|status| status.allocatable.as_ref())),
            images: images
                .flat_map(|image| {
                    let size = image.size_bytes.unwrap_or_default();
                    image.names.iter().flatten().map(move |name| (normalized(name), size))
                })
                .collect(),
            avoided: api
                .metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(PREFER_AVOID_PODS))
                .map(|text| avoided(text))
                .unwrap_or_default(),
            conditions: conditions
                .into_iter()
                .flatten()
                .map(|one| (one.type_.clone(), one.status.clone()))
                .collect(),
            declared_features: DeclaredFeatures::from_names(
                status
                    .and_then(|status| status.declared_features.as_ref())
                    .into_iter()
                    .flatten()
                    .map(String::as_str),
            ),
            zone: zone(&labels),
            labels,
        }
    }
}

fn zone(labels: &Labels) -> Option<(Atom, Atom)> {
    let of = |names: [&str; 2]| names.iter().find_map(|name| labels.get(&Atom::new(name)).cloned());
    let zone = of(["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"]);
    let region = of(["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"]);
    if zone.is_none() && region.is_none() {
        return None;
    }
    let empty = || Atom::new("");
    Some((region.unwrap_or_else(empty), zone.unwrap_or_else(empty)))
}

fn avoided(text: &str) -> Box<[(Atom, Atom)]> {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return Box::default() };
    let all = value["preferAvoidPods"].as_array();
    all.into_iter()
        .flatten()
        .filter_map(|one| {
            let controller = &one["podSignature"]["podController"];
            Some((controller["kind"].as_str()?.into(), controller["uid"].as_str()?.into()))
        })
        .collect()
}

/// A node with what runs on it.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    /// The name of the node.
    pub name: Atom,
    /// The node; absent while only its pods are known.
    pub node: Option<Arc<Node>>,
    /// Pods that are bound to it or assumed to be.
    pub pods: Vec<Arc<Pod>>,
    /// Number of those with affinity or anti-affinity to pods.
    pub with_affinity: usize,
    /// Number of those with required anti-affinity.
    pub with_anti_affinity: usize,
    /// The sum of their requests.
    pub requested: Resources,
    /// The sum of their requests for scores.
    pub score_requested: Resources,
    /// Ports that they take.
    pub ports: Vec<HostPort>,
    /// Changes with every change; unique in a cache.
    pub generation: u64,
}

impl NodeInfo {
    /// A node without pods.
    pub fn new(name: Atom, node: Option<Arc<Node>>) -> Self {
        Self {
            name,
            node,
            pods: Vec::new(),
            with_affinity: 0,
            with_anti_affinity: 0,
            requested: Resources::default(),
            score_requested: Resources::default(),
            ports: Vec::new(),
            generation: 0,
        }
    }

    /// Adds a pod.
    pub fn add(&mut self, pod: Arc<Pod>) {
        self.requested.add(&pod.requests);
        self.score_requested.add(&pod.score_requests);
        self.with_affinity += usize::from(pod.has_affinity());
        self.with_anti_affinity += usize::from(!pod.anti_affinity.required.is_empty());
        self.ports.extend(pod.host_ports.iter().cloned());
        self.pods.push(pod);
    }

    /// Removes a pod; `None` if it is not there.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<Pod>> {
        let index = self.pods.iter().position(|pod| *pod.uid == *uid)?;
        let pod = self.pods.swap_remove(index);
        self.requested.subtract(&pod.requests);
        self.score_requested.subtract(&pod.score_requests);
        self.with_affinity -= usize::from(pod.has_affinity());
        self.with_anti_affinity -= usize::from(!pod.anti_affinity.required.is_empty());
        for port in &pod.host_ports {
            if let Some(index) = self.ports.iter().position(|own| own == port) {
                self.ports.swap_remove(index);
            }
        }
        Some(pod)
    }

    /// Its labels; none while the node is unknown.
    pub fn label(&self, key: &Atom) -> Option<&Atom> {
        self.node.as_ref()?.labels.get(key)
    }

    /// Whether a pod on it uses a claim.
    pub fn uses(&self, claim: &ClaimKey) -> bool {
        self.pods.iter().any(|pod| pod.claims().any(|own| own == claim))
    }
}
