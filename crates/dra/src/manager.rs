//! Prepares and unprepares the claims of pods.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, Node, Pod, PodStatus};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use longshore_base::clock;
use longshore_client::{Item, error_message, object};
use longshore_metrics::Registry;
use longshore_plugins::Handler;
use longshore_pod::spec;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};

use crate::answers::{self, PREPARE, UNPREPARE};
use crate::checkpoint::Checkpoint;
use crate::claims::{Batches, Claim, Claims, Key};
use crate::drivers::{Drivers, Monitor};
use crate::error::{Error, words};
use crate::health::HealthFile;
use crate::locks::Locks;
use crate::metrics::Metrics;
use crate::names;
use crate::plugin::Plugin;
use crate::slices::Slices;

/// Time between the reconciliations of claims with the pods that there are.
const RECONCILE_PERIOD: Duration = Duration::from_secs(60);
/// Time that a claim may take to be read.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The gates that matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gates {
    /// `DRAExtendedResource`.
    pub extended_resources: bool,
    /// `ResourceHealthStatus`.
    pub health: bool,
    /// `ResourceHealthStatusMessage`.
    pub health_messages: bool,
}

/// What a manager depends on.
pub struct Parts {
    /// The node's root directory, with the checkpoint.
    pub root: PathBuf,
    /// The node's name.
    pub node_name: String,
    /// The apiserver, if there is one.
    pub client: Option<Client>,
    /// The Node, if there is an apiserver.
    pub node: Option<watch::Receiver<Option<Arc<Node>>>>,
    /// The gates.
    pub gates: Gates,
}

/// What a container uses of a claim, for those who ask about the resources of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicResource {
    /// The name of the ResourceClaim.
    pub claim_name: String,
    /// Its namespace.
    pub claim_namespace: String,
    /// Its devices.
    pub devices: Vec<ClaimDevice>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDevice {
    /// Its driver.
    pub driver: String,
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// The share of it.
    pub share_id: Option<String>,
    /// Its names for the runtime, as `vendor.com/class=name`.
    pub cdi_devices: Vec<String>,
}

/// Prepares and unprepares the claims of pods. Cheap to clone.
#[derive(Clone)]
pub struct Manager(Arc<Inner>);

struct Inner {
    claims: Arc<Mutex<Claims>>,
    checkpoint: Checkpoint,
    locks: Locks,
    drivers: Arc<Drivers>,
    health: Option<Arc<Monitor>>,
    client: Option<Client>,
    gates: Gates,
    metrics: Metrics,
}

impl Manager {
    /// Restores the claims from the checkpoint.
    ///
    /// # Errors
    /// [`Error::Restore`] when there is a checkpoint that cannot be read.
    pub fn open(parts: Parts, registry: &Registry) -> Result<Self, Error> {
        let Parts { root, node_name, client, node, gates } = parts;
        let (checkpoint, claims) = Checkpoint::open(&root)?;
        let claims = Arc::new(Mutex::new(claims));
        let metrics = Metrics::new(registry, claims.clone());
        let health = gates.health.then(|| {
            let (file, cache) = HealthFile::open(&root);
            let (cache, claims) = (Mutex::new(cache), claims.clone());
            Arc::new(Monitor { cache, file, claims, changes: watch::Sender::new(0) })
        });
        let slices = client.clone().zip(node);
        let slices = slices.map(|(client, node)| Slices { client, node_name, node });
        let drivers = Drivers::new(slices, health.clone(), metrics.clone());
        let locks = Locks::default();
        let inner = Inner { claims, checkpoint, locks, drivers, health, client, gates, metrics };
        Ok(Self(Arc::new(inner)))
    }

    /// The handler of the plugins of drivers.
    pub fn handler(&self) -> Arc<dyn Handler> {
        self.0.drivers.clone()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn drivers(&self) -> &Drivers {
        &self.0.drivers
    }

    /// Deletes this node's ResourceSlices. To be called once, when the daemon starts: drivers that register
    /// publish theirs again.
    pub async fn wipe_slices(self) {
        self.0.drivers.wipe_all().await;
    }

    /// Prepares the claims of a pod. May be repeated, and dropped while it runs: what was begun is undone by
    /// [`Self::unprepare`].
    ///
    /// # Errors
    /// When the pod may not start.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), Error> {
        let began = Instant::now();
        let prepared = self.try_prepare(pod).await;
        self.0.metrics.operation("PrepareResources", prepared.is_err(), began.elapsed());
        prepared.map_err(|error| Error::Prepare(Box::new(error)))
    }

