//! Claims of a pod: those that are bound fit nodes that reach their volumes; those that wait for their
//! pod get a volume that fits them, or are provisioned for the node.

use serde::Deserialize;
use serde_json::Value;

use super::super::{PluginError, arguments, invalid};
use super::has_claim;
use crate::events::ClusterEvent;
use crate::framework::{
    Code, Cycle, FILTERS, NodeFilter, Plugin, Points, PreFilter, Reasons, Status,
};
use crate::model::{
    Atom, Claim, ClaimUse, Node, NodeInfo, Objects, PersistentVolume, Pod, VolumeSource,
};

const NAME: &str = "VolumeBinding";
/// A provisioner that makes no volumes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Finds volumes for the claims of a pod.
#[derive(Debug)]
pub(in crate::plugins) struct VolumeBinding;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    bind_timeout_seconds: i64,
}

impl Default for Args {
    fn default() -> Self {
        Self { bind_timeout_seconds: 600 }
    }
}

impl VolumeBinding {
    pub(in crate::plugins) fn new(args: &Value) -> Result<Self, PluginError> {
        let args: Args = arguments(NAME, args)?;
        if args.bind_timeout_seconds < 0 {
            return Err(invalid(NAME, "bindTimeoutSeconds: must not be negative"));
        }
        Ok(Self)
    }
}

/// Claims of a pod by what they need.
#[derive(Debug, Default)]
struct Claims<'a> {
    bound: Vec<&'a Claim>,
    waiting: Vec<&'a Claim>,
}

/// The claims of a pod, or why no node fits.
fn claims<'a>(pod: &Pod, objects: &'a Objects) -> Result<Claims<'a>, Status> {
    let reject = |reason: String| Err(Status::new(Code::Unresolvable, reason));
    let mut all = Claims::default();
    let mut has_immediate = false;
    for volume in &pod.volumes {
        let VolumeSource::Claim { name: key, is_ephemeral } = &volume.source else { continue };
        let name = &key.name;
        let Some(claim) = objects.claims.get(key) else {
            return reject(if *is_ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                )
            } else {
                format!("persistentvolumeclaim \"{name}\" not found")
            });
        };
        if claim.is_lost {
            let volume = claim.volume.as_deref().unwrap_or_default();
            return reject(format!(
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
            ));
        }
        if claim.is_deleting {
            return reject(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        if *is_ephemeral && claim.owner.as_deref() != Some(&*pod.uid) {
            return reject(format!(
                "PVC {key} was not created for pod {} (pod is not owner)",
                pod.key()
            ));
        }
        if claim.is_bound {
            all.bound.push(claim);
            continue;
        }
        let class = claim.class.as_ref().and_then(|class| objects.classes.get(class));
        if let (Some(class), None) = (&claim.class, class) {
            return reject(format!("storageclasses.storage.k8s.io \"{class}\" not found"));
        }
        if claim.volume.is_none() && class.is_some_and(|class| class.waits == Some(true)) {
            all.waiting.push(claim);
        } else {
            has_immediate = true;
        }
    }
    if has_immediate {
        return Err(Status::unresolvable("pod has unbound immediate PersistentVolumeClaims"));
    }
    // The smallest claim takes the smallest volume.
    all.waiting.sort_by_key(|claim| claim.request);
    Ok(all)
}

impl Claims<'_> {
    /// What is to be bound if the pod goes to a node, or why the node does not fit.
    fn on(&self, node: &Node, objects: &Objects) -> Result<ClaimUse, Vec<&'static str>> {
        let mut reasons = Vec::new();
        for claim in &self.bound {
            let volume = claim.volume.as_ref().and_then(|name| objects.volumes.get(name));
            match volume {
                None => {
                    reasons.push(
                        "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
                    );
                    break;
                }
                Some(volume) if !reaches(volume, node) => {
                    reasons.insert(0, "node(s) didn't match PersistentVolume's node affinity");
                    break;
                }
                Some(_) => {}
            }
        }
        let mut use_ = ClaimUse { node: Some(node.name.clone()), ..ClaimUse::default() };
        for claim in &self.waiting {
            let selected = objects.selected_node(claim);
            if selected.is_some_and(|selected| *selected != node.name) {
                reasons.push("node(s) didn't find available persistent volumes to bind");
                break;
            }
            let found = match selected {
                Some(_) => None,
                None => find_volume(claim, node, objects, &use_),
            };
            if let Some(volume) = found {
                use_.volumes.push((volume.name.clone(), claim.key.clone()));
                continue;
            }
            match can_provision(claim, node, objects) {
                Provision::Yes => use_.provisions.push(claim.key.clone()),
                Provision::No => {
                    reasons.push("node(s) didn't find available persistent volumes to bind");
                    break;
                }
                Provision::NoSpace => {
                    reasons.push("node(s) did not have enough free storage");
                    break;
                }
            }
        }
        if reasons.is_empty() { Ok(use_) } else { Err(reasons) }
    }
}

fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    volume.nodes.as_ref().is_none_or(|nodes| nodes.matches(&node.name, &node.labels))
}

/// The smallest volume that fits a claim on a node, or the one that is kept for it.
fn find_volume<'a>(
    claim: &Claim,
    node: &Node,
    objects: &'a Objects,
    taken: &ClaimUse,
) -> Option<&'a PersistentVolume> {
    let mut best: Option<&PersistentVolume> = None;
    for volume in objects.volumes.values() {
        if volume.class != claim.class
            || volume.is_block != claim.is_block
            || volume.is_deleting
            || !volume.is_available
            || volume.attributes_class != claim.attributes_class
            || taken.volumes.iter().any(|(name, _)| *name == volume.name)
            || volume.capacity < claim.request.unwrap_or(0)
            || !claim.modes.iter().all(|mode| volume.modes.contains(mode))
            || !reaches(volume, node)
        {
            continue;
        }
        match objects.claim_of(volume) {
            Some(key) if *key != claim.key => continue,
            Some(_) => return Some(volume),
            None => {}
        }
        if claim.selector.as_ref().is_some_and(|selector| !selector.matches(&volume.labels)) {
            continue;
        }
        let order = |own: &PersistentVolume| (own.capacity, own.name.to_string());
        if best.is_none_or(|best| order(volume) < order(best)) {
            best = Some(volume);
        }
    }
    best
}

enum Provision {
    Yes,
    No,
    NoSpace,
}

fn can_provision(claim: &Claim, node: &Node, objects: &Objects) -> Provision {
    let class = claim.class.as_ref().and_then(|name: &Atom| objects.classes.get(name));
    let Some(class) = class else { return Provision::No };
    if matches!(class.provisioner.as_str(), "" | NO_PROVISIONER)
        || !class.allows(&node.labels)
        || claim.selector.is_some()
    {
        return Provision::No;
    }
    let Some(size) = claim.request else { return Provision::Yes };
    let driver = objects.csi_drivers.get(&class.provisioner);
    if !driver.is_some_and(|driver| driver.has_capacities) {
        return Provision::Yes;
    }
    let is_enough = objects.capacities.values().any(|capacity| {
        capacity.class == class.name
            && capacity.limit.is_some_and(|limit| limit >= size)
            && capacity.nodes.matches(&node.labels)
    });
    if is_enough { Provision::Yes } else { Provision::NoSpace }
}

struct Reachable<'a> {
    claims: Claims<'a>,
    objects: &'a Objects,
}

impl NodeFilter for Reachable<'_> {
    fn filter(&self, info: &NodeInfo) -> Result<(), Status> {
        let Some(node) = &info.node else { return Ok(()) };
        match self.claims.on(node, self.objects) {
            Ok(_) => Ok(()),
            Err(reasons) => Err(Status {
                code: Code::Unresolvable,
                reasons: Reasons::Many(reasons.into_iter().map(Into::into).collect()),
                plugin: NAME,
            }),
        }
    }
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> Points {
        FILTERS.and(Points::RESERVE).and(Points::PRE_BIND)
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        if cycle.pod.claims().next().is_none() {
            return PreFilter::Skip;
        }
        match claims(cycle.pod, cycle.objects) {
            Ok(claims) => PreFilter::Filter(Box::new(Reachable { claims, objects: cycle.objects })),
            Err(status) => PreFilter::Reject(status),
        }
    }

    fn reserve(&self, cycle: Cycle<'_>, info: &NodeInfo) -> Result<ClaimUse, Status> {
        let Some(node) = &info.node else { return Ok(ClaimUse::default()) };
        if cycle.pod.claims().next().is_none() {
            return Ok(ClaimUse::default());
        }
        claims(cycle.pod, cycle.objects)?.on(node, cycle.objects).map_err(|reasons| Status {
            code: Code::Unschedulable,
            reasons: Reasons::Many(reasons.into_iter().map(Into::into).collect()),
            plugin: NAME,
        })
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::Claim(_, new) => has_claim(pod, &new.key),
            ClusterEvent::Volume(..) | ClusterEvent::CsiDriver(Some(_), _) => true,
            ClusterEvent::Class(old, new) => old.is_none_or(|old| old.topologies != new.topologies),
            ClusterEvent::CsiNode(old, new) => old.is_none_or(|old| old.migrated != new.migrated),
            ClusterEvent::Capacity(old, new) => {
                new.limit.is_some() && old.is_none_or(|old| old.limit < new.limit)
            }
            _ => event
                .node()
                .is_some_and(|(old, new)| old.is_none_or(|old| old.labels != new.labels)),
        }
    }
}
