//! What is to be done with the pods of a StatefulSet.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{
    RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetStatus,
};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::jiff::Timestamp;

use super::pods::{self, identify, ordinal, range};
use crate::workload::{
    Rounding, count, is_available, is_finished, is_ready, name_of, number, phase, scaled,
};

/// One thing to do.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Creates a pod, and before it its claims.
    Create(Box<Pod>),
    /// Deletes a pod that has ended or is too many.
    Delete(Arc<Pod>),
    /// Deletes a pod, so that one of the new revision takes its place.
    Replace(Arc<Pod>),
    /// Writes the identity of a pod, and its claims.
    Update(Box<Pod>),
    /// Creates claims that a pending pod lacks, and makes them belong to whom the policy says.
    Claims(Arc<Pod>),
    /// Makes claims belong to whom the policy says.
    OwnClaims(Arc<Pod>),
}

/// A set with its pods and revisions.
pub(super) struct View<'a> {
    pub(super) set: &'a StatefulSet,
    pub(super) pods: &'a [Arc<Pod>],
    /// The name and template of the revision that it comes from.
    pub(super) current: (&'a str, &'a PodTemplateSpec),
    /// The name and template of the revision that it goes to.
    pub(super) update: (&'a str, &'a PodTemplateSpec),
    pub(super) now: Timestamp,
}

/// Whether each pod waits for the one before it.
pub(super) fn is_ordered(set: &StatefulSet) -> bool {
    set.spec.as_ref().and_then(|spec| spec.pod_management_policy.as_deref()) != Some("Parallel")
}

fn rolling(set: &StatefulSet) -> Option<&RollingUpdateStatefulSetStrategy> {
    set.spec.as_ref()?.update_strategy.as_ref()?.rolling_update.as_ref()
}

fn is_rolling(set: &StatefulSet) -> bool {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|it| it.type_.as_deref()).is_none_or(|it| it == "RollingUpdate")
}

fn min_ready(set: &StatefulSet) -> isize {
    count(set.spec.as_ref().and_then(|spec| spec.min_ready_seconds))
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

impl View<'_> {
    fn serves(&self, pod: &Pod) -> bool {
        phase(pod) == "Running"
            && is_available(pod, min_ready(self.set), self.now)
            && !is_terminating(pod)
    }

    /// The new pod of an ordinal: of the revision that the update has got to.
    fn new_pod(&self, ordinal: isize) -> Pod {
        let start = range(self.set).start;
        let kept = match rolling(self.set) {
            Some(rolling) => count(rolling.partition),
            None => count(self.set.status.as_ref().and_then(|status| status.current_replicas)),
        };
        let is_kept = is_rolling(self.set) && ordinal < start.saturating_add(kept);
        let (revision, template) = if is_kept { self.current } else { self.update };
        pods::new(self.set, ordinal, revision, template)
    }

    fn has_claims(&self) -> bool {
        let templates =
            self.set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_ref());
        templates.is_some_and(|templates| !templates.is_empty())
    }
}

/// The most pods that one sync creates.
const MAX_CREATED: usize = 500;

