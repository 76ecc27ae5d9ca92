//! Mirror pods: the objects of static pods in the apiserver. One loop creates, recreates and
//! deletes them until they match the static pods.

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
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Desired, FullName, full_name};

/// Delay before a retry.
const RETRY: Duration = Duration::from_secs(5);
/// The least time between recreations of a mirror pod that others have changed, as they may do it
/// again each time.
const RECREATE: Duration = Duration::from_secs(30);
/// Annotations that differ between a mirror pod and its static pod.
const LOCAL: [&str; 3] = [spec::SOURCE_ANNOTATION, spec::MIRROR_ANNOTATION, spec::SEEN_ANNOTATION];

/// What the loop needs to know besides the pods.
#[derive(Debug, Default)]
pub(super) struct Mirroring {
    /// How many static pods of that name were removed and have not ended yet. Their mirror pod stays
    /// as it is: it shows that they still run.
    held: Mutex<HashMap<FullName, usize>>,
    /// Counts changes.
    changed: watch::Sender<u64>,
}

impl Mirroring {
    /// Something that the loop follows has changed.
    pub(super) fn note_change(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Keeps the mirror pod of that name until the hold is dropped.
    pub(super) fn hold(self: &Arc<Self>, name: FullName) -> MirrorHold {
        let mut held = self.held.lock();
        let count = held.entry(name.clone()).or_default();
        *count = count.saturating_add(1);
        MirrorHold { name, mirroring: self.clone() }
    }

    /// Changes from now on.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn is_held(&self, name: &FullName) -> bool {
        self.held.lock().contains_key(name)
    }
}

/// Keeps the mirror pod of a static pod that was removed and is being terminated: it is neither
/// deleted nor recreated before this is dropped.
#[derive(Debug)]
pub struct MirrorHold {
    name: FullName,
    mirroring: Arc<Mirroring>,
}

impl Drop for MirrorHold {
    fn drop(&mut self) {
        let mut held = self.mirroring.held.lock();
        if let Some(count) = held.get_mut(&self.name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.remove(&self.name);
            }
        }
        drop(held);
        self.mirroring.note_change();
    }
}

/// Whether a mirror pod is of this version of a static pod.
pub(super) fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    let content = |pod| spec::annotation(pod, spec::CONTENT_ANNOTATION).map(str::to_owned);
    spec::annotation(mirror, spec::MIRROR_ANNOTATION)
        == spec::annotation(pod, spec::HASH_ANNOTATION)
        && content(mirror) == content(pod)
}

/// Whether a mirror pod is unchanged: the node never updates one, so its generation is 1. Labels
/// and annotations that others add are kept.
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

/// Reconcile mirror pods until the process ends. They are owned by the node object, so they are
/// created only while that exists.
pub async fn reconcile_mirrors(
    desired: Desired,
    client: Client,
    node: watch::Receiver<Option<Arc<Node>>>,
    recorder: Recorder,
) {
    let mut changed = desired.shared.mirroring.changes();
    let mut node_changed = node.clone();
    let mut mirrors = Mirrors {
        desired,
        client,
        node,
        recorder,
        recreated: HashMap::new(),
        reported_conflicts: HashMap::new(),
    };
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
    /// When a changed mirror pod was recreated last.
    recreated: HashMap<FullName, Instant>,
    /// The conflicts reported in an event, by name of the static pod.
    reported_conflicts: HashMap<FullName, String>,
}

impl Mirrors {
    /// One round. Returns whether all of it succeeded.
    async fn reconcile(&mut self) -> bool {
        let (statics, mirrors) = {
            let state = self.desired.state();
            let pods = state.pods.values().map(|(_, pod)| pod.clone());
            let statics: HashMap<FullName, Arc<Pod>> =
                pods.filter(|pod| spec::is_static(pod)).map(|pod| (full_name(&pod), pod)).collect();
            (statics, state.mirrors.clone())
        };
        // Before all sources are synced, a mirror pod without static pod may just be early.
        let synced = *self.desired.synced().borrow();
        self.recreated.retain(|name, _| statics.contains_key(name));
        self.reported_conflicts.retain(|name, _| statics.contains_key(name));
        let mut complete = true;
        let mut standing = Vec::new();
        let mirroring = self.desired.shared.mirroring.clone();
        for (name, mirror) in &mirrors {
            match statics.get(name) {
                _ if mirroring.is_held(name) => {}
                Some(pod) if !self.is_outdated(name, mirror, pod) => standing.push(name),
                None if !synced => {}
                _ => complete &= done("delete", mirror, delete(&self.client, mirror).await),
            }
        }
        for (name, pod) in &statics {
            if !standing.contains(&name) && !mirroring.is_held(name) {
                let created = self.create(name, pod).await;
                complete &= created.as_ref().is_ok_and(|made| *made);
                done("create", pod, created.map(drop));
            }
        }
        complete
    }

