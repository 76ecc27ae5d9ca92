//! Pods of the apiserver that are bound to this node.
//!
//! A pod whose object cannot be decoded, or is too large to be run, keeps its last known state and
//! its containers, until its object can be decoded again or is deleted; one that is not known yet
//! is not started.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::runtime::watcher::{self, Event};
use longshore_client::events::{EventType, Recorder};
use longshore_client::{Reports, Unreadable};
use longshore_pod::spec;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tracing::warn;

use super::{Source, Update};

/// Watch the node's pods until the receiver is closed. Starts when the node object has been read,
/// for admission depends on it.
pub async fn watch_pods(
    client: Client,
    node_name: String,
    mut node: watch::Receiver<Option<Arc<Node>>>,
    recorder: Recorder,
    updates: Sender<(Source, Update)>,
) {
    if node.changed().await.is_err() {
        return;
    }
    drop(node);
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node_name}"));
    let mut events = longshore_client::watch::<Pod>(client, config);
    let mut snapshot = Vec::new();
    let mut undecodable =
        Undecodable { recorder, reports: Reports::default(), uids: HashSet::new() };
    let mut failing = false;
    while let Some(event) = events.next().await {
        let changes = match event {
            Ok(Event::Init) => {
                snapshot.clear();
                undecodable.uids.clear();
                continue;
            }
            Ok(Event::InitApply(item)) => {
                match item.read().and_then(check_limits) {
                    Ok(pod) => snapshot.push(strip(pod)),
                    Err(unreadable) => undecodable.set(&unreadable),
                }
                continue;
            }
            Ok(Event::InitDone) => {
                vec![undecodable.update(), Update::Snapshot(std::mem::take(&mut snapshot))]
            }
            Ok(Event::Apply(item)) => match item.read().and_then(check_limits) {
                Ok(pod) => {
                    let update = undecodable.forget(&pod);
                    [Update::Set(Box::new(strip(pod)))].into_iter().chain(update).collect()
                }
                Err(unreadable) => {
                    undecodable.set(&unreadable);
                    vec![undecodable.update()]
                }
            },
            Ok(Event::Delete(item)) => {
                let pod = item.known();
                let update = undecodable.forget(&pod);
                [Update::Remove(Box::new(strip(pod)))].into_iter().chain(update).collect()
            }
            Err(error) => {
                // Logged once for each outage of the apiserver.
                if !failing {
                    warn!(%error, "cannot watch pods, will retry");
                }
                failing = true;
                continue;
            }
        };
        failing = false;
        for update in changes {
            if updates.send((Source::Api, update)).await.is_err() {
                return;
            }
        }
    }
}

/// Pods of the node that cannot be decoded.
struct Undecodable {
    recorder: Recorder,
    reports: Reports,
    uids: HashSet<String>,
}

impl Undecodable {
    fn set(&mut self, pod: &Unreadable) {
        self.uids.insert(pod.uid().to_owned());
        if self.reports.log(pod) {
            let message = format!("Pod is invalid, ignoring its last change: {}", pod.reason);
            self.recorder.event(pod.reference(), EventType::Warning, "InvalidPod", &message);
        }
    }

    /// The pod can be decoded again, or is gone.
    fn forget(&mut self, pod: &Pod) -> Option<Update> {
        self.uids.remove(spec::uid(pod)).then(|| self.update())
    }

    fn update(&self) -> Update {
        Update::Unreadable(self.uids.clone())
    }
}

/// Limits of a pod: containers and volumes, volume mounts of all containers, and sources and items
/// of its volumes. Upstream has no such limits; no pod of this size can be run, and work that grows
/// with the product of two of these numbers stays small.
const MAX_CONTAINERS: usize = 1000;
const MAX_VOLUMES: usize = 2000;
const MAX_MOUNTS: usize = 20_000;
const MAX_SOURCES: usize = 1000;

/// Rejects a pod that exceeds the limits.
fn check_limits(pod: Pod) -> Result<Pod, Unreadable> {
    let Some(pod_spec) = &pod.spec else { return Ok(pod) };
    let containers = spec::containers(pod_spec).map(|(_, c)| (&c.volume_mounts, &c.volume_devices));
    let ephemeral = spec::ephemeral_containers(pod_spec).iter();
    let ephemeral = ephemeral.map(|c| (&c.volume_mounts, &c.volume_devices));
    let (mut count, mut mounts) = (0, 0);
    for (own, devices) in containers.chain(ephemeral) {
        count += 1;
        mounts += own.as_ref().map_or(0, Vec::len) + devices.as_ref().map_or(0, Vec::len);
    }
    let volumes = pod_spec.volumes.as_deref().unwrap_or_default();
    let projected = volumes.iter().filter_map(|volume| volume.projected.as_ref());
    let sources = projected.map(|source| source.sources.as_ref().map_or(0, Vec::len)).sum();
    let limits = [
        ("containers", count, MAX_CONTAINERS),
        ("volumes", volumes.len(), MAX_VOLUMES),
        ("volume mounts", mounts, MAX_MOUNTS),
        ("projected sources", sources, MAX_SOURCES),
    ];
    match limits.into_iter().find(|(_, count, most)| count > most) {
        None => Ok(pod),
        Some((what, count, most)) => Err(Unreadable {
            kind: "Pod",
            reason: format!("spec: has {count} {what}, at most {most} are allowed").into(),
            metadata: Box::new(pod.metadata),
        }),
    }
}

