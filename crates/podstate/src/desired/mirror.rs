//! Mirror pods: how the apiserver's users see static pods. One loop makes, remakes and removes
//! them until they match the static pods that there are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Client, Error};
use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_client::{Item, optional};
use longshore_pod::spec;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Desired, FullName, full_name};

/// Pause after something could not be done.
const RETRY: Duration = Duration::from_secs(5);
/// How often a mirror is made again that shows the right version, but was changed: somebody else may
/// change it each time that it is made.
const REMAKE: Duration = Duration::from_secs(30);
/// Annotations that differ between a mirror and its static pod by right.
const LOCAL: [&str; 3] = [spec::SOURCE_ANNOTATION, spec::MIRROR_ANNOTATION, spec::SEEN_ANNOTATION];

/// Whether a mirror shows this very version of a static pod.
pub(super) fn is_of(mirror: &Pod, pod: &Pod) -> bool {
    let content = |pod| spec::annotation(pod, spec::CONTENT_ANNOTATION).map(str::to_owned);
    spec::annotation(mirror, spec::MIRROR_ANNOTATION)
        == spec::annotation(pod, spec::HASH_ANNOTATION)
        && content(mirror) == content(pod)
}

/// Whether a mirror is as it was made. The node never changes one, so its spec is of the first
/// generation; what others add to its labels and annotations is theirs.
fn is_intact(mirror: &Pod, pod: &Pod) -> bool {
    let holds =
        |mirror: &Option<BTreeMap<String, String>>, own: &Option<BTreeMap<String, String>>| {
            own.iter().flatten().filter(|(key, _)| !LOCAL.contains(&key.as_str())).all(
                |(key, value)| mirror.as_ref().and_then(|mirror| mirror.get(key)) == Some(value),
            )
        };
    mirror.metadata.generation.unwrap_or_default() <= 1
        && holds(&mirror.metadata.labels, &pod.metadata.labels)
        && holds(&mirror.metadata.annotations, &pod.metadata.annotations)
}

/// Keep the mirrors right until the process ends. Mirrors are owned by the node's object, so they
/// are made only while that is there.
pub async fn reconcile_mirrors(
    desired: Desired,
    client: Client,
    node: watch::Receiver<Option<Arc<Node>>>,
    recorder: Recorder,
) {
    let mut changed = desired.shared.mirrors_changed.subscribe();
    let mut node_changed = node.clone();
    let mut mirrors =
        Mirrors { desired, client, node, recorder, remade: HashMap::new(), told: HashMap::new() };
    loop {
        changed.mark_unchanged();
        node_changed.mark_unchanged();
        let complete = mirrors.reconcile().await;
        tokio::select! {
            alive = changed.changed() => if alive.is_err() { return },
            Ok(()) = node_changed.changed() => {}
            () = tokio::time::sleep(RETRY), if !complete => {}
        }
    }
}

struct Mirrors {
    desired: Desired,
    client: Client,
    node: watch::Receiver<Option<Arc<Node>>>,
    recorder: Recorder,
    /// When a mirror was made again last because it had been changed.
    remade: HashMap<FullName, Instant>,
    /// Which pods, by name, were told to stand in a mirror's place.
    told: HashMap<FullName, String>,
}

impl Mirrors {
    /// One round. Tells whether all of it was done.
    async fn reconcile(&mut self) -> bool {
        let (statics, mirrors) = {
            let state = self.desired.state();
            let pods = state.pods.values().map(|(_, pod)| pod.clone());
            let statics: HashMap<FullName, Arc<Pod>> =
                pods.filter(|pod| spec::is_static(pod)).map(|pod| (full_name(&pod), pod)).collect();
            (statics, state.mirrors.clone())
        };
        // Before all sources have spoken, a mirror without static pod may just be early.
        let synced = *self.desired.synced().borrow();
        self.remade.retain(|name, _| statics.contains_key(name));
        self.told.retain(|name, _| statics.contains_key(name));
        let mut complete = true;
        let mut standing = Vec::new();
        for (name, mirror) in &mirrors {
            match statics.get(name) {
                Some(pod) if !self.is_outdated(name, mirror, pod) => standing.push(name),
                None if !synced => {}
                _ => complete &= done("delete", mirror, delete(&self.client, mirror).await),
            }
        }
        for (name, pod) in &statics {
            if !standing.contains(&name) {
                let created = self.create(name, pod).await;
                complete &= created.as_ref().is_ok_and(|made| *made);
                done("create", pod, created.map(drop));
            }
        }
        complete
    }

