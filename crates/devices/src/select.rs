//! The choice of devices for a new pod, in upstream's order: devices of init containers again, then
//! those on the NUMA nodes that the topology manager wants, and among them those that the plugin
//! prefers.
//!
//! A plugin cannot be asked while the choice is made. A choice that needs an answer which is not there
//! is undone; [`Selection::query`] has the question, and the next attempt takes the answer along.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_pod::spec::{self, ContainerKind};
use longshore_pod::{qos, resources};
use longshore_topology::{DeviceProvider, DeviceRefusal, Hints, NumaMask};
use parking_lot::MutexGuard;

use crate::state::{Ids, PodHoldings, State};
use crate::topology;

/// How often a plugin is asked for one pod: the devices may change meanwhile.
const MOST_QUERIES: usize = 64;

/// The question which devices a plugin prefers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The resource.
    pub resource: String,
    /// The devices that it may name.
    pub available: BTreeSet<String>,
    /// Those of them that are chosen already.
    pub chosen: BTreeSet<String>,
    /// How many there will be, with those.
    pub count: usize,
}

/// The answer of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preference {
    /// The devices that it prefers.
    Devices(Vec<String>),
    /// It failed, for that reason.
    Failed(String),
}

/// The answers of plugins for one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences(Vec<(Query, Preference)>);

impl Preferences {
    /// Adds an answer.
    pub fn add(&mut self, query: Query, preference: Preference) {
        self.0.push((query, preference));
    }

    fn answer(&self, query: &Query) -> Option<&Preference> {
        self.0.iter().find(|(known, _)| known == query).map(|(_, preference)| preference)
    }
}

/// The request of a container, by resource.
type Request = BTreeMap<String, usize>;

/// The request of a pod for devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodRequest {
    pub(crate) containers: Vec<(String, ContainerKind, Request)>,
    /// The most of each resource that are held at a time.
    whole: Request,
}

impl PodRequest {
    /// The resources of plugins that a pod requests. Those that are backed by DRA are left out.
    pub(crate) fn of(pod: &Pod, state: &State) -> Self {
        let Some(pod_spec) = &pod.spec else { return Self::default() };
        let containers: Vec<_> = spec::containers(pod_spec)
            .map(|(kind, own)| (own.name.clone(), kind, container_request(pod, own, state)))
            .collect();
        let names: BTreeSet<&String> =
            containers.iter().flat_map(|(_, _, request)| request.keys()).collect();
        let limits = resources::net_limits(pod_spec);
        let count = |name: &String| count(qos::units_of(Some(&limits), name));
        let whole = names.into_iter().map(|name| (name.clone(), count(name))).collect();
        Self { containers, whole }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.whole.is_empty()
    }

    /// The resources.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &str> {
        self.whole.keys().map(String::as_str)
    }
}

/// The devices that a container requests, by resource.
pub(crate) fn container_request(pod: &Pod, container: &Container, state: &State) -> Request {
    // Requests of extended resources are the same as limits.
    let limits = qos::limits(container);
    let names = limits.into_iter().flat_map(BTreeMap::keys);
    let own = names.filter(|name| {
        state.is_device_resource(name) && !is_backed_by_claim(pod, &container.name, name)
    });
    let counts = own.map(|name| (name.clone(), count(qos::units_of(limits, name))));
    counts.filter(|(_, count)| *count > 0).collect()
}

fn count(units: i64) -> usize {
    usize::try_from(units).unwrap_or(0)
}

/// Whether devices of a resource claim stand for an extended resource.
fn is_backed_by_claim(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod.status.as_ref().and_then(|own| own.extended_resource_claim_status.as_ref());
    status.is_some_and(|claim| {
        let mut mappings = claim.request_mappings.iter();
        mappings.any(|own| own.container_name == container && own.resource_name == resource)
    })
}

/// The devices that are being chosen for a pod. Nothing is chosen unless it is committed.
#[derive(Debug)]
pub struct Selection<'a> {
    state: MutexGuard<'a, State>,
    uid: String,
    request: PodRequest,
    before: Option<PodHoldings>,
    /// Devices of init containers, by resource, which later containers can have too.
    reusable: BTreeMap<String, Ids>,
    preferences: &'a Preferences,
    query: Option<Query>,
    numa_nodes: &'a NumaNodes,
    committed: bool,
}

/// The NUMA nodes of the machine, read when they are needed.
pub(crate) type NumaNodes = std::sync::LazyLock<Vec<u32>, fn() -> Vec<u32>>;

