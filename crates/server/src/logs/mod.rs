//! `GET /containerLogs/{namespace}/{pod}/{container}`: a container's log, including rotated files.

mod options;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use longshore_base::panics;
use longshore_config::Config;
use longshore_logs::Log;
use longshore_pod::spec;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use self::options::{QueryError, Request};
use super::{Host, Refusal};

/// Maximum number of buffered pieces per client.
const PIECES: usize = 4;

#[derive(Clone)]
struct Logs {
    host: Arc<dyn Host>,
    /// Whether a single stream may be requested: the gate `PodLogsQuerySplitStreams`.
    split_streams: bool,
}

pub(super) fn routes(config: &Config, host: Arc<dyn Host>) -> Router {
    let split_streams = config.gates.enabled("PodLogsQuerySplitStreams");
    Router::new()
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs))
        .with_state(Logs { host, split_streams })
}

async fn container_logs(
    State(Logs { host, split_streams }): State<Logs>,
    Path((namespace, pod_name, container)): Path<(String, String, String)>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let Request { options, previous, stream } = Request::from_query(&query, Timestamp::now())
        .map_err(|error| match error {
            QueryError::Undecodable => {
                let text = r#"{"message": "Unable to decode query."}"#;
                Refusal(StatusCode::BAD_REQUEST, text.to_owned())
            }
            QueryError::Invalid => {
                let text = r#"{"message": "Invalid request."}"#;
                Refusal(StatusCode::UNPROCESSABLE_ENTITY, text.to_owned())
            }
        })?;
    let not_found = |what: String| Refusal(StatusCode::NOT_FOUND, what);
    let pod = host
        .pod(&namespace, &pod_name)
        .ok_or_else(|| not_found(format!("pod {pod_name:?} does not exist")))?;
    if !has_container(&pod, &container) {
        return Err(not_found(format!("container {container:?} not found in pod {pod_name:?}")));
    }
    let unavailable = |why: String| Refusal(StatusCode::BAD_REQUEST, why);
    if let Some(stream) = stream.filter(|_| options.stream.is_some() && !split_streams) {
        return Err(unavailable(format!(
            "unable to return the given log stream: {stream:?}. Please enable PodLogsQuerySplitStreams feature gate in kubelet"
        )));
    }
    let full_id = container_id(&pod, &pod_name, &container, previous).map_err(unavailable)?;
    let id = full_id.split_once("://").map_or(full_id.as_str(), |(_, id)| id);
    let path = host
        .log_path(id)
        .ok_or_else(|| unavailable(format!("unable to retrieve container logs for {full_id}")))?;
    let log = Log::open(&path, &options).await.map_err(|error| unavailable(error.to_string()))?;
    let (output, input) = mpsc::channel(PIECES);
    tokio::spawn(panics::contain(log.send(host.until_ended(spec::uid(&pod), id), output)));
    let body = Body::from_stream(ReceiverStream::new(input));
    Ok(([("content-type", "text/plain")], body).into_response())
}

fn has_container(pod: &Pod, name: &str) -> bool {
    pod.spec.as_ref().is_some_and(|spec| {
        let init = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(init).any(|container| container.name == name)
            || spec.ephemeral_containers.iter().flatten().any(|container| container.name == name)
    })
}

/// The ID of the requested container instance, with its type; errors are for the client.
fn container_id(pod: &Pod, pod_name: &str, name: &str, previous: bool) -> Result<String, String> {
    let at = format!("container {name:?} in pod {pod_name:?}");
    let status = status(pod, name).ok_or_else(|| format!("{at} is not available"))?;
    let state = status.state.clone().unwrap_or_default();
    let before = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let given = |id: Option<&String>| id.filter(|id| !id.is_empty()).cloned();
    let before_id = before.and_then(|terminated| given(terminated.container_id.as_ref()));
    let terminated = || format!("{at} is terminated");
    if previous {
        before_id.ok_or_else(|| format!("previous terminated {at} not found"))
    } else if state.running.is_some() {
        given(status.container_id.as_ref()).ok_or_else(|| format!("{at} is not available"))
    } else if let Some(now) = &state.terminated {
        // a later instance may have failed before it had an ID
        given(now.container_id.as_ref()).or(before_id).ok_or_else(terminated)
    } else if before.is_some() {
        before_id.ok_or_else(terminated)
    } else if let Some(waiting) = &state.waiting {
        let why = match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => "image can't be pulled",
            "ImagePullBackOff" => "trying and failing to pull image",
            reason => reason,
        };
        Err(format!("{at} is waiting to start: {why}"))
    } else {
        Err(format!("{at} is waiting to start - no logs yet"))
    }
}

fn status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flat_map(|statuses| statuses.iter().flatten())
    .find(|status| status.name == name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn container_logs_instance_lookup() {
        let ended = |id: &str| json!({"terminated": {"exitCode": 0, "containerID": id}});
        for (state, last, previous, expected) in [
            (json!({"running": {}}), json!({}), false, Ok("c://now")),
            (json!({"running": {}}), ended("c://old"), true, Ok("c://old")),
            (
                json!({"running": {}}),
                json!({}),
                true,
                Err("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (ended("c://dead"), json!({}), false, Ok("c://dead")),
            (ended(""), ended("c://old"), false, Ok("c://old")),
            (ended(""), json!({}), false, Err("container \"c\" in pod \"p\" is terminated")),
            (
                json!({"waiting": {"reason": "CrashLoopBackOff"}}),
                ended("c://old"),
                false,
                Ok("c://old"),
            ),
            (
                json!({"waiting": {"reason": "ContainerCreating"}}),
                json!({}),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
            ),
            (
                json!({"waiting": {"reason": "ErrImagePull"}}),
                json!({}),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: image can't be pulled"),
            ),
            (
                json!({}),
                json!({}),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start - no logs yet"),
            ),
        ] {
            let status: Value = json!({"name": "c", "state": state, "lastState": last, "containerID": "c://now",
                                       "image": "", "imageID": "", "ready": true, "restartCount": 0});
            let pod: Pod =
                serde_json::from_value(json!({"status": {"initContainerStatuses": [status]}}))
                    .unwrap();
            let id = container_id(&pod, "p", "c", previous);
            assert_eq!(id.as_deref().map_err(String::as_str), expected);
        }
        let nothing = container_id(&Pod::default(), "p", "c", false);
        assert_eq!(nothing.unwrap_err(), "container \"c\" in pod \"p\" is not available");
    }
}
