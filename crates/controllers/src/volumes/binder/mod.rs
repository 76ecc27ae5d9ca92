//! Binds claims to volumes, has volumes provisioned for claims, and reclaims volumes whose claims are
//! gone.
//!
//! Current limitations: nothing is provisioned here but by the hostPath provisioner, as upstream
//! leaves everything else to external provisioners; events of recycler pods are copied to their volumes
//! when the pods have ended.

mod claim;
mod matching;
mod operations;
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
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Client;
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use self::claim::{ClaimStep as Step, EXTERNAL_PROVISIONING, claim as next_of_claim};
use self::operations::Operations;
use self::volume::volume as next_of_volume;
use super::event::{Events, REPEAT};
use super::metrics;
use super::objects::{
    BY_CLAIM, OPEN_BY_CLASS, PROVISIONERS, annotation, claim_of, claim_phase, claims_of,
    index_claims, index_pods, index_volumes, is_bound_for_good, is_terminated, volume_class,
    volume_name, volume_phase,
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

/// The keys of what is synced. Claims and volumes are synced beside each other; a write that comes too
/// late is a conflict, and is decided about again.
#[derive(Clone)]
struct Queues {
    claims: WorkQueue<String>,
    volumes: WorkQueue<String>,
}

impl Queues {
    fn add_claims(&self, claims: impl IntoIterator<Item = String>) {
        claims.into_iter().for_each(|claim| self.claims.add(claim));
    }
}

struct Controller {
    client: Client,
    /// With the credentials of the program.
    reader: Client,
    volumes: Informer<PersistentVolume>,
    claims: Informer<PersistentVolumeClaim>,
    classes: Informer<StorageClass>,
    pods: Informer<Pod>,
    queues: Queues,
    events: Events,
    provisions: bool,
    deletes_host_paths: bool,
    recyclers: RecyclerSettings,
    /// When the recycler of a volume failed last, by the volume's name.
    failures: Mutex<HashMap<String, Instant>>,
    metrics: Arc<Metrics>,
    operations: Operations,
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
        pods: context.informers.get(),
        queues: Queues {
            claims: WorkQueue::new("claims", &context.queues),
            volumes: WorkQueue::new("volumes", &context.queues),
        },
        events: Events::new(context.recorder("persistentvolume-controller")),
        provisions: settings.enable_dynamic_provisioning,
        deletes_host_paths: settings.enable_hostpath_provisioner,
        recyclers: settings.recyclers.clone(),
        failures: Mutex::default(),
        metrics: context.metrics.clone(),
        operations: Operations::new(context.metrics.volume_operations.clone()),
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
        controller.pods.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let name = "persistentvolume-binder-controller";
    let (queues, stop) = (&controller.queues, &context.stop);
    join(
        run_workers(name, &queues.claims, 1, stop, |key| controller.sync_claim(key)),
        run_workers(name, &queues.volumes, 1, stop, |key| controller.sync_volume(key)),
    )
    .await;
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
            let (queues, claims) = (self.queues.clone(), self.claims.clone());
            move |event: &Event<PersistentVolume>| {
                let volume = event.latest();
                queues.volumes.add(key_of(&**volume));
                for known in event.old().into_iter().chain([volume]) {
                    queues.add_claims(claim_of(known));
                }
                let named = claims.store().by_index(BY_VOLUME, &key_of(&**volume));
                queues.add_claims(named.iter().map(|claim| key_of(&**claim)));
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
                    queues.add_claims(open.iter().map(|claim| key_of(&**claim)));
                }
            }
        });
        self.claims.subscribe({
            let (queues, volumes) = (self.queues.clone(), self.volumes.clone());
            move |event: &Event<PersistentVolumeClaim>| {
                let claim = event.latest();
                let key = key_of(&**claim);
                for volume in volumes.store().by_index(BY_CLAIM, &key) {
                    queues.volumes.add(key_of(&*volume));
                }
                match volume_name(claim) {
                    "" => {}
                    name => queues.volumes.add(name.to_owned()),
                }
                queues.claims.add(key);
            }
        });
        self.pods.subscribe({
            let queues = self.queues.clone();
            let (claims, volumes) = (self.claims.clone(), self.volumes.clone());
            move |event: &Event<Pod>| {
                let pod = event.latest();
                if let Some(volume) = recycler::volume_of(pod) {
                    queues.volumes.add(volume.to_owned());
                }
                if !has_moved(event) {
                    return;
                }
                for claim in claims_of(pod) {
                    for volume in volumes.store().by_index(BY_CLAIM, &claim) {
                        if matches!(volume_phase(&volume), "Released" | "Failed") {
                            queues.volumes.add(key_of(&*volume));
                        }
                    }
                    let known = claims.store().get(&claim);
                    if known.is_some_and(|claim| !is_bound_for_good(&claim)) {
                        queues.claims.add(claim);
                    }
                }
            }
        });
        self.classes.subscribe({
            let (queues, claims) = (self.queues.clone(), self.claims.clone());
            move |_: &Event<StorageClass>| {
                let all = claims.store().list();
                let open = all.iter().filter(|claim| !is_bound_for_good(claim));
                queues.add_claims(open.map(|claim| key_of(&**claim)));
            }
        });
    }

    fn state(&self) -> state::State<'_> {
        state::State {
            volumes: self.volumes.store(),
            claims: self.claims.store(),
            classes: self.classes.store(),
            pods: self.pods.store(),
            provisions: self.provisions,
        }
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.failures.lock()
    }

    async fn sync_claim(&self, key: String) -> Result<(), Error> {
        let Some(claim) = self.claims.store().get(&key) else {
            self.operations.forget(&key);
            return Ok(());
        };
        let (step, event) = next_of_claim(self.state(), &claim);
        let provisioner = match (&step, &event) {
            (Some(Step::Provision(provisioner)), _) => Some(provisioner.as_str()),
            (_, Some(event)) if event.reason == EXTERNAL_PROVISIONING => {
                annotation(&*claim, PROVISIONERS[0])
            }
            _ => None,
        };
        if let Some(provisioner) = provisioner {
            self.operations.begin(&key, provisioner, "provision");
        }
        let is_bound = matches!(step, Some(Step::Bind(_)));
        // What waits says so again.
        if event.is_some() && claim_phase(&claim) == "Pending" {
            self.queues.claims.add_after(key.clone(), REPEAT);
        }
        let done = self.claim_step(&claim, step, event).await;
        if is_bound || done.is_err() {
            self.operations.ended(&key, &done);
        }
        done
    }

    /// The plugin or the provisioner that deletes the volume's data.
    fn deleter(&self, volume: &PersistentVolume) -> String {
        let class = || self.classes.store().get(volume_class(volume));
        let provisioner = || {
            let provisioner = class().map(|class| class.provisioner.clone())?;
            let driver = longshore_migration::driver(&provisioner).map(str::to_owned);
            Some(driver.unwrap_or(provisioner))
        };
        match volume::is_deleted_here(volume) {
            true => volume::HOST_PATH.to_owned(),
            false => provisioner().unwrap_or_else(|| "N/A".to_owned()),
        }
    }

    async fn sync_volume(&self, name: String) -> Result<(), Error> {
        let Some(volume) = self.volumes.store().get(&name) else {
            self.failures().remove(&name);
            self.operations.ended::<_, Error>(&name, &Ok(()));
            return Ok(());
        };
        if volume::is_to_be_deleted(&volume) {
            self.operations.begin(&name, &self.deleter(&volume), "delete");
        }
        let (step, event) = next_of_volume(self.state(), &volume);
        self.volume_step(&volume, step, event).await
    }
}
