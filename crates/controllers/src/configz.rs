//! The page `/configz`: what the flags set, as upstream's KubeControllerManagerConfiguration.

use std::path::PathBuf;
use std::time::Duration;

use longshore_duration::GoDuration;
use serde_json::{Value, json};

use crate::Flags;

/// A duration in Go's syntax.
fn go(duration: Duration) -> String {
    GoDuration::nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)).to_string()
}

fn path(path: Option<&PathBuf>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

impl Flags {
    /// The page, as JSON.
    pub(crate) fn configz(&self) -> String {
        let signer = |certificate: &Option<PathBuf>, key: &Option<PathBuf>| json!({"CertFile": path(certificate.as_ref()), "KeyFile": path(key.as_ref())});
        let ranges: Vec<String> =
            self.service_cluster_ip_range.iter().map(ToString::to_string).collect();
        let config: Value = json!({
            "kind": "KubeControllerManagerConfiguration",
            "apiVersion": "kubecontrollermanager.config.k8s.io/v1alpha1",
            "Generic": {
                "Address": self.bind_address,
                "Port": self.secure_port,
                "ClientConnection": {
                    "kubeconfig": path(self.kubeconfig.as_ref()),
                    "acceptContentTypes": "",
                    "contentType": "application/json",
                    "qps": self.kube_api_qps,
                    "burst": self.kube_api_burst,
                },
                "LeaderElection": {
                    "leaderElect": self.leader_elect,
                    "leaseDuration": go(self.leader_elect_lease_duration),
                    "renewDeadline": go(self.leader_elect_renew_deadline),
                    "retryPeriod": go(self.leader_elect_retry_period),
                    "resourceLock": self.leader_elect_resource_lock,
                    "resourceName": self.leader_elect_resource_name,
                    "resourceNamespace": self.leader_elect_resource_namespace,
                },
                "Controllers": self.controllers,
            },
            "KubeCloudShared": {
                "UseServiceAccountCredentials": self.use_service_account_credentials,
                "NodeMonitorPeriod": go(self.node_monitor_period),
                "ClusterCIDR": self.cluster_cidr.join(","),
                "AllocateNodeCIDRs": self.allocate_node_cidrs,
            },
            "CSRSigningController": {
                "ClusterSigningCertFile": path(self.cluster_signing_cert_file.as_ref()),
                "ClusterSigningKeyFile": path(self.cluster_signing_key_file.as_ref()),
                "KubeletServingSignerConfiguration": signer(
                    &self.cluster_signing_kubelet_serving_cert_file,
                    &self.cluster_signing_kubelet_serving_key_file,
                ),
                "KubeletClientSignerConfiguration": signer(
                    &self.cluster_signing_kubelet_client_cert_file,
                    &self.cluster_signing_kubelet_client_key_file,
                ),
                "KubeAPIServerClientSignerConfiguration": signer(
                    &self.cluster_signing_kube_apiserver_client_cert_file,
                    &self.cluster_signing_kube_apiserver_client_key_file,
                ),
                "LegacyUnknownSignerConfiguration": signer(
                    &self.cluster_signing_legacy_unknown_cert_file,
                    &self.cluster_signing_legacy_unknown_key_file,
                ),
                "ClusterSigningDuration": go(self.cluster_signing_duration),
            },
            "DaemonSetController": {"ConcurrentDaemonSetSyncs": self.concurrent_daemonset_syncs},
            "DeploymentController": {"ConcurrentDeploymentSyncs": self.concurrent_deployment_syncs},
            "StatefulSetController": {"ConcurrentStatefulSetSyncs": self.concurrent_statefulset_syncs},
            "EndpointController": {"ConcurrentEndpointSyncs": self.concurrent_endpoint_syncs},
            "EndpointSliceController": {
                "ConcurrentServiceEndpointSyncs": self.concurrent_service_endpoint_syncs,
                "MaxEndpointsPerSlice": self.max_endpoints_per_slice,
            },
            "EndpointSliceMirroringController": {
                "MirroringConcurrentServiceEndpointSyncs":
                    self.mirroring_concurrent_service_endpoint_syncs,
            },
            "GarbageCollectorController": {
                "EnableGarbageCollector": true,
                "ConcurrentGCSyncs": self.concurrent_gc_syncs,
            },
            "HPAController": {
                "ConcurrentHorizontalPodAutoscalerSyncs":
                    self.concurrent_horizontal_pod_autoscaler_syncs,
                "HorizontalPodAutoscalerSyncPeriod":
                    go(self.horizontal_pod_autoscaler_sync_period),
                "HorizontalPodAutoscalerDownscaleStabilizationWindow":
                    go(self.horizontal_pod_autoscaler_downscale_stabilization),
                "HorizontalPodAutoscalerTolerance": self.horizontal_pod_autoscaler_tolerance,
                "HorizontalPodAutoscalerCPUInitializationPeriod":
                    go(self.horizontal_pod_autoscaler_cpu_initialization_period),
                "HorizontalPodAutoscalerInitialReadinessDelay":
                    go(self.horizontal_pod_autoscaler_initial_readiness_delay),
            },
            "JobController": {"ConcurrentJobSyncs": self.concurrent_job_syncs},
            "CronJobController": {"ConcurrentCronJobSyncs": self.concurrent_cron_job_syncs},
            "LegacySATokenCleaner": {
                "CleanUpPeriod": go(self.legacy_service_account_token_clean_up_period),
            },
            "NamespaceController": {"ConcurrentNamespaceSyncs": self.concurrent_namespace_syncs},
            "NodeIPAMController": {
                "ServiceCIDR": ranges.first().cloned().unwrap_or_default(),
                "SecondaryServiceCIDR": ranges.get(1).cloned().unwrap_or_default(),
                "NodeCIDRMaskSizeIPv4": self.node_cidr_mask_size_ipv4,
                "NodeCIDRMaskSizeIPv6": self.node_cidr_mask_size_ipv6,
            },
            "NodeLifecycleController": {
                "NodeEvictionRate": self.node_eviction_rate,
                "SecondaryNodeEvictionRate": self.secondary_node_eviction_rate,
                "NodeStartupGracePeriod": go(self.node_startup_grace_period),
                "NodeMonitorGracePeriod": go(self.node_monitor_grace_period),
                "LargeClusterSizeThreshold": self.large_cluster_size_threshold,
                "UnhealthyZoneThreshold": self.unhealthy_zone_threshold,
            },
            "PodGCController": {"TerminatedPodGCThreshold": self.terminated_pod_gc_threshold},
            "ReplicaSetController": {"ConcurrentRSSyncs": self.concurrent_replicaset_syncs},
            "ReplicationController": {"ConcurrentRCSyncs": self.concurrent_rc_syncs},
            "ResourceQuotaController": {
                "ResourceQuotaSyncPeriod": go(self.resource_quota_sync_period),
                "ConcurrentResourceQuotaSyncs": self.concurrent_resource_quota_syncs,
            },
            "SAController": {
                "ConcurrentSATokenSyncs": self.concurrent_serviceaccount_token_syncs,
                "RootCAFile": path(self.root_ca_file.as_ref()),
            },
            "TTLAfterFinishedController": {
                "ConcurrentTTLSyncs": self.concurrent_ttl_after_finished_syncs,
            },
        });
        json!({"kubecontrollermanager.config.k8s.io": config}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use crate::Flags;

    #[test]
    fn configz_shows_the_flags() {
        let line = [
            "x",
            "--cluster-signing-duration=1h30m",
            "--controllers=*,-job",
            "--leader-elect=false",
        ];
        let page = Flags::try_parse_from(line).unwrap().configz();
        let page: Value = serde_json::from_str(&page).unwrap();
        let config = &page["kubecontrollermanager.config.k8s.io"];
        assert_eq!(config["kind"], "KubeControllerManagerConfiguration");
        assert_eq!(config["CSRSigningController"]["ClusterSigningDuration"], "1h30m0s");
        assert_eq!(config["Generic"]["Controllers"], serde_json::json!(["*", "-job"]));
        assert_eq!(config["Generic"]["LeaderElection"]["leaderElect"], false);
        assert_eq!(config["NodeLifecycleController"]["NodeMonitorGracePeriod"], "50s");
    }
}
