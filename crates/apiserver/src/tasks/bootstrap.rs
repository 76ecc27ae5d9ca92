//! What a cluster has before anybody writes to it: namespaces, priority classes, and the service `default/kubernetes`, which leads to this server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::admission::namespaces;
use crate::api_types::Resource;
use crate::kinds::priority_class::SYSTEM;
use crate::kinds::{core, known, lookup};
use crate::object;
use crate::operations::Api;
use crate::status::StatusError;

const NAME: &str = "kubernetes";
/// How often the service `kubernetes` and its endpoints are reconciled.
const CHECK: Duration = Duration::from_secs(10);

/// Makes what is missing and corrects where `default/kubernetes` leads to.
pub(crate) async fn run(api: &Api) -> Result<(), StatusError> {
    for service in api.list_all(core("services")?, "").await? {
        let shared = api.services.occupy(&service);
        if !shared.is_empty() {
            tracing::error!(
                namespace = object::namespace(&service),
                name = object::name(&service),
                ?shared,
                "the service holds what another service holds too: delete one of them"
            );
        }
    }
    for name in namespaces::SYSTEM {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        api.ensure(core("namespaces")?, namespace).await?;
    }
    for (name, value, description) in SYSTEM {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": description,
        });
        api.ensure(known("scheduling.k8s.io", "priorityclasses")?, class).await?;
    }
    reconcile_kubernetes_service(api).await?;
    let service = api.registry.get(core("services")?, "default", NAME).await?;
    let (has, wanted) = (&service["spec"]["clusterIP"], address(api));
    if *has != wanted.as_str() {
        tracing::warn!(
            %has,
            wanted,
            "the service default/kubernetes keeps the address of an earlier service range"
        );
    }
    Ok(())
}

/// Restores the service `kubernetes` and its endpoints when they were deleted or edited, until `stop`.
pub(crate) async fn keep(api: &Api, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(CHECK) => {}
        }
        if let Err(error) = reconcile_kubernetes_service(api).await {
            tracing::warn!(%error, "cannot reconcile the service default/kubernetes");
        }
        if let Err(error) = api.services.repair(&api.registry, Instant::now()).await {
            tracing::warn!(%error, "cannot check service writes of unknown outcome");
        }
    }
}

async fn reconcile_kubernetes_service(api: &Api) -> Result<(), StatusError> {
    service(api).await?;
    endpoints(api).await
}

/// The first address of the range of services.
fn address(api: &Api) -> String {
    api.services.range().address(0).to_string()
}

async fn service(api: &Api) -> Result<(), StatusError> {
    let services = core("services")?;
    if api.registry.find(services, "default", NAME).await?.is_some() {
        return Ok(());
    }
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address(api),
            "ports": [{
                "name": "https",
                "port": 443,
                "protocol": "TCP",
                "targetPort": api.advertised.port(),
            }],
            "sessionAffinity": "None",
        },
    });
    api.ensure_service(service).await
}

async fn endpoints(api: &Api) -> Result<(), StatusError> {
    let address = api.advertised.ip();
    let port = json!([{"name": "https", "port": api.advertised.port(), "protocol": "TCP"}]);
    let endpoints = json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": [{"ip": address}], "ports": port}],
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": NAME},
        },
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        "ports": port,
    });
    let slices = lookup("discovery.k8s.io", "v1", "endpointslices")
        .ok_or_else(|| StatusError::internal("no resource endpointslices"))?;
    settle(api, core("endpoints")?, endpoints, &["subsets"]).await?;
    settle(api, slices, slice, &["addressType", "endpoints", "ports"]).await
}

/// Makes the object, or gives these fields of the existing one the values that they should have.
async fn settle(
    api: &Api,
    resource: &Resource,
    object: Value,
    fields: &[&str],
) -> Result<(), StatusError> {
    api.ensure(resource, object.clone()).await?;
    let (namespace, name) = (object::namespace(&object), object::name(&object));
    api.amend(resource, namespace, name, |existing| {
        for field in fields {
            existing[*field] = object[*field].clone();
        }
        Ok(())
    })
    .await
    .map(drop)
}
