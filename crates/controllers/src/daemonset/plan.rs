//! Which pods of a DaemonSet are created and deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;

use super::counted;
use super::nodes::{Fit, fit, hash_of, is_updated};
use crate::workload::{
    Rounding, count, is_available, is_finished, is_ready, name_of, scaled, size,
};

/// Pods by the name of their node.
type ByNode = BTreeMap<String, Vec<Arc<Pod>>>;

/// What is to be done.
#[derive(Clone, Debug, Default)]
pub(super) struct Actions {
    /// The nodes that get a pod.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Those that have ended where they should run; failed ones are deleted after a pause.
    pub(super) ended: Vec<Arc<Pod>>,
}

impl Actions {
    pub(super) fn is_empty(&self) -> bool {
        self.create.is_empty() && self.delete.is_empty() && self.ended.is_empty()
    }
}

fn min_ready(set: &DaemonSet) -> isize {
    count(set.spec.as_ref().and_then(|spec| spec.min_ready_seconds))
}

/// How many pods there may be above one for each node, and how many may be unavailable.
fn limits(set: &DaemonSet, desired: isize) -> (isize, isize) {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    if strategy.and_then(|it| it.type_.as_deref()).is_some_and(|it| it != "RollingUpdate") {
        return (0, 0);
    }
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let part = |value| scaled(value, desired, Rounding::Up).unwrap_or_default().max(0);
    let surge = part(rolling.and_then(|rolling| rolling.max_surge.as_ref()));
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let unavailable = match unavailable {
        Some(unavailable) => part(Some(unavailable)),
        None if surge == 0 => 1,
        None => 0,
    };
    // with neither, no update would ever begin
    (surge, if surge == 0 { unavailable.max(1) } else { unavailable })
}

fn is_rolling(set: &DaemonSet) -> bool {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|it| it.type_.as_deref()).is_none_or(|it| it == "RollingUpdate")
}

/// Brings one pod to each node that should have one.
pub(super) fn manage(
    set: &DaemonSet,
    nodes: &[Arc<Node>],
    by_node: &ByNode,
    hash: &str,
    now: Timestamp,
) -> Actions {
    let mut actions = Actions::default();
    let allows_surge = limits(set, 1).0 > 0;
    for node in nodes {
        let name = name_of(&**node);
        let pods = by_node.get(name).map(Vec::as_slice).unwrap_or_default();
        let is_alive = |pod: &&Arc<Pod>| pod.metadata.deletion_timestamp.is_none();
        match fit(set, node) {
            Fit::Run if pods.is_empty() => actions.create.push(name.to_owned()),
            Fit::No => actions.delete.extend(pods.iter().filter(is_alive).cloned()),
            fit => {
                let alive = pods.iter().filter(is_alive).cloned();
                let (ended, running): (Vec<_>, Vec<_>) = alive.partition(|pod| is_finished(pod));
                actions.ended.extend(ended);
                match (allows_surge, running.as_slice()) {
                    (true, []) if fit == Fit::Run => actions.create.push(name.to_owned()),
                    (_, [] | [_]) => {}
                    (false, [_, rest @ ..]) => actions.delete.extend(rest.iter().cloned()),
                    (true, running) => actions.delete.extend(superfluous(set, running, hash, now)),
                }
            }
        }
    }
    // bound to nodes that are gone
    let known = |name: &str| nodes.iter().any(|node| name_of(&**node) == name);
    let lost = by_node.iter().filter(|(name, _)| !known(name)).flat_map(|(_, pods)| pods);
    actions.delete.extend(lost.filter(|pod| crate::pods::node_of(pod).is_empty()).cloned());
    actions
}

/// Of several pods of a node, those that are too many: one of each template stays, and the old one
/// goes when it is not ready, or the new one is available.
fn superfluous(set: &DaemonSet, running: &[Arc<Pod>], hash: &str, now: Timestamp) -> Vec<Arc<Pod>> {
    let (new, old): (Vec<_>, Vec<_>) = running.iter().partition(|pod| hash_of(pod) == hash);
    let mut doomed: Vec<_> =
        new.iter().skip(1).chain(old.iter().skip(1)).map(|pod| (*pod).clone()).collect();
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && (!is_ready(old) || is_available(new, min_ready(set), now))
    {
        doomed.push((*old).clone());
    }
    doomed
}

/// The pods of a node of the current and of an older template.
type NewAndOld<'a> = (Option<&'a Arc<Pod>>, Option<&'a Arc<Pod>>);

/// The pods of a node by template: the new and the old one; nothing if there are several of one.
fn by_template<'a>(set: &DaemonSet, pods: &'a [Arc<Pod>], hash: &str) -> Option<NewAndOld<'a>> {
    let alive = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let (new, old): (Vec<_>, Vec<_>) = alive.partition(|pod| is_updated(set, pod, hash));
    (new.len() <= 1 && old.len() <= 1).then(|| (new.first().copied(), old.first().copied()))
}