    fn is_outdated(&mut self, name: &FullName, mirror: &Pod, pod: &Pod) -> bool {
        if mirror.metadata.deletion_timestamp.is_some() || !is_of(mirror, pod) {
            return true;
        }
        if is_intact(mirror, pod)
            || self.remade.get(name).is_some_and(|remade| remade.elapsed() < REMAKE)
        {
            return false;
        }
        info!(pod = name.1, namespace = name.0, "mirror pod was changed, it is made again");
        self.remade.insert(name.clone(), Instant::now());
        true
    }

    /// Make a mirror. Tells whether there is one now, or there is to be none.
    async fn create(&mut self, name: &FullName, pod: &Pod) -> Result<bool, Error> {
        let node = self.node.borrow().clone();
        // Without the node's object, or with one on its way out, nobody would own it: told when
        // that changes.
        let Some(node) = node.filter(|node| node.metadata.deletion_timestamp.is_none()) else {
            return Ok(true);
        };
        let pods: Api<Item<Pod>> = Api::namespaced(self.client.clone(), &name.0);
        match pods.create(&PostParams::default(), &mirror_of(pod, &node).into()).await {
            Err(Error::Api(status)) if status.code == 409 => {}
            result => {
                self.told.remove(name);
                return result.map(|_| true);
            }
        }
        match optional(pods.get_opt(&name.1)).await {
            // The watch is behind: its news start another round.
            Ok(Some(found)) if spec::is_mirror(&found) && is_of(&found, pod) => return Ok(true),
            Ok(Some(found)) if !spec::is_mirror(&found) => {
                self.tell_conflict(name, &format!("with UID {}", spec::uid(&found)), &node);
            }
            // What is not bound to this node, the node may not even read.
            Err(Error::Api(status)) if status.code == 403 => {
                self.tell_conflict(name, "that is not of this node", &node);
            }
            // An old one is on its way out.
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// A pod that is no mirror stands in a mirror's place. The static pod runs all the same.
    fn tell_conflict(&mut self, name: &FullName, which: &str, node: &Node) {
        if self.told.insert(name.clone(), which.to_owned()).as_deref() == Some(which) {
            return;
        }
        let (namespace, name) = name;
        let message = format!(
            "static pod {namespace}/{name} runs but has no mirror: its name is another pod's, {which}"
        );
        warn!("{message}");
        let node = node_reference(node.metadata.name.as_deref().unwrap_or_default());
        self.recorder.event(node, EventType::Warning, "FailedCreateMirrorPod", &message);
    }
}

fn done(what: &str, pod: &Pod, result: Result<(), Error>) -> bool {
    match &result {
        Ok(()) => debug!(what, pod = spec::name(pod), "mirror pod"),
        Err(error) => warn!(what, pod = spec::name(pod), %error, "mirror pod failed, trying again"),
    }
    result.is_ok()
}

fn mirror_of(pod: &Pod, node: &Node) -> Pod {
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let hash = annotations.get(spec::HASH_ANNOTATION).cloned().unwrap_or_default();
    annotations.insert(spec::MIRROR_ANNOTATION.to_owned(), hash);
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    Pod {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: pod.spec.clone(),
        status: None,
    }
}

async fn delete(client: &Client, mirror: &Pod) -> Result<(), Error> {
    let pods: Api<Item<Pod>> = Api::namespaced(client.clone(), spec::namespace(mirror));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use serde_json::json;

    use super::*;

    fn pod(labels: serde_json::Value, annotations: serde_json::Value, generation: i64) -> Pod {
        let metadata =
            json!({"labels": labels, "annotations": annotations, "generation": generation});
        serde_json::from_value(json!({ "metadata": metadata })).expect("a pod")
    }

    #[test]
    fn a_mirror_that_was_changed_is_not_intact() {
        let own = pod(json!({"a": "1"}), json!({"k": "v", spec::SEEN_ANNOTATION: "now"}), 0);
        for (labels, annotations, generation, intact) in [
            (json!({"a": "1"}), json!({"k": "v"}), 1, true),
            (json!({"a": "1", "b": "2"}), json!({"k": "v", "added": "x"}), 1, true),
            (json!({"a": "1"}), json!({"k": "v"}), 2, false),
            (json!({"a": "2"}), json!({"k": "v"}), 1, false),
            (json!(null), json!({"k": "v"}), 1, false),
            (json!({"a": "1"}), json!({}), 1, false),
        ] {
            let mirror = pod(labels, annotations, generation);
            assert_eq!(is_intact(&mirror, &own), intact, "{:?}", mirror.metadata);
        }
    }
}
