//! The APIServices, as they are used for each request.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::cache::Index;
use crate::object;
use crate::schema::value::{items, text};

/// The port of a service that names none.
const DEFAULT_PORT: u16 = 443;

/// A server that serves a version of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiService {
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) group_priority: i64,
    pub(crate) version_priority: i64,
    /// Where it is; `None`: here.
    pub(crate) backend: Option<Backend>,
    /// Whether its last check found it available.
    pub(crate) is_available: bool,
}

/// The service behind which an aggregated server is, and how its certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Backend {
    pub(crate) namespace: String,
    pub(crate) service: String,
    pub(crate) port: u16,
    /// Certificates of authorities (PEM); `None`: those of the system.
    pub(crate) ca_bundle: Option<Vec<u8>>,
    pub(crate) insecure: bool,
}

impl Backend {
    /// The name in its certificate.
    pub(crate) fn server_name(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }
}

impl ApiService {
    pub(crate) fn of(api: &Value) -> ApiService {
        let (spec, status) = (&api["spec"], &api["status"]);
        let service = &spec["service"];
        let backend = service.is_object().then(|| Backend {
            namespace: text(&service["namespace"]).to_owned(),
            service: text(&service["name"]).to_owned(),
            port: service["port"]
                .as_u64()
                .and_then(|port| u16::try_from(port).ok())
                .filter(|port| *port > 0)
                .unwrap_or(DEFAULT_PORT),
            ca_bundle: STANDARD.decode(text(&spec["caBundle"])).ok().filter(|ca| !ca.is_empty()),
            insecure: spec["insecureSkipTLSVerify"] == true,
        });
        let mut conditions = items(&status["conditions"]).iter();
        ApiService {
            name: object::name(api).to_owned(),
            group: text(&spec["group"]).to_owned(),
            version: text(&spec["version"]).to_owned(),
            group_priority: spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
            version_priority: spec["versionPriority"].as_i64().unwrap_or(0),
            backend,
            is_available: conditions.any(|c| c["type"] == "Available" && c["status"] == "True"),
        }
    }
}

/// All of them, by name.
#[derive(Default)]
pub(crate) struct Services(BTreeMap<String, Arc<ApiService>>);

impl Services {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<ApiService>> {
        self.0.values()
    }

    /// The one of a version of a group that is elsewhere.
    pub(crate) fn remote(&self, group: &str, version: &str) -> Option<&Arc<ApiService>> {
        let found = self.0.get(&format!("{version}.{group}"))?;
        found.backend.is_some().then_some(found)
    }
}

impl Index for Services {
    fn put(&mut self, api: &Value) {
        self.0.insert(object::name(api).to_owned(), Arc::new(ApiService::of(api)));
    }

    fn remove(&mut self, _: &str, name: &str) {
        self.0.remove(name);
    }
}
