use std::net::IpAddr;

use longshore_duration::GoDuration;
use serde_json::Value;

use super::{ClientConnection, KubeProxyConfiguration};

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";
const HEALTHZ_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;
/// How serde's message about a missing field begins.
const UNKNOWN: &str = "unknown field";

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is none of kube-proxy's, or of another version.
    #[error("expected a {KIND} of {API_VERSION}, found kind {kind} of apiVersion {api_version}")]
    Kind {
        /// Its `kind`, as JSON.
        kind: String,
        /// Its `apiVersion`, as JSON.
        api_version: String,
    },
    /// A field is unknown or of another type.
    #[error("{field}: {reason}")]
    Field {
        /// The path of the field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Values are out of range or contradict each other.
    #[error("{}", .0.join("; "))]
    Faults(Vec<String>),
}

impl KubeProxyConfiguration {
    /// Reads a file's tree: with defaults, and checked. Fields that are unknown are passed over, as
    /// upstream does with files of other versions, and returned: a line for each.
    ///
    /// # Errors
    /// The first field of another type, or else all that are out of range.
    pub fn decode_lenient(tree: Value) -> Result<(Self, Vec<String>), ConfigError> {
        let (mut tree, mut passed_over) = (tree, Vec::new());
        loop {
            match Self::decode(tree.clone()) {
                Err(ConfigError::Field { field, reason })
                    if reason.starts_with(UNKNOWN) && remove(&mut tree, &field) =>
                {
                    passed_over.push(format!("{field}: unknown field, passed over"));
                }
                result => return result.map(|config| (config, passed_over)),
            }
        }
    }

    /// Reads a file's tree: strictly, with defaults, and checked.
    ///
    /// # Errors
    /// The first field that is unknown or of another type, or else all that are out of range.
    pub fn decode(tree: Value) -> Result<Self, ConfigError> {
        let mut tree = tree;
        let mut take = |field: &str| {
            let fields = tree.as_object_mut();
            fields.and_then(|fields| fields.remove(field)).unwrap_or_default()
        };
        let (kind, api_version) = (take("kind"), take("apiVersion"));
        if kind != KIND || api_version != API_VERSION {
            let (kind, api_version) = (kind.to_string(), api_version.to_string());
            return Err(ConfigError::Kind { kind, api_version });
        }
        prune_nulls(&mut tree);
        let config: Self =
            serde_path_to_error::deserialize(with_derived_defaults(tree)).map_err(|error| {
                ConfigError::Field {
                    field: error.path().to_string(),
                    reason: error.into_inner().to_string(),
                }
            })?;
        let config = config.complete();
        match config.faults() {
            faults if faults.is_empty() => Ok(config),
            faults => Err(ConfigError::Faults(faults)),
        }
    }

    /// The tree of a file that says all of this.
    pub fn to_tree(&self) -> Value {
        // texts, numbers and lists of them cannot fail
        let mut tree = serde_json::to_value(self).unwrap_or_default();
        tree["kind"] = KIND.into();
        tree["apiVersion"] = API_VERSION.into();
        tree
    }

    /// Gives defaults to what is empty or zero, where upstream takes this for "not set".
    pub fn complete(mut self) -> Self {
        let default = Self::default();
        let fill = |duration: &mut GoDuration, default: GoDuration| {
            if *duration == GoDuration::ZERO {
                *duration = default;
            }
        };
        fill(&mut self.iptables.sync_period, default.iptables.sync_period);
        fill(&mut self.iptables.min_sync_period, default.iptables.min_sync_period);
        fill(&mut self.ipvs.sync_period, default.ipvs.sync_period);
        fill(&mut self.nftables.sync_period, default.nftables.sync_period);
        fill(&mut self.nftables.min_sync_period, default.nftables.min_sync_period);
        fill(&mut self.config_sync_period, default.config_sync_period);
        let client = ClientConnection::default();
        let given = &mut self.client_connection;
        if given.content_type.is_empty() {
            given.content_type = client.content_type;
        }
        if given.qps == 0.0 {
            given.qps = client.qps;
        }
        if given.burst == 0 {
            given.burst = client.burst;
        }
        self.healthz_bind_address = with_port(&self.healthz_bind_address, HEALTHZ_PORT);
        self.metrics_bind_address = with_port(&self.metrics_bind_address, METRICS_PORT);
        self
    }
}

/// Takes a field out, by its path with dots; whether it was there.
fn remove(tree: &mut Value, field: &str) -> bool {
    let (parents, name) = field.rsplit_once('.').unwrap_or(("", field));
    let mut parents = parents.split('.').filter(|parent| !parent.is_empty());
    let parent = parents.try_fold(tree, |tree, parent| tree.get_mut(parent));
    let fields = parent.and_then(Value::as_object_mut);
    fields.is_some_and(|fields| fields.remove(name).is_some())
}

/// Where the servers listen follows from `bindAddress` when it is not given.
fn with_derived_defaults(mut tree: Value) -> Value {
    let Some(fields) = tree.as_object_mut() else { return tree };
    for field in ["bindAddress", "healthzBindAddress", "metricsBindAddress"] {
        if fields.get(field).is_some_and(|value| value == "") {
            fields.remove(field);
        }
    }
    let bind = fields.get("bindAddress").and_then(Value::as_str).unwrap_or("0.0.0.0");
    if bind.parse().is_ok_and(|ip: IpAddr| ip.is_ipv6()) {
        let derived = [
            ("healthzBindAddress", format!("[::]:{HEALTHZ_PORT}")),
            ("metricsBindAddress", format!("[::1]:{METRICS_PORT}")),
        ];
        for (field, address) in derived {
            fields.entry(field).or_insert(address.into());
        }
    }
    tree
}

/// An address alone gets the port.
fn with_port(address: &str, port: u16) -> String {
    match address.parse() {
        Ok(IpAddr::V4(ip)) => format!("{ip}:{port}"),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        Err(_) => address.to_owned(),
    }
}

/// A null says no more than an absent field.
fn prune_nulls(tree: &mut Value) {
    if let Value::Object(fields) = tree {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(prune_nulls);
    }
}
