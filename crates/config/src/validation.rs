//! Validation of settings. The rules are upstream's; each error names its field.

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;

use super::{FeatureGates, GoDuration, KubeletConfiguration, Tracing, cgroups, labels, quantities};

mod garbage;

pub(super) use garbage::container_faults;

/// Collects errors.
struct Faults(Vec<String>);

impl Faults {
    fn unless(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.0.push(fault());
        }
    }

    fn range(&mut self, field: &str, value: impl Into<i64>, range: RangeInclusive<i64>) {
        let value = value.into();
        self.unless(range.contains(&value), || {
            format!(
                "{field}: {value} must be between {} and {}, inclusive",
                range.start(),
                range.end()
            )
        });
    }

    fn at_least(&mut self, field: &str, value: impl Into<i64>, least: i64) {
        let value = value.into();
        self.unless(value >= least, || format!("{field}: {value} must be {least} or greater"));
    }

    fn one_of(&mut self, field: &str, value: &str, allowed: &[&str]) {
        self.unless(allowed.contains(&value), || {
            format!("{field}: {value:?} must be one of {}", allowed.join(", "))
        });
    }

    fn address(&mut self, field: &str, value: &str) {
        self.unless(value.parse::<IpAddr>().is_ok(), || {
            format!("{field}: {value:?} is not an IP address")
        });
    }
}

/// All errors of `settings` with `gates`, independent of the machine.
pub(super) fn faults(settings: &KubeletConfiguration, gates: &FeatureGates) -> Vec<String> {
    let mut faults = Faults(Vec::new());
    numbers(settings, &mut faults);
    durations(settings, gates, &mut faults);
    words(settings, gates, &mut faults);
    images(settings, gates, &mut faults);
    garbage::images(settings, &mut faults);
    faults.0.extend(cgroups::faults(settings, gates));
    shutdown(settings, gates, &mut faults);
    memory(settings, &mut faults);
    logs(settings, gates, &mut faults);
    for (index, taint) in settings.register_with_taints.iter().enumerate() {
        if let Err(reason) = labels::check_taint(taint) {
            faults.0.push(format!("registerWithTaints[{index}]: {reason}"));
        }
        faults.unless(taint.time_added.is_none(), || {
            format!("registerWithTaints[{index}].timeAdded: must not be set")
        });
    }
    faults.0
}

fn numbers(s: &KubeletConfiguration, f: &mut Faults) {
    f.at_least("nodeLeaseDurationSeconds", s.node_lease_duration_seconds, 1);
    f.at_least("eventBurst", s.event_burst, 0);
    f.at_least("eventRecordQPS", s.event_record_qps, 0);
    f.at_least("kubeAPIBurst", s.kube_api_burst, 0);
    f.at_least("kubeAPIQPS", s.kube_api_qps, 0);
    f.at_least("registryBurst", s.registry_burst, 0);
    f.at_least("registryPullQPS", s.registry_pull_qps, 0);
    f.at_least("nodeStatusMaxImages", s.node_status_max_images, -1);
    f.at_least("maxOpenFiles", s.max_open_files, 0);
    f.at_least("maxPods", s.max_pods, 0);
    f.at_least("podsPerCore", s.pods_per_core, 0);
    f.at_least("containerLogMaxWorkers", s.container_log_max_workers, 1);
    f.at_least("containerLogMaxFiles", s.container_log_max_files, 2);
    f.range("port", s.port, 1..=65535);
    f.range("healthzPort", s.healthz_port, 0..=65535);
    f.range("readOnlyPort", s.read_only_port, 0..=65535);
    f.range("oomScoreAdj", s.oom_score_adj, -1000..=1000);
    f.range("iptablesDropBit", s.iptables_drop_bit, 0..=31);
    f.range("iptablesMasqueradeBit", s.iptables_masquerade_bit, 0..=31);
}

fn durations(s: &KubeletConfiguration, gates: &FeatureGates, f: &mut Faults) {
    f.unless(s.container_log_monitor_interval >= GoDuration::secs(3), || {
        format!(
            "containerLogMonitorInterval: {} must be 3s or longer",
            s.container_log_monitor_interval
        )
    });
    let (quota, usual) = (s.cpu_cfs_quota_period, GoDuration::millis(100));
    if gates.enabled("CustomCPUCFSQuotaPeriod") {
        f.unless((GoDuration::millis(1)..=GoDuration::secs(1)).contains(&quota), || {
            format!("cpuCFSQuotaPeriod: {quota} must be between 1ms and 1s, inclusive")
        });
    } else {
        f.unless(quota == usual, || {
            format!("cpuCFSQuotaPeriod: {quota} needs the feature gate CustomCPUCFSQuotaPeriod")
        });
    }
    match s.crash_loop_back_off.max_container_restart_period {
        Some(longest) if gates.enabled("KubeletCrashLoopBackOffMax") => {
            f.unless((GoDuration::secs(1)..=GoDuration::secs(300)).contains(&longest), || {
                format!("crashLoopBackOff.maxContainerRestartPeriod: {longest} must be between 1s and 5m0s, inclusive")
            });
        }
        Some(_) => f.0.push(
            "crashLoopBackOff.maxContainerRestartPeriod: needs the feature gate KubeletCrashLoopBackOffMax".to_owned(),
        ),
        None => {}
    }
    // an interval of 0 would be a busy loop
    for (field, value) in [
        ("syncFrequency", s.sync_frequency),
        ("fileCheckFrequency", s.file_check_frequency),
        ("httpCheckFrequency", s.http_check_frequency),
        ("nodeStatusUpdateFrequency", s.node_status_update_frequency),
        ("nodeStatusReportFrequency", s.node_status_report_frequency),
        ("runtimeRequestTimeout", s.runtime_request_timeout),
    ] {
        f.unless(value > GoDuration::ZERO, || {
            format!("{field}: {value} must be greater than zero")
        });
    }
}

