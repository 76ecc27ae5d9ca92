//! PURE: which claims a pod has, under which names, and what of them its containers use.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use longshore_pod::spec;

use crate::error::Error;

/// A claim of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodClaim<'a> {
    /// The name of the object.
    pub(crate) name: &'a str,
    /// Whether it was generated for this pod, which must own it.
    pub(crate) is_generated: bool,
}

/// The claims of a pod, each once; without entries for which no claim is needed. `extended`: with the one
/// that the scheduler has created for its extended resources.
pub(crate) fn pod_claims(pod: &Pod, extended: bool) -> Result<Vec<PodClaim<'_>>, Error> {
    let entries = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let mut claims = Vec::new();
    for entry in entries {
        if let Some(claim) = claim_of_entry(pod, &entry.name)? {
            claims.push(claim);
        }
    }
    let of_resources = pod.status.as_ref().filter(|_| extended);
    let of_resources = of_resources.and_then(|own| own.extended_resource_claim_status.as_ref());
    claims.extend(
        of_resources
            .map(|own| PodClaim { name: own.resource_claim_name.as_str(), is_generated: false }),
    );
    let mut seen = BTreeSet::new();
    claims.retain(|claim| seen.insert(claim.name));
    Ok(claims)
}

/// The claim of an entry in the pod's spec; `None` if none is needed, or there is no such entry.
fn claim_of_entry<'a>(pod: &'a Pod, entry: &str) -> Result<Option<PodClaim<'a>>, Error> {
    let mut entries = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let Some(entry) = entries.find(|own| own.name == entry) else { return Ok(None) };
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Some(PodClaim { name, is_generated: false }));
    }
    if entry.resource_claim_template_name.is_none() {
        let (pod, entry) = (full_name(pod), entry.name.clone());
        return Err(Error::Unsupported { pod, entry });
    }
    let statuses = pod.status.iter().flat_map(|own| own.resource_claim_statuses.iter().flatten());
    match statuses.into_iter().find(|status| status.name == entry.name) {
        Some(status) => {
            let name = status.resource_claim_name.as_deref();
            Ok(name.map(|name| PodClaim { name, is_generated: true }))
        }
        None => Err(Error::NotCreated { pod: full_name(pod) }),
    }
}

/// What a container uses of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use<'a> {
    /// The entry in the pod's spec; `None` for the claim of its extended resources.
    pub(crate) entry: Option<&'a str>,
    /// The name of the object.
    pub(crate) claim: &'a str,
    /// The request in the claim; empty for all.
    pub(crate) request: &'a str,
}

/// What a container uses of the pod's claims, in the order of the container.
pub(crate) fn container_uses<'a>(
    pod: &'a Pod,
    container: &'a Container,
    extended: bool,
) -> Result<Vec<Use<'a>>, Error> {
    let own = container.resources.as_ref();
    let mut uses = Vec::new();
    for own in own.iter().flat_map(|own| own.claims.iter().flatten()) {
        if let Some(claim) = claim_of_entry(pod, &own.name)? {
            let request = own.request.as_deref().unwrap_or_default();
            uses.push(Use { entry: Some(&own.name), claim: claim.name, request });
        }
    }
    let of_resources = pod.status.as_ref().filter(|_| extended);
    let of_resources = of_resources.and_then(|own| own.extended_resource_claim_status.as_ref());
    if let Some(status) = of_resources {
        let mappings = status.request_mappings.iter().filter(|mapping| {
            mapping.container_name == container.name
                && requests_device(container, &mapping.resource_name)
        });
        uses.extend(mappings.map(|mapping| Use {
            entry: None,
            claim: status.resource_claim_name.as_str(),
            request: mapping.request_name.as_str(),
        }));
    }
    Ok(uses)
}

/// Whether a container requests an extended resource.
fn requests_device(container: &Container, resource: &str) -> bool {
    let own = container.resources.as_ref().and_then(|own| own.requests.as_ref());
    own.and_then(|own| own.get(resource)).is_some_and(|amount| {
        let digits = amount.0.trim_start_matches(['+', '0', '.']);
        digits.starts_with(|c: char| c.is_ascii_digit())
    })
}

/// A request without the alternative that was chosen for it: `gpu` of `gpu/large`.
pub(crate) fn base(request: &str) -> &str {
    request.split('/').next().unwrap_or_default()
}

/// Whether a device that is for these requests is for that one.
pub(crate) fn is_for(requests: &[String], wanted: &str) -> bool {
    wanted.is_empty() || requests.is_empty() || requests.iter().any(|own| base(own) == base(wanted))
}

/// Namespace and name of a pod, as in upstream's messages.
fn full_name(pod: &Pod) -> String {
    format!("{}/{}", spec::namespace(pod), spec::name(pod))
}

/// Checks that a pod may use a claim.
pub(crate) fn check(pod: &Pod, claim: &ResourceClaim, is_generated: bool) -> Result<(), Error> {
    let uid = spec::uid(pod);
    let (name, namespace) = (&claim.metadata.name, &claim.metadata.namespace);
    let (name, namespace) =
        (name.as_deref().unwrap_or_default(), namespace.as_deref().unwrap_or_default());
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let is_owner = owners.any(|owner| owner.controller == Some(true) && owner.uid == uid);
    if is_generated && !(is_owner && namespace == spec::namespace(pod)) {
        return Err(Error::NotOwner { claim: format!("{namespace}/{name}"), pod: full_name(pod) });
    }
    let status = claim.status.as_ref();
    let mut consumers = status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    if uid.is_empty() || !consumers.any(|consumer| consumer.uid == uid) {
        return Err(Error::NotReserved {
            pod: spec::name(pod).to_owned(),
            pod_uid: uid.to_owned(),
            claim: name.to_owned(),
            claim_uid: claim.metadata.uid.clone().unwrap_or_default(),
        });
    }
    Ok(())
}
