//! Volumes that only one pod, or one node, can have.

use std::collections::HashSet;

use super::has_claim;
use crate::events::ClusterEvent;
use crate::framework::{Code, Cycle, FILTERS, NodeFilter, Plugin, Points, PreFilter, Status};
use crate::model::{Atom, ClaimKey, NodeInfo, Pod, VolumeSource};

/// Rejects nodes on which a disk is used already, and pods whose exclusive claim is in use.
#[derive(Debug)]
pub(in crate::plugins) struct VolumeRestrictions;

struct Conflicts<'a> {
    pod: &'a Pod,
    /// Claims that one pod alone may use.
    exclusive: HashSet<&'a ClaimKey>,
    /// How often they are used by others.
    uses: usize,
    disks: Vec<&'a VolumeSource>,
}

impl Conflicts<'_> {
    fn uses_of(&self, pod: &Pod) -> usize {
        pod.claims().filter(|key| self.exclusive.contains(key)).count()
    }
}

impl NodeFilter for Conflicts<'_> {
    fn filter(&self, info: &NodeInfo) -> Result<(), Status> {
        let is_used = |disk: &&VolumeSource| {
            info.pods
                .iter()
                .any(|pod| pod.volumes.iter().any(|volume| volume.source.conflicts(disk)))
        };
        if self.disks.iter().any(is_used) {
            return Err(Status::unschedulable("node(s) had no available disk"));
        }
        if self.uses > 0 {
            return Err(Status::unschedulable(
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
            ));
        }
        Ok(())
    }

    fn add_pod(&mut self, pod: &Pod, _: &NodeInfo) {
        self.uses += self.uses_of(pod);
    }

    fn remove_pod(&mut self, pod: &Pod, _: &NodeInfo) {
        self.uses = self.uses.saturating_sub(self.uses_of(pod));
    }
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }

    fn points(&self) -> Points {
        FILTERS
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let pod = cycle.pod;
        let mut own = Conflicts { pod, exclusive: HashSet::new(), uses: 0, disks: Vec::new() };
        for volume in &pod.volumes {
            match &volume.source {
                VolumeSource::Claim { name, .. } => {
                    let Some(claim) = cycle.objects.claims.get(name) else {
                        let name: &Atom = &name.name;
                        return PreFilter::Reject(Status::new(
                            Code::Unresolvable,
                            format!("persistentvolumeclaim \"{name}\" not found"),
                        ));
                    };
                    if claim.is_exclusive() {
                        own.exclusive.insert(name);
                    }
                }
                VolumeSource::Csi(_) => {}
                disk => own.disks.push(disk),
            }
        }
        if own.exclusive.is_empty() && own.disks.is_empty() {
            return PreFilter::Skip;
        }
        if !own.exclusive.is_empty() {
            let others = cycle.snapshot.nodes().iter().flat_map(|node| &node.pods);
            own.uses =
                others.filter(|other| other.uid != own.pod.uid).map(|pod| own.uses_of(pod)).sum();
        }
        PreFilter::Filter(Box::new(own))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::PodDeleted(gone) => gone.volumes.iter().any(|freed| {
                pod.volumes.iter().any(|own| {
                    own.source.conflicts(&freed.source)
                        || own.source.claim().is_some_and(|key| freed.source.claim() == Some(key))
                })
            }),
            ClusterEvent::NodeAdded(_) => true,
            ClusterEvent::Claim(None, new) => has_claim(pod, &new.key),
            _ => false,
        }
    }
}
