//! Settings of pods from the node's config.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_config::{Config, KubeletConfiguration};
use longshore_machine::{Machine, disk_capacity};
use longshore_pod::spec;
use longshore_resources::allocatable;
use longshore_resources::cgroups::Cgroups;
use longshore_resources::memory_qos::MemoryQos;
use longshore_resources::swap::Swap;

use super::{HostIps, Ids, Pulls, UserNamespaceError, Verification};

/// Ids of a user namespace.
const USER_IDS: u32 = 65536;

/// Settings of pods from the node's config.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Root of the pods' directories.
    pub root_dir: PathBuf,
    /// Root of the pods' log directories.
    pub pod_logs_dir: PathBuf,
    /// Name servers of the cluster DNS.
    pub cluster_dns: Vec<String>,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// The resolver config that pods inherit; `None` for an empty one.
    pub resolv_conf: Option<PathBuf>,
    /// The node's name.
    pub node_name: String,
    /// The node's addresses.
    pub host_ips: HostIps,
    /// Whether containers without a seccomp profile get the runtime's default.
    pub seccomp_default: bool,
    /// Period of the CPU quota; `None` if quotas are not enforced.
    pub cpu_cfs_quota_period: Option<Duration>,
    /// The node's memory in bytes.
    pub memory_capacity: i64,
    /// The node's allocatable resources.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Settings of image pulls.
    pub pulls: Pulls,
    /// Whether containers may have a stop signal.
    pub stop_signals: bool,
    /// Whether the OOM killer kills a container as a whole. On cgroup v2 only.
    pub oom_kills_group: bool,
    /// The ids for user namespaces of pods.
    pub user_ids: Ids,
    /// Swap behaviour.
    pub swap: Swap,
    /// Memory QoS, if it is enabled.
    pub memory_qos: Option<MemoryQos>,
    /// The cgroups of pods.
    pub cgroups: Cgroups,
}

impl Settings {
    /// Settings from the config on this machine.
    pub fn new(
        config: &Config,
        machine: &Machine,
        host_ips: HostIps,
        cgroups: Cgroups,
    ) -> Result<Self, UserNamespaceError> {
        let kubelet = &config.kubelet;
        let disk =
            disk_capacity(&config.root_dir).filter(|_| kubelet.local_storage_capacity_isolation);
        let capacity = allocatable::capacity(machine, disk);
        let amounts = allocatable::allocatable(&capacity, &config.reserved);
        let memory = amounts.get("memory").map_or(0, |milli| milli / 1000);
        let memory_qos = config.gates.enabled("MemoryQoS") && cgroups.is_unified();
        let quantities = amounts
            .into_iter()
            .map(|(name, milli)| (name.clone(), Quantity(allocatable::text(&name, milli))));
        let whole_group = kubelet.single_process_oom_kill != Some(true);
        Ok(Self {
            root_dir: config.root_dir.clone(),
            pod_logs_dir: PathBuf::from(&kubelet.pod_logs_dir),
            cluster_dns: kubelet.cluster_dns.clone(),
            cluster_domain: kubelet.cluster_domain.clone(),
            resolv_conf: Some(&kubelet.resolv_conf)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            node_name: config.node_name.clone(),
            host_ips,
            seccomp_default: kubelet.seccomp_default,
            cpu_cfs_quota_period: kubelet.quota_period(),
            memory_capacity: i64::try_from(machine.memory).unwrap_or(i64::MAX),
            allocatable: quantities.collect(),
            pulls: pulls(config),
            stop_signals: config.gates.enabled("ContainerStopSignals"),
            oom_kills_group: cgroups.is_unified() && whole_group,
            user_ids: user_ids(kubelet)?,
            swap: Swap::new(kubelet, machine, &cgroups),
            memory_qos: memory_qos.then(|| MemoryQos {
                tiered: kubelet.memory_reservation_policy == "TieredReservation",
                throttling_factor: kubelet.memory_throttling_factor,
                allocatable: i64::try_from(memory).unwrap_or(i64::MAX),
            }),
            cgroups,
        })
    }

    /// The pod's own directory.
    pub fn pod_dir(&self, pod: &Pod) -> PathBuf {
        self.root_dir.join("pods").join(spec::uid(pod))
    }

    /// The log directory of the pod.
    pub fn pod_log_dir(&self, pod: &Pod) -> PathBuf {
        self.log_dir(spec::namespace(pod), spec::name(pod), spec::uid(pod))
    }

    /// The log directory of a pod, by its identity.
    pub fn log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.pod_logs_dir.join(format!("{namespace}_{name}_{uid}"))
    }
}

fn user_ids(kubelet: &KubeletConfiguration) -> Result<Ids, UserNamespaceError> {
    let per_pod = kubelet.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod);
    let per_pod = per_pod.and_then(|ids| u32::try_from(ids).ok()).unwrap_or(USER_IDS);
    Ids::of_node(per_pod, u32::try_from(kubelet.max_pods).unwrap_or_default())
}

fn pulls(config: &Config) -> Pulls {
    let kubelet = &config.kubelet;
    let parallel = match (kubelet.serialize_image_pulls, kubelet.max_parallel_image_pulls) {
        (true, _) => 1,
        (false, Some(limit)) => usize::try_from(limit).unwrap_or(1),
        (false, None) => tokio::sync::Semaphore::MAX_PERMITS,
    };
    let rate = (kubelet.registry_pull_qps > 0)
        .then(|| (f64::from(kubelet.registry_pull_qps), f64::from(kubelet.registry_burst)));
    let verification = match kubelet.image_pull_credentials_verification_policy.as_str() {
        _ if !config.gates.enabled("KubeletEnsureSecretPulledImages") => Verification::Off,
        "NeverVerify" => Verification::Never,
        "NeverVerifyAllowlistedImages" => {
            Verification::AllBut(kubelet.preloaded_images_verification_allowlist.clone())
        }
        "AlwaysVerify" => Verification::All,
        _ => Verification::Pulled,
    };
    Pulls { parallel, rate, verification }
}
