//! Pods that are being bound, from the reservation to the outcome.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Action, BIND, Binding, Outcome, POST_BIND, PRE_BIND, Scheduler, UNRESERVE, VolumeRequest,
};
use crate::events::ClusterEvent;
use crate::metrics::{Metrics, SUCCESS};
use crate::model::{Atom, ClaimKey, ClaimUse, Objects, Pod, ResourceClaim, Uid};
use crate::queue::Failure;

/// The resolution of times in the API.
const SECOND: Duration = Duration::from_secs(1);

/// Whether volumes of a pod are bound, and its devices prepared.
enum Claims {
    Ready,
    Pending,
    Failed(String),
}

impl Scheduler {
    /// The action that begins to bind a pod, and the pod as its status is after that.
    pub(super) fn request(
        &self,
        pod: Arc<Pod>,
        node: &Atom,
        claims: &ClaimUse,
    ) -> (Action, Arc<Pod>) {
        if claims.is_empty() {
            return (Action::Bind { pod: pod.clone(), node: node.clone() }, pod);
        }
        let nominates =
            self.settings.nominates_expected && pod.nominated_node.as_ref() != Some(node);
        let original = if nominates {
            Arc::new(Pod { nominated_node: Some(node.clone()), ..Pod::clone(&pod) })
        } else {
            pod.clone()
        };
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
        let action = Action::PreBind {
            pod,
            node: node.clone(),
            volumes: claims.volumes.iter().filter_map(volume).collect(),
            claims: claims.provisions.iter().filter_map(claim).collect(),
            devices: claims.devices.clone(),
            waits: claims.device_wait.is_some(),
            nominates,
        };
        (action, original)
    }

    /// Whether volumes or devices of a pod are being prepared, so that it can still lose its node.
    pub(super) fn is_preparing(&self, uid: &str) -> bool {
        self.bindings.get(uid).is_some_and(|own| own.is_preparing)
    }

    /// A pod loses its node to another before it is bound.
    pub(super) fn preempt_binding(&mut self, uid: &Uid, now: Duration) {
        let Some(own) = self.bindings.get_mut(uid) else { return };
        if own.claims_wait.is_none() {
            own.is_preempted = true;
            return;
        }
        let error = match volumes(&self.objects, own) {
            Claims::Ready => in_devices("context canceled"),
            _ => in_volumes("context canceled"),
        };
        self.outcome(Outcome::Failed(uid.clone(), error), now);
    }

