//! The command line of kube-controller-manager.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, CommandFactory, Parser};
use ipnet::IpNet;
use longshore_base::flags::without_empty;
use longshore_base::logging::LoggingFlags;
use longshore_client::ConfigSource;
use longshore_duration::GoDuration;
use longshore_gates::FeatureGates;
use longshore_serving::tls::SniCertificate;

use crate::list::GATES;

/// A duration in Go's syntax.
fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<GoDuration>().map(GoDuration::get).map_err(|error| error.to_string())
}

/// The gate of `--leader-elect`: whether the lease is given back at the end.
pub(crate) const RELEASE_LEASE: &str = "ControllerManagerReleaseLeaderElectionLockOnExit";

/// The longest duration of certificates: a hundred years can still be added to any time.
const MAX_CERTIFICATE_DURATION: Duration = Duration::from_secs(100 * 8766 * 3600);

fn certificate_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        long if long > MAX_CERTIFICATE_DURATION => Err("must be at most 876600h0m0s".to_owned()),
        short if short < Duration::from_secs(1) => Err("must be at least one second".to_owned()),
        duration => Ok(duration),
    }
}

/// Defines the struct of flags: those that are used, and those that are accepted and have no effect
/// here. A switch may have a value, as in `--leader-elect=false`.
macro_rules! flags {
    (
        used { $($(#[$doc:meta])* $field:ident: $type:ty = $default:tt;)* }
        files { $($(#[$file_doc:meta])* $file:ident;)* }
        switches { $($(#[$switch_doc:meta])* $switch:ident = $on:tt;)* }
        accepted { $($accepted:ident)* }
        accepted_switches { $($accepted_switch:ident)* }
    ) => {
        /// The controllers of the cluster: runs what kube-controller-manager runs, with its flags.
        #[derive(Debug, Clone, Parser)]
        #[command(name = "longshore-controllers", version)]
        pub struct Flags {
            $($(#[$doc])* #[arg(long, default_value = $default)] pub(crate) $field: $type,)*
            $(
                $(#[$switch_doc])*
                #[arg(long, num_args = 0..=1, require_equals = true, default_value = $on, default_missing_value = "true", action = ArgAction::Set)]
                pub(crate) $switch: bool,
            )*
            $($(#[$file_doc])* #[arg(long)] pub(crate) $file: Option<PathBuf>,)*
            $(
                #[doc = "Accepted; has no effect."]
                #[arg(long, hide = true, allow_hyphen_values = true)]
                $accepted: Option<String>,
            )*
            $(
                #[doc = "Accepted; has no effect."]
                #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
                $accepted_switch: Option<bool>,
            )*
            /// Names of controllers: `*` are those that run by default, `-name` leaves one out.
            #[arg(long, value_delimiter = ',', allow_hyphen_values = true, default_value = "*")]
            pub(crate) controllers: Vec<String>,
            /// The kubeconfig with the apiserver and the credentials.
            #[arg(long)]
            pub(crate) kubeconfig: Option<PathBuf>,
            /// The URL of the apiserver, instead of that in the kubeconfig.
            #[arg(long)]
            pub(crate) master: Option<String>,
            /// The KubeSchedulerConfiguration, where a scheduler runs in the same process.
            #[arg(long)]
            pub(crate) scheduler_config: Option<PathBuf>,
            /// The serving certificate.
            #[arg(long)]
            pub(crate) tls_cert_file: Option<PathBuf>,
            /// Its key.
            #[arg(long)]
            pub(crate) tls_private_key_file: Option<PathBuf>,
            /// The CA of client certificates [default: that of the apiserver's ConfigMap].
            #[arg(long)]
            pub(crate) client_ca_file: Option<PathBuf>,
            /// The kubeconfig of token reviews [default: --kubeconfig].
            #[arg(long)]
            pub(crate) authentication_kubeconfig: Option<PathBuf>,
            /// The kubeconfig of access reviews [default: --kubeconfig].
            #[arg(long)]
            pub(crate) authorization_kubeconfig: Option<PathBuf>,
            /// The CA of front proxies [default: that of the apiserver's ConfigMap, with its headers].
            #[arg(long)]
            pub(crate) requestheader_client_ca_file: Option<PathBuf>,
            /// Common names of front proxies; empty: any.
            #[arg(long, value_delimiter = ',')]
            pub(crate) requestheader_allowed_names: Vec<String>,
            /// Headers with names of users.
            #[arg(long, value_delimiter = ',', default_value = "x-remote-user")]
            pub(crate) requestheader_username_headers: Vec<String>,
            /// Headers with UIDs of users.
            #[arg(long, value_delimiter = ',')]
            pub(crate) requestheader_uid_headers: Vec<String>,
            /// Headers with groups of users.
            #[arg(long, value_delimiter = ',', default_value = "x-remote-group")]
            pub(crate) requestheader_group_headers: Vec<String>,
            /// How headers with extra fields of users begin.
            #[arg(long, value_delimiter = ',', default_value = "x-remote-extra-")]
            pub(crate) requestheader_extra_headers_prefix: Vec<String>,
            /// The minimum version of TLS.
            #[arg(long, default_value = "", value_parser = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"])]
            pub(crate) tls_min_version: String,
            /// The cipher suites of TLS 1.2.
            #[arg(long, value_delimiter = ',')]
            pub(crate) tls_cipher_suites: Vec<String>,
            /// The key exchanges, by their numbers.
            #[arg(long, value_delimiter = ',')]
            pub(crate) tls_curve_preferences: Vec<i32>,
            /// Certificates for clients that ask for certain names, as FILE,FILE[:NAME,…].
            #[arg(long)]
            pub(crate) tls_sni_cert_key: Vec<SniCertificate>,
            /// The paths that are served without credentials; those that end with `*` are prefixes.
            #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
            pub(crate) authorization_always_allow_paths: Vec<String>,
            /// The certificate that pods verify the apiserver with.
            #[arg(long)]
            pub(crate) root_ca_file: Option<PathBuf>,
            /// The template of pods that recycle hostPath volumes.
            #[arg(long)]
            pub(crate) pv_recycler_pod_template_filepath_hostpath: Option<PathBuf>,
            /// The template of pods that recycle NFS volumes.
            #[arg(long)]
            pub(crate) pv_recycler_pod_template_filepath_nfs: Option<PathBuf>,
            /// The address ranges of pods.
            #[arg(long, value_delimiter = ',')]
            pub(crate) cluster_cidr: Vec<String>,
            /// The address ranges of services.
            #[arg(long, value_delimiter = ',')]
            pub(crate) service_cluster_ip_range: Vec<IpNet>,
            /// Feature gates, as NAME=BOOL: those with an effect here are ClusterTrustBundle,
            /// DRADeviceTaints, PodCertificateRequest and
            /// ControllerManagerReleaseLeaderElectionLockOnExit.
            #[arg(long, default_value = "", hide_default_value = true)]
            pub(crate) feature_gates: FeatureGates,
            /// Verbosity of the log.
            #[arg(short, long, default_value = "0")]
            pub(crate) v: u32,
            /// The form of the log, and where it goes.
            #[command(flatten)]
            pub(crate) logging: LoggingFlags,
        }

        impl Flags {
            /// The flags that were given and have no effect.
            pub fn without_effect(&self) -> Vec<String> {
                let gates = self.feature_gates.changed();
                let mut given: Vec<String> = gates
                    .filter(|(name, _)| *name != RELEASE_LEASE)
                    .filter(|(name, _)| GATES.iter().all(|(_, gate)| gate != name))
                    .map(|(name, value)| format!("feature-gates={name}={value}"))
                    .collect();
                $(if self.$accepted.is_some() {
                    given.push(stringify!($accepted).replace('_', "-"));
                })*
                $(if self.$accepted_switch.is_some() {
                    given.push(stringify!($accepted_switch).replace('_', "-"));
                })*
                given
            }
        }
    };
}

flags! {
    used {
        /// Requests in a second.
        kube_api_qps: f64 = "20";
        /// Requests at once.
        kube_api_burst: i32 = "30";
        /// The address to serve on.
        bind_address: IpAddr = "0.0.0.0";
        /// The port to serve on; 0 serves nothing.
        secure_port: u16 = "10257";
        /// How long the user of a token is cached.
        #[arg(value_parser = duration)]
        authentication_token_webhook_cache_ttl: Duration = "10s";
        /// How long a decision that allows is cached.
        #[arg(value_parser = duration)]
        authorization_webhook_cache_authorized_ttl: Duration = "10s";
        /// How long a decision that denies is cached.
        #[arg(value_parser = duration)]
        authorization_webhook_cache_unauthorized_ttl: Duration = "10s";
        /// How long others wait before they take over the lease.
        #[arg(value_parser = duration)]
        leader_elect_lease_duration: Duration = "15s";
        /// How long the leader tries to renew the lease.
        #[arg(value_parser = duration)]
        leader_elect_renew_deadline: Duration = "10s";
        /// The pause between tries.
        #[arg(value_parser = duration)]
        leader_elect_retry_period: Duration = "2s";
        /// The kind of the lock.
        #[arg(value_parser = ["leases"])]
        leader_elect_resource_lock: String = "leases";
        /// The name of the lease.
        leader_elect_resource_name: String = "kube-controller-manager";
        /// The namespace of the lease.
        leader_elect_resource_namespace: String = "kube-system";
        /// Workers of Deployments.
        concurrent_deployment_syncs: usize = "5";
        /// Workers of ReplicaSets.
        concurrent_replicaset_syncs: usize = "5";
        /// Workers of ReplicationControllers.
        concurrent_rc_syncs: usize = "5";
        /// Workers of DaemonSets.
        concurrent_daemonset_syncs: usize = "2";
        /// Workers of StatefulSets.
        concurrent_statefulset_syncs: usize = "5";
        /// Workers of Jobs.
        concurrent_job_syncs: usize = "5";
        /// Workers of CronJobs.
        concurrent_cron_job_syncs: usize = "5";
        /// Workers of EndpointSlices.
        concurrent_service_endpoint_syncs: usize = "5";
        /// Workers of Endpoints.
        concurrent_endpoint_syncs: usize = "5";
        /// Workers of the mirroring of Endpoints.
        mirroring_concurrent_service_endpoint_syncs: usize = "5";
        /// Workers of Namespaces.
        concurrent_namespace_syncs: usize = "10";
        /// Workers of ServiceAccounts.
        concurrent_serviceaccount_token_syncs: usize = "5";
        /// Workers of the garbage collector.
        concurrent_gc_syncs: usize = "20";
        /// Workers of finished objects with a time to live.
        concurrent_ttl_after_finished_syncs: usize = "5";
        /// Workers of ResourceQuotas.
        concurrent_resource_quota_syncs: usize = "5";
        /// Workers of HorizontalPodAutoscalers.
        concurrent_horizontal_pod_autoscaler_syncs: usize = "5";
        /// Workers of ResourceClaims.
        concurrent_resourceclaim_syncs: usize = "50";
        /// Workers of ephemeral volumes.
        concurrent_ephemeralvolume_syncs: usize = "5";
        /// The least time that recycling a hostPath volume may take, in seconds.
        pv_recycler_minimum_timeout_hostpath: i64 = "60";
        /// The time for each GiB of it, in seconds.
        pv_recycler_timeout_increment_hostpath: i64 = "30";
        /// The least time that recycling an NFS volume may take, in seconds.
        pv_recycler_minimum_timeout_nfs: i64 = "300";
        /// The time for each GiB of it, in seconds.
        pv_recycler_increment_timeout_nfs: i64 = "30";
        /// Endpoints in a slice.
        max_endpoints_per_slice: usize = "100";
        /// The most addresses of a subset of Endpoints that are mirrored.
        mirroring_max_endpoints_per_subset: usize = "1000";
        /// How long changes of pods are collected for Endpoints.
        #[arg(value_parser = duration)]
        endpoint_updates_batch_period: Duration = "0s";
        /// How long changes of pods are collected for EndpointSlices.
        #[arg(value_parser = duration)]
        endpointslice_updates_batch_period: Duration = "0s";
        /// How long changes of Endpoints are collected before they are mirrored.
        #[arg(value_parser = duration)]
        mirroring_endpointslice_updates_batch_period: Duration = "0s";
        /// Workers of devices with taints.
        concurrent_device_taint_eviction_syncs: usize = "8";
        /// How often the health of nodes is checked.
        #[arg(value_parser = duration)]
        node_monitor_period: Duration = "5s";
        /// After what silence a node is unhealthy.
        #[arg(value_parser = duration)]
        node_monitor_grace_period: Duration = "50s";
        /// The same for a node that starts.
        #[arg(value_parser = duration)]
        node_startup_grace_period: Duration = "1m0s";
        /// Nodes in a second whose pods are evicted.
        node_eviction_rate: f64 = "0.1";
        /// The same in an unhealthy zone.
        secondary_node_eviction_rate: f64 = "0.01";
        /// The part of unhealthy nodes that makes a zone unhealthy.
        unhealthy_zone_threshold: f64 = "0.55";
        /// Nodes of a large zone.
        large_cluster_size_threshold: usize = "50";
        /// Terminated pods that are kept.
        terminated_pod_gc_threshold: usize = "12500";
        /// Bits of a node's range of addresses, in clusters with one range; 0: 24, or 64 of IPv6.
        node_cidr_mask_size: u8 = "0";
        /// Bits of a node's range of IPv4 addresses; 0: 24.
        node_cidr_mask_size_ipv4: u8 = "0";
        /// Bits of a node's range of IPv6 addresses; 0: 64.
        node_cidr_mask_size_ipv6: u8 = "0";
        /// How often quotas are counted anew.
        #[arg(value_parser = duration)]
        resource_quota_sync_period: Duration = "5m0s";
        /// How often autoscalers look at metrics.
        #[arg(value_parser = duration)]
        horizontal_pod_autoscaler_sync_period: Duration = "15s";
        /// The change that autoscalers ignore.
        horizontal_pod_autoscaler_tolerance: f64 = "0.1";
        /// How long autoscalers wait before they scale down.
        #[arg(value_parser = duration)]
        horizontal_pod_autoscaler_downscale_stabilization: Duration = "5m0s";
        /// How long the CPU of a starting pod is ignored.
        #[arg(value_parser = duration)]
        horizontal_pod_autoscaler_cpu_initialization_period: Duration = "5m0s";
        /// How long a pod may become ready for the first time.
        #[arg(value_parser = duration)]
        horizontal_pod_autoscaler_initial_readiness_delay: Duration = "30s";
        /// The longest duration of certificates that are signed.
        #[arg(value_parser = certificate_duration)]
        cluster_signing_duration: Duration = "8760h0m0s";
        /// How long tokens of service accounts in secrets stay that nobody uses.
        #[arg(value_parser = duration)]
        legacy_service_account_token_clean_up_period: Duration = "8760h0m0s";
    }
    files {
        /// The CA that signs certificates.
        cluster_signing_cert_file;
        /// Its key.
        cluster_signing_key_file;
        /// The CA of the serving certificates of nodes.
        cluster_signing_kubelet_serving_cert_file;
        /// Its key.
        cluster_signing_kubelet_serving_key_file;
        /// The CA of the client certificates of nodes.
        cluster_signing_kubelet_client_cert_file;
        /// Its key.
        cluster_signing_kubelet_client_key_file;
        /// The CA of other client certificates.
        cluster_signing_kube_apiserver_client_cert_file;
        /// Its key.
        cluster_signing_kube_apiserver_client_key_file;
        /// The CA of requests that name no signer.
        cluster_signing_legacy_unknown_cert_file;
        /// Its key.
        cluster_signing_legacy_unknown_key_file;
    }
    switches {
        /// Whether copies of this program elect one that works.
        leader_elect = "true";
        /// Whether nodes get address ranges for their pods.
        allocate_node_cidrs = "false";
        /// Whether claims of its classes get directories of nodes as volumes.
        enable_hostpath_provisioner = "false";
        /// Whether serving certificates of nodes are approved that name nothing but the node: never for
        /// names of the apiserver, addresses of services, or what is also another node's. Their CA must be
        /// one of its own (--cluster-signing-kubelet-serving-cert-file).
        approve_kubelet_serving = "false";
        /// Whether volumes are provisioned for claims.
        enable_dynamic_provisioning = "true";
        /// Whether volumes stay attached to unhealthy nodes however long they have them mounted.
        disable_force_detach_on_timeout = "false";
        /// Whether the apiserver's ConfigMap with the CAs of clients is not read.
        authentication_skip_lookup = "false";
        /// Whether the program starts without the apiserver's ConfigMap, and looks for it while it runs.
        authentication_tolerate_lookup_failure = "true";
        /// Whether objects go with their owners: whether that controller runs.
        enable_garbage_collector = "true";
        /// Whether HTTP/1.1 alone is served.
        disable_http2_serving = "false";
        /// Whether profiles are served at /debug/pprof/.
        profiling = "true";
        /// Whether each controller acts as its service account in kube-system, with the rights of that alone.
        use_service_account_credentials = "false";
    }
    accepted {
        allow_metric_labels allow_metric_labels_manifest attach_detach_reconcile_sync_period
        cert_dir cidr_allocator_type cloud_config cloud_provider cluster_name
        concurrent_service_syncs
        concurrent_validating_admission_policy_status_syncs controller_shutdown_timeout
        controller_start_interval disabled_metrics emulated_version
        external_cloud_volume_plugin
        flex_volume_plugin_dir http2_max_streams_per_connection
        kube_api_content_type leader_migration_config
        min_compatibility_version min_resync_period namespace_sync_period
        node_sync_period pvclaimbinder_sync_period
        route_reconciliation_period
        service_account_private_key_file
        show_hidden_metrics_for_version
        volume_host_cidr_denylist
    }
    accepted_switches {
        configure_cloud_routes
        contention_profiling disable_attach_detach_reconcile_sync
        enable_leader_migration
        permit_address_sharing permit_port_sharing
        unsupported_kube_api_over_localhost volume_host_allow_local_loopback
    }
}

impl Flags {
    /// Reads a command line; ends the process when it cannot be used. Of flags without a default, an empty
    /// value is no value.
    pub fn read(arguments: Vec<OsString>) -> Self {
        Self::parse_from(Self::given(arguments))
    }

    pub(crate) fn given(arguments: Vec<OsString>) -> Vec<OsString> {
        let command = Self::command();
        let is_unset = |name: &str| {
            let known = command.get_arguments().find(|known| known.get_long() == Some(name));
            // a switch has an optional value, and an empty one is a mistake
            let is_switch =
                |known: &clap::Arg| known.get_num_args().is_some_and(|n| n.min_values() == 0);
            known.is_some_and(|known| known.get_default_values().is_empty() && !is_switch(known))
        };
        without_empty(arguments, is_unset)
    }

    /// Where the apiserver is: without flags it is that of the pod that this runs in.
    pub fn config_source(&self) -> ConfigSource {
        match (self.kubeconfig.clone(), self.master.clone()) {
            (Some(kubeconfig), None) => ConfigSource::Kubeconfig(kubeconfig),
            (Some(kubeconfig), Some(master)) => ConfigSource::Redirected { kubeconfig, master },
            (None, Some(master)) => ConfigSource::Master(master),
            (None, None) => ConfigSource::Pod,
        }
    }

    /// Whether the scheduler's configuration is named.
    pub fn has_scheduler_config(&self) -> bool {
        self.scheduler_config.is_some()
    }

    /// Requests in a second, at most what the client's limit can hold; 0 and less are no limit.
    pub(crate) fn qps(&self) -> i32 {
        if self.kube_api_qps >= 1.0 { self.kube_api_qps.min(1e6) as i32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every flag of kube-controller-manager 1.36, from its `--help`.
    const UPSTREAM: &str = include_str!("../tests/data/flags-1.36.txt");

    #[test]
    fn flags_of_upstream_are_all_known() {
        let command = Flags::command();
        let known: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        let unknown: Vec<_> = UPSTREAM.lines().filter(|flag| !known.contains(flag)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
