//! `nodes/NAME/proxy/…`: anything that a node's port 10250 serves, requested by this server in the
//! caller's stead; and the same of ports of pods, by their own names or by a service's.
//!
//! The caller's credentials are not forwarded, and pods do not learn the credentials of this
//! server is. A node's redirect is neither followed nor handed on: where it leads is not for a node
//! to say. A pod's is handed on, below this path where it stays within the pod. An upgrade to a
//! node runs commands as `pods/exec` does, so it requires the verb `create` whatever its method.
//!
//! Links within HTML pages are changed like redirects, so that they lead through this server.
//!
//! Current limitations: of a node there is its own port alone; links in compressed pages stay as they are.

use std::net::IpAddr;

use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri, body::Incoming};
use longshore_streams as streams;
use serde_json::{Value, json};

use super::connect::{join, streamed};
use super::links::{self, Links};
use super::request::split_proxied;
use super::respond::{Answer, Result};
use super::{Call, Router};
use crate::kinds::core;
use crate::kubelet::{self, Endpoint, Error};
use crate::response_body::Body;
use crate::schema::value::{items, text};
use crate::status::StatusError;

/// The target of a proxy request.
enum Target {
    Node(Endpoint),
    Pod { endpoint: Endpoint, is_tls: bool },
}

impl Router {
    pub(super) async fn proxy(&self, mut call: Call<'_>) -> Result {
        let is_upgrade = streams::is_upgrade(&call.head.headers);
        let target = match call.resource.plural {
            "pods" => self.pod_target(&call).await?,
            "services" => self.service_target(&call).await?,
            _ => {
                if is_upgrade && call.verb != "create" {
                    self.authorize(call.user, "create", call.line).await?;
                }
                self.node_target(&call).await?
            }
        };
        let uri = target.uri(&call)?;
        if let Some(proxy) = call.subresource {
            let (kind, version) = (proxy.gvk.kind, proxy.gvk.api_version());
            let path = format!("/{}", call.path.below);
            let options = json!({"kind": kind, "apiVersion": version, "path": path});
            self.admit_connect(&call, options).await?;
        }
        if is_upgrade {
            return match &target {
                Target::Node(node) => {
                    join(call.head, &uri, self.kubelet.connect(node, false).await).await
                }
                Target::Pod { endpoint, is_tls } => {
                    let connection = self.kubelet.connect_to_pod(endpoint, *is_tls).await;
                    join(call.head, &uri, connection).await
                }
            };
        }
        if let Some(answer) = redirect_to_root(&call) {
            return Ok(answer);
        }
        let body = call.body.take().ok_or_else(|| StatusError::internal("the body is gone"))?;
        let mut request = Request::new(body);
        *request.method_mut() = call.head.method.clone();
        *request.uri_mut() = uri.path_and_query().cloned().map(Uri::from).unwrap_or_default();
        *request.headers_mut() = std::mem::take(&mut call.head.headers);
        streams::drop_credentials(request.headers_mut());
        streams::drop_hop_headers(request.headers_mut());
        if let Ok(path) = HeaderValue::from_str(&call.line.path) {
            request.headers_mut().insert("x-forwarded-uri", path);
        }
        let answer = self.forward(&target, request).await.map_err(|error| match error {
            Error::Forbidden(_) => StatusError::bad_request(error.to_string()),
            error => {
                StatusError::service_unavailable(format!("error trying to reach service: {error}"))
            }
        })?;
        let (mut head, body) = answer.into_parts();
        match &target {
            Target::Node(_) if head.status.is_redirection() => {
                return Err(StatusError::internal(
                    "the node attempted to redirect this request, which is not permitted",
                ));
            }
            Target::Node(_) => {}
            Target::Pod { endpoint, .. } => {
                let way = split_proxied(&call.line.path).0;
                let location = head.headers.get(LOCATION).and_then(|l| l.to_str().ok());
                if let Some(location) = location.and_then(|l| relocated(l, endpoint, way)) {
                    head.headers.insert(LOCATION, location);
                }
            }
        }
        streams::drop_hop_headers(&mut head.headers);
        if !is_plain_html(&head.headers) {
            return Ok(Answer::from_parts(head, streamed(body)));
        }
        let way = split_proxied(&call.line.path).0;
        head.headers.remove(CONTENT_LENGTH);
        let page = links::rewritten(Links::new(way, &target.endpoint().authority()), body);
        Ok(Answer::from_parts(head, Body::stream(page)))
    }

