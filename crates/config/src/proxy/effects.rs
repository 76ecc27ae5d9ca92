//! What each field of `KubeProxyConfiguration` does here, as `config/effects.rs` has it for the
//! kubelet's: what does nothing protects nothing, or is refused.

use longshore_proxy::config::{KubeProxyConfiguration, Mode};

use crate::effects::Effect::Full;
use crate::effects::{Effect, Effects, none};

/// Every field by its name in a file, with its effect.
#[rustfmt::skip]
pub(super) static EFFECTS: Effects<KubeProxyConfiguration> = &[
    ("featureGates", Full),
    ("clientConnection", Full),
    ("logging", Full),
    ("hostnameOverride", Full),
    ("bindAddress", Full),
    ("healthzBindAddress", Full),
    ("metricsBindAddress", Full),
    ("bindAddressHardFail", Full),
    none!("enableProfiling", enable_profiling, "it is for Go's profiler"),
    none!("showHiddenMetricsForVersion", show_hidden_metrics_for_version, "no metric is hidden"),
    // another mode than these is refused: see `unprotected` and `checked`
    ("mode", Full),
    ("iptables", Full),
    none!("ipvs", ipvs, "there is no mode ipvs"),
    none!("nftables", nftables, "there is no mode nftables"),
    none!("winkernel", winkernel, "it is for Windows"),
    ("detectLocalMode", Full),
    ("detectLocal", Full),
    ("clusterCIDR", Full),
    ("nodePortAddresses", Full),
    ("oomScoreAdj", Full),
    ("conntrack", Full),
    none!("configSyncPeriod", config_sync_period, "objects are watched"),
    ("portRange", Full),
    none!("windowsRunAsService", windows_run_as_service, "it is for Windows"),
];

/// The flags that are taken and do nothing, whatever their values: none of them protects anything.
#[cfg(test)]
pub(super) static IGNORED_FLAGS: &[(&str, &str)] = &[
    ("vmodule", "RUST_LOG sets levels by module"),
    ("log-text-info-buffer-size", "each line is written at once"),
    ("log-json-info-buffer-size", "each line is written at once"),
    ("boot-id-file", "the machine's files are where they always are"),
    ("machine-id-file", "the machine's files are where they always are"),
];

/// Which setting asks for a protection that would not be in force.
pub(super) fn unprotected(settings: &KubeProxyConfiguration) -> Option<String> {
    let open = settings.mode == Mode::Userspace && !settings.node_port_addresses.is_empty();
    open.then(|| {
        "nodePortAddresses: in mode userspace node ports are served at all addresses".to_owned()
    })
}
