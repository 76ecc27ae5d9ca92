//! Devices that drivers publish in slices, classes of them, and claims for them (dynamic resource
//! allocation).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ContainerExtendedResourceRequest, NodeSelector as ApiNodeSelector, Pod as ApiPod,
};
use k8s_openapi::api::resource::v1::{
    AllocationResult, Device as ApiDevice, DeviceClaim, DeviceClass as ApiClass,
    DeviceClassConfiguration, DeviceRequest, DeviceRequestAllocationResult, DeviceSelector,
    ResourceClaim as ApiClaim, ResourceClaimStatus, ResourceSlice as ApiSlice,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::jiff::Timestamp;
use longshore_quantity::Quantity;

use super::{Atom, ClaimKey, Node, NodeSelector, Pod};

/// Keeps a claim while it is allocated.
pub(crate) const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// On claims that a scheduler has made for extended resources of a pod.
pub(crate) const SPECIAL_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// The name of such a claim before it is made; no claim has it.
const UNNAMED: &str = "<extended-resources>";

/// An amount in billionths; what is no quantity is none.
pub(crate) fn amount(quantity: &ApiQuantity) -> i128 {
    Quantity::parse(&quantity.0).map_or(0, Quantity::amount)
}

/// A device: its driver, its pool and its name in the pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeviceId {
    /// The driver.
    pub driver: Atom,
    /// The pool.
    pub pool: Atom,
    /// The name.
    pub name: Atom,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.name)
    }
}

/// What a claim takes of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// All of it.
    Whole(DeviceId),
    /// A share: amounts of capacities in billionths.
    Share(DeviceId, BTreeMap<String, i128>),
}

/// What claims take of devices. Counted, so that a claim may be added twice and removed twice.
#[derive(Debug, Default)]
pub struct UsedDevices {
    whole: HashMap<DeviceId, usize>,
    shares: HashMap<DeviceId, Shares>,
}

#[derive(Debug, Default)]
struct Shares {
    /// Shares by their IDs, each with how often it was added.
    by_id: HashMap<Box<str>, (usize, BTreeMap<String, i128>)>,
}

impl UsedDevices {
    /// Adds what an allocation takes.
    pub fn add(&mut self, allocation: &AllocationResult) {
        for (taken, share) in takes(allocation) {
            match taken {
                Taken::Whole(id) => {
                    let count = self.whole.entry(id).or_default();
                    *count = count.saturating_add(1);
                }
                Taken::Share(id, amounts) => {
                    let shares = self.shares.entry(id).or_default();
                    let (count, _) = shares.by_id.entry(share.into()).or_insert((0, amounts));
                    *count = count.saturating_add(1);
                }
            }
        }
    }

    /// Takes back one [`Self::add`].
    pub fn remove(&mut self, allocation: &AllocationResult) {
        for (taken, share) in takes(allocation) {
            match taken {
                Taken::Whole(id) => {
                    if let Some(count) = self.whole.get_mut(&id) {
                        *count = count.saturating_sub(1);
                        if *count == 0 {
                            self.whole.remove(&id);
                        }
                    }
                }
                Taken::Share(id, _) => {
                    let Some(shares) = self.shares.get_mut(&id) else { continue };
                    if let Some((count, _)) = shares.by_id.get_mut(share) {
                        *count = count.saturating_sub(1);
                        if *count == 0 {
                            shares.by_id.remove(share);
                        }
                    }
                    if shares.by_id.is_empty() {
                        self.shares.remove(&id);
                    }
                }
            }
        }
    }

    /// Whether a claim takes all of the device.
    pub fn has(&self, id: &DeviceId) -> bool {
        self.whole.contains_key(id)
    }

    /// Whether a claim takes the device or a share of it.
    pub fn has_any(&self, id: &DeviceId) -> bool {
        self.has(id) || self.shares.contains_key(id)
    }

    /// How much of a capacity shares of the device take, in billionths.
    pub fn consumed(&self, id: &DeviceId, capacity: &str) -> i128 {
        let shares = self.shares.get(id).into_iter().flat_map(|own| own.by_id.values());
        shares
            .filter_map(|(_, amounts)| amounts.get(capacity))
            .fold(0, |sum, more| sum.saturating_add(*more))
    }

    /// Whether nothing is taken.
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.shares.is_empty()
    }
}

