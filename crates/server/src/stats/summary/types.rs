//! The types of `stats/v1alpha1`. Unknown values are omitted.
//!
//! Source: `k8s.io/kubelet/pkg/apis/stats/v1alpha1` of Kubernetes 1.36.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

/// The summary.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(super) node: NodeStats,
    pub(super) pods: Vec<PodStats>,
}

/// The machine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeStats {
    pub(super) node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) system_containers: Vec<ContainerStats>,
    pub(super) start_time: Time,
    #[serde(flatten)]
    pub(super) usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rlimit: Option<RlimitStats>,
}

/// Stats of any cgroup.
#[derive(Debug, Default, Serialize)]
pub(super) struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap: Option<SwapStats>,
}

/// A pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStats {
    pub(super) pod_ref: PodReference,
    pub(super) start_time: Time,
    pub(super) containers: Vec<ContainerStats>,
    #[serde(flatten)]
    pub(super) usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkStats>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub(super) volumes: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub(super) ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub(super) process_stats: Option<ProcessStats>,
}

/// A reference to a pod.
#[derive(Debug, Serialize)]
pub(super) struct PodReference {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

/// A container, or a system daemon.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerStats {
    pub(super) name: String,
    pub(super) start_time: Time,
    #[serde(flatten)]
    pub(super) usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logs: Option<FsStats>,
}

/// CPU time: nanoseconds per second, and total.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CpuStats {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<PsiStats>,
}

/// Memory in bytes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemoryStats {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<PsiStats>,
}

/// I/O pressure.
#[derive(Debug, Serialize)]
pub(super) struct IoStats {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<PsiStats>,
}

/// Pressure stall information.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PsiStats {
    pub(super) full: PsiData,
    pub(super) some: PsiData,
}

/// `total` in microseconds, as upstream in contrast to its documentation; averages in percent.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PsiData {
    pub(super) total: u64,
    pub(super) avg10: f64,
    pub(super) avg60: f64,
    pub(super) avg300: f64,
}

/// Swap in bytes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SwapStats {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap_usage_bytes: Option<u64>,
}

/// The default network interface, if there is one, and all interfaces.
#[derive(Debug, Serialize)]
pub(super) struct NetworkStats {
    pub(super) time: Time,
    #[serde(flatten)]
    pub(super) default: InterfaceStats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) interfaces: Vec<InterfaceStats>,
}

/// A network device.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InterfaceStats {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tx_errors: Option<u64>,
}

/// A file system and its usage.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FsStats {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_used: Option<u64>,
}

/// A pod's volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeStats {
    #[serde(flatten)]
    pub(super) fs: FsStats,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pvc_ref: Option<ClaimReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) volume_health_stats: Option<VolumeHealthStats>,
}

/// A reference to a claim.
#[derive(Debug, Serialize)]
pub(super) struct ClaimReference {
    pub(super) name: String,
    pub(super) namespace: String,
}

/// The volume condition.
#[derive(Debug, Serialize)]
pub(super) struct VolumeHealthStats {
    pub(super) abnormal: bool,
}

/// The file systems of the runtime.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuntimeStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_fs: Option<FsStats>,
}

/// Process IDs.
#[derive(Debug, Serialize)]
pub(super) struct RlimitStats {
    pub(super) time: Time,
    pub(super) maxpid: u64,
    pub(super) curproc: u64,
}

/// Processes.
#[derive(Debug, Serialize)]
pub(super) struct ProcessStats {
    pub(super) process_count: u64,
}