impl<'a> Selection<'a> {
    pub(crate) fn new(
        state: MutexGuard<'a, State>,
        pod: &Pod,
        preferences: &'a Preferences,
        numa_nodes: &'a NumaNodes,
    ) -> Self {
        let uid = spec::uid(pod).to_owned();
        let request = PodRequest::of(pod, &state);
        let before = state.pods.get(&uid).cloned();
        Self {
            state,
            uid,
            request,
            before,
            reusable: BTreeMap::new(),
            preferences,
            query: None,
            numa_nodes,
            committed: false,
        }
    }

    /// The resources of plugins that the pod requests.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.request.resources()
    }

    /// The question that a plugin has to answer before the choice can be made.
    pub fn query(&self) -> Option<Query> {
        self.query.clone()
    }

    /// The pod holds the chosen devices. Returns whether their plugins have to be told.
    pub fn commit(mut self) -> bool {
        self.committed = true;
        let own = self.state.pods.get(&self.uid).into_iter().flat_map(BTreeMap::values);
        own.flat_map(BTreeMap::values).any(|holding| holding.response.is_none())
    }

    /// Why the devices of one resource cannot be chosen.
    fn choose(
        &mut self,
        container: &str,
        resource: &str,
        count: usize,
        nodes: Option<NumaMask>,
    ) -> Result<Option<Ids>, DeviceRefusal> {
        let held =
            self.state.holding(&self.uid, container, resource).map(crate::state::Holding::ids);
        let empty = Ids::new();
        let reusable = self.reusable.get(resource).unwrap_or(&empty);
        let choice = Choice { count, held: held.as_ref(), reusable, nodes, resource };
        let asked = self.preferences.0.len();
        let preferences = self.preferences;
        let mut pending = None;
        let chosen = choice.make(&self.state, |query| {
            if asked >= MOST_QUERIES {
                return Some(Preference::Devices(Vec::new()));
            }
            let answer = preferences.answer(&query).cloned();
            if answer.is_none() {
                pending = Some(query);
            }
            answer
        });
        self.query = pending;
        match chosen {
            Err(_) if self.query.is_some() => Err(DeviceRefusal::Unanswered),
            Err(why) => {
                // Quoted as Go does it.
                let uid = &self.uid;
                Err(DeviceRefusal::Failed(match why {
                    Refusal::Changed { from, to } => format!(
                        "pod {uid:?} container {container:?} changed request for resource \
                         {resource:?} from {from} to {to}"
                    ),
                    Refusal::Other(text) => text,
                }))
            }
            Ok(chosen) => Ok(chosen),
        }
    }

    fn container(&self, name: &str) -> (ContainerKind, Request) {
        let found = self.request.containers.iter().find(|(own, ..)| own == name);
        let found = found.map(|(_, kind, request)| (*kind, request.clone()));
        found.unwrap_or((ContainerKind::Regular, Request::new()))
    }
}

impl Drop for Selection<'_> {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        match self.before.take() {
            Some(before) => self.state.pods.insert(self.uid.clone(), before),
            None => self.state.pods.remove(&self.uid),
        };
    }
}

impl DeviceProvider for Selection<'_> {
    fn is_empty(&self) -> bool {
        self.request.is_empty()
    }

    fn hints(&mut self, container: &str) -> Hints {
        let (_, request) = self.container(container);
        let empty = Ids::new();
        let hints = request.iter().map(|(resource, count)| {
            let held = self.state.holding(&self.uid, container, resource);
            let held = held.map(crate::state::Holding::ids).unwrap_or_default();
            let reusable = self.reusable.get(resource).unwrap_or(&empty);
            let nodes = self.numa_nodes.as_slice();
            (
                resource.clone(),
                topology::hints(&self.state, resource, *count, &held, reusable, nodes),
            )
        });
        hints.collect()
    }

    fn pod_hints(&mut self) -> Hints {
        let hints = self.request.whole.iter().map(|(resource, count)| {
            let own = self.state.pods.get(&self.uid).into_iter().flat_map(BTreeMap::values);
            let held = own.filter_map(|own| own.get(resource));
            let held: Ids = held.flat_map(crate::state::Holding::ids).collect();
            let nodes = self.numa_nodes.as_slice();
            (
                resource.clone(),
                topology::hints(&self.state, resource, *count, &held, &Ids::new(), nodes),
            )
        });
        hints.collect()
    }

    fn allocate(&mut self, container: &str, nodes: Option<NumaMask>) -> Result<(), DeviceRefusal> {
        let (kind, request) = self.container(container);
        for (resource, count) in &request {
            if let Some(chosen) = self.choose(container, resource, *count, nodes)? {
                let holding = self.state.holding_of(resource, &chosen);
                let own = self.state.pods.entry(self.uid.clone()).or_default();
                let own = own.entry(container.to_owned()).or_default();
                own.insert(resource.clone(), holding);
            }
        }
        let held = self.state.pods.get(&self.uid).and_then(|own| own.get(container));
        for (resource, holding) in held.into_iter().flatten() {
            let ids = holding.ids();
            let reusable = self.reusable.entry(resource.clone()).or_default();
            match kind {
                ContainerKind::Init => reusable.extend(ids),
                _ => reusable.retain(|id| !ids.contains(id)),
            }
        }
        Ok(())
    }
}

