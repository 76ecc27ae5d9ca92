//! The pods that the apiserver has bound to this node.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use longshore_pod::spec;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tracing::warn;

use super::{Source, Update};

/// Follow the node's pods until nobody listens any more; begin when it is known what the apiserver
/// has of the node itself, for that decides which of them are taken in.
pub async fn watch_pods(
    client: Client,
    node_name: String,
    mut node: watch::Receiver<Option<Arc<Node>>>,
    updates: Sender<(Source, Update)>,
) {
    if node.changed().await.is_err() {
        return;
    }
    drop(node);
    let pods: Api<Pod> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node_name}"));
    let mut events = watcher(pods, config).default_backoff().boxed();
    let mut snapshot = Vec::new();
    let mut failing = false;
    while let Some(event) = events.next().await {
        let update = match event {
            Ok(Event::Init) => {
                snapshot.clear();
                continue;
            }
            Ok(Event::InitApply(pod)) => {
                snapshot.push(lean(pod));
                continue;
            }
            Ok(Event::InitDone) => Update::Snapshot(std::mem::take(&mut snapshot)),
            Ok(Event::Apply(pod)) => Update::Set(Box::new(lean(pod))),
            Ok(Event::Delete(pod)) => Update::Remove(Box::new(lean(pod))),
            Err(error) => {
                // Told once for each outage: an apiserver that is away is away for all of them.
                if !failing {
                    warn!(%error, "pods cannot be watched, trying again");
                }
                failing = true;
                continue;
            }
        };
        failing = false;
        if updates.send((Source::Api, update)).await.is_err() {
            return;
        }
    }
}

/// Who set which field is of no use to the node, and often the larger part of an object. The source
/// is ours to tell: nobody may pass a pod off as a static one.
fn lean(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    if !spec::is_mirror(&pod) {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(spec::SOURCE_ANNOTATION.to_owned(), "api".to_owned());
    }
    pod
}
