//! The cgroups of pods: `kubepods`, a level for the QoS classes Burstable and BestEffort, one
//! cgroup per pod; on cgroup v1 and v2, as directories or systemd slices. The limits of the levels
//! follow their pods. All operations are idempotent. Beside them the cgroups of daemons.

mod daemons;
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
use std::sync::Arc;
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

pub use self::daemons::Daemons;
pub use self::driver::{Driver, Mismatch, choose as choose_driver};
pub use self::error::Error;
use self::fs::Fs;
use self::hierarchy::Hierarchies;
pub use self::limits::{LEAST_SHARES, Limits, Max, quota, shares};
use self::metrics::Metrics;
use self::name::Name;
use self::qos::Levels;
use self::systemd::Systemd;

/// The memory reservation policy of the gate `MemoryQoS`, on v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// No protection; earlier values are reset.
    None,
    /// `memory.min` for guaranteed pods, `memory.low` for burstable ones.
    Tiered,
}

/// Reserved memory requests of higher QoS classes: the gate `QOSReserved`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReserve {
    /// Percentage of the requests.
    pub percent: u64,
    /// Allocatable memory in bytes.
    pub allocatable: u64,
}

/// The configuration of cgroups.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Off: pods run below the root itself, without cgroups of their own.
    pub per_qos: bool,
    /// Period of the CPU quota; `None` to enforce none.
    pub cfs_quota_period: Option<Duration>,
    /// The pod's limit of processes and threads.
    pub pod_pids: Option<u64>,
    /// `None` if unsupported or disabled.
    pub protection: Option<Protection>,
    /// `None` if disabled.
    pub memory_reserve: Option<MemoryReserve>,
    /// Whether containers may have exclusive CPUs, which must not be balanced.
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
    /// The cgroup of all pods.
    root: Name,
    fs: Fs,
    /// With systemd's driver.
    systemd: Option<Systemd>,
    policy: Policy,
    /// The pods by UID.
    pods: parking_lot::Mutex<qos::Pods>,
    /// The last limits of the levels.
    levels: Mutex<Levels>,
    metrics: Metrics,
}

