//! Deployments: replica sets, one for each template, and rollouts from one to the next.
//!
//! `plan` has the numbers of a rollout, `annotations` revisions and sizes, `status` what is reported.

mod annotations;
mod plan;
mod status;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::core::{Selector, SelectorExt};
use longshore_client::events::{EventType, Recorder};
use longshore_client::object;
use longshore_informer::{Event, Informer, WorkQueue, key_of, object_key, run_workers};

use self::plan::{HASH_LABEL, Limits, Sets, created, desired};
use self::status::{PROGRESSING, progress_deadline, set_condition};
use crate::Context;
use crate::workload::{
    Error, api, claim, controller_of, controller_reference, create, index_by_controller,
    is_controlled_by, is_finished, length, name_of, namespace_of, number, owned, owned_or_orphans,
    replace, replace_status, selector, size, template_hash, uid_of,
};
use crate::writes::{is_not_found, is_terminating, reference};

/// The longest name of an object.
const MAX_NAME: usize = 253;

/// Runs the controller.
pub(crate) async fn run(context: Context) {
    let controller = Controller {
        recorder: context.recorder("deployment-controller"),
        deployments: context.informers.get(),
        sets: context.informers.get(),
        pods: context.informers.get(),
        queue: WorkQueue::new("deployment", &context.queues),
        client: context.client.clone(),
    };
    controller.follow();
    controller.deployments.synced().await;
    controller.sets.synced().await;
    controller.pods.synced().await;
    let workers = context.settings.deployment_workers;
    let (queue, stop) = (&controller.queue, &context.stop);
    run_workers("deployment-controller", queue, workers, stop, |key| controller.sync(key)).await;
}

#[derive(Clone)]
struct Controller {
    client: kube::Client,
    recorder: Recorder,
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    pods: Informer<Pod>,
    queue: WorkQueue<String>,
}

impl Controller {
    fn follow(&self) {
        index_by_controller(self.sets.store());
        index_by_controller(self.pods.store());
        let queue = self.queue.clone();
        self.deployments.subscribe(move |event| queue.add(key_of(&**event.latest())));
        let controller = self.clone();
        self.sets.subscribe(move |event| controller.set_changed(event));
        let controller = self.clone();
        self.pods.subscribe(move |event| {
            // Recreate waits for the last old pod
            if let Event::Deleted(pod) = event
                && let Some(deployment) = controller.deployment_of_pod(pod)
                && !plan::is_rolling(&deployment)
            {
                controller.queue.add(key_of(&*deployment));
            }
        });
    }

    fn deployment_of_set(&self, metadata: &ObjectMeta) -> Option<Arc<Deployment>> {
        let reference = controller_of(metadata).filter(|it| it.kind == "Deployment")?;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let deployment = self.deployments.store().get(&object_key(namespace, &reference.name))?;
        (uid_of(&*deployment) == reference.uid).then_some(deployment)
    }

    fn deployment_of_pod(&self, pod: &Pod) -> Option<Arc<Deployment>> {
        let reference = controller_of(&pod.metadata).filter(|it| it.kind == "ReplicaSet")?;
        let set = self.sets.store().get(&object_key(namespace_of(pod), &reference.name))?;
        (uid_of(&*set) == reference.uid).then(|| self.deployment_of_set(&set.metadata))?
    }

    fn set_changed(&self, event: &Event<ReplicaSet>) {
        for set in event.old().into_iter().chain([event.latest()]) {
            if let Some(deployment) = self.deployment_of_set(&set.metadata) {
                self.queue.add(key_of(&*deployment));
            }
        }
        let set = event.latest();
        let (None, Some(labels)) = (controller_of(&set.metadata), &set.metadata.labels) else {
            return;
        };
        if matches!(event, Event::Deleted(_))
            || event.old().is_some_and(|old| {
                old.metadata.labels == set.metadata.labels && controller_of(&old.metadata).is_none()
            })
        {
            return;
        }
        for deployment in self.deployments.store().list_namespace(namespace_of(&**set)) {
            let of_deployment = deployment.spec.as_ref().map(|spec| spec.selector.clone());
            if let Some(Ok(selector)) = of_deployment.map(Selector::try_from)
                && !selector.selects_all()
                && selector.matches(labels)
            {
                self.queue.add(key_of(&*deployment));
            }
        }
    }

    async fn sync(&self, key: String) -> Result<(), Error> {
        match self.sync_one(&key).await {
            // nothing can be created there any more
            Err(Error::Api(error)) if is_terminating(&error) => Ok(()),
            done => done,
        }
    }

