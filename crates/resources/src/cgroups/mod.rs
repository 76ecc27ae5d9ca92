//! The cgroups of pods: `kubepods`, a level for each quality of service but the best, one cgroup a
//! pod; on cgroup v1 (each controller has a tree) and v2, as directories or as systemd's slices.
//! The levels follow the pods that stand in them. Every change waits for none but the kernel and
//! systemd, and is the same when it is made again.
//!
//! Current limitations: processes of the system are not moved (`systemCgroups`), nor is the daemon
//! itself (`kubeletCgroups`).

mod driver;
mod error;
mod fs;
mod hierarchy;
mod limits;
mod metrics;
mod name;
mod pod;
mod qos;
mod systemd;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::panics;
use longshore_machine::cgroup::is_unified;
use longshore_machine::online_cpus;
use longshore_metrics::Registry;
use longshore_pod::qos::{QosClass, class};
use longshore_pod::spec;
use tokio::sync::Mutex;
use tracing::warn;

pub use self::driver::{Driver, Mismatch, choose as choose_driver};
pub use self::error::Error;
use self::fs::Fs;
use self::hierarchy::Hierarchies;
pub use self::limits::{LEAST_SHARES, Limits, Max, quota, shares};
use self::metrics::Metrics;
use self::name::Name;
use self::qos::Levels;
use self::systemd::Systemd;

/// How memory that pods request is protected from being reclaimed: the gate `MemoryQoS`, on v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all, and what earlier daemons have set is taken back.
    None,
    /// Of guaranteed pods always, of burstable ones as long as the kernel can.
    Tiered,
}

/// Memory requests of better classes that are kept from worse ones: the gate `QOSReserved`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReserve {
    /// How much of the requests, from 0 to 100.
    pub percent: u64,
    /// Bytes of memory that pods may use in all.
    pub allocatable: u64,
}

/// What the node's config says of cgroups.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Off: pods run below the root itself, and nothing of this room is done.
    pub per_qos: bool,
    /// Period of the CPU quota; `None` to enforce none.
    pub cfs_quota_period: Option<Duration>,
    /// Processes and threads that a pod may have.
    pub pod_pids: Option<u64>,
    /// `None` for a kernel or a config that knows nothing of it.
    pub protection: Option<Protection>,
    /// `None` to keep nothing.
    pub memory_reserve: Option<MemoryReserve>,
    /// Whether CPUs are given to containers of their own, which must not be balanced.
    pub exclusive_cpus: bool,
}

/// The cgroups of this node's pods. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cgroups {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    driver: Driver,
    /// The cgroup that all pods stand in.
    root: Name,
    fs: Fs,
    /// With systemd's driver.
    systemd: Option<Systemd>,
    policy: Policy,
    /// The pods in the levels.
    pods: std::sync::Mutex<qos::Pods>,
    /// What the levels were given last.
    levels: Mutex<Levels>,
    metrics: Metrics,
}

