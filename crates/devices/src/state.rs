//! What plugins list, and what containers hold. No I/O: plugins are named by their resource.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longshore_base::time;
use longshore_topology::NumaMask;
use tokio::time::Instant;

use crate::HEALTHY;
use crate::error::Error;
use crate::v1beta1::{self, ContainerAllocateResponse, DevicePluginOptions};

/// How long the capacity of a plugin that has gone is kept.
pub(crate) const GRACE: Duration = Duration::from_secs(5 * 60);
/// The most resources that can be registered.
pub(crate) const MOST_RESOURCES: usize = 1024;
/// The node of devices without one, as in the checkpoint.
pub(crate) const NO_NODE: i64 = -1;

/// Devices by ID.
pub(crate) type Ids = BTreeSet<String>;

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// As listed: `Healthy`, or anything else.
    pub health: String,
    /// NUMA nodes; `None`: the plugin gives no topology.
    pub nodes: Option<Vec<i64>>,
}

impl Device {
    /// Whether it can be allocated.
    pub fn is_healthy(&self) -> bool {
        self.health == HEALTHY
    }

    /// Whether the plugin gives at least one node.
    pub(crate) fn has_nodes(&self) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| !nodes.is_empty())
    }

    /// The nodes as a mask.
    pub(crate) fn mask(&self) -> NumaMask {
        let nodes = self.nodes.iter().flatten();
        nodes.filter_map(|node| u32::try_from(*node).ok()).collect()
    }
}

impl From<v1beta1::Device> for Device {
    fn from(device: v1beta1::Device) -> Self {
        let most = NumaMask::MOST as usize;
        let nodes = |topology: v1beta1::TopologyInfo| {
            topology.nodes.iter().take(most).map(|node| node.id).collect()
        };
        Self { health: device.health, nodes: device.topology.map(nodes) }
    }
}

/// Number of devices of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// All of them.
    pub capacity: usize,
    /// The healthy ones.
    pub allocatable: usize,
}

/// What the node has of each resource of a plugin; a plugin that has gone for good has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity(pub BTreeMap<String, Amount>);

/// The plugin of a resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Endpoint {
    pub(crate) options: DevicePluginOptions,
    /// Since when it has been gone.
    pub(crate) stopped: Option<Instant>,
    /// It has not registered since the daemon started.
    pub(crate) is_restored: bool,
    /// Distinguishes it from others for the same resource.
    pub(crate) generation: u64,
}

/// A resource that a plugin has, or had.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resource {
    /// As listed last.
    pub(crate) devices: BTreeMap<String, Device>,
    pub(crate) healthy: Ids,
    pub(crate) unhealthy: Ids,
    /// Whether its devices were ever listed.
    pub(crate) is_listed: bool,
    pub(crate) endpoint: Endpoint,
}

/// What a container holds of a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Holding {
    /// Device IDs by NUMA node.
    pub(crate) by_node: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer; `None` before it has answered.
    pub(crate) response: Option<ContainerAllocateResponse>,
}

impl Holding {
    pub(crate) fn ids(&self) -> Ids {
        self.by_node.values().flatten().cloned().collect()
    }

    /// The devices with their nodes, as far as they are known from the allocation.
    pub(crate) fn devices(&self) -> BTreeMap<String, Device> {
        let mut devices: BTreeMap<String, Device> = BTreeMap::new();
        for (node, ids) in &self.by_node {
            for id in ids {
                let device = devices.entry(id.clone()).or_default();
                if *node != NO_NODE {
                    device.nodes.get_or_insert_default().push(*node);
                }
            }
        }
        devices
    }
}

/// Holdings by container and resource.
pub(crate) type PodHoldings = BTreeMap<String, BTreeMap<String, Holding>>;

/// All resources and all holdings.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) resources: BTreeMap<String, Resource>,
    /// By UID.
    pub(crate) pods: BTreeMap<String, PodHoldings>,
    /// Resources whose plugin has gone for good.
    removed: BTreeSet<String>,
    generations: u64,
}

impl State {
    /// Before any plugin has registered: the resources and holdings of the checkpoint.
    pub(crate) fn restored(
        resources: impl IntoIterator<Item = String>,
        pods: BTreeMap<String, PodHoldings>,
        now: Instant,
    ) -> Self {
        let resource = || Resource {
            is_listed: true,
            endpoint: Endpoint { stopped: Some(now), is_restored: true, ..Endpoint::default() },
            ..Resource::default()
        };
        let resources = resources.into_iter().take(MOST_RESOURCES);
        let resources = resources.map(|name| (name, resource())).collect();
        Self { resources, pods, ..Self::default() }
    }

    /// Whether another resource can be registered.
    pub(crate) fn check_room(&self, resource: &str) -> Result<(), Error> {
        match self.resources.len() < MOST_RESOURCES || self.resources.contains_key(resource) {
            true => Ok(()),
            false => Err(Error::TooMany { name: resource.to_owned(), most: MOST_RESOURCES }),
        }
    }

    /// A plugin has registered. Its devices are as before until it lists them. Returns its generation.
    pub(crate) fn connected(&mut self, resource: &str, options: DevicePluginOptions) -> u64 {
        self.generations = self.generations.saturating_add(1);
        self.removed.remove(resource);
        let known = self.resources.entry(resource.to_owned()).or_default();
        known.endpoint = Endpoint { options, generation: self.generations, ..Endpoint::default() };
        self.generations
    }

