//! PURE: which ResourceClaims a pod has, and who still uses one.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{
    ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::pods::node_of;
use crate::workload::{controller_of, is_finished, name_of, uid_of};
use longshore_metrics::{Kind, Labels, Text};

/// On a claim that was made for a pod: the name by which the pod refers to it.
pub(super) const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// On a claim that was made for the extended resources of a pod.
const EXTENDED_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// Keeps a claim while it is allocated.
pub(super) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// The longest base of a generated name of 63 characters.
const MAX_BASE: usize = 57;
/// The most consumers that a claim can have.
const MAX_CONSUMERS: usize = 256;

/// The claim that a pod refers to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reference<'a> {
    /// That of this name; `made` for the pod, or not.
    Named { name: &'a str, made: bool },
    /// It has to be made from this template.
    Wanted(&'a str),
    /// None is needed.
    Unneeded,
}

pub(super) fn references(pod: &Pod) -> &[PodResourceClaim] {
    pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default()
}

/// What the pod's status says of the claim, if the pod's spec does not name it.
pub(super) fn reference<'a>(pod: &'a Pod, claim: &'a PodResourceClaim) -> Reference<'a> {
    if let Some(name) = &claim.resource_claim_name {
        return Reference::Named { name, made: false };
    }
    let Some(template) = &claim.resource_claim_template_name else { return Reference::Unneeded };
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    match statuses.into_iter().flatten().find(|status| status.name == claim.name) {
        None => Reference::Wanted(template),
        Some(status) => match &status.resource_claim_name {
            Some(name) => Reference::Named { name, made: true },
            None => Reference::Unneeded,
        },
    }
}

/// The names of the claims that the pod has, with the one for its extended resources.
pub(super) fn names(pod: &Pod) -> impl Iterator<Item = &str> {
    let named = references(pod).iter().filter_map(|claim| match reference(pod, claim) {
        Reference::Named { name, .. } => Some(name),
        Reference::Wanted(_) | Reference::Unneeded => None,
    });
    let status = pod.status.as_ref();
    let special = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    named.chain(special.map(|special| special.resource_claim_name.as_str()))
}

/// The pod that the claim was made for: its name and UID.
pub(super) fn owner(claim: &ResourceClaim) -> Option<(&str, &str)> {
    let owner = controller_of(&claim.metadata)?;
    let is_pod = owner.kind == "Pod" && owner.api_version == "v1";
    is_pod.then_some((owner.name.as_str(), owner.uid.as_str()))
}

/// Whether the claim was made for that reference of the pod.
pub(super) fn is_for(claim: &ResourceClaim, pod: &Pod, reference: &str) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    let is_named = annotations.and_then(|own| own.get(POD_CLAIM)).is_some_and(|it| it == reference);
    is_named && owner(claim).is_some_and(|(_, uid)| uid == uid_of(pod))
}

/// The beginning of a text in the share that it has of a length.
fn share(text: &str, of: usize, total: usize) -> &str {
    let length = text.len().saturating_mul(of).checked_div(total).unwrap_or_default();
    text.get(..text.floor_char_boundary(length)).unwrap_or_default()
}

/// The claim that is made for a pod.
pub(super) fn new_claim(
    pod: &Pod,
    reference: &str,
    template: &ResourceClaimTemplate,
) -> ResourceClaim {
    let own = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations: BTreeMap<String, String> = own.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.to_owned(), reference.to_owned());
    let name = name_of(pod);
    let full = format!("{name}-{reference}-");
    let base = match full.len() {
        length if length > MAX_BASE => {
            let (first, second) =
                (share(name, MAX_BASE, length), share(reference, MAX_BASE, length));
            format!("{first}-{second}")
        }
        _ => full,
    };
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(base),
            namespace: pod.metadata.namespace.clone(),
            labels: own.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: name.to_owned(),
                uid: uid_of(pod).to_owned(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// Whether the pod will not run any more.
pub(super) fn is_done(pod: &Pod) -> bool {
    is_finished(pod) || (pod.metadata.deletion_timestamp.is_some() && node_of(pod).is_empty())
}

/// Those who use the claim.
pub(super) fn consumers(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    let status = claim.status.as_ref();
    status.and_then(|status| status.reserved_for.as_deref()).unwrap_or_default()
}

/// Whether the consumer is a pod; of others nothing is known.
pub(super) fn is_pod(consumer: &ResourceClaimConsumerReference) -> bool {
    consumer.api_group.as_deref().unwrap_or_default().is_empty() && consumer.resource == "pods"
}

/// Whether a request of the claim is for access that is for administrators, as a label.
pub(super) fn has_admin_access(claim: &ResourceClaim) -> &'static str {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let mut exact = requests.filter_map(|request| request.exactly.as_ref());
    if exact.any(|request| request.admin_access == Some(true)) { "true" } else { "false" }
}

