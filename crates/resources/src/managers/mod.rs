//! The CPU, memory and topology managers: exclusive CPUs and memory of containers. The policies are
//! in the crate `topology`; here are the machine, the config, the state files and the running
//! containers. Pod workers admit and release pods, the runtime manager gets the cpuset of a
//! container that it creates; two tasks write the state files and reconcile running containers.
//! Under the policies `none` only the files are written, which name the policy.

mod files;
mod machine;
mod metrics;
mod reconcile;
mod request;
mod setup;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use longshore_cri::Runtime;
use longshore_cri::v1::LinuxContainerResources;
use longshore_metrics::Registry;
use longshore_pod::qos;
use longshore_pod::spec;
use longshore_pod::status::Verdict;
use longshore_topology::checkpoint::Form;
pub use longshore_topology::memory::Block;
use longshore_topology::{
    Allocator, ContainerRequest, CpuSet, DeviceProvider, DeviceRefusal, NoDevices, PodRequest,
    Refusal, StateError, memory,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tracing::{info, warn};

use files::Files;
use longshore_config::{Config, GoDuration};
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use metrics::{Allocation, Metrics};

/// Why the managers cannot start, or cannot persist their state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is invalid for this machine or conflicts with another setting.
    #[error("{field}: {why}")]
    Setting {
        /// The field of the configuration.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The persisted state cannot be restored.
    #[error(
        "could not restore state from checkpoint: {source}, please drain this node and delete the \
         {manager} manager checkpoint file \"{}\" before restarting Kubelet",
        .path.display()
    )]
    State {
        /// `CPU` or `memory`.
        manager: &'static str,
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        source: StateError,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The state could not be written.
    #[error("{0}")]
    NotPersisted(String),
}

/// The managers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Managers {
    /// `None` under the policies `none`.
    shared: Option<Arc<Shared>>,
    metrics: Metrics,
}

struct Shared {
    allocator: Mutex<Allocator>,
    /// Version of the allocator's state.
    version: watch::Sender<u64>,
    /// The version on disk.
    persisted: watch::Sender<Persisted>,
    files: Files,
    desired: Desired,
    observer: Observer,
    /// Whether pod-level resources are managed.
    manages_pods: bool,
    /// Whether containers with exclusive CPUs have no CPU quota.
    disables_cpu_quota: bool,
    period: GoDuration,
}

#[derive(Default)]
struct Persisted {
    version: u64,
    /// Why the newest version was not written.
    error: Option<String>,
}

impl std::fmt::Debug for Managers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Managers").field("active", &self.shared.is_some()).finish()
    }
}

/// The machine's CPU and NUMA topology.
pub fn topology() -> std::io::Result<longshore_topology::Machine> {
    machine::read(std::path::Path::new(setup::SYSTEM))
}

impl Managers {
    /// Sets up the configured policies, and restores the persisted state. Metrics go to `registry`.
    ///
    /// # Errors
    /// When they are invalid for this machine, or do not match the persisted state.
    pub fn start(
        config: &Config,
        desired: Desired,
        observer: Observer,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let enabled = |gate| config.gates.enabled(gate);
        let manages_pods = enabled("PodLevelResourceManagers") && enabled("PodLevelResources");
        let metrics = Metrics::new(registry, config);
        let mut allocator = setup::allocator(config)?;
        let form = if manages_pods { Form::WithPods } else { Form::Plain };
        let files = Files::new(&config.root_dir, &config.kubelet, form);
        let (cpu, memory) = files.load(&allocator)?;
        allocator.restore_cpu(cpu).map_err(|source| files.cpu_error(source))?;
        allocator.restore_memory(memory).map_err(|source| files.memory_error(source))?;
        if allocator.is_idle() {
            metrics::register_collector(registry, Weak::new());
            return Ok(Self { shared: None, metrics });
        }
        if let Some(state) = allocator.cpu_state() {
            info!(shared = %state.shared, pods = state.assignments.len(), "static CPU policy");
        }
        let shared = Arc::new(Shared {
            allocator: Mutex::new(allocator),
            version: watch::Sender::new(0),
            persisted: watch::Sender::default(),
            files,
            desired,
            observer,
            manages_pods,
            disables_cpu_quota: config.gates.enabled("DisableCPUQuotaWithExclusiveCPUs"),
            period: config.kubelet.cpu_manager_reconcile_period,
        });
        metrics::register_collector(registry, Arc::downgrade(&shared));
        Ok(Self { shared: Some(shared), metrics })
    }

    /// Admits a pod: allocates its exclusive resources until [`Managers::release`]. Existing
    /// allocations are kept.
    ///
    /// # Errors
    /// The reason of the rejection, for its status.
    pub fn admit(&self, pod: &Pod) -> Result<(), Verdict> {
        self.admit_with(pod, &mut NoDevices)
    }

