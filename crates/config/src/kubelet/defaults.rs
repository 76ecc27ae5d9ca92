//! Defaults of settings.

use std::collections::BTreeMap;

use super::*;
use crate::gates::FeatureGates;

impl Default for KubeletConfiguration {
    fn default() -> Self {
        let s = str::to_owned;
        Self {
            enable_server: true,
            static_pod_path: String::new(),
            pod_logs_dir: s("/var/log/pods"),
            sync_frequency: GoDuration::secs(60),
            file_check_frequency: GoDuration::secs(20),
            http_check_frequency: GoDuration::secs(20),
            static_pod_url: String::new(),
            static_pod_url_header: BTreeMap::new(),
            address: s("0.0.0.0"),
            port: 10250,
            read_only_port: 0,
            tls_cert_file: String::new(),
            tls_private_key_file: String::new(),
            tls_cipher_suites: Vec::new(),
            tls_curve_preferences: Vec::new(),
            tls_min_version: String::new(),
            rotate_certificates: false,
            server_tls_bootstrap: false,
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            registry_pull_qps: 5,
            registry_burst: 10,
            image_pull_credentials_verification_policy: String::new(),
            preloaded_images_verification_allowlist: Vec::new(),
            event_record_qps: 50,
            event_burst: 100,
            enable_debugging_handlers: true,
            enable_contention_profiling: false,
            healthz_port: 10248,
            healthz_bind_address: s("127.0.0.1"),
            oom_score_adj: -999,
            cluster_domain: String::new(),
            cluster_dns: Vec::new(),
            streaming_connection_idle_timeout: GoDuration::secs(4 * 3600),
            node_status_update_frequency: GoDuration::secs(10),
            node_status_report_frequency: GoDuration::secs(300),
            node_lease_duration_seconds: 40,
            image_minimum_gc_age: GoDuration::secs(120),
            image_maximum_gc_age: GoDuration::ZERO,
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            volume_stats_agg_period: GoDuration::secs(60),
            kubelet_cgroups: String::new(),
            system_cgroups: String::new(),
            cgroup_root: String::new(),
            cgroups_per_qos: true,
            cgroup_driver: s("cgroupfs"),
            cpu_manager_policy: s("none"),
            single_process_oom_kill: None,
            cpu_manager_policy_options: BTreeMap::new(),
            cpu_manager_reconcile_period: GoDuration::secs(10),
            memory_manager_policy: s("None"),
            topology_manager_policy: s("none"),
            topology_manager_scope: s("container"),
            topology_manager_policy_options: BTreeMap::new(),
            qos_reserved: BTreeMap::new(),
            runtime_request_timeout: GoDuration::secs(120),
            hairpin_mode: s("promiscuous-bridge"),
            max_pods: 110,
            pod_cidr: String::new(),
            pod_pids_limit: -1,
            resolv_conf: s("/etc/resolv.conf"),
            run_once: false,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: GoDuration::millis(100),
            node_status_max_images: 50,
            max_open_files: 1_000_000,
            content_type: s("application/vnd.kubernetes.protobuf"),
            kube_api_qps: 50,
            kube_api_burst: 100,
            serialize_image_pulls: true,
            max_parallel_image_pulls: None,
            eviction_hard: default_eviction_hard(),
            eviction_soft: BTreeMap::new(),
            eviction_soft_grace_period: BTreeMap::new(),
            eviction_pressure_transition_period: GoDuration::secs(300),
            eviction_max_pod_grace_period: 0,
            eviction_minimum_reclaim: BTreeMap::new(),
            merge_default_eviction_settings: false,
            pods_per_core: 0,
            enable_controller_attach_detach: true,
            protect_kernel_defaults: false,
            make_iptables_util_chains: true,
            iptables_masquerade_bit: 14,
            iptables_drop_bit: 15,
            feature_gates: BTreeMap::new(),
            fail_swap_on: true,
            memory_swap: MemorySwap::default(),
            container_log_max_size: s("10Mi"),
            container_log_max_files: 5,
            container_log_max_workers: 1,
            container_log_monitor_interval: GoDuration::secs(10),
            config_map_and_secret_change_detection_strategy: s("Watch"),
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            reserved_system_cpus: String::new(),
            show_hidden_metrics_for_version: String::new(),
            system_reserved_cgroup: String::new(),
            kube_reserved_cgroup: String::new(),
            enforce_node_allocatable: vec![s("pods")],
            allowed_unsafe_sysctls: Vec::new(),
            volume_plugin_dir: s("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"),
            provider_id: String::new(),
            kernel_memcg_notification: false,
            logging: Logging::default(),
            enable_system_log_handler: true,
            enable_system_log_query: false,
            shutdown_grace_period: GoDuration::ZERO,
            shutdown_grace_period_critical_pods: GoDuration::ZERO,
            shutdown_grace_period_by_pod_priority: Vec::new(),
            crash_loop_back_off: CrashLoopBackOff::default(),
            reserved_memory: Vec::new(),
            enable_profiling_handler: true,
            enable_debug_flags_handler: true,
            seccomp_default: false,
            memory_throttling_factor: 0.9,
            memory_reservation_policy: s("None"),
            register_with_taints: Vec::new(),
            register_node: true,
            tracing: None,
            local_storage_capacity_isolation: true,
            container_runtime_endpoint: s("unix:///run/containerd/containerd.sock"),
            image_service_endpoint: String::new(),
            fail_cgroup_v1: true,
            user_namespaces: None,
        }
    }
}

