//! Claims, volumes and what drivers say, as the scheduler needs them.

use std::fmt;

use k8s_openapi::api::core::v1::{
    PersistentVolume as ApiVolume, PersistentVolumeClaim as ApiClaim, TopologySelectorTerm,
};
use k8s_openapi::api::storage::v1::{
    CSIDriver as ApiDriver, CSINode as ApiCsiNode, CSIStorageCapacity as ApiCapacity,
    StorageClass as ApiClass, VolumeAttachment as ApiAttachment,
};

use super::{Atom, Labels, NodeSelector, Requirement, Selector, resources::value};

/// The node for which a claim is to be provisioned.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Namespace and name of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimKey {
    /// Its namespace.
    pub namespace: Atom,
    /// Its name.
    pub name: Atom,
}

impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// Namespace and name.
    pub key: ClaimKey,
    /// Its UID.
    pub uid: Box<str>,
    /// The version read.
    pub version: Box<str>,
    /// The pod that controls it, by UID.
    pub owner: Option<Box<str>>,
    /// The volume that it is bound to, or wants.
    pub volume: Option<Atom>,
    /// The name of its class; `None` is the one without a name.
    pub class: Option<Atom>,
    /// Bytes wanted.
    pub request: Option<i64>,
    /// Modes of access wanted.
    pub modes: Box<[Atom]>,
    /// Whether it wants a block device.
    pub is_block: bool,
    /// The volumes that may be bound to it; `None`: all.
    pub selector: Option<Selector>,
    /// The class of volume attributes.
    pub attributes_class: Option<Atom>,
    /// Whether its volume is gone.
    pub is_lost: bool,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether binding is complete.
    pub is_bound: bool,
    /// The node that it is to be provisioned for.
    pub selected_node: Option<Atom>,
}

impl Claim {
    /// From the API's object.
    pub fn new(api: &ApiClaim) -> Self {
        let meta = &api.metadata;
        let spec = api.spec.as_ref();
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));
        let atom = |text: Option<&String>| text.filter(|text| !text.is_empty()).map(Atom::from);
        let volume = atom(spec.and_then(|spec| spec.volume_name.as_ref()));
        let class =
            annotation(BETA_CLASS).or(spec.and_then(|spec| spec.storage_class_name.as_ref()));
        let owner = meta.owner_references.iter().flatten();
        let requests = spec
            .and_then(|spec| spec.resources.as_ref())
            .and_then(|resources| resources.requests.as_ref());
        let selector = spec.and_then(|spec| spec.selector.as_ref());
        let phase = api.status.as_ref().and_then(|status| status.phase.as_deref());
        Self {
            key: ClaimKey {
                namespace: Atom::new(meta.namespace.as_deref().unwrap_or_default()),
                name: Atom::new(meta.name.as_deref().unwrap_or_default()),
            },
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: meta.resource_version.as_deref().unwrap_or_default().into(),
            owner: owner
                .clone()
                .find(|owner| owner.controller == Some(true) && owner.kind == "Pod")
                .map(|owner| owner.uid.as_str().into()),
            class: atom(class),
            request: requests.and_then(|all| all.get("storage")).map(value),
            modes: modes(spec.and_then(|spec| spec.access_modes.as_ref())),
            is_block: spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block"),
            selector: selector.map(|api| Selector::new(Some(api)).unwrap_or_default()),
            attributes_class: atom(
                spec.and_then(|spec| spec.volume_attributes_class_name.as_ref()),
            ),
            is_lost: phase == Some("Lost"),
            is_deleting: meta.deletion_timestamp.is_some(),
            is_bound: volume.is_some() && annotation(BIND_COMPLETED).is_some(),
            selected_node: atom(annotation(SELECTED_NODE)),
            volume,
        }
    }

    /// Whether only one pod may use it.
    pub fn is_exclusive(&self) -> bool {
        self.modes.iter().any(|mode| mode.as_str() == "ReadWriteOncePod")
    }
}

fn modes(api: Option<&Vec<String>>) -> Box<[Atom]> {
    api.into_iter().flatten().map(Atom::from).collect()
}

