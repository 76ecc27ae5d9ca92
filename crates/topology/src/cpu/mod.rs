//! The static CPU policy: containers of Guaranteed pods with integer CPU requests get exclusive CPUs,
//! all others share the rest.

mod assign;
mod distribute;
mod options;
mod state;

use std::collections::BTreeMap;

pub use assign::AssignError;
use assign::{Manner, packed};
use distribute::distributed;
pub(crate) use options::flag;
pub use options::{OptionError, Options};
pub use state::{Assignments, State};

use crate::combinations::combinations;
use crate::hints::{Hint, Hints};
use crate::machine::{Cpus, Level};
use crate::mask::NumaMask;
use crate::request::{ContainerRequest, EmptyPool, Kind, PodRequest};
use crate::{CpuSet, Refusal, StateError};

/// Why the policy is not possible on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No CPUs are reserved.
    #[error(
        "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    )]
    NothingReserved,
    /// The number of reserved CPUs is wrong.
    #[error(
        "unable to reserve the required amount of CPUs (size of {reserved} did not equal {wanted})"
    )]
    NotReserved {
        /// The reserved CPUs.
        reserved: CpuSet,
        /// The expected number.
        wanted: usize,
    },
    /// A reserved CPU does not exist.
    #[error("reserved CPUs {reserved} are not all among the online CPUs {online}")]
    NotOnline {
        /// The reserved CPUs.
        reserved: CpuSet,
        /// The CPUs of the machine.
        online: CpuSet,
    },
    /// `align-by-socket` on a machine with several sockets per node.
    #[error("align-by-socket: the machine has more sockets than NUMA nodes")]
    Sockets,
}

/// The static policy and its state.
#[derive(Clone, Debug)]
pub struct Policy {
    cpus: Cpus,
    options: Options,
    reserved: CpuSet,
    /// The reserved CPUs and their siblings.
    reserved_cores: CpuSet,
    /// CPUs of init containers of the pod that is being admitted, for reuse.
    reusable: (String, CpuSet),
    state: State,
}

impl Policy {
    /// With these reserved CPUs: the given ones, or that number of CPUs.
    ///
    /// # Errors
    /// If they cannot be reserved, or the options do not match the machine.
    pub fn new(
        cpus: Cpus,
        options: Options,
        reserved: Option<CpuSet>,
        count: usize,
    ) -> Result<Self, PolicyError> {
        if count == 0 {
            return Err(PolicyError::NothingReserved);
        }
        let (sockets, nodes) = (cpus.groups(Level::Socket).len(), cpus.groups(Level::Numa).len());
        if options.align_by_socket && sockets > nodes {
            return Err(PolicyError::Sockets);
        }
        let online = cpus.all();
        let mut policy = Self {
            cpus,
            options,
            reserved: CpuSet::new(),
            reserved_cores: CpuSet::new(),
            reusable: Default::default(),
            state: State::default(),
        };
        let reserved = match reserved.filter(|reserved| !reserved.is_empty()) {
            Some(reserved) => reserved,
            None => policy.pick(&online, count).unwrap_or_default(),
        };
        if reserved.len() != count {
            return Err(PolicyError::NotReserved { reserved, wanted: count });
        }
        if !reserved.is_subset(&online) {
            return Err(PolicyError::NotOnline { reserved, online });
        }
        let cores = reserved.iter().filter_map(|cpu| policy.cpus.info(cpu));
        for info in cores.collect::<Vec<_>>() {
            let core = policy.cpus.cpus_in(Level::Core, info.core.into());
            policy.reserved_cores = policy.reserved_cores.union(&core);
        }
        policy.reserved = reserved;
        policy.state.shared = policy.shareable();
        Ok(policy)
    }

