//! The CPU, memory and topology managers together, called in upstream's order.

use crate::cpu::{self, AssignError};
use crate::hints::{Hint, Hints, Nodes, Policy};
use crate::memory::{self, AllocateError};
use crate::request::{ContainerRequest, EmptyPool, PodRequest};
use crate::{CpuSet, Cpus, Machine, NumaMask, StateError, TopologyOptions};

/// Why the resources of a pod cannot be allocated. The texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No NUMA nodes match all hints.
    #[error("Resources cannot be allocated with Topology locality")]
    Topology,
    /// The same for a pod with pod-level resources.
    #[error(
        "Pod Scope pod with pod-level resources failed admission {}",
        if *.whole_pods {
            "under pod-scope topology manager"
        } else {
            "with a container-level topology manager"
        }
    )]
    PodTopology {
        /// Whether pods are aligned as a whole.
        whole_pods: bool,
    },
    /// Containers are to share what others of their pod have taken.
    #[error(transparent)]
    EmptyPool(#[from] EmptyPool),
    /// Only whole cores are allocated, and the request is not a multiple.
    #[error(
        "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}"
    )]
    NotWholeCores {
        /// Requested CPUs.
        requested: usize,
        /// CPUs per core.
        per_core: usize,
    },
    /// Only whole cores are allocated, and too few are free.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = \
         {available}, requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    NotEnoughCores {
        /// Requested CPUs.
        requested: usize,
        /// CPUs per core.
        per_core: usize,
        /// CPUs in unreserved cores.
        available: usize,
    },
    /// Not enough free CPUs.
    #[error("Allocate failed due to {0}, which is unexpected")]
    Cpus(#[from] AssignError),
    /// Not enough free memory.
    #[error("Allocate failed due to {0}, which is unexpected")]
    Memory(#[from] AllocateError),
    /// No devices.
    #[error(transparent)]
    Devices(#[from] DeviceRefusal),
}

/// Why no devices are allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefusal {
    /// There are none to allocate.
    #[error("Allocate failed due to {0}, which is unexpected")]
    Failed(String),
    /// The choice needs an answer of a plugin first: the pod is neither admitted nor rejected.
    #[error("a device plugin has to be asked which devices it prefers")]
    Unanswered,
}

/// The devices of plugins, chosen for one pod while its other resources are allocated.
pub trait DeviceProvider {
    /// Whether the pod requests no devices.
    fn is_empty(&self) -> bool;
    /// The hints of each resource that a container requests.
    fn hints(&mut self, container: &str) -> Hints;
    /// The hints of each resource that the pod as a whole requests.
    fn pod_hints(&mut self) -> Hints;
    /// Chooses the devices of a container, on these nodes if possible; `None`: on any.
    ///
    /// # Errors
    /// When too few can be chosen.
    fn allocate(&mut self, container: &str, nodes: Option<NumaMask>) -> Result<(), DeviceRefusal>;
}

/// For a pod without devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDevices;

impl DeviceProvider for NoDevices {
    fn is_empty(&self) -> bool {
        true
    }

    fn hints(&mut self, _: &str) -> Hints {
        Hints::new()
    }

    fn pod_hints(&mut self) -> Hints {
        Hints::new()
    }

    fn allocate(&mut self, _: &str, _: Option<NumaMask>) -> Result<(), DeviceRefusal> {
        Ok(())
    }
}

impl Refusal {
    /// The reason of the pod status.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Topology | Self::PodTopology { .. } => "TopologyAffinityError",
            Self::EmptyPool(_) => "EmptyPodSharedPoolError",
            Self::NotWholeCores { .. } | Self::NotEnoughCores { .. } => "SMTAlignmentError",
            Self::Cpus(_) | Self::Memory(_) | Self::Devices(_) => "UnexpectedAdmissionError",
        }
    }
}

/// The topology manager: its policy and scope.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    policy: Policy,
    whole_pods: bool,
    nodes: Nodes,
}

