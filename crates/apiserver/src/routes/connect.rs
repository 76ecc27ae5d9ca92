//! `pods/exec`, `pods/attach` and `pods/portforward`: a way into a pod, through its node.
//!
//! The node answers what its client asks, so its newest WebSocket protocols are handed on like all
//! others. Current limitations: nodes that do not speak them (before 1.36) serve older clients only.

use futures::TryStreamExt;
use http_body_util::{BodyStream, Either};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode, Uri};
use longshore_serving::BoxError;
use longshore_streams::{self as streams, Error};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use super::logs::container;
use super::request::{Query, number_fault};
use super::respond::{Answer, Result};
use super::{Call, Router};
use crate::audit;
use crate::kinds::core;
use crate::kubelet;
use crate::response_body::Body;
use crate::schema::quoted;
use crate::status::StatusError;

impl Router {
    pub(super) async fn connect(&self, call: Call<'_>) -> Result {
        // a WebSocket begins with a GET; permission to read must not be enough to run commands
        if call.verb != "create" {
            self.authorize(call.user, "create", call.line).await?;
        }
        let query = &call.line.query;
        let (namespace, name) = (call.namespace(), call.path.name.as_str());
        let pod = self.api.registry.get(call.resource, namespace, name).await?;
        let is_forward = call.path.subresource == "portforward";
        if let Some(port) =
            query.all("ports").find(|_| is_forward).filter(|port| port.parse::<u16>().is_err())
        {
            let (port, why) = (quoted(port), number_fault(port));
            return Err(StatusError::bad_request(format!(
                "cannot convert to []int32: strconv.ParseUint: parsing {port}: {why}"
            )));
        }
        self.admit_connect(&call, options(&call)).await?;
        let path = match call.path.subresource.as_str() {
            "portforward" => format!("/portForward/{namespace}/{name}?{}", ports(query)),
            subresource => {
                let container = container(&pod, name, query.get("container"))?;
                let options = command(query);
                format!("/{subresource}/{namespace}/{name}/{container}?{options}")
            }
        };
        let Some(node) = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) else {
            let why = format!("pod {name} does not have a host assigned");
            return Err(StatusError::bad_request(why));
        };
        let node = self.api.registry.get(core("nodes")?, "", node).await?;
        let endpoint = self.kubelet.endpoint(&node).map_err(unreachable)?;
        let target: Uri = format!("https://{}{path}", endpoint.authority())
            .parse()
            .map_err(StatusError::internal)?;
        join(call.head, &target, self.kubelet.connect(&endpoint, false).await).await
    }
}

/// The refusal of a request for a node that has no address.
pub(super) fn unreachable(error: kubelet::Error) -> StatusError {
    match error {
        kubelet::Error::NoAddress(_) => StatusError::internal_plain(error.to_string()),
        error => StatusError::internal(error),
    }
}

/// Hands the client's upgrade on to a node's or a pod's port.
pub(super) async fn join<S>(
    head: Parts,
    target: &Uri,
    connection: std::result::Result<S, kubelet::Error>,
) -> Result
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = connection
        .map(audit::held)
        .map_err(|error| StatusError::internal(format!("error dialing backend: {error}")))?;
    let mut request = Request::from_parts(head, ());
    let answer = streams::pass(&mut request, target, connection, streams::NO_IDLE_TIMEOUT).await;
    answer.map(handed_on).map_err(|error| match error {
        Error::NoUpgrade => StatusError::bad_request(error.to_string()),
        error => StatusError::internal(error),
    })
}

/// The node's answer as ours; what follows an upgrade is no body.
pub(super) fn handed_on(answer: streams::Answer) -> Answer {
    let (head, body) = answer.into_parts();
    let body = match body {
        Either::Left(body) if head.status != StatusCode::SWITCHING_PROTOCOLS => streamed(body),
        _ => Body::from(""),
    };
    Answer::from_parts(head, body)
}

/// A node's body as ours.
pub(super) fn streamed(body: Incoming) -> Body {
    let frames = BodyStream::new(body);
    Body::stream(
        frames.map_ok(|frame| frame.into_data().unwrap_or_default()).map_err(BoxError::from),
    )
}

/// The query of a command, as the kubelet expects it.
fn command(query: &Query) -> String {
    let mut options = form_urlencoded::Serializer::new(String::new());
    for (name, nodes_name) in
        [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")]
    {
        if query.flag(name) {
            options.append_pair(nodes_name, "1");
        }
    }
    for word in query.all("command") {
        options.append_pair("command", word);
    }
    options.finish()
}

/// The options of the connection as an object, which webhooks look at.
fn options(call: &Call<'_>) -> Value {
    let Some(subresource) = call.subresource else { return Value::Null };
    let query = &call.line.query;
    let mut options =
        json!({"kind": subresource.gvk.kind, "apiVersion": subresource.gvk.api_version()});
    if subresource.name == "portforward" {
        let ports = query.all("ports").flat_map(|ports| ports.split(','));
        let ports: Vec<i32> = ports.filter_map(|port| port.parse().ok()).collect();
        if !ports.is_empty() {
            options["ports"] = ports.into();
        }
        return options;
    }
    for name in ["stdin", "stdout", "stderr", "tty"] {
        if query.flag(name) {
            options[name] = true.into();
        }
    }
    if let Some(container) = query.get("container") {
        options["container"] = container.into();
    }
    if subresource.name == "exec" {
        options["command"] = query.all("command").collect();
    }
    options
}

/// The ports that old WebSocket clients name.
fn ports(query: &Query) -> String {
    let mut options = form_urlencoded::Serializer::new(String::new());
    for ports in query.all("ports") {
        options.append_pair("port", ports);
    }
    options.finish()
}