    /// Takes in how an action ended.
    pub fn outcome(&mut self, outcome: Outcome, now: Duration) {
        self.set_clock(now);
        match outcome {
            Outcome::Bound(uid) => {
                let Some(own) = self.bindings.remove(&uid) else { return };
                self.objects.release(&own.claims);
                self.queue.remove(&uid);
                self.cache.finish_binding(&uid, now);
                let took = now.saturating_sub(own.since);
                let profile = &own.original.scheduler;
                self.metrics.point(BIND, SUCCESS, profile, took);
                self.metrics.point(POST_BIND, SUCCESS, profile, Duration::ZERO);
                if own.is_flushed {
                    self.metrics.after_flush.inc();
                }
                self.metrics.bound(
                    &own.original.scheduler,
                    now.saturating_sub(own.started),
                    now.saturating_sub(own.first_attempt),
                    own.attempts,
                );
            }
            Outcome::Prepared(uid, claims) => {
                self.note_made(&uid, &claims);
                self.set_written(claims, now);
                if let Some(own) = self.bindings.get(&uid) {
                    let until = now.saturating_add(self.time_for_claims(own));
                    let is_preempted = own.is_preempted;
                    if let Some(own) = self.bindings.get_mut(&uid) {
                        own.claims_wait = Some((now, until));
                    }
                    if is_preempted {
                        self.preempt_binding(&uid, now);
                    }
                }
                self.check_claims(now);
            }
            Outcome::Unprepared(uid, error, claims) => {
                self.note_made(&uid, &claims);
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
            Outcome::Preempted(uid, is_done) => {
                if let Some(since) = self.preemptions.remove(&uid) {
                    self.metrics.preempted(is_done, now.saturating_sub(since));
                }
                self.queue.preempted(&uid, now);
            }
        }
    }

    /// Remembers the claim that was made for a pod.
    fn note_made(&mut self, uid: &Uid, claims: &[ResourceClaim]) {
        let made = claims.iter().find(|claim| claim.is_special);
        if let (Some(own), Some(made)) = (self.bindings.get_mut(uid), made) {
            own.made = Some((made.key.clone(), made.uid.clone()));
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
        if error.starts_with(IN_VOLUMES) {
            self.metrics.volume_failures.with(["bind"]).inc();
        } else if error.starts_with(IN_DEVICES) {
            let status = if error.contains("device binding timeout") {
                "timeout"
            } else if error.contains("device binding failed") {
                "failure"
            } else {
                "error"
            };
            count_devices(&self.metrics, &self.objects, &own, status, now);
        }
        self.metrics.point(UNRESERVE, SUCCESS, &own.original.scheduler, Duration::ZERO);
        self.objects.release(&own.claims);
        let claims = own.claims.devices.iter().filter(|own| own.special.is_none());
        let claims: Vec<_> = claims.map(|own| (own.claim.clone(), own.uid.clone())).collect();
        if !claims.is_empty() {
            self.actions.push(Action::Unreserve { pod: own.original.clone(), claims });
        }
        if let Some((claim, uid)) = own.made {
            self.actions.push(Action::DeleteClaim { claim, uid });
        }
        // It is not assumed any more if the API shows it bound in spite of the error.
        if self.cache.forget(&own.assumed).is_ok() {
            self.requeue(ClusterEvent::PodDeleted(&own.assumed), now);
        }
        let took = now.saturating_sub(own.started);
        self.put_back(&own.original, Failure::Error, error, Some(None), took, now);
    }

    /// How long volumes and devices of a pod may take from now on.
    fn time_for_claims(&self, own: &Binding) -> Duration {
        let Some(wait) = own.claims.device_wait else { return self.settings.volumes_timeout };
        // Devices that were allocated before have less time left.
        let clock = self.objects.clock;
        let left = device_claims(own)
            .filter_map(|key| self.objects.resource_claims.get(key)?.deadline(wait))
            .map(|end| Duration::try_from(end.duration_since(clock)).unwrap_or_default())
            .min();
        // Times of the API are whole seconds.
        let devices = left.map_or(wait, |left| wait.min(left.saturating_add(SECOND)));
        let has_volumes = !own.claims.volumes.is_empty() || !own.claims.provisions.is_empty();
        if has_volumes { devices.max(self.settings.volumes_timeout) } else { devices }
    }

    /// Goes on with pods whose volumes are bound and devices prepared.
    pub(super) fn check_claims(&mut self, now: Duration) {
        let (mut ready, mut failed) = (Vec::new(), Vec::new());
        for (uid, own) in &mut self.bindings {
            if own.claims_wait.is_none() {
                continue;
            }
            match (volumes(&self.objects, own), devices(&self.objects, own)) {
                (Claims::Failed(error), _) => failed.push((uid.clone(), in_volumes(&error))),
                (_, Claims::Failed(error)) => failed.push((uid.clone(), error)),
                (Claims::Ready, Claims::Ready) => ready.push(uid.clone()),
                (Claims::Pending, _) | (_, Claims::Pending) => {}
            }
        }
        for uid in ready {
            if let Some(own) = self.bindings.get_mut(&uid) {
                count_devices(&self.metrics, &self.objects, own, "success", now);
                (own.claims_wait, own.is_preparing) = (None, false);
                let took = now.saturating_sub(own.since);
                self.metrics.point(PRE_BIND, SUCCESS, &own.original.scheduler, took);
                own.since = now;
                self.actions
                    .push(Action::Bind { pod: own.original.clone(), node: own.node.clone() });
            }
        }
        for (uid, error) in failed {
            self.outcome(Outcome::Failed(uid, error), now);
        }
    }

    /// Gives up pods whose volumes or devices took too long.
    pub(super) fn end_bindings(&mut self, now: Duration) {
        let late = |own: &Binding| own.claims_wait.is_some_and(|(_, until)| until <= now);
        let late: Vec<_> =
            self.bindings.iter().filter(|(_, own)| late(own)).map(|(uid, _)| uid.clone()).collect();
        for uid in late {
            let Some(own) = self.bindings.get_mut(&uid) else { continue };
            let error = match (volumes(&self.objects, own), devices(&self.objects, own)) {
                (Claims::Pending, _) => in_volumes("context deadline exceeded"),
                (_, Claims::Failed(error)) => error,
                _ => in_devices("device binding timeout: context deadline exceeded"),
            };
            self.outcome(Outcome::Failed(uid, error), now);
        }
    }
}

fn volumes(objects: &Objects, own: &mut Binding) -> Claims {
    let mut is_pending = false;
    for (_, key) in &own.claims.volumes {
        match objects.claims.get(key) {
            None => {
                let name = &key.name;
                let error =
                    format!("failed to check binding: persistentvolumeclaim \"{name}\" not found");
                return Claims::Failed(error);
            }
            Some(claim) => is_pending |= !claim.is_bound,
        }
    }
    for key in &own.claims.provisions {
        let Some(claim) = objects.claims.get(key) else {
            let name = &key.name;
            let error = format!(
                "failed to check provisioning pvc: persistentvolumeclaim \"{name}\" not found"
            );
            return Claims::Failed(error);
        };
        // A provisioner that cannot serve the node takes its name away.
        let is_selected = claim.selected_node.as_ref() == Some(&own.node);
        if is_selected && !own.seen.contains(key) {
            own.seen.push(key.clone());
        }
        if !is_selected && own.seen.contains(key) {
            let name = &key.name;
            return Claims::Failed(format!("provisioning failed for PVC \"{name}\""));
        }
        is_pending |= !claim.is_bound;
    }
    if is_pending { Claims::Pending } else { Claims::Ready }
}

/// The claims for devices of a pod.
fn device_claims(own: &Binding) -> impl Iterator<Item = &ClaimKey> {
    let named = own.original.resource_claims.iter().filter_map(|own| own.claim.key());
    named.chain(own.made.as_ref().map(|(key, _)| key))
}

fn devices(objects: &Objects, own: &Binding) -> Claims {
    // The devices of a claim that was made are known as taken only when the claim is seen.
    if let Some((key, uid)) = &own.made
        && !objects
            .resource_claims
            .get(key)
            .is_some_and(|claim| claim.uid == *uid && claim.allocation.is_some())
    {
        return Claims::Pending;
    }
    let Some(wait) = own.claims.device_wait else { return Claims::Ready };
    for key in device_claims(own) {
        let ready = match objects.resource_claims.get(key) {
            Some(claim) => claim.is_ready(objects.clock, wait),
            None => Err(format!("resourceclaim.resource.k8s.io \"{}\" not found", key.name)),
        };
        match ready {
            Ok(true) => {}
            Ok(false) => return Claims::Pending,
            Err(error) => return Claims::Failed(in_devices(&error)),
        }
    }
    Claims::Ready
}

/// Counts devices for which a pod has waited, by how that ended.
fn count_devices(
    metrics: &Metrics,
    objects: &Objects,
    own: &Binding,
    status: &'static str,
    now: Duration,
) {
    let (Some(_), Some((since, _))) = (own.claims.device_wait, own.claims_wait) else { return };
    let profile = &own.original.scheduler;
    let allocations = device_claims(own)
        .filter_map(|key| objects.resource_claims.get(key)?.allocation.as_ref()?.devices.as_ref());
    for result in allocations.flat_map(|own| own.results.iter().flatten()) {
        let labels = [profile.as_str(), &result.driver, status];
        metrics.device_waits.with(labels).took(now.saturating_sub(since));
        if result.binding_conditions.as_ref().is_some_and(|all| !all.is_empty()) {
            metrics.conditional_devices.with(labels).inc();
        }
    }
}

/// How errors begin while volumes are bound.
const IN_VOLUMES: &str = "running PreBind plugin \"VolumeBinding\": ";
/// How errors begin while devices are prepared.
const IN_DEVICES: &str = "running PreBind plugin \"DynamicResources\": ";

fn in_volumes(error: &str) -> String {
    format!("{IN_VOLUMES}binding volumes: {error}")
}

fn in_devices(error: &str) -> String {
    format!("{IN_DEVICES}{error}")
}
