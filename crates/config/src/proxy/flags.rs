//! All flags of `kube-proxy` 1.36 as data.
//!
//! Current limitations: flags marked `Ignored` have no effect: those of a library that upstream links.

use super::ProxyFlags;
use crate::pflag::Target::{
    Amount, Bool, Duration, Float, Gates, Ignored, Int, Ip, List, Text, VModule, Verbosity, Word,
};
use crate::pflag::{Flag, Target};

/// A flag that applies besides a configuration file.
const fn own(name: &'static str, target: Target<ProxyFlags>) -> Flag<ProxyFlags> {
    Flag { name, target, deprecated: false }
}

/// A flag with a field: ignored with a configuration file.
const fn twin(name: &'static str, target: Target<ProxyFlags>) -> Flag<ProxyFlags> {
    Flag { name, target, deprecated: true }
}

pub(super) static PROXY_FLAGS: &[Flag<ProxyFlags>] = &[
    own("help", Bool(|s| &mut s.help)),
    own("version", Word(|s| &mut s.version)),
    own("config", Text(|s| &mut s.config)),
    own("write-config-to", Text(|s| &mut s.write_config_to)),
    own("cleanup", Bool(|s| &mut s.cleanup)),
    own("init-only", Bool(|s| &mut s.init_only)),
    own("master", Text(|s| &mut s.master)),
    own("hostname-override", Text(|s| &mut s.hostname_override)),
    // logging
    own("v", Verbosity(|s| &mut s.logging.verbosity)),
    own("vmodule", VModule(|s| &mut s.logging.vmodule)),
    own("logging-format", Text(|s| &mut s.logging.format)),
    own("log-flush-frequency", Duration(|s| &mut s.logging.flush_frequency)),
    own("log-text-split-stream", Bool(|s| &mut s.logging.options.text.split_stream)),
    own("log-text-info-buffer-size", Amount(|s| &mut s.logging.options.text.info_buffer_size)),
    own("log-json-split-stream", Bool(|s| &mut s.logging.options.json.split_stream)),
    own("log-json-info-buffer-size", Amount(|s| &mut s.logging.options.json.info_buffer_size)),
    own("boot-id-file", Ignored),
    own("machine-id-file", Ignored),
    // flags with a configuration field
    twin("feature-gates", Gates(|s| &mut s.proxy.feature_gates)),
    twin("kubeconfig", Text(|s| &mut s.proxy.client_connection.kubeconfig)),
    twin("kube-api-content-type", Text(|s| &mut s.proxy.client_connection.content_type)),
    twin("kube-api-burst", Int(|s| &mut s.proxy.client_connection.burst)),
    twin("kube-api-qps", Float(|s| &mut s.proxy.client_connection.qps)),
    twin("bind-address", Ip(|s| &mut s.proxy.bind_address)),
    twin("healthz-bind-address", Text(|s| &mut s.proxy.healthz_bind_address)),
    twin("healthz-port", Int(|s| &mut s.healthz_port)),
    twin("metrics-bind-address", Text(|s| &mut s.proxy.metrics_bind_address)),
    twin("metrics-port", Int(|s| &mut s.metrics_port)),
    twin("bind-address-hard-fail", Bool(|s| &mut s.proxy.bind_address_hard_fail)),
    twin("profiling", Bool(|s| &mut s.proxy.enable_profiling)),
    twin("show-hidden-metrics-for-version", Text(|s| &mut s.proxy.show_hidden_metrics_for_version)),
    twin("proxy-mode", Text(|s| &mut s.mode)),
    twin("iptables-masquerade-bit", Int(|s| &mut s.proxy.iptables.masquerade_bit)),
    twin("masquerade-all", Bool(|s| &mut s.proxy.iptables.masquerade_all)),
    twin("iptables-localhost-nodeports", Bool(|s| &mut s.proxy.iptables.localhost_node_ports)),
    twin("iptables-sync-period", Duration(|s| &mut s.proxy.iptables.sync_period)),
    twin("iptables-min-sync-period", Duration(|s| &mut s.proxy.iptables.min_sync_period)),
    twin("ipvs-sync-period", Duration(|s| &mut s.proxy.ipvs.sync_period)),
    twin("ipvs-min-sync-period", Duration(|s| &mut s.proxy.ipvs.min_sync_period)),
    twin("ipvs-scheduler", Text(|s| &mut s.proxy.ipvs.scheduler)),
    twin("ipvs-exclude-cidrs", List(|s| &mut s.proxy.ipvs.exclude_cidrs)),
    twin("ipvs-strict-arp", Bool(|s| &mut s.proxy.ipvs.strict_arp)),
    twin("ipvs-tcp-timeout", Duration(|s| &mut s.proxy.ipvs.tcp_timeout)),
    twin("ipvs-tcpfin-timeout", Duration(|s| &mut s.proxy.ipvs.tcp_fin_timeout)),
    twin("ipvs-udp-timeout", Duration(|s| &mut s.proxy.ipvs.udp_timeout)),
    twin("detect-local-mode", Text(|s| &mut s.detect_local_mode)),
    twin("pod-bridge-interface", Text(|s| &mut s.proxy.detect_local.bridge_interface)),
    twin("pod-interface-name-prefix", Text(|s| &mut s.proxy.detect_local.interface_name_prefix)),
    twin("cluster-cidr", Text(|s| &mut s.proxy.cluster_cidr)),
    twin("nodeport-addresses", List(|s| &mut s.proxy.node_port_addresses)),
    twin("oom-score-adj", Int(|s| &mut s.proxy.oom_score_adj)),
    twin("conntrack-max-per-core", Int(|s| &mut s.proxy.conntrack.max_per_core)),
    twin("conntrack-min", Int(|s| &mut s.proxy.conntrack.min)),
    twin(
        "conntrack-tcp-timeout-established",
        Duration(|s| &mut s.proxy.conntrack.tcp_established_timeout),
    ),
    twin(
        "conntrack-tcp-timeout-close-wait",
        Duration(|s| &mut s.proxy.conntrack.tcp_close_wait_timeout),
    ),
    twin("conntrack-tcp-be-liberal", Bool(|s| &mut s.proxy.conntrack.tcp_be_liberal)),
    twin("conntrack-udp-timeout", Duration(|s| &mut s.proxy.conntrack.udp_timeout)),
    twin("conntrack-udp-timeout-stream", Duration(|s| &mut s.proxy.conntrack.udp_stream_timeout)),
    twin("config-sync-period", Duration(|s| &mut s.proxy.config_sync_period)),
    // of the userspace mode, as in the last release that had it
    twin("proxy-port-range", Text(|s| &mut s.proxy.port_range)),
];