    async fn sync_one(&self, key: &str) -> Result<(), Error> {
        let Some(deployment) = self.deployments.store().get(key) else { return Ok(()) };
        let mut deployment = Deployment::clone(&deployment);
        let of_deployment = deployment.spec.as_ref().map(|spec| &spec.selector);
        if of_deployment == Some(&LabelSelector::default()) {
            let message =
                "This deployment is selecting all pods. A non-empty selector is required.";
            self.event(&deployment, EventType::Warning, "SelectingAll", message);
            let generation = deployment.metadata.generation;
            let status = deployment.status.get_or_insert_default();
            if status.observed_generation < generation {
                status.observed_generation = generation;
                replace_status(&self.client, &deployment).await?;
            }
            return Ok(());
        }
        let selector = selector(of_deployment)?;
        let sets = owned_or_orphans(self.sets.store(), &deployment);
        let sets = claim(&self.client, &deployment, &selector, sets, |_| true, None).await?;
        if deployment.metadata.deletion_timestamp.is_some() {
            let sets = Sets::of(&deployment, sets);
            return self.report(&deployment, status::calculate(&deployment, &sets)).await;
        }
        self.check_paused(&mut deployment).await?;
        let mut sets = Sets::of(&deployment, sets);
        self.sync_revision(&mut deployment, &mut sets).await?;
        let rollback_to = annotations::rollback_to(&deployment);
        let is_paused = deployment.spec.as_ref().is_some_and(|spec| spec.paused == Some(true));
        if is_paused {
            return self.rescale(&mut deployment, &mut sets, rollback_to.is_none()).await;
        }
        if let Some(revision) = rollback_to {
            self.create_new(&mut deployment, &mut sets).await?;
            return self.roll_back(deployment, &sets, revision).await;
        }
        if plan::is_scaling(Limits::of(&deployment), &sets) {
            return self.rescale(&mut deployment, &mut sets, false).await;
        }
        let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
        match strategy.and_then(|strategy| strategy.type_.as_deref()) {
            None | Some("RollingUpdate") => self.roll(&mut deployment, &mut sets).await,
            Some("Recreate") => self.recreate(&mut deployment, &mut sets).await,
            Some(other) => {
                Err(Error::Invalid(format!("unexpected deployment strategy type: {other}")))
            }
        }
    }

    async fn roll(&self, deployment: &mut Deployment, sets: &mut Sets) -> Result<(), Error> {
        self.create_new(deployment, sets).await?;
        let limits = Limits::of(deployment);
        let mut scaled = false;
        if let Some(new) = sets.new.clone()
            && desired(&new) != limits.replicas
        {
            let up = plan::scaled_up(true, limits, desired(&new), sets.desired());
            scaled = up != desired(&new);
            sets.new = Some(self.scale(deployment, &new, up).await?);
        }
        if !scaled {
            let sizes = plan::scaled_down(limits, sets);
            for (set, size) in sets.old.iter_mut().zip(sizes) {
                if desired(set) != size {
                    scaled = true;
                    *set = self.scale(deployment, set, size).await?;
                }
            }
        }
        if !scaled && status::is_complete(deployment, &known_status(deployment)) {
            self.clean_up(deployment, sets).await?;
        }
        self.report_rollout(deployment, sets).await
    }

    async fn recreate(&self, deployment: &mut Deployment, sets: &mut Sets) -> Result<(), Error> {
        let mut scaled = false;
        for set in sets.old.iter_mut().filter(|set| desired(set) > 0) {
            scaled = true;
            *set = self.scale(deployment, set, 0).await?;
        }
        if scaled || self.has_old_pods(deployment, sets) {
            return self.report_rollout(deployment, sets).await;
        }
        self.create_new(deployment, sets).await?;
        let limits = Limits::of(deployment);
        if let Some(new) = sets.new.clone()
            && desired(&new) != limits.replicas
        {
            sets.new = Some(self.scale(deployment, &new, limits.replicas).await?);
        }
        if status::is_complete(deployment, &known_status(deployment)) {
            self.clean_up(deployment, sets).await?;
        }
        self.report_rollout(deployment, sets).await
    }

    /// Whether pods of other templates are not finished.
    fn has_old_pods(&self, deployment: &Deployment, sets: &Sets) -> bool {
        let is_own = |set: &&Arc<ReplicaSet>| is_controlled_by(&set.metadata, uid_of(deployment));
        sets.old.iter().any(|set| plan::actual(set) > 0)
            || sets
                .old
                .iter()
                .filter(is_own)
                .any(|set| owned(self.pods.store(), &**set).iter().any(|pod| !is_finished(pod)))
    }