    async fn try_prepare(&self, pod: &Pod) -> Result<(), Error> {
        let own = &*self.0;
        let wanted = names::pod_claims(pod, own.gates.extended_resources)?;
        if wanted.is_empty() {
            return Ok(());
        }
        // All is checked before anything is noted, so that a pod that cannot start leaves nothing that only
        // a driver can undo.
        let (mut claims, mut plugins) = (Vec::new(), BTreeMap::new());
        for claim in wanted {
            let object = self.fetch(spec::namespace(pod), claim.name).await?;
            names::check(pod, &object, claim.is_generated)?;
            let claim = Claim::allocated(&object)?;
            for driver in claim.drivers.keys() {
                plugins.insert(driver.clone(), own.drivers.get(driver)?);
            }
            claims.push(claim);
        }
        let keys: BTreeSet<Key> = claims.iter().map(Claim::key).collect();
        let _guards = own.locks.lock(&keys).await;
        let batches = own.claims.lock().reserve(spec::uid(pod), &claims)?;
        // On disk before a driver is asked: otherwise nobody would unprepare it after a restart.
        own.checkpoint.write(&own.claims).await?;
        if batches.is_empty() {
            own.claims.lock().set_prepared(&keys);
            return Ok(());
        }
        let calls = batches.into_iter().filter_map(|(driver, asked)| {
            let plugin = plugins.get(&driver)?.clone();
            Some(self.prepare_batch(plugin, asked))
        });
        // A driver that hangs does not delay the others.
        join_all(calls).await.into_iter().collect::<Result<(), Error>>()?;
        own.claims.lock().set_prepared(&keys);
        own.checkpoint.write(&own.claims).await
    }

    async fn prepare_batch(
        &self,
        plugin: Arc<Plugin>,
        asked: Vec<crate::api::v1::Claim>,
    ) -> Result<(), Error> {
        let driver = &plugin.driver;
        let answer = plugin.prepare(asked.clone()).await;
        let answer = answer.map_err(|failure| call_error(PREPARE, driver, failure))?;
        let devices = answers::prepared(driver, &asked, answer)?;
        self.0.claims.lock().set_devices(driver, devices);
        Ok(())
    }

    async fn fetch(&self, namespace: &str, name: &str) -> Result<ResourceClaim, Error> {
        let failed = |reason| Error::Fetch { claim: name.to_owned(), reason };
        let Some(client) = &self.0.client else {
            return Err(failed("the node has no apiserver".to_owned()));
        };
        let api: Api<Item<ResourceClaim>> = Api::namespaced(client.clone(), namespace);
        match timeout(FETCH_TIMEOUT, object(api.get(name))).await {
            Ok(Ok(claim)) => Ok(claim),
            Ok(Err(error)) => Err(failed(error_message(&error))),
            Err(_) => Err(failed("context deadline exceeded".to_owned())),
        }
    }

    /// Whether a pod has claims to unprepare.
    pub fn holds(&self, uid: &str) -> bool {
        self.0.claims.lock().is_used_by(uid)
    }

    /// Unprepares the claims of a pod of which nothing runs any more, except those that other pods use. May be
    /// repeated, and dropped while it runs.
    ///
    /// # Errors
    /// When a claim is not unprepared.
    pub async fn unprepare(&self, uid: &str) -> Result<(), Error> {
        let began = Instant::now();
        let unprepared = self.try_unprepare(uid).await;
        self.0.metrics.operation("UnprepareResources", unprepared.is_err(), began.elapsed());
        unprepared.map_err(|error| Error::Unprepare(Box::new(error)))
    }

    async fn try_unprepare(&self, uid: &str) -> Result<(), Error> {
        let own = &*self.0;
        let keys = own.claims.lock().of_pod(uid);
        if keys.is_empty() {
            return Ok(());
        }
        let _guards = own.locks.lock(&keys).await;
        let batches: Batches = own.claims.lock().release(uid);
        let calls = batches.into_iter().map(|(driver, asked)| self.unprepare_batch(driver, asked));
        join_all(calls).await.into_iter().collect::<Result<(), Error>>()?;
        own.claims.lock().remove(uid);
        own.checkpoint.write(&own.claims).await
    }

