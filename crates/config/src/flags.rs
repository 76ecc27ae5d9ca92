//! All flags of `kubelet` 1.36 as data: name, type and setting; those of this daemon only:
//! `proxy-config`, for kube-proxy in the same process, `authorization-strict-streams`,
//! `early-readiness-probes`, `keep-kernel-tunables` and `wait-for-device-plugins`; and for nodes on Docker
//! `cri-dockerd-root-directory` of cri-dockerd and those of kubelets with dockershim.
//!
//! Current limitations: flags marked `Ignored` are checked and have no effect: those of the built-in
//! cAdvisor and of a deprecated container GC.

use std::collections::BTreeMap;

use super::docker::DockerFlags;
use super::pflag::Flag;
use super::pflag::Target::{
    self, Amount, Bool, Duration, Gates, Headers, Ignored, IgnoredBool, Int, Ip, Labels, List,
    Long, Pairs, ReservedMemory, Taints, Text, VModule, Verbosity, Word,
};
use super::{GoDuration, KubeletConfiguration};

/// Endpoints of a Docker Engine, over which the node serves CRI itself.
pub const DOCKER_SCHEME: &str = "docker://";

/// Flags that have an effect with such an endpoint alone.
pub(super) const DOCKER_FLAGS: [&str; 6] = [
    "pod-infra-container-image",
    "cni-bin-dir",
    "cni-conf-dir",
    "cni-cache-dir",
    "image-pull-progress-deadline",
    "cri-dockerd-root-directory",
];

/// The values of the command line, as given.
#[derive(Debug)]
pub(super) struct KubeletFlags {
    pub(super) help: bool,
    pub(super) version: String,
    pub(super) config: String,
    pub(super) config_dir: String,
    pub(super) kubeconfig: String,
    pub(super) bootstrap_kubeconfig: String,
    pub(super) hostname_override: String,
    pub(super) node_ip: String,
    pub(super) node_labels: BTreeMap<String, String>,
    pub(super) cert_dir: String,
    pub(super) root_dir: String,
    pub(super) cloud_provider: String,
    pub(super) lock_file: String,
    pub(super) exit_on_lock_contention: bool,
    pub(super) runtime_cgroups: String,
    pub(super) image_credential_provider_config: String,
    pub(super) image_credential_provider_bin_dir: String,
    pub(super) minimum_container_ttl: GoDuration,
    pub(super) maximum_dead_containers_per_container: i32,
    pub(super) maximum_dead_containers: i32,
    pub(super) cadvisor_port: i32,
    pub(super) dashboard: String,
    pub(super) allocatable_ignores_eviction: bool,
    pub(super) proxy_config: String,
    pub(super) strict_streams: bool,
    pub(super) wait_for_device_plugins: bool,
    pub(super) early_readiness_probes: bool,
    pub(super) keep_kernel_tunables: bool,
    pub(super) docker: DockerFlags,
    pub(super) kubelet: KubeletConfiguration,
}

impl KubeletFlags {
    /// The defaults, on top of these settings.
    pub(super) fn over(kubelet: KubeletConfiguration) -> Self {
        Self {
            help: false,
            version: String::new(),
            config: String::new(),
            config_dir: String::new(),
            kubeconfig: String::new(),
            bootstrap_kubeconfig: String::new(),
            hostname_override: String::new(),
            node_ip: String::new(),
            node_labels: BTreeMap::new(),
            cert_dir: "/var/lib/kubelet/pki".to_owned(),
            root_dir: "/var/lib/kubelet".to_owned(),
            cloud_provider: String::new(),
            lock_file: String::new(),
            exit_on_lock_contention: false,
            runtime_cgroups: String::new(),
            image_credential_provider_config: String::new(),
            image_credential_provider_bin_dir: String::new(),
            minimum_container_ttl: GoDuration::ZERO,
            maximum_dead_containers_per_container: 1,
            maximum_dead_containers: -1,
            cadvisor_port: 0,
            dashboard: String::new(),
            allocatable_ignores_eviction: false,
            proxy_config: String::new(),
            strict_streams: false,
            wait_for_device_plugins: false,
            early_readiness_probes: false,
            keep_kernel_tunables: false,
            docker: DockerFlags::default(),
            kubelet,
        }
    }

