//! On which nodes pods of a DaemonSet run.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodSpec, PodTemplateSpec, Taint, Toleration,
};
use longshore_pod::admission::selects_node;

use super::HASH_LABEL;
use crate::nodelifecycle::taints::tolerates;
use crate::workload::name_of;

/// The field that binds a pod to its node.
const NAME_FIELD: &str = "metadata.name";
/// The label of older programs with the number of the template.
const GENERATION_LABEL: &str = "pod-template-generation";
const GENERATION: &str = "deprecated.daemonset.template.generation";

/// Whether a pod should run on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// A pod is created and stays.
    Run,
    /// None is created, but one that is there stays.
    Stay,
    /// None may be there.
    No,
}

/// Whether a pod of the set should run on the node.
pub(super) fn fit(set: &DaemonSet, node: &Node) -> Fit {
    static EMPTY: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);
    let spec = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).unwrap_or(&EMPTY);
    let name = name_of(node);
    if spec.node_name.as_ref().is_some_and(|wanted| !wanted.is_empty() && wanted != name) {
        return Fit::No;
    }
    let no_labels = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
    let mut selector = spec.node_selector.iter().flatten();
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    if !selector.all(|(key, value)| labels.get(key) == Some(value))
        || required.is_some_and(|required| !selects_node(required, name, labels))
    {
        return Fit::No;
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let refuses = |effect: &str| {
        let is_tolerated = |taint: &Taint| {
            is_always_tolerated(spec, taint)
                || spec.tolerations.iter().flatten().any(|it| tolerates(it, taint))
        };
        taints.iter().any(|taint| taint.effect == effect && !is_tolerated(taint))
    };
    match (refuses("NoExecute"), refuses("NoSchedule")) {
        (true, _) => Fit::No,
        (false, true) => Fit::Stay,
        (false, false) => Fit::Run,
    }
}

/// The taints that pods of daemons tolerate: they stay on nodes with problems that others leave.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// One more that those in the host's network tolerate.
const TOLERATED_IN_HOST_NETWORK: (&str, &str) =
    ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// Keys and effects of the taints that all pods of the daemon tolerate.
fn tolerated(spec: &PodSpec) -> impl Iterator<Item = (&'static str, &'static str)> {
    let more = (spec.host_network == Some(true)).then_some(TOLERATED_IN_HOST_NETWORK);
    TOLERATED.into_iter().chain(more)
}

fn is_always_tolerated(spec: &PodSpec, taint: &Taint) -> bool {
    tolerated(spec).any(|(key, effect)| taint.key == key && taint.effect == effect)
}

fn add_tolerations(spec: &mut PodSpec) {
    let added: Vec<_> = tolerated(spec).collect();
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in added {
        let new = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        let is_same = |it: &&mut Toleration| {
            (&it.key, &it.effect, &it.operator, &it.value)
                == (&new.key, &new.effect, &new.operator, &new.value)
        };
        match tolerations.iter_mut().find(is_same) {
            Some(known) => *known = new,
            None => tolerations.push(new),
        }
    }
}

/// The template of the set's pods, with its hash.
pub(super) fn template(set: &DaemonSet, template: &PodTemplateSpec, hash: &str) -> PodTemplateSpec {
    let mut template = template.clone();
    add_tolerations(template.spec.get_or_insert_default());
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
    if let Some(generation) = generation(set) {
        labels.insert(GENERATION_LABEL.to_owned(), generation.to_string());
    }
    template
}

fn generation(set: &DaemonSet) -> Option<i64> {
    set.metadata.annotations.as_ref()?.get(GENERATION)?.parse().ok()
}

/// The hash of the template that a pod was made from.
pub(super) fn hash_of(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(HASH_LABEL)).map_or("", String::as_str)
}

/// Whether a pod was made from the current template.
pub(super) fn is_updated(set: &DaemonSet, pod: &Pod, hash: &str) -> bool {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(GENERATION_LABEL));
    let is_same = generation(set).is_some_and(|own| label.is_some_and(|it| *it == own.to_string()));
    is_same || (!hash.is_empty() && hash_of(pod) == hash)
}

/// The pod, bound to a node by its affinity, so that the scheduler places it there.
pub(super) fn bound_to(mut pod: Pod, node: &str) -> Pod {
    let term = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: NAME_FIELD.to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]),
        match_expressions: None,
    };
    let spec = pod.spec.get_or_insert_default();
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
    pod
}

/// The node that a pod runs on, or is bound to.
pub(super) fn target(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        return Some(node);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let mut fields =
        required.node_selector_terms.iter().flat_map(|it| it.match_fields.iter().flatten());
    let name = fields.find(|field| field.key == NAME_FIELD && field.operator == "In")?;
    match name.values.as_deref()? {
        [node] => Some(node),
        _ => None,
    }
}

/// The pods by node, without those that have ended and are being deleted. The oldest is first.
pub(super) fn by_node(pods: &[Arc<Pod>]) -> BTreeMap<String, Vec<Arc<Pod>>> {
    let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in pods {
        let is_gone =
            pod.metadata.deletion_timestamp.is_some() && crate::workload::is_finished(pod);
        if let Some(node) = target(pod).filter(|_| !is_gone) {
            by_node.entry(node.to_owned()).or_default().push(pod.clone());
        }
    }
    for pods in by_node.values_mut() {
        pods.sort_by_cached_key(|pod| {
            let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (crate::pods::node_of(pod).is_empty(), created, pod.metadata.name.clone())
        });
    }
    by_node
}
