//! Executes the steps for claims and volumes. Each write replaces the version that was decided about;
//! where two watches may be out of step, the apiserver is asked before anything is given up.

use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{
    Event, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus,
    Pod,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use longshore_base::trees;
use longshore_client::Item;
use tokio::time::Instant;

use super::claim::ClaimStep;
use super::volume::{IN_TREE_PROTECTION, VolumeStep};
use super::{Controller, RECYCLER_RETRY, matching, recycler};
use crate::volumes::event::{REPEAT, VolumeEvent};
use crate::volumes::objects::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, MIGRATED_TO, PROVISIONERS, STORAGE, annotate, annotation,
    claim_of, claim_phase, claim_uid, volume_name, volume_phase, volume_spec,
};
use crate::volumes::writes::{replace, replace_status};
use crate::workload::{Error, name_of, namespace_of, uid_of};
use crate::writes::{is_conflict, unless_gone, unless_replaced};

/// On a volume: the size that it had before its file system is grown on a node.
const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

impl Controller {
    pub(super) async fn claim_step(
        &self,
        claim: &PersistentVolumeClaim,
        step: Option<ClaimStep>,
        event: Option<VolumeEvent>,
    ) -> Result<(), Error> {
        match step {
            None => {}
            Some(ClaimStep::Bind(volume)) => self.bind(claim, &volume).await?,
            Some(ClaimStep::Phase("Lost")) if self.has_volume(claim).await? => return Ok(()),
            Some(ClaimStep::Phase(phase)) => {
                let mut new = claim.clone();
                let status = new.status.get_or_insert_default();
                *status = PersistentVolumeClaimStatus {
                    phase: Some(phase.to_owned()),
                    access_modes: None,
                    capacity: None,
                    current_volume_attributes_class_name: None,
                    ..std::mem::take(status)
                };
                unless_gone(replace_status(&self.client, &self.claims, &new).await)?;
            }
            Some(ClaimStep::Class(class)) => {
                let mut new = claim.clone();
                new.spec.get_or_insert_default().storage_class_name = Some(class);
                let written = unless_gone(replace(&self.client, &self.claims, &new).await);
                match &written {
                    Ok(_) => self.metrics.retroactive_classes.inc(),
                    Err(_) => self.metrics.retroactive_class_errors.inc(),
                }
                written?;
            }
            Some(ClaimStep::Provision(provisioner)) => {
                let mut new = claim.clone();
                for name in PROVISIONERS {
                    annotate(&mut new.metadata, name, &provisioner);
                }
                unless_gone(replace(&self.client, &self.claims, &new).await)?;
            }
            Some(ClaimStep::MigratedTo(driver)) => {
                let mut new = claim.clone();
                set_migration(&mut new.metadata.annotations, driver);
                unless_gone(replace(&self.client, &self.claims, &new).await)?;
            }
        }
        self.events.record(claim, event);
        Ok(())
    }

    /// Whether the volume that the claim names has come meanwhile.
    async fn has_volume(&self, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
        let name = volume_name(claim);
        if name.is_empty() || self.volumes.store().get(name).is_some() {
            return Ok(false);
        }
        let api: Api<Item<PersistentVolume>> = Api::all(self.client.clone());
        Ok(api.get_opt(name).await?.is_some())
    }

    /// The volume first: a claim that is bound must find its volume so.
    async fn bind(&self, claim: &PersistentVolumeClaim, name: &str) -> Result<(), Error> {
        let Some(volume) = self.volumes.store().get(name) else { return Ok(()) };
        let volume = match bound_volume(&volume, claim) {
            Some(new) => replace(&self.client, &self.volumes, &new).await?,
            None => PersistentVolume::clone(&volume),
        };
        let volume = self.enter(volume, "Bound", "").await?;
        let claim = match named_claim(claim, &volume) {
            Some(new) => replace(&self.client, &self.claims, &new).await?,
            None => claim.clone(),
        };
        if let Some(new) = bound_claim(&claim, &volume) {
            replace_status(&self.client, &self.claims, &new).await?;
        }
        Ok(())
    }

    pub(super) async fn volume_step(
        &self,
        volume: &PersistentVolume,
        step: Option<VolumeStep>,
        event: Option<VolumeEvent>,
    ) -> Result<(), Error> {
        match step {
            None => {}
            Some(VolumeStep::Phase("Released", _)) if self.has_claim(volume).await? => {
                return Ok(());
            }
            Some(VolumeStep::Phase(phase, message)) => {
                unless_gone_for(self.enter(volume.clone(), phase, &message).await)?;
            }
            Some(VolumeStep::Unbind) => self.unbind(volume).await?,
            Some(VolumeStep::DeleteData) => return self.delete(volume).await,
            Some(VolumeStep::StartRecycler) => self.start_recycler(volume).await?,
            Some(VolumeStep::Recycled) => {
                self.delete_recycler(volume).await?;
                self.failures().remove(name_of(volume));
                self.events.record(volume, event);
                return self.unbind(volume).await;
            }
            Some(VolumeStep::RecyclerFailed(why)) => {
                self.failures().insert(name_of(volume).to_owned(), Instant::now());
                unless_gone_for(self.enter(volume.clone(), "Failed", &why).await)?;
                self.delete_recycler(volume).await?;
            }
            Some(VolumeStep::MigratedTo(driver)) => {
                let mut new = volume.clone();
                set_migration(&mut new.metadata.annotations, driver);
                unless_gone(replace(&self.client, &self.volumes, &new).await)?;
            }
            Some(VolumeStep::Finalizers(finalizers)) => {
                let mut new = volume.clone();
                new.metadata.finalizers = Some(finalizers);
                unless_gone(replace(&self.client, &self.volumes, &new).await)?;
            }
        }
        self.events.record(volume, event);
        Ok(())
    }

