//! Deletes bootstrap tokens that have ended.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client};
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers, split_key};
use tracing::info;

use super::{Life, life, tokens};
use crate::Context;
use crate::writes::{unless_replaced, unless_stopped};

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("token_cleaner", &context.queues);
    let secrets = tokens(&context);
    secrets.subscribe({
        let queue = queue.clone();
        move |event: &Event<Secret>| {
            if !matches!(event, Event::Deleted(_)) {
                queue.add(key_of(&**event.latest()));
            }
        }
    });
    if !unless_stopped(&context, secrets.synced()).await {
        return;
    }
    run_workers("token-cleaner-controller", &queue, 1, &context.stop, |key: String| {
        sync(&context.client, &queue, &secrets, key)
    })
    .await;
}

async fn sync(
    client: &Client,
    queue: &WorkQueue<String>,
    secrets: &Informer<Secret>,
    key: String,
) -> Result<(), kube::Error> {
    let Some(secret) = secrets.store().get(&key) else { return Ok(()) };
    match life(&secret, Timestamp::now()) {
        Life::Unlimited => Ok(()),
        Life::Left(time) => {
            queue.add_after(key, time);
            Ok(())
        }
        Life::Over => {
            let (namespace, name) = split_key(&key);
            info!(namespace, name, "deleting an expired bootstrap token");
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: secret.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
            unless_replaced(api.delete(name, &params).await).map(drop)
        }
    }
}
