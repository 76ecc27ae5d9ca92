//! The range of the node's pods, which some runtimes write into the configuration of their network.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use longshore_cri::Runtime;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

/// Delay before a failed call is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// Sends the range to the runtime, and again whenever it changes: that of the node object, or `configured`
/// until that has one. Never ends.
pub async fn feed(
    runtime: Runtime,
    configured: String,
    mut node: watch::Receiver<Option<Arc<Node>>>,
) {
    let mut sent = String::new();
    loop {
        let wanted = match node.borrow_and_update().as_deref().and_then(pod_cidrs) {
            Some(ranges) => ranges,
            None if sent.is_empty() => configured.clone(),
            None => sent.clone(),
        };
        if wanted != sent {
            match runtime.update_runtime_config(&wanted).await {
                Ok(()) => {
                    info!(before = sent, now = wanted, "range of pods sent to the runtime");
                    sent = wanted;
                }
                Err(error) if error.is_unimplemented() => sent = wanted,
                Err(error) => {
                    warn!(%error, "failed to update pod CIDR");
                    sleep(RETRY).await;
                    continue;
                }
            }
        }
        if node.changed().await.is_err() {
            // Nothing follows: there is no apiserver, or the node stops.
            std::future::pending::<()>().await;
        }
    }
}

fn pod_cidrs(node: &Node) -> Option<String> {
    let ranges = node.spec.as_ref()?.pod_cidrs.as_ref()?;
    (!ranges.is_empty()).then(|| ranges.join(","))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use longshore_testkit::scripted::{Fault, ScriptedRuntime};
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pod_cidr_of_the_node_is_sent_to_the_runtime() {
        let world = ScriptedRuntime::default();
        let cri = Runtime::in_memory(world.clone(), world.clone(), Duration::from_secs(9)).unwrap();
        let (node, receiver) = watch::channel(None);
        let feed = tokio::spawn(feed(cri, "10.9.0.0/24".to_owned(), receiver));
        let sent = || world.world().pod_cidrs.clone();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(sent(), ["10.9.0.0/24"], "until the node object has one");
        (0..9).for_each(|_| world.inject("UpdateRuntimeConfig", Fault::Fails));
        let with = |ranges: &[&str]| -> Option<Arc<Node>> {
            let node = serde_json::from_value(json!({"spec": {"podCIDRs": ranges}}));
            Some(Arc::new(node.unwrap()))
        };
        node.send_replace(with(&["10.1.0.0/24", "fd00:1::/64"]));
        sleep(Duration::from_secs(12)).await;
        assert_eq!(sent().len(), 1);
        world.end_faults();
        sleep(Duration::from_secs(12)).await;
        node.send_replace(with(&["10.1.0.0/24", "fd00:1::/64"]));
        node.send_replace(with(&[]));
        sleep(Duration::from_secs(12)).await;
        assert_eq!(sent(), ["10.9.0.0/24", "10.1.0.0/24,fd00:1::/64"]);
        feed.abort();
    }
}
