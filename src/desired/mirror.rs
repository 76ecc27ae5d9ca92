//! Mirror pods: how the apiserver's users see static pods. One loop makes, remakes and removes
//! them until they match the static pods that there are.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Client, Error};
use longshore_pod::spec;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{Desired, full_name};

/// Pause after something could not be done.
const RETRY: Duration = Duration::from_secs(5);

/// Whether a mirror shows this very version of a static pod.
pub(super) fn is_of(mirror: &Pod, pod: &Pod) -> bool {
    spec::annotation(mirror, spec::MIRROR_ANNOTATION)
        == spec::annotation(pod, spec::HASH_ANNOTATION)
}

/// Keep the mirrors right until the process ends. Mirrors are owned by the node's object, so they
/// are made only once that is known.
pub async fn reconcile_mirrors(
    desired: Desired,
    client: Client,
    mut node: watch::Receiver<Option<Arc<Node>>>,
) {
    let mut changed = desired.shared.mirrors_changed.subscribe();
    let mut synced = desired.synced();
    // Before all sources have spoken, a mirror without static pod may just be early.
    if synced.wait_for(|synced| *synced).await.is_err() {
        return;
    }
    let Ok(owner) = node.wait_for(Option::is_some).await.map(|node| node.as_deref().map(owner))
    else {
        return;
    };
    loop {
        changed.mark_unchanged();
        let complete = reconcile(&desired, &client, owner.as_ref()).await;
        tokio::select! {
            alive = changed.changed() => if alive.is_err() { return },
            () = tokio::time::sleep(RETRY), if !complete => {}
        }
    }
}

fn owner(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// One round. Tells whether all of it was done.
async fn reconcile(desired: &Desired, client: &Client, owner: Option<&OwnerReference>) -> bool {
    let (statics, mirrors) = {
        let state = desired.state();
        let pods = state.pods.values().map(|(_, pod)| pod.clone());
        let statics: Vec<Arc<Pod>> = pods.filter(|pod| spec::is_static(pod)).collect();
        (statics, state.mirrors.clone())
    };
    let mut complete = true;
    for mirror in mirrors.values() {
        let current =
            statics.iter().any(|pod| full_name(pod) == full_name(mirror) && is_of(mirror, pod));
        if !current || mirror.metadata.deletion_timestamp.is_some() {
            complete &= done("delete", mirror, delete(client, mirror).await);
        }
    }
    for pod in &statics {
        let mirrored = mirrors.get(&full_name(pod)).is_some_and(|mirror| is_of(mirror, pod));
        if !mirrored {
            complete &= done("create", pod, create(client, pod, owner).await);
        }
    }
    complete
}

fn done(what: &str, pod: &Pod, result: Result<(), Error>) -> bool {
    match &result {
        Ok(()) => debug!(what, pod = spec::name(pod), "mirror pod"),
        Err(error) => warn!(what, pod = spec::name(pod), %error, "mirror pod failed, trying again"),
    }
    result.is_ok()
}

async fn create(client: &Client, pod: &Pod, owner: Option<&OwnerReference>) -> Result<(), Error> {
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let hash = annotations.get(spec::HASH_ANNOTATION).cloned().unwrap_or_default();
    annotations.insert(spec::MIRROR_ANNOTATION.to_owned(), hash);
    let mirror = Pod {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: owner.map(|owner| vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        spec: pod.spec.clone(),
        status: None,
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), spec::namespace(pod));
    match pods.create(&PostParams::default(), &mirror).await {
        // The watch is behind, or the old one is on its way out: its end starts another round.
        Err(Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(drop),
    }
}

async fn delete(client: &Client, mirror: &Pod) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), spec::namespace(mirror));
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: mirror.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match pods.delete(spec::name(mirror), &params).await {
        Err(Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        result => result.map(drop),
    }
}
