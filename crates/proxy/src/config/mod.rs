//! `KubeProxyConfiguration` of kubeproxy.config.k8s.io/v1alpha1 as plain data: every field of
//! Kubernetes 1.36 with upstream's default; what a field means is upstream's reference
//! documentation. From a tree of values to checked settings ([`KubeProxyConfiguration::decode`]),
//! and on to what rules depend on ([`KubeProxyConfiguration::settings`]). Reading files and flags
//! is the daemon's.
//!
//! Current limitations: `ipvs`, `nftables` and `winkernel` are read and checked, and not used.
#![allow(missing_docs, reason = "the fields are upstream's, and documented there")]

mod decode;
mod sections;
mod settings;
#[cfg(test)]
mod tests;
mod validation;

use std::collections::BTreeMap;

use longshore_duration::GoDuration;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use decode::ConfigError;
pub use sections::{
    ClientConnection, Conntrack, DetectLocal, IpTables, Ipvs, LocalMode, Mode, NfTables, Winkernel,
};
pub use settings::Machine;

/// kube-proxy's settings, complete: a field that a file leaves out has its default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct KubeProxyConfiguration {
    pub feature_gates: BTreeMap<String, bool>,
    pub client_connection: ClientConnection,
    /// As it was given: the daemon has one way of logging, and reads this as the kubelet's.
    pub logging: Value,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: Mode,
    pub iptables: IpTables,
    pub ipvs: Ipvs,
    pub nftables: NfTables,
    pub winkernel: Winkernel,
    pub detect_local_mode: LocalMode,
    pub detect_local: DetectLocal,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub node_port_addresses: Vec<String>,
    pub oom_score_adj: i32,
    pub conntrack: Conntrack,
    pub config_sync_period: GoDuration,
    pub port_range: String,
    pub windows_run_as_service: bool,
}

impl Default for KubeProxyConfiguration {
    fn default() -> Self {
        Self {
            feature_gates: BTreeMap::new(),
            client_connection: ClientConnection::default(),
            logging: Value::Object(serde_json::Map::new()),
            hostname_override: String::new(),
            bind_address: "0.0.0.0".to_owned(),
            healthz_bind_address: "0.0.0.0:10256".to_owned(),
            metrics_bind_address: "127.0.0.1:10249".to_owned(),
            bind_address_hard_fail: false,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: Mode::Default,
            iptables: IpTables::default(),
            ipvs: Ipvs::default(),
            nftables: NfTables::default(),
            winkernel: Winkernel::default(),
            detect_local_mode: LocalMode::ClusterCidr,
            detect_local: DetectLocal::default(),
            cluster_cidr: String::new(),
            node_port_addresses: Vec::new(),
            oom_score_adj: -999,
            conntrack: Conntrack::default(),
            config_sync_period: GoDuration::secs(900),
            port_range: String::new(),
            windows_run_as_service: false,
        }
    }
}

impl KubeProxyConfiguration {
    /// The ranges of the cluster's pods: one, or one of each family.
    pub fn cluster_cidrs(&self) -> impl Iterator<Item = &str> {
        self.cluster_cidr.split(',').filter(|cidr| !cidr.is_empty())
    }
}
