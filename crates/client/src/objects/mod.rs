//! Secrets, configmaps, runtime classes and service account tokens that the pods of this node refer
//! to, each by its name as the Node authorizer allows. Workers register a pod here before they use
//! it; volumes, environment variables and image pulls read from here.
//!
//! How changes are seen is `configMapAndSecretChangeDetectionStrategy`. By `Watch`, each object has
//! one watch for all pods that refer to it (`watched`, `follow`), and they are notified of its changes
//! (`changes`); by `Cache` and `Get` it is requested (`cache`), and each pod is resynced
//! periodically.

mod bundles;
mod cache;
mod changes;
mod drivers;
mod error;
mod follow;
mod references;
mod tokens;
mod watched;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, Pod, Secret, ServiceAccount,
    ServiceAccountTokenProjection,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{Api, GetParams};
use kube::{Client, Error as KubeError};
use longshore_pod::spec;
use parking_lot::{Mutex, MutexGuard};

pub use changes::{Changed, Changes};
pub use drivers::follow_driver;
pub use error::Error;
pub use error::root_cause;

use crate::object;
use crate::pod_certificates::{Credentials, PodCertificates};
use bundles::Bundles;
use cache::{Cache, Key, Named};
use changes::PendingChanges;
use longshore_config::Config;
use references::{Reference, References};
use tokens::PodTokens;
use watched::Watched;

/// How long a fetched object is used before it is fetched again.
const TIME_TO_LIVE: Duration = Duration::from_secs(60);
/// The same for objects that are used once, when a container starts.
const FRESH: Duration = Duration::from_secs(1);
/// How long one request may take, so that a silent apiserver does not hold a pod's worker.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for an object of which some version is known, and good enough.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(2);

/// One of the secrets and configmaps that a pod refers to, if there is any, in words.
pub fn first_reference(pod: &Pod) -> Option<String> {
    let all = references::of(pod);
    // A class says how to run a pod, and holds nothing that only some pods may use.
    let kept = all.iter().find(|reference| {
        !matches!(reference, Reference::RuntimeClass(_) | Reference::TrustBundles)
    });
    kept.map(ToString::to_string)
}

/// A request with a deadline.
async fn within<T>(
    deadline: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> kube::Result<T> {
    let late = |_| KubeError::Service(format!("no answer within {deadline:?}").into());
    tokio::time::timeout(deadline, request).await.map_err(late)?
}

/// How changes of objects are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// By a watch of each object.
    Watch,
    /// By a cache with a time to live of a minute; pods are resynced with this period.
    Cache(Duration),
    /// By a request each time; pods are resynced with this period.
    Get(Duration),
}

impl Detection {
    /// The strategy in the configuration.
    pub fn of(config: &Config) -> Self {
        let period = config.kubelet.sync_frequency.get();
        match config.kubelet.config_map_and_secret_change_detection_strategy.as_str() {
            "Cache" => Self::Cache(period),
            "Get" => Self::Get(period),
            _ => Self::Watch,
        }
    }

    /// The resync period of pods, where there are no watches.
    fn period(self) -> Option<Duration> {
        match self {
            Self::Watch => None,
            Self::Cache(period) | Self::Get(period) => Some(period),
        }
    }
}

/// The objects that this node's pods use. A cheap handle; clones share what is known.
#[derive(Clone)]
pub struct Objects {
    inner: Arc<Inner>,
    time_to_live: Duration,
}

struct Inner {
    client: Option<Client>,
    detection: Detection,
    secrets: Store<Secret>,
    config_maps: Store<ConfigMap>,
    runtime_classes: Store<RuntimeClass>,
    /// `None` while their feature gate is off.
    bundles: Option<Bundles>,
    /// `None` while their feature gate is off, and without an apiserver.
    certificates: Option<PodCertificates>,
    pods: Mutex<HashMap<String, Registered>>,
}

/// One kind of object.
enum Store<K> {
    Watched(Watched<K>),
    Cached(Cache<K>),
    /// Nothing is cached.
    Uncached,
}

/// The state of a registered pod.
#[derive(Default)]
struct Registered {
    references: References,
    tokens: Arc<PodTokens>,
    /// Of its service account for plugins, which are in no volume.
    plugin_tokens: Arc<PodTokens>,
    pending: Arc<PendingChanges>,
}

impl Objects {
    /// Objects over a client, with the configured change detection; without a client (a node of
    /// static pods alone) every object is an error.
    pub fn of(
        client: Option<Client>,
        config: &Config,
        certificates: Option<PodCertificates>,
    ) -> Self {
        let bundles = config.gates.enabled("ClusterTrustBundleProjection").then(Bundles::default);
        Self::build(client, Detection::of(config), TIME_TO_LIVE, bundles, certificates)
    }

    /// Objects over a client, without trust bundles and certificates.
    pub fn new(client: Option<Client>, detection: Detection) -> Self {
        Self::build(client, detection, TIME_TO_LIVE, None, None)
    }

