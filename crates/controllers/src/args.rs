//! The command line of kube-controller-manager.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser};
use k8s_openapi::api::core::v1::Pod;
use longshore_client::ConfigSource;
use longshore_client::reviews::DecisionTtls;
use longshore_duration::GoDuration;
use longshore_informer::LeaderConfig;

use crate::cluster_settings::{Recycler, RecyclerSettings};
use crate::serving::PortOptions;
use crate::{ClusterSettings, Controller, Settings, all};

/// A duration in Go's syntax.
fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<GoDuration>().map(GoDuration::get).map_err(|error| error.to_string())
}

/// Defines the struct of flags: those that are used, and those that are accepted and have no effect
/// here. A switch may have a value, as in `--leader-elect=false`.
macro_rules! flags {
    (
        used { $($(#[$doc:meta])* $field:ident: $type:ty = $default:tt;)* }
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
            controllers: Vec<String>,
            /// The kubeconfig with the apiserver and the credentials.
            #[arg(long)]
            kubeconfig: Option<PathBuf>,
            /// The URL of the apiserver, instead of that in the kubeconfig.
            #[arg(long)]
            master: Option<String>,
            /// The KubeSchedulerConfiguration, where a scheduler runs in the same process.
            #[arg(long)]
            pub(crate) scheduler_config: Option<PathBuf>,
            /// The serving certificate.
            #[arg(long)]
            pub(crate) tls_cert_file: Option<PathBuf>,
            /// Its key.
            #[arg(long)]
            pub(crate) tls_private_key_file: Option<PathBuf>,
            /// The CA of client certificates.
            #[arg(long)]
            client_ca_file: Option<PathBuf>,
            /// The minimum version of TLS.
            #[arg(long, default_value = "", value_parser = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"])]
            tls_min_version: String,
            /// The cipher suites of TLS 1.2.
            #[arg(long, value_delimiter = ',')]
            tls_cipher_suites: Vec<String>,
            /// Not supported: no value but an empty one is taken.
            #[arg(long, hide = true, value_parser = [""])]
            tls_curve_preferences: Option<String>,
            /// The paths that are served without credentials; those that end with `*` are prefixes.
            #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
            authorization_always_allow_paths: Vec<String>,
            /// The certificate that pods verify the apiserver with.
            #[arg(long)]
            root_ca_file: Option<PathBuf>,
            /// The template of pods that recycle hostPath volumes.
            #[arg(long)]
            pv_recycler_pod_template_filepath_hostpath: Option<PathBuf>,
            /// The template of pods that recycle NFS volumes.
            #[arg(long)]
            pv_recycler_pod_template_filepath_nfs: Option<PathBuf>,
            /// The address ranges of pods.
            #[arg(long, value_delimiter = ',')]
            cluster_cidr: Vec<String>,
            /// Verbosity of the log.
            #[arg(short, long, default_value = "0")]
            pub v: u32,
        }

        impl Flags {
            /// The flags that were given and have no effect.
            pub fn without_effect(&self) -> Vec<String> {
                let mut given = Vec::new();
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
        /// Bits of a node's range of IPv4 addresses.
        node_cidr_mask_size_ipv4: u8 = "24";
        /// Bits of a node's range of IPv6 addresses.
        node_cidr_mask_size_ipv6: u8 = "64";
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
    }
    switches {
        /// Whether copies of this program elect one that works.
        leader_elect = "true";
        /// Whether nodes get address ranges for their pods.
        allocate_node_cidrs = "false";
        /// Whether claims of its classes get directories of nodes as volumes.
        enable_hostpath_provisioner = "false";
        /// Whether volumes are provisioned for claims.
        enable_dynamic_provisioning = "true";
        /// Whether volumes stay attached to unhealthy nodes however long they have them mounted.
        disable_force_detach_on_timeout = "false";
        /// Accepted: all controllers use the credentials of the program.
        use_service_account_credentials = "false";
    }
    accepted {
        allow_metric_labels allow_metric_labels_manifest attach_detach_reconcile_sync_period
        authentication_kubeconfig authorization_kubeconfig
        cert_dir cidr_allocator_type cloud_config cloud_provider cluster_name
        cluster_signing_cert_file cluster_signing_duration cluster_signing_key_file
        cluster_signing_kube_apiserver_client_cert_file
        cluster_signing_kube_apiserver_client_key_file
        cluster_signing_kubelet_client_cert_file cluster_signing_kubelet_client_key_file
        cluster_signing_kubelet_serving_cert_file cluster_signing_kubelet_serving_key_file
        cluster_signing_legacy_unknown_cert_file cluster_signing_legacy_unknown_key_file
        concurrent_device_taint_eviction_syncs
        concurrent_service_syncs
        concurrent_validating_admission_policy_status_syncs controller_shutdown_timeout
        controller_start_interval disabled_metrics emulated_version
        endpoint_updates_batch_period endpointslice_updates_batch_period external_cloud_volume_plugin
        feature_gates flex_volume_plugin_dir http2_max_streams_per_connection
        kube_api_content_type leader_migration_config legacy_service_account_token_clean_up_period log_flush_frequency
        log_json_info_buffer_size log_text_info_buffer_size logging_format
        min_compatibility_version min_resync_period mirroring_endpointslice_updates_batch_period
        mirroring_max_endpoints_per_subset namespace_sync_period node_cidr_mask_size
        node_sync_period pvclaimbinder_sync_period
        requestheader_allowed_names requestheader_client_ca_file
        requestheader_extra_headers_prefix requestheader_group_headers requestheader_uid_headers
        requestheader_username_headers route_reconciliation_period
        service_account_private_key_file service_cluster_ip_range
        show_hidden_metrics_for_version tls_sni_cert_key vmodule
        volume_host_cidr_denylist
    }
    accepted_switches {
        authentication_skip_lookup authentication_tolerate_lookup_failure configure_cloud_routes
        contention_profiling disable_attach_detach_reconcile_sync
        disable_http2_serving enable_garbage_collector
        enable_leader_migration log_json_split_stream log_text_split_stream
        permit_address_sharing permit_port_sharing profiling
        unsupported_kube_api_over_localhost volume_host_allow_local_loopback
    }
}

/// Controllers of upstream that do not exist here yet; naming one is a warning.
const MISSING: &[&str] = &[
    "bootstrap-signer-controller",
    "bootstrapsigner",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-signing-controller",
    "clusterrole-aggregation-controller",
    "csrapproving",
    "csrsigning",
    "clusterrole-aggregation",
    "token-cleaner-controller",
    "tokencleaner",
];

/// Why a command line cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// There is no such controller.
    #[error("{0:?} is not in the list of known controllers")]
    UnknownController(String),
    /// A file is not the template of a pod.
    #[error("{}: not the template of a pod: {reason}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl Flags {
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

    /// The controllers that are to run.
    pub fn selected(&self) -> Result<Vec<Controller>, FlagError> {
        let all = all();
        let is_named = |one: &Controller, name: &str| one.name == name || one.alias == name;
        for name in &self.controllers {
            let name = name.strip_prefix('-').unwrap_or(name);
            if MISSING.contains(&name) {
                tracing::warn!(controller = name, "not implemented");
            } else if name != "*" && !all.iter().any(|one| is_named(one, name)) {
                return Err(FlagError::UnknownController(name.to_owned()));
            }
        }
        let has = |wanted: &str| self.controllers.iter().any(|name| name == wanted);
        let is_selected = |one: &Controller| {
            let mut names = [one.name, one.alias].into_iter();
            if names.clone().any(|name| has(&format!("-{name}"))) {
                return false;
            }
            names.any(has) || (has("*") && one.by_default)
        };
        Ok(all.into_iter().filter(is_selected).collect())
    }

    /// The leader election of a copy of that identity, if copies elect one.
    pub fn leader(&self, identity: &str) -> Option<LeaderConfig> {
        self.leader_elect.then(|| LeaderConfig {
            namespace: self.leader_elect_resource_namespace.clone(),
            name: self.leader_elect_resource_name.clone(),
            identity: identity.to_owned(),
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
        })
    }

    /// The port, unless there is none.
    pub(crate) fn port(&self) -> Option<PortOptions> {
        (self.secure_port != 0).then(|| PortOptions {
            address: SocketAddr::new(self.bind_address, self.secure_port),
            certificate: self.tls_cert_file.clone().zip(self.tls_private_key_file.clone()),
            client_ca: self.client_ca_file.clone(),
            tls_min_version: self.tls_min_version.clone(),
            cipher_suites: self.tls_cipher_suites.clone(),
            always_allow_paths: self.authorization_always_allow_paths.clone(),
            token_ttl: self.authentication_token_webhook_cache_ttl,
            decision_ttls: DecisionTtls {
                allowed: self.authorization_webhook_cache_authorized_ttl,
                denied: self.authorization_webhook_cache_unauthorized_ttl,
            },
        })
    }

    /// The settings of controllers.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn settings(&self) -> Result<Settings, FlagError> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path)
                .map_err(|source| FlagError::File { path: path.clone(), source })
        };
        let template = |path: &Option<PathBuf>| -> Result<Option<Pod>, FlagError> {
            let Some(path) = path.as_ref().filter(|path| !path.as_os_str().is_empty()) else {
                return Ok(None);
            };
            let options = serde_saphyr::options! { with_snippet: false };
            let pod = serde_saphyr::from_str_with_options(&read(path)?, options);
            pod.map(Some).map_err(|error| FlagError::Template {
                path: path.clone(),
                reason: error.to_string(),
            })
        };
        Ok(Settings {
            deployment_workers: self.concurrent_deployment_syncs,
            replicaset_workers: self.concurrent_replicaset_syncs,
            replication_controller_workers: self.concurrent_rc_syncs,
            daemonset_workers: self.concurrent_daemonset_syncs,
            statefulset_workers: self.concurrent_statefulset_syncs,
            job_workers: self.concurrent_job_syncs,
            cronjob_workers: self.concurrent_cron_job_syncs,
            cluster: ClusterSettings {
                service_endpoint_workers: self.concurrent_service_endpoint_syncs,
                endpoint_workers: self.concurrent_endpoint_syncs,
                mirroring_workers: self.mirroring_concurrent_service_endpoint_syncs,
                max_endpoints_per_slice: self.max_endpoints_per_slice,
                namespace_workers: self.concurrent_namespace_syncs,
                service_account_workers: self.concurrent_serviceaccount_token_syncs,
                root_ca: self.root_ca_file.as_ref().map(read).transpose()?,
                gc_workers: self.concurrent_gc_syncs,
                node_monitor_period: self.node_monitor_period,
                node_monitor_grace: self.node_monitor_grace_period,
                node_startup_grace: self.node_startup_grace_period,
                node_eviction_rate: self.node_eviction_rate,
                secondary_node_eviction_rate: self.secondary_node_eviction_rate,
                unhealthy_zone_threshold: self.unhealthy_zone_threshold,
                large_cluster_threshold: self.large_cluster_size_threshold,
                terminated_pod_threshold: self.terminated_pod_gc_threshold,
                allocate_node_cidrs: self.allocate_node_cidrs,
                enable_hostpath_provisioner: self.enable_hostpath_provisioner,
                enable_dynamic_provisioning: self.enable_dynamic_provisioning,
                disable_force_detach_on_timeout: self.disable_force_detach_on_timeout,
                resource_claim_workers: self.concurrent_resourceclaim_syncs,
                ephemeral_volume_workers: self.concurrent_ephemeralvolume_syncs,
                recyclers: RecyclerSettings {
                    host_path: Recycler {
                        minimum: self.pv_recycler_minimum_timeout_hostpath,
                        increment: self.pv_recycler_timeout_increment_hostpath,
                        template: template(&self.pv_recycler_pod_template_filepath_hostpath)?,
                    },
                    nfs: Recycler {
                        minimum: self.pv_recycler_minimum_timeout_nfs,
                        increment: self.pv_recycler_increment_timeout_nfs,
                        template: template(&self.pv_recycler_pod_template_filepath_nfs)?,
                    },
                },
                cluster_cidrs: self.cluster_cidr.clone(),
                node_mask_v4: self.node_cidr_mask_size_ipv4,
                node_mask_v6: self.node_cidr_mask_size_ipv6,
                ttl_after_finished_workers: self.concurrent_ttl_after_finished_syncs,
                resource_quota_workers: self.concurrent_resource_quota_syncs,
                resource_quota_period: self.resource_quota_sync_period,
                hpa_workers: self.concurrent_horizontal_pod_autoscaler_syncs,
                hpa_period: self.horizontal_pod_autoscaler_sync_period,
                hpa_tolerance: self.horizontal_pod_autoscaler_tolerance,
                hpa_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
                hpa_cpu_initialization: self.horizontal_pod_autoscaler_cpu_initialization_period,
                hpa_initial_readiness: self.horizontal_pod_autoscaler_initial_readiness_delay,
                ..ClusterSettings::default()
            },
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Every flag of kube-controller-manager 1.36, from its `--help`.
    const UPSTREAM: &str = include_str!("../tests/data/flags-1.36.txt");

    #[test]
    fn flags_of_upstream_are_all_known() {
        use clap::CommandFactory;
        let command = Flags::command();
        let known: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        let unknown: Vec<_> = UPSTREAM.lines().filter(|flag| !known.contains(flag)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    /// What `kubeadm init` writes into the static pod's manifest.
    #[test]
    fn flags_of_kubeadm_start_the_program() {
        let line = "kube-controller-manager --allocate-node-cidrs=true \
            --authentication-kubeconfig=/etc/kubernetes/controller-manager.conf \
            --authorization-kubeconfig=/etc/kubernetes/controller-manager.conf \
            --bind-address=127.0.0.1 --client-ca-file=/etc/kubernetes/pki/ca.crt \
            --cluster-cidr=10.244.0.0/16 --cluster-name=kubernetes \
            --cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt \
            --cluster-signing-key-file=/etc/kubernetes/pki/ca.key \
            --controllers=*,bootstrapsigner,tokencleaner \
            --kubeconfig=/etc/kubernetes/controller-manager.conf --leader-elect=true \
            --requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt \
            --service-account-private-key-file=/etc/kubernetes/pki/sa.key \
            --service-cluster-ip-range=10.96.0.0/12 --use-service-account-credentials=true";
        let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
        assert!(flags.selected().is_ok() && flags.settings().is_ok());
        let ignored = flags.without_effect();
        assert!(ignored.contains(&"authentication-kubeconfig".to_owned()), "{ignored:?}");
        assert!(!ignored.contains(&"cluster-cidr".to_owned()), "{ignored:?}");
    }

    fn selected(list: &str) -> Result<Vec<&'static str>, String> {
        let flags = Flags::try_parse_from(["x", &format!("--controllers={list}")]).unwrap();
        let selected = flags.selected().map_err(|error| error.to_string())?;
        Ok(selected.iter().map(|one| one.name).collect())
    }

    #[test]
    fn flags_select_controllers() {
        let default: Vec<_> =
            all().iter().filter(|one| one.by_default).map(|one| one.name).collect();
        assert_eq!(selected("*").unwrap(), default);
        let without = selected("*,-deployment-controller,-job").unwrap();
        assert_eq!(without.len(), default.len() - 2);
        assert_eq!(selected("deployment,replicaset-controller").unwrap().len(), 2);
        assert_eq!(
            selected("*,none").unwrap_err(),
            "\"none\" is not in the list of known controllers"
        );
    }

    #[test]
    fn flags_read_templates_of_recyclers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let flag = format!("--pv-recycler-pod-template-filepath-nfs={}", file.path().display());
        let settings = || Flags::try_parse_from(["x", &flag]).unwrap().settings();
        std::fs::write(file.path(), "kind: Pod\nspec: {containers: [{name: c, image: scrub}]}\n")
            .unwrap();
        let pod = settings().unwrap().cluster.recyclers.nfs.template.unwrap();
        assert_eq!(pod.spec.unwrap().containers[0].image.as_deref(), Some("scrub"));
        std::fs::write(file.path(), "spec: none").unwrap();
        let error = settings().unwrap_err().to_string();
        assert!(error.contains("not the template of a pod"), "{error}");
    }

    #[test]
    fn flags_are_those_of_upstream() {
        let flags = Flags::try_parse_from([
            "x",
            "--leader-elect=false",
            "--use-service-account-credentials",
            "--kubeconfig=/k",
            "--cluster-signing-cert-file=/c",
            "--profiling=false",
            "--node-monitor-grace-period=40s",
            "--cluster-cidr=10.0.0.0/8,fd00::/48",
            "--feature-gates=A=true",
            "-v=2",
        ])
        .unwrap();
        assert!(flags.leader("me").is_none());
        let settings = flags.settings().unwrap();
        assert_eq!(settings.cluster.node_monitor_grace, Duration::from_secs(40));
        assert_eq!(settings.cluster.cluster_cidrs.len(), 2);
        let default = Flags::try_parse_from(["x"]).unwrap();
        assert_eq!(default.leader("me").unwrap().lease_duration, Duration::from_secs(15));
        assert_eq!(default.config_source(), ConfigSource::Pod);
        let same = format!("{:?}", Settings::default());
        assert_eq!(format!("{:?}", default.settings().unwrap()), same, "the same defaults");
        assert!(Flags::try_parse_from(["x", "--no-such-flag"]).is_err());
        for (flag, fails) in [
            ("--tls-min-version=VersionTLS13", false),
            ("--tls-min-version=VersionTLS14", true),
            ("--client-ca-file=/ca", false),
        ] {
            assert_eq!(Flags::try_parse_from(["x", flag]).is_err(), fails, "{flag}");
        }
        let paths = ["/healthz", "/readyz", "/livez"];
        assert_eq!(default.port().unwrap().always_allow_paths, paths);
        let flags = ["x", "--authorization-always-allow-paths=/metrics,/live*", "--secure-port=1"];
        let port = Flags::try_parse_from(flags).unwrap().port().unwrap();
        assert_eq!((port.always_allow_paths.len(), port.address.port()), (2, 1));
        assert!(Flags::try_parse_from(["x", "--secure-port=0"]).unwrap().port().is_none());
    }
}
