//! Secrets, configmaps, runtime classes and service account tokens that the pods of this node refer to, fetched one
//! by one by name as the Node authorizer allows. Workers register a pod here before they use it;
//! volumes, environment variables and image pulls read from here.
//! Current limitations: changes are seen by asking again after a time to live, not by a watch.

mod cache;
mod references;
mod tokens;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccountTokenProjection};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::GetParams;
use kube::{Client, Error as KubeError};
use longshore_pod::spec;

use cache::{Cache, Named};
use references::{Reference, References};
use tokens::PodTokens;

/// How long a fetched object is used before it is asked for again.
const TIME_TO_LIVE: Duration = Duration::from_secs(60);
/// The same for those who use an object once, when a container starts.
const FRESH: Duration = Duration::from_secs(1);
/// How long one request may take, so that a silent apiserver does not hold a pod's worker.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for an object of which some version is known, and good enough.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Why an object or token could not be had. Cheap to clone: callers share one request's outcome.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The apiserver has no such object.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// `secret`, `configmap` or `runtimeclass.node.k8s.io`.
        kind: &'static str,
        /// The object's name.
        name: String,
    },
    /// The apiserver refused or could not be reached.
    #[error("failed to {action}: {reason}")]
    Request {
        /// What was asked for.
        action: String,
        /// The server's message, or what went wrong on the way.
        reason: Arc<str>,
    },
    /// The node runs without an apiserver.
    #[error("failed to {action}: no apiserver is configured")]
    NoApiserver {
        /// What was asked for.
        action: String,
    },
    /// A token was asked for a pod that names no service account.
    #[error("pod names no service account to make a token for")]
    NoServiceAccount,
}

impl Error {
    /// Whether the object does not exist, which an `optional` reference forgives.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    fn request(action: String, error: KubeError) -> Self {
        let reason = match error {
            KubeError::Api(status) => status.message,
            // The outer text is often just "service error"; the innermost says why.
            error => root_cause(&error),
        };
        Self::Request { action, reason: reason.into() }
    }
}

/// One of the secrets and configmaps that a pod refers to, if there is any, in words.
pub fn first_reference(pod: &Pod) -> Option<String> {
    let all = references::of(pod);
    // A class tells how to run a pod, and holds nothing that is for some pods alone.
    let kept = all.iter().find(|reference| !matches!(reference, Reference::RuntimeClass(_)));
    kept.map(ToString::to_string)
}

/// A request's answer, or an error once it has taken too long.
async fn within<T>(
    deadline: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> kube::Result<T> {
    let late = |_| KubeError::Service(format!("no answer within {deadline:?}").into());
    tokio::time::timeout(deadline, request).await.map_err(late)?
}

pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The objects that this node's pods use. A cheap handle; clones share one cache.
#[derive(Clone)]
pub struct Objects {
    inner: Arc<Inner>,
    time_to_live: Duration,
}

struct Inner {
    client: Option<Client>,
    secrets: Cache<Secret>,
    config_maps: Cache<ConfigMap>,
    runtime_classes: Cache<RuntimeClass>,
    pods: Mutex<HashMap<String, Registered>>,
}

/// What is kept for a pod, by its UID.
#[derive(Default)]
struct Registered {
    references: References,
    tokens: Arc<PodTokens>,
}

impl Objects {
    /// An empty cache over a client; without one (a node of static pods alone) every object is an
    /// error.
    pub fn new(client: Option<Client>) -> Self {
        Self::with_time_to_live(client, TIME_TO_LIVE)
    }

    fn with_time_to_live(client: Option<Client>, time_to_live: Duration) -> Self {
        let inner = Inner {
            client,
            secrets: Cache::default(),
            config_maps: Cache::default(),
            runtime_classes: Cache::default(),
            pods: Mutex::default(),
        };
        Self { inner: Arc::new(inner), time_to_live }
    }

    /// The way to the apiserver, if there is one.
    pub(crate) fn client(&self) -> Option<&Client> {
        self.inner.client.as_ref()
    }

    /// A handle of the same cache that gives objects of the last second, or asks anew.
    pub fn fresh(&self) -> Self {
        Self { time_to_live: self.time_to_live.min(FRESH), ..self.clone() }
    }

    /// Makes a pod's references known. What a new reference reads is fetched after this call, so a
    /// pod sees every change that was made before it. Calling again for a pod with the same
    /// references does nothing; references that it lost are dropped.
    pub fn register(&self, pod: &Pod) {
        let new = references::of(pod);
        let mut pods = self.pods();
        let registered = pods.entry(spec::uid(pod).to_owned()).or_default();
        for reference in new.difference(&registered.references) {
            self.inner.retain(reference);
        }
        for reference in registered.references.difference(&new) {
            self.inner.release(reference);
        }
        registered.references = new;
    }

    /// Forgets a pod: objects that no other pod uses are dropped, and so are its tokens.
    pub fn unregister(&self, uid: &str) {
        let mut pods = self.pods();
        for reference in pods.remove(uid).unwrap_or_default().references {
            self.inner.release(&reference);
        }
    }

    /// A secret by name. Callers at the same time share one request.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, Error> {
        self.get(&self.inner.secrets, namespace, name).await
    }

    /// A configmap by name. Callers at the same time share one request.
    pub async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, Error> {
        self.get(&self.inner.config_maps, namespace, name).await
    }

    /// A runtime class by name. Callers at the same time share one request.
    pub async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, Error> {
        self.get(&self.inner.runtime_classes, "", name).await
    }

    /// A token of the pod's service account, bound to the pod and kept until 80 % of its life is
    /// over. When it cannot be renewed in time, the old one is given as long as it is valid.
    pub async fn service_account_token(
        &self,
        pod: &Pod,
        projection: &ServiceAccountTokenProjection,
    ) -> Result<Arc<str>, Error> {
        let registered = self.pods().get(spec::uid(pod)).map(|pod| pod.tokens.clone());
        registered.unwrap_or_default().get(self.inner.client.as_ref(), pod, projection).await
    }

    async fn get<K: Named>(
        &self,
        cache: &Cache<K>,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<K>, Error> {
        let action = || match namespace {
            "" => format!("get {} {name}", K::NAME),
            namespace => format!("get {} {namespace}/{name}", K::NAME),
        };
        let client =
            self.inner.client.as_ref().ok_or_else(|| Error::NoApiserver { action: action() })?;
        let api = K::api(client.clone(), namespace);
        cache
            .get(namespace, name, self.time_to_live, async |known| {
                // The apiserver's own cache is good enough to look for changes, and spares etcd.
                let (params, deadline) = match known {
                    true => (GetParams::any(), RENEWAL_TIMEOUT),
                    false => (GetParams::default(), REQUEST_TIMEOUT),
                };
                within(deadline, api.get_with(name, &params)).await.map_err(|error| match error {
                    KubeError::Api(status) if status.code == 404 => {
                        Error::NotFound { kind: K::NAME, name: name.to_owned() }
                    }
                    error => Error::request(action(), error),
                })
            })
            .await
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, Registered>> {
        self.inner.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn retain(&self, reference: &Reference) {
        match reference {
            Reference::Secret(key) => self.secrets.retain(key),
            Reference::ConfigMap(key) => self.config_maps.retain(key),
            Reference::RuntimeClass(key) => self.runtime_classes.retain(key),
        }
    }

    fn release(&self, reference: &Reference) {
        match reference {
            Reference::Secret(key) => self.secrets.release(key),
            Reference::ConfigMap(key) => self.config_maps.release(key),
            Reference::RuntimeClass(key) => self.runtime_classes.release(key),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
pub(crate) mod fake;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
