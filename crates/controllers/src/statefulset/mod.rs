//! StatefulSets: pods with names, in order, each with its claims.
//!
//! `plan` says what is to be done with which pod, `pods` what its pods look like, `claims` whom claims
//! belong to.

mod claims;
mod plan;
mod pods;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use longshore_client::events::EventType;
use longshore_informer::{Expectations, Informer, WorkQueue, run_workers};

use self::plan::{Step, View};
use crate::Context;
use crate::workload::{
    Counts, Current, Error, HashOf, Owners, PodControl, Revisions, api, claim, count, create,
    index_by_controller, name_of, namespace_of, owned_or_orphans, replace, replace_status,
    selector, size, template_of,
};
use crate::writes::is_not_found;

/// Runs the controller.
pub(crate) async fn run(context: Context) {
    let owners = Owners::<StatefulSet> {
        informer: context.informers.get(),
        queue: WorkQueue::new("statefulset", &context.queues),
        expectations: Arc::new(Expectations::default()),
        selector: |set| set.spec.as_ref().map(|spec| spec.selector.clone()),
        delay: Duration::ZERO,
    };
    let controller = Controller {
        pods: context.informers.get(),
        claims: context.informers.get(),
        revisions: context.informers.get(),
        control: PodControl {
            client: context.client.clone(),
            recorder: context.recorder("statefulset-controller"),
        },
        owners,
    };
    index_by_controller(controller.revisions.store());
    controller.owners.follow(&controller.pods);
    controller.owners.informer.synced().await;
    controller.pods.synced().await;
    controller.claims.synced().await;
    controller.revisions.synced().await;
    let (queue, workers) = (&controller.owners.queue, context.settings.statefulset_workers);
    run_workers("statefulset-controller", queue, workers, &context.stop, |key| {
        controller.sync(key)
    })
    .await;
}

