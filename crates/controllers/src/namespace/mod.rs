//! The end of namespaces: pods first, then everything else that the apiserver has, then the finalizer.

pub(crate) mod plan;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use longshore_client::error_message;
use longshore_informer::{Event, Informer, Retries, SyncError, WorkQueue, key_of, run_workers};

use self::plan::{Outcome, conditions, grace};
use crate::Context;
use crate::discovery::{Discovered, Discovery, discover};
use crate::writes::{has_code, unless_gone, unless_stopped};

const FINALIZER: &str = "kubernetes";
/// The pauses before a namespace is tried again.
const RETRIES: Retries = Retries {
    first: Duration::from_millis(5),
    longest: Duration::from_secs(60),
    limits_rate: true,
};
/// The pause for other controllers to see the namespace terminate (upstream: 5 s).
const GRACE: Duration = Duration::from_millis(100);
/// When finalizers are looked at again.
const FINALIZER_ESTIMATE: i64 = 15;

/// Why a namespace is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("{0}")]
    Content(String),
}

impl SyncError for Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Request(error) if error.is_conflict())
    }
}

struct Controller {
    client: Client,
    namespaces: Informer<Namespace>,
    queue: WorkQueue<String>,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::with_retries("namespace", &context.queues, RETRIES);
    let namespaces = context.informers.get::<Namespace>();
    namespaces.subscribe({
        let queue = queue.clone();
        move |event: &Event<Namespace>| {
            let Event::Deleted(_) = event else {
                let namespace = event.latest();
                let was_terminating =
                    event.old().is_some_and(|old| old.metadata.deletion_timestamp.is_some());
                if namespace.metadata.deletion_timestamp.is_some() {
                    // Its own writes of conditions do not wait again.
                    let wait = if was_terminating { Duration::ZERO } else { GRACE };
                    let is_status_only = event.old().is_some_and(|old| {
                        was_terminating
                            && old.spec == namespace.spec
                            && old.metadata.finalizers == namespace.metadata.finalizers
                    });
                    if !is_status_only {
                        queue.add_after(key_of(&**namespace), wait);
                    }
                }
                return;
            };
        }
    });
    if !unless_stopped(&context, namespaces.synced()).await {
        return;
    }
    let controller =
        Controller { client: context.client.clone(), namespaces, queue: queue.clone() };
    let workers = context.settings.cluster.namespace_workers;
    run_workers("namespace-controller", &queue, workers, &context.stop, |key| controller.sync(key))
        .await;
}

impl Controller {
    async fn sync(&self, name: String) -> Result<(), Error> {
        if self.namespaces.store().get(&name).is_none() {
            return Ok(());
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let Some(mut namespace) = api.get_opt(&name).await? else { return Ok(()) };
        let Some(deleted) = namespace.metadata.deletion_timestamp.clone() else { return Ok(()) };
        let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Terminating") {
            namespace.status.get_or_insert_default().phase = Some("Terminating".to_owned());
            let written = api.replace_status(&name, &PostParams::default(), &namespace).await;
            let Some(written) = unless_gone(written)? else { return Ok(()) };
            namespace = written;
        }
        let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
        if finalizers.is_none_or(Vec::is_empty) {
            // Finalizers of the metadata hold it, or it is gone soon.
            return Ok(());
        }
        let outcome = self.empty(&name, deleted.0).await?;
        let before = namespace.status.as_ref().and_then(|status| status.conditions.clone());
        if let Some(conditions) =
            conditions(&before.unwrap_or_default(), &outcome, Timestamp::now())
        {
            namespace.status.get_or_insert_default().conditions = Some(conditions);
            let written = api.replace_status(&name, &PostParams::default(), &namespace).await;
            let Some(written) = unless_gone(written)? else { return Ok(()) };
            namespace = written;
        }
        if !outcome.failures.is_empty() || outcome.discovery.is_some() {
            let failures = outcome.discovery.into_iter().chain(outcome.failures);
            return Err(Error::Content(failures.collect::<Vec<_>>().join(", ")));
        }
        if outcome.estimate > 0 {
            // Half of it, and one second more, as upstream.
            let seconds = u64::try_from(outcome.estimate / 2).unwrap_or_default();
            let wait = Duration::from_secs(seconds.saturating_add(1));
            self.queue.add_after(name, wait.min(Duration::from_secs(3)));
            return Ok(());
        }
        if !outcome.is_empty() {
            self.queue.add_after(name, Duration::from_secs(1));
            return Ok(());
        }
        self.finalize(&name, namespace).await
    }

