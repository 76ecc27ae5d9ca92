//! NUMA nodes of devices: topology hints, and the split of devices by the nodes that are wanted.

use std::collections::BTreeMap;

use longshore_topology::{Hint, NumaMask};

use crate::state::{Device, Ids, Resource, State};

/// The most nodes whose combinations are tried: the topology manager allows 8 unless it is told
/// otherwise, and the number of combinations doubles with each.
const MOST_NODES: usize = 16;

/// Devices by their place.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// On a wanted node.
    pub(crate) aligned: Ids,
    /// On others.
    pub(crate) unaligned: Ids,
    /// On no node, or it does not matter.
    pub(crate) without_nodes: Ids,
}

/// Splits available devices by the wanted nodes; `None`: any.
pub(crate) fn split(
    devices: &BTreeMap<String, Device>,
    available: &Ids,
    wanted: Option<NumaMask>,
) -> Places {
    let mut places = Places::default();
    let wanted = wanted.filter(|_| devices.values().any(Device::has_nodes));
    let Some(wanted) = wanted else {
        places.without_nodes.clone_from(available);
        return places;
    };
    for id in available {
        let place = match devices.get(id).filter(|device| device.has_nodes()) {
            None => &mut places.without_nodes,
            Some(device) if !device.mask().and(wanted).is_empty() => &mut places.aligned,
            Some(_) => &mut places.unaligned,
        };
        place.insert(id.clone());
    }
    places
}

/// The hints of a resource for a request: no preference if its devices have no nodes, and none at all
/// if they do not suffice.
pub(crate) fn hints(
    state: &State,
    resource: &str,
    count: usize,
    held: &Ids,
    reusable: &Ids,
    numa_nodes: &[u32],
) -> Vec<Hint> {
    let known = state.resources.get(resource);
    let Some(known) = known.filter(|known| known.devices.values().any(Device::has_nodes)) else {
        return vec![Hint { nodes: None, preferred: true }];
    };
    if !held.is_empty() {
        return match held.len() == count {
            true => combinations(known, held, &Ids::new(), count, numa_nodes),
            false => Vec::new(),
        };
    }
    let in_use = state.in_use(resource);
    let available: Ids = known.healthy.difference(&in_use).cloned().collect();
    if available.union(reusable).count() < count {
        return Vec::new();
    }
    combinations(known, &available, reusable, count, numa_nodes)
}

/// All combinations of nodes that have enough devices; those are preferred that have as few nodes as
/// any could have if all devices were free.
fn combinations(
    known: &Resource,
    available: &Ids,
    reusable: &Ids,
    count: usize,
    numa_nodes: &[u32],
) -> Vec<Hint> {
    let machine: NumaMask = numa_nodes.iter().copied().collect();
    let mut of_devices: Vec<u32> = known.devices.values().flat_map(|d| d.mask().nodes()).collect();
    of_devices.retain(|node| machine.contains(*node));
    of_devices.sort_unstable();
    of_devices.dedup();
    let nodes = if of_devices.is_empty() { numa_nodes } else { &of_devices };
    let nodes = &nodes[..nodes.len().min(MOST_NODES)];
    let all = Counts::of(known.devices.values());
    let device = |id: &String| known.devices.get(id);
    let free = Counts::of(available.iter().filter_map(device));
    let again: Vec<&Device> =
        reusable.iter().filter_map(device).filter(|device| device.nodes.is_some()).collect();
    let mut least = nodes.len();
    let mut masks = Vec::new();
    for bits in 1..1_u32.checked_shl(u32::try_from(nodes.len()).unwrap_or(0)).unwrap_or(0) {
        let chosen = nodes.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
        let mask: NumaMask = chosen.map(|(_, node)| *node).collect();
        if all.on(mask) >= count {
            least = least.min(mask.len());
        }
        // Devices of init containers have to be on them.
        let are_on = again.iter().all(|device| !device.mask().and(mask).is_empty());
        if are_on && again.len().saturating_add(free.on(mask)) >= count {
            masks.push(mask);
        }
    }
    let hint = |mask: NumaMask| Hint { nodes: Some(mask), preferred: mask.len() == least };
    masks.into_iter().map(hint).collect()
}

/// Number of devices by their nodes.
struct Counts(BTreeMap<NumaMask, usize>);

impl Counts {
    fn of<'a>(devices: impl Iterator<Item = &'a Device>) -> Self {
        let mut counts = BTreeMap::new();
        for device in devices {
            let count: &mut usize = counts.entry(device.mask()).or_default();
            *count = count.saturating_add(1);
        }
        Self(counts)
    }

    /// How many have one of these nodes.
    fn on(&self, nodes: NumaMask) -> usize {
        let counts = self.0.iter().filter(|(own, _)| !own.and(nodes).is_empty());
        counts.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}