/// What is to be done now. If the set is ordered, a step is the last that others have to wait for.
pub(super) fn steps(view: &View<'_>) -> Vec<Step> {
    let ordered = is_ordered(view.set);
    let wanted = range(view.set);
    let by_ordinal: BTreeMap<isize, &Arc<Pod>> = view
        .pods
        .iter()
        .filter_map(|pod| Some((ordinal(view.set, name_of(&**pod))?, pod)))
        .collect();
    let mut steps = Vec::new();
    let mut created = 0;
    for ordinal in wanted.clone() {
        let Some(pod) = by_ordinal.get(&ordinal) else {
            steps.push(Step::Create(Box::new(view.new_pod(ordinal))));
            created += 1;
            // the others follow with the next sync: a set may want 2^31 pods
            if ordered || created == MAX_CREATED {
                return steps;
            }
            continue;
        };
        if is_finished(pod) {
            if !is_terminating(pod) {
                steps.push(Step::Delete(Arc::clone(pod)));
            }
            if ordered {
                return steps;
            }
            continue;
        }
        if phase(pod) == "Pending" && view.has_claims() {
            steps.push(Step::Claims(Arc::clone(pod)));
        }
        if ordered && !view.serves(pod) {
            return steps;
        }
        let mut identified = Pod::clone(pod);
        if !is_terminating(pod) && identify(view.set, &mut identified, ordinal) {
            steps.push(Step::Update(Box::new(identified)));
        }
        if view.has_claims() {
            steps.push(Step::OwnClaims(Arc::clone(pod)));
        }
    }
    let condemned: Vec<_> =
        by_ordinal.iter().rev().filter(|(ordinal, _)| !wanted.contains(ordinal)).collect();
    if view.has_claims() {
        steps.extend(condemned.iter().map(|(_, pod)| Step::OwnClaims(Arc::clone(pod))));
    }
    let unhealthy = wanted
        .clone()
        .filter_map(|ordinal| by_ordinal.get(&ordinal))
        .chain(condemned.iter().rev().map(|(_, pod)| *pod))
        .find(|pod| !view.serves(pod));
    for (_, pod) in &condemned {
        if is_terminating(pod) {
            if ordered {
                return steps;
            }
            continue;
        }
        // an unhealthy one may be what the others wait for
        let is_first = unhealthy.is_some_and(|first| Arc::ptr_eq(first, pod));
        if ordered && !view.serves(pod) && !is_first {
            return steps;
        }
        steps.push(Step::Delete(Arc::clone(pod)));
        if ordered {
            return steps;
        }
    }
    steps.extend(replaced(view, &by_ordinal));
    steps
}

/// The pods that an update replaces now, from the highest ordinal down to the partition: with a limit
/// of unavailable ones, as many as that leaves; without, the next one whose successors all serve.
fn replaced(view: &View<'_>, by_ordinal: &BTreeMap<isize, &Arc<Pod>>) -> Vec<Step> {
    if !is_rolling(view.set) {
        return Vec::new();
    }
    let wanted = range(view.set);
    let total = wanted.end - wanted.start;
    let rolling = rolling(view.set);
    let first = wanted.start.saturating_add(count(rolling.and_then(|rolling| rolling.partition)));
    let is_old = |pod: &Pod| pods::revision(pod) != view.update.0 && !is_terminating(pod);
    let Some(most) = rolling.and_then(|rolling| rolling.max_unavailable.as_ref()) else {
        let mut candidates = wanted.rev().take_while(|ordinal| *ordinal >= first);
        // an old one is replaced whatever its state is, so that a broken update can be taken back
        let next = candidates.find_map(|ordinal| {
            let pod = by_ordinal.get(&ordinal)?;
            (is_old(pod) || !view.serves(pod)).then_some(*pod)
        });
        let next = next.filter(|pod| is_old(pod));
        return next.map(|pod| Step::Replace(Arc::clone(pod))).into_iter().collect();
    };
    let most = scaled(Some(most), total, Rounding::Down).unwrap_or(1).max(1);
    let serves = |ordinal: &isize| by_ordinal.get(ordinal).is_some_and(|pod| view.serves(pod));
    let serving = wanted.clone().filter(serves).count();
    let unavailable = total - isize::try_from(serving).unwrap_or(total);
    let remaining = usize::try_from(most - unavailable).unwrap_or_default();
    let old = wanted.rev().take_while(|ordinal| *ordinal >= first).filter_map(|ordinal| {
        let pod = by_ordinal.get(&ordinal)?;
        is_old(pod).then(|| Step::Replace(Arc::clone(pod)))
    });
    old.take(remaining).collect()
}

/// The status, of the pods as they are.
pub(super) fn status(
    set: &StatefulSet,
    pods: &[Arc<Pod>],
    (current, update): (&str, &str),
    collisions: i32,
    now: Timestamp,
) -> StatefulSetStatus {
    let of = |wanted: &dyn Fn(&Pod) -> bool| number(pods.iter().filter(|pod| wanted(pod)).count());
    let is_created = |pod: &Pod| !phase(pod).is_empty();
    let runs = |pod: &Pod| phase(pod) == "Running" && is_ready(pod);
    let is_of = |pod: &Pod, name: &str| {
        is_created(pod) && !is_terminating(pod) && pods::revision(pod) == name
    };
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: of(&is_created),
        ready_replicas: optional(of(&runs)),
        available_replicas: Some(of(&|pod| runs(pod) && is_available(pod, min_ready(set), now))),
        current_replicas: optional(of(&|pod| is_of(pod, current))),
        updated_replicas: optional(of(&|pod| is_of(pod, update))),
        current_revision: Some(current.to_owned()),
        update_revision: Some(update.to_owned()),
        collision_count: Some(collisions),
        conditions: set.status.as_ref().and_then(|status| status.conditions.clone()),
    }
}