    /// The same with certificates.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_certificates(client: Client, certificates: PodCertificates) -> Self {
        Self::build(Some(client), Detection::Watch, TIME_TO_LIVE, None, Some(certificates))
    }

    fn build(
        client: Option<Client>,
        detection: Detection,
        time_to_live: Duration,
        bundles: Option<Bundles>,
        certificates: Option<PodCertificates>,
    ) -> Self {
        let inner = Inner {
            client,
            detection,
            secrets: Store::new(detection),
            config_maps: Store::new(detection),
            // upstream follows all of them, whatever is said of secrets
            runtime_classes: Store::new(Detection::Watch),
            bundles,
            certificates,
            pods: Mutex::default(),
        };
        Self { inner: Arc::new(inner), time_to_live }
    }

    /// The client of the apiserver, if there is one.
    pub fn client(&self) -> Option<&Client> {
        self.inner.client.as_ref()
    }

    /// A handle whose cached objects are at most a second old.
    pub fn fresh(&self) -> Self {
        Self { time_to_live: self.time_to_live.min(FRESH), ..self.clone() }
    }

    /// Registers a pod's references, and reports their changes from then on. Calling again for a pod
    /// with the same references does nothing; references that it lost are released.
    pub fn register(&self, pod: &Pod) -> Changes {
        let new = references::of(pod);
        let mut pods = self.pods();
        let registered = pods.entry(spec::uid(pod).to_owned()).or_default();
        for reference in new.difference(&registered.references) {
            Inner::retain(&self.inner, reference);
        }
        for reference in registered.references.difference(&new) {
            self.inner.release(reference);
        }
        registered.references = new;
        if let Some(certificates) = &self.inner.certificates {
            let pending = Arc::clone(&registered.pending);
            certificates.track(pod, move || pending.add_certificates());
        }
        Changes::new(Arc::clone(&registered.pending), self.inner.detection.period())
    }

    /// Forgets a pod: objects that no other pod uses are dropped, and so are its tokens.
    pub fn unregister(&self, uid: &str) {
        let mut pods = self.pods();
        for reference in pods.remove(uid).unwrap_or_default().references {
            self.inner.release(&reference);
        }
        if let Some(certificates) = &self.inner.certificates {
            certificates.forget(uid);
        }
    }

    /// How many pods are registered.
    #[cfg(any(test, feature = "testing"))]
    pub fn registered(&self) -> usize {
        self.pods().len()
    }

    /// A secret by name. Callers at the same time share one request.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, Error> {
        self.get(&self.inner.secrets, Key::new(namespace, name)).await
    }

    /// A configmap by name. Callers at the same time share one request.
    pub async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, Error> {
        self.get(&self.inner.config_maps, Key::new(namespace, name)).await
    }

    /// A runtime class by name. Callers at the same time share one request.
    pub async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, Error> {
        self.get(&self.inner.runtime_classes, Key::new("", name)).await
    }

    /// The certificates of the trust bundles that a registered pod refers to, as PEM.
    pub async fn trust_anchors(
        &self,
        source: &ClusterTrustBundleProjection,
    ) -> Result<Vec<u8>, Error> {
        match (&self.inner.bundles, &self.inner.client) {
            (None, _) => Err(Error::TrustBundle(
                "ClusterTrustBundle projection is not supported: the feature gate \
                 ClusterTrustBundleProjection is off"
                    .to_owned(),
            )),
            (_, None) => {
                Err(Error::NoApiserver { action: "list cluster trust bundles".to_owned() })
            }
            (Some(bundles), _) => bundles.anchors(source).await,
        }
    }

    /// The key and the certificate of a registered pod's source: the one with that index in that volume.
    pub fn pod_certificate(
        &self,
        pod: &Pod,
        volume: &str,
        index: usize,
    ) -> Result<Arc<Credentials>, Error> {
        let certificates = self.inner.certificates.as_ref().ok_or(Error::NoCertificates)?;
        Ok(certificates.get(spec::uid(pod), volume, index)?)
    }

    /// A token of the pod's service account, bound to the pod and kept until 80 % of its life is
    /// over; then its pod is notified. When it cannot be renewed in time, the old one is used as long
    /// as it is valid.
    pub async fn service_account_token(
        &self,
        pod: &Pod,
        projection: &ServiceAccountTokenProjection,
    ) -> Result<Arc<str>, Error> {
        let (tokens, pending) = match self.pods().get(spec::uid(pod)) {
            Some(registered) => (registered.tokens.clone(), registered.pending.clone()),
            None => Default::default(),
        };
        let client = self.inner.client.as_ref();
        tokens.get(client, pod, projection, &pending.renewal).await
    }

    /// A token of the pod's service account with that UID, bound to the pod, for a plugin that gives
    /// credentials for images. It is kept until 80 % of its life is over.
    pub async fn plugin_token(
        &self,
        pod: &Pod,
        audience: &str,
        account_uid: &str,
    ) -> Result<Arc<str>, Error> {
        let registered = self.pods().get(spec::uid(pod)).map(|pod| pod.plugin_tokens.clone());
        let client = self.inner.client.as_ref();
        registered.unwrap_or_default().get_for_plugin(client, pod, audience, account_uid).await
    }

    /// The pod's service account, as it is now.
    pub async fn service_account(&self, pod: &Pod) -> Result<ServiceAccount, Error> {
        let (namespace, name) = (spec::namespace(pod), spec::service_account(pod));
        let name = name.ok_or(Error::NoServiceAccount)?;
        let action = || format!("get serviceaccount {namespace}/{name}");
        let client = self.inner.client.clone();
        let client = client.ok_or_else(|| Error::NoApiserver { action: action() })?;
        let api = Api::<ServiceAccount>::namespaced(client, namespace);
        let account = within(REQUEST_TIMEOUT, api.get(name)).await;
        account.map_err(|error| Error::request(action(), error))
    }

    async fn get<K: Named>(&self, store: &Store<K>, key: Key) -> Result<Arc<K>, Error> {
        let client = self.inner.client.as_ref();
        let client = client.ok_or_else(|| Error::NoApiserver { action: key.action::<K>() })?;
        let fetch = async |known| fetch::<K>(client, &key, known).await;
        match store {
            Store::Watched(watched) => match watched.get(&key).await {
                Some(known) => known,
                None => fetch(false).await.map(Arc::new),
            },
            Store::Cached(cache) => cache.get(&key, self.time_to_live, fetch).await,
            Store::Uncached => fetch(false).await.map(Arc::new),
        }
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, Registered>> {
        self.inner.pods()
    }
}