/// Removes `managedFields`, which the node does not use, and sets the source: a pod of the
/// apiserver must not pass as a static one.
fn strip(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    if !spec::is_mirror(&pod) {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(spec::SOURCE_ANNOTATION.to_owned(), "api".to_owned());
    }
    pod
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longshore_client::scripted::{Scripted, bad_objects};
    use tokio::sync::mpsc;

    use super::*;

    /// The next update: `=` snapshot, `+` set, `-` removed, `?` UIDs that cannot be decoded.
    async fn next(updates: &mut mpsc::Receiver<(Source, Update)>) -> String {
        let update = tokio::time::timeout(Duration::from_secs(10), updates.recv()).await;
        let uids = |uids: Vec<&str>| uids.join(" ");
        match update.unwrap().unwrap().1 {
            Update::Snapshot(pods) => format!("={}", uids(pods.iter().map(spec::uid).collect())),
            Update::Set(pod) => format!("+{}", spec::uid(&pod)),
            Update::Remove(pod) => format!("-{}", spec::uid(&pod)),
            Update::Unreadable(set) => {
                let mut all: Vec<&str> = set.iter().map(String::as_str).collect();
                all.sort_unstable();
                format!("?{}", uids(all))
            }
        }
    }

    /// Finding 14: much of the work for a pod grows with the product of its parts.
    #[test]
    fn api_source_limits_the_size_of_pods() {
        let many = |count: usize, part: serde_json::Value| vec![part; count];
        let named = serde_json::json!({"name": "x", "mountPath": "/x"});
        let projected = |count| serde_json::json!({"name": "v", "projected": {"sources": many(count, serde_json::json!({}))}});
        for (spec, fits) in [
            (serde_json::json!({"containers": many(1000, named.clone())}), true),
            (serde_json::json!({"containers": many(1001, named.clone())}), false),
            (
                serde_json::json!({"containers": many(500, named.clone()),
                    "initContainers": many(500, named.clone()),
                    "ephemeralContainers": many(1, named.clone())}),
                false,
            ),
            (serde_json::json!({"containers": [], "volumes": many(2001, named.clone())}), false),
            (
                serde_json::json!({"containers":
                    many(21, serde_json::json!({"name": "c", "volumeMounts": many(1000, named.clone())}))}),
                false,
            ),
            (serde_json::json!({"containers": [], "volumes": [projected(1000)]}), true),
            (
                serde_json::json!({"containers": [], "volumes": [projected(501), projected(501)]}),
                false,
            ),
        ] {
            let pod: Pod = serde_json::from_value(serde_json::json!({"spec": spec})).unwrap();
            assert_eq!(check_limits(pod).is_ok(), fits);
        }
    }

    /// Finding 13: one pod that could not be decoded hid all others of its node.
    #[tokio::test]
    async fn api_source_undecodable_pod_does_not_affect_others() {
        let rest = r#""spec":{"containers":[{"name":"c"}]}"#;
        let good = |uid: &str| {
            format!(
                r#"{{"metadata":{{"name":"{uid}","namespace":"x","uid":"{uid}","resourceVersion":"6"}},{rest}}}"#
            )
        };
        let mut items = bad_objects(rest);
        items.insert(0, good("a"));
        items.push(good("b"));
        let api = Scripted::start(&items, false).await;
        let (sender, mut updates) = mpsc::channel(8);
        let (node, receiver) = watch::channel(None);
        let (recorder, _writing) = Recorder::start(None, "node");
        let watching = watch_pods(api.client(), "node".to_owned(), receiver, recorder, sender);
        let watching = tokio::spawn(watching);
        node.send_replace(Some(Arc::default()));
        assert_eq!(next(&mut updates).await, "?bad0 bad1 bad2 bad3");
        assert_eq!(next(&mut updates).await, "=a bad4 bad5 b");
        let bad =
            r#"{"metadata":{"name":"a","namespace":"x","uid":"a","resourceVersion":"7"},"spec":7}"#;
        api.send("MODIFIED", bad);
        assert_eq!(next(&mut updates).await, "?a bad0 bad1 bad2 bad3");
        api.send("MODIFIED", &good("bad0"));
        assert_eq!(next(&mut updates).await, "+bad0");
        assert_eq!(next(&mut updates).await, "?a bad1 bad2 bad3");
        api.send("DELETED", bad);
        assert_eq!(next(&mut updates).await, "-a");
        assert_eq!(next(&mut updates).await, "?bad1 bad2 bad3");
        assert_eq!(api.asked(), (1, 1));
        watching.abort();
    }
}