/// A number that the API leaves out when it is 0.
fn optional(number: i32) -> Option<i32> {
    (number != 0).then_some(number)
}

/// Pods of the current revision were deleted.
pub(super) fn note_replaced(status: &mut StatefulSetStatus, replaced: usize) {
    let current = status.current_replicas.unwrap_or_default();
    status.current_replicas = optional(current.saturating_sub(number(replaced)).max(0));
}

/// Ends an update when all pods are of the new revision.
pub(super) fn complete(set: &StatefulSet, status: &mut StatefulSetStatus) {
    let wanted = range(set);
    let total = number(wanted.end - wanted.start);
    if is_rolling(set)
        && status.updated_replicas.unwrap_or_default() == total
        && status.ready_replicas.unwrap_or_default() == total
        && status.replicas == total
    {
        status.current_replicas = status.updated_replicas;
        status.current_revision.clone_from(&status.update_revision);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(replicas: i32, more: Value) -> StatefulSet {
        let mut set = json!({
            "metadata": {"name": "web", "namespace": "x", "uid": "s"},
            "spec": {"replicas": replicas, "selector": {}, "template": {}},
        });
        for (key, value) in more.as_object().unwrap() {
            set["spec"][key] = value.clone();
        }
        serde_json::from_value(set).unwrap()
    }

    fn pod(set: &StatefulSet, ordinal: isize, revision: &str, state: &str) -> Arc<Pod> {
        let mut pod = pods::new(set, ordinal, revision, &PodTemplateSpec::default());
        pod.metadata.uid = Some(ordinal.to_string());
        let (phase, ready) = match state {
            "ready" => ("Running", "True"),
            "pending" => ("Pending", "False"),
            "failed" => ("Failed", "False"),
            _ => ("Running", "False"),
        };
        if state == "terminating" {
            pod.metadata.deletion_timestamp = Some(crate::workload::now());
        }
        pod.status = serde_json::from_value(json!({"phase": phase, "conditions": [
            {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
        .unwrap();
        Arc::new(pod)
    }

    fn planned(set: &StatefulSet, states: &[(isize, &str, &str)]) -> Vec<String> {
        let pods: Vec<_> = states
            .iter()
            .map(|(ordinal, revision, state)| pod(set, *ordinal, revision, state))
            .collect();
        let template = PodTemplateSpec::default();
        let (current, update) = (("old", &template), ("new", &template));
        let view = View { set, pods: &pods, current, update, now: Timestamp::now() };
        let text = |step: &Step| match step {
            Step::Create(pod) => format!("+{}:{}", name_of(&**pod), pods::revision(pod)),
            Step::Delete(pod) => format!("-{}", name_of(&**pod)),
            Step::Replace(pod) => format!("*{}", name_of(&**pod)),
            Step::Update(pod) => format!("={}", name_of(&**pod)),
            Step::Claims(pod) => format!("c{}", name_of(&**pod)),
            Step::OwnClaims(pod) => format!("o{}", name_of(&**pod)),
        };
        steps(&view).iter().map(text).collect()
    }

    #[test]
    fn statefulset_of_extreme_size_is_created_in_parts() {
        let set = set(i32::MAX, json!({"podManagementPolicy": "Parallel"}));
        assert_eq!(planned(&set, &[]).len(), MAX_CREATED);
    }

    #[test]
    fn statefulset_steps_are_in_order() {
        let ordered = set(3, json!({}));
        let parallel = set(3, json!({"podManagementPolicy": "Parallel"}));
        let ready = |count: isize| (0..count).map(|it| (it, "new", "ready")).collect::<Vec<_>>();
        type Pods<'a> = Vec<(isize, &'a str, &'a str)>;
        let cases: &[(&StatefulSet, Pods<'_>, &[&str])] = &[
            (&ordered, vec![], &["+web-0:new"]),
            (&ordered, vec![(0, "new", "unready")], &[]),
            (&ordered, ready(1), &["+web-1:new"]),
            (&ordered, ready(3), &[]),
            (&ordered, ready(5), &["-web-4"]),
            (&ordered, vec![(0, "new", "failed")], &["-web-0"]),
            (&parallel, vec![], &["+web-0:new", "+web-1:new", "+web-2:new"]),
            (&parallel, ready(5), &["-web-4", "-web-3"]),
            (
                &ordered,
                vec![(0, "old", "ready"), (1, "old", "ready"), (2, "old", "ready")],
                &["*web-2"],
            ),
            (&ordered, vec![(0, "old", "ready"), (1, "old", "ready"), (2, "new", "unready")], &[]),
            (
                &ordered,
                vec![(0, "old", "ready"), (1, "old", "ready"), (2, "old", "terminating")],
                &[],
            ),
            (
                &ordered,
                vec![(0, "old", "ready"), (1, "old", "ready"), (2, "new", "ready")],
                &["*web-1"],
            ),
        ];
        for (set, states, expected) in cases {
            assert_eq!(planned(set, states), *expected, "{states:?}");
        }
    }

    #[test]
    fn statefulset_without_a_limit_replaces_old_pods_whatever_their_state() {
        let parallel = set(3, json!({"podManagementPolicy": "Parallel"}));
        let limited = set(
            3,
            json!({"podManagementPolicy": "Parallel", "updateStrategy":
            {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}}),
        );
        // an update that does not get ready is taken back
        let broken = [(0, "new", "ready"), (1, "new", "ready"), (2, "old", "unready")];
        assert_eq!(planned(&parallel, &broken), ["*web-2"]);
        assert!(planned(&limited, &broken).is_empty());
        // others that do not serve do not hold it up
        let other = [(0, "old", "unready"), (1, "old", "ready"), (2, "old", "ready")];
        assert_eq!(planned(&parallel, &other), ["*web-2"]);
        let next = [(0, "old", "ready"), (1, "old", "ready"), (2, "new", "unready")];
        assert!(planned(&parallel, &next).is_empty());
    }

    #[test]
    fn statefulset_updates_down_to_the_partition() {
        let old =
            [(0, "old", "ready"), (1, "old", "ready"), (2, "old", "ready"), (3, "old", "ready")];
        let with = |rolling: Value| {
            set(4, json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}))
        };
        assert_eq!(planned(&with(json!({"partition": 3})), &old), ["*web-3"]);
        let both = planned(&with(json!({"partition": 0, "maxUnavailable": 2})), &old);
        assert_eq!(both, ["*web-3", "*web-2"]);
        assert!(planned(&with(json!({"partition": 4})), &old).is_empty());
        let on_delete = set(4, json!({"updateStrategy": {"type": "OnDelete"}}));
        assert!(planned(&on_delete, &old).is_empty());
        let partition = with(json!({"partition": 2}));
        assert_eq!(planned(&partition, &old[..1]), ["+web-1:old"]);
        let start = set(2, json!({"ordinals": {"start": 5}}));
        assert_eq!(planned(&start, &[]), ["+web-5:new"]);
        assert_eq!(
            planned(&start, &[(5, "new", "ready"), (6, "new", "ready"), (1, "new", "ready")]),
            ["-web-1"]
        );
    }

    #[test]
    fn statefulset_pods_have_names_and_claims() {
        let set = set(
            1,
            json!({"serviceName": "svc", "volumeClaimTemplates":
            [{"metadata": {"name": "data"}, "spec": {}}]}),
        );
        let pod = pods::new(&set, 3, "web-abc", &PodTemplateSpec::default());
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(
            (spec.hostname.as_deref(), spec.subdomain.as_deref()),
            (Some("web-3"), Some("svc"))
        );
        let volume = spec.volumes.as_ref().unwrap().first().unwrap();
        assert_eq!(volume.persistent_volume_claim.as_ref().unwrap().claim_name, "data-web-3");
        let labels = pod.metadata.labels.as_ref().unwrap();
        assert_eq!(labels["apps.kubernetes.io/pod-index"], "3");
        for (name, expected) in [
            ("web-3", Some(3)),
            ("web-", None),
            ("webs-1", None),
            ("web-+1", None),
            ("web-99999999999", None),
        ] {
            assert_eq!(ordinal(&set, name), expected, "{name}");
        }
    }
}
