//! Creates and deletes pods for a controlling object, with events about it.

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{DeleteParams, Preconditions};
use longshore_client::events::{EventType, Recorder};

use super::{Error, Namespaced, api, controller_reference, create, name_of, namespace_of};
use crate::writes::{is_not_found, is_terminating, reference};

/// Pods in the first batch.
const FIRST_BATCH: usize = 1;

/// Creates and deletes pods.
#[derive(Clone)]
pub(crate) struct PodControl {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
}

/// A pod made from a template for its owner. Its name is generated.
pub(crate) fn new_pod<K: Namespaced>(owner: &K, template: &PodTemplateSpec) -> Pod {
    let from = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace_of(owner).to_owned()),
            generate_name: Some(format!("{}-", name_of(owner))),
            labels: from.labels,
            annotations: from.annotations,
            finalizers: from.finalizers,
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

impl PodControl {
    /// Records an event about an object.
    pub(crate) fn event<K: Namespaced>(
        &self,
        about: &K,
        kind: EventType,
        reason: &str,
        message: &str,
    ) {
        self.recorder.event(reference(about), kind, reason, message);
    }

    /// Creates a pod.
    pub(crate) async fn create<K: Namespaced>(&self, owner: &K, pod: &Pod) -> Result<Pod, Error> {
        if pod.metadata.labels.as_ref().is_none_or(|labels| labels.is_empty()) {
            return Err(Error::invalid("unable to create pods, no labels"));
        }
        match create(&self.client, pod).await {
            Ok(pod) => {
                let message = format!("Created pod: {}", name_of(&pod));
                self.event(owner, EventType::Normal, "SuccessfulCreate", &message);
                Ok(pod)
            }
            Err(error) => {
                let terminating = is_terminating(&error);
                let error = Error::from(error);
                if !terminating {
                    let message = format!("Error creating: {error}");
                    self.event(owner, EventType::Warning, "FailedCreate", &message);
                }
                Err(error)
            }
        }
    }

    /// Creates pods in batches, of which each is twice as large as the one before, so that not many
    /// requests fail for the same reason. Returns how many were created.
    ///
    /// # Errors
    /// The first that failed; that the namespace is being deleted is no failure.
    pub(crate) async fn create_all<K: Namespaced>(
        &self,
        owner: &K,
        pods: &[Pod],
    ) -> (usize, Result<(), Error>) {
        let (mut created, mut batch, mut rest) = (0, FIRST_BATCH, pods);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(batch.min(rest.len()));
            let results = join_all(now.iter().map(|pod| self.create(owner, pod))).await;
            let mut failure = None;
            for result in results {
                match result {
                    Ok(_) => created += 1,
                    Err(Error::Api(error)) if is_terminating(&error) => {
                        return (created, Ok(()));
                    }
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            if let Some(failure) = failure {
                return (created, Err(failure));
            }
            (batch, rest) = (batch.saturating_mul(2), later);
        }
        (created, Ok(()))
    }

    /// Deletes a pod, if it is still the same; whether there was one.
    pub(crate) async fn delete<K: Namespaced>(&self, owner: &K, pod: &Pod) -> Result<bool, Error> {
        let name = name_of(pod);
        let same = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        match api::<Pod>(&self.client, namespace_of(pod)).delete(name, &params).await {
            Ok(_) => {
                let message = format!("Deleted pod: {name}");
                self.event(owner, EventType::Normal, "SuccessfulDelete", &message);
                Ok(true)
            }
            Err(error) if is_not_found(&error) => Ok(false),
            Err(error) => {
                let error = Error::from(error);
                let message = format!("Error deleting: {error}");
                self.event(owner, EventType::Warning, "FailedDelete", &message);
                Err(error)
            }
        }
    }
}
