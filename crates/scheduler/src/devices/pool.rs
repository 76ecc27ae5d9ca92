//! Pools of devices as a node sees them.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::model::{Atom, Device, DeviceNodes, Node, ResourceSlice};

/// The slices of all pools.
pub(super) struct Slices<'a> {
    by_node: HashMap<&'a Atom, Vec<&'a ResourceSlice>>,
    /// Those that are not for one node.
    shared: Vec<&'a ResourceSlice>,
    by_pool: HashMap<(&'a Atom, &'a Atom), Vec<&'a ResourceSlice>>,
}

/// A pool.
pub(super) struct Pool<'a> {
    pub(super) driver: &'a Atom,
    pub(super) name: &'a Atom,
    pub(super) state: PoolState,
    /// Slices with devices for the node, by name.
    pub(super) slices: Vec<&'a ResourceSlice>,
    /// All devices of the pool that consume counters, with those for other nodes.
    pub(super) consumers: Vec<&'a Device>,
    /// Counters that devices share: amounts by set and name.
    pub(super) counters: HashMap<&'a Atom, &'a BTreeMap<String, i128>>,
}

/// Whether devices of a pool can be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolState {
    Usable,
    /// Its driver is replacing slices.
    Incomplete,
    /// It contradicts itself.
    Invalid,
}

impl Pool<'_> {
    fn has_binding_conditions(&self) -> bool {
        let mut devices = self.slices.iter().flat_map(|slice| &slice.devices);
        devices.any(|device| device.api.binding_conditions.is_some())
    }
}

impl<'a> Slices<'a> {
    pub(super) fn new(all: impl Iterator<Item = &'a ResourceSlice>) -> Self {
        let mut own = Self { by_node: HashMap::new(), shared: Vec::new(), by_pool: HashMap::new() };
        for slice in all {
            match &slice.nodes {
                DeviceNodes::Node(name) if slice.counters.is_empty() => {
                    own.by_node.entry(name).or_default().push(slice);
                }
                _ => own.shared.push(slice),
            }
            own.by_pool.entry((&slice.driver, &slice.pool)).or_default().push(slice);
        }
        own
    }

    /// The pools that matter to a node, by driver and name; those with binding conditions last.
    pub(super) fn pools(&self, node: &Node) -> Vec<Pool<'a>> {
        let mut found: BTreeMap<(&str, &str), Vec<&'a ResourceSlice>> = BTreeMap::new();
        let own = self.by_node.get(&node.name).into_iter().flatten();
        let shared = self.shared.iter().filter(|slice| slice.concerns(node));
        for slice in own.chain(shared) {
            let pool = found.entry((&slice.driver, &slice.pool)).or_default();
            match pool.first().map(|first| slice.generation.cmp(&first.generation)) {
                Some(std::cmp::Ordering::Less) => {}
                Some(std::cmp::Ordering::Greater) => *pool = vec![*slice],
                None | Some(std::cmp::Ordering::Equal) => pool.push(slice),
            }
        }
        let mut pools: Vec<_> =
            found.into_values().filter_map(|slices| self.pool(slices)).collect();
        pools.sort_by_key(Pool::has_binding_conditions);
        pools
    }

    /// `None`: the driver replaces the generation that the node has devices of.
    fn pool(&self, mut slices: Vec<&'a ResourceSlice>) -> Option<Pool<'a>> {
        let first = *slices.first()?;
        let of_pool = self.by_pool.get(&(&first.driver, &first.pool));
        let all: Vec<_> = of_pool.into_iter().flatten().copied().collect();
        if all.iter().any(|other| other.generation > first.generation) {
            return None;
        }
        let all: Vec<_> =
            all.into_iter().filter(|other| other.generation == first.generation).collect();
        let mut pool = Pool {
            driver: &first.driver,
            name: &first.pool,
            state: PoolState::Usable,
            slices: Vec::new(),
            consumers: Vec::new(),
            counters: HashMap::new(),
        };
        if i64::try_from(all.len()) != Ok(first.count) {
            pool.state = PoolState::Incomplete;
            return Some(pool);
        }
        slices.retain(|slice| slice.counters.is_empty());
        slices.sort_by(|left, right| left.name.as_str().cmp(right.name.as_str()));
        let mut names = HashSet::new();
        let has_duplicates = slices
            .iter()
            .flat_map(|slice| &slice.devices)
            .any(|device| !names.insert(&device.id.name));
        let mut is_valid = !has_duplicates;
        for (name, counters) in all.iter().flat_map(|slice| &slice.counters) {
            is_valid &= pool.counters.insert(name, counters).is_none();
        }
        let consumes = |device: &&Device| device.api.consumes_counters.is_some();
        pool.consumers = all.iter().flat_map(|slice| &slice.devices).filter(consumes).collect();
        is_valid &= pool.consumers.iter().all(|device| {
            device.api.consumes_counters.iter().flatten().all(|consumed| {
                let set = pool.counters.get(&Atom::new(&consumed.counter_set));
                set.is_some_and(|set| consumed.counters.keys().all(|name| set.contains_key(name)))
            })
        });
        pool.slices = slices;
        if !is_valid {
            pool.state = PoolState::Invalid;
        }
        Some(pool)
    }
}
