//! Everything but pods and nodes that plugins look up: claims, volumes, classes, drivers,
//! controllers, services, budgets and labels of namespaces.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;

use super::{
    Atom, Capacity, Claim, ClaimKey, CsiDriver, CsiNode, DeviceClass, DeviceReservation, Labels,
    PersistentVolume, Pod, Requirement, ResourceClaim, ResourceSlice, Selector, StorageClass,
    UsedDevices, VolumeAttachment, VolumeSource,
};

/// The driver of Amazon's disks.
pub(crate) const EBS_DRIVER: &str = "ebs.csi.aws.com";
/// The driver of Google's disks.
pub(crate) const GCE_DRIVER: &str = "pd.csi.storage.gke.io";
/// Number of Amazon's disks at a node of which no driver says a number.
const MAX_EBS: usize = 39;
/// The same of Google's.
const MAX_GCE: usize = 16;

/// The kinds of controllers whose pods spread by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkloadKind {
    /// ReplicationController.
    ReplicationController,
    /// ReplicaSet.
    ReplicaSet,
    /// StatefulSet.
    StatefulSet,
}

/// A controller: kind, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Workload {
    /// Its kind.
    pub kind: WorkloadKind,
    /// Namespace and name.
    pub key: ClaimKey,
}

/// A pod disruption budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Its namespace.
    pub namespace: Atom,
    /// The pods that it protects.
    pub selector: Selector,
    /// How many may be disrupted.
    pub allowed: i64,
    /// Names of pods whose disruption is counted already.
    pub disrupted: BTreeSet<Box<str>>,
}

impl Budget {
    /// From the API's object. An invalid selector protects nothing.
    pub fn new(api: &PodDisruptionBudget) -> Self {
        let selector = api.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let status = api.status.as_ref();
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        Self {
            namespace: Atom::new(api.metadata.namespace.as_deref().unwrap_or_default()),
            selector: Selector::new(selector).unwrap_or_default(),
            allowed: status.and_then(|status| status.disruptions_allowed).map_or(0, i64::from),
            disrupted: disrupted
                .into_iter()
                .flatten()
                .map(|(name, _)| name.as_str().into())
                .collect(),
        }
    }

    /// Whether the disruption of a pod counts against it.
    pub fn protects(&self, pod: &Pod) -> bool {
        self.namespace == pod.namespace
            && !pod.labels.is_empty()
            && !self.selector.is_empty()
            && self.selector.matches(&pod.labels)
            && !self.disrupted.contains(&pod.name)
    }
}

/// What a pod that is being scheduled takes for its claims before the API shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimUse {
    /// Volumes that are kept for claims.
    pub volumes: Vec<(Atom, ClaimKey)>,
    /// Claims that are to be provisioned for the node.
    pub provisions: Vec<ClaimKey>,
    /// The node.
    pub node: Option<Atom>,
    /// Claims for devices that are to be allocated, or reserved for the pod.
    pub devices: Vec<DeviceReservation>,
    /// How long devices of the pod may take to be prepared; `None`: none has to be.
    pub device_wait: Option<Duration>,
}

impl ClaimUse {
    /// Whether nothing is to be bound.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty()
            && self.provisions.is_empty()
            && self.devices.is_empty()
            && self.device_wait.is_none()
    }

    /// Adds what another plugin reserves.
    pub fn merge(&mut self, other: Self) {
        self.volumes.extend(other.volumes);
        self.provisions.extend(other.provisions);
        self.devices.extend(other.devices);
        self.node = other.node.or(self.node.take());
        self.device_wait = self.device_wait.max(other.device_wait);
    }
}

