//! The effect of each field of `KubeletConfiguration`, and of each flag without a field. Settings
//! without effect cause a warning. Settings that ask for a protection which is not supported are
//! errors.

use super::flags::KubeletFlags;
use super::kubelet::KubeletConfiguration;

/// The effect of a field.
#[derive(Clone, Copy)]
pub(super) enum Effect<T: 'static = KubeletConfiguration> {
    /// As in upstream's documentation.
    Full,
    /// None, and no protection depends on it: comparison with the default, and the reason.
    None(fn(&T, &T) -> bool, &'static str),
}
use Effect::Full;

/// A table of fields by their names in a file.
pub(super) type Effects<T> = &'static [(&'static str, Effect<T>)];

/// A row for a field without effect.
macro_rules! none {
    ($name:literal, $($field:ident).+, $why:literal) => {
        ($name, Effect::None(|a, b| a.$($field).+ == b.$($field).+, $why))
    };
}
pub(super) use none;

/// Every field by its name in a file, with its effect.
#[rustfmt::skip]
pub(super) static EFFECTS: Effects<KubeletConfiguration> = &[
    ("enableServer", Full),
    ("staticPodPath", Full),
    ("podLogsDir", Full),
    // without change notifications: configMapAndSecretChangeDetectionStrategy
    ("syncFrequency", Full),
    ("fileCheckFrequency", Full),
    ("httpCheckFrequency", Full),
    ("staticPodURL", Full),
    ("staticPodURLHeader", Full),
    ("address", Full),
    ("port", Full),
    ("readOnlyPort", Full),
    ("tlsCertFile", Full),
    ("tlsPrivateKeyFile", Full),
    ("tlsCipherSuites", Full),
    ("tlsCurvePreferences", Full),
    ("tlsMinVersion", Full),
    ("rotateCertificates", Full),
    ("serverTLSBootstrap", Full),
    ("authentication", Full),
    ("authorization", Full),
    ("registryPullQPS", Full),
    ("registryBurst", Full),
    ("imagePullCredentialsVerificationPolicy", Full),
    ("preloadedImagesVerificationAllowlist", Full),
    ("eventRecordQPS", Full),
    ("eventBurst", Full),
    ("enableDebuggingHandlers", Full),
    none!("enableContentionProfiling", enable_contention_profiling, "it is for Go's profiler"),
    ("healthzPort", Full),
    ("healthzBindAddress", Full),
    ("oomScoreAdj", Full),
    ("clusterDomain", Full),
    ("clusterDNS", Full),
    ("streamingConnectionIdleTimeout", Full),
    ("nodeStatusUpdateFrequency", Full),
    ("nodeStatusReportFrequency", Full),
    ("nodeLeaseDurationSeconds", Full),
    ("imageMinimumGCAge", Full),
    ("imageMaximumGCAge", Full),
    ("imageGCHighThresholdPercent", Full),
    ("imageGCLowThresholdPercent", Full),
    ("volumeStatsAggPeriod", Full),
    ("kubeletCgroups", Full),
    ("systemCgroups", Full),
    ("cgroupRoot", Full),
    ("cgroupsPerQOS", Full),
    ("cgroupDriver", Full),
    ("cpuManagerPolicy", Full),
    ("singleProcessOOMKill", Full),
    ("cpuManagerPolicyOptions", Full),
    ("cpuManagerReconcilePeriod", Full),
    ("memoryManagerPolicy", Full),
    ("topologyManagerPolicy", Full),
    ("topologyManagerScope", Full),
    ("topologyManagerPolicyOptions", Full),
    ("qosReserved", Full),
    ("runtimeRequestTimeout", Full),
    none!("hairpinMode", hairpin_mode, "it is for the CNI plugins to set, upstream too"),
    ("maxPods", Full),
    // until the node object has one
    ("podCIDR", Full),
    ("podPidsLimit", Full),
    ("resolvConf", Full),
    ("runOnce", Full),
    ("cpuCFSQuota", Full),
    ("cpuCFSQuotaPeriod", Full),
    ("nodeStatusMaxImages", Full),
    ("maxOpenFiles", Full),
    none!("contentType", content_type, "JSON is spoken with the apiserver"),
    ("kubeAPIQPS", Full),
    ("kubeAPIBurst", Full),
    ("serializeImagePulls", Full),
    ("maxParallelImagePulls", Full),
    ("evictionHard", Full),
    ("evictionSoft", Full),
    ("evictionSoftGracePeriod", Full),
    ("evictionPressureTransitionPeriod", Full),
    ("evictionMaxPodGracePeriod", Full),
    ("evictionMinimumReclaim", Full),
    ("mergeDefaultEvictionSettings", Full),
    ("podsPerCore", Full),
    ("enableControllerAttachDetach", Full),
    ("protectKernelDefaults", Full),
    ("makeIPTablesUtilChains", Full),
    none!("iptablesMasqueradeBit", iptables_masquerade_bit, "upstream does not use it any more"),
    none!("iptablesDropBit", iptables_drop_bit, "upstream does not use it any more"),
    ("featureGates", Full),
    ("failSwapOn", Full),
    ("memorySwap", Full),
    ("containerLogMaxSize", Full),
    ("containerLogMaxFiles", Full),
    ("containerLogMaxWorkers", Full),
    ("containerLogMonitorInterval", Full),
    ("configMapAndSecretChangeDetectionStrategy", Full),
    ("systemReserved", Full),
    ("kubeReserved", Full),
    ("reservedSystemCPUs", Full),
    none!("showHiddenMetricsForVersion", show_hidden_metrics_for_version, "no metric is hidden"),
    ("systemReservedCgroup", Full),
    ("kubeReservedCgroup", Full),
    ("enforceNodeAllocatable", Full),
    ("allowedUnsafeSysctls", Full),
    ("volumePluginDir", Full),
    ("providerID", Full),
    ("kernelMemcgNotification", Full),
    ("logging", Full),
    ("enableSystemLogHandler", Full),
    ("enableSystemLogQuery", Full),
    ("shutdownGracePeriod", Full),
    ("shutdownGracePeriodCriticalPods", Full),
    ("shutdownGracePeriodByPodPriority", Full),
    ("crashLoopBackOff", Full),
    ("reservedMemory", Full),
    ("enableProfilingHandler", Full),
    ("enableDebugFlagsHandler", Full),
    ("seccompDefault", Full),
    ("memoryThrottlingFactor", Full),
    ("memoryReservationPolicy", Full),
    ("registerWithTaints", Full),
    ("registerNode", Full),
    ("tracing", Full),
    ("localStorageCapacityIsolation", Full),
    ("containerRuntimeEndpoint", Full),
    ("imageServiceEndpoint", Full),
    ("failCgroupV1", Full),
    ("userNamespaces", Full),
];