    /// Removes the finalizer of the spec.
    async fn finalize(&self, name: &str, mut namespace: Namespace) -> Result<(), Error> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        loop {
            if let Some(finalizers) =
                namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut())
            {
                finalizers.retain(|finalizer| finalizer != FINALIZER);
            }
            let body = serde_json::to_vec(&namespace)
                .map_err(|error| Error::Content(error.to_string()))?;
            let params = PostParams::default();
            let written: Result<DynamicObject, kube::Error> = {
                let request = kube::core::Request::new("/api/v1/namespaces")
                    .replace_subresource("finalize", name, &params, body)
                    .map_err(|error| Error::Content(error.to_string()))?;
                self.client.request(request).await
            };
            match written {
                Err(error) if has_code(&error, 409) => {
                    let uid = namespace.metadata.uid.clone();
                    match api.get_opt(name).await? {
                        Some(latest) if latest.metadata.uid == uid => namespace = latest,
                        _ => return Ok(()),
                    }
                }
                result => {
                    unless_gone(result)?;
                    return Ok(());
                }
            }
        }
    }

    /// Deletes what is in the namespace, pods before everything else.
    async fn empty(&self, name: &str, deleted: Timestamp) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        let discovery = match discover(&self.client).await {
            Ok(discovery) => discovery,
            Err(error) => {
                outcome.discovery = Some(error_message(&error));
                Discovery::default()
            }
        };
        if !discovery.failed.is_empty() {
            let (count, failed) = (discovery.failed.len(), discovery.failed.join(", "));
            outcome.discovery = Some(format!(
                "Discovery failed for some groups, {count} failing: unable to retrieve the complete list of server APIs: {failed}"
            ));
        }
        let is_pods =
            |found: &Discovered| found.resource.group.is_empty() && found.resource.plural == "pods";
        let (pods, others): (Vec<Discovered>, Vec<Discovered>) = discovery
            .resources
            .into_iter()
            .filter(|found| found.namespaced && found.allows(&["delete"]))
            .partition(is_pods);
        for resource in &pods {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), name);
            let estimate = match api.list(&ListParams::default()).await {
                Ok(list) => grace(&list.items, deleted, Timestamp::now()),
                Err(error) => {
                    outcome.failures.push(error_message(&error));
                    continue;
                }
            };
            self.delete_all(name, resource, estimate, &mut outcome).await;
        }
        if !outcome.remaining.is_empty() || !outcome.failures.is_empty() {
            return Ok(outcome);
        }
        for resource in &others {
            self.delete_all(name, resource, 0, &mut outcome).await;
        }
        Ok(outcome)
    }

    async fn delete_all(
        &self,
        namespace: &str,
        found: &Discovered,
        estimate: i64,
        outcome: &mut Outcome,
    ) {
        match self.try_delete_all(namespace, found).await {
            Ok(left) if left.is_empty() => {}
            Ok(left) => {
                let finalizers = left
                    .iter()
                    .map(|object| object.metadata.finalizers.as_deref().unwrap_or_default());
                let is_held = finalizers.clone().any(|finalizers| !finalizers.is_empty());
                let resource = &found.resource;
                outcome.remain(&resource.plural, &resource.group, finalizers);
                match (estimate, is_held) {
                    (0, false) => outcome.failures.push(format!(
                        "unexpected items still remain in namespace: {namespace} for gvr: {}/{}, Resource={}",
                        resource.group, resource.version, resource.plural
                    )),
                    (0, true) => outcome.estimate = outcome.estimate.max(FINALIZER_ESTIMATE),
                    (estimate, _) => outcome.estimate = outcome.estimate.max(estimate),
                }
            }
            Err(error) => outcome.failures.push(error_message(&error)),
        }
    }

    /// Deletes the objects of a resource; returns those that are left.
    async fn try_delete_all(
        &self,
        namespace: &str,
        found: &Discovered,
    ) -> Result<Vec<PartialObjectMeta<DynamicObject>>, kube::Error> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &found.resource);
        let list = ListParams::default();
        if !found.allows(&["list"]) {
            return Ok(Vec::new());
        }
        let before = match api.list_metadata(&list).await {
            // The resource is gone, or has no lists.
            Err(error) if has_code(&error, 404) || has_code(&error, 405) => return Ok(Vec::new()),
            before => before?.items,
        };
        if before.is_empty() {
            return Ok(before);
        }
        let params = DeleteParams::background();
        if found.allows(&["deletecollection"]) {
            match api.delete_collection(&params, &list).await {
                Err(error) if has_code(&error, 404) || has_code(&error, 405) => {}
                deleted => {
                    deleted?;
                    return Ok(api.list_metadata(&list).await?.items);
                }
            }
        }
        for object in before {
            let name = object.metadata.name.unwrap_or_default();
            unless_gone(api.delete(&name, &params).await)?;
        }
        Ok(api.list_metadata(&list).await?.items)
    }
}
