//! What the command line sets for the controllers of cluster objects, with upstream's defaults.

use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Pod;

use crate::signer_files::SignerFiles;

const YEAR: Duration = Duration::from_secs(8760 * 3600);

/// One field for each flag.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// `--concurrent-service-endpoint-syncs`
    pub service_endpoint_workers: usize,
    /// `--concurrent-endpoint-syncs`
    pub endpoint_workers: usize,
    /// `--mirroring-concurrent-service-endpoint-syncs`
    pub mirroring_workers: usize,
    /// `--max-endpoints-per-slice`
    pub max_endpoints_per_slice: usize,
    /// `--mirroring-max-endpoints-per-subset`
    pub max_mirrored_endpoints: usize,
    /// `--endpoint-updates-batch-period`
    pub endpoint_batch_period: Duration,
    /// `--endpointslice-updates-batch-period`
    pub slice_batch_period: Duration,
    /// `--mirroring-endpointslice-updates-batch-period`
    pub mirroring_batch_period: Duration,
    /// `--concurrent-device-taint-eviction-syncs`
    pub device_taint_workers: usize,
    /// `--concurrent-namespace-syncs`
    pub namespace_workers: usize,
    /// `--concurrent-serviceaccount-token-syncs`
    pub service_account_workers: usize,
    /// Workers of the root CA's config maps.
    pub root_ca_workers: usize,
    /// The content of `--root-ca-file`.
    pub root_ca: Option<String>,
    /// `--concurrent-gc-syncs`
    pub gc_workers: usize,
    /// `--node-monitor-period`
    pub node_monitor_period: Duration,
    /// `--node-monitor-grace-period`
    pub node_monitor_grace: Duration,
    /// `--node-startup-grace-period`
    pub node_startup_grace: Duration,
    /// `--node-eviction-rate`, in nodes a second.
    pub node_eviction_rate: f64,
    /// `--secondary-node-eviction-rate`, in nodes a second.
    pub secondary_node_eviction_rate: f64,
    /// `--unhealthy-zone-threshold`
    pub unhealthy_zone_threshold: f64,
    /// `--large-cluster-size-threshold`
    pub large_cluster_threshold: usize,
    /// `--terminated-pod-gc-threshold`
    pub terminated_pod_threshold: usize,
    /// `--allocate-node-cidrs`
    pub allocate_node_cidrs: bool,
    /// `--cluster-cidr`, one for each family.
    pub cluster_cidrs: Vec<String>,
    /// `--node-cidr-mask-size-ipv4`, or `--node-cidr-mask-size`
    pub node_mask_v4: u8,
    /// `--node-cidr-mask-size-ipv6`
    pub node_mask_v6: u8,
    /// `--concurrent-ttl-after-finished-syncs`
    pub ttl_after_finished_workers: usize,
    /// `--concurrent-resource-quota-syncs`
    pub resource_quota_workers: usize,
    /// `--resource-quota-sync-period`
    pub resource_quota_period: Duration,
    /// `--concurrent-horizontal-pod-autoscaler-syncs`
    pub hpa_workers: usize,
    /// `--horizontal-pod-autoscaler-sync-period`
    pub hpa_period: Duration,
    /// `--horizontal-pod-autoscaler-tolerance`
    pub hpa_tolerance: f64,
    /// `--horizontal-pod-autoscaler-downscale-stabilization`
    pub hpa_stabilization: Duration,
    /// `--horizontal-pod-autoscaler-cpu-initialization-period`
    pub hpa_cpu_initialization: Duration,
    /// `--horizontal-pod-autoscaler-initial-readiness-delay`
    pub hpa_initial_readiness: Duration,
    /// `--enable-hostpath-provisioner`
    pub enable_hostpath_provisioner: bool,
    /// `--cluster-signing-*-file`: the CAs of the signers that sign here.
    pub signers: Vec<SignerFiles>,
    /// `--cluster-signing-duration`
    pub signing_duration: Duration,
    /// `--approve-kubelet-serving`
    pub approve_kubelet_serving: bool,
    /// `--service-cluster-ip-range`
    pub service_ranges: Vec<IpNet>,
    /// The host of the apiserver's URL, which is no node's name.
    pub apiserver_host: Option<String>,
    /// The feature gate `ClusterTrustBundle`.
    pub cluster_trust_bundle: bool,
    /// `--legacy-service-account-token-clean-up-period`
    pub legacy_token_period: Duration,
    /// `--enable-dynamic-provisioning`
    pub enable_dynamic_provisioning: bool,
    /// `--pv-recycler-…`
    pub recyclers: RecyclerSettings,
    /// `--disable-force-detach-on-timeout`
    pub disable_force_detach_on_timeout: bool,
    /// `--concurrent-ephemeralvolume-syncs`
    pub ephemeral_volume_workers: usize,
    /// `--concurrent-resourceclaim-syncs`
    pub resource_claim_workers: usize,
}