struct Controller {
    owners: Owners<StatefulSet>,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    revisions: Informer<ControllerRevision>,
    control: PodControl,
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let Some(set) = self.owners.informer.store().get(&key) else { return Ok(()) };
        let Some(spec) = &set.spec else { return Ok(()) };
        let client = &self.control.client;
        let Ok(selector) = selector(Some(&spec.selector)) else { return Ok(()) };
        let known = owned_or_orphans(self.revisions.store(), &*set);
        let mut revisions =
            Revisions::new(claim(client, &*set, &selector, known, |_| true, None).await?);
        let pods = owned_or_orphans(self.pods.store(), &*set);
        let is_member = |pod: &Pod| pods::ordinal(&set, name_of(pod)).is_some();
        let pods = claim(client, &*set, &selector, pods, is_member, None).await?;
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let collisions = collisions.unwrap_or_default();
        let found = revisions
            .current(client, &*set, &spec.template, HashOf::Data, Some(collisions))
            .await?;
        let Current::Found(update) = found else {
            let mut updated = StatefulSet::clone(&set);
            let status = updated.status.get_or_insert_default();
            status.collision_count = Some(collisions.saturating_add(1));
            replace_status(client, &updated).await?;
            return Err(Error::invalid("the name of the revision is taken"));
        };
        let current = set.status.as_ref().and_then(|status| status.current_revision.as_deref());
        let current = current.and_then(|name| revisions.named(name)).unwrap_or(&update).clone();
        let now = Timestamp::now();
        let names = (name_of(&*current), name_of(&*update));
        let mut status = plan::status(&set, &pods, names, collisions, now);
        let view = View {
            set: &set,
            pods: &pods,
            current: (names.0, &template_of(&current)?),
            update: (names.1, &template_of(&update)?),
            now,
        };
        let steps =
            if set.metadata.deletion_timestamp.is_none() { plan::steps(&view) } else { Vec::new() };
        let acted = self.act(&set, &steps, plan::is_ordered(&set)).await;
        let replaced = steps.iter().filter(|step| matches!(step, Step::Replace(_))).count();
        plan::note_replaced(&mut status, replaced);
        self.report(&set, status).await?;
        acted?;
        let limit = size(count(Some(spec.revision_history_limit.unwrap_or(10))));
        let is_live = |one: &ControllerRevision| {
            let name = name_of(one);
            name == names.0 || name == names.1 || pods.iter().any(|pod| pods::revision(pod) == name)
        };
        revisions.truncate(client, limit, Counts::Unused, is_live).await?;
        let min_ready = count(spec.min_ready_seconds);
        if min_ready > 0
            && let Some(wait) =
                crate::workload::next_availability(pods.iter().map(|pod| &**pod), min_ready, now)
        {
            self.owners.queue.add_after(key, wait);
        }
        Ok(())
    }

    async fn act(
        &self,
        set: &Arc<StatefulSet>,
        steps: &[Step],
        ordered: bool,
    ) -> Result<(), Error> {
        if ordered {
            for step in steps {
                self.step(set, step).await?;
            }
            return Ok(());
        }
        let steps = steps.iter().map(|step| self.step(set, step));
        join_all(steps).await.into_iter().collect()
    }

    async fn step(&self, set: &Arc<StatefulSet>, step: &Step) -> Result<(), Error> {
        match step {
            Step::Create(pod) => self.create(set, pod).await,
            Step::Delete(pod) | Step::Replace(pod) => self.delete(set, pod).await,
            Step::Update(pod) => {
                self.create_claims(set, pod).await?;
                let updated = replace(&self.control.client, &**pod).await.map_err(Error::from);
                self.report_pod(set, "Update", pod, updated.as_ref().err());
                updated.map(drop)
            }
            Step::Claims(pod) => {
                self.create_claims(set, pod).await?;
                self.own_claims(set, pod, true).await
            }
            Step::OwnClaims(pod) => self.own_claims(set, pod, false).await,
        }
    }

    async fn create(&self, set: &Arc<StatefulSet>, pod: &Pod) -> Result<(), Error> {
        // a claim that its former pod takes away with it
        for name in claims::names(set, pod) {
            let claim = self.claims.store().get_named(namespace_of(&**set), &name);
            if claim.is_some_and(|claim| claims::is_stale(set, pod, &claim)) {
                self.owners
                    .queue
                    .add_after(longshore_informer::key_of(&**set), Duration::from_secs(1));
                return Ok(());
            }
        }
        if let Err(error) = self.create_claims(set, pod).await {
            self.report_pod(set, "Create", pod, Some(&error));
            return Err(error);
        }
        match create(&self.control.client, pod).await {
            Ok(created) => {
                self.own_claims(set, &created, true).await?;
                self.report_pod(set, "Create", pod, None::<&Error>);
                Ok(())
            }
            Err(error) => {
                let exists = matches!(&error, kube::Error::Api(it) if it.reason == "AlreadyExists");
                let error = Error::from(error);
                if !exists {
                    self.report_pod(set, "Create", pod, Some(&error));
                }
                Err(error)
            }
        }
    }

    async fn delete(&self, set: &Arc<StatefulSet>, pod: &Pod) -> Result<(), Error> {
        let same = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        let api = api::<Pod>(&self.control.client, namespace_of(pod));
        match api.delete(name_of(pod), &params).await {
            Err(error) if !is_not_found(&error) => {
                let error = Error::from(error);
                self.report_pod(set, "Delete", pod, Some(&error));
                Err(error)
            }
            _ => {
                self.report_pod(set, "Delete", pod, None::<&Error>);
                Ok(())
            }
        }
    }

    async fn create_claims(&self, set: &Arc<StatefulSet>, pod: &Pod) -> Result<(), Error> {
        for new in claims::of(set, pod) {
            let name = name_of(&new);
            match self.claims.store().get_named(namespace_of(&**set), name) {
                Some(claim) if claim.metadata.deletion_timestamp.is_some() => {
                    return Err(Error::Invalid(format!("pvc {name} is being deleted")));
                }
                Some(_) => {}
                None => {
                    let created = create(&self.control.client, &new).await;
                    let exists = matches!(&created, Err(kube::Error::Api(it)) if it.reason == "AlreadyExists");
                    if exists {
                        continue;
                    }
                    let created = created.map_err(Error::from);
                    let (pod, owner) = (name_of(pod), name_of(&**set));
                    let about =
                        format!("Create Claim {name} Pod {pod} in StatefulSet {owner} success");
                    match created {
                        Ok(_) => self.event(set, EventType::Normal, "SuccessfulCreate", &about),
                        Err(error) => {
                            let message = format!(
                                "Create Claim {name} for Pod {pod} in StatefulSet {owner} failed error: {error}"
                            );
                            self.event(set, EventType::Warning, "FailedCreate", &message);
                            return Err(Error::Invalid(format!(
                                "failed to create PVC {name}: {error}"
                            )));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes claims belong to the set or the pod, as the retention policy says. `is_new`: the pod is, so
    /// that what keeps its claims from that is reported even if they stay as they are.
    async fn own_claims(
        &self,
        set: &Arc<StatefulSet>,
        pod: &Pod,
        is_new: bool,
    ) -> Result<(), Error> {
        for name in claims::names(set, pod) {
            let claim = self.claims.store().get_named(namespace_of(&**set), &name);
            let Some(claim) = claim else { continue };
            let owners = claims::owners(set, pod, &claim);
            let is_reported = is_new || owners.is_some();
            if is_reported && claims::has_other_controller(set, pod, &claim) {
                let message = format!(
                    "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim"
                );
                self.event(set, EventType::Warning, "ConflictingController", &message);
            }
            if let Some(references) = owners {
                let mut updated = PersistentVolumeClaim::clone(&claim);
                updated.metadata.owner_references = Some(references);
                replace(&self.control.client, &updated).await?;
            }
        }
        Ok(())
    }

    async fn report(
        &self,
        set: &Arc<StatefulSet>,
        mut status: StatefulSetStatus,
    ) -> Result<(), Error> {
        plan::complete(set, &mut status);
        if set.status.as_ref() != Some(&status) {
            let updated = StatefulSet { status: Some(status), ..StatefulSet::clone(set) };
            replace_status(&self.control.client, &updated).await?;
        }
        Ok(())
    }

    fn report_pod(
        &self,
        set: &StatefulSet,
        verb: &str,
        pod: &Pod,
        error: Option<&impl std::fmt::Display>,
    ) {
        let (pod, owner) = (name_of(pod), name_of(set));
        match error {
            None => {
                let message = format!("{verb} Pod {pod} in StatefulSet {owner} successful");
                self.event(set, EventType::Normal, &format!("Successful{verb}"), &message);
            }
            Some(error) => {
                let message =
                    format!("{verb} Pod {pod} in StatefulSet {owner} failed error: {error}");
                self.event(set, EventType::Warning, &format!("Failed{verb}"), &message);
            }
        }
    }

    fn event(&self, about: &StatefulSet, kind: EventType, reason: &str, message: &str) {
        self.control.event(about, kind, reason, message);
    }
}