impl Topology {
    /// For this machine; `whole_pods` is the scope `pod`. `None` if it has too many nodes.
    pub fn new(
        policy: Policy,
        whole_pods: bool,
        options: TopologyOptions,
        machine: &Machine,
    ) -> Option<Self> {
        let fits = policy == Policy::None || machine.nodes.len() <= options.most_nodes;
        let nodes = Nodes::new(&machine.nodes, options.prefer_closest);
        fits.then_some(Self { policy, whole_pods, nodes })
    }
}

/// All managers; a missing one allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Allocator {
    topology: Topology,
    cpu: Option<cpu::Policy>,
    memory: Option<memory::Policy>,
}

impl Allocator {
    /// Managers with these policies.
    pub fn new(
        topology: Topology,
        cpu: Option<cpu::Policy>,
        memory: Option<memory::Policy>,
    ) -> Self {
        Self { topology, cpu, memory }
    }

    /// Whether no manager ever allocates anything, and devices are not aligned.
    pub fn is_idle(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none() && self.topology.policy == Policy::None
    }

    /// Restores the state of the CPU manager.
    ///
    /// # Errors
    /// If it does not match the machine or the reservations.
    pub fn restore_cpu(&mut self, state: Option<cpu::State>) -> Result<(), StateError> {
        match (&mut self.cpu, state) {
            (Some(policy), Some(state)) => policy.restore(state),
            _ => Ok(()),
        }
    }

    /// Restores the state of the memory manager.
    ///
    /// # Errors
    /// If it does not match the machine or the reservations.
    pub fn restore_memory(&mut self, state: Option<memory::State>) -> Result<(), StateError> {
        match (&mut self.memory, state) {
            (Some(policy), Some(state)) => policy.restore(state),
            _ => Ok(()),
        }
    }

    /// Allocates all resources of a pod without devices, or none. Existing allocations are kept.
    ///
    /// # Errors
    /// Why the pod is rejected.
    pub fn admit(&mut self, pod: &PodRequest) -> Result<(), Refusal> {
        self.admit_with(pod, &mut NoDevices)
    }

    /// The same for a pod with devices, whose allocation is the caller's to undo.
    ///
    /// # Errors
    /// Why the pod is rejected.
    pub fn admit_with(
        &mut self,
        pod: &PodRequest,
        devices: &mut dyn DeviceProvider,
    ) -> Result<(), Refusal> {
        let given = self.give(pod, devices);
        if given.is_err() {
            self.release(&pod.uid);
        }
        given
    }

    /// Whether a pod's CPUs and memory are allocated to it as a whole.
    pub fn takes_whole(&self, pod: &PodRequest) -> bool {
        pod.own.is_some() && self.aligns_whole_pods()
    }

    fn aligns_whole_pods(&self) -> bool {
        self.topology.whole_pods && self.topology.policy != Policy::None
    }

    fn give(&mut self, pod: &PodRequest, devices: &mut dyn DeviceProvider) -> Result<(), Refusal> {
        let whole_pods = self.aligns_whole_pods();
        let given = match self.takes_whole(pod) {
            true => self.give_whole(pod, devices),
            false => self.give_to_containers(pod, devices),
        };
        given.map_err(|refusal| match refusal {
            Refusal::Topology if pod.own.is_some() => Refusal::PodTopology { whole_pods },
            refusal => refusal,
        })
    }

    /// Allocates the CPUs and the memory of a pod with pod-level resources as a whole.
    fn give_whole(
        &mut self,
        pod: &PodRequest,
        devices: &mut dyn DeviceProvider,
    ) -> Result<(), Refusal> {
        let hint = self.pod_hint(pod, devices)?;
        for container in &pod.containers {
            devices.allocate(&container.name, hint.nodes)?;
        }
        if let Some(cpu) = &mut self.cpu {
            cpu.allocate_pod(pod, hint)?;
        }
        if let Some(memory) = &mut self.memory {
            memory.allocate_pod(pod, hint)?;
        }
        Ok(())
    }

    fn pod_hint(
        &self,
        pod: &PodRequest,
        devices: &mut dyn DeviceProvider,
    ) -> Result<Hint, Refusal> {
        self.hint(
            devices.pod_hints(),
            self.cpu.as_ref().map(|cpu| cpu.pod_hints(pod)),
            self.memory.as_ref().map(|memory| memory.pod_hints(pod)),
        )
    }

