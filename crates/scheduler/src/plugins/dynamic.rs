//! Claims for devices (dynamic resource allocation): those that are allocated fit nodes that reach their
//! devices; for the others devices of the node are found. Extended resources that a node does not have are
//! served by devices too, if a class says so: a claim is made for them when the pod is bound.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::AllocationResult;
use k8s_openapi::jiff::Timestamp;
use longshore_duration::GoDuration;
use serde::Deserialize;
use serde_json::Value;

use super::{PluginError, arguments, invalid};
use crate::devices::{AllocationError, Allocator, extended};
use crate::events::ClusterEvent;
use crate::framework::{
    Code, Cycle, FILTERS, Failed, NodeFilter, NodeScore, Plugin, Points, PostFilter, PreFilter,
    SCORES, Status, normalize,
};
use crate::model::{
    Atom, ClaimUse, DeviceReservation, Node, NodeInfo, Objects, Pod, PodClaimRef, ResourceClaim,
    SpecialClaim, class_of, is_conditional, is_extended,
};

const NAME: &str = "DynamicResources";
/// The most alternatives of a request; the first of them scores that much.
const MAX_ALTERNATIVES: i64 = 8;

/// The arguments, as durations of Go.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    filter_timeout: Option<GoDuration>,
    binding_timeout: Option<GoDuration>,
}

/// Allocates devices.
#[derive(Debug)]
pub(super) struct DynamicResources {
    /// How long devices may take to be prepared that have binding conditions.
    binding_timeout: Duration,
}

impl DynamicResources {
    pub(super) fn new(args: &Value) -> Result<Self, PluginError> {
        let args: Args = arguments(NAME, args)?;
        if args.filter_timeout.is_some_and(|own| own < GoDuration::ZERO) {
            return Err(invalid(NAME, "filterTimeout: must be zero or positive"));
        }
        let binding = args.binding_timeout.unwrap_or(GoDuration::secs(600));
        if binding < GoDuration::secs(1) {
            return Err(invalid(NAME, "bindingTimeout: must be at least 1 second"));
        }
        Ok(Self { binding_timeout: binding.get() })
    }

    fn prepare<'a>(
        &self,
        pod: &'a Pod,
        objects: &'a Objects,
    ) -> Result<Option<Prepared<'a>>, Status> {
        Prepared::new(pod, objects, self.binding_timeout)
    }
}

/// The claims of a pod, or why it cannot have them.
fn claims<'a>(pod: &Pod, objects: &'a Objects) -> Result<Vec<&'a ResourceClaim>, String> {
    let mut all = Vec::new();
    for own in &pod.resource_claims {
        let (key, is_made) = match &own.claim {
            PodClaimRef::Shared(key) => (key, false),
            PodClaimRef::Made(key) => (key, true),
            PodClaimRef::Unneeded => continue,
            PodClaimRef::Wanted => {
                return Err(format!("pod \"{}\": ResourceClaim not created yet", pod.key()));
            }
            PodClaimRef::Unknown => {
                return Err(format!(
                    "pod \"{}\", spec.resourceClaim \"{}\": none of the supported fields are set",
                    pod.key(),
                    own.name
                ));
            }
        };
        let claim = objects
            .resource_claims
            .get(key)
            .ok_or_else(|| format!("could not find ResourceClaim \"{key}\""))?;
        if claim.is_deleting {
            return Err(format!("resourceclaim \"{}\" is being deleted", key.name));
        }
        if is_made && claim.owner.as_deref() != Some(&*pod.uid) {
            return Err(format!(
                "ResourceClaim {key} was not created for Pod {} (Pod is not owner)",
                pod.key()
            ));
        }
        all.push(claim);
    }
    Ok(all)
}

/// A pod with claims.
struct Prepared<'a> {
    claims: Vec<&'a ResourceClaim>,
    extended: Option<Extended<'a>>,
    allocator: Allocator<'a>,
    now: Timestamp,
    binding_timeout: Duration,
}

/// The extended resources of a pod of which classes of devices serve one at least.
struct Extended<'a> {
    pod: &'a Pod,
    /// What an earlier attempt has left.
    stale: Option<&'a ResourceClaim>,
    /// The resources, by name, with their classes.
    resources: Vec<(Atom, Option<Atom>)>,
}

