//! The claims of a StatefulSet's pods, and whom they belong to.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::pods::{ordinal, range};
use crate::workload::{Namespaced, controller_reference, name_of, namespace_of, uid_of};

/// The name of the claim of a template and ordinal.
pub(super) fn claim_name(set: &StatefulSet, template: &str, ordinal: isize) -> String {
    format!("{template}-{}-{ordinal}", name_of(set))
}

fn templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    let templates = set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_deref());
    templates.unwrap_or_default()
}

/// The names of a pod's claims.
pub(super) fn names(set: &StatefulSet, pod: &Pod) -> Vec<String> {
    let Some(ordinal) = ordinal(set, name_of(pod)) else { return Vec::new() };
    templates(set).iter().map(|template| claim_name(set, name_of(template), ordinal)).collect()
}

/// A pod's claims, as they are created.
pub(super) fn of(set: &StatefulSet, pod: &Pod) -> Vec<PersistentVolumeClaim> {
    let selector = set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone());
    let claims = templates(set).iter().zip(names(set, pod)).map(|(template, name)| {
        let mut claim = template.clone();
        claim.metadata.name = Some(name);
        claim.metadata.namespace = Some(namespace_of(set).to_owned());
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(selector.clone().unwrap_or_default());
        claim.status = None;
        claim
    });
    claims.collect()
}

/// Whether claims are deleted with the set, and when the set is scaled down.
fn policy(set: &StatefulSet) -> (bool, bool) {
    let policy = set.spec.as_ref();
    let policy = policy.and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |value: Option<&String>| value.is_some_and(|value| value == "Delete");
    (
        deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
        deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
    )
}

fn names_owner<K: Namespaced>(reference: &OwnerReference, owner: &K) -> bool {
    reference.api_version == <K as k8s_openapi::Resource>::API_VERSION
        && reference.kind == <K as k8s_openapi::Resource>::KIND
        && reference.name == name_of(owner)
}

fn references(claim: &PersistentVolumeClaim) -> &[OwnerReference] {
    claim.metadata.owner_references.as_deref().unwrap_or_default()
}

/// Whether the claim belongs to a former pod of the same name, and goes with it.
pub(super) fn is_stale(set: &StatefulSet, pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let is_former =
        |it: &&OwnerReference| names_owner(it, pod) && Some(&it.uid) != pod.metadata.uid.as_ref();
    policy(set).1 && references(claim).iter().any(|it| is_former(&it))
}

/// Whether something else manages the claim, so that the policy does not.
pub(super) fn has_other_controller(
    set: &StatefulSet,
    pod: &Pod,
    claim: &PersistentVolumeClaim,
) -> bool {
    if policy(set) == (false, false) {
        return false;
    }
    references(claim).iter().any(|reference| {
        if names_owner(reference, set) {
            return reference.uid != uid_of(set);
        }
        if names_owner(reference, pod) {
            return reference.uid != uid_of(pod);
        }
        reference.controller == Some(true)
    })
}

/// The owner references that a claim should have; nothing if it has them.
pub(super) fn owners(
    set: &StatefulSet,
    pod: &Pod,
    claim: &PersistentVolumeClaim,
) -> Option<Vec<OwnerReference>> {
    let known = references(claim);
    let is_former = |it: &&OwnerReference| {
        (names_owner(it, set) && it.uid != uid_of(set))
            || (names_owner(it, pod) && it.uid != uid_of(pod))
    };
    if known.iter().any(|it| is_former(&it)) {
        // it is deleted with its former owner
        return None;
    }
    let is_ours = |it: &&OwnerReference| names_owner(it, set) || names_owner(it, pod);
    let mut wanted: Vec<_> = known.iter().filter(|it| !is_ours(it)).cloned().collect();
    if !has_other_controller(set, pod, claim) {
        let is_scaled_down =
            ordinal(set, name_of(pod)).is_none_or(|ordinal| !range(set).contains(&ordinal));
        match policy(set) {
            (_, true) if is_scaled_down => wanted.push(controller_reference(pod)),
            (true, _) => wanted.push(controller_reference(set)),
            (false, _) => {}
        }
    }
    let same = wanted.len() == known.len()
        && wanted
            .iter()
            .all(|one| known.iter().any(|it| it.uid == one.uid && it.controller == one.controller));
    (!same).then_some(wanted)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_belong_to_whom_the_policy_says() {
        for (deleted, scaled, pod, expected) in [
            ("Retain", "Retain", "web-0", None),
            ("Delete", "Retain", "web-0", Some("StatefulSet")),
            ("Delete", "Retain", "web-7", Some("StatefulSet")),
            ("Retain", "Delete", "web-0", None),
            ("Retain", "Delete", "web-7", Some("Pod")),
            ("Delete", "Delete", "web-0", Some("StatefulSet")),
            ("Delete", "Delete", "web-7", Some("Pod")),
        ] {
            let set: StatefulSet = serde_json::from_value(json!({
                "metadata": {"name": "web", "uid": "s"},
                "spec": {"replicas": 2, "selector": {}, "template": {},
                    "persistentVolumeClaimRetentionPolicy":
                        {"whenDeleted": deleted, "whenScaled": scaled}},
            }))
            .unwrap();
            let pod: Pod =
                serde_json::from_value(json!({"metadata": {"name": pod, "uid": "p"}})).unwrap();
            let mut claim = PersistentVolumeClaim::default();
            let wanted = owners(&set, &pod, &claim);
            let kind = wanted.as_ref().map(|all| all.first().unwrap().kind.clone());
            assert_eq!(kind.as_deref(), expected, "{deleted} {scaled}");
            claim.metadata.owner_references = wanted;
            assert_eq!(owners(&set, &pod, &claim), None, "once is enough");
        }
    }
}
