//! The measured pods at the apiserver: what they are, how they stand, and how they change.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use longshore_testkit::PAUSE;
use serde_json::json;

/// A pod of one container that does nothing and leaves at once when asked to.
pub(crate) fn manifest(name: &str, node: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            // The floor that it is compared with has no volumes either.
            "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": PAUSE }],
        },
    }))?)
}

/// Running, with the condition Ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let mut conditions = status.conditions.iter().flatten();
    status.phase.as_deref() == Some("Running")
        && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The status of its one container.
pub(crate) fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

/// The ID of its one container, as the runtime has it.
pub(crate) fn container_id(pod: &Pod) -> Option<&str> {
    Some(container(pod)?.container_id.as_ref()?.rsplit_once("://")?.1)
}

/// A change to a pod.
#[derive(Debug)]
pub(crate) enum Change {
    /// It came or changed.
    Is(Box<Pod>),
    /// It is gone.
    Gone(String),
}

/// The changes to the pods since this was opened.
pub(crate) struct Changes {
    watch: BoxStream<'static, kube::Result<WatchEvent<Pod>>>,
    deadline: Instant,
}

impl Changes {
    /// From now on, for at most `timeout`. Also gives the pods as they are.
    pub(crate) async fn open(pods: &Api<Pod>, timeout: Duration) -> Result<(Vec<Pod>, Self)> {
        let list = pods.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.context("a list without resourceVersion")?;
        // The server ends a watch that is older than this.
        let params = WatchParams::default().timeout(u32::try_from(timeout.as_secs())?.min(290));
        let watch = pods.watch(&params, &version).await?.boxed();
        Ok((list.items, Self { watch, deadline: Instant::now() + timeout }))
    }

    /// The next change, and when it came.
    pub(crate) async fn next(&mut self) -> Result<(Instant, Change)> {
        loop {
            let event = tokio::time::timeout_at(self.deadline.into(), self.watch.next());
            let event = event.await.context("it took too long")?;
            let now = Instant::now();
            match event.context("the watch ended")?? {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    if pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Failed") {
                        bail!("pod {} failed: {:?}", pod.name_any(), pod.status);
                    }
                    return Ok((now, Change::Is(Box::new(pod))));
                }
                WatchEvent::Deleted(pod) => return Ok((now, Change::Gone(pod.name_any()))),
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(error) => bail!("watch: {}", error.message),
            }
        }
    }
}