    async fn forward(
        &self,
        target: &Target,
        request: Request<Incoming>,
    ) -> std::result::Result<Response<Incoming>, Error> {
        match target {
            Target::Node(node) => self.kubelet.send(node, request, false).await,
            Target::Pod { endpoint, is_tls } => {
                let stream = self.kubelet.connect_to_pod(endpoint, *is_tls).await?;
                kubelet::exchange(stream, &endpoint.authority(), request).await
            }
        }
    }

    async fn node_target(&self, call: &Call<'_>) -> Result<Target> {
        let target = SchemeNamePort::parse("node", &call.path.name)?;
        let node = self.api.registry.get(call.resource, "", target.name).await?;
        let endpoint = self.kubelet.endpoint(&node).map_err(StatusError::internal)?;
        let is_own = target.port.is_empty() || target.number()? == Some(endpoint.port());
        if target.scheme == "http" || !is_own {
            let why = format!("of node {} there is no port but that of its kubelet", target.name);
            return Err(StatusError::bad_request(why));
        }
        Ok(Target::Node(endpoint))
    }

    /// Without a port, it is the first one that the pod names.
    async fn pod_target(&self, call: &Call<'_>) -> Result<Target> {
        let target = SchemeNamePort::parse("pod", &call.path.name)?;
        let pod = self.api.registry.get(call.resource, call.namespace(), target.name).await?;
        let port = match target.port {
            "" => first_port(&pod).unwrap_or(if target.scheme == "https" { 443 } else { 80 }),
            _ => target.number()?.ok_or_else(|| target.invalid())?,
        };
        let address = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok());
        let address = address.ok_or_else(|| StatusError::bad_request("address not allowed"))?;
        let endpoint = Endpoint::of_pod(address, port);
        Ok(Target::Pod { endpoint, is_tls: target.scheme == "https" })
    }

    /// A pod behind the service, by the name or the number of one of the service's ports.
    async fn service_target(&self, call: &Call<'_>) -> Result<Target> {
        let target = SchemeNamePort::parse("service", &call.path.name)?;
        let namespace = call.namespace();
        let mut port = target.port.to_owned();
        if let Ok(number) = target.port.parse::<i64>() {
            let service = self.api.registry.get(call.resource, namespace, target.name).await?;
            let ports = items(&service["spec"]["ports"]);
            let found = ports.iter().find(|port| port["port"] == number).ok_or_else(|| {
                StatusError::service_unavailable(format!(
                    "no service port {number} found for service {:?}",
                    target.name
                ))
            })?;
            port = text(&found["name"]).to_owned();
        }
        let endpoints = self.api.registry.get(core("endpoints")?, namespace, target.name).await;
        let endpoints = endpoints.map_err(|error| match error.code {
            404 => StatusError::not_found(call.resource, target.name),
            _ => error,
        })?;
        for (address, port) in endpoints_of(&endpoints, &port) {
            if let Some(address) = self.pod_address(namespace, address).await? {
                let endpoint = Endpoint::of_pod(address, port);
                return Ok(Target::Pod { endpoint, is_tls: target.scheme == "https" });
            }
        }
        Err(StatusError::service_unavailable(format!(
            "no endpoints available for service {:?}",
            call.path.name
        )))
    }

    /// The address of an endpoint that is a pod of the namespace: only those are allowed.
    async fn pod_address(&self, namespace: &str, address: &Value) -> Result<Option<IpAddr>> {
        let target = &address["targetRef"];
        if text(&target["namespace"]) != namespace {
            return Ok(None);
        }
        let pod = self.api.registry.find(core("pods")?, namespace, text(&target["name"])).await?;
        let ip = text(&address["ip"]);
        let is_its =
            |pod: &Value| items(&pod["status"]["podIPs"]).iter().any(|own| own["ip"] == ip);
        Ok(pod.filter(is_its).and_then(|_| ip.parse().ok()))
    }
}

