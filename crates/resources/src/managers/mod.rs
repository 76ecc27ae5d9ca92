//! The CPU, memory and topology managers: which CPUs and which memory containers have for
//! themselves. The rules are crate `topology`'s; here are the machine, the config, the state files
//! and the running containers. Workers ask when a pod is let in and tell its end, the hands ask when
//! they make a container; two rooms keep the files and the CPUs of running containers right. Under
//! the policies `none` nothing of this is there, but for the files, which name the policy.
//!
//! Current limitations: pods with resources of their own share everything (the alpha gate
//! `PodLevelResourceManagers`); hints of devices are not asked for.

mod files;
mod machine;
mod metrics;
mod reconcile;
mod request;
mod setup;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use longshore_cri::Runtime;
use longshore_cri::v1::LinuxContainerResources;
use longshore_metrics::Registry;
use longshore_pod::qos;
use longshore_pod::spec;
use longshore_pod::status::Verdict;
use longshore_topology::{Allocator, CpuSet, Refusal, StateError};
use tokio::sync::watch;
use tracing::{info, warn};

use files::Files;
use longshore_config::{Config, GoDuration};
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use metrics::{Given, Metrics};

/// Why the managers cannot begin, or cannot keep what they decide.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting does not suit this machine or another setting.
    #[error("{field}: {why}")]
    Setting {
        /// The field of the configuration.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// What was kept cannot be gone on from.
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
    /// The last decision is not on disk, for this reason.
    #[error("{0}")]
    NotKept(String),
}

/// The managers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Managers {
    /// Nothing under the policies `none`.
    shared: Option<Arc<Shared>>,
    metrics: Metrics,
}

struct Shared {
    allocator: Mutex<Allocator>,
    /// Counts changes of what the allocator has given.
    version: watch::Sender<u64>,
    /// How much of that is on disk.
    kept: watch::Sender<Kept>,
    files: Files,
    desired: Desired,
    observer: Observer,
    /// Whether containers with CPUs of their own have no quota of them.
    lifts_quota: bool,
    period: GoDuration,
}

#[derive(Default)]
struct Kept {
    version: u64,
    /// Why the newest version is not kept, if it is not.
    trouble: Option<String>,
}

impl std::fmt::Debug for Managers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Managers").field("active", &self.shared.is_some()).finish()
    }
}

/// The machine's CPUs and NUMA nodes, whether or not anything is managed by them.
pub fn topology() -> std::io::Result<longshore_topology::Machine> {
    machine::read(std::path::Path::new(setup::SYSTEM))
}

impl Managers {
    /// Set up the policies of the configuration, and go on from what was kept. What is given is
    /// told to `registry`.
    ///
    /// # Errors
    /// When they do not suit this machine, or the kept state does not suit them.
    pub fn start(
        config: &Config,
        desired: Desired,
        observer: Observer,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let metrics = Metrics::new(registry, config);
        let mut allocator = setup::allocator(config)?;
        let files = Files::new(&config.root_dir, &config.kubelet);
        let (cpu, memory) = files.load(&allocator)?;
        allocator.restore_cpu(cpu).map_err(|source| files.cpu_error(source))?;
        allocator.restore_memory(memory).map_err(|source| files.memory_error(source))?;
        if allocator.is_idle() {
            metrics::tell(registry, Weak::new());
            return Ok(Self { shared: None, metrics });
        }
        if let Some(state) = allocator.cpu_state() {
            info!(shared = %state.shared, pods = state.assignments.len(), "static CPU policy");
        }
        let shared = Arc::new(Shared {
            allocator: Mutex::new(allocator),
            version: watch::Sender::new(0),
            kept: watch::Sender::default(),
            files,
            desired,
            observer,
            lifts_quota: config.gates.enabled("DisableCPUQuotaWithExclusiveCPUs"),
            period: config.kubelet.cpu_manager_reconcile_period,
        });
        metrics::tell(registry, Arc::downgrade(&shared));
        Ok(Self { shared: Some(shared), metrics })
    }

    /// Let a pod in: it has what it is to have for itself from now on, until [`Managers::release`].
    /// One that has it already keeps it.
    ///
    /// # Errors
    /// Why it cannot be let in, as its status tells it.
    pub fn admit(&self, pod: &Pod) -> Result<(), Verdict> {
        let began = Instant::now();
        let admitted = self.decide(pod);
        self.metrics.decided(began, &admitted);
        let admitted = admitted.map(drop);
        admitted.map_err(|refusal| Verdict::failed(refusal.reason(), refusal.to_string()))
    }