fn words(s: &KubeletConfiguration, gates: &FeatureGates, f: &mut Faults) {
    f.address("address", &s.address);
    f.address("healthzBindAddress", &s.healthz_bind_address);
    f.one_of("authorization.mode", &s.authorization.mode, &["AlwaysAllow", "Webhook"]);
    f.one_of("cgroupDriver", &s.cgroup_driver, &["cgroupfs", "systemd"]);
    f.one_of("hairpinMode", &s.hairpin_mode, &["none", "hairpin-veth", "promiscuous-bridge"]);
    f.one_of(
        "topologyManagerPolicy",
        &s.topology_manager_policy,
        &["none", "best-effort", "restricted", "single-numa-node"],
    );
    f.one_of("topologyManagerScope", &s.topology_manager_scope, &["container", "pod"]);
    f.one_of(
        "configMapAndSecretChangeDetectionStrategy",
        &s.config_map_and_secret_change_detection_strategy,
        &["Get", "Cache", "Watch"],
    );
    f.one_of(
        "memoryReservationPolicy",
        &s.memory_reservation_policy,
        &["None", "TieredReservation"],
    );
    f.one_of(
        "memorySwap.swapBehavior",
        &s.memory_swap.swap_behavior,
        &["", "LimitedSwap", "NoSwap"],
    );
    f.unless(s.system_cgroups.is_empty() || !s.cgroup_root.is_empty(), || {
        "systemCgroups: cgroupRoot must be set with it".to_owned()
    });
    f.unless(!s.container_runtime_endpoint.is_empty(), || {
        "containerRuntimeEndpoint: must be set".to_owned()
    });
    f.unless(!s.server_tls_bootstrap || gates.enabled("RotateKubeletServerCertificate"), || {
        "serverTLSBootstrap: needs the feature gate RotateKubeletServerCertificate".to_owned()
    });
    f.unless(s.tls_cert_file.is_empty() == s.tls_private_key_file.is_empty(), || {
        "tlsCertFile and tlsPrivateKeyFile: must be set together".to_owned()
    });
    for suite in s.tls_cipher_suites.iter().filter(|suite| !longshore_tls::is_known_suite(suite)) {
        f.0.push(format!("tlsCipherSuites: cipher suite {suite} not supported or doesn't exist"));
    }
    let curves = &s.tls_curve_preferences;
    for (at, curve) in curves.iter().enumerate() {
        let is_known = longshore_tls::is_known_curve(*curve);
        f.unless(is_known, || {
            format!("tlsCurvePreferences: curve preference {curve} not supported")
        });
        f.unless(!curves[..at].contains(curve), || {
            format!("tlsCurvePreferences: duplicate curve preference {curve}")
        });
    }
    f.one_of(
        "tlsMinVersion",
        &s.tls_min_version,
        &["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"],
    );
    f.unless(!s.enable_system_log_query || s.enable_system_log_handler, || {
        "enableSystemLogQuery: needs enableSystemLogHandler".to_owned()
    });
}

fn images(s: &KubeletConfiguration, gates: &FeatureGates, f: &mut Faults) {
    if let Some(parallel) = s.max_parallel_image_pulls {
        f.at_least("maxParallelImagePulls", parallel, 1);
        f.unless(parallel < 2 || !s.serialize_image_pulls, || {
            "maxParallelImagePulls: must not be larger than 1 unless serializeImagePulls is false"
                .to_owned()
        });
    }
    let (policy, allowlist) =
        (&s.image_pull_credentials_verification_policy, &s.preloaded_images_verification_allowlist);
    if gates.enabled("KubeletEnsureSecretPulledImages") {
        f.one_of(
            "imagePullCredentialsVerificationPolicy",
            policy,
            &[
                "NeverVerify",
                "NeverVerifyPreloadedImages",
                "NeverVerifyAllowlistedImages",
                "AlwaysVerify",
            ],
        );
        f.unless(allowlist.is_empty() || policy == "NeverVerifyAllowlistedImages", || {
            "preloadedImagesVerificationAllowlist: imagePullCredentialsVerificationPolicy must be \
             NeverVerifyAllowlistedImages with it"
                .to_owned()
        });
    } else {
        f.unless(policy.is_empty() && allowlist.is_empty(), || {
            "imagePullCredentialsVerificationPolicy and preloadedImagesVerificationAllowlist: need the feature gate \
             KubeletEnsureSecretPulledImages"
                .to_owned()
        });
    }
}