/// What an allocation takes, with the IDs of shares. Admin access takes nothing.
fn takes(allocation: &AllocationResult) -> impl Iterator<Item = (Taken, &str)> {
    let results = allocation.devices.as_ref().and_then(|devices| devices.results.as_ref());
    results.into_iter().flatten().filter(|one| one.admin_access != Some(true)).map(|one| {
        let id = DeviceId {
            driver: Atom::new(&one.driver),
            pool: Atom::new(&one.pool),
            name: Atom::new(&one.device),
        };
        let Some(share) = &one.share_id else { return (Taken::Whole(id), "") };
        let amounts = one.consumed_capacity.iter().flatten();
        let amounts = amounts.map(|(name, own)| (name.clone(), amount(own))).collect();
        (Taken::Share(id, amounts), share.as_str())
    })
}

/// The nodes that reach devices.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceNodes {
    /// This one.
    Node(Atom),
    /// All.
    All,
    /// Those that are selected.
    Selected(NodeSelector, Box<ApiNodeSelector>),
    /// Each device of the slice has its own.
    PerDevice,
    /// None is said that is known here.
    Unknown,
}

impl DeviceNodes {
    fn new(
        name: Option<&String>,
        all: Option<bool>,
        selector: Option<&ApiNodeSelector>,
        per_device: Option<bool>,
    ) -> Self {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            Self::Node(name.into())
        } else if all == Some(true) {
            Self::All
        } else if let Some(api) = selector {
            Self::Selected(NodeSelector::new(api), Box::new(api.clone()))
        } else if per_device == Some(true) {
            Self::PerDevice
        } else {
            Self::Unknown
        }
    }

    /// Whether a node is among them.
    pub fn have(&self, node: &Node) -> bool {
        match self {
            Self::Node(name) => *name == node.name,
            Self::All => true,
            Self::Selected(selector, _) => selector.matches(&node.name, &node.labels),
            Self::PerDevice | Self::Unknown => false,
        }
    }
}

/// A device of a slice.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Driver, pool and name.
    pub id: DeviceId,
    /// The nodes that reach it, where each device of the slice has its own.
    pub nodes: Option<DeviceNodes>,
    /// Attributes, capacities, taints and counters.
    pub api: ApiDevice,
}

/// A slice of a pool of devices.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceSlice {
    /// Its name.
    pub name: Atom,
    /// The driver.
    pub driver: Atom,
    /// The pool.
    pub pool: Atom,
    /// The generation of the pool; only slices of the highest count.
    pub generation: i64,
    /// How many slices the pool has in this generation.
    pub count: i64,
    /// The nodes that reach its devices.
    pub nodes: DeviceNodes,
    /// The devices.
    pub devices: Box<[Device]>,
    /// Counters that devices of the pool share: amounts in billionths by set and name.
    pub counters: Box<[(Atom, BTreeMap<String, i128>)]>,
}

impl ResourceSlice {
    /// From the API's object.
    pub fn new(api: &ApiSlice) -> Self {
        let spec = &api.spec;
        let (driver, pool) = (Atom::new(&spec.driver), Atom::new(&spec.pool.name));
        let nodes = DeviceNodes::new(
            spec.node_name.as_ref(),
            spec.all_nodes,
            spec.node_selector.as_ref(),
            spec.per_device_node_selection,
        );
        let device = |api: &ApiDevice| Device {
            id: DeviceId { driver: driver.clone(), pool: pool.clone(), name: Atom::new(&api.name) },
            nodes: (nodes == DeviceNodes::PerDevice).then(|| {
                let selector = api.node_selector.as_ref();
                DeviceNodes::new(api.node_name.as_ref(), api.all_nodes, selector, None)
            }),
            api: api.clone(),
        };
        Self {
            name: Atom::new(api.metadata.name.as_deref().unwrap_or_default()),
            generation: spec.pool.generation,
            count: spec.pool.resource_slice_count,
            devices: spec.devices.iter().flatten().map(device).collect(),
            counters: spec
                .shared_counters
                .iter()
                .flatten()
                .map(|set| {
                    let own = set.counters.iter();
                    let own = own.map(|(name, counter)| (name.clone(), amount(&counter.value)));
                    (Atom::new(&set.name), own.collect())
                })
                .collect(),
            nodes,
            driver,
            pool,
        }
    }

    /// Whether it matters to a node: it has counters, or devices that the node reaches.
    pub fn concerns(&self, node: &Node) -> bool {
        if !self.counters.is_empty() {
            return true;
        }
        match &self.nodes {
            DeviceNodes::PerDevice => self
                .devices
                .iter()
                .any(|device| device.nodes.as_ref().is_some_and(|nodes| nodes.have(node))),
            nodes => nodes.have(node),
        }
    }
}

/// A class of devices.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceClass {
    /// Its name.
    pub name: Atom,
    /// What its devices meet.
    pub selectors: Vec<DeviceSelector>,
    /// Configuration for the drivers of its devices.
    pub config: Vec<DeviceClassConfiguration>,
    /// The extended resource that its devices serve.
    pub extended: Option<Atom>,
    /// When it was created.
    pub created: Option<Timestamp>,
}