    /// Restores a state.
    ///
    /// # Errors
    /// If it does not match the machine or the reservations.
    pub fn restore(&mut self, state: State) -> Result<(), StateError> {
        if state.shared.is_empty() && state.assignments.is_empty() && state.pods.is_empty() {
            return Ok(());
        }
        // Without shared reserved CPUs, all others may become exclusive.
        if state.shared.is_empty() && !self.options.strict_reservation {
            return Err(StateError::Mismatch("default cpuset cannot be empty".to_owned()));
        }
        let held = self.reserved.intersection(&state.shared);
        if self.options.strict_reservation && !held.is_empty() {
            return Err(StateError::Mismatch(format!(
                "some of strictly reserved cpus: \"{held}\" are present in defaultCpuSet: \"{}\"",
                state.shared
            )));
        }
        if !self.options.strict_reservation && held != self.reserved {
            return Err(StateError::Mismatch(format!(
                "not all reserved cpus: \"{}\" are present in defaultCpuSet: \"{}\"",
                self.reserved, state.shared
            )));
        }
        let mut known = state.shared.clone();
        for (pod, containers) in &state.assignments {
            for (container, cpus) in containers {
                if !cpus.is_disjoint(&state.shared) {
                    return Err(StateError::Mismatch(format!(
                        "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with \
                         default cpuset \"{}\"",
                        state.shared
                    )));
                }
                known = known.union(cpus);
            }
        }
        for (pod, cpus) in &state.pods {
            if !cpus.is_disjoint(&state.shared) {
                return Err(StateError::Mismatch(format!(
                    "pod: {pod} cpuset: \"{cpus}\" overlaps with default cpuset \"{}\"",
                    state.shared
                )));
            }
            known = known.union(cpus);
        }
        let online = self.shareable();
        if known != online {
            return Err(StateError::Mismatch(format!(
                "current set of available CPUs \"{online}\" doesn't match with CPUs in state \
                 \"{known}\""
            )));
        }
        self.state = state;
        Ok(())
    }

    /// The CPUs that can be exclusive, in use or not.
    pub fn allocatable(&self) -> CpuSet {
        self.cpus.all().difference(&self.reserved)
    }

    /// The machine's CPUs.
    pub fn machine(&self) -> &Cpus {
        &self.cpus
    }

    /// The CPU assignments.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The CPUs of a container: its exclusive ones, or the shared ones.
    pub fn cpus(&self, uid: &str, container: &str) -> &CpuSet {
        self.own(uid, container).unwrap_or(&self.state.shared)
    }

    /// The exclusive CPUs of a container, if any.
    pub fn own(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.state.assignments.get(uid)?.get(container)
    }