/// Why devices cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// The container holds another number of devices than it requests.
    Changed {
        from: usize,
        to: usize,
    },
    Other(String),
}

/// The choice of devices of one resource for a container.
struct Choice<'a> {
    resource: &'a str,
    count: usize,
    /// What it holds already.
    held: Option<&'a Ids>,
    reusable: &'a Ids,
    /// Where they should be.
    nodes: Option<NumaMask>,
}

/// The devices that are chosen so far.
struct Chosen {
    ids: Ids,
    needed: usize,
}

impl Chosen {
    /// Takes devices from these as long as some are needed. Returns whether none are needed any more.
    fn take<'a>(&mut self, from: impl IntoIterator<Item = &'a String>) -> bool {
        for id in from {
            if self.needed == 0 {
                break;
            }
            if self.ids.insert(id.clone()) {
                self.needed -= 1;
            }
        }
        self.needed == 0
    }
}

impl Choice<'_> {
    /// The devices; `None`: the container holds them already. `ask` answers what the plugin prefers;
    /// `None`: that is not known, and nothing is chosen.
    fn make(
        &self,
        state: &State,
        mut ask: impl FnMut(Query) -> Option<Preference>,
    ) -> Result<Option<Ids>, Refusal> {
        let (resource, required) = (self.resource, self.count);
        let other = |text: String| Err(Refusal::Other(text));
        if let Some(held) = self.held.filter(|held| held.len() != required) {
            return Err(Refusal::Changed { from: held.len(), to: required });
        }
        let known = state.resources.get(resource).filter(|known| known.is_listed);
        let Some(known) = known else {
            return other(format!("cannot allocate unregistered device {resource}"));
        };
        if known.healthy.is_empty() {
            return other(format!(
                "no healthy devices present; cannot allocate unhealthy devices {resource}"
            ));
        }
        if let Some(held) = self.held {
            return match held.is_subset(&known.healthy) {
                true => Ok(None),
                false => other(format!(
                    "previously allocated devices are no longer healthy; cannot allocate unhealthy \
                     devices {resource}"
                )),
            };
        }
        let mut chosen = Chosen { ids: Ids::new(), needed: required };
        if chosen.take(self.reusable) {
            return Ok(Some(chosen.ids));
        }
        let in_use = state.in_use(resource);
        let available: Ids = known.healthy.difference(&in_use).cloned().collect();
        if available.len() < chosen.needed {
            return other(format!(
                "requested number of devices unavailable for {resource}. Requested: {}, \
                 Available: {}",
                chosen.needed,
                available.len()
            ));
        }
        let places = topology::split(&known.devices, &available, self.nodes);
        let mut prefers = |chosen: &Chosen, from: &Ids| {
            if !known.endpoint.options.get_preferred_allocation_available {
                return Ok(Vec::new());
            }
            let query = Query {
                resource: resource.to_owned(),
                available: from.union(&chosen.ids).cloned().collect(),
                chosen: chosen.ids.clone(),
                count: required,
            };
            match ask(query) {
                Some(Preference::Devices(ids)) => {
                    Ok(ids.into_iter().filter(|id| from.contains(id)).collect())
                }
                Some(Preference::Failed(why)) => Err(Refusal::Other(format!(
                    "device plugin GetPreferredAllocation rpc failed with err: {why}"
                ))),
                None => Err(Refusal::Other("the plugin has not answered".to_owned())),
            }
        };
        if chosen.needed < places.aligned.len() {
            let preferred = prefers(&chosen, &places.aligned)?;
            if chosen.take(&preferred) || chosen.take(&places.aligned) {
                return Ok(Some(chosen.ids));
            }
        } else if chosen.take(&places.aligned) {
            return Ok(Some(chosen.ids));
        }
        let preferred = prefers(&chosen, &available)?;
        let others = || places.unaligned.iter().chain(&places.without_nodes);
        match chosen.take(&preferred) || chosen.take(others()) {
            true => Ok(Some(chosen.ids)),
            false => other(format!(
                "unexpectedly allocated less resources than required. Requested: {required}, Got: {}",
                required.saturating_sub(chosen.needed)
            )),
        }
    }
}

#[cfg(test)]
mod tests;