impl<'a> Extended<'a> {
    fn new(pod: &'a Pod, objects: &'a Objects) -> Option<Self> {
        if pod.extended.is_empty() {
            return None;
        }
        let requested = pod.requests.scalars.iter().filter(|(_, amount)| *amount > 0);
        let class = |name: &Atom| class_of(&objects.device_classes, name);
        let mut resources: Vec<_> = requested
            .filter(|(name, _)| is_extended(name))
            .map(|(name, _)| (name.clone(), class(name).map(|class| class.name.clone())))
            .collect();
        resources.sort_by(|left, right| left.0.as_str().cmp(right.0.as_str()));
        if resources.iter().all(|(_, class)| class.is_none()) {
            return None;
        }
        let is_own = |claim: &&ResourceClaim| {
            claim.is_special && !claim.is_deleting && claim.owner.as_deref() == Some(&*pod.uid)
        };
        Some(Self { pod, stale: objects.resource_claims.values().find(is_own), resources })
    }

    /// The claim for what a node does not have by itself, if there is anything.
    fn claim(&self, node: &Node) -> Result<Option<(ResourceClaim, SpecialClaim)>, Status> {
        if self.stale.is_some() {
            return Err(Status::unresolvable("cannot schedule extended resource claim"));
        }
        let mut wanted = Vec::new();
        for (name, class) in &self.resources {
            match class {
                Some(class) if node.allocatable.scalar(name) <= 0 => {
                    wanted.push((name.clone(), class.clone()));
                }
                None if node.allocatable.scalar(name) <= 0 => {
                    return Err(Status::unresolvable("cannot fit resource"));
                }
                _ => {}
            }
        }
        if wanted.is_empty() {
            return Ok(None);
        }
        let (requests, mappings) = extended::requests(&self.pod.extended, &wanted);
        let claim = ResourceClaim::special(self.pod, requests.clone());
        Ok(Some((claim, SpecialClaim { requests, mappings })))
    }
}

/// What a pod gets on a node: devices for its claims that have none, and then for the one that is made.
struct Allocated {
    results: Vec<AllocationResult>,
    special: Option<(ResourceClaim, SpecialClaim)>,
}

impl<'a> Prepared<'a> {
    /// `None`: the pod has no claims.
    fn new(
        pod: &'a Pod,
        objects: &'a Objects,
        binding_timeout: Duration,
    ) -> Result<Option<Self>, Status> {
        let reject = |reason: String| Status::new(Code::Unresolvable, reason);
        let claims = claims(pod, objects).map_err(reject)?;
        let extended = Extended::new(pod, objects);
        if claims.is_empty() && extended.is_none() {
            return Ok(None);
        }
        for claim in claims.iter().filter(|claim| claim.allocation.is_none()) {
            if objects.is_being_allocated(claim) {
                let key = &claim.key;
                let reason = format!("resource claim {key} is in the process of being allocated");
                return Err(reject(reason));
            }
            has_classes(claim, objects)?;
        }
        let allocator = Allocator::new(
            objects.slices.values(),
            &objects.device_classes,
            objects.used_devices(),
        );
        Ok(Some(Self { claims, extended, allocator, now: objects.clock, binding_timeout }))
    }

    fn to_allocate(&self) -> Vec<&'a ResourceClaim> {
        self.claims.iter().copied().filter(|claim| claim.allocation.is_none()).collect()
    }

    /// Whether the devices of a claim, if it has any, can be used on a node: it reaches them, and they are
    /// or may still be prepared.
    fn is_usable(&self, claim: &ResourceClaim, node: &Node) -> bool {
        let is_lost = || claim.is_ready(self.now, self.binding_timeout).is_err();
        reaches(claim, node) && !(claim.allocation.is_some() && is_lost())
    }

    /// What claims that are not allocated get on a node.
    fn allocate(&self, node: &Node) -> Result<Allocated, Status> {
        let special = self.extended.as_ref().map(|own| own.claim(node)).transpose()?.flatten();
        let mut claims: Vec<&ResourceClaim> = self.to_allocate();
        claims.extend(special.as_ref().map(|(claim, _)| claim));
        if claims.is_empty() {
            return Ok(Allocated { results: Vec::new(), special });
        }
        let unresolvable = |reason: String| Status::new(Code::Unresolvable, reason);
        match self.allocator.allocate(node, &claims) {
            Ok(Some(results)) => Ok(Allocated { results, special }),
            Ok(None) => Err(Status::unresolvable("cannot allocate all claims")),
            Err(AllocationError::OnNode(reason)) => Err(unresolvable(reason)),
            Err(AllocationError::Claim(reason)) => Err(Status::new(Code::Error, reason)),
            Err(error @ AllocationError::TooLong) => {
                Err(Status::new(Code::Error, format!("node {}: {error}", node.name)))
            }
        }
    }
}

