//! Binds claims to volumes, has volumes provisioned for claims, and reclaims volumes whose claims are
//! gone.
//!
//! Current limitations: nothing is provisioned here but by the hostPath provisioner, as upstream
//! leaves everything else to external provisioners; events of recycler pods are copied to their volumes
//! when the pods have ended.

mod claim;
mod matching;
mod recycler;
mod state;
mod volume;
mod writes;

#[cfg(test)]
pub(super) use self::claim::{ClaimStep, claim as next_for_claim};
#[cfg(test)]
pub(super) use self::state::{Decision, State};
#[cfg(test)]
pub(super) use self::volume::{VolumeStep, volume as next_for_volume};

use std::collections::HashMap;
use std::fmt::{Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Client;
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use self::claim::claim as next_of_claim;
use self::volume::volume as next_of_volume;
use super::event::{Events, REPEAT};
use super::metrics;
use super::objects::{
    BY_CLAIM, OPEN_BY_CLASS, claim_of, claim_phase, claims_of, index_claims, index_pods,
    index_volumes, is_bound_for_good, is_terminated, open_claims_on, volume_class, volume_name,
    volume_phase,
};
use crate::cluster_settings::RecyclerSettings;
use crate::pods::node_of;
use crate::workload::Error;
use crate::writes::unless_stopped;
use crate::{Context, Metrics};

/// How long a recycler that failed is not started again.
const RECYCLER_RETRY: Duration = Duration::from_secs(15);
/// The index of claims by the volume that they name.
const BY_VOLUME: &str = "volume";

/// What is synced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Claim(String),
    Volume(String),
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Claim(key) | Key::Volume(key) => f.write_str(key),
        }
    }
}

