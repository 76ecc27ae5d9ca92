//! `pods/log`: the output of a container, from the node that runs it.

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use http_body_util::{BodyExt, BodyStream, Limited};
use hyper::header::HeaderValue;
use hyper::{Request, StatusCode};
use longshore_serving::BoxError;
use longshore_streams as streams;
use serde_json::Value;

use super::connect::{handed_on, unreachable};
use super::request::Query;
use super::respond::{self, Result};
use super::{Call, Router};
use crate::audit;
use crate::gates::SPLIT_LOG_STREAMS;
use crate::kinds::core;
use crate::response_body::Body;
use crate::schema::{Causes, Path};
use crate::status::{Details, StatusError};
use longshore_gates::FeatureGates;

/// How much of a node's refusal is passed on.
const MAX_ERROR_TEXT: usize = 50_000;

impl Router {
    pub(super) async fn log(&self, mut call: Call<'_>) -> Result {
        let query = &call.line.query;
        let (namespace, name) = (call.namespace().to_owned(), call.path.name.as_str());
        let options = options(query, name, &self.gates)?;
        let pod = self.api.registry.get(call.resource, &namespace, name).await?;
        let container = container(&pod, name, query.get("container"))?;
        let plain = HeaderValue::from_static("text/plain");
        let is_websocket = streams::is_websocket_output(&call.head.headers);
        let Some(node) = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) else {
            return match is_websocket {
                true => over_websocket(&mut call, futures::stream::empty()),
                false => Ok(respond::empty(StatusCode::NO_CONTENT)),
            };
        };
        let node = self.api.registry.get(core("nodes")?, "", node).await?;
        let endpoint = self.kubelet.endpoint(&node).map_err(unreachable)?;
        let path = format!("/containerLogs/{namespace}/{name}/{container}{options}");
        let skip_verification = query.flag("insecureSkipTLSVerifyBackend");
        let response = self
            .kubelet
            .get(&endpoint, &path, skip_verification)
            .await
            .map_err(StatusError::internal)?;
        let (status, body) = (response.status(), response.into_body());
        if !matches!(status.as_u16(), 200..=206) {
            let text = match Limited::new(body, MAX_ERROR_TEXT).collect().await {
                Ok(text) => String::from_utf8_lossy(&text.to_bytes()).into_owned(),
                Err(error) => error.to_string(),
            };
            return Err(refusal(status, name, text));
        }
        let stop = self.stop.clone();
        let output = BodyStream::new(body)
            .map_ok(|frame| frame.into_data().unwrap_or_default())
            .map_err(BoxError::from)
            .take_until(stop.cancelled_owned());
        if is_websocket {
            return over_websocket(&mut call, output);
        }
        Ok(respond::raw(StatusCode::OK, plain, Body::stream(output)))
    }
}

/// The output as messages of a WebSocket.
fn over_websocket(
    call: &mut Call<'_>,
    output: impl Stream<Item = std::result::Result<Bytes, BoxError>> + Send + 'static,
) -> Result {
    let head = std::mem::replace(&mut call.head, Request::new(()).into_parts().0);
    let mut request = Request::from_parts(head, ());
    let record = audit::current();
    // the request lasts as long as its output
    let output = output.map(move |piece| {
        let _ = &record;
        piece
    });
    let answer = streams::websocket_output(&mut request, output);
    answer.map(handed_on).map_err(|error| StatusError::bad_request(error.to_string()))
}

/// Which container is meant.
pub(super) fn container<'a>(
    pod: &'a Value,
    pod_name: &str,
    wanted: Option<&'a str>,
) -> Result<&'a str> {
    let names_in = |list: &str| {
        pod["spec"][list].as_array().into_iter().flatten().filter_map(|c| c["name"].as_str())
    };
    let all =
        || ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(names_in);
    match wanted {
        Some(wanted) if all().any(|name| name == wanted) => Ok(wanted),
        Some(wanted) => Err(StatusError::bad_request(format!(
            "container {wanted} is not valid for pod {pod_name}"
        ))),
        None => {
            let mut names = names_in("containers");
            match (names.next(), names.next()) {
                (Some(only), None) => Ok(only),
                (None, _) => Err(StatusError::bad_request(format!(
                    "a container name must be specified for pod {pod_name}"
                ))),
                _ => Err(StatusError::bad_request(format!(
                    "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                    all().collect::<Vec<_>>().join(" ")
                ))),
            }
        }
    }
}