fn reaches(claim: &ResourceClaim, node: &Node) -> bool {
    claim.nodes.as_ref().is_none_or(|nodes| nodes.matches(&node.name, &node.labels))
}

/// Whether all classes of a claim are there.
fn has_classes(claim: &ResourceClaim, objects: &Objects) -> Result<(), Status> {
    let check = |class: &str, request: String| {
        if class.is_empty() {
            let reason = format!("request {request}: unsupported request type");
            return Err(Status::new(Code::Error, reason));
        }
        if objects.device_classes.contains_key(&class.into()) {
            return Ok(());
        }
        let reason = format!("request {request}: device class {class} does not exist");
        Err(Status::new(Code::Unresolvable, reason))
    };
    for request in claim.devices.requests.iter().flatten() {
        let name = &request.name;
        let alternatives = request.first_available.as_deref().unwrap_or_default();
        match &request.exactly {
            Some(exactly) => check(&exactly.device_class_name, name.clone())?,
            None if !alternatives.is_empty() => {
                for own in alternatives {
                    check(&own.device_class_name, format!("{name}/{}", own.name))?;
                }
            }
            None => {
                let key = &claim.key;
                let reason = format!("resource claim {key}, request {name}: unknown request type");
                return Err(Status::new(Code::Unresolvable, reason));
            }
        }
    }
    Ok(())
}

impl NodeFilter for Prepared<'_> {
    fn filter(&self, info: &NodeInfo) -> Result<(), Status> {
        let Some(node) = &info.node else { return Ok(()) };
        // As upstream: an error of a claim counts more than what the node does not reach.
        let allocated = self.allocate(node).map(|_| ());
        allocated?;
        if self.claims.iter().all(|claim| self.is_usable(claim, node)) {
            return Ok(());
        }
        Err(Status::unresolvable("resourceclaim not available on the node"))
    }
}

/// Prefers nodes on which claims get earlier alternatives.
impl NodeScore for Prepared<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let found = self.allocate(node).map(|own| own.results).unwrap_or_default();
        let mut found = found.into_iter();
        let scores = self.claims.iter().map(|claim| match &claim.allocation {
            Some(own) => preference(claim, own),
            None => found.next().map_or(0, |own| preference(claim, &own)),
        });
        scores.fold(0, i64::saturating_add)
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores, false);
    }
}