impl Cgroups {
    /// Detects the machine's hierarchies, and creates the cgroups of pods below `root` (a path).
    /// Durations of operations go to `registry`.
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
            fs.ensure_existing(&path).map_err(root_field)?;
            name = name.child("kubepods")?;
        }
        let cgroups = Self {
            shared: Arc::new(Shared {
                driver,
                root: name,
                fs,
                systemd,
                policy,
                pods: parking_lot::Mutex::default(),
                levels: Mutex::default(),
                metrics: Metrics::new(registry, is_unified()),
            }),
        };
        if cgroups.shared.policy.per_qos {
            // systemd disables controllers that it does not know to be in use.
            let set_cpus = driver == Driver::Systemd && cgroups.is_unified();
            for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
                let of_root = class == QosClass::Guaranteed && set_cpus;
                let cpus = of_root.then(online_cpus).flatten().map(|cpus| cpus.to_string());
                let limits = Limits { cpus, ..qos::initial(class) };
                cgroups.shared.ensure(&cgroups.level(class)?, limits).await?;
            }
            cgroups.update_levels().await?;
        }
        Ok(cgroups)
    }

    /// Whether the machine uses cgroup v2.
    pub fn is_unified(&self) -> bool {
        self.shared.fs.hierarchies.unified
    }

    /// Whether swap accounting is available for pods.
    pub fn counts_swap(&self) -> bool {
        let shared = &self.shared;
        shared.fs.counts_swap(Path::new(&shared.root.path(shared.driver)))
    }

    /// The cgroup parent of a pod for the runtime, as an absolute path. Empty to leave it to the
    /// runtime.
    pub fn parent_of(&self, pod: &Pod) -> String {
        let shared = &self.shared;
        let parent = match shared.policy.per_qos {
            true => self.name_of(class(pod), pod),
            false => Ok(shared.root.clone()),
        };
        // Invalid names are refused before.
        let parent = parent.ok().filter(|name| !name.is_root());
        parent.map(|name| name.path(shared.driver)).unwrap_or_default()
    }

    /// The cgroup of all pods, if they have one, as an absolute path.
    pub fn of_pods(&self) -> Option<PathBuf> {
        let shared = &self.shared;
        shared.policy.per_qos.then(|| shared.root.path(shared.driver).into())
    }

    /// The pod's memory usage in bytes, including caches.
    pub fn memory_of(&self, pod: &Pod) -> Result<u64, Error> {
        self.shared.fs.memory_usage(Path::new(&self.parent_of(pod)))
    }

    /// Creates the pod's cgroup, or updates an existing one, and sets its limits.
    pub async fn create(&self, pod: &Pod) -> Result<(), Error> {
        if !self.shared.policy.per_qos {
            return Ok(());
        }
        self.adopt(pod).await;
        let name = self.name_of(class(pod), pod)?;
        self.shared.ensure(&name, pod::limits(pod, &self.shared.policy)).await
    }

    /// Adds a pod with an existing cgroup to its level.
    pub async fn adopt(&self, pod: &Pod) {
        if !self.shared.policy.per_qos {
            return;
        }
        self.pods().insert(pod);
        // The level keeps its previous limits.
        if let Err(error) = self.update_levels().await {
            warn!(%error, "failed to update the cgroups of QoS classes");
        }
    }

    /// Removes the pod's cgroup. Remaining processes are killed.
    pub async fn remove(&self, pod: &Pod) -> Result<(), Error> {
        let shared = &self.shared;
        if !shared.policy.per_qos {
            return Ok(());
        }
        // The QoS class does not change, but is unknown for orphaned pods.
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let Ok(name) = self.name_of(class, pod) else { continue };
            shared.remove(&name).await?;
        }
        self.pods().remove(spec::uid(pod));
        if let Err(error) = self.update_levels().await {
            warn!(%error, "failed to update the cgroups of QoS classes");
        }
        Ok(())
    }

    /// Sets the limits of the cgroup of all pods.
    pub async fn limit(&self, limits: Limits) -> Result<(), Error> {
        match self.shared.root.is_root() {
            true => Ok(()),
            false => self.shared.set(&self.shared.root, limits).await,
        }
    }

    /// Sets the limits of an existing system cgroup, named in the driver's syntax.
    pub async fn limit_existing(&self, cgroup: &str, limits: Limits) -> Result<(), Error> {
        let shared = &self.shared;
        let name = Name::of_machine(shared.driver, cgroup)?;
        shared.blocking(&name, |fs, path| fs.ensure_existing(path)).await?;
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

    fn pods(&self) -> parking_lot::MutexGuard<'_, qos::Pods> {
        self.shared.pods.lock()
    }

    /// Updates the limits of the levels from their pods, if changed.
    async fn update_levels(&self) -> Result<(), Error> {
        let shared = &self.shared;
        // Held throughout, so that the last change is written last.
        let mut last_limits = shared.levels.lock().await;
        let wanted = self.pods().levels(&shared.policy);
        for (class, limits) in wanted {
            if last_limits.get(&class) == Some(&limits) {
                continue;
            }
            let name = self.level(class)?;
            let set = shared.set(&name, limits.clone()).await;
            match (set, limits.memory) {
                (Err(_), Some(Max::At(limit))) => {
                    // Usage is above the limit: prevent further growth.
                    let usage = shared.blocking(&name, |fs, path| fs.memory_usage(path)).await;
                    let usage = usage.unwrap_or(0);
                    let memory = Some(Max::At(limit.max(usage)));
                    shared.set(&name, Limits { memory, ..limits }).await?;
                }
                (set, _) => {
                    set?;
                    last_limits.insert(class, limits);
                }
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Creates a cgroup if it does not exist, and sets its limits.
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
                // Files too, as systemd applies them later, and not all of them.
                limits.rounded()
            }
        };
        self.blocking(name, move |fs, path| fs.set(path, &limits)).await
    }

    async fn remove(&self, name: &Name) -> Result<(), Error> {
        if !self.blocking(name, |fs, path| Ok(fs.exists(path))).await? {
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
