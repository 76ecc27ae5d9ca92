//! The pods that the apiserver has bound to this node.
//!
//! One whose object cannot be decoded stays as it was before, and its containers with it, until its
//! object can be decoded again or is deleted; one that is not known yet is not started.

use std::collections::HashSet;
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
use crate::client::{Item, Reports, Unreadable};
use crate::events::{EventType, Recorder};

/// Follow the node's pods until nobody listens any more; begin when it is known what the apiserver
/// has of the node itself, for that decides which of them are taken in.
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
    let pods: Api<Item<Pod>> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node_name}"));
    let mut events = watcher(pods, config).default_backoff().boxed();
    let mut snapshot = Vec::new();
    let mut aside = Aside { recorder, reports: Reports::default(), uids: HashSet::new() };
    let mut failing = false;
    while let Some(event) = events.next().await {
        let changes = match event {
            Ok(Event::Init) => {
                snapshot.clear();
                aside.uids.clear();
                continue;
            }
            Ok(Event::InitApply(item)) => {
                match item.read() {
                    Ok(pod) => snapshot.push(lean(pod)),
                    Err(unreadable) => aside.set(&unreadable),
                }
                continue;
            }
            Ok(Event::InitDone) => {
                vec![aside.update(), Update::Snapshot(std::mem::take(&mut snapshot))]
            }
            Ok(Event::Apply(item)) => match item.read() {
                Ok(pod) => {
                    let update = aside.forget(&pod);
                    [Update::Set(Box::new(lean(pod)))].into_iter().chain(update).collect()
                }
                Err(unreadable) => {
                    aside.set(&unreadable);
                    vec![aside.update()]
                }
            },
            Ok(Event::Delete(item)) => {
                let pod = item.known();
                let update = aside.forget(&pod);
                [Update::Remove(Box::new(lean(pod)))].into_iter().chain(update).collect()
            }
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
        for update in changes {
            if updates.send((Source::Api, update)).await.is_err() {
                return;
            }
        }
    }
}

/// The pods of the node that cannot be decoded.
struct Aside {
    recorder: Recorder,
    reports: Reports,
    uids: HashSet<String>,
}

impl Aside {
    fn set(&mut self, pod: &Unreadable) {
        self.uids.insert(pod.uid().to_owned());
        if self.reports.log(pod) {
            let message = format!("Pod cannot be decoded, its last change is ignored: {}", pod.reason);
            self.recorder.event(pod.reference(), EventType::Warning, "FailedDecode", &message);
        }
    }

    /// The pod can be decoded, or is gone.
    fn forget(&mut self, pod: &Pod) -> Option<Update> {
        self.uids.remove(spec::uid(pod)).then(|| self.update())
    }

    fn update(&self) -> Update {
        Update::Unreadable(self.uids.clone())
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;
    use crate::client::scripted::{Scripted, bad_objects};

    /// What was told: `=` all of them, `+` one, `-` one that is gone, `?` those that cannot be decoded.
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

    /// Finding 13: one pod blinded its node.
    #[tokio::test]
    async fn a_pod_that_cannot_be_decoded_leaves_the_others() {
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
        let (node, told) = watch::channel(None);
        let (recorder, _writing) = Recorder::start(None, "node");
        let watching = watch_pods(api.client(), "node".to_owned(), told, recorder, sender);
        let watching = tokio::spawn(watching);
        node.send_replace(Some(Arc::default()));
        assert_eq!(next(&mut updates).await, "?bad0 bad1 bad2 bad3");
        assert_eq!(next(&mut updates).await, "=a bad4 bad5 b");
        let bad = r#"{"metadata":{"name":"a","namespace":"x","uid":"a","resourceVersion":"7"},"spec":7}"#;
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