/// The default hard eviction thresholds of Linux.
pub fn default_eviction_hard() -> BTreeMap<String, String> {
    [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ]
    .map(|(signal, value)| (signal.to_owned(), value.to_owned()))
    .into()
}

impl KubeletConfiguration {
    /// Replaces zero values of a file by defaults: upstream does not distinguish "0s", "" and 0 from absent
    /// fields, and kubeadm writes "0s" everywhere.
    pub(crate) fn fill_zeroes(&mut self) {
        fn fill_if_zero<T: Default + PartialEq>(value: &mut T, default: T) {
            if *value == T::default() {
                *value = default;
            }
        }
        let default = Self::default();
        macro_rules! fill {
            ($($($field:ident).+),+ $(,)?) => {
                $(fill_if_zero(&mut self.$($field).+, default.$($field).+);)+
            };
        }
        fill!(
            pod_logs_dir,
            sync_frequency,
            file_check_frequency,
            http_check_frequency,
            address,
            port,
            registry_burst,
            event_burst,
            healthz_bind_address,
            streaming_connection_idle_timeout,
            node_status_update_frequency,
            node_status_report_frequency,
            node_lease_duration_seconds,
            image_minimum_gc_age,
            volume_stats_agg_period,
            cgroup_driver,
            cpu_manager_policy,
            cpu_manager_reconcile_period,
            memory_manager_policy,
            topology_manager_policy,
            topology_manager_scope,
            runtime_request_timeout,
            hairpin_mode,
            max_pods,
            max_open_files,
            content_type,
            kube_api_burst,
            eviction_pressure_transition_period,
            container_log_max_size,
            config_map_and_secret_change_detection_strategy,
            volume_plugin_dir,
            memory_reservation_policy,
            container_runtime_endpoint,
            authentication.webhook.cache_ttl,
            authorization.mode,
            authorization.webhook.cache_authorized_ttl,
            authorization.webhook.cache_unauthorized_ttl,
            logging.format,
            logging.flush_frequency,
        );
        if self.pod_pids_limit < 0 {
            self.pod_pids_limit = -1;
        }
    }

    /// Sets defaults that depend on feature gates.
    pub(crate) fn fill_gated(&mut self, gates: &FeatureGates) {
        if gates.enabled("KubeletCrashLoopBackOffMax") {
            self.crash_loop_back_off
                .max_container_restart_period
                .get_or_insert(GoDuration::secs(300));
        }
        if gates.enabled("KubeletEnsureSecretPulledImages")
            && self.image_pull_credentials_verification_policy.is_empty()
        {
            self.image_pull_credentials_verification_policy =
                "NeverVerifyPreloadedImages".to_owned();
        }
    }

    /// The defaults without a configuration file: older, less secure ones that upstream keeps for its
    /// command line.
    pub(crate) fn without_file() -> Self {
        let mut settings = Self { read_only_port: 10255, ..Self::default() };
        settings.authentication.anonymous.enabled = true;
        settings.authentication.webhook.enabled = false;
        settings.authorization.mode = "AlwaysAllow".to_owned();
        settings
    }
}