    /// Releases the CPUs of a pod. Returns whether it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        if self.reusable.0 == uid {
            self.reusable = Default::default();
        }
        let of_pod = self.state.pods.remove(uid);
        let containers = self.state.assignments.remove(uid);
        let held = of_pod.is_some() || containers.is_some();
        let of_containers = containers.into_iter().flat_map(BTreeMap::into_values);
        for cpus in of_pod.into_iter().chain(of_containers) {
            self.state.shared = self.state.shared.union(&cpus);
        }
        held
    }

    /// Topology hints of a container.
    pub(crate) fn hints(&self, pod: &PodRequest, container: &ContainerRequest) -> Hints {
        let wanted = pod.cpus_of(container);
        if wanted == 0 {
            return Hints::new();
        }
        let hints = match self.own(&pod.uid, &container.name) {
            Some(own) if own.len() != wanted => Vec::new(),
            Some(own) => self.suits(own, &CpuSet::new(), wanted),
            None => self.suits(&self.available(), self.reusable_by(&pod.uid), wanted),
        };
        Hints::from([("cpu".to_owned(), hints)])
    }

    /// Topology hints of a pod.
    pub(crate) fn pod_hints(&self, pod: &PodRequest) -> Hints {
        let wanted = pod.cpus();
        if wanted == 0 {
            return Hints::new();
        }
        if pod.own.is_some() {
            let hints = match self.state.pods.get(&pod.uid) {
                _ if check_pool(pod).is_err() => Vec::new(),
                Some(own) if own.len() != wanted => Vec::new(),
                Some(own) => self.suits(own, &CpuSet::new(), wanted),
                None => self.suits(&self.available(), &CpuSet::new(), wanted),
            };
            return Hints::from([("cpu".to_owned(), hints)]);
        }
        let mut own = CpuSet::new();
        for container in &pod.containers {
            if let Some(cpus) = self.own(&pod.uid, &container.name) {
                if cpus.len() != pod.cpus_of(container) {
                    return Hints::from([("cpu".to_owned(), Vec::new())]);
                }
                own = own.union(cpus);
            }
        }
        let hints = match own.len() == wanted {
            true => self.suits(&own, &CpuSet::new(), wanted),
            false => {
                let reusable = self.reusable_by(&pod.uid).union(&own);
                self.suits(&self.available(), &reusable, wanted)
            }
        };
        Hints::from([("cpu".to_owned(), hints)])
    }

    /// Allocates exclusive CPUs to a container, if it is to have any.
    pub(crate) fn allocate(
        &mut self,
        pod: &PodRequest,
        container: &ContainerRequest,
        hint: Hint,
    ) -> Result<(), Refusal> {
        let wanted = pod.cpus_of(container);
        if wanted == 0 {
            return Ok(());
        }
        self.check_cores(wanted)?;
        let cpus = match self.own(&pod.uid, &container.name) {
            Some(own) => own.clone(),
            None => {
                let cpus = self.choose(wanted, hint.nodes, self.reusable_by(&pod.uid))?;
                self.state.shared = self.state.shared.difference(&cpus);
                let containers = self.state.assignments.entry(pod.uid.clone()).or_default();
                containers.insert(container.name.clone(), cpus.clone());
                cpus
            }
        };
        let before = self.reusable_by(&pod.uid);
        let reusable = match container.kind {
            Kind::Init => before.union(&cpus),
            Kind::Sidecar | Kind::Main => before.difference(&cpus),
        };
        self.reusable = (pod.uid.clone(), reusable);
        Ok(())
    }

    /// Allocates the CPUs of a pod as a whole, and parts of them to its containers: those that request none
    /// for themselves share what is left.
    pub(crate) fn allocate_pod(&mut self, pod: &PodRequest, hint: Hint) -> Result<(), Refusal> {
        let wanted = pod.cpus();
        if wanted == 0 || self.state.pods.contains_key(&pod.uid) {
            return Ok(());
        }
        check_pool(pod)?;
        self.check_cores(wanted)?;
        let all = self.choose(wanted, hint.nodes, &CpuSet::new())?;
        let parts = self.partition(pod, &all)?;
        self.state.shared = self.state.shared.difference(&all);
        self.state.pods.insert(pod.uid.clone(), all);
        self.state.assignments.insert(pod.uid.clone(), parts);
        Ok(())
    }

    /// The CPUs of each container of a pod that has these.
    fn partition(
        &self,
        pod: &PodRequest,
        all: &CpuSet,
    ) -> Result<BTreeMap<String, CpuSet>, AssignError> {
        let mut parts = BTreeMap::new();
        // Init containers run one after the other, beside the sidecars before them.
        let mut left = all.clone();
        for container in &pod.containers {
            let wanted = pod.cpus_of(container);
            let cpus = match (container.kind, wanted) {
                (Kind::Init, 0) => left.clone(),
                (Kind::Sidecar | Kind::Main, 0) => continue,
                (_, wanted) => self.pick(&left, wanted)?,
            };
            if container.kind != Kind::Init {
                left = left.difference(&cpus);
            }
            parts.insert(container.name.clone(), cpus);
        }
        for container in &pod.containers {
            parts.entry(container.name.clone()).or_insert_with(|| left.clone());
        }
        Ok(parts)
    }

    fn shareable(&self) -> CpuSet {
        match self.options.strict_reservation {
            true => self.cpus.all().difference(&self.reserved),
            false => self.cpus.all(),
        }
    }

    fn available(&self) -> CpuSet {
        self.state.shared.difference(&self.reserved)
    }

    fn reusable_by(&self, uid: &str) -> &CpuSet {
        static NONE: CpuSet = CpuSet::EMPTY;
        if self.reusable.0 == uid { &self.reusable.1 } else { &NONE }
    }

    /// With `full-pcpus-only`, the request must be whole cores, and they must be free.
    fn check_cores(&self, wanted: usize) -> Result<(), Refusal> {
        if !self.options.full_cores_only {
            return Ok(());
        }
        let per_core = self.cpus.per_group(Level::Core);
        if !wanted.is_multiple_of(per_core) {
            return Err(Refusal::NotWholeCores { requested: wanted, per_core });
        }
        let available = self.state.shared.difference(&self.reserved_cores).len();
        match wanted > available {
            true => Err(Refusal::NotEnoughCores { requested: wanted, per_core, available }),
            false => Ok(()),
        }
    }

    fn choose(
        &self,
        wanted: usize,
        nodes: Option<NumaMask>,
        reusable: &CpuSet,
    ) -> Result<CpuSet, AssignError> {
        let all = self.available().union(reusable);
        let mut chosen = CpuSet::new();
        if let Some(nodes) = nodes {
            let aligned = self.aligned(nodes, &all);
            chosen = self.pick(&aligned, wanted.min(aligned.len()))?;
        }
        let rest = self.pick(&all.difference(&chosen), wanted - chosen.len())?;
        Ok(chosen.union(&rest))
    }

    /// The CPUs in the nodes, or in the sockets of the nodes.
    fn aligned(&self, nodes: NumaMask, cpus: &CpuSet) -> CpuSet {
        let in_nodes = |cpu: &u32| self.cpus.info(*cpu).is_some_and(|i| nodes.contains(i.numa));
        if !self.options.align_by_socket {
            return cpus.iter().filter(in_nodes).collect();
        }
        let sockets = self.sockets(nodes);
        let in_sockets = |cpu: &u32| {
            self.cpus.info(*cpu).is_some_and(|i| sockets.contains(&i.at(Level::Socket)))
        };
        cpus.iter().filter(in_sockets).collect()
    }

    fn sockets(&self, nodes: NumaMask) -> std::collections::BTreeSet<i64> {
        let sockets = nodes
            .nodes()
            .flat_map(|node| self.cpus.groups_in(Level::Socket, (Level::Numa, node.into())));
        sockets.collect()
    }

    fn pick(&self, available: &CpuSet, wanted: usize) -> Result<CpuSet, AssignError> {
        let Options { spread_over_cores, spread_over_nodes, full_cores_only, by_uncore, .. } =
            self.options;
        let manner = Manner { spread: spread_over_cores, by_uncore };
        if !spread_over_nodes {
            return packed(&self.cpus, available, wanted, manner);
        }
        let group = if full_cores_only { self.cpus.per_group(Level::Core) } else { 1 };
        distributed(&self.cpus, available, wanted, group, manner)
    }

    /// All sets of nodes that have `wanted` CPUs, including all reusable ones.
    fn suits(&self, available: &CpuSet, reusable: &CpuSet, wanted: usize) -> Vec<Hint> {
        let node_of = |cpu: u32| self.cpus.info(cpu).map(|info| info.numa);
        let per_node = |set: &CpuSet| {
            let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
            set.iter().filter_map(node_of).for_each(|node| *counts.entry(node).or_default() += 1);
            counts
        };
        let all = per_node(&self.cpus.all());
        let (available, needed_nodes) = (per_node(available), per_node(reusable));
        let nodes: Vec<u32> = all.keys().copied().collect();
        let mut least = nodes.len();
        let mut hints = Vec::new();
        for count in 1..=nodes.len() {
            for subset in combinations(&nodes, count) {
                let sum = |counts: &BTreeMap<u32, usize>| -> usize {
                    subset.iter().filter_map(|node| counts.get(node)).sum()
                };
                if sum(&all) >= wanted {
                    least = least.min(count);
                }
                let has_reusable = needed_nodes.keys().all(|node| subset.contains(node));
                if has_reusable && sum(&available) + reusable.len() >= wanted {
                    hints.push(subset.iter().copied().collect::<NumaMask>());
                }
            }
        }
        let preferred = |mask: NumaMask| {
            mask.len() == least || self.options.align_by_socket && self.fills_sockets(mask, least)
        };
        hints
            .into_iter()
            .map(|mask| Hint { nodes: Some(mask), preferred: preferred(mask) })
            .collect()
    }

    /// Whether the nodes are in no more sockets than `least` nodes need.
    fn fills_sockets(&self, nodes: NumaMask, least: usize) -> bool {
        let per_socket =
            self.cpus.groups(Level::Numa).len() / self.cpus.groups(Level::Socket).len().max(1);
        per_socket > 0 && self.sockets(nodes).len() == least.div_ceil(per_socket)
    }
}

/// Whether the containers of a pod that share its CPUs have some.
fn check_pool(pod: &PodRequest) -> Result<(), EmptyPool> {
    let own =
        |container: &ContainerRequest| Some(pod.cpus_of(container) as u64).filter(|cpus| *cpus > 0);
    pod.check_pool("cpu", pod.cpus() as u64, own)
}

#[cfg(test)]
mod tests;
