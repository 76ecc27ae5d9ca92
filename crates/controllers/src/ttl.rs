//! Annotates nodes with how long their kubelets may keep secrets and config maps, by the size of the
//! cluster.

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use serde_json::json;

use crate::Context;
use crate::writes::{unless_gone, unless_stopped};

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// From the first number of nodes on, up to the second, this number of seconds. Ranges overlap, so
/// that it does not change to and fro.
const BOUNDARIES: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

/// PURE: the seconds for that number of nodes, if a node has `before`.
fn seconds(nodes: usize, before: Option<u32>) -> u32 {
    let fits = |(least, most, _): &&(usize, usize, u32)| (*least..=*most).contains(&nodes);
    let known = BOUNDARIES.iter().filter(fits).find(|(_, _, ttl)| Some(*ttl) == before);
    known.or_else(|| BOUNDARIES.iter().find(fits)).map_or(0, |(_, _, ttl)| *ttl)
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("ttlcontroller", &context.queues);
    let nodes = context.informers.get::<Node>();
    nodes.subscribe({
        let queue = queue.clone();
        move |event: &Event<Node>| match event {
            Event::Added(node) => queue.add(key_of(&**node)),
            Event::Updated { old, new } => {
                if old.metadata.annotations != new.metadata.annotations {
                    queue.add(key_of(&**new));
                }
            }
            Event::Deleted(_) => {}
        }
    });
    if !unless_stopped(&context, nodes.synced()).await {
        return;
    }
    run_workers("ttl-controller", &queue, 1, &context.stop, |name| {
        sync(context.client.clone(), &nodes, name)
    })
    .await;
}

async fn sync(client: Client, nodes: &Informer<Node>, name: String) -> Result<(), kube::Error> {
    let Some(node) = nodes.store().get(&name) else { return Ok(()) };
    let annotations = node.metadata.annotations.as_ref();
    let before = annotations.and_then(|own| own.get(ANNOTATION)?.parse().ok());
    let wanted = seconds(nodes.store().len(), before);
    if before == Some(wanted) {
        return Ok(());
    }
    let patch =
        Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION: wanted.to_string()}}}));
    let api: Api<Node> = Api::all(client);
    unless_gone(api.patch(&name, &PatchParams::default(), &patch).await).map(drop)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn ttl_of_nodes_grows_with_the_cluster() {
        for (nodes, before, expected) in [
            (1, None, 0),
            (95, None, 0),
            (95, Some(15), 15),
            (101, Some(0), 15),
            (89, Some(15), 0),
            (600, None, 30),
            (5000, Some(0), 300),
        ] {
            assert_eq!(seconds(nodes, before), expected, "{nodes} nodes, {before:?}");
        }
    }
}