    fn decide(&self, pod: &Pod) -> Result<Given, Refusal> {
        let request = request::of(pod);
        let nothing = Given { containers: request.containers.len(), ..Given::default() };
        let Some(shared) = self.shared.as_ref().filter(|_| request.guaranteed) else {
            return Ok(nothing);
        };
        shared.change(|allocator| {
            shared.drop_stale(allocator);
            allocator.admit(&request)?;
            let own = allocator.cpu_state().and_then(|state| state.assignments.get(&request.uid));
            let own = || own.into_iter().flat_map(BTreeMap::values);
            let memory = allocator.memory_state();
            let memory = memory.and_then(|state| state.assignments.get(&request.uid));
            let one_cache = |cpus: &&CpuSet| {
                allocator.machine().is_some_and(|machine| metrics::share_cache(cpus, machine))
            };
            Ok(Given {
                cpus: own().count(),
                one_cache: own().filter(one_cache).count(),
                memory: memory.map_or(0, BTreeMap::len),
                ..nothing
            })
        })
    }

    /// Take over a pod that runs already. One of which nothing is known, for it was started under
    /// another policy, gets what it can get.
    pub fn adopt(&self, pod: &Pod) {
        let uid = spec::uid(pod);
        if self.shared.as_ref().is_none_or(|shared| shared.allocator().holders().any(|h| h == uid))
        {
            return;
        }
        if let Err(verdict) = self.admit(pod) {
            let (pod, reason) = (spec::name(pod), &verdict.message);
            warn!(pod, uid, reason, "a pod that runs shares its CPUs and memory with others");
        }
    }

    /// The pod's end: give back what it had.
    pub fn release(&self, uid: &str) {
        let Some(shared) = &self.shared else { return };
        let holds = shared.allocator().holders().any(|holder| holder == uid);
        if holds {
            shared.change(|allocator| allocator.release(uid));
        }
    }

    /// Until what was decided so far is on disk: a container may not run on CPUs that nobody would
    /// know to be its own after a crash.
    ///
    /// # Errors
    /// When it cannot be written. It is tried again.
    pub async fn settled(&self) -> Result<(), Error> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let version = *shared.version.borrow();
        let mut kept = shared.kept.subscribe();
        match kept.wait_for(|kept| kept.version >= version || kept.trouble.is_some()).await {
            Ok(kept) => match &kept.trouble {
                Some(trouble) if kept.version < version => Err(Error::NotKept(trouble.clone())),
                _ => Ok(()),
            },
            Err(_) => Ok(()), // the sender is in `shared`
        }
    }

    /// A container is about to be made: its resources say what it runs on.
    pub fn place(&self, pod: &Pod, container: &str, resources: &mut LinuxContainerResources) {
        let Some(shared) = &self.shared else { return };
        let (uid, request) = (spec::uid(pod), request::of(pod));
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
        let is_pinned = allocator.own_cpus(uid, container).is_some();
        if is_pinned && shared.lifts_quota && resources.cpu_period > 0 {
            resources.cpu_quota = -1;
        }
    }

    /// The pod as its cgroup is to be made: without limits of CPU if a container of it has CPUs for
    /// itself, which bound it as well and never make it wait.
    pub fn without_quota<'a>(&self, pod: &'a Pod) -> Cow<'a, Pod> {
        let uid = spec::uid(pod);
        let is_pinned = self.shared.as_ref().is_some_and(|shared| {
            let allocator = shared.allocator();
            shared.lifts_quota
                && allocator.cpu_state().is_some_and(|s| s.assignments.contains_key(uid))
        });
        if !is_pinned {
            return Cow::Borrowed(pod);
        }
        let mut pod = pod.clone();
        // The class would follow from the limits.
        let class = qos::class(&pod).as_str().to_owned();
        pod.status.get_or_insert_default().qos_class = Some(class);
        if let Some(spec) = &mut pod.spec {
            let init = spec.init_containers.iter_mut().flatten();
            for container in init.chain(&mut spec.containers) {
                let limits = container.resources.as_mut().and_then(|own| own.limits.as_mut());
                limits.and_then(|limits| limits.remove("cpu"));
            }
        }
        Cow::Owned(pod)
    }

    /// The room that keeps the state files.
    pub async fn keep(self) {
        if let Some(shared) = self.shared {
            files::keep(&shared).await;
        }
    }

    /// The room that keeps running containers on their CPUs.
    pub async fn reconcile(self, runtime: Runtime) {
        if let Some(shared) = self.shared {
            reconcile::run(&shared, runtime).await;
        }
    }
}

impl Shared {
    fn allocator(&self) -> MutexGuard<'_, Allocator> {
        // No code panics while it holds the lock.
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Allocator) -> T) -> T {
        let outcome = change(&mut self.allocator());
        self.version.send_modify(|version| *version = version.saturating_add(1));
        outcome
    }

    /// Pods that are neither wanted nor there give back what they had: their end came while no
    /// daemon ran.
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
            info!(uid, "a pod that is gone gives back its CPUs and memory");
            allocator.release(uid);
        }
        !stale.is_empty()
    }
}