/// A page below `proxy` has relative links, which need the slash behind it.
fn redirect_to_root(call: &Call<'_>) -> Option<Answer> {
    let is_read = matches!(call.head.method, Method::GET | Method::HEAD);
    if !is_read || !call.path.below.is_empty() || call.line.path.ends_with('/') {
        return None;
    }
    let query = call.head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let location = format!("{}/{query}", call.head.uri.path());
    let mut answer = Answer::new(Body::from(""));
    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
    answer.headers_mut().insert(LOCATION, HeaderValue::from_str(&location).ok()?);
    Some(answer)
}

fn is_plain_html(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.starts_with("text/html") && !headers.contains_key(CONTENT_ENCODING)
}

impl Target {
    fn endpoint(&self) -> &Endpoint {
        match self {
            Target::Pod { endpoint, .. } | Target::Node(endpoint) => endpoint,
        }
    }

    /// The requested path, as it was sent.
    fn uri(&self, call: &Call<'_>) -> Result<Uri> {
        let (scheme, endpoint) = match self {
            Target::Pod { endpoint, is_tls: false } => ("http", endpoint),
            Target::Pod { endpoint, .. } | Target::Node(endpoint) => ("https", endpoint),
        };
        let path = &call.path.below;
        let query = call.head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let target = format!("{scheme}://{}/{path}{query}", endpoint.authority());
        target.parse().map_err(|error| {
            StatusError::bad_request(format!("the path {path:?} cannot be target for: {error}"))
        })
    }
}

/// Where a pod's redirect leads by way of this server. `None`: as it says, elsewhere or not far.
fn relocated(location: &str, endpoint: &Endpoint, way: &str) -> Option<HeaderValue> {
    let below = match location.split_once("://") {
        Some(("http" | "https", rest)) => rest
            .strip_prefix(&endpoint.authority())
            .filter(|rest| rest.is_empty() || rest.starts_with('/'))?,
        Some(_) => return None,
        None => location,
    };
    let is_of_pod = below.is_empty() || (below.starts_with('/') && !below.starts_with("//"));
    HeaderValue::from_str(&format!("{way}{below}")).ok().filter(|_| is_of_pod)
}

/// Addresses and port of the endpoints that have a port of this name.
fn endpoints_of<'a>(
    endpoints: &'a Value,
    name: &'a str,
) -> impl Iterator<Item = (&'a Value, u16)> + 'a {
    items(&endpoints["subsets"]).iter().flat_map(move |subset| {
        let port = items(&subset["ports"]).iter().find(|port| text(&port["name"]) == name);
        let port = port.and_then(|port| u16::try_from(port["port"].as_u64()?).ok());
        let addresses = items(&subset["addresses"]);
        // Any of them will do, and not always the same.
        let start = match addresses.len() {
            0 => 0,
            count => getrandom::u64().unwrap_or(0) as usize % count,
        };
        let addresses = addresses.iter().cycle().skip(start).take(addresses.len());
        port.into_iter().flat_map(move |port| addresses.clone().map(move |a| (a, port)))
    })
}

fn first_port(pod: &Value) -> Option<u16> {
    let mut ports = items(&pod["spec"]["containers"]).iter();
    let port = ports.find_map(|container| items(&container["ports"]).first())?;
    u16::try_from(port["containerPort"].as_u64()?).ok()
}

/// `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`.
struct SchemeNamePort<'a> {
    kind: &'static str,
    whole: &'a str,
    scheme: &'a str,
    name: &'a str,
    port: &'a str,
}

