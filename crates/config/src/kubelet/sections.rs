//! Nested types of `KubeletConfiguration`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use longshore_base::logging;

use crate::{FeatureGates, GoDuration};

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Authentication {
    pub x509: X509Authentication,
    pub webhook: WebhookAuthentication,
    pub anonymous: AnonymousAuthentication,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct X509Authentication {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WebhookAuthentication {
    pub enabled: bool,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

impl Default for WebhookAuthentication {
    fn default() -> Self {
        Self { enabled: true, cache_ttl: GoDuration::secs(120) }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AnonymousAuthentication {
    pub enabled: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Authorization {
    pub mode: String,
    pub webhook: WebhookAuthorization,
}

impl Default for Authorization {
    fn default() -> Self {
        Self { mode: "Webhook".to_owned(), webhook: WebhookAuthorization::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WebhookAuthorization {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

impl Default for WebhookAuthorization {
    fn default() -> Self {
        Self {
            cache_authorized_ttl: GoDuration::secs(300),
            cache_unauthorized_ttl: GoDuration::secs(30),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MemorySwap {
    pub swap_behavior: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: Option<GoDuration>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ShutdownGracePeriodByPodPriority {
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MemoryReservation {
    pub numa_node: i32,
    pub limits: BTreeMap<String, Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Tracing {
    pub endpoint: Option<String>,
    pub sampling_rate_per_million: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct UserNamespaces {
    pub ids_per_pod: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Logging {
    pub format: String,
    #[serde(deserialize_with = "duration_or_nanoseconds")]
    pub flush_frequency: GoDuration,
    pub verbosity: u32,
    pub vmodule: Vec<VModuleItem>,
    pub options: LoggingOptions,
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            format: "text".to_owned(),
            flush_frequency: GoDuration::secs(5),
            verbosity: 0,
            vmodule: Vec::new(),
            options: LoggingOptions::default(),
        }
    }
}

impl Logging {
    /// What the log is started with.
    ///
    /// # Errors
    /// What is not valid, in the words of upstream; `prefix`: of the fields.
    pub(crate) fn settings(
        &self,
        prefix: &str,
        gates: &FeatureGates,
    ) -> Result<logging::Settings, Vec<String>> {
        let vmodule = self.vmodule.iter().map(|item| logging::VModule {
            pattern: item.file_pattern.clone(),
            verbosity: item.verbosity,
        });
        let routing = |own: &'_ OutputRouting| (own.split_stream, own.info_buffer_size.0.clone());
        let (text, json) = (routing(&self.options.text), routing(&self.options.json));
        let configuration = logging::Configuration {
            format: &self.format,
            verbosity: self.verbosity,
            vmodule: vmodule.collect(),
            flush_frequency: self.flush_frequency,
            text: (text.0, &text.1),
            json: (json.0, &json.1),
        };
        configuration.settings(prefix, |gate| gates.enabled(gate))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct VModuleItem {
    pub file_pattern: String,
    pub verbosity: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LoggingOptions {
    pub text: OutputRouting,
    pub json: OutputRouting,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct OutputRouting {
    pub split_stream: bool,
    pub info_buffer_size: Quantity,
}

impl Default for OutputRouting {
    fn default() -> Self {
        Self { split_stream: false, info_buffer_size: Quantity("0".to_owned()) }
    }
}

/// Older files have the flush frequency in nanoseconds.
fn duration_or_nanoseconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<GoDuration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Nanoseconds(i64),
    }
    match Either::deserialize(deserializer)? {
        Either::Text(text) => text.parse().map_err(D::Error::custom),
        Either::Nanoseconds(nanos) => Ok(GoDuration::nanos(nanos)),
    }
}