/// The query for the node: what it understands, checked, and nothing else.
fn options(query: &Query, pod: &str, gates: &FeatureGates) -> Result<String> {
    let mut options = form_urlencoded::Serializer::new(String::new());
    let mut causes = Causes::default();
    for name in ["follow", "previous", "timestamps"] {
        if query.flag(name) {
            options.append_pair(name, "true");
        }
    }
    for (name, least, fault) in [
        ("sinceSeconds", 1, "must be greater than 0"),
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("limitBytes", 1, "must be greater than 0"),
    ] {
        match query.number::<i64>(name)? {
            Some(number) if number < least => causes.invalid(&Path::root(name), &number, fault),
            Some(number) => drop(options.append_pair(name, &number.to_string())),
            None => {}
        }
    }
    if let Some(time) = query.get("sinceTime") {
        let time: jiff::Timestamp = time.parse().map_err(|_| {
            StatusError::bad_request(format!(
                "parsing time {time:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {time:?} as \"2006\""
            ))
        })?;
        options.append_pair("sinceTime", &time.to_string());
        if query.has("sinceSeconds") {
            let fault = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            causes.forbidden(&Path::root("[]"), fault);
        }
    }
    let path = Path::root("stream");
    match query.get("stream") {
        Some(_) if !gates.enabled(SPLIT_LOG_STREAMS) => {
            causes.forbidden(&path, "may not be specified");
        }
        None | Some("All") => {}
        Some("Stdout" | "Stderr") if query.has("tailLines") => {
            let fault = "`tailLines` and specific `stream` are mutually exclusive for now";
            causes.forbidden(&Path::root("[]"), fault);
        }
        Some(stream @ ("Stdout" | "Stderr")) => drop(options.append_pair("stream", stream)),
        Some(other) => causes.not_supported(&path, other, &["All", "Stderr", "Stdout"]),
    }
    if !causes.0.is_empty() {
        return Err(StatusError::invalid_kind("", "PodLogOptions", pod, causes.0));
    }
    let options = options.finish();
    Ok(if options.is_empty() { options } else { format!("?{options}") })
}

/// What the node said, as a `Status`.
fn refusal(status: StatusCode, pod: &str, text: String) -> StatusError {
    match status {
        StatusCode::BAD_REQUEST => StatusError::bad_request(text),
        StatusCode::INTERNAL_SERVER_ERROR => StatusError::internal(text),
        StatusCode::NOT_FOUND => StatusError {
            code: 404,
            reason: "NotFound",
            message: format!(
                "the server could not find the requested resource ( pods/log {pod}): {text}"
            ),
            details: Some(Box::new(Details {
                name: pod.into(),
                kind: "pods/log".into(),
                ..Details::default()
            })),
            continue_token: Box::default(),
        },
        // A redirect too: redirects of nodes are not followed.
        status => StatusError::internal(format!("the node answered {status}: {text}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use hyper::{Method, Uri};
    use serde_json::json;

    use super::*;
    use crate::kubelet::Endpoint;
    use crate::routes::request::RequestLine;

    #[test]
    fn logs_container_selection() {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(container(&pod, "web", Some("i")).unwrap(), "i");
        assert_eq!(
            container(&pod, "web", None).unwrap_err().message,
            "a container name must be specified for pod web, choose one of: [i a b]"
        );
        assert_eq!(
            container(&pod, "web", Some("x")).unwrap_err().message,
            "container x is not valid for pod web"
        );
        assert_eq!(
            container(&json!({"spec": {"containers": [{"name": "a"}]}}), "web", None).unwrap(),
            "a"
        );
        assert!(Endpoint::of(&json!({}), &["InternalIP".into()]).is_err());
    }

    #[test]
    fn logs_errors_keep_the_kubelet_message() {
        assert_eq!(refusal(StatusCode::BAD_REQUEST, "web", "why".into()).message, "why");
        assert_eq!(refusal(StatusCode::FOUND, "web", String::new()).code, 500);
        assert_eq!(refusal(StatusCode::NOT_FOUND, "web", "gone".into()).code, 404);
    }

    #[test]
    fn logs_options_are_upstreams() {
        let check = |query: &str, gates: &str| {
            let uri: Uri = format!("/api/v1/namespaces/a/pods/b/log?{query}").parse().unwrap();
            let line = RequestLine::parse(&Method::GET, &uri).unwrap();
            options(&line.query, "b", &gates.parse().unwrap())
                .map_err(|error| (error.code, error.message))
        };
        let open = "PodLogsQuerySplitStreams=true";
        let invalid = |fields: &str| {
            let message = format!("PodLogOptions \"b\" is invalid: {fields}");
            Err((422, message))
        };
        for (query, gates, expected) in [
            ("", "", Ok(String::new())),
            ("tailLines=0&limitBytes=1", "", Ok("?tailLines=0&limitBytes=1".to_owned())),
            (
                "tailLines=-1",
                "",
                invalid("tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ),
            (
                "limitBytes=0&sinceSeconds=0",
                "",
                invalid(
                    "[sinceSeconds: Invalid value: 0: must be greater than 0, \
                     limitBytes: Invalid value: 0: must be greater than 0]",
                ),
            ),
            (
                "sinceSeconds=5&sinceTime=2026-01-01T00:00:00Z",
                "",
                invalid(
                    "[]: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
                ),
            ),
            ("stream=All", "", invalid("stream: Forbidden: may not be specified")),
            (
                "stream=Stderr",
                "PodLogsQuerySplitStreams=false",
                invalid("stream: Forbidden: may not be specified"),
            ),
            ("stream=Stderr", open, Ok("?stream=Stderr".to_owned())),
            ("stream=All&tailLines=1", open, Ok("?tailLines=1".to_owned())),
            (
                "stream=Stdout&tailLines=1",
                open,
                invalid(
                    "[]: Forbidden: `tailLines` and specific `stream` are mutually exclusive for now",
                ),
            ),
            (
                "stream=stdin",
                open,
                invalid(
                    "stream: Unsupported value: \"stdin\": supported values: \"All\", \
                     \"Stderr\", \"Stdout\"",
                ),
            ),
        ] {
            assert_eq!(check(query, gates), expected, "{query}");
        }
    }
}