impl DeviceClass {
    /// From the API's object.
    pub fn new(api: &ApiClass) -> Self {
        Self {
            name: Atom::new(api.metadata.name.as_deref().unwrap_or_default()),
            selectors: api.spec.selectors.clone().unwrap_or_default(),
            config: api.spec.config.clone().unwrap_or_default(),
            extended: api.spec.extended_resource_name.as_ref().map(Atom::from),
            created: api.metadata.creation_timestamp.as_ref().map(|time| time.0),
        }
    }
}

/// Whether devices are prepared that have binding conditions, which a pod waits for before it is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// All of them are, or none has conditions.
    Ready,
    /// One is not prepared yet, or there are no devices.
    Pending,
    /// One cannot be: reason and message.
    Failed(Box<str>, Box<str>),
}

impl Readiness {
    fn new(status: Option<&ResourceClaimStatus>) -> Self {
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let Some(allocation) = allocation else { return Self::Pending };
        let devices = status.and_then(|status| status.devices.as_ref());
        for result in conditional(allocation) {
            let device = devices.into_iter().flatten().find(|one| {
                one.device == result.device
                    && one.driver == result.driver
                    && one.pool == result.pool
            });
            let Some(device) = device else { return Self::Pending };
            let is_true = |type_: &String| {
                let mut all = device.conditions.iter().flatten();
                all.find(|one| one.type_ == *type_ && one.status == "True")
            };
            let failures = result.binding_failure_conditions.iter().flatten();
            if let Some(failure) = failures.filter_map(is_true).next() {
                let (reason, message) = (failure.reason.as_str(), failure.message.as_str());
                return Self::Failed(reason.into(), message.into());
            }
            if !result.binding_conditions.iter().flatten().all(|own| is_true(own).is_some()) {
                return Self::Pending;
            }
        }
        Self::Ready
    }
}

/// The devices of an allocation that have binding conditions.
fn conditional(
    allocation: &AllocationResult,
) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let results = allocation.devices.as_ref().and_then(|devices| devices.results.as_ref());
    let has_any = |one: &&DeviceRequestAllocationResult| {
        one.binding_conditions.as_ref().is_some_and(|own| !own.is_empty())
    };
    results.into_iter().flatten().filter(has_any)
}

/// Whether a pod waits for devices of an allocation before it is bound.
pub(crate) fn is_conditional(allocation: &AllocationResult) -> bool {
    conditional(allocation).next().is_some()
}

/// A claim for devices.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceClaim {
    /// Namespace and name.
    pub key: ClaimKey,
    /// Its UID.
    pub uid: Box<str>,
    /// The version read.
    pub version: u64,
    /// The object that controls it, by UID.
    pub owner: Option<Box<str>>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether it was made for extended resources of its owner.
    pub is_special: bool,
    /// What it claims.
    pub devices: DeviceClaim,
    /// What it got.
    pub allocation: Option<Arc<AllocationResult>>,
    /// The nodes that reach what it got; `None`: all.
    pub nodes: Option<NodeSelector>,
    /// Those that use it, by UID.
    pub consumers: Box<[Box<str>]>,
    /// Whether its devices are prepared.
    pub readiness: Readiness,
    /// When it got its devices.
    pub allocated: Option<Timestamp>,
}

impl ResourceClaim {
    /// From the API's object.
    pub fn new(api: &ApiClaim) -> Self {
        let meta = &api.metadata;
        let status = api.status.as_ref();
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let owners = meta.owner_references.iter().flatten();
        let consumers = status.and_then(|status| status.reserved_for.as_ref());
        Self {
            key: ClaimKey {
                namespace: Atom::new(meta.namespace.as_deref().unwrap_or_default()),
                name: Atom::new(meta.name.as_deref().unwrap_or_default()),
            },
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: meta.resource_version.as_deref().and_then(|own| own.parse().ok()).unwrap_or(0),
            owner: owners
                .clone()
                .find(|owner| owner.controller == Some(true))
                .map(|owner| owner.uid.as_str().into()),
            is_deleting: meta.deletion_timestamp.is_some(),
            is_special: meta
                .annotations
                .as_ref()
                .and_then(|own| own.get(SPECIAL_CLAIM))
                .is_some_and(|own| own == "true"),
            devices: api.spec.devices.clone().unwrap_or_default(),
            nodes: allocation.and_then(|own| own.node_selector.as_ref()).map(NodeSelector::new),
            allocation: allocation.map(|own| Arc::new(own.clone())),
            consumers: consumers.into_iter().flatten().map(|one| one.uid.as_str().into()).collect(),
            readiness: Readiness::new(status),
            allocated: allocation
                .and_then(|own| own.allocation_timestamp.as_ref())
                .map(|time| time.0),
        }
    }

