//! What every namespace has for its pods: the account `default`, and the CA of this server's
//! certificate. Made with the namespace, and made anew when somebody deletes or edits them.
//! A stand-in for two controllers of a full cluster.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{DEFAULT, ROOT_CA};
use crate::admission::{core, namespaces::is_terminating};
use crate::object;
use crate::operations::Api;
use crate::registry::{Change, Subscription};
use crate::status::StatusError;

const RETRY: Duration = Duration::from_secs(1);
const DESCRIPTION: &str = "kubernetes.io/description";
const ROOT_CA_DESCRIPTION: &str = "The certificate authority by which this cluster's apiserver is \
    known at its addresses within the cluster, such as kubernetes.default.svc. It says nothing about \
    other servers.";

/// Runs until `stop`.
pub(crate) async fn run(api: &Api, stop: CancellationToken) {
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = follow(api) => ended,
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "looking after what namespaces have");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// Looks at every namespace, and then at each that something happens in, until it misses something.
async fn follow(api: &Api) -> Result<(), StatusError> {
    // Subscribed before the look around, so that nothing in between is missed.
    let after = api.registry.store().revision().await.map_err(crate::registry::refusal)?;
    let subscribe = async |plural| -> Result<Subscription, StatusError> {
        api.registry.feeds().subscribe(core(plural)?, after).await
    };
    let mut namespaces = subscribe("namespaces").await?;
    let mut accounts = subscribe("serviceaccounts").await?;
    let mut maps = subscribe("configmaps").await?;
    for namespace in api.list_all(core("namespaces")?, "").await? {
        if !is_terminating(&namespace) {
            api.furnish(object::name(&namespace)).await?;
        }
    }
    loop {
        let change = tokio::select! {
            change = namespaces.next() => change,
            change = accounts.next() => change,
            change = maps.next() => change,
        };
        let Some(change) = change? else { return Ok(()) };
        let Some(namespace) = concerned(&change) else { continue };
        let found = api.registry.find(core("namespaces")?, "", namespace).await?;
        if found.is_some_and(|namespace| !is_terminating(&namespace)) {
            api.furnish(namespace).await?;
        }
    }
}

/// The namespace to look after following a change.
fn concerned(change: &Change) -> Option<&str> {
    let stored = change.current.as_ref().or(change.previous.as_ref())?;
    let (kind, name) = stored.key().strip_prefix("/registry/")?.split_once('/')?;
    let is_gone = change.current.is_none();
    match (kind, name.split_once('/')) {
        ("namespaces", None) if !is_gone => Some(name),
        ("serviceaccounts", Some((namespace, DEFAULT))) if is_gone => Some(namespace),
        ("configmaps", Some((namespace, ROOT_CA))) => Some(namespace),
        _ => None,
    }
}

impl Api {
    /// Sees to it that a namespace has what its pods need.
    pub(crate) async fn furnish(&self, namespace: &str) -> Result<(), StatusError> {
        let accounts = core("serviceaccounts")?;
        if self.registry.find(accounts, namespace, DEFAULT).await?.is_none() {
            let account = json!({
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": DEFAULT, "namespace": namespace},
            });
            self.ensure(accounts, account).await?;
        }
        let maps = core("configmaps")?;
        let data = json!({"ca.crt": self.root_ca});
        match self.registry.find(maps, namespace, ROOT_CA).await? {
            Some(map) if is_intact(&map, &data) => Ok(()),
            Some(_) => {
                let mended = self.amend(maps, namespace, ROOT_CA, |map| {
                    map["data"] = data.clone();
                    let metadata = object::metadata_mut(map);
                    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
                    annotations[DESCRIPTION] = ROOT_CA_DESCRIPTION.into();
                    Ok(())
                });
                match mended.await {
                    // Deleted meanwhile, of which its watch will tell.
                    Err(error) if error.code == 404 => Ok(()),
                    mended => mended.map(drop),
                }
            }
            None => {
                let map = json!({
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {
                        "name": ROOT_CA,
                        "namespace": namespace,
                        "annotations": {DESCRIPTION: ROOT_CA_DESCRIPTION},
                    },
                    "data": data,
                });
                self.ensure(maps, map).await
            }
        }
    }
}

fn is_intact(map: &Value, data: &Value) -> bool {
    map["data"] == *data && map["metadata"]["annotations"][DESCRIPTION].is_string()
}
