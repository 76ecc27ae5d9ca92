//! `nodes/NAME/proxy/…`: anything that a node's port 10250 serves, asked by this server in the
//! caller's stead.
//!
//! What the caller proved who it is with goes no further than here. A redirect is neither followed
//! nor handed on: where it leads is not for a node to say. An upgrade runs commands as `pods/exec`
//! does, so it takes leave to create whatever its method.
//!
//! Current limitations: of a node there is its own port alone; pods and services are not proxied.

use hyper::{Request, Uri};
use longshore_streams as streams;

use super::connect::streamed;
use super::respond::{Answer, Result};
use super::{Call, Router};
use crate::kubelet::{Endpoint, Error};
use crate::status::StatusError;

impl Router {
    pub(super) async fn proxy(&self, mut call: Call<'_>) -> Result {
        let is_upgrade = streams::is_upgrade(&call.head.headers);
        if is_upgrade && call.verb != "create" {
            self.authorize(call.user, "create", call.line).await?;
        }
        let (name, port) = node_and_port(&call.path.name)?;
        let node = self.api.registry.get(call.resource, "", name).await?;
        let endpoint = Endpoint::of(&node).map_err(StatusError::internal)?;
        if port.is_some_and(|port| port != endpoint.port()) {
            let why = format!("of node {name} there is no port but that of its kubelet");
            return Err(StatusError::bad_request(why));
        }
        let path = &call.path.below;
        let query = call.head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let target = format!("https://{}/{path}{query}", endpoint.authority());
        let target: Uri = target.parse().map_err(|error| {
            StatusError::bad_request(format!("the path {path:?} cannot be asked for: {error}"))
        })?;
        if is_upgrade {
            return self.join(call.head, &endpoint, &target).await;
        }
        let body = call.body.take().ok_or_else(|| StatusError::internal("the body is gone"))?;
        let mut request = Request::new(body);
        *request.method_mut() = call.head.method.clone();
        *request.uri_mut() = target.path_and_query().cloned().map(Uri::from).unwrap_or_default();
        *request.headers_mut() = call.head.headers;
        streams::drop_proofs(request.headers_mut());
        streams::drop_hop_headers(request.headers_mut());
        let answer =
            self.kubelet.send(&endpoint, request, false).await.map_err(|error| match error {
                Error::Forbidden(_) => StatusError::bad_request(error.to_string()),
                error => StatusError::service_unavailable(format!(
                    "error trying to reach service: {error}"
                )),
            })?;
        let (mut head, body) = answer.into_parts();
        if head.status.is_redirection() {
            return Err(StatusError::internal(
                "the node attempted to redirect this request, which is not permitted",
            ));
        }
        streams::drop_hop_headers(&mut head.headers);
        Ok(Answer::from_parts(head, streamed(body)))
    }
}

/// The parts of `NAME`, `NAME:PORT` or `https:NAME:PORT`.
fn node_and_port(text: &str) -> Result<(&str, Option<u16>)> {
    let (name, port) = match text.split(':').collect::<Vec<_>>().as_slice() {
        [name] => (*name, ""),
        [name, port] | ["https", name, port] => (*name, *port),
        _ => return Err(StatusError::bad_request(format!("invalid node request {text:?}"))),
    };
    let port = match port {
        "" => None,
        port => Some(port.parse().map_err(|_| {
            StatusError::bad_request(format!("invalid node request {text:?}: no such port"))
        })?),
    };
    Ok((name, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_with_and_without_their_port() {
        let read = |text| node_and_port(text).ok();
        assert_eq!(read("n1"), Some(("n1", None)));
        assert_eq!(read("n1:10250"), Some(("n1", Some(10250))));
        assert_eq!(read("https:n1:10250"), Some(("n1", Some(10250))));
        assert_eq!(read("https:n1:"), Some(("n1", None)));
        for text in ["http:n1:10250", "n1:x", "n1:99999", "a:b:c:d"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
