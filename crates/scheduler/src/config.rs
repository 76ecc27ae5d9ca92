//! What a scheduler is configured with: `KubeSchedulerConfiguration` v1, and the classic `Policy`.

mod policy;
mod profiles;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;

use std::time::Duration;

use longshore_duration::GoDuration;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::framework::Profile;
use crate::plugins::{PluginError, Registry};

pub use self::policy::{Policy, provider};
use self::profiles::ProfileConfig;

/// The name of the scheduler of pods that name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";
const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{0}")]
    Parse(String),
    /// A value is not valid.
    #[error("{field}: {reason}")]
    Invalid {
        /// Where.
        field: String,
        /// Why.
        reason: String,
    },
    /// A plugin cannot be made.
    #[error(transparent)]
    Plugin(#[from] PluginError),
}

pub(crate) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { field: field.into(), reason: reason.into() }
}

/// `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Configuration {
    api_version: String,
    kind: String,
    /// Attempts run on one thread here: it has no effect.
    parallelism: Option<i32>,
    /// Leader election.
    pub leader_election: LeaderElection,
    /// The client.
    pub client_connection: ClientConnection,
    /// Whether the program serves profiles; see [`Configuration::has_profiling`].
    pub enable_profiling: Option<bool>,
    enable_contention_profiling: Option<bool>,
    percentage_of_nodes_to_score: Option<i32>,
    pod_initial_backoff_seconds: Option<i64>,
    pod_max_backoff_seconds: Option<i64>,
    profiles: Vec<ProfileConfig>,
    /// Extenders over HTTP.
    pub extenders: Vec<ExtenderConfig>,
    delay_cache_until_active: bool,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: "KubeSchedulerConfiguration".to_owned(),
            parallelism: None,
            leader_election: LeaderElection::default(),
            client_connection: ClientConnection::default(),
            enable_profiling: None,
            enable_contention_profiling: None,
            percentage_of_nodes_to_score: None,
            pod_initial_backoff_seconds: None,
            pod_max_backoff_seconds: None,
            profiles: Vec::new(),
            extenders: Vec::new(),
            delay_cache_until_active: false,
        }
    }
}

/// Leader election.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LeaderElection {
    /// Whether to take part.
    pub leader_elect: bool,
    /// How long others wait for a leader that does not renew.
    pub lease_duration: GoDuration,
    /// How long the leader tries to renew.
    pub renew_deadline: GoDuration,
    /// The pause between tries.
    pub retry_period: GoDuration,
    /// `leases`.
    pub resource_lock: String,
    /// The name of the Lease.
    pub resource_name: String,
    /// Its namespace.
    pub resource_namespace: String,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            leader_elect: true,
            lease_duration: GoDuration::secs(15),
            renew_deadline: GoDuration::secs(10),
            retry_period: GoDuration::secs(2),
            resource_lock: "leases".to_owned(),
            resource_name: "kube-scheduler".to_owned(),
            resource_namespace: "kube-system".to_owned(),
        }
    }
}

/// The client.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ClientConnection {
    /// The kubeconfig.
    pub kubeconfig: String,
    accept_content_types: String,
    content_type: String,
    /// Requests in a second; 0 is no limit here: upstream's 50 would bind 50 pods a second.
    pub qps: f32,
    /// Requests at once.
    pub burst: i32,
}

/// An extender.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExtenderConfig {
    /// The URL before the verbs.
    pub url_prefix: String,
    /// The verb that filters nodes; empty: it does not.
    pub filter_verb: String,
    /// The verb that chooses victims.
    pub preempt_verb: String,
    /// The verb that scores nodes.
    pub prioritize_verb: String,
    /// The weight of its scores.
    pub weight: i64,
    /// The verb that binds.
    pub bind_verb: String,
    /// Whether to use TLS.
    #[serde(alias = "enableHttps")]
    pub enable_https: bool,
    #[serde(rename = "enableHTTPS")]
    enable_https_v1: bool,
    /// How it is verified, and with what the scheduler proves itself.
    pub tls_config: Option<ExtenderTls>,
    /// How long a call may take.
    #[serde(rename = "httpTimeout")]
    pub http_timeout: Option<GoDuration>,
    /// Whether it knows the nodes, so that names are enough.
    pub node_cache_capable: bool,
    /// Resources that it manages; none: it is asked about all pods.
    pub managed_resources: Vec<ManagedResource>,
    /// Whether the pod is scheduled without it when it fails.
    pub ignorable: bool,
}

/// TLS to an extender.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExtenderTls {
    /// Whether its certificate is not verified.
    pub insecure: bool,
    server_name: String,
    cert_file: String,
    key_file: String,
    /// The file with its CA.
    pub ca_file: String,
    cert_data: String,
    key_data: String,
    ca_data: String,
}

