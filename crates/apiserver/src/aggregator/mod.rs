//! Aggregation: versions of groups that other servers serve, behind services that APIServices name.
//!
//! Requests for such a version are handed on with the user's name in headers, over a connection that
//! shows this server's own certificate (`--proxy-client-cert-file`). Once a second it is looked whether
//! the servers are available; what they list of their resources becomes part of discovery.
//!
//! Current limitations: OpenAPI v2 has no types of aggregated servers; connections to them are not kept.

mod client;
mod discovery;
mod metrics;
mod service;

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::client::BackendClient;
pub(crate) use self::client::{Error, is_redirect, name_user};
use self::discovery::Documents;
use self::metrics::Metrics;
use self::service::Services;
pub(crate) use self::service::{ApiService, Backend};
use crate::api_types::Resource;
use crate::cache::Cache;
use crate::kinds;
use crate::pki::Identity;
use crate::registry::Registry;
use crate::service_resolver::ServiceResolver;
use crate::status::StatusError;

/// The group of APIServices.
pub(crate) const GROUP: &str = "apiregistration.k8s.io";

/// How other servers are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AggregationConfig {
    /// Call webhooks and aggregated servers by endpoints of their services only, never by the service's
    /// own address.
    pub endpoints_only: bool,
    /// The client certificate by which aggregated servers know this one; without it, none is shown.
    pub proxy_client: Option<Identity>,
}

/// The resource of APIServices.
pub(crate) fn resource() -> Result<&'static Resource, StatusError> {
    kinds::known(GROUP, "apiservices")
}

/// The aggregated servers.
pub(crate) struct Aggregator {
    services: Cache<Services>,
    pub(crate) client: BackendClient,
    documents: Mutex<Documents>,
    pub(crate) metrics: Metrics,
}

impl Aggregator {
    pub(crate) fn new(config: &AggregationConfig) -> Result<Aggregator, StatusError> {
        let resolver = ServiceResolver { endpoints_only: config.endpoints_only };
        Ok(Aggregator {
            services: Cache::new(GROUP, "apiservices")?,
            client: BackendClient::new(resolver, config.proxy_client.clone()),
            documents: Mutex::default(),
            metrics: Metrics::default(),
        })
    }

    /// Reads the APIServices.
    pub(crate) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        self.services.load(registry).await
    }

    /// Follows them until `stop`.
    pub(crate) async fn run(&self, registry: &Registry, stop: &CancellationToken) {
        self.services.run(registry, stop).await;
    }

    /// The APIService of a version of a group that another server serves.
    pub(crate) async fn remote(
        &self,
        registry: &Registry,
        group: &str,
        version: &str,
    ) -> Option<Arc<ApiService>> {
        // The APIServices themselves are always here, so that they can be repaired.
        if group == GROUP {
            return None;
        }
        self.services.catch_up(registry).await;
        self.services.read().remote(group, version).cloned()
    }

    /// The groups of this server with those of others.
    pub(crate) fn groups(&self, local: Value) -> Value {
        discovery::groups(&self.all(), local)
    }

    /// One group of this server with what others serve of it.
    pub(crate) fn group(&self, name: &str, local: Option<Value>) -> Option<Value> {
        let mut group = discovery::group(&self.all(), name, local)?;
        group["kind"] = "APIGroup".into();
        group["apiVersion"] = "v1".into();
        Some(group)
    }

    /// Aggregated discovery of this server with that of others.
    pub(crate) fn aggregated(&self, local: Value) -> Value {
        discovery::aggregated(&self.all(), &self.documents.lock(), local)
    }

    /// The OpenAPI documents of available servers, as the index names them, with a mark of their version.
    pub(crate) fn openapi(&self) -> Vec<(String, String)> {
        let services = self.all();
        let remote = services.iter().filter(|s| s.backend.is_some() && s.is_available);
        remote
            .map(|service| {
                let path = format!("apis/{}/{}", service.group, service.version);
                let url = format!("/openapi/v3/{path}");
                (path, url)
            })
            .collect()
    }

    /// All APIServices.
    pub(crate) fn all(&self) -> Vec<Arc<ApiService>> {
        self.services.read().all().cloned().collect()
    }

    /// Takes in what a server lists of its resources.
    pub(crate) fn put_document(&self, name: &str, document: &[u8]) {
        let parsed: Result<Value, _> = longshore_json::read(document);
        match parsed {
            Ok(list) if list["resources"].is_array() => {
                self.documents.lock().insert(name.to_owned(), Arc::new(list));
            }
            _ => tracing::warn!(api = name, "an aggregated server lists no resources"),
        }
    }

    /// Forgets what is known of others than these.
    pub(crate) fn forget_documents(&self, remote: &[Arc<ApiService>]) {
        let is_known = |name: &str| remote.iter().any(|service| service.name == name);
        self.documents.lock().retain(|name, _| is_known(name));
        self.metrics.retain(is_known);
    }

    /// In Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.render()
    }
}