    /// The same for a pod with devices, which are aligned with its other resources. Their allocation
    /// is the caller's to undo.
    ///
    /// # Errors
    /// The reason of the rejection, for its status.
    pub fn admit_with(&self, pod: &Pod, devices: &mut dyn DeviceProvider) -> Result<(), Verdict> {
        let began = Instant::now();
        let manages_pods = self.shared.as_ref().is_some_and(|shared| shared.manages_pods);
        let request = request::of(pod, manages_pods);
        let admitted = self.try_admit(&request, devices);
        if !matches!(admitted, Err(Refusal::Devices(DeviceRefusal::Unanswered))) {
            let takes_whole = |shared: &Arc<Shared>| shared.allocator().takes_whole(&request);
            let is_of_pod = self.shared.as_ref().is_some_and(takes_whole);
            self.metrics.observe_admission(began, &admitted, is_of_pod);
        }
        let admitted = admitted.map(drop);
        admitted.map_err(|refusal| Verdict::failed(refusal.reason(), refusal.to_string()))
    }

    fn try_admit(
        &self,
        request: &PodRequest,
        devices: &mut dyn DeviceProvider,
    ) -> Result<Allocation, Refusal> {
        let nothing = Allocation { containers: request.containers.len(), ..Allocation::default() };
        if !request.guaranteed && devices.is_empty() {
            return Ok(nothing);
        }
        let Some(shared) = &self.shared else {
            return Allocator::default().admit_with(request, devices).map(|()| nothing);
        };
        shared.change(|allocator| {
            shared.drop_stale(allocator);
            allocator.admit_with(request, devices)?;
            let cpu = allocator.cpu_state();
            let own = cpu.and_then(|state| state.assignments.get(&request.uid));
            let own = || own.into_iter().flat_map(BTreeMap::values);
            let memory_state = allocator.memory_state();
            let memory = memory_state.and_then(|state| state.assignments.get(&request.uid));
            let one_cache = |cpus: &&CpuSet| {
                allocator.machine().is_some_and(|machine| metrics::share_cache(cpus, machine))
            };
            Ok(Allocation {
                cpus: own().count(),
                one_cache: own().filter(one_cache).count(),
                memory: memory.map_or(0, BTreeMap::len),
                blocks: memory.map_or(0, |own| own.values().map(Vec::len).sum()),
                cpus_of_pod: cpu.is_some_and(|state| state.pods.contains_key(&request.uid)),
                memory_of_pod: memory_state
                    .is_some_and(|state| state.pods.contains_key(&request.uid)),
                own_cpus: count(request, |own| request.cpus_of(own) > 0),
                own_memory: count(request, |own| !own.memory.is_empty()),
                ..nothing
            })
        })
    }

    /// Adopts a running pod. If it has no allocation, as it was started under another policy, one
    /// is attempted.
    pub fn adopt(&self, pod: &Pod) {
        let uid = spec::uid(pod);
        if self.shared.as_ref().is_none_or(|shared| shared.allocator().holders().any(|h| h == uid))
        {
            return;
        }
        if let Err(verdict) = self.admit(pod) {
            let (pod, reason) = (spec::name(pod), &verdict.message);
            warn!(pod, uid, reason, "failed to allocate exclusive CPUs or memory to a running pod");
        }
    }

    /// Releases the allocation of a pod.
    pub fn release(&self, uid: &str) {
        let Some(shared) = &self.shared else { return };
        let holds = shared.allocator().holders().any(|holder| holder == uid);
        if holds {
            shared.change(|allocator| allocator.release(uid));
        }
    }