/// The claim that a volume is bound to, or kept for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRef {
    /// Its key.
    pub key: ClaimKey,
    /// Its UID; empty while the volume is only kept for the name.
    pub uid: Box<str>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistentVolume {
    /// Its name.
    pub name: Atom,
    /// The version read.
    pub version: Box<str>,
    /// Its labels.
    pub labels: Labels,
    /// The name of its class.
    pub class: Option<Atom>,
    /// Bytes.
    pub capacity: i64,
    /// Modes of access.
    pub modes: Box<[Atom]>,
    /// Whether it is a block device.
    pub is_block: bool,
    /// Whether it can be bound: it is neither failed nor released.
    pub is_available: bool,
    /// The nodes that can use it; `None`: all.
    pub nodes: Option<NodeSelector>,
    /// The claim.
    pub claim: Option<ClaimRef>,
    /// The CSI driver and its handle; for disks that drivers took over likewise.
    pub csi: Option<(Atom, Atom)>,
    /// Whether it is of a kind that a driver took over.
    pub is_migrated: bool,
    /// The class of volume attributes.
    pub attributes_class: Option<Atom>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
}

impl PersistentVolume {
    /// From the API's object.
    pub fn new(api: &ApiVolume) -> Self {
        let meta = &api.metadata;
        let spec = api.spec.as_ref();
        let atom = |text: Option<&String>| text.filter(|text| !text.is_empty()).map(Atom::from);
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));
        let class =
            annotation(BETA_CLASS).or(spec.and_then(|spec| spec.storage_class_name.as_ref()));
        let phase = api.status.as_ref().and_then(|status| status.phase.as_deref());
        let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
        let (csi, is_migrated) = spec.map_or((None, false), |spec| {
            if let Some(csi) = &spec.csi {
                (Some((Atom::new(&csi.driver), Atom::new(&csi.volume_handle))), false)
            } else if let Some(disk) = &spec.aws_elastic_block_store {
                (Some((Atom::new(super::objects::EBS_DRIVER), Atom::new(&disk.volume_id))), true)
            } else if let Some(disk) = &spec.gce_persistent_disk {
                (Some((Atom::new(super::objects::GCE_DRIVER), Atom::new(&disk.pd_name))), true)
            } else {
                (None, false)
            }
        });
        Self {
            name: Atom::new(meta.name.as_deref().unwrap_or_default()),
            version: meta.resource_version.as_deref().unwrap_or_default().into(),
            labels: Labels::new(meta.labels.as_ref()),
            class: atom(class),
            capacity: spec
                .and_then(|spec| spec.capacity.as_ref())
                .and_then(|all| all.get("storage"))
                .map_or(0, value),
            modes: modes(spec.and_then(|spec| spec.access_modes.as_ref())),
            is_block: spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block"),
            is_available: !matches!(phase, Some("Released" | "Failed")),
            nodes: spec
                .and_then(|spec| spec.node_affinity.as_ref())
                .and_then(|affinity| affinity.required.as_ref())
                .map(NodeSelector::new),
            claim: claim.map(|claim| ClaimRef {
                key: ClaimKey {
                    namespace: Atom::new(claim.namespace.as_deref().unwrap_or_default()),
                    name: Atom::new(claim.name.as_deref().unwrap_or_default()),
                },
                uid: claim.uid.as_deref().unwrap_or_default().into(),
            }),
            csi,
            is_migrated,
            attributes_class: atom(
                spec.and_then(|spec| spec.volume_attributes_class_name.as_ref()),
            ),
            is_deleting: meta.deletion_timestamp.is_some(),
        }
    }
}

/// A storage class.
#[derive(Debug, Clone, PartialEq)]
pub struct StorageClass {
    /// Its name.
    pub name: Atom,
    /// The provisioner.
    pub provisioner: Atom,
    /// Whether claims are bound when a pod is scheduled; `None`: the class does not say.
    pub waits: Option<bool>,
    /// The topologies in which volumes can be made: those that meet all requirements of any.
    pub topologies: Box<[Box<[Requirement]>]>,
}

