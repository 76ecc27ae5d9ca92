//! The effect of each field of `KubeProxyConfiguration`, as `effects.rs` has it for the kubelet.

use longshore_proxy::config::{KubeProxyConfiguration, Mode};

use crate::effects::Effect::Full;
use crate::effects::{Effect, Effects, none};

/// All fields by name, with their effect.
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
    ("enableProfiling", Full),
    none!("showHiddenMetricsForVersion", show_hidden_metrics_for_version, "no metric is hidden"),
    // other modes are errors: see `unprotected` and `checked`
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

/// Flags without effect for all values; none is a protection.
#[cfg(test)]
pub(super) static IGNORED_FLAGS: &[(&str, &str)] = &[
    ("boot-id-file", "the machine's files are where they always are"),
    ("machine-id-file", "the machine's files are where they always are"),
];

/// Settings that ask for an unsupported protection.
pub(super) fn unprotected(settings: &KubeProxyConfiguration) -> Option<String> {
    let open = settings.mode == Mode::Userspace && !settings.node_port_addresses.is_empty();
    open.then(|| {
        "nodePortAddresses: in mode userspace node ports are served at all addresses".to_owned()
    })
}