    /// Waits until the current state is on disk, so that allocations of running containers are
    /// known after a crash.
    ///
    /// # Errors
    /// When it cannot be written; this is retried in the background.
    pub async fn wait_persisted(&self) -> Result<(), Error> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let version = *shared.version.borrow();
        let mut persisted = shared.persisted.subscribe();
        match persisted
            .wait_for(|persisted| persisted.version >= version || persisted.error.is_some())
            .await
        {
            Ok(persisted) => match &persisted.error {
                Some(error) if persisted.version < version => {
                    Err(Error::NotPersisted(error.clone()))
                }
                _ => Ok(()),
            },
            Err(_) => Ok(()), // the sender is in `shared`
        }
    }

    /// Sets the cpuset of a container that is about to be created.
    pub fn set_resources(
        &self,
        pod: &Pod,
        container: &str,
        resources: &mut LinuxContainerResources,
    ) {
        let Some(shared) = &self.shared else { return };
        let (uid, request) = (spec::uid(pod), request::of(pod, shared.manages_pods));
        let returned = shared.allocator().begin(&request, container);
        if returned {
            shared.change(|_| ());
        }
        let allocator = shared.allocator();
        if let Some(cpus) = allocator.cpus(uid, container) {
            resources.cpuset_cpus = cpus.to_string();
        }
        if let Some(nodes) = allocator.memory_nodes(uid, container) {
            resources.cpuset_mems = nodes.to_string();
        }
        let is_pinned = shared.is_pinned(&allocator, &request, container);
        if is_pinned && shared.disables_cpu_quota && resources.cpu_period > 0 {
            resources.cpu_quota = -1;
        }
    }

    /// The pod for the calculation of its cgroup limits: without CPU limits if a container has
    /// exclusive CPUs, so that it is not throttled.
    pub fn without_quota<'a>(&self, pod: &'a Pod) -> Cow<'a, Pod> {
        let uid = spec::uid(pod);
        let is_pinned = self.shared.as_ref().is_some_and(|shared| {
            let allocator = shared.allocator();
            let has_own = || allocator.cpu_state().is_some_and(|s| s.assignments.contains_key(uid));
            let request = || request::of(pod, shared.manages_pods);
            shared.disables_cpu_quota && has_own() && shared.is_whole_pinned(&allocator, &request())
        });
        if !is_pinned {
            return Cow::Borrowed(pod);
        }
        let mut pod = pod.clone();
        // The QoS class would change without the limits.
        let class = qos::class(&pod).as_str().to_owned();
        pod.status.get_or_insert_default().qos_class = Some(class);
        if let Some(spec) = &mut pod.spec {
            let limits = spec.resources.as_mut().and_then(|own| own.limits.as_mut());
            limits.and_then(|limits| limits.remove("cpu"));
            let init = spec.init_containers.iter_mut().flatten();
            for container in init.chain(&mut spec.containers) {
                let limits = container.resources.as_mut().and_then(|own| own.limits.as_mut());
                limits.and_then(|limits| limits.remove("cpu"));
            }
        }
        Cow::Owned(pod)
    }

    /// The exclusive CPUs of a container, in ascending order.
    pub fn exclusive_cpus(&self, uid: &str, container: &str) -> Vec<u32> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let allocator = shared.allocator();
        allocator.own_cpus(uid, container).into_iter().flat_map(CpuSet::iter).collect()
    }

    /// The CPUs that can be allocated exclusively, in use or not; none without a static policy.
    pub fn allocatable_cpus(&self) -> Vec<u32> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let allocator = shared.allocator();
        allocator.allocatable_cpus().iter().collect()
    }

    /// The exclusive memory of a container.
    pub fn memory_blocks(&self, uid: &str, container: &str) -> Vec<Block> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let allocator = shared.allocator();
        let state = allocator.memory_state();
        let own = state.and_then(|state| state.assignments.get(uid)?.get(container));
        own.cloned().unwrap_or_default()
    }

    /// The memory that can be allocated exclusively, in use or not, by NUMA node and type.
    pub fn allocatable_memory(&self) -> Vec<Block> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let allocator = shared.allocator();
        allocator.memory_state().map(memory::State::allocatable).unwrap_or_default()
    }

    /// Writes the state files, forever.
    pub async fn persist_state(self) {
        match self.shared {
            Some(shared) => files::run(&shared).await,
            None => std::future::pending().await,
        }
    }

    /// Reconciles the CPUs of running containers, forever.
    pub async fn reconcile(self, runtime: Runtime) {
        match self.shared {
            Some(shared) => reconcile::run(&shared, runtime).await,
            None => std::future::pending().await,
        }
    }
}

/// How many containers of a pod are such.
fn count(pod: &PodRequest, is_such: impl Fn(&ContainerRequest) -> bool) -> usize {
    pod.containers.iter().filter(|own| is_such(own)).count()
}

impl Shared {
    fn allocator(&self) -> MutexGuard<'_, Allocator> {
        self.allocator.lock()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Allocator) -> T) -> T {
        let outcome = change(&mut self.allocator());
        self.version.send_modify(|version| *version = version.saturating_add(1));
        outcome
    }

    /// Whether the container has CPUs for itself: not those that it shares with others of its pod.
    fn is_pinned(&self, allocator: &Allocator, pod: &PodRequest, container: &str) -> bool {
        let has_own = || {
            let mut all = pod.containers.iter();
            all.any(|own| own.name == container && pod.cpus_of(own) > 0)
        };
        allocator.own_cpus(&pod.uid, container).is_some() && (pod.own.is_none() || has_own())
    }

    /// Whether the pod needs no CPU quota: a container has CPUs for itself, or all of a pod with
    /// pod-level resources.
    fn is_whole_pinned(&self, allocator: &Allocator, pod: &PodRequest) -> bool {
        let mut all = pod.containers.iter();
        match pod.own {
            Some(_) => all.all(|own| self.is_pinned(allocator, pod, &own.name)),
            None => all.any(|own| self.is_pinned(allocator, pod, &own.name)),
        }
    }

    /// Releases allocations of pods that ended while the daemon was not running.
    fn drop_stale(&self, allocator: &mut Allocator) -> bool {
        if !*self.desired.synced().borrow() || self.observer.relisted().borrow().is_none() {
            return false;
        }
        let is_stale = |uid: &&str| {
            !self.desired.has(uid)
                && self.observer.pod(uid).is_none_or(|observed| observed.is_gone())
        };
        let stale: Vec<String> = allocator.holders().filter(is_stale).map(str::to_owned).collect();
        for uid in &stale {
            info!(uid, "releasing the exclusive CPUs and memory of a removed pod");
            allocator.release(uid);
        }
        !stale.is_empty()
    }
}