/// A warning for each field that is set without effect.
pub(super) fn without_effect(settings: &KubeletConfiguration) -> Vec<String> {
    unused(EFFECTS, settings)
}

/// The same for any table.
pub(super) fn unused<T: Default>(table: Effects<T>, settings: &T) -> Vec<String> {
    let default = T::default();
    let line = |(name, effect): &(&str, Effect<T>)| match effect {
        Effect::None(agree, why) if !agree(settings, &default) => {
            Some(format!("{name} is set and has no effect: {why}"))
        }
        _ => None,
    };
    table.iter().filter_map(line).collect()
}

/// An error for each flag without a field that asks for an unsupported protection.
pub(super) fn unprotected_flags(flags: &KubeletFlags) -> Option<String> {
    let open = flags.strict_streams && flags.kubelet.authorization.mode != "Webhook";
    open.then(|| {
        "--authorization-strict-streams: authorization.mode must be Webhook with it".to_owned()
    })
}

/// Flags without effect for all values; none is a protection.
#[cfg(test)]
pub(super) static IGNORED_FLAGS: &[(&str, &str)] = &[
    ("experimental-mounter-path", "upstream does not use it any more"),
    ("housekeeping-interval", "stats are read on demand"),
    ("max-housekeeping-interval", "stats are read on demand"),
    ("application-metrics-count-limit", "no application metrics are read"),
    ("boot-id-file", "the machine's files are where they always are"),
    ("container-hints", "no hints are read"),
    ("containerd", "containerRuntimeEndpoint counts"),
    ("enable-load-reader", "there is no such reader"),
    ("event-storage-age-limit", "no events of cAdvisor are kept"),
    ("event-storage-event-limit", "no events of cAdvisor are kept"),
    ("global-housekeeping-interval", "stats are read on demand"),
    ("log-cadvisor-usage", "there is no cAdvisor"),
    ("machine-id-file", "the machine's files are where they always are"),
    ("storage-driver-user", "stats are not stored"),
    ("storage-driver-password", "stats are not stored"),
    ("storage-driver-host", "stats are not stored"),
    ("storage-driver-db", "stats are not stored"),
    ("storage-driver-table", "stats are not stored"),
    ("storage-driver-secure", "stats are not stored"),
    ("storage-driver-buffer-duration", "stats are not stored"),
    ("containerd-namespace", "the runtime knows its own"),
];