    fn is_outdated(&mut self, name: &FullName, mirror: &Pod, pod: &Pod) -> bool {
        if mirror.metadata.deletion_timestamp.is_some() || !is_mirror_of(mirror, pod) {
            return true;
        }
        if is_intact(mirror, pod)
            || self.recreated.get(name).is_some_and(|recreated| recreated.elapsed() < RECREATE)
        {
            return false;
        }
        info!(pod = name.1, namespace = name.0, "mirror pod was changed, recreating it");
        self.recreated.insert(name.clone(), Instant::now());
        true
    }

    /// Create a mirror pod. Returns whether there is one now, or none is wanted.
    async fn create(&mut self, name: &FullName, pod: &Pod) -> Result<bool, Error> {
        let node = self.node.borrow().clone();
        // Without the node object, or while that is being deleted, a mirror pod has no owner. A
        // change of the object starts another round.
        let Some(node) = node.filter(|node| node.metadata.deletion_timestamp.is_none()) else {
            return Ok(true);
        };
        let pods: Api<Item<Pod>> = Api::namespaced(self.client.clone(), &name.0);
        match pods.create(&PostParams::default(), &new_mirror(pod, &node).into()).await {
            Err(Error::Api(status)) if status.code == 409 => {}
            result => {
                self.reported_conflicts.remove(name);
                return result.map(|_| true);
            }
        }
        match optional(pods.get_opt(&name.1)).await {
            // The watch lags behind: its update starts another round.
            Ok(Some(found)) if spec::is_mirror(&found) && is_mirror_of(&found, pod) => {
                return Ok(true);
            }
            Ok(Some(found)) if !spec::is_mirror(&found) => {
                self.report_conflict(name, &format!("with UID {}", spec::uid(&found)), &node);
            }
            // The node may not read a pod that is not bound to it.
            Err(Error::Api(status)) if status.code == 403 => {
                self.report_conflict(name, "on another node", &node);
            }
            // The old one is being deleted.
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// Another pod has the name of the mirror pod. The static pod runs anyway.
    fn report_conflict(&mut self, name: &FullName, which: &str, node: &Node) {
        if self.reported_conflicts.insert(name.clone(), which.to_owned()).as_deref() == Some(which)
        {
            return;
        }
        let (namespace, name) = name;
        let message = format!(
            "static pod {namespace}/{name} has no mirror pod: another pod with its name exists {which}"
        );
        warn!("{message}");
        let node = node_reference(node.metadata.name.as_deref().unwrap_or_default());
        self.recorder.event(node, EventType::Warning, "FailedCreateMirrorPod", &message);
    }
}

fn done(what: &str, pod: &Pod, result: Result<(), Error>) -> bool {
    match &result {
        Ok(()) => debug!(what, pod = spec::name(pod), "mirror pod"),
        Err(error) => warn!(what, pod = spec::name(pod), %error, "mirror pod failed, will retry"),
    }
    result.is_ok()
}

fn new_mirror(pod: &Pod, node: &Node) -> Pod {
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
    use serde_json::json;

    use super::*;

    fn pod(labels: serde_json::Value, annotations: serde_json::Value, generation: i64) -> Pod {
        let metadata =
            json!({"labels": labels, "annotations": annotations, "generation": generation});
        serde_json::from_value(json!({ "metadata": metadata })).expect("a pod")
    }

    #[test]
    fn mirror_pod_that_was_changed_is_not_intact() {
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