struct Controller {
    client: Client,
    /// With the credentials of the program.
    reader: Client,
    volumes: Informer<PersistentVolume>,
    claims: Informer<PersistentVolumeClaim>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    queue: WorkQueue<Key>,
    events: Events,
    provisions: bool,
    deletes_host_paths: bool,
    recyclers: RecyclerSettings,
    /// When the recycler of a volume failed last, by the volume's name.
    failures: Mutex<HashMap<String, Instant>>,
    metrics: Arc<Metrics>,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let settings = &context.settings.cluster;
    let controller = Controller {
        client: context.client.clone(),
        reader: context.informers.client().clone(),
        volumes: context.informers.get(),
        claims: context.informers.get(),
        classes: context.informers.get(),
        nodes: context.informers.get(),
        pods: context.informers.get(),
        queue: WorkQueue::new("persistentvolumes", &context.queues),
        events: Events::new(context.recorder("persistentvolume-controller")),
        provisions: settings.enable_dynamic_provisioning,
        deletes_host_paths: settings.enable_hostpath_provisioner,
        recyclers: settings.recyclers.clone(),
        failures: Mutex::default(),
        metrics: context.metrics.clone(),
    };
    context.metrics.volumes.set({
        let (volumes, claims) = (controller.volumes.clone(), controller.claims.clone());
        move |text| metrics::write(text, &volumes.store().list(), &claims.store().list())
    });
    index_volumes(controller.volumes.store());
    index_claims(controller.claims.store());
    controller.claims.store().add_index(BY_VOLUME, |claim| match volume_name(claim) {
        "" => vec![],
        name => vec![name.to_owned()],
    });
    index_pods(controller.pods.store());
    controller.subscribe();
    let all = async {
        controller.volumes.synced().await;
        controller.claims.synced().await;
        controller.classes.synced().await;
        controller.nodes.synced().await;
        controller.pods.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let name = "persistentvolume-binder-controller";
    run_workers(name, &controller.queue, 1, &context.stop, |key| controller.sync(key)).await;
}

/// Whether pods count for the binding differently than before.
fn has_moved(event: &Event<Pod>) -> bool {
    let seen = |pod: &Pod| (node_of(pod).to_owned(), is_terminated(pod));
    match event {
        Event::Updated { old, new } => seen(old) != seen(new),
        Event::Added(_) | Event::Deleted(_) => true,
    }
}

impl Controller {
    fn subscribe(&self) {
        self.volumes.subscribe({
            let (queue, claims) = (self.queue.clone(), self.claims.clone());
            move |event: &Event<PersistentVolume>| {
                let volume = event.latest();
                queue.add(Key::Volume(key_of(&**volume)));
                for known in event.old().into_iter().chain([volume]) {
                    queue_all(&queue, claim_of(known));
                }
                let named = claims.store().by_index(BY_VOLUME, &key_of(&**volume));
                queue_all(&queue, named.iter().map(|claim| key_of(&**claim)));
                let is_open = |volume: &PersistentVolume| {
                    claim_of(volume).is_none() && volume_phase(volume) == "Available"
                };
                let is_same = |old: &PersistentVolume| {
                    is_open(old)
                        && old.spec == volume.spec
                        && old.metadata.labels == volume.metadata.labels
                };
                if is_open(volume) && !matches!(event, Event::Updated { old, .. } if is_same(old)) {
                    let open = claims.store().by_index(OPEN_BY_CLASS, volume_class(volume));
                    queue_all(&queue, open.iter().map(|claim| key_of(&**claim)));
                }
            }
        });
        self.claims.subscribe({
            let (queue, volumes) = (self.queue.clone(), self.volumes.clone());
            move |event: &Event<PersistentVolumeClaim>| {
                let claim = event.latest();
                let key = key_of(&**claim);
                for volume in volumes.store().by_index(BY_CLAIM, &key) {
                    queue.add(Key::Volume(key_of(&*volume)));
                }
                match volume_name(claim) {
                    "" => {}
                    name => queue.add(Key::Volume(name.to_owned())),
                }
                queue.add(Key::Claim(key));
            }
        });
        self.pods.subscribe({
            let queue = self.queue.clone();
            let (claims, volumes) = (self.claims.clone(), self.volumes.clone());
            move |event: &Event<Pod>| {
                let pod = event.latest();
                if let Some(volume) = recycler::volume_of(pod) {
                    queue.add(Key::Volume(volume.to_owned()));
                }
                if !has_moved(event) {
                    return;
                }
                for claim in claims_of(pod) {
                    for volume in volumes.store().by_index(BY_CLAIM, &claim) {
                        if matches!(volume_phase(&volume), "Released" | "Failed") {
                            queue.add(Key::Volume(key_of(&*volume)));
                        }
                    }
                    let known = claims.store().get(&claim);
                    if known.is_some_and(|claim| !is_bound_for_good(&claim)) {
                        queue.add(Key::Claim(claim));
                    }
                }
            }
        });
        self.nodes.subscribe({
            let (queue, claims) = (self.queue.clone(), self.claims.clone());
            let pods = self.pods.clone();
            move |event: &Event<Node>| {
                let is_same = matches!(event, Event::Updated { old, new }
                    if old.metadata.labels == new.metadata.labels);
                if !is_same {
                    queue_all(&queue, open_claims_on(pods.store(), claims.store(), event.latest()));
                }
            }
        });
        self.classes.subscribe({
            let (queue, claims) = (self.queue.clone(), self.claims.clone());
            move |_: &Event<StorageClass>| {
                let all = claims.store().list();
                let open = all.iter().filter(|claim| !is_bound_for_good(claim));
                queue_all(&queue, open.map(|claim| key_of(&**claim)));
            }
        });
    }

    fn state(&self) -> state::State<'_> {
        state::State {
            volumes: self.volumes.store(),
            claims: self.claims.store(),
            classes: self.classes.store(),
            nodes: self.nodes.store(),
            pods: self.pods.store(),
            provisions: self.provisions,
        }
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.failures.lock()
    }

    async fn sync(&self, key: Key) -> Result<(), Error> {
        match &key {
            Key::Claim(name) => {
                let Some(claim) = self.claims.store().get(name) else { return Ok(()) };
                let (step, event) = next_of_claim(self.state(), &claim);
                // What waits says so again.
                if event.is_some() && claim_phase(&claim) == "Pending" {
                    self.queue.add_after(key.clone(), REPEAT);
                }
                self.claim_step(&claim, step, event).await
            }
            Key::Volume(name) => {
                let Some(volume) = self.volumes.store().get(name) else {
                    self.failures().remove(name);
                    return Ok(());
                };
                let (step, event) = next_of_volume(self.state(), &volume);
                self.volume_step(&volume, step, event).await
            }
        }
    }
}

fn queue_all(queue: &WorkQueue<Key>, claims: impl IntoIterator<Item = String>) {
    claims.into_iter().for_each(|claim| queue.add(Key::Claim(claim)));
}