/// Where a claim comes from, as a label.
fn source(claim: &ResourceClaim) -> &'static str {
    let annotation =
        |name| claim.metadata.annotations.as_ref().is_some_and(|own| own.contains_key(name));
    if annotation(POD_CLAIM) {
        "resource_claim_template"
    } else if annotation(EXTENDED_CLAIM) {
        "extended_resource"
    } else {
        ""
    }
}

/// Writes how many claims there are.
pub(super) fn count(text: &mut Text, claims: &[Arc<ResourceClaim>]) {
    let mut counts: BTreeMap<[&str; 3], usize> = BTreeMap::new();
    for claim in claims {
        let allocated = if is_allocated(claim) { "true" } else { "false" };
        let count = counts.entry([allocated, has_admin_access(claim), source(claim)]).or_default();
        *count = count.saturating_add(1);
    }
    let help = "[ALPHA] Number of ResourceClaims, categorized by allocation status, admin access, and source. Source can be 'resource_claim_template' (created from a template), 'extended_resource' (extended resources), or empty (manually created by a user).";
    let mut samples = text.family("resourceclaim_controller_resource_claims", help, Kind::Gauge);
    for ([allocated, admin, source], count) in counts {
        let labels = [("allocated", allocated), ("admin_access", admin), ("source", source)];
        samples.add(&Labels::new(&labels), count as f64);
    }
}

pub(super) fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}

/// The claim with the pod among its consumers; `None`: it is there, or cannot be.
pub(super) fn reserved(claim: &ResourceClaim, pod: &Pod) -> Option<ResourceClaim> {
    let known = consumers(claim);
    let is_known = known.iter().any(|consumer| consumer.uid == uid_of(pod));
    if !is_allocated(claim) || is_known || known.len() >= MAX_CONSUMERS {
        return None;
    }
    let mut new = claim.clone();
    let status = new.status.get_or_insert_default();
    status.reserved_for.get_or_insert_default().push(ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: name_of(pod).to_owned(),
        uid: uid_of(pod).to_owned(),
    });
    Some(new)
}

fn has_finalizer(claim: &ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|own| own == FINALIZER)
}

/// The claim whose status has only these consumers; without any it is not allocated any more. `None`:
/// its status stays as it is.
pub(super) fn released(
    claim: &ResourceClaim,
    remaining: Vec<ResourceClaimConsumerReference>,
) -> Option<ResourceClaim> {
    let is_fewer = remaining.len() < consumers(claim).len();
    let is_unused = remaining.is_empty() && has_finalizer(claim);
    let is_deleting = claim.metadata.deletion_timestamp.is_some();
    let frees = is_unused && (is_fewer || (is_deleting && is_allocated(claim)));
    if !is_fewer && !frees {
        return None;
    }
    let mut new = claim.clone();
    let status = new.status.get_or_insert_default();
    status.reserved_for = (!remaining.is_empty()).then_some(remaining);
    if frees {
        status.allocation = None;
    }
    Some(new)
}