/// The pods that remove the data of volumes with the reclaim policy `Recycle`.
#[derive(Clone, Debug)]
pub struct RecyclerSettings {
    /// Of hostPath volumes.
    pub host_path: Recycler,
    /// Of NFS volumes.
    pub nfs: Recycler,
}

/// The pods of one kind of volume.
#[derive(Clone, Debug)]
pub struct Recycler {
    /// `--pv-recycler-minimum-timeout-…`, in seconds.
    pub minimum: i64,
    /// `--pv-recycler-increment-timeout-nfs`, `--pv-recycler-timeout-increment-hostpath`, in seconds
    /// for each GiB of the volume.
    pub increment: i64,
    /// The content of `--pv-recycler-pod-template-filepath-…`; its first volume is replaced.
    pub template: Option<Pod>,
}

impl Default for RecyclerSettings {
    fn default() -> Self {
        let recycler = |minimum| Recycler { minimum, increment: 30, template: None };
        Self { host_path: recycler(60), nfs: recycler(300) }
    }
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            service_endpoint_workers: 5,
            endpoint_workers: 5,
            mirroring_workers: 5,
            max_endpoints_per_slice: 100,
            max_mirrored_endpoints: 1000,
            endpoint_batch_period: Duration::ZERO,
            slice_batch_period: Duration::ZERO,
            mirroring_batch_period: Duration::ZERO,
            device_taint_workers: 8,
            namespace_workers: 10,
            service_account_workers: 5,
            root_ca_workers: 1,
            root_ca: None,
            gc_workers: 20,
            node_monitor_period: Duration::from_secs(5),
            node_monitor_grace: Duration::from_secs(50),
            node_startup_grace: Duration::from_secs(60),
            node_eviction_rate: 0.1,
            secondary_node_eviction_rate: 0.01,
            unhealthy_zone_threshold: 0.55,
            large_cluster_threshold: 50,
            terminated_pod_threshold: 12_500,
            allocate_node_cidrs: false,
            cluster_cidrs: Vec::new(),
            node_mask_v4: 24,
            node_mask_v6: 64,
            ttl_after_finished_workers: 5,
            resource_quota_workers: 5,
            resource_quota_period: Duration::from_secs(300),
            hpa_workers: 5,
            hpa_period: Duration::from_secs(15),
            hpa_tolerance: 0.1,
            hpa_stabilization: Duration::from_secs(300),
            hpa_cpu_initialization: Duration::from_secs(300),
            hpa_initial_readiness: Duration::from_secs(30),
            enable_hostpath_provisioner: false,
            signers: Vec::new(),
            signing_duration: YEAR,
            approve_kubelet_serving: false,
            service_ranges: Vec::new(),
            apiserver_host: None,
            cluster_trust_bundle: false,
            legacy_token_period: YEAR,
            enable_dynamic_provisioning: true,
            recyclers: RecyclerSettings::default(),
            disable_force_detach_on_timeout: false,
            ephemeral_volume_workers: 5,
            resource_claim_workers: 50,
        }
    }
}
