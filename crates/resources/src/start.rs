//! The node's resources at its start, in order: what cannot be is refused, pods get their tree, and
//! what is held back from them is enforced.

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
use super::cgroups::{self, Cgroups, Driver, Limits, MemoryReserve, Mismatch, Policy, Protection};
use super::swap;

/// When limits that the kernel did not take are tried again.
const RETRY: Duration = Duration::from_secs(60);
const ENFORCED: &str = "NodeAllocatableEnforced";
const NOT_ENFORCED: &str = "FailedNodeAllocatableEnforcement";
/// Upstream's words.
const V1_IS_OLD: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed \
     in a future release. Please migrate to cgroup v2. More information at \
     https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";
const SWAP_IS_NOT_SAFE: &str = "The tmpfs noswap option is not supported. Memory-backed volumes \
     (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered \
     secure.";

/// Why the node's resources cannot be managed as the config says.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is swap, and there must be none.
    #[error(
        "failSwapOn: running with swap on is not supported, please disable swap or set failSwapOn \
         to false"
    )]
    SwapOn,
    /// More is held back than there is: a line for each resource.
    #[error("invalid Node Allocatable configuration: {}", .0.join("; "))]
    Reserved(Vec<String>),
    /// The runtime and the config do not agree.
    #[error(transparent)]
    Driver(#[from] Mismatch),
    /// The cgroups of pods cannot be made.
    #[error(transparent)]
    Cgroup(#[from] cgroups::Error),
    /// What is reserved cannot be enforced on its cgroup.
    #[error("{0}")]
    Enforce(String),
}

/// Set up the cgroups of pods. The future enforces what all pods together may use, as soon as the
/// kernel lets it.
pub async fn start(
    config: &Config,
    machine: &Machine,
    runtime: &Runtime,
    recorder: &Recorder,
    registry: &Registry,
) -> Result<(Cgroups, impl Future<Output = ()> + use<>), Error> {
    let kubelet = &config.kubelet;
    let told = Told { recorder: recorder.clone(), node: config.node_name.clone() };
    check_swap(config, &told)?;
    let disk = disk_capacity(&config.root_dir).filter(|_| kubelet.local_storage_capacity_isolation);
    let mut capacity = allocatable::capacity(machine, disk);
    capacity.extend(allocatable::pids().map(|pids| ("pid".to_owned(), i128::from(pids) * 1000)));
    let faults = allocatable::faults(&capacity, &config.reserved);
    if !faults.is_empty() {
        return Err(Error::Reserved(faults));
    }
    let configured = Driver::named(&kubelet.cgroup_driver);
    let driver = cgroups::choose_driver(runtime, configured, registry).await?;
    let policy = policy(config, &capacity);
    let cgroups = Cgroups::setup(driver, &kubelet.cgroup_root, policy, registry).await?;
    if !cgroups.is_unified() {
        told.warning("CgroupV1", V1_IS_OLD);
    }
    enforce_reserved(config, &cgroups, &told).await?;
    let enforces = kubelet.cgroups_per_qos
        && kubelet.enforce_node_allocatable.iter().any(|level| level == "pods");
    let amounts = match enforces {
        true => allocatable::usable(&capacity, &config.reserved),
        false => capacity,
    };
    let limits = allocatable::limits(&amounts);
    Ok((cgroups.clone(), enforce(cgroups, limits, told)))
}

/// Where the node's own events go.
struct Told {
    recorder: Recorder,
    node: String,
}

impl Told {
    fn warning(&self, reason: &str, message: &str) {
        warn!(reason, "{message}");
        self.recorder.event(node_reference(&self.node), EventType::Warning, reason, message);
    }

    fn normal(&self, reason: &str, message: &str) {
        self.recorder.event(node_reference(&self.node), EventType::Normal, reason, message);
    }
}

fn check_swap(config: &Config, told: &Told) -> Result<(), Error> {
    match (swap::is_on(), config.kubelet.fail_swap_on) {
        (false, _) => {}
        (true, true) => return Err(Error::SwapOn),
        (true, false) if swap::tmpfs_can_stay(&config.root_dir) => {}
        (true, false) => told.warning("PossibleMemoryBackedVolumesOnDisk", SWAP_IS_NOT_SAFE),
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

/// Have the system and the node's daemons keep to what is reserved for them, where the config asks
/// for that.
async fn enforce_reserved(config: &Config, cgroups: &Cgroups, told: &Told) -> Result<(), Error> {
    let kubelet = &config.kubelet;
    let (system, kube) = (&kubelet.system_reserved_cgroup, &kubelet.kube_reserved_cgroup);
    let protects = config.gates.enabled("MemoryQoS");
    for level in &kubelet.enforce_node_allocatable {
        let whole = level.strip_suffix("-compressible");
        let (field, cgroup, owner, amounts) = match whole.unwrap_or(level) {
            "system-reserved" => {
                ("systemReservedCgroup", system, "System", config.reserved.system())
            }
            "kube-reserved" => ("kubeReservedCgroup", kube, "Kube", config.reserved.kube()),
            _ => continue,
        };
        let compressible = whole.is_some();
        let limits = match compressible {
            true => allocatable::compressible(amounts),
            false => {
                let limits = allocatable::limits(amounts);
                let memory_min = match limits.memory {
                    Some(cgroups::Max::At(bytes)) if protects => Some(bytes),
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
            told.warning(NOT_ENFORCED, &message);
            return Err(Error::Enforce(message));
        }
        let message =
            format!("Updated limits on {} reserved cgroup {cgroup}", owner.to_lowercase());
        told.normal(ENFORCED, &message);
    }
    Ok(())
}

/// Give all pods together their limits. What they use already may stand against that, until some
/// are evicted.
async fn enforce(cgroups: Cgroups, limits: Limits, told: Told) {
    while let Err(error) = cgroups.limit(limits.clone()).await {
        told.warning(NOT_ENFORCED, &format!("Failed to update Node Allocatable Limits: {error}"));
        tokio::time::sleep(RETRY).await;
    }
    told.normal(ENFORCED, "Updated Node Allocatable limit across pods");
}