/// The claim without the finalizer, which it does not need any more.
pub(super) fn unprotected(claim: &ResourceClaim, was_released: bool) -> Option<ResourceClaim> {
    let is_free = !is_allocated(claim) && consumers(claim).is_empty();
    let is_due = was_released || claim.metadata.deletion_timestamp.is_some();
    if !is_free || !is_due || !has_finalizer(claim) {
        return None;
    }
    let mut new = claim.clone();
    new.metadata.finalizers.get_or_insert_default().retain(|own| own != FINALIZER);
    Some(new)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "containers": [],
                "resourceClaims": [
                    {"name": "own", "resourceClaimName": "shared"},
                    {"name": "made", "resourceClaimTemplateName": "t"},
                ],
            },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn claim(change: impl FnOnce(&mut Value)) -> ResourceClaim {
        let mut claim = json!({
            "metadata": {"name": "c", "namespace": "ns", "finalizers": [FINALIZER]},
            "spec": {"devices": {}},
            "status": {
                "allocation": {"devices": {}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            },
        });
        change(&mut claim);
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn resource_claims_of_pods_are_named_by_spec_and_status() {
        let fresh = pod(|_| {});
        let of = |pod: &'_ Pod, at: usize| format!("{:?}", reference(pod, &references(pod)[at]));
        assert_eq!(of(&fresh, 0), "Named { name: \"shared\", made: false }");
        assert_eq!(of(&fresh, 1), "Wanted(\"t\")");
        let known = pod(|pod| {
            pod["status"]["resourceClaimStatuses"] =
                json!([{"name": "made", "resourceClaimName": "p-made-x"}]);
        });
        assert_eq!(of(&known, 1), "Named { name: \"p-made-x\", made: true }");
        assert_eq!(names(&known).collect::<Vec<_>>(), ["shared", "p-made-x"]);
        let extended = pod(|pod| {
            pod["status"]["extendedResourceClaimStatus"] =
                json!({"resourceClaimName": "p-extended-resources-x", "requestMappings": []});
        });
        assert_eq!(names(&extended).collect::<Vec<_>>(), ["shared", "p-extended-resources-x"]);
        let unneeded =
            pod(|pod| pod["status"]["resourceClaimStatuses"] = json!([{"name": "made"}]));
        assert_eq!(of(&unneeded, 1), "Unneeded");
    }

    #[test]
    fn resource_claims_are_made_from_templates() {
        let template: ResourceClaimTemplate = serde_json::from_value(json!({
            "metadata": {"name": "t"},
            "spec": {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": {}}},
        }))
        .unwrap();
        let made = new_claim(&pod(|_| {}), "made", &template);
        assert_eq!(made.metadata.generate_name.as_deref(), Some("p-made-"));
        assert!(is_for(&made, &pod(|_| {}), "made"));
        assert!(!is_for(&made, &pod(|_| {}), "own"));
        assert!(!is_for(&made, &pod(|pod| pod["metadata"]["uid"] = "later".into()), "made"));
        let long = pod(|pod| pod["metadata"]["name"] = "x".repeat(200).into());
        let made = new_claim(&long, &"y".repeat(50), &template);
        let base = made.metadata.generate_name.unwrap();
        assert!(base.len() <= MAX_BASE + 1 && base.contains("x-y"), "{base}");
    }

    #[test]
    fn resource_claims_are_counted_by_what_they_are() {
        let made = claim(|claim| claim["metadata"]["annotations"] = json!({POD_CLAIM: "c"}));
        let admin = claim(|claim| {
            claim["status"] = Value::Null;
            claim["spec"]["devices"]["requests"] = json!([{"name": "r",
                "exactly": {"deviceClassName": "d", "adminAccess": true}}]);
        });
        let extended = claim(|claim| {
            claim["metadata"]["annotations"] = json!({EXTENDED_CLAIM: "true"});
        });
        let mut text = Text::new();
        count(&mut text, &[made.clone(), made, admin, extended].map(Arc::new));
        let page = text.finish();
        for line in [
            "{allocated=\"true\",admin_access=\"false\",source=\"resource_claim_template\"} 2\n",
            "{allocated=\"false\",admin_access=\"true\",source=\"\"} 1\n",
            "{allocated=\"true\",admin_access=\"false\",source=\"extended_resource\"} 1\n",
        ] {
            assert!(page.contains(line), "{line}{page}");
        }
    }

    #[test]
    fn resource_claims_are_released_and_freed() {
        let used = claim(|_| {});
        assert_eq!(released(&used, consumers(&used).to_vec()), None);
        let free = released(&used, Vec::new()).unwrap();
        assert!(!is_allocated(&free) && consumers(&free).is_empty());
        assert!(unprotected(&free, true).unwrap().metadata.finalizers.unwrap().is_empty());
        // Allocated by somebody else, without the finalizer: it stays so.
        let foreign = claim(|claim| claim["metadata"]["finalizers"] = Value::Null);
        assert!(is_allocated(&released(&foreign, Vec::new()).unwrap()));
        // Never used, but allocated: only its deletion frees it.
        let idle = claim(|claim| claim["status"]["reservedFor"] = Value::Null);
        assert_eq!(released(&idle, Vec::new()), None);
        let deleted = claim(|claim| {
            claim["status"]["reservedFor"] = Value::Null;
            claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        assert!(!is_allocated(&released(&deleted, Vec::new()).unwrap()));
        assert_eq!(unprotected(&deleted, false), None, "it is allocated yet");
    }

    #[test]
    fn resource_claims_are_reserved_for_pods_with_a_node() {
        let idle = claim(|claim| claim["status"]["reservedFor"] = Value::Null);
        let taken = reserved(&idle, &pod(|_| {})).unwrap();
        assert_eq!(consumers(&taken)[0].uid, "u");
        assert_eq!(reserved(&taken, &pod(|_| {})), None);
        let open = claim(|claim| claim["status"] = json!({}));
        assert_eq!(reserved(&open, &pod(|_| {})), None, "it is not allocated");
        let full = claim(|claim| {
            let users = (0..MAX_CONSUMERS)
                .map(|at| json!({"resource": "pods", "name": "x", "uid": at.to_string()}));
            claim["status"]["reservedFor"] = users.collect::<Vec<_>>().into();
        });
        assert_eq!(reserved(&full, &pod(|_| {})), None);
    }
}