    /// Brings replica sets to the deployment's size without a rollout.
    async fn rescale(
        &self,
        deployment: &mut Deployment,
        sets: &mut Sets,
        clean_up: bool,
    ) -> Result<(), Error> {
        let limits = Limits::of(deployment);
        let total = crate::workload::count(known_status(deployment).replicas);
        let sizes = plan::rescaled(plan::is_rolling(deployment), limits, sets, total);
        for (set, size) in sizes {
            let scaled = self.scale(deployment, &set, size).await?;
            for known in sets.old.iter_mut().chain(&mut sets.new) {
                if uid_of(&**known) == uid_of(&*scaled) {
                    *known = scaled.clone();
                }
            }
        }
        if clean_up {
            self.clean_up(deployment, sets).await?;
        }
        self.report(deployment, status::calculate(deployment, sets)).await
    }

    async fn check_paused(&self, deployment: &mut Deployment) -> Result<(), Error> {
        if progress_deadline(deployment).is_none() {
            return Ok(());
        }
        let known = known_status(deployment);
        let known = status::condition(&known, PROGRESSING);
        let reason = known.and_then(|known| known.reason.clone()).unwrap_or_default();
        let is_paused = deployment.spec.as_ref().is_some_and(|spec| spec.paused == Some(true));
        let (reason, message) = match (is_paused, reason.as_str()) {
            (_, status::TIMED_OUT) => return Ok(()),
            (true, reason) if reason != status::PAUSED => (status::PAUSED, "Deployment is paused"),
            (false, status::PAUSED) => ("DeploymentResumed", "Deployment is resumed"),
            _ => return Ok(()),
        };
        let status = deployment.status.get_or_insert_default();
        set_condition(status, PROGRESSING, "Unknown", reason, message);
        self.write_status(deployment).await
    }

    /// Gives the new replica set, if there is one, the next revision and the deployment's annotations,
    /// and the deployment its revision.
    async fn sync_revision(
        &self,
        deployment: &mut Deployment,
        sets: &mut Sets,
    ) -> Result<(), Error> {
        let Some(known) = sets.new.clone() else { return Ok(()) };
        let next = next_revision(sets);
        let mut new = ReplicaSet::clone(&known);
        let mut changed = annotations::annotate_new(deployment, &mut new.metadata, next);
        let min_ready = deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
        if let Some(spec) = &mut new.spec
            && spec.min_ready_seconds.unwrap_or_default() != min_ready.unwrap_or_default()
        {
            spec.min_ready_seconds = min_ready;
            changed = true;
        }
        if changed {
            sets.new = Some(Arc::new(replace(&self.client, &new).await?));
            // the deployment follows when the change comes back
            return Ok(());
        }
        let revision =
            new.metadata.annotations.as_ref().and_then(|all| all.get(annotations::REVISION));
        let revision = revision.cloned().unwrap_or_default();
        let mut changed =
            annotations::set(&mut deployment.metadata, annotations::REVISION, &revision);
        let has_deadline = progress_deadline(deployment).is_some();
        let status = deployment.status.get_or_insert_default();
        if has_deadline && status::condition(status, PROGRESSING).is_none() {
            let message = format!("Found new replica set {:?}", name_of(&new));
            set_condition(status, PROGRESSING, "True", "FoundNewReplicaSet", &message);
            changed = true;
        }
        if changed {
            self.write_status(deployment).await?;
        }
        Ok(())
    }