impl StorageClass {
    /// From the API's object.
    pub fn new(api: &ApiClass) -> Self {
        let mode = api.volume_binding_mode.as_deref();
        Self {
            name: Atom::new(api.metadata.name.as_deref().unwrap_or_default()),
            provisioner: Atom::new(&api.provisioner),
            waits: mode.map(|mode| mode == "WaitForFirstConsumer"),
            topologies: api.allowed_topologies.iter().flatten().map(topology).collect(),
        }
    }

    /// Whether volumes can be made for nodes with these labels.
    pub fn allows(&self, labels: &Labels) -> bool {
        self.topologies.is_empty()
            || self.topologies.iter().any(|all| all.iter().all(|one| one.matches(labels)))
    }
}

fn topology(api: &TopologySelectorTerm) -> Box<[Requirement]> {
    let all = api.match_label_expressions.iter().flatten();
    all.map(|one| {
        let values = one.values.iter().map(Atom::from).collect();
        Requirement::In(Atom::new(&one.key), values)
    })
    .collect()
}

/// The drivers of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct CsiNode {
    /// The name of the node.
    pub name: Atom,
    /// Drivers with the number of volumes that they can attach, where they say one.
    pub drivers: Box<[(Atom, Option<usize>)]>,
    /// Kinds of volumes that drivers took over on the node.
    pub migrated: Box<str>,
}

impl CsiNode {
    /// From the API's object.
    pub fn new(api: &ApiCsiNode) -> Self {
        let annotations = api.metadata.annotations.as_ref();
        let count = |count: Option<i32>| count.and_then(|count| usize::try_from(count).ok());
        Self {
            name: Atom::new(api.metadata.name.as_deref().unwrap_or_default()),
            drivers: api
                .spec
                .drivers
                .iter()
                .map(|driver| {
                    let limit = driver.allocatable.as_ref();
                    (Atom::new(&driver.name), limit.and_then(|limit| count(limit.count)))
                })
                .collect(),
            migrated: annotations
                .and_then(|all| all.get("storage.alpha.kubernetes.io/migrated-plugins"))
                .map_or_else(Box::default, |text| text.as_str().into()),
        }
    }

    /// The number of volumes that a driver can attach, where it says one.
    pub fn limit(&self, driver: &Atom) -> Option<usize> {
        self.drivers.iter().find(|(own, _)| own == driver).and_then(|(_, limit)| *limit)
    }
}

/// A driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsiDriver {
    /// Its name.
    pub name: Atom,
    /// Whether it publishes capacities.
    pub has_capacities: bool,
}

impl CsiDriver {
    /// From the API's object.
    pub fn new(api: &ApiDriver) -> Self {
        Self {
            name: Atom::new(api.metadata.name.as_deref().unwrap_or_default()),
            has_capacities: api.spec.storage_capacity.unwrap_or_default(),
        }
    }
}

/// How much storage of a class is left in a topology.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    /// Namespace and name of the object.
    pub key: ClaimKey,
    /// The class.
    pub class: Atom,
    /// The largest volume possible, in bytes.
    pub limit: Option<i64>,
    /// The nodes of the topology.
    pub nodes: Selector,
}

impl Capacity {
    /// From the API's object.
    pub fn new(api: &ApiCapacity) -> Self {
        let meta = &api.metadata;
        Self {
            key: ClaimKey {
                namespace: Atom::new(meta.namespace.as_deref().unwrap_or_default()),
                name: Atom::new(meta.name.as_deref().unwrap_or_default()),
            },
            class: Atom::new(&api.storage_class_name),
            limit: api.maximum_volume_size.as_ref().or(api.capacity.as_ref()).map(value),
            nodes: Selector::new(api.node_topology.as_ref()).unwrap_or_default(),
        }
    }
}

/// A volume that is attached to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeAttachment {
    /// The name of the object.
    pub name: Atom,
    /// The node.
    pub node: Atom,
    /// The driver.
    pub driver: Atom,
    /// The volume.
    pub volume: Option<Atom>,
}

impl VolumeAttachment {
    /// From the API's object.
    pub fn new(api: &ApiAttachment) -> Self {
        Self {
            name: Atom::new(api.metadata.name.as_deref().unwrap_or_default()),
            node: Atom::new(&api.spec.node_name),
            driver: Atom::new(&api.spec.attacher),
            volume: api.spec.source.persistent_volume_name.as_ref().map(Atom::from),
        }
    }
}
