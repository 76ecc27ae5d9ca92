//! The command line of kube-controller-manager.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, CommandFactory, Parser};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Pod;
use kube::config::Kubeconfig;
use longshore_base::flags::without_empty;
use longshore_base::logging::LoggingFlags;
use longshore_client::ConfigSource;
use longshore_client::reviews::DecisionTtls;
use longshore_csr::Signer;
use longshore_duration::GoDuration;
use longshore_gates::FeatureGates;
use longshore_informer::LeaderConfig;
use longshore_serving::FrontProxyHeaders;
use longshore_serving::tls::SniCertificate;

use crate::cluster_settings::{Recycler, RecyclerSettings};
use crate::delegated::DelegatedOptions;
use crate::list::{GATES, WITHOUT_WORK, gate};
use crate::serving::PortOptions;
use crate::signer_files::SignerError;
use crate::{ClusterSettings, Controller, Settings, SignerFiles, all};

/// A duration in Go's syntax.
fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<GoDuration>().map(GoDuration::get).map_err(|error| error.to_string())
}

/// The host of an apiserver's URL: a name, or an address without brackets.
fn host_of(url: &str) -> Option<String> {
    let host = url.parse::<hyper::Uri>().ok()?.host()?.to_owned();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    Some(bare.parse::<IpAddr>().map_or_else(|_| host.clone(), |address| address.to_string()))
}

/// The controller that `--enable-garbage-collector` is about.
const GARBAGE_COLLECTOR: &str = "garbage-collector-controller";
/// The gates that are read.
const CLUSTER_TRUST_BUNDLE: &str = "ClusterTrustBundle";
const RELEASE_LEASE: &str = "ControllerManagerReleaseLeaderElectionLockOnExit";

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
            /// The CA of client certificates [default: that of the apiserver's ConfigMap].
            #[arg(long)]
            client_ca_file: Option<PathBuf>,
            /// The kubeconfig of token reviews [default: --kubeconfig].
            #[arg(long)]
            pub(crate) authentication_kubeconfig: Option<PathBuf>,
            /// The kubeconfig of access reviews [default: --kubeconfig].
            #[arg(long)]
            pub(crate) authorization_kubeconfig: Option<PathBuf>,
            /// The CA of front proxies [default: that of the apiserver's ConfigMap, with its headers].
            #[arg(long)]
            requestheader_client_ca_file: Option<PathBuf>,
            /// Common names of front proxies; empty: any.
            #[arg(long, value_delimiter = ',')]
            requestheader_allowed_names: Vec<String>,
            /// Headers with names of users.
            #[arg(long, value_delimiter = ',', default_value = "x-remote-user")]
            requestheader_username_headers: Vec<String>,
            /// Headers with UIDs of users.
            #[arg(long, value_delimiter = ',')]
            requestheader_uid_headers: Vec<String>,
            /// Headers with groups of users.
            #[arg(long, value_delimiter = ',', default_value = "x-remote-group")]
            requestheader_group_headers: Vec<String>,
            /// How headers with extra fields of users begin.
            #[arg(long, value_delimiter = ',', default_value = "x-remote-extra-")]
            requestheader_extra_headers_prefix: Vec<String>,
            /// The minimum version of TLS.
            #[arg(long, default_value = "", value_parser = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"])]
            tls_min_version: String,
            /// The cipher suites of TLS 1.2.
            #[arg(long, value_delimiter = ',')]
            tls_cipher_suites: Vec<String>,
            /// The key exchanges, by their numbers.
            #[arg(long, value_delimiter = ',')]
            tls_curve_preferences: Vec<i32>,
            /// Certificates for clients that ask for certain names, as FILE,FILE[:NAME,…].
            #[arg(long)]
            tls_sni_cert_key: Vec<SniCertificate>,
            /// The paths that are served without credentials; those that end with `*` are prefixes.
            #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
            authorization_always_allow_paths: Vec<String>,
            /// The certificate that pods verify the apiserver with.
            #[arg(long)]
            pub(crate) root_ca_file: Option<PathBuf>,
            /// The template of pods that recycle hostPath volumes.
            #[arg(long)]
            pv_recycler_pod_template_filepath_hostpath: Option<PathBuf>,
            /// The template of pods that recycle NFS volumes.
            #[arg(long)]
            pv_recycler_pod_template_filepath_nfs: Option<PathBuf>,
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
            v: u32,
            /// The form of the log, and where it goes.
            #[command(flatten)]
            logging: LoggingFlags,
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

