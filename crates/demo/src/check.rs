//! The demo pod's life, checked from outside: it becomes Ready, its log comes through the
//! apiserver, and when deleted nothing of it is left.
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, LogParams, PostParams};
use kube::{Api, Client, ResourceExt};
use longshore_testkit::{Host, wait_until};

use crate::progress::Progress;

const TIMEOUT: Duration = Duration::from_secs(60);
/// What the container `web` says first.
const GREETING: &str = "hello from hello";

/// Makes the demo pod for this node and waits until it is Running and Ready.
pub(crate) async fn start_pod(progress: Progress, client: &Client, node: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let mut pod: Pod = serde_saphyr::from_str(include_str!("pod.yaml")).context("pod.yaml")?;
    pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
    let name = pod.name_any();
    let ready = progress.step("demo pod, until it is Ready", async {
        pods.create(&PostParams::default(), &pod).await?;
        let waited = wait_until(TIMEOUT, "the pod to be Ready", async || {
            let pod = pods.get(&name).await?;
            ensure!(is_ready(&pod), "it is {}", describe(&pod));
            Ok(pod)
        });
        Ok(waited.await?)
    });
    ready.await
}

/// The pod's log as the apiserver gives it holds what the container says first.
pub(crate) async fn check_log(progress: Progress, client: &Client, pod: &Pod) -> Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let name = pod.name_any();
    let checked = progress.step("its log through the apiserver", async {
        let params = LogParams { container: Some("web".into()), ..LogParams::default() };
        let waited = wait_until(TIMEOUT, "the greeting in the log", async || {
            let log = pods.logs(&name, &params).await?;
            ensure!(log.lines().any(|line| line == GREETING), "the log is {log:?}");
            Ok(())
        });
        Ok(waited.await?)
    });
    checked.await
}

/// Deletes the pod and waits until nothing of it is left, at the apiserver and on the node.
pub(crate) async fn delete_pod(
    progress: Progress,
    client: &Client,
    pod: &Pod,
    host: &Host,
) -> Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let (name, uid) = (pod.name_any(), pod.uid().context("the pod has no uid")?);
    let gone = progress.step("deletion, until nothing of it is left", async {
        pods.delete(&name, &DeleteParams::default()).await?;
        let at_apiserver =
            wait_until(TIMEOUT, "the pod to go", async || match pods.get_opt(&name).await? {
                None => Ok(()),
                Some(pod) => bail!("it is {}", describe(&pod)),
            });
        at_apiserver.await?;
        let on_node = wait_until(TIMEOUT, "its leftovers to be removed", async || {
            let leftovers = host.pod_leftovers(&uid)?;
            ensure!(leftovers.is_empty(), "left are: {}", leftovers.join(", "));
            Ok(())
        });
        Ok(on_node.await?)
    });
    gone.await
}

fn is_ready(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let mut conditions = status.conditions.iter().flatten();
    status.phase.as_deref() == Some("Running")
        && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Phase and, for each container that does not run, why.
fn describe(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.unwrap_or_else(|| "without a status".into());
    let waiting = status.container_statuses.into_iter().flatten().filter_map(|container| {
        let waiting = container.state?.waiting?;
        let why = waiting.message.or(waiting.reason).unwrap_or_else(|| "waiting".into());
        Some(format!("{}: {why}", container.name))
    });
    let waiting: Vec<String> = waiting.collect();
    if waiting.is_empty() { phase } else { format!("{phase} ({})", waiting.join("; ")) }
}
