//! Requests for what an aggregated server serves: they are handed on, with the user's name in headers.
//! The caller's own credentials are not, and redirects are not handed back.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode, Uri};
use longshore_streams as streams;

use super::Router;
use super::connect::{handed_on, streamed};
use super::request::RequestLine;
use super::respond::{self, Answer, Result};
use crate::aggregator::{ApiService, is_redirect, name_user};
use crate::audit;
use crate::status::StatusError;
use crate::user::User;

impl Router {
    /// The server that serves what is requested, if it is another one.
    pub(super) async fn remote(&self, line: &RequestLine) -> Option<Arc<ApiService>> {
        let (group, version) = group_version(line)?;
        self.api.aggregator.remote(&self.api.registry, group, version).await
    }

    /// Hands a request on.
    pub(super) async fn aggregated(
        &self,
        user: &User,
        service: &ApiService,
        mut head: Parts,
        body: Option<Incoming>,
    ) -> Result {
        let (Some(backend), true) = (&service.backend, service.is_available) else {
            return Ok(unavailable("service unavailable"));
        };
        let (client, registry) = (&self.api.aggregator.client, &self.api.registry);
        let unreachable = |error: crate::aggregator::Error| {
            tracing::info!(%error, api = service.name, "cannot reach an aggregated server");
            unavailable(&format!("error trying to reach service: {error}"))
        };
        let mut names = HeaderMap::new();
        name_user(&mut names, user).map_err(StatusError::internal)?;
        if streams::is_upgrade(&head.headers) {
            let connection = match client.connect(registry, backend).await {
                Ok(connection) => audit::held(connection),
                Err(error) => return Ok(unreachable(error)),
            };
            let target = head.uri.clone();
            let mut request = Request::from_parts(head, ());
            let idle = streams::NO_IDLE_TIMEOUT;
            let answer = streams::pass_as(&mut request, &target, &names, connection, idle).await;
            return answer.map(handed_on).map_err(StatusError::internal);
        }
        let body = body.ok_or_else(|| StatusError::internal("the body is gone"))?;
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.path_and_query().cloned().map(Uri::from).unwrap_or_default();
        *request.headers_mut() = std::mem::take(&mut head.headers);
        streams::drop_credentials(request.headers_mut());
        streams::drop_hop_headers(request.headers_mut());
        request.headers_mut().extend(names);
        let answer = match client.send(registry, backend, request).await {
            Ok(answer) => answer,
            Err(error) => return Ok(unreachable(error)),
        };
        let (mut head, body) = answer.into_parts();
        if is_redirect(head.status) {
            let why = "the backend attempted to redirect this request, which is not permitted";
            return Ok(respond::text(StatusCode::BAD_GATEWAY, format!("{why}\n")));
        }
        streams::drop_hop_headers(&mut head.headers);
        Ok(Answer::from_parts(head, streamed(body)))
    }
}

fn unavailable(why: &str) -> Answer {
    respond::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

/// The group and version of a request: of a resource, of the list of resources, or of their OpenAPI document.
fn group_version(line: &RequestLine) -> Option<(&str, &str)> {
    if let Some(path) = &line.resource {
        return (!path.group.is_empty()).then_some((&path.group, &path.version));
    }
    let path = line.path.trim_end_matches('/');
    let below = path.strip_prefix("/openapi/v3").unwrap_or(path).strip_prefix("/apis/")?;
    below.split_once('/').filter(|(_, version)| !version.contains('/'))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use hyper::Method;

    use super::*;

    #[test]
    fn aggregated_paths_have_a_group_and_a_version() {
        for (path, expected) in [
            ("/apis/g/v1/things", Some(("g", "v1"))),
            ("/apis/g/v1/namespaces/n/things/t/status", Some(("g", "v1"))),
            ("/apis/g/v1", Some(("g", "v1"))),
            ("/apis/g/v1/", Some(("g", "v1"))),
            ("/openapi/v3/apis/g/v1", Some(("g", "v1"))),
            ("/apis/g", None),
            ("/apis", None),
            ("/api/v1/pods", None),
            ("/openapi/v3", None),
            ("/openapi/v3/api/v1", None),
            ("/metrics", None),
        ] {
            let line = RequestLine::parse(&Method::GET, &path.parse().unwrap()).unwrap();
            assert_eq!(group_version(&line), expected, "{path}");
        }
    }
}