/// All of these objects.
#[derive(Debug, Default)]
pub struct Objects {
    /// Claims.
    pub claims: HashMap<ClaimKey, Claim>,
    /// Volumes.
    pub volumes: HashMap<Atom, PersistentVolume>,
    /// Storage classes.
    pub classes: HashMap<Atom, StorageClass>,
    /// Drivers of nodes.
    pub csi_nodes: HashMap<Atom, CsiNode>,
    /// Drivers.
    pub csi_drivers: HashMap<Atom, CsiDriver>,
    /// Capacities.
    pub capacities: HashMap<ClaimKey, Capacity>,
    /// Attached volumes.
    pub attachments: HashMap<Atom, VolumeAttachment>,
    /// Selectors of services, by namespace and name.
    pub services: HashMap<Atom, HashMap<Atom, Selector>>,
    /// Selectors of controllers.
    pub workloads: HashMap<Workload, Selector>,
    /// Pod disruption budgets.
    pub budgets: HashMap<ClaimKey, Budget>,
    /// Labels of namespaces.
    pub namespaces: HashMap<Atom, Labels>,
    /// Volumes that are kept for claims by pods that are being bound.
    assumed_volumes: HashMap<Atom, ClaimKey>,
    /// Nodes of claims that are being provisioned for pods that are being bound.
    assumed_nodes: HashMap<ClaimKey, Atom>,
    /// Claims for devices.
    pub resource_claims: HashMap<ClaimKey, ResourceClaim>,
    /// Classes of devices.
    pub device_classes: HashMap<Atom, DeviceClass>,
    /// Slices of pools of devices.
    pub slices: HashMap<Atom, ResourceSlice>,
    /// Devices of claims that are allocated, or being allocated.
    used_devices: UsedDevices,
    /// UIDs of claims that are being allocated for pods that are being bound.
    in_flight: HashSet<Box<str>>,
    /// The time, as the last change was taken in.
    pub clock: Timestamp,
    no_labels: Labels,
}

impl Objects {
    /// Labels of a namespace; none if it is not known.
    pub fn namespace(&self, name: &Atom) -> &Labels {
        self.namespaces.get(name).unwrap_or(&self.no_labels)
    }

    /// Keeps volumes and claims for a pod that is being bound.
    pub fn assume(&mut self, use_: &ClaimUse) {
        for (volume, claim) in &use_.volumes {
            self.assumed_volumes.insert(volume.clone(), claim.clone());
        }
        if let Some(node) = &use_.node {
            for claim in &use_.provisions {
                self.assumed_nodes.insert(claim.clone(), node.clone());
            }
        }
        for own in &use_.devices {
            if let Some(allocation) = &own.allocation {
                self.used_devices.add(allocation);
                self.in_flight.insert(own.uid.clone());
            }
        }
    }

    /// Gives them back, when the pod is bound or when that failed.
    pub fn release(&mut self, use_: &ClaimUse) {
        for (volume, _) in &use_.volumes {
            self.assumed_volumes.remove(volume);
        }
        for claim in &use_.provisions {
            self.assumed_nodes.remove(claim);
        }
        for own in &use_.devices {
            if let Some(allocation) = &own.allocation {
                self.used_devices.remove(allocation);
                self.in_flight.remove(&own.uid);
            }
        }
    }

    /// Stores a claim for devices, or removes it; returns what it was and whether that is a change. One that
    /// is older than what is stored comes late: what was written is known before it is watched.
    pub fn set_resource_claim(
        &mut self,
        key: ClaimKey,
        new: Option<ResourceClaim>,
    ) -> (Option<ResourceClaim>, bool) {
        let known = self.resource_claims.get(&key);
        if let (Some(known), Some(new)) = (known, &new)
            && known.uid == new.uid
            && known.version > new.version
        {
            return (None, false);
        }
        if let Some(allocation) = new.as_ref().and_then(|own| own.allocation.as_deref()) {
            self.used_devices.add(allocation);
        }
        let is_gone = new.is_none();
        let is_change = known != new.as_ref();
        let old = match new {
            Some(new) => self.resource_claims.insert(key, new),
            None => self.resource_claims.remove(&key),
        };
        if let Some(allocation) = old.as_ref().and_then(|own| own.allocation.as_deref()) {
            self.used_devices.remove(allocation);
        }
        (old, is_change && !is_gone)
    }

    /// Whether devices for the claim were found for a pod that is being bound.
    pub fn is_being_allocated(&self, claim: &ResourceClaim) -> bool {
        self.in_flight.contains(&claim.uid)
    }

    /// Devices that are taken.
    pub fn used_devices(&self) -> &UsedDevices {
        &self.used_devices
    }

    /// The claim that a volume is bound to or kept for.
    pub fn claim_of<'a>(&'a self, volume: &'a PersistentVolume) -> Option<&'a ClaimKey> {
        self.assumed_volumes.get(&volume.name).or(volume.claim.as_ref().map(|claim| &claim.key))
    }