fn shutdown(s: &KubeletConfiguration, gates: &FeatureGates, f: &mut Faults) {
    let (zero, second) = (GoDuration::ZERO, GoDuration::secs(1));
    let (whole, critical) = (s.shutdown_grace_period, s.shutdown_grace_period_critical_pods);
    if gates.enabled("GracefulNodeShutdown") {
        f.unless(critical <= whole, || {
            format!("shutdownGracePeriodCriticalPods: {critical} must not be longer than shutdownGracePeriod, {whole}")
        });
        for (field, value) in
            [("shutdownGracePeriod", whole), ("shutdownGracePeriodCriticalPods", critical)]
        {
            f.unless(value == zero || value >= second, || {
                format!("{field}: {value} must be zero, or 1s or longer")
            });
        }
    } else {
        f.unless(whole <= zero && critical <= zero, || {
            "shutdownGracePeriod and shutdownGracePeriodCriticalPods: need the feature gate GracefulNodeShutdown".to_owned()
        });
    }
    if !s.shutdown_grace_period_by_pod_priority.is_empty() {
        f.unless(gates.enabled("GracefulNodeShutdownBasedOnPodPriority"), || {
            "shutdownGracePeriodByPodPriority: needs the feature gate GracefulNodeShutdownBasedOnPodPriority".to_owned()
        });
        f.unless(whole <= zero && critical <= zero, || {
            "shutdownGracePeriodByPodPriority: excludes shutdownGracePeriod and shutdownGracePeriodCriticalPods".to_owned()
        });
    }
}

fn memory(s: &KubeletConfiguration, f: &mut Faults) {
    let factor = s.memory_throttling_factor;
    f.unless(factor > 0.0 && factor <= 1.0, || {
        format!("memoryThrottlingFactor: {factor} must be greater than 0 and not greater than 1")
    });
    let mut seen = HashSet::new();
    for (index, reservation) in s.reserved_memory.iter().enumerate() {
        for (kind, quantity) in &reservation.limits {
            let field = format!("reservedMemory[{index}].limits[{kind}]");
            f.unless(kind == "memory" || kind.starts_with("hugepages-"), || {
                format!("{field}: must be memory or hugepages-<size>")
            });
            f.unless(quantities::amount(&quantity.0).is_some_and(|amount| amount > 0), || {
                format!("{field}: {:?} is not a quantity greater than zero", quantity.0)
            });
            f.unless(seen.insert((reservation.numa_node, kind)), || {
                format!("{field}: NUMA node {} has it twice", reservation.numa_node)
            });
        }
    }
    if let Some(ids) = s.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod) {
        f.unless(ids >= 65536 && ids % 65536 == 0 && ids <= i64::from(u32::MAX), || {
            format!(
                "userNamespaces.idsPerPod: {ids} must be a multiple of 65536, from 65536 to {}",
                u32::MAX
            )
        });
    }
}

fn logs(s: &KubeletConfiguration, gates: &FeatureGates, f: &mut Faults) {
    f.unless(quantities::amount(&s.container_log_max_size).is_some_and(|size| size > 0), || {
        format!("containerLogMaxSize: {:?} is no size greater than zero", s.container_log_max_size)
    });
    let directory = &s.pod_logs_dir;
    let clean = Path::new(directory)
        .components()
        .all(|part| !matches!(part, std::path::Component::ParentDir))
        && !directory.contains("//")
        && !directory.contains("/./")
        && (directory == "/" || !directory.ends_with('/'));
    f.unless(directory.starts_with('/') && directory.is_ascii() && clean, || {
        format!(
            "podLogsDir: {directory:?} must be an absolute, normalized path of ASCII characters"
        )
    });
    for fault in s.logging.settings("logging.", gates).err().into_iter().flatten() {
        f.0.push(fault);
    }
    f.0.extend(s.tracing.iter().flat_map(tracing_faults));
}

/// The faults of `tracing`, in the words of upstream.
fn tracing_faults(tracing: &Tracing) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(rate) = tracing.sampling_rate_per_million {
        let why = match rate {
            ..0 => Some("sampling rate must be positive"),
            1_000_001.. => {
                Some("sampling rate per million must be less than or equal to one million")
            }
            _ => None,
        };
        let fault = |why| format!("tracing.samplingRatePerMillion: Invalid value: {rate}: {why}");
        faults.extend(why.map(fault));
    }
    if let Some(endpoint) = &tracing.endpoint
        && let Some((scheme, _)) = endpoint.split_once("//")
        && !matches!(scheme, "dns:" | "unix:" | "unix-abstract:")
    {
        let scheme = scheme.trim_end_matches(':');
        faults.push(format!(
            "tracing.endpoint: Invalid value: {endpoint:?}: unsupported scheme: {scheme}.  Options are none, dns, \
             unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md"
        ));
    }
    faults
}
