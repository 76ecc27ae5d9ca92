//! How many volumes a node can have attached.

use std::collections::{HashMap, HashSet};

use super::has_claim;
use crate::events::ClusterEvent;
use crate::framework::{Code, Cycle, FILTERS, NodeFilter, Plugin, Points, PreFilter, Status};
use crate::model::{Atom, NodeInfo, Objects, Pod, VolumeSource};

/// Rejects nodes that cannot attach as many volumes.
#[derive(Debug)]
pub(in crate::plugins) struct NodeVolumeLimits;

struct Attached<'a> {
    objects: &'a Objects,
    /// Driver and handle of what the pod attaches.
    wanted: HashSet<(Atom, Atom)>,
}

impl NodeFilter for Attached<'_> {
    fn filter(&self, info: &NodeInfo) -> Result<(), Status> {
        let mut counts: HashMap<&Atom, (usize, usize)> = HashMap::new();
        let mut limits = self.wanted.iter().filter_map(|(driver, _)| {
            Some((driver, self.objects.attach_limit(&info.name, driver)?))
        });
        if limits.next().is_none() {
            return Ok(());
        }
        let mut present = self.objects.attachments_of(&info.name);
        for pod in &info.pods {
            present.extend(pod.volumes.iter().filter_map(|own| self.objects.attached(&own.source)));
        }
        for (driver, _) in &present {
            counts.entry(driver).or_default().0 += 1;
        }
        for (driver, _) in self.wanted.difference(&present) {
            counts.entry(driver).or_default().1 += 1;
        }
        let exceeds = |(driver, (present, more)): (&&Atom, &(usize, usize))| {
            *more > 0
                && self
                    .objects
                    .attach_limit(&info.name, driver)
                    .is_some_and(|limit| present + more > limit)
        };
        if counts.iter().any(exceeds) {
            return Err(Status::unschedulable("node(s) exceed max volume count"));
        }
        Ok(())
    }
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }

    fn points(&self) -> Points {
        FILTERS
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let mut wanted = HashSet::new();
        for volume in &cycle.pod.volumes {
            if let VolumeSource::Claim { name, .. } = &volume.source
                && !cycle.objects.claims.contains_key(name)
            {
                let claim = &name.name;
                return PreFilter::Reject(Status::new(
                    Code::Unresolvable,
                    format!("looking up PVC {name}: persistentvolumeclaim \"{claim}\" not found"),
                ));
            }
            wanted.extend(cycle.objects.attached(&volume.source));
        }
        if wanted.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Filter(Box::new(Attached { objects: cycle.objects, wanted }))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::PodDeleted(gone) => !gone.volumes.is_empty(),
            ClusterEvent::CsiNode(old, new) => old.is_none_or(|old| old.drivers != new.drivers),
            ClusterEvent::NodeAdded(_) | ClusterEvent::AttachmentDeleted(_) => true,
            ClusterEvent::Claim(None, new) => has_claim(pod, &new.key),
            _ => false,
        }
    }
}
