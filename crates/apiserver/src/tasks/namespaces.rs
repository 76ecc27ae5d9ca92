//! The end of namespaces: a terminating one is emptied and then removed. A stand-in for the namespace
//! controller of a full cluster.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::admission::namespaces::is_terminating;
use crate::kinds::core;
use crate::kinds::resources;
use crate::object;
use crate::operations::{Api, DeleteOptions, Propagation};
use crate::registry::Subscription;
use crate::status::StatusError;
use crate::user::User;

/// The finalizer of every namespace, removed when it is empty.
const FINALIZER: &str = "kubernetes";
/// How long a namespace that still holds something is left alone.
const RETRY: Duration = Duration::from_secs(1);
const RESYNC: Duration = Duration::from_secs(60);

/// Runs until `stop`.
pub(crate) async fn run(api: &Api, stop: CancellationToken) {
    let user = User::apiserver();
    let mut changes = None;
    loop {
        // Subscribed before the lists, so that no change in between is missed.
        if changes.is_none() {
            changes = subscribe(api).await;
        }
        let pause = match sweep(api, &user).await {
            Ok(true) => RESYNC,
            Ok(false) => RETRY,
            Err(error) => {
                tracing::warn!(%error, "cannot reconcile namespaces");
                RETRY
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(pause) => {}
            is_intact = next(&mut changes) => if !is_intact {
                changes = None;
            },
        }
    }
}

async fn subscribe(api: &Api) -> Option<Subscription> {
    let after = api.registry.store().revision().await.ok()?;
    api.registry.feeds().subscribe(core("namespaces").ok()?, after).await.ok()
}

/// Whether the subscription has more changes.
async fn next(changes: &mut Option<Subscription>) -> bool {
    match changes {
        Some(changes) => matches!(changes.next().await, Ok(Some(_))),
        None => std::future::pending().await,
    }
}

/// Reconciles every namespace once. `false`: some are not empty yet.
async fn sweep(api: &Api, user: &User) -> Result<bool, StatusError> {
    let mut is_done = true;
    for namespace in api.list_all(core("namespaces")?, "").await? {
        if is_terminating(&namespace) {
            is_done &= finish(api, user, &namespace).await?;
        }
    }
    Ok(is_done)
}

/// Empties a terminating namespace; removes it when nothing is left.
async fn finish(api: &Api, user: &User, namespace: &Value) -> Result<bool, StatusError> {
    let name = object::name(namespace);
    let mut left = 0;
    for resource in resources().filter(|resource| resource.namespaced && resource.allows("delete"))
    {
        // Nobody would release dependents in a namespace that goes.
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        let named = |item: Value| Some(object::name(&item).to_owned());
        for item in api.registry.select(resource, name, named).await? {
            let result = api.delete(user, resource, name, &item, &options).await;
            match result {
                Err(error) if error.code == 404 => {}
                result => left += usize::from(!result?.deleted),
            }
        }
    }
    if left > 0 {
        return Ok(false);
    }
    let namespaces = core("namespaces")?;
    let finalized = api
        .amend(namespaces, "", name, |namespace| {
            let finalizers =
                namespace["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
            let others: Vec<Value> =
                finalizers.into_iter().filter(|finalizer| finalizer != FINALIZER).collect();
            object::child_mut(namespace, "spec").insert("finalizers".into(), json!(others));
            Ok(())
        })
        .await;
    match finalized {
        Err(error) if error.code == 404 => return Ok(true),
        result => drop(result?),
    }
    match api.delete(user, namespaces, "", name, &DeleteOptions::default()).await {
        Err(error) if error.code == 404 => Ok(true),
        result => Ok(result?.deleted),
    }
}
