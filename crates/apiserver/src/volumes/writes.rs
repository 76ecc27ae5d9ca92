//! Executes the steps for claims and volumes. Each write reads the newest object and does nothing if it
//! was replaced; what was written is in the state at once.

use serde_json::{Value, json};

use super::binder::{
    self, BIND_COMPLETED, BOUND_BY_CONTROLLER, ClaimStep, PROVISIONERS, SELECTED_NODE, VolumeEvent,
    VolumeStep, has_annotation,
};
use super::world::Key;
use super::{Task, pod};
use crate::admission::storage::{CLAIM_PROTECTION, VOLUME_PROTECTION, unprotect};
use crate::api_types::Resource;
use crate::kinds::core;
use crate::kinds::note_transition;
use crate::object::{self, child_mut, metadata_mut};
use crate::operations::DeleteOptions;
use crate::registry::Written;
use crate::schema::value::text;
use crate::status::StatusError;
use crate::user::User;

pub(super) type Done = Result<(), StatusError>;

impl Task<'_> {
    pub(super) async fn claim(&mut self, key: &Key) -> Done {
        let (step, event) = binder::claim(&self.world, key);
        let Some(claim) = self.world.claims.get(key).cloned() else { return Ok(()) };
        let done = match step {
            None => Ok(()),
            Some(ClaimStep::Bind(volume)) => self.bind(&claim, &volume).await,
            Some(ClaimStep::Phase("Lost")) if self.has_volume(&claim).await? => return Ok(()),
            Some(ClaimStep::Phase(phase)) => {
                self.change_claim(&claim, |claim| {
                    let status = child_mut(claim, "status");
                    status.insert("phase".into(), phase.into());
                    for field in ["accessModes", "capacity", "currentVolumeAttributesClassName"] {
                        status.remove(field);
                    }
                })
                .await
            }
            Some(ClaimStep::Class(class)) => {
                self.change_claim(&claim, |claim| {
                    let spec = child_mut(claim, "spec");
                    spec.entry("storageClassName").or_insert_with(|| class.as_str().into());
                })
                .await
            }
            Some(ClaimStep::Provision { provisioner, node }) => {
                self.change_claim(&claim, |claim| {
                    for annotation in PROVISIONERS {
                        annotate(claim, annotation, &provisioner);
                    }
                    if let Some(node) = &node {
                        annotate(claim, SELECTED_NODE, node);
                    }
                })
                .await
            }
            Some(ClaimStep::Unprotect) if self.is_in_use(key, &claim).await? => Ok(()),
            Some(ClaimStep::Unprotect) => {
                self.change_claim(&claim, |claim| unprotect(claim, CLAIM_PROTECTION)).await
            }
            Some(ClaimStep::Delete) if self.has_owner(&claim).await? => Ok(()),
            Some(ClaimStep::Delete) => self.delete(core("persistentvolumeclaims")?, &claim).await,
        };
        self.record_event(&claim, event).await;
        done
    }

    /// Whether the volume that the claim names has come meanwhile.
    async fn has_volume(&self, claim: &Value) -> Result<bool, StatusError> {
        let name = text(&claim["spec"]["volumeName"]);
        if name.is_empty() || self.world.volumes.contains_key(name) {
            return Ok(false);
        }
        Ok(self.api.registry.find(core("persistentvolumes")?, "", name).await?.is_some())
    }

    /// Whether a pod has come meanwhile that uses the claim.
    async fn is_in_use(&self, key: &Key, claim: &Value) -> Result<bool, StatusError> {
        let uses = |pod: Value| {
            let pod = pod::Pod::of(&pod);
            (!pod.node.is_empty() && pod.holds(claim)).then_some(())
        };
        let users = self.api.registry.select(core("pods")?, &key.0, uses).await?;
        Ok(!users.is_empty())
    }

    /// Whether the pod that made the claim is there after all.
    async fn has_owner(&self, claim: &Value) -> Result<bool, StatusError> {
        let Some((name, uid)) = pod::owner(claim) else { return Ok(true) };
        let found = self.api.registry.find(core("pods")?, object::namespace(claim), name).await?;
        Ok(found.is_some_and(|pod| object::uid(&pod) == uid))
    }

    /// The volume first: a claim that is bound must find its volume so.
    async fn bind(&mut self, claim: &Value, name: &str) -> Done {
        let Some(volume) = self.world.volumes.get(name).cloned() else { return Ok(()) };
        let key = super::world::key_of(claim);
        let is_meant = super::matching::is_for(&volume, &key, claim);
        let reference = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "name": object::name(claim),
            "namespace": object::namespace(claim),
            "resourceVersion": object::resource_version(claim),
            "uid": object::uid(claim),
        });
        let mut is_taken = false;
        self.change_volume(&volume, |volume| {
            let now = &volume["spec"]["claimRef"];
            is_taken = !now.is_null() && !super::matching::is_for(volume, &key, claim);
            if is_taken {
                return;
            }
            if now["uid"] != reference["uid"] {
                child_mut(volume, "spec").insert("claimRef".into(), reference.clone());
                if !is_meant {
                    annotate(volume, BOUND_BY_CONTROLLER, "yes");
                }
            }
            enter(volume, "Bound", "");
        })
        .await?;
        if is_taken {
            return Ok(());
        }
        let Some(volume) = self.world.volumes.get(name).cloned() else { return Ok(()) };
        self.change_claim(claim, |claim| bind_claim(claim, &volume)).await
    }

    pub(super) async fn volume(&mut self, name: &str) -> Done {
        let (step, event) = binder::volume(&self.world, name);
        let Some(volume) = self.world.volumes.get(name).cloned() else { return Ok(()) };
        let (done, event) = match step {
            None => (Ok(()), event),
            Some(VolumeStep::Phase("Released", _)) if self.has_claim(&volume).await? => {
                return Ok(());
            }
            Some(VolumeStep::Phase(phase, message)) => {
                (self.change_volume(&volume, |volume| enter(volume, phase, &message)).await, event)
            }
            Some(VolumeStep::Unbind) => (self.change_volume(&volume, unbind).await, event),
            Some(VolumeStep::Unprotect) => {
                let change = |volume: &mut Value| unprotect(volume, VOLUME_PROTECTION);
                (self.change_volume(&volume, change).await, event)
            }
            Some(VolumeStep::DeleteData) => match self.delete_data(&volume).await {
                Ok(()) => (self.delete(core("persistentvolumes")?, &volume).await, None),
                Err(why) => {
                    let fail = |volume: &mut Value| enter(volume, "Failed", &why);
                    let done = self.change_volume(&volume, fail).await;
                    (done, VolumeEvent::warning("VolumeFailedDelete", why))
                }
            },
        };
        self.record_event(&volume, event).await;
        done
    }

    /// Whether the claim that the volume is bound to is there after all.
    async fn has_claim(&self, volume: &Value) -> Result<bool, StatusError> {
        let claim = &volume["spec"]["claimRef"];
        let (namespace, name) = (text(&claim["namespace"]), text(&claim["name"]));
        if self.world.claims.contains_key(&(namespace.to_owned(), name.to_owned())) {
            return Ok(false);
        }
        let found =
            self.api.registry.find(core("persistentvolumeclaims")?, namespace, name).await?;
        Ok(found.is_some_and(|found| claim["uid"] == object::uid(&found)))
    }

    /// Deletes the data of a volume on this machine, where that was allowed.
    async fn delete_data(&self, volume: &Value) -> Result<(), String> {
        let path = text(&volume["spec"]["hostPath"]["path"]).to_owned();
        if !self.settings.delete_host_paths {
            return Err("data of hostPath volumes is not deleted, see --delete-host-paths".into());
        }
        let below = path.strip_prefix("/tmp/").unwrap_or_default().trim_matches('/');
        if below.is_empty() || below.split('/').any(|part| part == "..") {
            return Err(format!(
                "host_path deleter only supports /tmp/.+ but received provided {path}"
            ));
        }
        let remove = tokio::task::spawn_blocking(move || {
            match std::fs::canonicalize(&path) {
                Ok(real) if real.as_os_str() == path.trim_end_matches('/') => {
                    longshore_base::trees::remove(&real)
                }
                Ok(_) => Err(std::io::Error::other("there are symbolic links in the path")),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            }
            .map_err(|error| format!("delete {path}: {error}"))
        });
        remove.await.map_err(|error| error.to_string())?
    }

    async fn change_claim(&mut self, claim: &Value, change: impl FnMut(&mut Value) + Send) -> Done {
        self.change(core("persistentvolumeclaims")?, claim, change).await
    }

    async fn change_volume(
        &mut self,
        volume: &Value,
        change: impl FnMut(&mut Value) + Send,
    ) -> Done {
        self.change(core("persistentvolumes")?, volume, change).await
    }

    /// Changes an object, unless it is another one of that name by now.
    pub(super) async fn change(
        &mut self,
        resource: &Resource,
        known: &Value,
        mut change: impl FnMut(&mut Value) + Send,
    ) -> Done {
        let (namespace, name) = (object::namespace(known), object::name(known));
        let amend = |current: &mut Value| {
            if object::uid(current) == object::uid(known) {
                change(current);
            }
            Ok(())
        };
        let written = self.api.amend(resource, namespace, name, amend).await?;
        self.observe(&written);
        Ok(())
    }

    pub(super) async fn delete(&mut self, resource: &Resource, known: &Value) -> Done {
        let options =
            DeleteOptions { uid: Some(object::uid(known).to_owned()), ..DeleteOptions::default() };
        let (namespace, name) = (object::namespace(known), object::name(known));
        let user = User::apiserver();
        match self.api.delete(&user, resource, namespace, name, &options).await {
            Ok(written) => {
                self.observe(&written);
                Ok(())
            }
            // Another one of that name.
            Err(error) if error.code == 409 => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn observe(&mut self, written: &Written) {
        match written.deleted {
            true => self.world.remove(&written.object, &mut self.work),
            false => self.world.put(&written.object, &mut self.work),
        }
    }

    pub(super) async fn record_event(&mut self, about: &Value, event: Option<VolumeEvent>) {
        if let Some(event) = event {
            self.recorder.record_event(self.api, about, event).await;
        }
    }
}

fn annotate(object: &mut Value, annotation: &str, value: &str) {
    let annotations = metadata_mut(object).entry("annotations").or_insert_with(|| json!({}));
    annotations[annotation] = value.into();
}

/// The volume is in this phase, from now on if it was not.
fn enter(volume: &mut Value, phase: &str, message: &str) {
    if volume["status"]["phase"] == phase {
        return;
    }
    let before = volume.clone();
    let status = child_mut(volume, "status");
    status.insert("phase".into(), phase.into());
    match message.is_empty() {
        true => status.remove("message"),
        false => status.insert("message".into(), message.into()),
    };
    note_transition(volume, &before);
}

/// Removes what this controller wrote; a prebinding of others stays.
fn unbind(volume: &mut Value) {
    if has_annotation(volume, BOUND_BY_CONTROLLER) {
        child_mut(volume, "spec").remove("claimRef");
        let annotations = metadata_mut(volume).get_mut("annotations");
        if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
            annotations.remove(BOUND_BY_CONTROLLER);
        }
    } else {
        let claim = child_mut(volume, "spec").get_mut("claimRef");
        if let Some(claim) = claim.and_then(Value::as_object_mut) {
            claim.remove("uid");
        }
    }
    enter(volume, "Available", "");
}

fn bind_claim(claim: &mut Value, volume: &Value) {
    let name = object::name(volume);
    if claim["spec"]["volumeName"] != name {
        child_mut(claim, "spec").insert("volumeName".into(), name.into());
        annotate(claim, BOUND_BY_CONTROLLER, "yes");
    }
    annotate(claim, BIND_COMPLETED, "yes");
    let was_bound = claim["status"]["phase"] == "Bound";
    let status = child_mut(claim, "status");
    status.insert("accessModes".into(), volume["spec"]["accessModes"].clone());
    if !was_bound {
        status.insert("phase".into(), "Bound".into());
        status.insert("capacity".into(), volume["spec"]["capacity"].clone());
        if let Some(class) = volume["spec"]["volumeAttributesClassName"].as_str() {
            status.insert("currentVolumeAttributesClassName".into(), class.into());
        }
    }
}