    /// Creates the replica set of the current template, unless it exists.
    async fn create_new(&self, deployment: &mut Deployment, sets: &mut Sets) -> Result<(), Error> {
        if sets.new.is_some() {
            return Ok(());
        }
        let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
        let Some(mut new) = new_set(deployment, sets, collisions) else { return Ok(()) };
        let next = next_revision(sets);
        annotations::annotate_new(deployment, &mut new.metadata, next);
        annotations::set_sizes(&mut new.metadata, Limits::of(deployment));
        let replicas = desired(&new);
        let is_first = match create(&self.client, &new).await {
            Ok(created) => {
                if replicas > 0 {
                    let name = name_of(&created);
                    let message = format!("Scaled up replica set {name} from 0 to {replicas}");
                    self.event(deployment, EventType::Normal, "ScalingReplicaSet", &message);
                }
                sets.new = Some(Arc::new(created));
                true
            }
            Err(error) if already_exists(&error) => {
                let sets_api = api::<ReplicaSet>(&self.client, namespace_of(&new));
                let existing = object(sets_api.get(name_of(&new))).await?;
                let templates = existing.spec.as_ref().and_then(|spec| spec.template.as_ref());
                let template = deployment.spec.as_ref().map(|spec| &spec.template);
                let is_same = is_controlled_by(&existing.metadata, uid_of(deployment))
                    && templates
                        .zip(template)
                        .is_some_and(|(one, two)| plan::same_but_hash(one, two));
                if !is_same {
                    let status = deployment.status.get_or_insert_default();
                    status.collision_count = Some(collisions.unwrap_or_default().saturating_add(1));
                    self.write_status(deployment).await?;
                    return Err(error.into());
                }
                sets.new = Some(Arc::new(existing));
                false
            }
            Err(error) if is_terminating(&error) => return Err(error.into()),
            Err(error) => {
                let error = Error::from(error);
                let name = name_of(&new);
                let message = format!("Failed to create new replica set {name:?}: {error}");
                if progress_deadline(deployment).is_some() {
                    let status = deployment.status.get_or_insert_default();
                    let reason = "ReplicaSetCreateError";
                    set_condition(status, PROGRESSING, "False", reason, &message);
                    // the error of the creation is returned
                    let _ = self.write_status(deployment).await;
                }
                self.event(deployment, EventType::Warning, "ReplicaSetCreateError", &message);
                return Err(error);
            }
        };
        let mut changed =
            annotations::set(&mut deployment.metadata, annotations::REVISION, &next.to_string());
        if is_first && progress_deadline(deployment).is_some() {
            let message = format!("Created new replica set {:?}", name_of(&new));
            let status = deployment.status.get_or_insert_default();
            set_condition(status, PROGRESSING, "True", "NewReplicaSetCreated", &message);
            changed = true;
        }
        if changed {
            self.write_status(deployment).await?;
        }
        Ok(())
    }

    /// Scales a replica set, and notes the deployment's size in it.
    async fn scale(
        &self,
        deployment: &Deployment,
        set: &Arc<ReplicaSet>,
        size: isize,
    ) -> Result<Arc<ReplicaSet>, Error> {
        let before = desired(set);
        let mut scaled = ReplicaSet::clone(set);
        let noted = annotations::set_sizes(&mut scaled.metadata, Limits::of(deployment));
        if before == size && !noted {
            return Ok(set.clone());
        }
        scaled.spec.get_or_insert_default().replicas = Some(number(size));
        let scaled = replace(&self.client, &scaled).await?;
        if before != size {
            let word = if before < size { "up" } else { "down" };
            let name = name_of(&scaled);
            let message = format!("Scaled {word} replica set {name} from {before} to {size}");
            self.event(deployment, EventType::Normal, "ScalingReplicaSet", &message);
        }
        Ok(Arc::new(scaled))
    }

