//! Sets up the node's resources at the start: validates the configuration, creates the cgroups of
//! pods, and enforces Node Allocatable.

use std::future::Future;
use std::time::Duration;

use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_config::Config;
use longshore_cri::Runtime;
use longshore_machine::cgroup::is_unified;
use longshore_machine::{Machine, disk_capacity};
use longshore_metrics::Registry;
use tracing::warn;

use super::allocatable::{self, Amounts};
use super::cgroups::{
    self, Cgroups, Daemons, Driver, Limits, MemoryReserve, Mismatch, Policy, Protection,
};
use super::swap;

/// Retry interval for limits that the kernel rejected.
const RETRY: Duration = Duration::from_secs(60);
const ENFORCED: &str = "NodeAllocatableEnforced";
const NOT_ENFORCED: &str = "FailedNodeAllocatableEnforcement";
/// Upstream's message.
const CGROUP_V1_DEPRECATED: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed \
     in a future release. Please migrate to cgroup v2. More information at \
     https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";
const TMPFS_NOSWAP_UNSUPPORTED: &str = "The tmpfs noswap option is not supported. Memory-backed volumes \
     (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered \
     secure.";

/// Why the node's resources cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Swap is on, and `failSwapOn` is set.
    #[error(
        "failSwapOn: running with swap on is not supported, please disable swap or set failSwapOn \
         to false"
    )]
    SwapOn,
    /// Reservations exceed the capacity: one message per resource.
    #[error("invalid Node Allocatable configuration: {}", .0.join("; "))]
    Reserved(Vec<String>),
    /// The cgroup drivers of the runtime and the config differ.
    #[error(transparent)]
    Driver(#[from] Mismatch),
    /// The cgroups of pods cannot be created.
    #[error(transparent)]
    Cgroup(#[from] cgroups::Error),
    /// Reservations cannot be enforced on their cgroup.
    #[error("{0}")]
    Enforce(String),
}

/// Set up the cgroups of pods and of daemons. The future enforces the limits of all pods, with
/// retries, and keeps processes in the cgroups of daemons.
pub async fn start(
    config: &Config,
    machine: &Machine,
    runtime: &Runtime,
    recorder: &Recorder,
    registry: &Registry,
) -> Result<(Cgroups, impl Future<Output = ()> + use<>), Error> {
    let kubelet = &config.kubelet;
    let events = NodeEvents { recorder: recorder.clone(), node: config.node_name.clone() };
    check_swap(config, &events)?;
    let disk = disk_capacity(&config.root_dir).filter(|_| kubelet.local_storage_capacity_isolation);
    let mut capacity = allocatable::capacity(machine, disk);
    capacity.extend(allocatable::pids().map(|pids| ("pid".to_owned(), i128::from(pids) * 1000)));
    let errors = allocatable::validate(&capacity, &config.reserved);
    if !errors.is_empty() {
        return Err(Error::Reserved(errors));
    }
    let configured = Driver::named(&kubelet.cgroup_driver);
    let driver = cgroups::choose_driver(runtime, configured, registry).await?;
    let policy = policy(config, &capacity);
    let cgroups = Cgroups::setup(driver, &kubelet.cgroup_root, policy, registry).await?;
    if !cgroups.is_unified() {
        events.warning("CgroupV1", CGROUP_V1_DEPRECATED);
    }
    enforce_reserved(config, &cgroups, &events).await?;
    let daemons = Daemons::new(&kubelet.kubelet_cgroups, &kubelet.system_cgroups)?;
    if let Err(error) = cgroups.place_daemons(&daemons).await {
        warn!(%error, "processes stay outside of their cgroup");
    }
    let enforces = kubelet.cgroups_per_qos
        && kubelet.enforce_node_allocatable.iter().any(|level| level == "pods");
    let amounts = match enforces {
        true => allocatable::usable(&capacity, &config.reserved),
        false => capacity,
    };
    let limits = allocatable::limits(&amounts);
    let keeping = cgroups.clone().keep_daemons(daemons);
    let enforcing = enforce(cgroups.clone(), limits, events);
    Ok((cgroups, async { tokio::join!(enforcing, keeping).0 }))
}

/// Records events about the node.
struct NodeEvents {
    recorder: Recorder,
    node: String,
}

impl NodeEvents {
    fn warning(&self, reason: &str, message: &str) {
        warn!(reason, "{message}");
        self.recorder.event(node_reference(&self.node), EventType::Warning, reason, message);
    }

    fn normal(&self, reason: &str, message: &str) {
        self.recorder.event(node_reference(&self.node), EventType::Normal, reason, message);
    }
}

fn check_swap(config: &Config, events: &NodeEvents) -> Result<(), Error> {
    match (swap::is_on(), config.kubelet.fail_swap_on) {
        (false, _) => {}
        (true, true) => return Err(Error::SwapOn),
        (true, false) if swap::supports_tmpfs_noswap(&config.root_dir) => {}
        (true, false) => {
            events.warning("PossibleMemoryBackedVolumesOnDisk", TMPFS_NOSWAP_UNSUPPORTED)
        }
    }
    Ok(())
}

fn policy(config: &Config, capacity: &Amounts) -> Policy {
    let kubelet = &config.kubelet;
    let usable = allocatable::usable(capacity, &config.reserved);
    let memory = usable.get("memory").and_then(|milli| u64::try_from(milli / 1000).ok());
    let percent = kubelet.memory_reserve().filter(|_| config.gates.enabled("QOSReserved"));
    let protection = match kubelet.memory_reservation_policy.as_str() {
        "TieredReservation" => Protection::Tiered,
        _ => Protection::None,
    };
    let memory_qos = config.gates.enabled("MemoryQoS") && is_unified();
    Policy {
        per_qos: kubelet.cgroups_per_qos,
        cfs_quota_period: kubelet.quota_period(),
        pod_pids: u64::try_from(kubelet.pod_pids_limit).ok().filter(|limit| *limit > 0),
        protection: memory_qos.then_some(protection),
        memory_reserve: percent
            .zip(memory)
            .map(|(percent, allocatable)| MemoryReserve { percent, allocatable }),
        exclusive_cpus: kubelet.cpu_manager_policy == "static",
    }
}

/// Enforces system and kube reservations on their cgroups, as configured.
async fn enforce_reserved(
    config: &Config,
    cgroups: &Cgroups,
    events: &NodeEvents,
) -> Result<(), Error> {
    let kubelet = &config.kubelet;
    let (system, kube) = (&kubelet.system_reserved_cgroup, &kubelet.kube_reserved_cgroup);
    let memory_qos = config.gates.enabled("MemoryQoS");
    for level in &kubelet.enforce_node_allocatable {
        let base_level = level.strip_suffix("-compressible");
        let (field, cgroup, owner, amounts) = match base_level.unwrap_or(level) {
            "system-reserved" => {
                ("systemReservedCgroup", system, "System", config.reserved.system())
            }
            "kube-reserved" => ("kubeReservedCgroup", kube, "Kube", config.reserved.kube()),
            _ => continue,
        };
        let compressible = base_level.is_some();
        let limits = match compressible {
            true => allocatable::compressible(amounts),
            false => {
                let limits = allocatable::limits(amounts);
                let memory_min = match limits.memory {
                    Some(cgroups::Max::At(bytes)) if memory_qos => Some(bytes),
                    _ => None,
                };
                Limits { memory_min, ..limits }
            }
        };
        if let Err(error) = cgroups.limit_existing(cgroup, limits).await {
            let why = error.of_field(field);
            let kind = if compressible { " Compressible" } else { "" };
            let message = format!(
                "Failed to enforce {owner} Reserved{kind} Cgroup Limits on {cgroup:?}: {why}"
            );
            events.warning(NOT_ENFORCED, &message);
            return Err(Error::Enforce(message));
        }
        let message =
            format!("Updated limits on {} reserved cgroup {cgroup}", owner.to_lowercase());
        events.normal(ENFORCED, &message);
    }
    Ok(())
}

/// Sets the limits of the cgroup of all pods. The kernel may reject them until pods are evicted.
async fn enforce(cgroups: Cgroups, limits: Limits, events: NodeEvents) {
    while let Err(error) = cgroups.limit(limits.clone()).await {
        events.warning(NOT_ENFORCED, &format!("Failed to update Node Allocatable Limits: {error}"));
        tokio::time::sleep(RETRY).await;
    }
    events.normal(ENFORCED, "Updated Node Allocatable limit across pods");
}
