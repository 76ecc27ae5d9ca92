//! Pods that are being bound, from the reservation to the outcome.

use std::sync::Arc;
use std::time::Duration;

use super::{Action, BIND, Binding, Outcome, PRE_BIND, Scheduler, VolumeRequest};
use crate::events::ClusterEvent;
use crate::model::{Atom, ClaimUse, Objects, Pod, ResourceClaim};
use crate::queue::Failure;

/// Whether volumes of a pod are bound.
enum Volumes {
    Bound,
    Pending,
    Failed(String),
}

impl Scheduler {
    /// The action that begins to bind a pod.
    pub(super) fn request(&self, pod: &Arc<Pod>, node: &Atom, claims: &ClaimUse) -> Action {
        if claims.is_empty() {
            return Action::Bind { pod: pod.clone(), node: node.clone() };
        }
        let objects = &self.objects;
        let volume = |(name, key): &(Atom, _)| {
            let claim = objects.claims.get(key)?;
            Some(VolumeRequest {
                name: name.clone(),
                version: objects.volumes.get(name)?.version.clone(),
                claim: claim.key.clone(),
                uid: claim.uid.clone(),
            })
        };
        let claim = |key| objects.claims.get(key).map(|own| (own.key.clone(), own.version.clone()));
        Action::PreBind {
            pod: pod.clone(),
            node: node.clone(),
            volumes: claims.volumes.iter().filter_map(volume).collect(),
            claims: claims.provisions.iter().filter_map(claim).collect(),
            devices: claims.devices.clone(),
        }
    }

    /// Takes in how an action ended.
    pub fn outcome(&mut self, outcome: Outcome, now: Duration) {
        match outcome {
            Outcome::Bound(uid) => {
                let Some(own) = self.bindings.remove(&uid) else { return };
                self.objects.release(&own.claims);
                self.queue.remove(&uid);
                self.cache.finish_binding(&uid, now);
                let took = now.saturating_sub(own.since);
                self.metrics.point(BIND, &own.original.scheduler, took);
                self.metrics.bound(
                    &own.original.scheduler,
                    now.saturating_sub(own.started),
                    now.saturating_sub(own.first_attempt),
                    own.attempts,
                );
            }
            Outcome::Prepared(uid, claims) => {
                self.set_written(claims, now);
                let until = now.saturating_add(self.settings.volumes_timeout);
                if let Some(own) = self.bindings.get_mut(&uid) {
                    own.volumes_until = Some(until);
                }
                self.check_volumes(now);
            }
            Outcome::Unprepared(uid, error, claims) => {
                self.set_written(claims, now);
                if let Some(own) = self.bindings.remove(&uid) {
                    self.give_up(own, error, now);
                }
            }
            Outcome::Failed(uid, error) => {
                if let Some(own) = self.bindings.remove(&uid) {
                    self.give_up(own, error, now);
                }
            }
            Outcome::Preempted(uid) => self.queue.preempted(&uid, now),
        }
    }

    /// Claims are known as they were written, before their watch shows them.
    fn set_written(&mut self, claims: Vec<ResourceClaim>, now: Duration) {
        for claim in claims {
            // It may be gone in the meantime.
            let known = self.objects.resource_claims.get(&claim.key);
            if known.is_some_and(|known| known.uid == claim.uid) {
                self.set_resource_claim(claim.key.clone(), Some(claim), now);
            }
        }
    }

    fn give_up(&mut self, own: Binding, error: String, now: Duration) {
        self.objects.release(&own.claims);
        if !own.claims.devices.is_empty() {
            let claims = own.claims.devices.iter();
            let claims = claims.map(|own| (own.claim.clone(), own.uid.clone())).collect();
            self.actions.push(Action::Unreserve { pod: own.original.clone(), claims });
        }
        // It is not assumed any more if the API shows it bound in spite of the error.
        if self.cache.forget(&own.assumed).is_ok() {
            self.requeue(ClusterEvent::PodDeleted(&own.assumed), now);
        }
        let took = now.saturating_sub(own.started);
        self.put_back(&own.original, Failure::Error, error, Some(None), took, now);
    }

    /// Goes on with pods whose volumes are bound.
    pub(super) fn check_volumes(&mut self, now: Duration) {
        let (mut ready, mut failed) = (Vec::new(), Vec::new());
        for (uid, own) in &mut self.bindings {
            if own.volumes_until.is_none() {
                continue;
            }
            match volumes(&self.objects, own) {
                Volumes::Pending => {}
                Volumes::Bound => ready.push(uid.clone()),
                Volumes::Failed(error) => failed.push((uid.clone(), error)),
            }
        }
        for uid in ready {
            if let Some(own) = self.bindings.get_mut(&uid) {
                own.volumes_until = None;
                let took = now.saturating_sub(own.since);
                self.metrics.point(PRE_BIND, &own.original.scheduler, took);
                own.since = now;
                self.actions
                    .push(Action::Bind { pod: own.original.clone(), node: own.node.clone() });
            }
        }
        for (uid, error) in failed {
            self.outcome(Outcome::Failed(uid, error), now);
        }
    }

    /// Gives up pods whose volumes took too long.
    pub(super) fn end_bindings(&mut self, now: Duration) {
        let late = |own: &Binding| own.volumes_until.is_some_and(|until| until <= now);
        let late: Vec<_> =
            self.bindings.iter().filter(|(_, own)| late(own)).map(|(uid, _)| uid.clone()).collect();
        for uid in late {
            let error = "binding volumes: context deadline exceeded".to_owned();
            self.outcome(Outcome::Failed(uid, error), now);
        }
    }
}

fn volumes(objects: &Objects, own: &mut Binding) -> Volumes {
    let mut is_pending = false;
    for (_, key) in &own.claims.volumes {
        match objects.claims.get(key) {
            None => return Volumes::Failed(format!("failed to check binding: {key} not found")),
            Some(claim) => is_pending |= !claim.is_bound,
        }
    }
    for key in &own.claims.provisions {
        let Some(claim) = objects.claims.get(key) else {
            return Volumes::Failed(format!("failed to check provisioning pvc: {key} not found"));
        };
        // A provisioner that cannot serve the node takes its name away.
        let is_selected = claim.selected_node.as_ref() == Some(&own.node);
        if is_selected && !own.seen.contains(key) {
            own.seen.push(key.clone());
        }
        if !is_selected && own.seen.contains(key) {
            let name = &key.name;
            return Volumes::Failed(format!("provisioning failed for PVC \"{name}\""));
        }
        is_pending |= !claim.is_bound;
    }
    if is_pending { Volumes::Pending } else { Volumes::Bound }
}