/// Why a command line cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// There is no such controller.
    #[error("{0:?} is not in the list of known controllers")]
    UnknownController(String),
    /// Flags of the log.
    #[error("{0}")]
    Logging(String),
    /// Flags that do not go together.
    #[error("{0}")]
    Signers(&'static str),
    /// Flags of nodes' ranges that do not go together.
    #[error("{0}")]
    Masks(&'static str),
    /// One flag without the other.
    #[error("--cluster-signing-{0}cert-file and --cluster-signing-{0}key-file go together")]
    Pair(&'static str),
    /// A CA cannot be used.
    #[error(transparent)]
    Signer(#[from] SignerError),
    /// Certificates cannot be read.
    #[error(transparent)]
    Certificates(#[from] longshore_tls::Error),
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
    /// What the log is started with.
    ///
    /// # Errors
    /// The flags of the log are not valid.
    pub fn logging(&self) -> Result<longshore_base::logging::Settings, FlagError> {
        let settings = self.logging.settings(self.v, |gate| self.feature_gates.enabled(gate));
        settings.map_err(FlagError::Logging)
    }

    /// Reads a command line; ends the process when it cannot be used. Of flags without a default, an empty
    /// value is no value.
    pub fn read(arguments: Vec<OsString>) -> Self {
        Self::parse_from(Self::given(arguments))
    }

    fn given(arguments: Vec<OsString>) -> Vec<OsString> {
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

    /// The controllers that are to run.
    pub fn selected(&self) -> Result<Vec<Controller>, FlagError> {
        let all = all();
        let is_named = |one: &Controller, name: &str| one.name == name || one.alias == name;
        for name in &self.controllers {
            let name = name.strip_prefix('-').unwrap_or(name);
            if name == "*" || all.iter().any(|one| is_named(one, name)) {
                continue;
            }
            let known = WITHOUT_WORK.iter().filter(|_| !name.is_empty());
            match known.clone().find(|(own, alias, _)| [own, alias].contains(&&name)) {
                None => return Err(FlagError::UnknownController(name.to_owned())),
                Some((name, _, why)) => tracing::info!(controller = name, "does not run: {why}"),
            }
        }
        let has = |wanted: &str| self.controllers.iter().any(|name| name == wanted);
        let is_selected = |one: &Controller| {
            if one.name == GARBAGE_COLLECTOR && !self.enable_garbage_collector {
                return false;
            }
            let mut names = [one.name, one.alias].into_iter();
            if names.clone().any(|name| has(&format!("-{name}"))) {
                return false;
            }
            names.any(has) || (has("*") && one.by_default)
        };
        let has_gate =
            |one: &Controller| gate(one.name).is_none_or(|gate| self.feature_gates.enabled(gate));
        Ok(all.into_iter().filter(|one| is_selected(one) && has_gate(one)).collect())
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
            releases_on_stop: self.feature_gates.enabled(RELEASE_LEASE),
        })
    }

    /// The CAs of the signers: one for all, or one for each that has flags of its own.
    fn signers(&self) -> Result<Vec<SignerFiles>, FlagError> {
        let pair = |name, certificate: &Option<PathBuf>, key: &Option<PathBuf>| match (
            certificate.clone(),
            key.clone(),
        ) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            _ => Err(FlagError::Pair(name)),
        };
        let of_all = pair("", &self.cluster_signing_cert_file, &self.cluster_signing_key_file)?;
        let each = [
            (
                Signer::KubeletServing,
                pair(
                    "kubelet-serving-",
                    &self.cluster_signing_kubelet_serving_cert_file,
                    &self.cluster_signing_kubelet_serving_key_file,
                )?,
            ),
            (
                Signer::KubeletClient,
                pair(
                    "kubelet-client-",
                    &self.cluster_signing_kubelet_client_cert_file,
                    &self.cluster_signing_kubelet_client_key_file,
                )?,
            ),
            (
                Signer::Client,
                pair(
                    "kube-apiserver-client-",
                    &self.cluster_signing_kube_apiserver_client_cert_file,
                    &self.cluster_signing_kube_apiserver_client_key_file,
                )?,
            ),
            (
                Signer::LegacyUnknown,
                pair(
                    "legacy-unknown-",
                    &self.cluster_signing_legacy_unknown_cert_file,
                    &self.cluster_signing_legacy_unknown_key_file,
                )?,
            ),
        ];
        let has_own = each.iter().any(|(_, own)| own.is_some());
        if has_own && of_all.is_some() {
            return Err(FlagError::Signers(
                "cannot specify --cluster-signing-{cert,key}-file and other \
                 --cluster-signing-*-file flags at the same time",
            ));
        }
        let files = |(signer, own): (Signer, Option<(PathBuf, PathBuf)>)| {
            let (certificate, key) = own.or_else(|| of_all.clone())?;
            Some(SignerFiles { signer, certificate, key })
        };
        let signers: Vec<SignerFiles> = each.into_iter().filter_map(files).collect();
        for files in &signers {
            files.read()?;
        }
        if self.approve_kubelet_serving {
            self.check_serving_authority(&signers)?;
        }
        Ok(signers)
    }

    /// Whatever a node gets signed, it must not pass for the apiserver with it: the CA must not be one
    /// that clients of the apiserver trust.
    fn check_serving_authority(&self, signers: &[SignerFiles]) -> Result<(), FlagError> {
        let of = |signer| signers.iter().find(|files| files.signer == signer);
        let Some(serving) = of(Signer::KubeletServing) else {
            return Err(FlagError::Signers(
                "--approve-kubelet-serving requires --cluster-signing-kubelet-serving-cert-file \
                 and --cluster-signing-kubelet-serving-key-file",
            ));
        };
        let own = serving.read()?;
        let mut trusted = Vec::new();
        if let Some(root) = &self.root_ca_file {
            let roots = longshore_tls::certificates(root)?;
            trusted.extend(roots.into_iter().map(|root| root.to_vec()));
        }
        for files in signers.iter().filter(|files| files.signer != Signer::KubeletServing) {
            trusted.push(files.read()?.certificate().to_vec());
        }
        if trusted.iter().any(|certificate| certificate == own.certificate()) {
            return Err(FlagError::Signers(
                "--approve-kubelet-serving requires a CA of its own in \
                 --cluster-signing-kubelet-serving-cert-file: not that of --root-ca-file or of \
                 another signer",
            ));
        }
        Ok(())
    }

    /// The host of the apiserver's URL.
    pub(crate) fn apiserver_host(&self) -> Option<String> {
        let url = match &self.master {
            Some(master) => master.clone(),
            None => {
                let kubeconfig = Kubeconfig::read_from(self.kubeconfig.as_ref()?).ok()?;
                let current = kubeconfig.current_context?;
                let context = kubeconfig.contexts.into_iter().find(|one| one.name == current)?;
                let name = context.context?.cluster;
                let cluster = kubeconfig.clusters.into_iter().find(|one| one.name == name)?;
                cluster.cluster?.server?
            }
        };
        host_of(&url)
    }

    /// The port, unless there is none.
    pub(crate) fn port(&self) -> Option<PortOptions> {
        (self.secure_port != 0).then(|| PortOptions {
            address: SocketAddr::new(self.bind_address, self.secure_port),
            certificate: self.tls_cert_file.clone().zip(self.tls_private_key_file.clone()),
            delegated: DelegatedOptions {
                client_ca: self.client_ca_file.clone(),
                front_proxy_ca: self.requestheader_client_ca_file.clone(),
                headers: FrontProxyHeaders {
                    allowed_names: self.requestheader_allowed_names.clone(),
                    username_headers: self.requestheader_username_headers.clone(),
                    uid_headers: self.requestheader_uid_headers.clone(),
                    group_headers: self.requestheader_group_headers.clone(),
                    extra_prefixes: self.requestheader_extra_headers_prefix.clone(),
                },
                skip_lookup: self.authentication_skip_lookup,
                requires_lookup: !self.authentication_tolerate_lookup_failure,
            },
            tls_min_version: self.tls_min_version.clone(),
            cipher_suites: self.tls_cipher_suites.clone(),
            curves: self.tls_curve_preferences.clone(),
            sni: self.tls_sni_cert_key.clone(),
            http1_alone: self.disable_http2_serving,
            profiling: self.profiling,
            always_allow_paths: self.authorization_always_allow_paths.clone(),
            token_ttl: self.authentication_token_webhook_cache_ttl,
            decision_ttls: DecisionTtls {
                allowed: self.authorization_webhook_cache_authorized_ttl,
                denied: self.authorization_webhook_cache_unauthorized_ttl,
            },
        })
    }

    /// Bits of nodes' ranges of IPv4 and IPv6 addresses.
    fn node_masks(&self) -> Result<(u8, u8), FlagError> {
        let set = |bits: u8| Some(bits).filter(|bits| *bits != 0);
        let (both, v4, v6) = (
            set(self.node_cidr_mask_size),
            set(self.node_cidr_mask_size_ipv4),
            set(self.node_cidr_mask_size_ipv6),
        );
        let is_v6 = self.cluster_cidr.first().is_some_and(|cidr| cidr.contains(':'));
        let why = match self.cluster_cidr.len() {
            _ if !self.allocate_node_cidrs => None,
            0 => None,
            1 if both.is_some() && (v4.is_some() || v6.is_some()) => Some(
                "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed \
                 if --node-cidr-mask-size is set. For dual-stack clusters please unset it and use \
                 IPFamily specific flags",
            ),
            1 if v4.is_some() && is_v6 => Some(
                "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster",
            ),
            1 if v6.is_some() && !is_v6 => Some(
                "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster",
            ),
            1 => None,
            _ if both.is_some() => {
                Some("usage of --node-cidr-mask-size is not allowed with dual-stack clusters")
            }
            _ => None,
        };
        match why {
            Some(why) => Err(FlagError::Masks(why)),
            None => Ok((both.or(v4).unwrap_or(24), both.or(v6).unwrap_or(64))),
        }
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
            let refused = |reason: String| FlagError::Template { path: path.clone(), reason };
            let options = serde_saphyr::options! { with_snippet: false };
            // by way of a tree: the code that reads a pod from JSON is there already
            let tree: serde_json::Value =
                serde_saphyr::from_str_with_options(&read(path)?, options)
                    .map_err(|error| refused(error.to_string()))?;
            let pod = serde_json::from_str(&tree.to_string());
            pod.map(Some).map_err(|error| refused(error.to_string()))
        };
        let (node_mask_v4, node_mask_v6) = self.node_masks()?;
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
                max_mirrored_endpoints: self.mirroring_max_endpoints_per_subset,
                endpoint_batch_period: self.endpoint_updates_batch_period,
                slice_batch_period: self.endpointslice_updates_batch_period,
                mirroring_batch_period: self.mirroring_endpointslice_updates_batch_period,
                device_taint_workers: self.concurrent_device_taint_eviction_syncs,
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
                signers: self.signers()?,
                cluster_trust_bundle: self.feature_gates.enabled(CLUSTER_TRUST_BUNDLE),
                signing_duration: self.cluster_signing_duration,
                approve_kubelet_serving: self.approve_kubelet_serving,
                service_ranges: self.service_cluster_ip_range.clone(),
                apiserver_host: self.apiserver_host(),
                legacy_token_period: self.legacy_service_account_token_clean_up_period,
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
                node_mask_v4,
                node_mask_v6,
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
        let command = Flags::command();
        let known: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        let unknown: Vec<_> = UPSTREAM.lines().filter(|flag| !known.contains(flag)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    /// Each flag with its default and another value, of kube-controller-manager 1.36.
    const VALUES: &str = include_str!("../tests/data/flag-values-1.36.tsv");

    #[test]
    fn flags_of_upstream_take_their_defaults_and_other_values() {
        let page = include_str!("../../../docs/flags.md");
        for line in VALUES.lines() {
            let [name, default, other] = line.split('\t').collect::<Vec<_>>()[..] else {
                unreachable!("{line}")
            };
            for value in [default, other] {
                let given = ["x".into(), OsString::from(format!("--{name}={value}"))];
                let flags = Flags::try_parse_from(Flags::given(given.into()));
                let flags = flags.unwrap_or_else(|error| unreachable!("{error}"));
                flags.selected().unwrap();
                for ignored in flags.without_effect() {
                    let ignored = ignored.split('=').next().unwrap();
                    assert!(page.contains(&format!("`--{ignored}`")), "{ignored} is documented");
                }
            }
        }
    }

    #[test]
    fn flags_of_the_garbage_collector_and_masks() {
        let flags = |line: &[&str]| Flags::try_parse_from([&["x"], line].concat()).unwrap();
        let has =
            |own: Flags| own.selected().unwrap().iter().any(|own| own.name == GARBAGE_COLLECTOR);
        assert!(has(flags(&[])) && !has(flags(&["--enable-garbage-collector=false"])));
        let masks = |line: &[&str]| {
            let settings = flags(line).settings().map_err(|error| error.to_string())?;
            Ok::<_, String>((settings.cluster.node_mask_v4, settings.cluster.node_mask_v6))
        };
        assert_eq!(masks(&[]), Ok((24, 64)));
        assert_eq!(masks(&["--node-cidr-mask-size-ipv4=0"]), Ok((24, 64)));
        assert_eq!(masks(&["--node-cidr-mask-size=26"]), Ok((26, 26)));
        let error = masks(&[
            "--allocate-node-cidrs=true",
            "--node-cidr-mask-size=26",
            "--cluster-cidr=10.0.0.0/8,fd00::/48",
        ]);
        assert!(error.unwrap_err().contains("not allowed with dual-stack"));
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
        let dir = tempfile::tempdir().unwrap();
        authority(dir.path(), "ca");
        let line = line.replace("/etc/kubernetes/pki", &dir.path().display().to_string());
        let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
        flags.selected().unwrap();
        flags.settings().unwrap();
        let ignored = flags.without_effect();
        assert_eq!(ignored, ["cluster-name", "service-account-private-key-file"]);
        assert!(flags.use_service_account_credentials);
        let delegated = flags.port().unwrap().delegated;
        assert!(delegated.front_proxy_ca.is_some() && delegated.headers.allowed_names.is_empty());
        assert_eq!(delegated.headers.username_headers, ["x-remote-user"]);
    }

    fn selected(list: &str) -> Result<Vec<&'static str>, String> {
        let flags = Flags::try_parse_from(["x", &format!("--controllers={list}")]).unwrap();
        let selected = flags.selected().map_err(|error| error.to_string())?;
        Ok(selected.iter().map(|one| one.name).collect())
    }

    /// The file has the names that upstream's command line takes, which are off by default, and older ones.
    #[test]
    fn flags_name_controllers_as_upstream() {
        let lines = include_str!("testdata/controllers.txt").lines();
        let all = all();
        for line in lines.filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, state, aliases @ ..] = &words[..] else { panic!("{line}") };
            let own = all.iter().find(|one| one.name == *name);
            if let Some(own) = own {
                let alias = aliases.first().unwrap_or(name);
                assert_eq!((own.by_default, own.alias), (*state == "on", *alias), "{name}");
            }
            let runs =
                own.is_some() && gate(name).is_none_or(|it| FeatureGates::default().enabled(it));
            for given in [name].into_iter().chain(aliases) {
                let named = selected(given).unwrap_or_else(|error| panic!("{given}: {error}"));
                assert_eq!(named, if runs { vec![*name] } else { vec![] }, "{given}");
                assert!(!selected(&format!("*,-{given}")).unwrap().contains(name), "{given}");
            }
        }
    }

    #[test]
    fn flags_of_nodes_ranges() {
        let (v4, v6) = ("--cluster-cidr=10.0.0.0/8", "--cluster-cidr=fd00::/48");
        let both = "--cluster-cidr=10.0.0.0/8,fd00::/48";
        for (flags, expected) in [
            (vec![v4], Ok((24, 64))),
            (vec![v4, "--node-cidr-mask-size=20"], Ok((20, 20))),
            (vec![v4, "--node-cidr-mask-size-ipv4=22"], Ok((22, 64))),
            (vec![v6, "--node-cidr-mask-size-ipv6=56"], Ok((24, 56))),
            (vec![both, "--node-cidr-mask-size-ipv4=22"], Ok((22, 64))),
            (vec![both, "--node-cidr-mask-size=20"], Err("not allowed with dual-stack clusters")),
            (
                vec![v4, "--node-cidr-mask-size=20", "--node-cidr-mask-size-ipv4=22"],
                Err("is not allowed if --node-cidr-mask-size is set"),
            ),
            (vec![v6, "--node-cidr-mask-size-ipv4=22"], Err("for a single-stack IPv6 cluster")),
            (vec![v4, "--node-cidr-mask-size-ipv6=56"], Err("for a single-stack IPv4 cluster")),
        ] {
            let line = ["x", "--allocate-node-cidrs"].into_iter().chain(flags.clone());
            let settings = Flags::try_parse_from(line).unwrap().settings();
            match (settings, expected) {
                (Ok(settings), Ok(masks)) => {
                    let cluster = settings.cluster;
                    assert_eq!((cluster.node_mask_v4, cluster.node_mask_v6), masks, "{flags:?}");
                }
                (Err(error), Err(why)) => assert!(error.to_string().contains(why), "{error}"),
                (found, _) => panic!("{flags:?}: {}", found.is_ok()),
            }
        }
    }

    #[test]
    fn flags_of_gates_select_controllers() {
        for (gate, name) in [
            (
                "ClusterTrustBundle",
                "kube-apiserver-serving-clustertrustbundle-publisher-controller",
            ),
            ("DRADeviceTaints", "device-taint-eviction-controller"),
            ("PodCertificateRequest", "podcertificaterequest-cleaner-controller"),
        ] {
            for is_on in [true, false] {
                let gates = format!("--feature-gates={gate}={is_on}");
                let flags = Flags::try_parse_from(["x", &gates]).unwrap();
                let selected = flags.selected().unwrap();
                assert_eq!(selected.iter().any(|one| one.name == name), is_on, "{gates}");
                assert!(flags.without_effect().is_empty(), "{gates}");
            }
        }
    }

    #[test]
    fn flags_select_controllers() {
        let has_gate = |one: &&Controller| {
            gate(one.name).is_none_or(|gate| FeatureGates::default().enabled(gate))
        };
        let default: Vec<_> = all()
            .iter()
            .filter(|one| one.by_default)
            .filter(has_gate)
            .map(|one| one.name)
            .collect();
        assert_eq!(selected("*").unwrap(), default);
        let without = selected("*,-deployment-controller,-job").unwrap();
        assert_eq!(without.len(), default.len() - 2);
        assert_eq!(selected("deployment,replicaset-controller").unwrap().len(), 2);
        assert_eq!(
            selected("*,none").unwrap_err(),
            "\"none\" is not in the list of known controllers"
        );
    }

    /// A CA's files in a directory.
    fn authority(dir: &std::path::Path, name: &str) -> [String; 2] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let files = [("crt", pem), ("key", key.serialize_pem())];
        files.map(|(kind, text)| {
            let path = dir.join(format!("{name}.{kind}"));
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        })
    }

    #[test]
    fn flags_of_signers() {
        let dir = tempfile::tempdir().unwrap();
        let ([ca, key], [own, own_key]) =
            (authority(dir.path(), "ca"), authority(dir.path(), "serving"));
        let all = [
            format!("--cluster-signing-cert-file={ca}"),
            format!("--cluster-signing-key-file={key}"),
        ];
        let serving = |ca: &str, key: &str| {
            [
                format!("--cluster-signing-kubelet-serving-cert-file={ca}"),
                format!("--cluster-signing-kubelet-serving-key-file={key}"),
            ]
        };
        let root = format!("--root-ca-file={ca}");
        let approve = "--approve-kubelet-serving".to_owned();
        let signers = |flags: &[&[String]]| {
            let flags = flags.iter().flat_map(|flags| flags.iter().cloned());
            let flags = std::iter::once("x".to_owned()).chain(flags);
            let settings = Flags::try_parse_from(flags).unwrap().settings();
            settings
                .map(|own| own.cluster.signers.iter().map(|own| own.signer).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        assert_eq!(signers(&[]).unwrap(), []);
        assert_eq!(signers(&[&all]).unwrap().len(), 4);
        let own = serving(&own, &own_key);
        assert_eq!(signers(&[&own]).unwrap(), [Signer::KubeletServing]);
        assert_eq!(signers(&[&own, &[root.clone(), approve.clone()]]).unwrap().len(), 1);
        for (flags, why) in [
            (&[&all[..], &own[..]][..], "at the same time"),
            (&[&all[..1]][..], "go together"),
            (&[&own[1..]][..], "--cluster-signing-kubelet-serving-cert-file"),
            (&[&[approve.clone()][..]][..], "requires --cluster-signing-kubelet-serving-cert-file"),
            (&[&all[..], &[approve.clone()][..]][..], "a CA of its own"),
            (&[&serving(&ca, &key)[..], &[root, approve][..]][..], "a CA of its own"),
            (&[&serving(&ca, &own_key)[..]][..], "not that of the certificate"),
            (&[&serving("/none", &own_key)[..]][..], "/none"),
        ] {
            let error = signers(flags).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
        for duration in ["9999999h", "0s", "-1h"] {
            let flag = format!("--cluster-signing-duration={duration}");
            assert!(Flags::try_parse_from(["x", &flag]).is_err(), "{duration}");
        }
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
            "--profiling=false",
            "--tls-sni-cert-key=a,b:c",
            "--tls-sni-cert-key=d,e",
            "--tls-curve-preferences=29,23",
            "--disable-http2-serving",
            "--authentication-tolerate-lookup-failure=false",
            "--node-monitor-grace-period=40s",
            "--cluster-cidr=10.0.0.0/8,fd00::/48",
            "--feature-gates=MemoryQoS=true",
            "-v=2",
        ])
        .unwrap();
        assert!(flags.leader("me").is_none());
        let port = flags.port().unwrap();
        assert_eq!((port.sni.len(), port.curves.as_slice()), (2, &[29, 23][..]));
        assert!(port.http1_alone && !port.profiling && port.delegated.requires_lookup);
        let empty = ["x", "--root-ca-file=", "--client-ca-file=", "--cluster-cidr="];
        assert_eq!(Flags::given(empty.map(OsString::from).into()), ["x"]);
        let settings = flags.settings().unwrap();
        assert_eq!(settings.cluster.node_monitor_grace, Duration::from_secs(40));
        assert_eq!(settings.cluster.cluster_cidrs.len(), 2);
        let default = Flags::try_parse_from(["x"]).unwrap();
        assert_eq!(default.leader("me").unwrap().lease_duration, Duration::from_secs(15));
        assert!(!default.leader("me").unwrap().releases_on_stop);
        let releases =
            ["x", "--feature-gates=ControllerManagerReleaseLeaderElectionLockOnExit=true"];
        assert!(Flags::try_parse_from(releases).unwrap().leader("me").unwrap().releases_on_stop);
        for gates in ["A", "A=true", "NodeSwap=false"] {
            Flags::try_parse_from(["x", "--feature-gates", gates]).unwrap_err();
        }
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