    /// The plugin lists its devices. Returns the UIDs of the pods for which the health of a device has
    /// changed; `None` if it has been replaced.
    pub(crate) fn listed(
        &mut self,
        resource: &str,
        generation: u64,
        devices: BTreeMap<String, Device>,
    ) -> Option<BTreeSet<String>> {
        let known = self.current(resource, generation)?;
        let ids = |healthy: bool| {
            let found = devices.iter().filter(|(_, device)| device.is_healthy() == healthy);
            found.map(|(id, _)| id.clone()).collect()
        };
        (known.healthy, known.unhealthy, known.is_listed) = (ids(true), ids(false), true);
        let before = std::mem::replace(&mut known.devices, devices);
        let now = &known.devices;
        let changed = now.iter().filter(|(id, device)| {
            before.get(*id).is_none_or(|before| before.health != device.health)
        });
        let changed: Ids = changed.map(|(id, _)| id.clone()).collect();
        let is_holder = |holdings: &PodHoldings| {
            let mut own = holdings.values().filter_map(|own| own.get(resource));
            own.any(|own| own.by_node.values().flatten().any(|id| changed.contains(id)))
        };
        let holders = self.pods.iter().filter(|(_, holdings)| is_holder(holdings));
        Some(holders.map(|(uid, _)| uid.clone()).collect())
    }

    /// The plugin has gone: its devices are unhealthy. Returns whether it was the current one.
    pub(crate) fn disconnected(&mut self, resource: &str, generation: u64, now: Instant) -> bool {
        let Some(known) = self.current(resource, generation) else { return false };
        let mut healthy = std::mem::take(&mut known.healthy);
        known.unhealthy.append(&mut healthy);
        known.endpoint.stopped = Some(now);
        true
    }

    fn current(&mut self, resource: &str, generation: u64) -> Option<&mut Resource> {
        self.resources.get_mut(resource).filter(|known| known.endpoint.generation == generation)
    }

    /// Forgets resources whose plugin has been gone for long. Returns whether there were any.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let is_over = |known: &Resource| {
            known.endpoint.stopped.is_some_and(|at| now.saturating_duration_since(at) >= GRACE)
        };
        let over = self.resources.iter().filter(|(_, known)| is_over(known));
        let over: Vec<String> = over.map(|(name, _)| name.clone()).collect();
        self.resources.retain(|name, _| !over.contains(name));
        let any = !over.is_empty();
        self.removed.extend(over);
        while self.removed.len() > MOST_RESOURCES {
            self.removed.pop_first();
        }
        any
    }

    /// When [`State::expire`] has something to do.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        let stopped = self.resources.values().filter_map(|known| known.endpoint.stopped).min();
        stopped.map(|at| time::later(at, GRACE))
    }

    /// The amounts of all resources.
    pub(crate) fn capacity(&self) -> Capacity {
        let gone = self.removed.iter().map(|name| (name.clone(), Amount::default()));
        let known = self.resources.iter().filter(|(_, known)| {
            // One that has registered and listed nothing yet is not shown before it fails.
            known.is_listed || known.endpoint.stopped.is_some()
        });
        let known = known.map(|(name, known)| {
            let (healthy, unhealthy) = (known.healthy.len(), known.unhealthy.len());
            let capacity = healthy.saturating_add(unhealthy);
            (name.clone(), Amount { capacity, allocatable: healthy })
        });
        Capacity(gone.chain(known).collect())
    }

    /// Whether a resource is one of a plugin: listed, or held by a container.
    pub(crate) fn is_device_resource(&self, resource: &str) -> bool {
        let holds =
            |holdings: &PodHoldings| holdings.values().any(|own| own.contains_key(resource));
        self.resources.get(resource).is_some_and(|known| known.is_listed)
            || self.pods.values().any(holds)
    }

    /// The devices of a resource that are held by any container.
    pub(crate) fn in_use(&self, resource: &str) -> Ids {
        let holdings = self.pods.values().flat_map(BTreeMap::values);
        holdings.filter_map(|own| own.get(resource)).flat_map(Holding::ids).collect()
    }

    /// What a container holds of a resource.
    pub(crate) fn holding(&self, uid: &str, container: &str, resource: &str) -> Option<&Holding> {
        self.pods.get(uid)?.get(container)?.get(resource)
    }

    /// The devices with their NUMA nodes, to be held.
    pub(crate) fn holding_of(&self, resource: &str, ids: &Ids) -> Holding {
        let mut by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in ids {
            let device = self.resources.get(resource).and_then(|known| known.devices.get(id));
            let nodes = device.and_then(|device| device.nodes.as_deref()).unwrap_or_default();
            let nodes = if nodes.is_empty() { &[NO_NODE][..] } else { nodes };
            for node in nodes {
                by_node.entry(*node).or_default().push(id.clone());
            }
        }
        Holding { by_node, response: None }
    }

    /// Releases all that a pod holds. Returns whether it held anything.
    pub(crate) fn release(&mut self, uid: &str) -> bool {
        self.pods.remove(uid).is_some()
    }

    /// The devices that can be allocated, in use or not.
    pub(crate) fn allocatable(&self) -> BTreeMap<String, BTreeMap<String, Device>> {
        let healthy = |known: &Resource| {
            let devices = known.devices.iter().filter(|(id, _)| known.healthy.contains(*id));
            devices.map(|(id, device)| (id.clone(), device.clone())).collect()
        };
        let known = self.resources.iter().filter(|(_, known)| !known.devices.is_empty());
        known.map(|(name, known)| (name.clone(), healthy(known))).collect()
    }

    /// The health of a device as its plugin listed it last; `true` if it is not known.
    pub(crate) fn is_healthy(&self, resource: &str, id: &str) -> bool {
        let device = self.resources.get(resource).and_then(|known| known.devices.get(id));
        device.is_none_or(Device::is_healthy)
    }
}

#[cfg(test)]
mod tests;