    /// Whether the claim that the volume is bound to is there after all.
    async fn has_claim(&self, volume: &PersistentVolume) -> Result<bool, Error> {
        let Some(reference) = volume_spec(volume).claim_ref.as_ref() else { return Ok(false) };
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let api: Api<Item<PersistentVolumeClaim>> = Api::namespaced(self.client.clone(), namespace);
        let found = api.get_opt(reference.name.as_deref().unwrap_or_default()).await?;
        Ok(found.is_some_and(|found| uid_of(&found.known()) == claim_uid(volume)))
    }

    /// The volume is in this phase, from now on if it was not.
    async fn enter(
        &self,
        mut volume: PersistentVolume,
        phase: &str,
        message: &str,
    ) -> Result<PersistentVolume, Error> {
        if volume_phase(&volume) == phase {
            return Ok(volume);
        }
        let status = volume.status.get_or_insert_default();
        status.phase = Some(phase.to_owned());
        status.message = Some(message.to_owned()).filter(|message| !message.is_empty());
        Ok(replace_status(&self.client, &self.volumes, &volume).await?)
    }

    /// Removes what this controller wrote; a prebinding of others stays.
    async fn unbind(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let written = replace(&self.client, &self.volumes, &unbound(volume)).await;
        if let Some(written) = unless_gone(written)? {
            unless_gone_for(self.enter(written, "Available", "").await)?;
        }
        Ok(())
    }

    async fn start_recycler(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let failed = self.failures().get(name_of(volume)).copied();
        let waited = failed.map(|at| Instant::now().saturating_duration_since(at));
        if let Some(wait) = waited.and_then(|waited| RECYCLER_RETRY.checked_sub(waited))
            && !wait.is_zero()
        {
            self.queues.volumes.add_after(name_of(volume).to_owned(), wait);
            return Ok(());
        }
        let pod = recycler::pod(volume, &self.recyclers);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace_of(&pod));
        match api.create(&PostParams::default(), &pod).await {
            Err(error) if !is_conflict(&error) => Err(error.into()),
            // The watch reports it.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn delete_recycler(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let Some(pod) = self.pods.store().get(&recycler::key(volume)) else { return Ok(()) };
        self.copy_events(&pod, volume).await?;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace_of(&*pod));
        unless_replaced(api.delete(name_of(&*pod), &of_uid(&*pod)).await)?;
        Ok(())
    }

    /// Records what was said of a recycler pod at its volume.
    async fn copy_events(&self, pod: &Pod, volume: &PersistentVolume) -> Result<(), Error> {
        // the controller's role lets it watch events alone
        let api: Api<Event> = Api::namespaced(self.reader.clone(), namespace_of(pod));
        let of_pod = format!("involvedObject.uid={}", uid_of(pod));
        for event in api.list(&ListParams::default().fields(&of_pod)).await?.items {
            let message = format!("Recycler pod: {}", event.message.unwrap_or_default());
            let event = match event.type_.as_deref() {
                Some("Warning") => VolumeEvent::warning("RecyclerPod", message),
                _ => VolumeEvent::normal("RecyclerPod", message),
            };
            self.events.record(volume, event);
        }
        Ok(())
    }

    /// Deletes the data of a volume on this machine, where that was allowed, and the volume.
    async fn delete(&self, volume: &PersistentVolume) -> Result<(), Error> {
        if let Err(why) = self.delete_data(volume).await {
            self.operations.ended::<(), _>(name_of(volume), &Err(()));
            let event = VolumeEvent::warning("VolumeFailedDelete", why.clone());
            unless_gone_for(self.enter(volume.clone(), "Failed", &why).await)?;
            self.events.record(volume, event);
            self.queues.volumes.add_after(name_of(volume).to_owned(), REPEAT);
            return Ok(());
        }
        let finalizers = volume.metadata.finalizers.as_deref().unwrap_or_default();
        if finalizers.iter().any(|own| own == IN_TREE_PROTECTION) {
            let mut new = volume.clone();
            let kept = finalizers.iter().filter(|own| *own != IN_TREE_PROTECTION).cloned();
            new.metadata.finalizers = Some(kept.collect());
            replace(&self.client, &self.volumes, &new).await?;
        }
        let api: Api<Item<PersistentVolume>> = Api::all(self.client.clone());
        unless_replaced(api.delete(name_of(volume), &of_uid(volume)).await)?;
        Ok(())
    }

    async fn delete_data(&self, volume: &PersistentVolume) -> Result<(), String> {
        if !self.deletes_host_paths {
            let why = "data of hostPath volumes is deleted with --enable-hostpath-provisioner only";
            return Err(why.to_owned());
        }
        let path = volume_spec(volume).host_path.as_ref().map(|source| source.path.clone());
        let path = path.unwrap_or_default();
        let below = path.strip_prefix("/tmp/").unwrap_or_default();
        let is_below = |part: Component<'_>| matches!(part, Component::Normal(_));
        if below.trim_matches('/').is_empty() || !Path::new(below).components().all(is_below) {
            return Err(format!(
                "host_path deleter only supports /tmp/.+ but received provided {path}"
            ));
        }
        let removed = tokio::task::spawn_blocking(move || {
            let removed = match std::fs::canonicalize(&path) {
                Ok(real) if real == Path::new(path.trim_end_matches('/')) => trees::remove(&real),
                Ok(_) => Err(std::io::Error::other("there are symbolic links in the path")),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            };
            removed.map_err(|error| format!("delete {path}: {error}"))
        });
        removed.await.map_err(|error| error.to_string())?
    }
}