    async fn unprepare_batch(
        &self,
        driver: String,
        asked: Vec<crate::api::v1::Claim>,
    ) -> Result<(), Error> {
        let plugin = self.0.drivers.get(&driver)?;
        let answer = plugin.unprepare(asked.clone()).await;
        let answer = answer.map_err(|failure| call_error(UNPREPARE, &driver, failure))?;
        answers::unprepared(&driver, &asked, &answer)
    }

    /// Unprepares the claims of pods that are gone, each minute. `pods`: the UIDs of the pods that there are, or
    /// `None` as long as they are not known.
    pub async fn reconcile(self, pods: impl Fn() -> Option<HashSet<String>>) {
        loop {
            // Read first: a pod that is added in between is not gone.
            let used = self.0.claims.lock().pods();
            if let Some(there) = pods() {
                let gone = used.into_iter().filter(|uid| !there.contains(uid));
                join_all(gone.map(|uid| self.unprepare_gone(uid))).await;
            }
            sleep(RECONCILE_PERIOD).await;
        }
    }

    async fn unprepare_gone(&self, uid: String) {
        match self.try_unprepare(&uid).await {
            Ok(()) => info!(uid, "the claims of a pod that is gone are unprepared"),
            Err(error) => debug!(uid, %error, "claims are not unprepared, will be retried"),
        }
    }

    /// The CDI devices of a container, each once.
    ///
    /// # Errors
    /// When one of its claims is not prepared.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, Error> {
        let uses = names::container_uses(pod, container, self.0.gates.extended_resources)?;
        let (namespace, mut devices) = (spec::namespace(pod), Vec::new());
        if uses.is_empty() {
            return Ok(devices);
        }
        let claims = self.0.claims.lock();
        for own in uses {
            let Some(claim) = claims.get(namespace, own.claim) else {
                let (claim, namespace) = (own.claim.to_owned(), namespace.to_owned());
                return Err(Error::NotPrepared { claim, namespace });
            };
            for device in claim.cdi_devices(own.request) {
                if !devices.contains(device) {
                    devices.push(device.clone());
                }
            }
        }
        Ok(devices)
    }

    /// What a container uses of its pod's claims, as the PodResources API shows it: all devices of each claim.
    /// None if a claim is not prepared.
    pub fn resources(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
        let uses = names::container_uses(pod, container, self.0.gates.extended_resources);
        let uses = uses.unwrap_or_default();
        let (namespace, claims) = (spec::namespace(pod), self.0.claims.lock());
        let mut seen = BTreeSet::new();
        let names = uses.into_iter().map(|own| own.claim).filter(|name| seen.insert(*name));
        let found: Option<Vec<&Claim>> = names.map(|name| claims.get(namespace, name)).collect();
        found.unwrap_or_default().into_iter().map(dynamic_resource).collect()
    }

    /// Adds the health of devices to the status of a pod.
    pub fn set_health(&self, pod: &Pod, status: &mut PodStatus) {
        let Some(monitor) = &self.0.health else { return };
        let has_claims = pod.spec.as_ref().is_some_and(|spec| spec.resource_claims.is_some());
        if has_claims {
            let (claims, messages) = (self.0.claims.lock(), self.0.gates.health_messages);
            monitor.cache.lock().set_status(&claims, pod, status, messages, clock::now());
        }
    }

    /// Changes when the health of a device does that a pod uses; `None` if health is not reported.
    pub fn health_changes(&self) -> Option<watch::Receiver<u64>> {
        self.0.health.as_ref().map(|monitor| monitor.changes.subscribe())
    }
}

fn call_error(call: &'static str, driver: &str, failure: longshore_grpc::Failure) -> Error {
    Error::Call { call, text: words(&failure.go_text()), driver: driver.to_owned() }
}

fn dynamic_resource(claim: &Claim) -> DynamicResource {
    let devices = claim.drivers.iter();
    let devices = devices.flat_map(|(driver, own)| own.iter().map(move |own| (driver, own)));
    let device = |(driver, own): (&String, &crate::claims::Device)| ClaimDevice {
        driver: driver.clone(),
        pool: own.pool.clone(),
        device: own.name.clone(),
        share_id: own.share_id.clone(),
        cdi_devices: own.cdi.clone(),
    };
    DynamicResource {
        claim_name: claim.name.clone(),
        claim_namespace: claim.namespace.clone(),
        devices: devices.map(device).collect(),
    }
}