    /// Deletes the oldest revisions that are too many.
    async fn clean_up(&self, deployment: &Deployment, sets: &Sets) -> Result<(), Error> {
        let limit = deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit);
        let Some(limit) = limit.filter(|limit| *limit != i32::MAX) else { return Ok(()) };
        let is_alive = |set: &&Arc<ReplicaSet>| set.metadata.deletion_timestamp.is_none();
        let mut alive: Vec<_> = sets.old.iter().filter(is_alive).collect();
        let surplus = length(&alive) - crate::workload::count(Some(limit));
        alive.sort_by_cached_key(|set| {
            (annotations::revision(&set.metadata), created(set), set.metadata.name.clone())
        });
        for set in alive.into_iter().take(size(surplus)) {
            let observed = set.status.as_ref().and_then(|status| status.observed_generation);
            if plan::actual(set) != 0 || desired(set) != 0 || set.metadata.generation > observed {
                continue;
            }
            let same = Preconditions { uid: set.metadata.uid.clone(), resource_version: None };
            let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
            let api = api::<ReplicaSet>(&self.client, namespace_of(&**set));
            match api.delete(name_of(&**set), &params).await {
                Err(error) if !is_not_found(&error) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes over the template of an older revision.
    async fn roll_back(
        &self,
        mut deployment: Deployment,
        sets: &Sets,
        revision: i64,
    ) -> Result<(), Error> {
        let warn = |reason: &str, message: &str| {
            self.event(&deployment, EventType::Warning, reason, message);
        };
        let all = || sets.all().map(|set| &**set);
        let is_last = revision == 0;
        let revision = if is_last { annotations::last_revision(all()) } else { revision };
        let mut found = all().filter(|set| annotations::revision(&set.metadata) == Some(revision));
        let not_found = "DeploymentRollbackRevisionNotFound";
        match found.next() {
            _ if revision == 0 => warn(not_found, "Unable to find last revision."),
            None => warn(not_found, "Unable to find the revision to rollback to."),
            Some(set) => {
                let template = set.spec.as_ref().and_then(|spec| spec.template.clone());
                let current = deployment.spec.as_ref().map(|spec| &spec.template);
                let is_same = template.as_ref().zip(current);
                if is_same.is_none_or(|(one, two)| plan::same_but_hash(one, two)) {
                    let message = format!(
                        "The rollback revision contains the same template as current deployment {:?}",
                        name_of(&deployment)
                    );
                    warn("DeploymentRollbackTemplateUnchanged", &message);
                } else if let (Some(mut template), Some(spec)) = (template, &mut deployment.spec) {
                    let labels = template.metadata.as_mut().and_then(|it| it.labels.as_mut());
                    labels.and_then(|labels| labels.remove(HASH_LABEL));
                    spec.template = template;
                    let annotations = annotations::rolled_back(&deployment.metadata, &set.metadata);
                    deployment.metadata.annotations = Some(annotations);
                    remove_rollback(&mut deployment);
                    replace(&self.client, &deployment).await?;
                    let name = name_of(&deployment);
                    let message = format!("Rolled back deployment {name:?} to revision {revision}");
                    self.event(&deployment, EventType::Normal, "DeploymentRollback", &message);
                    return Ok(());
                }
            }
        }
        remove_rollback(&mut deployment);
        replace(&self.client, &deployment).await?;
        Ok(())
    }

    async fn report_rollout(&self, deployment: &Deployment, sets: &Sets) -> Result<(), Error> {
        let now = Timestamp::now();
        let new = status::of_rollout(deployment, sets, now);
        if deployment.status.as_ref() == Some(&new)
            && let Some(wait) = status::next_check(deployment, now)
        {
            self.queue.add_after(key_of(deployment), wait);
        }
        self.report(deployment, new).await
    }

    async fn report(
        &self,
        deployment: &Deployment,
        status: k8s_openapi::api::apps::v1::DeploymentStatus,
    ) -> Result<(), Error> {
        if deployment.status.as_ref() != Some(&status) {
            let updated = Deployment { status: Some(status), ..deployment.clone() };
            replace_status(&self.client, &updated).await?;
        }
        Ok(())
    }

    /// Writes the status as it is in the object, which becomes what the apiserver has.
    async fn write_status(&self, deployment: &mut Deployment) -> Result<(), Error> {
        *deployment = replace_status(&self.client, deployment).await?;
        Ok(())
    }

    fn event(&self, about: &Deployment, kind: EventType, reason: &str, message: &str) {
        self.recorder.event(reference(about), kind, reason, message);
    }
}

fn known_status(deployment: &Deployment) -> k8s_openapi::api::apps::v1::DeploymentStatus {
    deployment.status.clone().unwrap_or_default()
}

fn remove_rollback(deployment: &mut Deployment) {
    if let Some(annotations) = &mut deployment.metadata.annotations {
        annotations.remove(annotations::ROLLBACK_TO);
    }
}

fn next_revision(sets: &Sets) -> i64 {
    annotations::max_revision(sets.old.iter().map(|set| &**set)).saturating_add(1)
}

fn already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == "AlreadyExists")
}

/// The replica set of the current template.
fn new_set(deployment: &Deployment, sets: &Sets, collisions: Option<i32>) -> Option<ReplicaSet> {
    let spec = deployment.spec.as_ref()?;
    let mut template = spec.template.clone();
    let hash = template_hash(&template, collisions);
    let metadata = template.metadata.get_or_insert_default();
    metadata.labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.clone());
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.clone());
    let limits = Limits::of(deployment);
    let replicas = plan::scaled_up(plan::is_rolling(deployment), limits, 0, sets.desired());
    let name = name_of(deployment);
    let longest = MAX_NAME.saturating_sub(hash.len() + 1);
    Some(ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", &name[..name.floor_char_boundary(longest)])),
            namespace: deployment.metadata.namespace.clone(),
            labels: metadata.labels.clone(),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(number(replicas)),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    })
}
