//! `/pods`, the desired pods, and `/runningpods/`, the running ones.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_pod::observed::ObservedPod;
use serde::Serialize;

use super::{Host, Refusal};

pub(super) fn routes(host: Arc<dyn Host>) -> Router {
    // upstream serves both
    Router::new().route("/pods", get(pods)).route("/pods/", get(pods)).with_state(host)
}

pub(super) fn running_routes(host: Arc<dyn Host>) -> Router {
    // upstream redirects
    Router::new()
        .route("/runningpods", get(running_pods))
        .route("/runningpods/", get(running_pods))
        .with_state(host)
}

async fn pods(State(host): State<Arc<dyn Host>>) -> Result<Response, Refusal> {
    let pods = host.pods();
    list(pods.iter().map(Arc::as_ref).collect())
}

async fn running_pods(State(host): State<Arc<dyn Host>>) -> Result<Response, Refusal> {
    let pods: Vec<Pod> = host.observed_pods().iter().filter_map(|pod| running(pod)).collect();
    list(pods.iter().collect())
}

/// A pod from the runtime's state: its names and running containers; `None` if nothing is running.
fn running(observed: &ObservedPod) -> Option<Pod> {
    let containers: Vec<Container> = observed
        .containers
        .iter()
        .filter(|container| container.is_running())
        .map(|container| Container {
            name: container.name.clone(),
            image: Some(container.image.clone()),
            ..Container::default()
        })
        .collect();
    if containers.is_empty() && observed.ready_sandbox().is_none() {
        return None;
    }
    Some(Pod {
        metadata: ObjectMeta {
            name: Some(observed.name.clone()),
            namespace: Some(observed.namespace.clone()),
            uid: Some(observed.uid.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers, ..PodSpec::default() }),
        status: None,
    })
}

fn list(items: Vec<&Pod>) -> Result<Response, Refusal> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct PodList<'a> {
        kind: &'a str,
        api_version: &'a str,
        metadata: serde_json::Map<String, serde_json::Value>,
        items: Vec<&'a Pod>,
    }
    let list =
        PodList { kind: "PodList", api_version: "v1", metadata: serde_json::Map::new(), items };
    let text = serde_json::to_string(&list)
        .map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use longshore_pod::observed::{Container as Observed, Sandbox, State};

    use super::*;

    fn container(name: &str, state: State) -> Observed {
        Observed {
            id: name.into(),
            name: name.into(),
            sandbox_id: String::new(),
            restart_count: 0,
            hash: None,
            created_at: Timestamp::UNIX_EPOCH,
            image: "busybox".into(),
            image_ref: String::new(),
            log_path: String::new(),
            user: None,
            mounted_images: Default::default(),
            stop_signal: None,
            resources: None,
            state,
        }
    }

    #[test]
    fn running_pods_endpoint() {
        let runs = State::Running { started_at: Timestamp::UNIX_EPOCH };
        let mut pod = ObservedPod {
            uid: "u".into(),
            name: "p".into(),
            namespace: "ns".into(),
            containers: vec![container("on", runs), container("off", State::Unknown)],
            ..ObservedPod::default()
        };
        let found = running(&pod).unwrap();
        let names: Vec<_> = found.spec.unwrap().containers.into_iter().map(|c| c.name).collect();
        assert_eq!((found.metadata.name.as_deref(), names), (Some("p"), vec!["on".to_owned()]));
        pod.containers.remove(0);
        assert_eq!(running(&pod), None);
        pod.sandboxes.push(Sandbox { ready: true, ..Sandbox::default() });
        assert!(running(&pod).is_some());
    }
}
