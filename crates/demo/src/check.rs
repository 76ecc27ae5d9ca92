//! The life of the demo application, checked from outside: a Deployment becomes available, logs come
//! through the apiserver, its Service answers by name in the cluster, and when deleted nothing is left.
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use kube::{Api, Client, ResourceExt};
use longshore_testkit::wait_until;

use crate::progress::Progress;
use crate::stack::{Stack, object};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The selector of the Deployment's pods.
const SELECTOR: &str = "app=hello";
/// How the log of the container `web` begins.
const GREETING: &str = "hello from hello-";
/// How the page of each pod begins.
const PAGE: &str = "Longshore runs this pod: hello-";

/// Creates the Deployment and its Service, and waits until all replicas are available.
pub(crate) async fn start_application(progress: Progress, client: &Client) -> Result<()> {
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let deployment: Deployment = object(include_str!("hello.yaml")).context("hello.yaml")?;
    let service: Service = object(include_str!("service.yaml")).context("service.yaml")?;
    let name = deployment.name_any();
    let available = progress.step("demo Deployment, until it is available", async {
        deployments.create(&PostParams::default(), &deployment).await?;
        services.create(&PostParams::default(), &service).await?;
        let waited = wait_until(TIMEOUT, "all replicas to be available", async || {
            let deployment = deployments.get(&name).await?;
            let wanted = deployment.spec.unwrap_or_default().replicas;
            let available = deployment.status.unwrap_or_default().available_replicas;
            if available == wanted {
                return Ok(());
            }
            let pods = pods_of(client).await?;
            let pods: Vec<String> = pods.iter().map(describe).collect();
            bail!("{} available; pods: {}", available.unwrap_or(0), pods.join(", "))
        });
        Ok(waited.await?)
    });
    available.await
}

/// The log of each pod as the apiserver gives it begins with the greeting.
pub(crate) async fn check_logs(progress: Progress, client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let checked = progress.step("their logs through the apiserver", async {
        for pod in pods_of(client).await? {
            let params = LogParams { container: Some("web".into()), ..LogParams::default() };
            let waited = wait_until(TIMEOUT, "the greeting in the log", async || {
                let log = pods.logs(&pod.name_any(), &params).await?;
                ensure!(log.starts_with(GREETING), "the log is {log:?}");
                Ok(())
            });
            waited.await?;
        }
        Ok(())
    });
    checked.await
}

/// A pod of the cluster gets a page of the Service by its name.
pub(crate) async fn check_service(progress: Progress, client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let visitor: Pod = object(include_str!("visitor.yaml")).context("visitor.yaml")?;
    let name = visitor.name_any();
    let checked = progress.step("its Service, by name from another pod", async {
        pods.create(&PostParams::default(), &visitor).await?;
        let waited = wait_until(TIMEOUT, "the pod to end", async || {
            let pod = pods.get(&name).await?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            let ended = matches!(phase.as_deref(), Some("Succeeded" | "Failed"));
            ensure!(ended, "it is {}", describe(&pod));
            Ok(())
        });
        waited.await?;
        let log = pods.logs(&name, &LogParams::default()).await?;
        ensure!(log.starts_with(PAGE), "the Service gave {log:?}");
        pods.delete(&name, &DeleteParams::default()).await?;
        Ok(())
    });
    checked.await
}

/// Deletes the Deployment and waits until nothing of it is left, at the apiserver and on the node.
pub(crate) async fn delete_application(
    progress: Progress,
    client: &Client,
    stack: &Stack,
) -> Result<()> {
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let gone = progress.step("deletion, until nothing of it is left", async {
        let uids: Vec<String> = pods_of(client).await?.iter().filter_map(Pod::uid).collect();
        ensure!(!uids.is_empty(), "the Deployment has no pods");
        deployments.delete("hello", &DeleteParams::default()).await?;
        let at_apiserver = wait_until(TIMEOUT, "the pods to be deleted", async || {
            let left = pods.list(&ListParams::default()).await?.items;
            let left: Vec<String> = left.iter().map(describe).collect();
            ensure!(left.is_empty(), "left are: {}", left.join(", "));
            Ok(())
        });
        at_apiserver.await?;
        let on_node = wait_until(TIMEOUT, "the rest of the pods to be removed", async || {
            for uid in &uids {
                let leftovers = stack.pod_leftovers(uid)?;
                ensure!(leftovers.is_empty(), "left are: {}", leftovers.join(", "));
            }
            Ok(())
        });
        Ok(on_node.await?)
    });
    gone.await
}

async fn pods_of(client: &Client) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    Ok(pods.list(&ListParams::default().labels(SELECTOR)).await?.items)
}

/// Name, phase and, for each container that does not run, why.
fn describe(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.unwrap_or_else(|| "without a status".into());
    let conditions = status.conditions.into_iter().flatten().filter(|one| one.status == "False");
    let unscheduled =
        conditions.filter(|one| one.type_ == "PodScheduled").filter_map(|one| one.message);
    let waiting = status.container_statuses.into_iter().flatten().filter_map(|container| {
        let waiting = container.state?.waiting?;
        let why = waiting.message.or(waiting.reason).unwrap_or_else(|| "waiting".into());
        Some(format!("{}: {why}", container.name))
    });
    let causes: Vec<String> = unscheduled.chain(waiting).collect();
    let name = pod.name_any();
    if causes.is_empty() {
        format!("{name} {phase}")
    } else {
        format!("{name} {phase} ({})", causes.join("; "))
    }
}