    /// One that is to be made for extended resources of a pod.
    pub fn special(pod: &Pod, requests: Vec<DeviceRequest>) -> Self {
        Self {
            key: ClaimKey { namespace: pod.namespace.clone(), name: Atom::new(UNNAMED) },
            uid: format!("{UNNAMED}{}", pod.uid).into(),
            version: 0,
            owner: Some((*pod.uid).into()),
            is_deleting: false,
            is_special: true,
            devices: DeviceClaim { requests: Some(requests), ..DeviceClaim::default() },
            allocation: None,
            nodes: None,
            consumers: Box::default(),
            readiness: Readiness::Pending,
            allocated: None,
        }
    }

    /// Whether its devices are prepared, at that time.
    ///
    /// # Errors
    /// They cannot be, or not within `timeout` since it got them: in upstream's words.
    pub fn is_ready(&self, now: Timestamp, timeout: Duration) -> Result<bool, String> {
        let name = &self.key.name;
        match &self.readiness {
            Readiness::Ready => Ok(true),
            Readiness::Failed(reason, message) => Err(format!(
                "device binding failed: claim={name}, reason={reason}, message={message:?}"
            )),
            Readiness::Pending if self.deadline(timeout).is_some_and(|end| end < now) => {
                Err(format!("device binding timeout: claim={name}"))
            }
            Readiness::Pending => Ok(false),
        }
    }

    /// Until when its devices may take to be prepared; `None`: none of them has to be.
    pub fn deadline(&self, timeout: Duration) -> Option<Timestamp> {
        let allocation = self.allocation.as_deref()?;
        let since = self.allocated.filter(|_| is_conditional(allocation))?;
        Some(since.checked_add(timeout).unwrap_or(Timestamp::MAX))
    }

    /// Whether the pod is among those that use it.
    pub fn is_reserved_for(&self, pod: &Pod) -> bool {
        self.consumers.iter().any(|uid| **uid == *pod.uid)
    }
}

/// A claim for devices that a pod refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodResourceClaim {
    /// Its name in the pod.
    pub name: Box<str>,
    /// The claim.
    pub claim: PodClaimRef,
}

/// Which claim a pod means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodClaimRef {
    /// One that others may use too.
    Shared(ClaimKey),
    /// One that was made for the pod.
    Made(ClaimKey),
    /// One that is to be made.
    Wanted,
    /// None is needed.
    Unneeded,
    /// The pod says nothing that is known here.
    Unknown,
}

impl PodClaimRef {
    /// The claim, if there is to be one.
    pub fn key(&self) -> Option<&ClaimKey> {
        match self {
            Self::Shared(key) | Self::Made(key) => Some(key),
            Self::Wanted | Self::Unneeded | Self::Unknown => None,
        }
    }
}

/// The claims that a pod refers to.
pub(super) fn of_pod(api: &ApiPod, namespace: &Atom) -> Box<[PodResourceClaim]> {
    let claims = api.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref());
    let statuses = api.status.as_ref().and_then(|own| own.resource_claim_statuses.as_ref());
    let key = |name: &String| ClaimKey { namespace: namespace.clone(), name: name.into() };
    let claim = |own: &k8s_openapi::api::core::v1::PodResourceClaim| {
        if let Some(name) = &own.resource_claim_name {
            return PodClaimRef::Shared(key(name));
        }
        if own.resource_claim_template_name.is_none() {
            return PodClaimRef::Unknown;
        }
        match statuses.into_iter().flatten().find(|status| status.name == own.name) {
            None => PodClaimRef::Wanted,
            Some(status) => match &status.resource_claim_name {
                Some(name) => PodClaimRef::Made(key(name)),
                None => PodClaimRef::Unneeded,
            },
        }
    };
    claims
        .into_iter()
        .flatten()
        .map(|own| PodResourceClaim { name: own.name.as_str().into(), claim: claim(own) })
        .collect()
}

/// What is to be written to a claim when a pod is bound.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceReservation {
    /// The claim.
    pub claim: ClaimKey,
    /// Its UID.
    pub uid: Box<str>,
    /// What it gets; `None`: it has it already.
    pub allocation: Option<Arc<AllocationResult>>,
    /// What it is made with, if it is to be made.
    pub special: Option<Arc<SpecialClaim>>,
}

/// A claim that is to be made for extended resources of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecialClaim {
    /// What it requests.
    pub requests: Vec<DeviceRequest>,
    /// Which container uses which request.
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}
