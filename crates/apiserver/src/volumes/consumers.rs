//! Users of volumes: claims of ephemeral volumes, attachments to nodes, and classes
//! of attributes.

use serde_json::{Value, json};

use super::attachments::{self, is_attached_here};
use super::binder::VolumeEvent;
use super::world::Key;
use super::writes::Done;
use super::{Task, pod};
use crate::admission::storage::{ATTRIBUTES_PROTECTION, resource as storage, unprotect};
use crate::kinds::core;
use crate::object::{self, child_mut};
use crate::schema::value::{items, text};
use crate::user::User;

impl Task<'_> {
    /// Makes the claims of the pod's ephemeral volumes.
    pub(super) async fn pod(&mut self, key: &Key) -> Done {
        let Some(pod) = self.world.pods.get(key) else { return Ok(()) };
        if pod.is_deleting || pod.is_over {
            return Ok(());
        }
        let claims = core("persistentvolumeclaims")?;
        let mut faults = Vec::new();
        let mut made = Vec::new();
        for (volume, template) in &pod.ephemeral {
            let name = pod.claim_name(volume);
            let fault = match self.world.claims.get(&(key.0.clone(), name.clone())) {
                Some(claim) if pod::is_controlled_by(claim, &pod.uid) => continue,
                Some(_) => format!(
                    "PVC {0}/{name} was not created for pod {0}/{1} (pod is not owner)",
                    key.0, key.1
                ),
                None => {
                    let claim = pod.claim(&key.0, volume, template);
                    let user = User::apiserver();
                    match self.api.create(&user, claims, &key.0, claim, false).await {
                        Ok(claim) => {
                            made.push(claim);
                            continue;
                        }
                        // The watch reports it.
                        Err(error) if error.reason == "AlreadyExists" => continue,
                        Err(error) => format!("create PVC {name}: {error}"),
                    }
                }
            };
            faults.push(format!("ephemeral volume {volume}: {fault}"));
        }
        for claim in made {
            self.world.put(&claim, &mut self.work);
        }
        for fault in faults {
            self.record_pod_event(key, VolumeEvent::warning("FailedBinding", fault)).await?;
        }
        Ok(())
    }

    pub(super) async fn node(&mut self, name: &str) -> Done {
        let plan = attachments::plan(&self.world, name);
        let resource = storage("volumeattachments")?;
        // A node hears that it loses a volume before it does.
        if let Some(attached) = plan.attached {
            let record_event = |node: &mut Value| {
                let others = items(&node["status"]["volumesAttached"]).iter();
                let others = others.filter(|v| !is_attached_here(text(&v["name"]))).cloned();
                let own = attached.iter().filter(|name| is_attached_here(name));
                let own = own.map(|name| json!({"devicePath": "", "name": name}));
                let all: Vec<Value> = others.chain(own).collect();
                child_mut(node, "status").insert("volumesAttached".into(), all.into());
                Ok(())
            };
            let written = self.api.amend(core("nodes")?, "", name, record_event).await?;
            self.observe(&written);
        }
        for attachment in plan.attach {
            match self.api.create(&User::apiserver(), resource, "", attachment, false).await {
                Ok(attachment) => self.world.put(&attachment, &mut self.work),
                Err(error) if error.reason == "AlreadyExists" => {}
                Err(error) => return Err(error),
            }
        }
        for name in plan.detach {
            if let Some(attachment) = self.world.attachments.get(&name).cloned() {
                self.delete(resource, &attachment).await?;
            }
        }
        for (pod, event) in plan.events {
            self.record_pod_event(&pod, Some(event)).await?;
        }
        Ok(())
    }

    /// A class of attributes goes once nothing has it.
    pub(super) async fn attributes(&mut self, name: &str) -> Done {
        let Some(class) = self.world.attributes.get(name).cloned() else { return Ok(()) };
        let has_it = |object: &Value| {
            object["spec"]["volumeAttributesClassName"] == name
                || object["status"]["currentVolumeAttributesClassName"] == name
        };
        let is_used =
            self.world.claims.values().any(has_it) || self.world.volumes.values().any(has_it);
        if is_used || !object::is_deleting(&class) {
            return Ok(());
        }
        let resource = storage("volumeattributesclasses")?;
        self.change(resource, &class, |class| unprotect(class, ATTRIBUTES_PROTECTION)).await
    }

    async fn record_pod_event(&mut self, key: &Key, event: Option<VolumeEvent>) -> Done {
        if let Some(pod) = self.api.registry.find(core("pods")?, &key.0, &key.1).await? {
            self.record_event(&pod, event).await;
        }
        Ok(())
    }
}