/// Replaces pods of older templates.
pub(super) fn roll(
    set: &DaemonSet,
    nodes: &[Arc<Node>],
    by_node: &ByNode,
    hash: &str,
    now: Timestamp,
) -> Actions {
    if !is_rolling(set) {
        return Actions::default();
    }
    let desired = nodes.iter().filter(|node| fit(set, node) == Fit::Run).count();
    let desired = isize::try_from(desired).unwrap_or(isize::MAX);
    let (surge, unavailable) = limits(set, desired);
    let available = |pod: &Arc<Pod>| is_available(pod, min_ready(set), now);
    let mut actions = Actions::default();
    let mut candidates = Vec::new();
    if surge == 0 {
        let mut missing = 0_isize;
        for pods in by_node.values() {
            match by_template(set, pods, hash) {
                Some((None, Some(old))) if available(old) => candidates.push(old.clone()),
                Some((None, Some(old))) => {
                    missing += 1;
                    actions.delete.push(old.clone());
                }
                Some((Some(new), None)) if available(new) => {}
                _ => missing += 1,
            }
        }
        candidates.truncate(size(unavailable - missing));
        actions.delete.extend(candidates);
        return actions;
    }
    let runs = |name: &str| {
        let node = nodes.iter().find(|node| name_of(&***node) == name);
        node.is_some_and(|node| fit(set, node) == Fit::Run)
    };
    let (mut surging, mut serving) = (0_isize, 0_isize);
    let (mut new_nodes, mut leaving) = (Vec::new(), Vec::new());
    for (name, pods) in by_node {
        let Some((new, old)) = by_template(set, pods, hash) else {
            surging += 1;
            continue;
        };
        serving += isize::from(old.or(new).is_some_and(available));
        match (new, old) {
            (_, None) => {}
            (None, Some(old)) if !runs(name) && !available(old) => actions.delete.push(old.clone()),
            (None, Some(old)) if !runs(name) => leaving.push(old.clone()),
            (None, Some(old)) if !available(old) => actions.create.push(name.clone()),
            (None, Some(_)) => new_nodes.push(name.clone()),
            (Some(new), Some(_)) if !available(new) => surging += 1,
            (Some(_), Some(old)) => actions.delete.push(old.clone()),
        }
    }
    leaving.truncate(size(serving - desired));
    actions.delete.extend(leaving);
    new_nodes.truncate(size(surge - surging));
    actions.create.extend(new_nodes);
    actions
}