/// The score of the alternatives that a claim has.
fn preference(claim: &ResourceClaim, allocation: &AllocationResult) -> i64 {
    let results = allocation.devices.as_ref().and_then(|devices| devices.results.as_ref());
    let has = |request: &str, alternative: &str| {
        results
            .into_iter()
            .flatten()
            .any(|one| one.request.split_once('/') == Some((request, alternative)))
    };
    let requests = claim.devices.requests.iter().flatten();
    let alternatives = requests.flat_map(|request| {
        let own = request.first_available.iter().flatten().enumerate();
        own.map(move |(index, alternative)| (&request.name, index, &alternative.name))
    });
    alternatives
        .filter(|(request, _, alternative)| has(request, alternative))
        .map(|(_, index, _)| MAX_ALTERNATIVES.saturating_sub(i64::try_from(index).unwrap_or(0)))
        .fold(0, i64::saturating_add)
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> Points {
        FILTERS
            .and(SCORES)
            .and(Points::PRE_ENQUEUE)
            .and(Points::POST_FILTER)
            .and(Points::RESERVE)
            .and(Points::PRE_BIND)
    }

    fn pre_enqueue(&self, pod: &Pod, objects: &Objects) -> Result<(), Status> {
        match claims(pod, objects) {
            Ok(_) => Ok(()),
            Err(reason) => Err(Status::new(Code::Unresolvable, reason)),
        }
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        match self.prepare(cycle.pod, cycle.objects) {
            Ok(None) => PreFilter::Skip,
            Ok(Some(prepared)) => PreFilter::Filter(Box::new(prepared)),
            Err(status) => PreFilter::Reject(status),
        }
    }

    /// Takes away what a claim has where the pod cannot go, if nobody else uses it.
    fn post_filter(&self, cycle: Cycle<'_>, failed: &mut Failed<'_, '_>) -> PostFilter {
        let Ok(Some(prepared)) = self.prepare(cycle.pod, cycle.objects) else {
            return PostFilter::Nothing(Cow::Borrowed("no new claims to deallocate"), false);
        };
        let rejected = failed.diagnosis.nodes.iter().filter(|(_, status)| status.plugin == NAME);
        let nodes: Vec<&Node> = rejected
            .filter_map(|(position, _)| cycle.snapshot.nodes().get(*position)?.node.as_deref())
            .collect();
        let stale = prepared.extended.as_ref().and_then(|own| own.stale);
        let stale = stale.map(|claim| (claim.key.clone(), claim.uid.clone()));
        let unused = prepared.claims.iter().find(|claim| {
            claim.allocation.is_some()
                && claim.consumers.iter().all(|uid| **uid == *cycle.pod.uid)
                && nodes.iter().any(|node| !prepared.is_usable(claim, node))
        });
        match unused {
            Some(claim) => PostFilter::Deallocate(claim.key.clone(), claim.uid.clone()),
            None if stale.is_some() => PostFilter::Delete(stale.into_iter().collect()),
            None => PostFilter::Nothing(Cow::Borrowed("still not schedulable"), false),
        }
    }

    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        if cycle.pod.resource_claims.is_empty() {
            return None;
        }
        let prepared = self.prepare(cycle.pod, cycle.objects).ok()??;
        let has_alternatives = prepared
            .claims
            .iter()
            .flat_map(|claim| claim.devices.requests.iter().flatten())
            .any(|request| request.first_available.is_some());
        if !has_alternatives {
            return None;
        }
        Some(Box::new(prepared))
    }

    fn reserve(&self, cycle: Cycle<'_>, info: &NodeInfo) -> Result<ClaimUse, Status> {
        let Some(node) = &info.node else { return Ok(ClaimUse::default()) };
        let Some(prepared) = self.prepare(cycle.pod, cycle.objects)? else {
            return Ok(ClaimUse::default());
        };
        let Allocated { results: found, special } = prepared.allocate(node)?;
        let known = prepared.claims.iter().filter_map(|claim| claim.allocation.as_deref());
        let waits = known.chain(&found).any(is_conditional);
        let mut found = found.into_iter();
        let reservations = prepared.claims.iter().map(|claim| DeviceReservation {
            claim: claim.key.clone(),
            uid: claim.uid.clone(),
            allocation: match claim.allocation {
                Some(_) => None,
                None => found.next().map(Arc::new),
            },
            special: None,
        });
        let needed = |own: &DeviceReservation| {
            own.allocation.is_some()
                || !prepared
                    .claims
                    .iter()
                    .any(|claim| claim.key == own.claim && claim.is_reserved_for(cycle.pod))
        };
        let mut devices: Vec<DeviceReservation> = reservations.filter(needed).collect();
        devices.extend(special.map(|(claim, special)| DeviceReservation {
            claim: claim.key,
            uid: claim.uid,
            allocation: found.next().map(Arc::new),
            special: Some(Arc::new(special)),
        }));
        Ok(ClaimUse {
            devices,
            device_wait: waits.then_some(self.binding_timeout),
            ..ClaimUse::default()
        })
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::ResourceClaim(old, new) => {
                let was_freed = old.is_some_and(|old| old.allocation.is_some());
                let is_freed = was_freed && new.allocation.is_none();
                let is_same = old.is_some_and(|old| {
                    old.allocation == new.allocation
                        && old.consumers == new.consumers
                        && old.readiness == new.readiness
                });
                let mut own = pod.resource_claims.iter().filter_map(|own| own.claim.key());
                let is_own = new.is_special && new.owner.as_deref() == Some(&*pod.uid);
                is_freed || (!is_same && (is_own || own.any(|key| *key == new.key)))
            }
            ClusterEvent::DeviceClass(_) | ClusterEvent::ResourceSlice(_) => true,
            ClusterEvent::UnscheduledPodUpdated(old, new) => {
                new.uid == pod.uid && old.resource_claims != new.resource_claims
            }
            _ => event.node().is_some_and(|(old, new)| {
                old.is_none_or(|old| old.labels != new.labels || old.allocatable != new.allocatable)
            }),
        }
    }
}
