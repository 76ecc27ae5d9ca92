//! Zones of volumes that their labels say.

use super::has_claim;
use crate::events::ClusterEvent;
use crate::framework::{Code, Cycle, FILTERS, NodeFilter, Plugin, Points, PreFilter, Status};
use crate::model::{Atom, NodeInfo, PersistentVolume, Pod};

/// Rejects nodes outside the zones that a bound volume's labels say.
#[derive(Debug)]
pub(in crate::plugins) struct VolumeZone {
    /// Labels of zones and regions: the one of today, and the former one.
    labels: [(Atom, Atom); 2],
}

impl Default for VolumeZone {
    fn default() -> Self {
        let label = |now, former| (Atom::new(now), Atom::new(former));
        Self {
            labels: [
                label("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
                label("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
            ],
        }
    }
}

struct Zones<'a> {
    own: &'a VolumeZone,
    /// Labels that nodes must have, each with one of these values.
    required: Vec<(&'a Atom, &'a Atom, Vec<Atom>)>,
}

impl VolumeZone {
    fn zones<'a>(&'a self, volume: &PersistentVolume) -> Vec<(&'a Atom, &'a Atom, Vec<Atom>)> {
        let mut all = Vec::new();
        for (now, former) in &self.labels {
            for key in [former, now] {
                if let Some(value) = volume.labels.get(key) {
                    // a volume of several zones has their names in one label
                    let values = value.split("__").filter(|zone| !zone.is_empty());
                    all.push((now, former, values.map(Atom::new).collect()));
                }
            }
        }
        all
    }
}

impl NodeFilter for Zones<'_> {
    fn filter(&self, info: &NodeInfo) -> Result<(), Status> {
        let has_any = self
            .own
            .labels
            .iter()
            .any(|(now, former)| info.label(now).or(info.label(former)).is_some());
        if !has_any {
            return Ok(());
        }
        let fits = |(now, former, values): &(&Atom, &Atom, Vec<Atom>)| {
            let own = info.label(former).or(info.label(now));
            own.is_some_and(|zone| values.contains(zone))
        };
        if self.required.iter().all(fits) {
            return Ok(());
        }
        Err(Status::unresolvable("node(s) had no available volume zone"))
    }
}

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        "VolumeZone"
    }

    fn points(&self) -> Points {
        FILTERS
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let mut required = Vec::new();
        let reject = |reason: String| PreFilter::Reject(Status::new(Code::Unresolvable, reason));
        for key in cycle.pod.claims() {
            if key.name.is_empty() {
                return reject("PersistentVolumeClaim had no name".to_owned());
            }
            let Some(claim) = cycle.objects.claims.get(key) else {
                return reject(format!("persistentvolumeclaim \"{}\" not found", key.name));
            };
            if let Some(name) = &claim.volume {
                let Some(volume) = cycle.objects.volumes.get(name) else {
                    return reject(format!("persistentvolume \"{name}\" not found"));
                };
                required.extend(self.zones(volume));
                continue;
            }
            let Some(class) = &claim.class else {
                return reject(
                    "PersistentVolumeClaim had no pv name and storageClass name".to_owned(),
                );
            };
            match cycle.objects.classes.get(class).map(|class| class.waits) {
                None => {
                    return reject(format!("storageclasses.storage.k8s.io \"{class}\" not found"));
                }
                Some(None) => {
                    return reject(format!(
                        "VolumeBindingMode not set for StorageClass \"{class}\""
                    ));
                }
                Some(Some(true)) => {}
                Some(Some(false)) => return reject("PersistentVolume had no name".to_owned()),
            }
        }
        if required.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Filter(Box::new(Zones { own: self, required }))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::Claim(old, new) => {
                has_claim(pod, &new.key) && old.is_none_or(|old| old.volume != new.volume)
            }
            ClusterEvent::Volume(old, new) => old.is_none_or(|old| old.labels != new.labels),
            ClusterEvent::Class(None, _) => true,
            _ => event
                .node()
                .is_some_and(|(old, new)| old.is_none_or(|old| old.labels != new.labels)),
        }
    }
}