    /// The node that a claim is to be provisioned for.
    pub fn selected_node<'a>(&'a self, claim: &'a Claim) -> Option<&'a Atom> {
        self.assumed_nodes.get(&claim.key).or(claim.selected_node.as_ref())
    }

    /// The requirements that pods of the same service or controller meet; `None` if there are none.
    pub fn default_selector(&self, pod: &Pod) -> Option<Selector> {
        let mut all: Vec<Requirement> = Vec::new();
        let mut merge = |selector: &Selector| {
            if let Selector::All(more) = selector {
                all.extend(more.iter().cloned());
            }
        };
        for selector in self.services.get(&pod.namespace).into_iter().flat_map(HashMap::values) {
            if !selector.is_empty() && selector.matches(&pod.labels) {
                merge(selector);
            }
        }
        if let Some(selector) = self.workload_selector(pod) {
            merge(selector);
        }
        (!all.is_empty()).then_some(Selector::All(all))
    }

    /// The selector of the controller of a pod.
    pub fn workload_selector(&self, pod: &Pod) -> Option<&Selector> {
        let owner = pod.owner.as_ref()?;
        let kind = match owner.kind.as_str() {
            "ReplicationController" => WorkloadKind::ReplicationController,
            "ReplicaSet" => WorkloadKind::ReplicaSet,
            "StatefulSet" => WorkloadKind::StatefulSet,
            _ => return None,
        };
        let key = ClaimKey { namespace: pod.namespace.clone(), name: owner.name.clone() };
        self.workloads.get(&Workload { kind, key })
    }

    /// Selectors of services, and of the pod's controller, that select the pod.
    pub fn selectors_of(&self, pod: &Pod) -> Vec<&Selector> {
        let services = self.services.get(&pod.namespace);
        let mut all: Vec<_> = services
            .into_iter()
            .flat_map(HashMap::values)
            .filter(|selector| !selector.is_empty() && selector.matches(&pod.labels))
            .collect();
        all.extend(self.workload_selector(pod));
        all
    }

    /// Driver and handle of what a volume of a pod attaches, if it attaches anything that counts.
    pub fn attached(&self, source: &VolumeSource) -> Option<(Atom, Atom)> {
        match source {
            VolumeSource::Ebs(id) => Some((Atom::new(EBS_DRIVER), id.clone())),
            VolumeSource::GcePd(name, _) => Some((Atom::new(GCE_DRIVER), name.clone())),
            VolumeSource::Claim { name, .. } => {
                let claim = self.claims.get(name)?;
                if let Some(volume) = claim.volume.as_ref().and_then(|name| self.volumes.get(name))
                {
                    return volume.csi.clone();
                }
                // It is not provisioned yet: the claim stands for its volume.
                let class = self.classes.get(claim.class.as_ref()?)?;
                let driver = match class.provisioner.as_str() {
                    "kubernetes.io/aws-ebs" => Atom::new(EBS_DRIVER),
                    "kubernetes.io/gce-pd" => Atom::new(GCE_DRIVER),
                    _ => class.provisioner.clone(),
                };
                Some((driver, Atom::new(&format!("claim:{name}"))))
            }
            _ => None,
        }
    }

    /// How many volumes of a driver a node can have attached; `None`: no limit.
    pub fn attach_limit(&self, node: &Atom, driver: &Atom) -> Option<usize> {
        let own = self.csi_nodes.get(node);
        own.and_then(|own| own.limit(driver)).or_else(|| match driver.as_str() {
            _ if own.is_some_and(|own| own.drivers.iter().any(|(name, _)| name == driver)) => None,
            EBS_DRIVER => Some(MAX_EBS),
            GCE_DRIVER => Some(MAX_GCE),
            _ => None,
        })
    }

    /// Drivers and handles of volumes that are attached to a node.
    pub fn attachments_of(&self, node: &Atom) -> HashSet<(Atom, Atom)> {
        let own = self.attachments.values().filter(|attachment| attachment.node == *node);
        own.filter_map(|attachment| {
            let volume = self.volumes.get(attachment.volume.as_ref()?)?;
            volume.csi.clone()
        })
        .collect()
    }
}
