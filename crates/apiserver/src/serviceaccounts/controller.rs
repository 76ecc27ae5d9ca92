//! The defaults of every namespace: the service account `default`, and the config map with the CA of
//! this server's certificate. They are created with the namespace, and restored when deleted or
//! edited. Stands for two controllers of kube-controller-manager.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::admission::namespaces::is_terminating;
use crate::admission::service_account::{DEFAULT, ROOT_CA};
use crate::api_types::Resource;
use crate::kinds::core;
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
            tracing::warn!(%error, "cannot reconcile the defaults of namespaces");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// Reconciles every namespace, and then each one with changes, until a change is missed.
async fn follow(api: &Api) -> Result<(), StatusError> {
    // Subscribed before the lists, so that no change in between is missed.
    let after = api.registry.store().revision().await.map_err(crate::registry::refusal)?;
    let subscribe = async |plural| -> Result<Subscription, StatusError> {
        api.registry.feeds().subscribe(core(plural)?, after).await
    };
    let mut namespaces = subscribe("namespaces").await?;
    let mut accounts = subscribe("serviceaccounts").await?;
    let mut maps = subscribe("configmaps").await?;
    for namespace in api.list_all(core("namespaces")?, "").await? {
        if !is_terminating(&namespace) {
            api.ensure_namespace_defaults(object::name(&namespace)).await?;
        }
    }
    loop {
        let change = tokio::select! {
            change = namespaces.next() => change,
            change = accounts.next() => change,
            change = maps.next() => change,
        };
        let Some(change) = change? else { return Ok(()) };
        let Some(namespace) = affected_namespace(&change) else { continue };
        let found = api.registry.find(core("namespaces")?, "", namespace).await?;
        if found.is_some_and(|namespace| !is_terminating(&namespace)) {
            api.ensure_namespace_defaults(namespace).await?;
        }
    }
}

/// The namespace to reconcile after a change.
fn affected_namespace(change: &Change) -> Option<&str> {
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
    /// Makes what comes with a new object: with a namespace, its defaults.
    pub(crate) async fn ensure_companions(
        &self,
        resource: &Resource,
        name: &str,
    ) -> Result<(), StatusError> {
        match resource.kind {
            "Namespace" => self.ensure_namespace_defaults(name).await,
            _ => Ok(()),
        }
    }

    /// Creates or restores the defaults of a namespace.
    pub(crate) async fn ensure_namespace_defaults(
        &self,
        namespace: &str,
    ) -> Result<(), StatusError> {
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
                let restored = self.amend(maps, namespace, ROOT_CA, |map| {
                    map["data"] = data.clone();
                    let metadata = object::metadata_mut(map);
                    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
                    annotations[DESCRIPTION] = ROOT_CA_DESCRIPTION.into();
                    Ok(())
                });
                match restored.await {
                    // Deleted meanwhile: the watch reports it.
                    Err(error) if error.code == 404 => Ok(()),
                    restored => restored.map(drop),
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