impl<'a> SchemeNamePort<'a> {
    fn parse(kind: &'static str, whole: &'a str) -> Result<SchemeNamePort<'a>> {
        let (scheme, name, port) = match whole.split(':').collect::<Vec<_>>().as_slice() {
            [name] => ("", *name, ""),
            [name, port] => ("", *name, *port),
            [scheme @ ("http" | "https" | ""), name, port] => (*scheme, *name, *port),
            _ => ("", "", ""),
        };
        let target = SchemeNamePort { kind, whole, scheme, name, port };
        if name.is_empty() { Err(target.invalid()) } else { Ok(target) }
    }

    /// The port, where it is a number.
    fn number(&self) -> Result<Option<u16>> {
        match self.port {
            "" => Ok(None),
            port => port.parse().map(Some).map_err(|_| self.invalid()),
        }
    }

    fn invalid(&self) -> StatusError {
        StatusError::bad_request(format!("invalid {} request {:?}", self.kind, self.whole))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn proxy_names_with_scheme_and_port() {
        for (text, expected) in [
            ("n1", Some(("", "n1", ""))),
            ("n1:10250", Some(("", "n1", "10250"))),
            ("https:n1:10250", Some(("https", "n1", "10250"))),
            ("https:n1:", Some(("https", "n1", ""))),
            (":n1:web", Some(("", "n1", "web"))),
            ("ftp:n1:1", None),
            ("a:b:c:d", None),
            ("", None),
            (":80", None),
        ] {
            let target = SchemeNamePort::parse("pod", text).ok();
            let target = target.map(|target| (target.scheme, target.name, target.port));
            assert_eq!(target, expected, "{text}");
        }
        let port = |text| SchemeNamePort::parse("pod", text).unwrap().number().ok();
        assert_eq!(port("n1:80"), Some(Some(80)));
        assert_eq!(port("n1"), Some(None));
        assert_eq!((port("n1:x"), port("n1:99999")), (None, None));
    }

    #[test]
    fn proxy_redirects_are_rewritten() {
        let endpoint = Endpoint::of_pod("10.0.0.1".parse().unwrap(), 80);
        for (location, expected) in [
            ("/a?b=c", Some("/way/a?b=c")),
            ("http://10.0.0.1:80/a", Some("/way/a")),
            ("https://10.0.0.1:80", Some("/way")),
            ("http://10.0.0.1:8080/a", None),
            ("http://10.0.0.1:80.example.com/", None),
            ("https://example.com/a", None),
            ("//example.com/a", None),
            ("a", None),
        ] {
            let relocated = relocated(location, &endpoint, "/way");
            let relocated = relocated.as_ref().map(|value| value.to_str().unwrap());
            assert_eq!(relocated, expected, "{location}");
        }
    }

    #[test]
    fn proxy_endpoints_with_the_port() {
        let endpoints = json!({"subsets": [
            {"addresses": [{"ip": "a"}, {"ip": "b"}], "ports": [{"name": "web", "port": 80}]},
            {"notReadyAddresses": [{"ip": "c"}], "ports": [{"name": "web", "port": 80}]},
            {"addresses": [{"ip": "d"}], "ports": [{"port": 81}]},
        ]});
        let found = |name: &str| {
            let mut found: Vec<(String, u16)> = endpoints_of(&endpoints, name)
                .map(|(address, port)| (text(&address["ip"]).to_owned(), port))
                .collect();
            found.sort();
            found
        };
        assert_eq!(found("web"), [("a".to_owned(), 80), ("b".to_owned(), 80)]);
        assert_eq!(found(""), [("d".to_owned(), 81)]);
        assert!(found("none").is_empty());
    }
}