    fn give_to_containers(
        &mut self,
        pod: &PodRequest,
        devices: &mut dyn DeviceProvider,
    ) -> Result<(), Refusal> {
        let whole = match self.aligns_whole_pods() {
            true => Some(self.pod_hint(pod, devices)?),
            false => None,
        };
        for container in &pod.containers {
            let hint = match whole {
                Some(hint) => hint,
                None => self.container_hint(pod, container, devices)?,
            };
            devices.allocate(&container.name, hint.nodes)?;
            if let Some(cpu) = &mut self.cpu {
                cpu.allocate(pod, container, hint)?;
            }
            if let Some(memory) = &mut self.memory {
                memory.allocate(pod, container, hint)?;
            }
        }
        Ok(())
    }

    fn container_hint(
        &self,
        pod: &PodRequest,
        container: &ContainerRequest,
        devices: &mut dyn DeviceProvider,
    ) -> Result<Hint, Refusal> {
        if self.topology.policy == Policy::None {
            return Ok(Hint::default());
        }
        self.hint(
            devices.hints(&container.name),
            self.cpu.as_ref().map(|cpu| cpu.hints(pod, container)),
            self.memory.as_ref().map(|memory| memory.hints(pod, container)),
        )
    }

    fn hint(
        &self,
        devices: Hints,
        cpu: Option<Hints>,
        memory: Option<Hints>,
    ) -> Result<Hint, Refusal> {
        let providers = [devices, cpu.unwrap_or_default(), memory.unwrap_or_default()];
        match self.topology.policy.merge(&self.topology.nodes, &providers) {
            (hint, true) => Ok(hint),
            (_, false) => Err(Refusal::Topology),
        }
    }

    /// Releases the resources of a pod. Returns whether it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        let cpus = self.cpu.as_mut().is_some_and(|cpu| cpu.release(uid));
        let memory = self.memory.as_mut().is_some_and(|memory| memory.release(uid));
        cpus || memory
    }

    /// A container is about to start. Returns whether memory of init containers was released.
    pub fn begin(&mut self, pod: &PodRequest, container: &str) -> bool {
        self.memory.as_mut().is_some_and(|memory| memory.begin(pod, container))
    }

    /// UIDs of pods with exclusive resources.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        let cpus = self.cpu.iter().map(cpu::Policy::state);
        let cpus = cpus.flat_map(|state| state.assignments.keys().chain(state.pods.keys()));
        let memory = self.memory.iter().map(memory::Policy::state);
        let memory = memory.flat_map(|state| state.assignments.keys().chain(state.pods.keys()));
        cpus.chain(memory).map(String::as_str)
    }

    /// The CPUs of a container, if the CPU manager is active.
    pub fn cpus(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.cpu.as_ref().map(|cpu| cpu.cpus(uid, container)).filter(|cpus| !cpus.is_empty())
    }

    /// The exclusive CPUs of a container, if any.
    pub fn own_cpus(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.cpu.as_ref()?.own(uid, container)
    }

    /// The CPUs that can be exclusive, in use or not; none without a policy.
    pub fn allocatable_cpus(&self) -> CpuSet {
        self.cpu.as_ref().map(cpu::Policy::allocatable).unwrap_or_default()
    }

    /// The memory nodes of a container, if the memory manager is active.
    pub fn memory_nodes(&self, uid: &str, container: &str) -> Option<NumaMask> {
        self.memory.as_ref()?.nodes(uid, container)
    }

    /// The machine's CPUs, if the CPU manager has a policy.
    pub fn machine(&self) -> Option<&Cpus> {
        self.cpu.as_ref().map(cpu::Policy::machine)
    }

    /// The CPU manager's state, if it has a policy.
    pub fn cpu_state(&self) -> Option<&cpu::State> {
        self.cpu.as_ref().map(cpu::Policy::state)
    }

    /// The memory manager's state, if it has a policy.
    pub fn memory_state(&self) -> Option<&memory::State> {
        self.memory.as_ref().map(memory::Policy::state)
    }
}