impl Cgroups {
    /// Find the machine's hierarchies, and make the tree below `root` (a path) that pods stand in.
    /// How long changes of it take is told to `registry`.
    pub async fn setup(
        driver: Driver,
        root: &str,
        policy: Policy,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let fs = Fs { hierarchies: Hierarchies::of_machine()?, unbalanced: policy.exclusive_cpus };
        let systemd = match driver {
            Driver::Cgroupfs => None,
            Driver::Systemd => Some(
                Systemd::connect().await.map_err(|error| Error::NoSystemd(error.to_string()))?,
            ),
        };
        let root_field = |error: Error| error.of_field("cgroupRoot");
        let mut name = Name::of_path(root).map_err(root_field)?;
        if policy.per_qos {
            let path = PathBuf::from(name.path(driver));
            fs.expect(&path).map_err(root_field)?;
            name = name.child("kubepods")?;
        }
        let cgroups = Self {
            shared: Arc::new(Shared {
                driver,
                root: name,
                fs,
                systemd,
                policy,
                pods: std::sync::Mutex::default(),
                levels: Mutex::default(),
                metrics: Metrics::new(registry, is_unified()),
            }),
        };
        if cgroups.shared.policy.per_qos {
            // systemd takes controllers away of which it does not know that they are in use.
            let tell_cpus = driver == Driver::Systemd && cgroups.is_unified();
            for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
                let of_root = class == QosClass::Guaranteed && tell_cpus;
                let cpus = of_root.then(online_cpus).flatten().map(|cpus| cpus.to_string());
                let limits = Limits { cpus, ..qos::initial(class) };
                cgroups.shared.ensure(&cgroups.level(class)?, limits).await?;
            }
            cgroups.update_levels().await?;
        }
        Ok(cgroups)
    }

    /// Whether the machine has cgroup v2 alone.
    pub fn is_unified(&self) -> bool {
        self.shared.fs.hierarchies.unified
    }

    /// Whether the kernel counts the swap of pods.
    pub fn count_swap(&self) -> bool {
        let shared = &self.shared;
        shared.fs.counts_swap(Path::new(&shared.root.path(shared.driver)))
    }

    /// The parent that the runtime is told for a pod's cgroups: a path from the hierarchies' roots
    /// down, whichever driver made it. Empty to leave it to the runtime.
    pub fn parent_of(&self, pod: &Pod) -> String {
        let shared = &self.shared;
        let parent = match shared.policy.per_qos {
            true => self.name_of(class(pod), pod),
            false => Ok(shared.root.clone()),
        };
        // A pod whose name cannot be one is told so before.
        let parent = parent.ok().filter(|name| !name.is_root());
        parent.map(|name| name.path(shared.driver)).unwrap_or_default()
    }

    /// The cgroup that all pods stand in, if they have one: a path from the hierarchies' roots down.
    pub fn of_pods(&self) -> Option<PathBuf> {
        let shared = &self.shared;
        shared.policy.per_qos.then(|| shared.root.path(shared.driver).into())
    }

    /// Bytes of memory that the pod uses, caches included. Reads a file of the kernel's.
    pub fn memory_of(&self, pod: &Pod) -> Result<u64, Error> {
        self.shared.fs.memory_usage(Path::new(&self.parent_of(pod)))
    }

    /// Make the pod's cgroup and set its limits. One that is there already is set again.
    pub async fn create(&self, pod: &Pod) -> Result<(), Error> {
        if !self.shared.policy.per_qos {
            return Ok(());
        }
        self.adopt(pod).await;
        let name = self.name_of(class(pod), pod)?;
        self.shared.ensure(&name, pod::limits(pod, &self.shared.policy)).await
    }

    /// Count a pod whose cgroup stands already to its level.
    pub async fn adopt(&self, pod: &Pod) {
        if !self.shared.policy.per_qos {
            return;
        }
        self.pods().insert(pod);
        // The level has the share that it had before.
        if let Err(error) = self.update_levels().await {
            warn!(%error, "the cgroup of a quality of service is not as its pods want it");
        }
    }

    /// Remove the pod's cgroup. What still runs in it is killed.
    pub async fn remove(&self, pod: &Pod) -> Result<(), Error> {
        let shared = &self.shared;
        if !shared.policy.per_qos {
            return Ok(());
        }
        // The class is fixed while the pod lives, but an orphan's spec is not known.
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let Ok(name) = self.name_of(class, pod) else { continue };
            shared.remove(&name).await?;
        }
        self.pods().remove(spec::uid(pod));
        if let Err(error) = self.update_levels().await {
            warn!(%error, "the cgroup of a quality of service is not as its pods want it");
        }
        Ok(())
    }

    /// Give all pods together their limits.
    pub async fn limit(&self, limits: Limits) -> Result<(), Error> {
        match self.shared.root.is_root() {
            true => Ok(()),
            false => self.shared.set(&self.shared.root, limits).await,
        }
    }

    /// Give a cgroup of the machine its limits, which is named as the driver does.
    pub async fn limit_existing(&self, cgroup: &str, limits: Limits) -> Result<(), Error> {
        let shared = &self.shared;
        let name = Name::of_machine(shared.driver, cgroup)?;
        shared.blocking(&name, |fs, path| fs.expect(path)).await?;
        shared.set(&name, limits).await
    }

    fn level(&self, class: QosClass) -> Result<Name, Error> {
        match class {
            QosClass::Guaranteed => Ok(self.shared.root.clone()),
            QosClass::Burstable => self.shared.root.child("burstable"),
            QosClass::BestEffort => self.shared.root.child("besteffort"),
        }
    }

    fn name_of(&self, class: QosClass, pod: &Pod) -> Result<Name, Error> {
        self.level(class)?.child(&format!("pod{}", spec::uid(pod)))
    }

    fn pods(&self) -> std::sync::MutexGuard<'_, qos::Pods> {
        // No code panics while it holds the lock.
        self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Give the levels what follows from the pods in them, where that has changed.
    async fn update_levels(&self) -> Result<(), Error> {
        let shared = &self.shared;
        // Held throughout, so that the last who changes the pods is the last who writes.
        let mut told = shared.levels.lock().await;
        let wanted = self.pods().levels(&shared.policy);
        for (class, limits) in wanted {
            if told.get(&class) == Some(&limits) {
                continue;
            }
            let name = self.level(class)?;
            let set = shared.set(&name, limits.clone()).await;
            match (set, limits.memory) {
                (Err(_), Some(Max::At(limit))) => {
                    // More is in use than is to be: it is not to grow further.
                    let usage = shared.blocking(&name, |fs, path| fs.memory_usage(path)).await;
                    let usage = usage.unwrap_or(0);
                    let memory = Some(Max::At(limit.max(usage)));
                    shared.set(&name, Limits { memory, ..limits }).await?;
                }
                (set, _) => {
                    set?;
                    told.insert(class, limits);
                }
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Make a cgroup if it is not there, and set its limits.
    async fn ensure(&self, name: &Name, limits: Limits) -> Result<(), Error> {
        let _timer = self.metrics.begin("create");
        if let Some(systemd) = &self.systemd {
            let started = systemd.start(name, self.fs.hierarchies.unified).await;
            started.map_err(of_unit(name))?;
        }
        self.blocking(name, |fs, path| fs.make(path)).await?;
        self.write(name, limits).await
    }

    async fn set(&self, name: &Name, limits: Limits) -> Result<(), Error> {
        let _timer = self.metrics.begin("update");
        self.write(name, limits).await
    }

    async fn write(&self, name: &Name, limits: Limits) -> Result<(), Error> {
        let limits = match &self.systemd {
            None => limits,
            Some(systemd) => {
                let set = systemd.set(name, &limits, self.fs.hierarchies.unified).await;
                set.map_err(of_unit(name))?;
                // Files too: at once, and for what systemd knows nothing of.
                limits.rounded()
            }
        };
        self.blocking(name, move |fs, path| fs.set(path, &limits)).await
    }

    async fn remove(&self, name: &Name) -> Result<(), Error> {
        if !self.blocking(name, |fs, path| Ok(fs.is_anywhere(path))).await? {
            return Ok(());
        }
        let _timer = self.metrics.begin("destroy");
        if let Some(systemd) = &self.systemd {
            systemd.stop(name).await.map_err(of_unit(name))?;
        }
        self.blocking(name, |fs, path| fs.remove(path)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        name: &Name,
        work: impl FnOnce(&Fs, &Path) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (fs, path) = (self.fs.clone(), PathBuf::from(name.path(self.driver)));
        let at = path.clone();
        let done = panics::blocking(move || work(&fs, &path)).await;
        done.map_err(|error| Error::at(&at)(io::Error::other(error)))?
    }
}

fn of_unit(name: &Name) -> impl FnOnce(systemd::Error) -> Error {
    let unit = name.unit();
    |source| Error::Unit { unit, source }
}