/// Success if the object is gone.
fn unless_gone_for<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Err(Error::Api(error)) => Ok(unless_gone(Err(error))?),
        other => other.map(Some),
    }
}

fn of_uid<K: longshore_informer::Object>(object: &K) -> DeleteParams {
    let uid = Some(uid_of(object).to_owned());
    DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    }
}

/// The annotation names the driver, or is gone.
fn set_migration(
    annotations: &mut Option<std::collections::BTreeMap<String, String>>,
    driver: Option<&str>,
) {
    let annotations = annotations.get_or_insert_default();
    match driver {
        Some(driver) => drop(annotations.insert(MIGRATED_TO.to_owned(), driver.to_owned())),
        None => drop(annotations.remove(MIGRATED_TO)),
    }
}

/// PURE: the volume bound to the claim; `None`: it is.
fn bound_volume(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<PersistentVolume> {
    if claim_of(volume).is_some() && claim_uid(volume) == uid_of(claim) {
        return None;
    }
    let mut new = volume.clone();
    new.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        name: claim.metadata.name.clone(),
        namespace: claim.metadata.namespace.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        uid: claim.metadata.uid.clone(),
        ..ObjectReference::default()
    });
    if !matching::is_for(volume, claim) {
        annotate(&mut new.metadata, BOUND_BY_CONTROLLER, "yes");
    }
    Some(new)
}

/// PURE: the volume without its claim, or without the claim's UID where somebody else wrote the claim.
fn unbound(volume: &PersistentVolume) -> PersistentVolume {
    let mut new = volume.clone();
    let spec = new.spec.get_or_insert_default();
    if annotation(volume, BOUND_BY_CONTROLLER).is_some() {
        spec.claim_ref = None;
        new.metadata.annotations.get_or_insert_default().remove(BOUND_BY_CONTROLLER);
    } else if let Some(claim) = &mut spec.claim_ref {
        claim.uid = None;
    }
    new
}

/// PURE: the claim that names the volume; `None`: it does.
fn named_claim(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Option<PersistentVolumeClaim> {
    let mut new = claim.clone();
    let name = name_of(volume);
    if volume_name(claim) != name {
        new.spec.get_or_insert_default().volume_name = Some(name.to_owned());
        annotate(&mut new.metadata, BOUND_BY_CONTROLLER, "yes");
    }
    annotate(&mut new.metadata, BIND_COMPLETED, "yes");
    (new != *claim).then_some(new)
}

fn parses(size: &str) -> bool {
    longshore_quantity::Quantity::parse(size).is_some()
}

/// PURE: the claim whose status is that of a bound one; `None`: it is.
fn bound_claim(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Option<PersistentVolumeClaim> {
    let mut new = claim.clone();
    let spec = volume_spec(volume);
    let phase = claim_phase(claim);
    let status = new.status.get_or_insert_default();
    status.access_modes = spec.access_modes.clone();
    if phase != "Bound" {
        status.phase = Some("Bound".to_owned());
        let before = annotation(volume, PRE_RESIZE_CAPACITY).filter(|size| parses(size));
        let size = before.map(|size| Quantity(size.to_owned()));
        if let Some(size) = size.or_else(|| spec.capacity.as_ref()?.get(STORAGE).cloned()) {
            status.capacity.get_or_insert_default().insert(STORAGE.to_owned(), size);
        }
    }
    if phase == "Pending" {
        let class = spec.volume_attributes_class_name.clone();
        status.current_volume_attributes_class_name = class;
    }
    (new != *claim).then_some(new)
}
