//! Spans of requests, named and described as upstream's apiserver does. Clients cannot decide what is
//! sampled, and their spans are links, unless they are privileged: then a request is part of their trace.
//!
//! What comes before the handler (authentication, authorization, the wait for a seat) has spans of upstream's
//! names. There each contains what follows it; here it ends where the next begins.
//!
//! Current limitations: where a user is impersonated, that user counts.

use std::time::{Duration, Instant, SystemTime};

use hyper::header::{self, AsHeaderName, HeaderMap};
use hyper::http::request::Parts;
use longshore_serving::Peer;
use longshore_telemetry::{Kind, Span, TRACEPARENT, Tracer, child};

use super::Call;
use super::request::{RequestLine, ResourcePath};
use crate::audit::AUDIT_ID;
use crate::user::{MASTERS, MONITORING, User};

/// The longest text of a user agent that is recorded (bytes).
const MAX_AGENT: usize = 256;

/// The span of a request that was received `ago`.
pub(super) fn request(
    tracer: &Tracer,
    user: &User,
    line: &RequestLine,
    head: &Parts,
    peer: &Peer,
    ago: Duration,
) -> Span {
    if !tracer.is_on() {
        return Span::default();
    }
    let client = text(&head.headers, TRACEPARENT);
    let name = name(line.resource.as_ref(), head.method.as_str());
    let is_privileged = user.groups.iter().any(|group| group == MASTERS || group == MONITORING);
    let mut span = match is_privileged {
        true => tracer.continued(&name, client),
        false => tracer.request(&name, client),
    };
    if !span.is_recorded() {
        return span;
    }
    span.began(ago);
    span.text("http.request.method", head.method.as_str());
    span.text("url.scheme", "https");
    span.text("url.path", head.uri.path());
    if let Some(target) = head.uri.path_and_query() {
        span.text("http.target", target.as_str());
    }
    let host = head.uri.host().or_else(|| text(&head.headers, header::HOST));
    if let Some(host) = host {
        span.text("server.address", host);
    }
    if let Some(address) = peer.address {
        span.text("network.peer.address", address.ip().to_string());
        span.number("network.peer.port", address.port().into());
        span.text("client.address", address.ip().to_string());
    }
    span.text(
        "network.protocol.version",
        format!("{:?}", head.version).trim_start_matches("HTTP/"),
    );
    describe(&mut span, &head.headers, "user_agent.original");
    span
}

/// A step before the handler of a request. It has a span once that of the request is there.
pub(super) struct Step {
    name: &'static str,
    began: SystemTime,
    clock: Instant,
    took: Duration,
}

impl Step {
    pub(super) fn begin(name: &'static str) -> Step {
        let began = SystemTime::now();
        Step { name, began, clock: Instant::now(), took: Duration::ZERO }
    }

    pub(super) fn end(self) -> Step {
        Step { took: self.clock.elapsed(), ..self }
    }
}

/// Spans of steps, within that of their request.
pub(super) async fn steps(request: &Span, steps: impl IntoIterator<Item = Step>) {
    if !request.is_recorded() {
        return;
    }
    let record = async {
        for Step { name, began, took, .. } in steps {
            child(name, Kind::Internal).lasted(began, took);
        }
    };
    request.enter(record).await;
}

/// The span of what a handler does; empty for what has none upstream.
pub(super) fn operation(call: &Call<'_>) -> Span {
    let name = match call.verb {
        "get" => "Get",
        "list" => "List",
        "create" => "Create",
        "update" => "Update",
        "patch" => "Patch",
        "delete" | "deletecollection" => "Delete",
        _ => return Span::default(),
    };
    let mut span = child(name, Kind::Internal);
    if span.is_recorded() {
        for (key, value) in [
            ("verb", call.verb),
            ("api-group", call.resource.group),
            ("api-version", call.resource.version),
            ("resource", call.resource.plural),
            ("subresource", &call.path.subresource),
            ("namespace", call.namespace()),
            ("name", &call.path.name),
            ("url", &call.line.path),
        ] {
            span.text(key, value);
        }
        describe(&mut span, &call.head.headers, "user-agent");
    }
    span
}

fn describe(span: &mut Span, headers: &HeaderMap, agent_key: &'static str) {
    if let Some(id) = text(headers, AUDIT_ID) {
        span.text("audit-id", id);
    }
    if let Some(agent) = text(headers, header::USER_AGENT) {
        span.text(agent_key, agent.get(..MAX_AGENT).unwrap_or(agent));
    }
}

fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The method, and the form of the path of a resource.
fn name(path: Option<&ResourcePath>, method: &str) -> String {
    let Some(path) = path else { return method.to_owned() };
    let mut name = format!("{method} /{}", if path.group.is_empty() { "api" } else { "apis" });
    let namespace = if path.namespace.is_empty() { "" } else { "namespaces/{:namespace}" };
    let object = if path.name.is_empty() { "" } else { "{:name}" };
    for part in [&path.group, &path.version, namespace, &path.resource, object, &path.subresource] {
        if !part.is_empty() {
            name.push('/');
            name.push_str(part);
        }
    }
    name
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use hyper::Method;

    use super::*;

    #[test]
    fn trace_names_are_forms_of_paths() {
        for (path, expected) in [
            ("/api/v1/pods", "GET /api/v1/pods"),
            (
                "/api/v1/namespaces/a/pods/b/log?follow=1",
                "GET /api/v1/namespaces/{:namespace}/pods/{:name}/log",
            ),
            (
                "/apis/apps/v1/namespaces/a/deployments",
                "GET /apis/apps/v1/namespaces/{:namespace}/deployments",
            ),
            ("/version", "GET"),
        ] {
            let line = RequestLine::parse(&Method::GET, &path.parse().unwrap()).unwrap();
            assert_eq!(name(line.resource.as_ref(), "GET"), expected);
        }
    }
}