/// The status.
pub(super) fn status(
    set: &DaemonSet,
    nodes: &[Arc<Node>],
    by_node: &ByNode,
    hash: &str,
    now: Timestamp,
    observed: bool,
) -> DaemonSetStatus {
    let known = set.status.clone().unwrap_or_default();
    let (mut desired, mut current, mut misplaced) = (0, 0, 0);
    let (mut ready, mut updated, mut available) = (0, 0, 0);
    for node in nodes {
        let pods = by_node.get(name_of(&**node)).map(Vec::as_slice).unwrap_or_default();
        if fit(set, node) != Fit::Run {
            misplaced += usize::from(!pods.is_empty());
            continue;
        }
        desired += 1;
        let Some(pod) = pods.first() else { continue };
        current += 1;
        ready += usize::from(is_ready(pod));
        available += usize::from(is_available(pod, min_ready(set), now));
        updated += usize::from(is_updated(set, pod, hash));
    }
    // the API leaves these out when they are 0
    let optional = |count: usize| (count != 0).then(|| counted(count));
    DaemonSetStatus {
        desired_number_scheduled: counted(desired),
        current_number_scheduled: counted(current),
        number_misscheduled: counted(misplaced),
        number_ready: counted(ready),
        updated_number_scheduled: optional(updated),
        number_available: optional(available),
        number_unavailable: optional(desired - available),
        observed_generation: if observed {
            set.metadata.generation
        } else {
            known.observed_generation
        },
        collision_count: known.collision_count,
        conditions: known.conditions,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::workload::uid_of;

    fn set(surge: Value, unavailable: Value) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {"name": "d", "uid": "d", "generation": 2},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"containers": [], "nodeSelector": {"disk": "ssd"}}},
                "updateStrategy": {"type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
            },
        }))
        .unwrap()
    }

    fn node(name: &str, taint: Option<(&str, &str)>) -> Arc<Node> {
        let taints = taint.map(|(key, effect)| json!([{"key": key, "effect": effect}]));
        let node = json!({"metadata": {"name": name, "labels": {"disk": "ssd"}}, "spec": {"taints": taints}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn pod(node: &str, hash: &str, ready: bool) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": format!("{node}-{hash}"), "uid": format!("{node}-{hash}"),
                    "labels": {"controller-revision-hash": hash}},
                "spec": {"containers": [], "nodeName": node},
                "status": {"phase": "Running", "conditions": [
                    {"type": "Ready", "status": if ready { "True" } else { "False" },
                     "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            }))
            .unwrap(),
        )
    }

    #[test]
    fn daemonset_fits_nodes_by_labels_and_taints() {
        let of = set(json!(0), json!(1));
        for (taint, expected) in [
            (None, Fit::Run),
            (Some(("node.kubernetes.io/unschedulable", "NoSchedule")), Fit::Run),
            (Some(("node.kubernetes.io/not-ready", "NoExecute")), Fit::Run),
            (Some(("other", "NoSchedule")), Fit::Stay),
            (Some(("other", "PreferNoSchedule")), Fit::Run),
            (Some(("other", "NoExecute")), Fit::No),
            (Some(("node.kubernetes.io/network-unavailable", "NoSchedule")), Fit::Stay),
        ] {
            assert_eq!(fit(&of, &node("n", taint)), expected, "{taint:?}");
        }
        let other = Node { metadata: Default::default(), ..Node::default() };
        assert_eq!(fit(&of, &other), Fit::No, "the selector does not match");
    }

    #[test]
    fn daemonset_places_one_pod_on_each_node() {
        let of = set(json!(0), json!(1));
        let nodes = [node("a", None), node("b", None), node("c", Some(("x", "NoExecute")))];
        let now = Timestamp::now();
        let pods = super::super::nodes::by_node(&[
            pod("b", "1", true),
            pod("b", "2", true),
            pod("c", "1", true),
        ]);
        let actions = manage(&of, &nodes, &pods, "1", now);
        assert_eq!(actions.create, ["a"]);
        let deleted: Vec<_> = actions.delete.iter().map(|pod| name_of(&**pod).to_owned()).collect();
        assert_eq!(deleted, ["b-2", "c-1"]);
        let status = status(&of, &nodes, &pods, "1", now, true);
        assert_eq!((status.desired_number_scheduled, status.current_number_scheduled), (2, 1));
        assert_eq!((status.number_misscheduled, status.number_ready), (1, 1));
    }

    #[test]
    fn daemonset_pods_that_ended_wait_only_where_they_should_run() {
        let ended = |node: &str| {
            let mut ended = Pod::clone(&pod(node, "1", false));
            ended.status.as_mut().unwrap().phase = Some("Failed".to_owned());
            Arc::new(ended)
        };
        let of = set(json!(0), json!(1));
        let nodes = [node("a", None), node("b", Some(("x", "NoExecute")))];
        let pods = super::super::nodes::by_node(&[ended("a"), ended("b")]);
        let actions = manage(&of, &nodes, &pods, "1", Timestamp::now());
        let names = |pods: &[Arc<Pod>]| -> Vec<String> {
            pods.iter().map(|pod| name_of(&**pod).to_owned()).collect()
        };
        assert_eq!(names(&actions.ended), ["a-1"]);
        assert_eq!(names(&actions.delete), ["b-1"]);
    }

    proptest! {
        /// An update ends, and keeps its limits on the way.
        #[test]
        fn daemonset_update_keeps_its_limits_and_ends(
            count in 1_usize..8, surge in 0_isize..4, unavailable in 1_isize..4,
            order in prop::collection::vec(any::<prop::sample::Index>(), 100),
        ) {
            let of = set(json!(surge), json!(if surge > 0 { 0 } else { unavailable }));
            let names: Vec<String> = (0..count).map(|index| format!("n{index}")).collect();
            let nodes: Vec<_> = names.iter().map(|name| node(name, None)).collect();
            let now = Timestamp::now();
            let mut pods: Vec<Arc<Pod>> = names.iter().map(|name| pod(name, "old", true)).collect();
            let mut order = order.into_iter();
            for round in 0.. {
                prop_assert!(round < 90, "{pods:?}");
                let by_node = super::super::nodes::by_node(&pods);
                let mut actions = manage(&of, &nodes, &by_node, "new", now);
                if actions.is_empty() {
                    actions = roll(&of, &nodes, &by_node, "new", now);
                }
                let unready: Vec<usize> = (0..pods.len()).filter(|index| !is_ready(&pods[*index])).collect();
                if actions.is_empty() && unready.is_empty() {
                    break;
                }
                if actions.is_empty() {
                    let index = unready[order.next().unwrap().index(unready.len())];
                    let name = crate::pods::node_of(&pods[index]).to_owned();
                    pods[index] = pod(&name, hash_of(&pods[index].clone()), true);
                }
                pods.retain(|pod| !actions.delete.iter().any(|one| uid_of(&**one) == uid_of(&**pod)));
                pods.extend(actions.create.iter().map(|name| pod(name, "new", false)));
                let ready = names.iter().filter(|name| pods.iter().any(|pod| crate::pods::node_of(pod) == **name && is_ready(pod))).count();
                let missing = count - ready;
                let limit = if surge > 0 { 0 } else { usize::try_from(unavailable).unwrap() };
                prop_assert!(missing <= limit, "{missing} {limit}");
                prop_assert!(pods.len() <= count + usize::try_from(surge).unwrap());
            }
            prop_assert_eq!(pods.len(), count);
            prop_assert!(pods.iter().all(|pod| hash_of(pod) == "new"));
        }
    }
}