    /// Whether CRI is served over a Docker Engine in this process.
    pub(super) fn is_on_docker(&self) -> bool {
        let kubelet = &self.kubelet;
        let endpoints = [&kubelet.container_runtime_endpoint, &kubelet.image_service_endpoint];
        endpoints.into_iter().any(|endpoint| endpoint.starts_with(DOCKER_SCHEME))
    }
}

/// A flag without a field in the configuration file.
const fn own(name: &'static str, target: Target<KubeletFlags>) -> Flag<KubeletFlags> {
    Flag { name, target, deprecated: false }
}

/// A flag that overrides a field of the configuration file.
const fn twin(name: &'static str, target: Target<KubeletFlags>) -> Flag<KubeletFlags> {
    Flag { name, target, deprecated: true }
}

/// All flags, in the order of `--help` within a group.
pub(super) static KUBELET_FLAGS: &[Flag<KubeletFlags>] = &[
    own("help", Bool(|s| &mut s.help)),
    own("version", Word(|s| &mut s.version)),
    own("config", Text(|s| &mut s.config)),
    own("config-dir", Text(|s| &mut s.config_dir)),
    own("kubeconfig", Text(|s| &mut s.kubeconfig)),
    own("bootstrap-kubeconfig", Text(|s| &mut s.bootstrap_kubeconfig)),
    own("hostname-override", Text(|s| &mut s.hostname_override)),
    own("node-ip", Text(|s| &mut s.node_ip)),
    own("node-labels", Labels(|s| &mut s.node_labels)),
    own("cert-dir", Text(|s| &mut s.cert_dir)),
    own("root-dir", Text(|s| &mut s.root_dir)),
    own("cloud-provider", Text(|s| &mut s.cloud_provider)),
    own("lock-file", Text(|s| &mut s.lock_file)),
    own("exit-on-lock-contention", Bool(|s| &mut s.exit_on_lock_contention)),
    own("runtime-cgroups", Text(|s| &mut s.runtime_cgroups)),
    own("image-credential-provider-config", Text(|s| &mut s.image_credential_provider_config)),
    own("image-credential-provider-bin-dir", Text(|s| &mut s.image_credential_provider_bin_dir)),
    own("proxy-config", Text(|s| &mut s.proxy_config)),
    own("authorization-strict-streams", Bool(|s| &mut s.strict_streams)),
    own("wait-for-device-plugins", Bool(|s| &mut s.wait_for_device_plugins)),
    own("early-readiness-probes", Bool(|s| &mut s.early_readiness_probes)),
    own("keep-kernel-tunables", Bool(|s| &mut s.keep_kernel_tunables)),
    own("seccomp-default", Bool(|s| &mut s.kubelet.seccomp_default)),
    // logging
    own("v", Verbosity(|s| &mut s.kubelet.logging.verbosity)),
    own("vmodule", VModule(|s| &mut s.kubelet.logging.vmodule)),
    own("logging-format", Text(|s| &mut s.kubelet.logging.format)),
    own("log-flush-frequency", Duration(|s| &mut s.kubelet.logging.flush_frequency)),
    own("log-text-split-stream", Bool(|s| &mut s.kubelet.logging.options.text.split_stream)),
    own(
        "log-text-info-buffer-size",
        Amount(|s| &mut s.kubelet.logging.options.text.info_buffer_size),
    ),
    own("log-json-split-stream", Bool(|s| &mut s.kubelet.logging.options.json.split_stream)),
    own(
        "log-json-info-buffer-size",
        Amount(|s| &mut s.kubelet.logging.options.json.info_buffer_size),
    ),
    // container GC, replaced by eviction
    twin("minimum-container-ttl-duration", Duration(|s| &mut s.minimum_container_ttl)),
    twin(
        "maximum-dead-containers-per-container",
        Int(|s| &mut s.maximum_dead_containers_per_container),
    ),
    twin("maximum-dead-containers", Int(|s| &mut s.maximum_dead_containers)),
    twin("experimental-mounter-path", Ignored),
    twin("experimental-allocatable-ignore-eviction", Bool(|s| &mut s.allocatable_ignores_eviction)),
    // flags with a configuration field
    twin("enable-server", Bool(|s| &mut s.kubelet.enable_server)),
    twin("fail-swap-on", Bool(|s| &mut s.kubelet.fail_swap_on)),
    twin("pod-manifest-path", Text(|s| &mut s.kubelet.static_pod_path)),
    twin("sync-frequency", Duration(|s| &mut s.kubelet.sync_frequency)),
    twin("file-check-frequency", Duration(|s| &mut s.kubelet.file_check_frequency)),
    twin("http-check-frequency", Duration(|s| &mut s.kubelet.http_check_frequency)),
    twin("manifest-url", Text(|s| &mut s.kubelet.static_pod_url)),
    twin("manifest-url-header", Headers(|s| &mut s.kubelet.static_pod_url_header)),
    twin("address", Ip(|s| &mut s.kubelet.address)),
    twin("port", Int(|s| &mut s.kubelet.port)),
    twin("read-only-port", Int(|s| &mut s.kubelet.read_only_port)),
    twin("fail-cgroupv1", Bool(|s| &mut s.kubelet.fail_cgroup_v1)),
    twin("container-runtime-endpoint", Text(|s| &mut s.kubelet.container_runtime_endpoint)),
    twin("image-service-endpoint", Text(|s| &mut s.kubelet.image_service_endpoint)),
    twin("anonymous-auth", Bool(|s| &mut s.kubelet.authentication.anonymous.enabled)),
    twin("authentication-token-webhook", Bool(|s| &mut s.kubelet.authentication.webhook.enabled)),
    twin(
        "authentication-token-webhook-cache-ttl",
        Duration(|s| &mut s.kubelet.authentication.webhook.cache_ttl),
    ),
    twin("client-ca-file", Text(|s| &mut s.kubelet.authentication.x509.client_ca_file)),
    twin("authorization-mode", Text(|s| &mut s.kubelet.authorization.mode)),
    twin(
        "authorization-webhook-cache-authorized-ttl",
        Duration(|s| &mut s.kubelet.authorization.webhook.cache_authorized_ttl),
    ),
    twin(
        "authorization-webhook-cache-unauthorized-ttl",
        Duration(|s| &mut s.kubelet.authorization.webhook.cache_unauthorized_ttl),
    ),
    twin("tls-cert-file", Text(|s| &mut s.kubelet.tls_cert_file)),
    twin("tls-private-key-file", Text(|s| &mut s.kubelet.tls_private_key_file)),
    twin("rotate-server-certificates", Bool(|s| &mut s.kubelet.server_tls_bootstrap)),
    twin("tls-cipher-suites", List(|s| &mut s.kubelet.tls_cipher_suites)),
    twin("tls-min-version", Text(|s| &mut s.kubelet.tls_min_version)),
    twin("rotate-certificates", Bool(|s| &mut s.kubelet.rotate_certificates)),
    twin("registry-qps", Int(|s| &mut s.kubelet.registry_pull_qps)),
    twin("registry-burst", Int(|s| &mut s.kubelet.registry_burst)),
    twin("event-qps", Int(|s| &mut s.kubelet.event_record_qps)),
    twin("event-burst", Int(|s| &mut s.kubelet.event_burst)),
    twin("enable-debugging-handlers", Bool(|s| &mut s.kubelet.enable_debugging_handlers)),
    twin("contention-profiling", Bool(|s| &mut s.kubelet.enable_contention_profiling)),
    twin("healthz-port", Int(|s| &mut s.kubelet.healthz_port)),
    twin("healthz-bind-address", Ip(|s| &mut s.kubelet.healthz_bind_address)),
    twin("oom-score-adj", Int(|s| &mut s.kubelet.oom_score_adj)),
    twin("cluster-domain", Text(|s| &mut s.kubelet.cluster_domain)),
    twin("volume-plugin-dir", Text(|s| &mut s.kubelet.volume_plugin_dir)),
    twin("cluster-dns", List(|s| &mut s.kubelet.cluster_dns)),
    twin(
        "streaming-connection-idle-timeout",
        Duration(|s| &mut s.kubelet.streaming_connection_idle_timeout),
    ),
    twin("node-status-update-frequency", Duration(|s| &mut s.kubelet.node_status_update_frequency)),
    twin("minimum-image-ttl-duration", Duration(|s| &mut s.kubelet.image_minimum_gc_age)),
    twin("image-gc-high-threshold", Int(|s| &mut s.kubelet.image_gc_high_threshold_percent)),
    twin("image-gc-low-threshold", Int(|s| &mut s.kubelet.image_gc_low_threshold_percent)),
    twin("volume-stats-agg-period", Duration(|s| &mut s.kubelet.volume_stats_agg_period)),
    twin("feature-gates", Gates(|s| &mut s.kubelet.feature_gates)),
    twin("kubelet-cgroups", Text(|s| &mut s.kubelet.kubelet_cgroups)),
    twin("system-cgroups", Text(|s| &mut s.kubelet.system_cgroups)),
    twin("provider-id", Text(|s| &mut s.kubelet.provider_id)),
    twin("cgroups-per-qos", Bool(|s| &mut s.kubelet.cgroups_per_qos)),
    twin("cgroup-driver", Text(|s| &mut s.kubelet.cgroup_driver)),
    twin("cgroup-root", Text(|s| &mut s.kubelet.cgroup_root)),
    twin("cpu-manager-policy", Text(|s| &mut s.kubelet.cpu_manager_policy)),
    twin("cpu-manager-policy-options", Pairs('=', |s| &mut s.kubelet.cpu_manager_policy_options)),
    twin("cpu-manager-reconcile-period", Duration(|s| &mut s.kubelet.cpu_manager_reconcile_period)),
    twin("qos-reserved", Pairs('=', |s| &mut s.kubelet.qos_reserved)),
    twin("topology-manager-policy", Text(|s| &mut s.kubelet.topology_manager_policy)),
    twin("runtime-request-timeout", Duration(|s| &mut s.kubelet.runtime_request_timeout)),
    twin("hairpin-mode", Text(|s| &mut s.kubelet.hairpin_mode)),
    twin("max-pods", Int(|s| &mut s.kubelet.max_pods)),
    twin("pod-cidr", Text(|s| &mut s.kubelet.pod_cidr)),
    twin("pod-max-pids", Long(|s| &mut s.kubelet.pod_pids_limit)),
    twin("resolv-conf", Text(|s| &mut s.kubelet.resolv_conf)),
    twin("runonce", Bool(|s| &mut s.kubelet.run_once)),
    twin("cpu-cfs-quota", Bool(|s| &mut s.kubelet.cpu_cfs_quota)),
    twin("cpu-cfs-quota-period", Duration(|s| &mut s.kubelet.cpu_cfs_quota_period)),
    twin(
        "enable-controller-attach-detach",
        Bool(|s| &mut s.kubelet.enable_controller_attach_detach),
    ),
    twin("make-iptables-util-chains", Bool(|s| &mut s.kubelet.make_iptables_util_chains)),
    twin("container-log-max-size", Text(|s| &mut s.kubelet.container_log_max_size)),
    twin("container-log-max-files", Int(|s| &mut s.kubelet.container_log_max_files)),
    twin("allowed-unsafe-sysctls", List(|s| &mut s.kubelet.allowed_unsafe_sysctls)),
    twin("node-status-max-images", Int(|s| &mut s.kubelet.node_status_max_images)),
    twin("kernel-memcg-notification", Bool(|s| &mut s.kubelet.kernel_memcg_notification)),
    twin(
        "local-storage-capacity-isolation",
        Bool(|s| &mut s.kubelet.local_storage_capacity_isolation),
    ),
    twin("max-open-files", Long(|s| &mut s.kubelet.max_open_files)),
    twin("kube-api-content-type", Text(|s| &mut s.kubelet.content_type)),
    twin("kube-api-qps", Int(|s| &mut s.kubelet.kube_api_qps)),
    twin("kube-api-burst", Int(|s| &mut s.kubelet.kube_api_burst)),
    twin("serialize-image-pulls", Bool(|s| &mut s.kubelet.serialize_image_pulls)),
    twin("eviction-hard", Pairs('<', |s| &mut s.kubelet.eviction_hard)),
    twin("eviction-soft", Pairs('<', |s| &mut s.kubelet.eviction_soft)),
    twin("eviction-soft-grace-period", Pairs('=', |s| &mut s.kubelet.eviction_soft_grace_period)),
    twin(
        "eviction-pressure-transition-period",
        Duration(|s| &mut s.kubelet.eviction_pressure_transition_period),
    ),
    twin("eviction-max-pod-grace-period", Int(|s| &mut s.kubelet.eviction_max_pod_grace_period)),
    twin("eviction-minimum-reclaim", Pairs('=', |s| &mut s.kubelet.eviction_minimum_reclaim)),
    twin("pods-per-core", Int(|s| &mut s.kubelet.pods_per_core)),
    twin("protect-kernel-defaults", Bool(|s| &mut s.kubelet.protect_kernel_defaults)),
    twin("reserved-cpus", Text(|s| &mut s.kubelet.reserved_system_cpus)),
    twin("topology-manager-scope", Text(|s| &mut s.kubelet.topology_manager_scope)),
    twin(
        "topology-manager-policy-options",
        Pairs('=', |s| &mut s.kubelet.topology_manager_policy_options),
    ),
    twin("system-reserved", Pairs('=', |s| &mut s.kubelet.system_reserved)),
    twin("kube-reserved", Pairs('=', |s| &mut s.kubelet.kube_reserved)),
    twin("enforce-node-allocatable", List(|s| &mut s.kubelet.enforce_node_allocatable)),
    twin("system-reserved-cgroup", Text(|s| &mut s.kubelet.system_reserved_cgroup)),
    twin("kube-reserved-cgroup", Text(|s| &mut s.kubelet.kube_reserved_cgroup)),
    twin("memory-manager-policy", Text(|s| &mut s.kubelet.memory_manager_policy)),
    twin("reserved-memory", ReservedMemory(|s| &mut s.kubelet.reserved_memory)),
    twin("register-node", Bool(|s| &mut s.kubelet.register_node)),
    twin("register-with-taints", Taints(|s| &mut s.kubelet.register_with_taints)),
    // Docker, of kubelets before 1.24; the first was there until 1.35, and older kubeadm versions set it
    own("pod-infra-container-image", Text(|s| &mut s.docker.sandbox_image)),
    own("cni-bin-dir", List(|s| &mut s.docker.cni_bin_dirs)),
    own("cni-conf-dir", Text(|s| &mut s.docker.cni_conf_dir)),
    own("cni-cache-dir", Text(|s| &mut s.docker.cni_cache_dir)),
    own("image-pull-progress-deadline", Duration(|s| &mut s.docker.image_pull_progress_deadline)),
    own("cri-dockerd-root-directory", Text(|s| &mut s.docker.root_dir)),
    own("dashboard", Word(|s| &mut s.dashboard)),
    // cAdvisor
    own("cadvisor-port", Int(|s| &mut s.cadvisor_port)),
    own("housekeeping-interval", Ignored),
    own("max-housekeeping-interval", Ignored),
    own("application-metrics-count-limit", Ignored),
    own("boot-id-file", Ignored),
    own("container-hints", Ignored),
    own("containerd", Ignored),
    own("enable-load-reader", IgnoredBool),
    own("event-storage-age-limit", Ignored),
    own("event-storage-event-limit", Ignored),
    own("global-housekeeping-interval", Ignored),
    own("log-cadvisor-usage", IgnoredBool),
    own("machine-id-file", Ignored),
    own("storage-driver-user", Ignored),
    own("storage-driver-password", Ignored),
    own("storage-driver-host", Ignored),
    own("storage-driver-db", Ignored),
    own("storage-driver-table", Ignored),
    own("storage-driver-secure", IgnoredBool),
    own("storage-driver-buffer-duration", Ignored),
    own("containerd-namespace", Ignored),
];