/// A resource that an extender manages.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ManagedResource {
    /// Its name.
    pub name: String,
    /// Whether the scheduler does not count it.
    pub ignored_by_scheduler: bool,
}

/// YAML or JSON as a tree.
fn tree(text: &str) -> Result<Value, ConfigError> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ConfigError::Parse(error.to_string()))
}

impl Configuration {
    /// Reads a configuration, or a classic policy.
    ///
    /// # Errors
    /// A field is not known, or a value is not valid.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let tree = tree(text)?;
        if tree["kind"] == "Policy" {
            return Policy::of(tree)?.configuration();
        }
        let own: Self = serde_json::from_value(tree)
            .map_err(|error| ConfigError::Parse(format!("strict decoding error: {error}")))?;
        own.validate()?;
        Ok(own)
    }

    /// Whether profiles are served.
    pub fn has_profiling(&self) -> bool {
        self.enable_profiling.unwrap_or(true)
    }

    /// The page `/configz`, as JSON.
    pub fn configz(&self) -> String {
        serde_json::json!({"componentconfig": self}).to_string()
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if self.api_version != API_VERSION || self.kind != "KubeSchedulerConfiguration" {
            let (kind, version) = (&self.kind, &self.api_version);
            return Err(ConfigError::Parse(format!(
                "no kind {kind:?} is registered for version {version:?}"
            )));
        }
        if self.parallelism.is_some_and(|own| own <= 0) {
            return Err(invalid("parallelism", "should be an integer value greater than zero"));
        }
        if self.leader_election.resource_lock != "leases" {
            return Err(invalid(
                "leaderElection.resourceLock",
                "resourceLock value must be \"leases\"",
            ));
        }
        let (initial, max) = self.backoffs();
        if initial <= 0 {
            return Err(invalid("podInitialBackoffSeconds", "must be greater than 0"));
        }
        if max < initial {
            return Err(invalid(
                "podMaxBackoffSeconds",
                "must be greater than or equal to PodInitialBackoffSeconds",
            ));
        }
        let percentages = self.profiles.iter().filter_map(|own| own.percentage_of_nodes_to_score);
        if percentages.chain(self.percentage_of_nodes_to_score).any(|own| !(0..=100).contains(&own))
        {
            return Err(invalid("percentageOfNodesToScore", "not in valid range [0-100]"));
        }
        let binders = self.extenders.iter().filter(|own| !own.bind_verb.is_empty()).count();
        if binders > 1 {
            return Err(invalid(
                "extenders",
                format!(
                    "found {binders} extenders implementing bind, only one extender can implement bind"
                ),
            ));
        }
        for extender in &self.extenders {
            if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
                return Err(invalid(
                    "extenders.weight",
                    "must have a positive weight applied to it",
                ));
            }
        }
        Ok(())
    }

    fn backoffs(&self) -> (i64, i64) {
        (self.pod_initial_backoff_seconds.unwrap_or(1), self.pod_max_backoff_seconds.unwrap_or(10))
    }

    /// The first and the longest pause of a pod that was rejected.
    pub fn backoff(&self) -> (Duration, Duration) {
        let (initial, max) = self.backoffs();
        (longshore_base::time::seconds(initial), longshore_base::time::seconds(max))
    }

    /// How long volumes of a pod may take to be bound: the longest of all profiles.
    pub fn volumes_timeout(&self) -> Duration {
        let of = |own: &ProfileConfig| {
            own.args("VolumeBinding")["bindTimeoutSeconds"].as_i64().unwrap_or(600)
        };
        longshore_base::time::seconds(self.profiles.iter().map(of).max().unwrap_or(600))
    }

    /// The profiles.
    ///
    /// # Errors
    /// A plugin is not known, or its arguments are not valid.
    pub fn profiles(&self, registry: &Registry) -> Result<Vec<Profile>, ConfigError> {
        let ignored: Vec<&str> = self
            .extenders
            .iter()
            .flat_map(|own| &own.managed_resources)
            .filter(|own| own.ignored_by_scheduler)
            .map(|own| own.name.as_str())
            .collect();
        profiles::build(&self.profiles, self.percentage_of_nodes_to_score, &ignored, registry)
    }
}

impl ExtenderConfig {
    /// Whether it is called over TLS.
    pub fn is_https(&self) -> bool {
        self.enable_https || self.enable_https_v1
    }
}

/// The profile of a scheduler without a configuration.
///
/// # Errors
/// A plugin is not in the registry.
pub fn default_profiles(registry: &Registry) -> Result<Vec<Profile>, ConfigError> {
    Configuration::default().profiles(registry)
}