/// Fetches an object; from the apiserver's cache, if some version of it is known.
async fn fetch<K: Named>(client: &Client, key: &Key, known: bool) -> Result<K, Error> {
    // The apiserver's cache is good enough to check for changes, and spares etcd.
    let (params, deadline) = match known {
        true => (GetParams::any(), RENEWAL_TIMEOUT),
        false => (GetParams::default(), REQUEST_TIMEOUT),
    };
    let api = K::api(client.clone(), &key.namespace);
    let request = object(api.get_with(&key.name, &params));
    within(deadline, request).await.map_err(|error| match error {
        KubeError::Api(status) if status.code == 404 => {
            Error::NotFound { kind: K::NAME, name: key.name.to_string() }
        }
        error => Error::request(key.action::<K>(), error),
    })
}

impl Inner {
    fn retain(inner: &Arc<Self>, reference: &Reference) {
        match reference {
            Reference::Secret(key) => inner.secrets.retain(inner, key, reference),
            Reference::ConfigMap(key) => inner.config_maps.retain(inner, key, reference),
            Reference::RuntimeClass(key) => inner.runtime_classes.retain(inner, key, reference),
            Reference::TrustBundles => {
                if let (Some(bundles), Some(client)) = (&inner.bundles, &inner.client) {
                    bundles.retain(client, Self::notifier(inner, reference));
                }
            }
        }
    }

    fn release(&self, reference: &Reference) {
        match reference {
            Reference::Secret(key) => self.secrets.release(key),
            Reference::ConfigMap(key) => self.config_maps.release(key),
            Reference::RuntimeClass(key) => self.runtime_classes.release(key),
            Reference::TrustBundles => self.bundles.iter().for_each(Bundles::release),
        }
    }

    /// A callback that notifies pods of changes of the object, while this exists.
    fn notifier(inner: &Arc<Self>, reference: &Reference) -> impl Fn() + Send + Sync + 'static {
        let (inner, reference) = (Arc::downgrade(inner), reference.clone());
        move || {
            if let Some(inner) = inner.upgrade() {
                inner.changed(&reference);
            }
        }
    }

    /// Notifies the pods that refer to the object.
    fn changed(&self, reference: &Reference) {
        let pods = self.pods();
        let concerned = pods.values().filter(|pod| pod.references.contains(reference));
        concerned.for_each(|pod| pod.pending.add(reference));
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, Registered>> {
        self.pods.lock()
    }
}

impl<K: Named> Store<K> {
    fn new(detection: Detection) -> Self {
        match detection {
            Detection::Watch => Self::Watched(Watched::default()),
            Detection::Cache(_) => Self::Cached(Cache::default()),
            Detection::Get(_) => Self::Uncached,
        }
    }

    fn retain(&self, inner: &Arc<Inner>, key: &Key, reference: &Reference) {
        match (self, &inner.client) {
            (Self::Watched(watched), Some(client)) => {
                watched.retain(key, client, Inner::notifier(inner, reference));
            }
            (Self::Cached(cache), _) => cache.retain(key),
            _ => {}
        }
    }

    fn release(&self, key: &Key) {
        match self {
            Self::Watched(watched) => watched.release(key),
            Self::Cached(cache) => cache.release(key),
            Self::Uncached => {}
        }
    }
}

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects)]
pub mod fake;
#[cfg(test)]
mod tests;
