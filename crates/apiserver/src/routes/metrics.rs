//! What a request is counted as, which is upstream's choice: the verb is that of HTTP, where lists, watches,
//! server-side apply and connections are told apart.

use hyper::Method;
use hyper::header::{self, HeaderMap};

use super::negotiate;
use super::request::{RequestLine, ResourcePath};
use crate::definitions::Snapshot;
use crate::kinds::custom;
use crate::request_metrics::RequestLabels;

const COMPONENT: &str = "apiserver";
/// Subresources that are connections.
const CONNECTED: [&str; 5] = ["log", "exec", "portforward", "attach", "proxy"];
/// Programs whose requests are counted apart, by the beginning of their `User-Agent`.
const SYSTEM_CLIENTS: [&str; 4] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "cluster-policy-controller"];
/// The beginning of the path of an OpenAPI document, which all of them are counted under.
const DOCUMENTS: &str = "/openapi/v3/";

/// `None` for what is not counted: paths that are neither a resource's nor one of a few others.
pub(super) fn labels(
    kinds: &Snapshot,
    line: &RequestLine,
    method: &Method,
    headers: &HeaderMap,
) -> Option<RequestLabels> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let agent = text(header::USER_AGENT).and_then(|agent| agent.split_once('/'));
    let system_client =
        agent.and_then(|(agent, _)| SYSTEM_CLIENTS.into_iter().find(|client| *client == agent));
    let common = RequestLabels {
        dry_run: dry_run(line),
        system_client: system_client.unwrap_or_default(),
        component: COMPONENT,
        ..RequestLabels::default()
    };
    let Some(path) = &line.resource else {
        let (subresource, component) = named_path(line, text(header::ACCEPT))?;
        let verb = verb(method, line, "", None);
        return Some(RequestLabels { verb, subresource, component, ..common });
    };
    let resource = kinds.lookup(&path.group, &path.version, &path.resource)?;
    let subresource = resource.subresource(&path.subresource);
    let scope = scope(path, line.verb);
    Some(RequestLabels {
        verb: verb(method, line, scope, text(header::CONTENT_TYPE)),
        group: resource.group,
        version: resource.version,
        resource: resource.plural,
        subresource: subresource.map_or("", |subresource| subresource.name),
        scope,
        is_deprecated: custom::deprecation(resource).is_some(),
        ..common
    })
}

/// Paths that are counted though they are no resource's, as subresource and component.
fn named_path(line: &RequestLine, accept: Option<&str>) -> Option<(&'static str, &'static str)> {
    let is_aggregated = || negotiate::wants_aggregated_discovery(accept);
    match line.path.as_str() {
        "/healthz" => Some(("/healthz", "")),
        "/livez" => Some(("/livez", "")),
        "/readyz" => Some(("/readyz", "")),
        "/openapi/v3" => Some(("openapi/v3", "")),
        path if path.starts_with(DOCUMENTS) => Some(("openapi/v3/", "")),
        "/api" if is_aggregated() => Some(("/api", COMPONENT)),
        "/apis" if is_aggregated() => Some(("/apis", COMPONENT)),
        _ => None,
    }
}

fn scope(path: &ResourcePath, verb: &str) -> &'static str {
    match () {
        () if !path.name.is_empty() || verb == "create" => "resource",
        () if !path.namespace.is_empty() => "namespace",
        () => "cluster",
    }
}

fn verb(
    method: &Method,
    line: &RequestLine,
    scope: &str,
    content_type: Option<&str>,
) -> &'static str {
    let path = line.resource.as_ref();
    if path.is_some_and(|path| path.is_watch) {
        return "WATCH";
    }
    if path.is_some_and(|path| CONNECTED.contains(&path.subresource.as_str())) {
        return "CONNECT";
    }
    match *method {
        Method::GET if line.query.flag("watch") => "WATCH",
        Method::GET | Method::HEAD if matches!(scope, "cluster" | "namespace") => "LIST",
        Method::GET | Method::HEAD => "GET",
        Method::PATCH if content_type == Some("application/apply-patch+yaml") => "APPLY",
        Method::PATCH => "PATCH",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

fn dry_run(line: &RequestLine) -> &'static str {
    let values = || line.query.all("dryRun");
    match () {
        () if values().next().is_none() => "",
        () if values().all(|value| value == "All") => "All",
        () => "invalid",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn labels_of(method: &Method, path: &str, headers: &[(header::HeaderName, &str)]) -> String {
        let line = RequestLine::parse(method, &path.parse().unwrap()).unwrap();
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()))
            .collect();
        let Some(labels) = labels(&Snapshot::default(), &line, method, &headers) else {
            return "none".to_owned();
        };
        let RequestLabels { verb, group, version, resource, subresource, scope, .. } = labels;
        let RequestLabels { component, dry_run, system_client, .. } = labels;
        let all =
            [verb, group, version, resource, subresource, scope, component, dry_run, system_client];
        all.map(|label| if label.is_empty() { "-" } else { label }).join(" ")
    }

    #[test]
    fn request_metrics_labels() {
        let pods = "/api/v1/namespaces/a/pods";
        for (method, path, expected) in [
            (Method::GET, pods.to_owned(), "LIST - v1 pods - namespace apiserver - -"),
            (Method::HEAD, pods.to_owned(), "LIST - v1 pods - namespace apiserver - -"),
            (Method::GET, "/api/v1/pods".into(), "LIST - v1 pods - cluster apiserver - -"),
            (Method::GET, "/api/v1/pods?watch=1".into(), "WATCH - v1 pods - cluster apiserver - -"),
            (Method::GET, "/api/v1/watch/pods".into(), "WATCH - v1 pods - cluster apiserver - -"),
            (Method::GET, "/api/v1/nodes/n".into(), "GET - v1 nodes - resource apiserver - -"),
            (
                Method::GET,
                format!("{pods}/b?watch=true"),
                "WATCH - v1 pods - resource apiserver - -",
            ),
            (
                Method::GET,
                format!("{pods}/b?watch=false"),
                "GET - v1 pods - resource apiserver - -",
            ),
            (Method::POST, pods.to_owned(), "POST - v1 pods - resource apiserver - -"),
            (
                Method::POST,
                format!("{pods}?dryRun=All"),
                "POST - v1 pods - resource apiserver All -",
            ),
            (
                Method::POST,
                format!("{pods}?dryRun=x"),
                "POST - v1 pods - resource apiserver invalid -",
            ),
            (
                Method::PUT,
                format!("{pods}/b/status"),
                "PUT - v1 pods status resource apiserver - -",
            ),
            (Method::DELETE, format!("{pods}/b"), "DELETE - v1 pods - resource apiserver - -"),
            (Method::DELETE, pods.to_owned(), "DELETE - v1 pods - namespace apiserver - -"),
            (Method::GET, format!("{pods}/b/log"), "CONNECT - v1 pods log resource apiserver - -"),
            (
                Method::POST,
                format!("{pods}/b/exec"),
                "CONNECT - v1 pods exec resource apiserver - -",
            ),
            (Method::OPTIONS, format!("{pods}/b"), "other - v1 pods - resource apiserver - -"),
            (
                Method::PUT,
                "/apis/apps/v1/namespaces/a/deployments/d/scale".into(),
                "PUT apps v1 deployments scale resource apiserver - -",
            ),
            (Method::GET, "/readyz?verbose".into(), "GET - - - /readyz - - - -"),
            (Method::GET, "/openapi/v3/apis/apps/v1".into(), "GET - - - openapi/v3/ - - - -"),
            (Method::GET, "/api".into(), "none"),
            (Method::GET, "/metrics".into(), "none"),
            (Method::GET, "/apis/x/v1/things".into(), "none"),
        ] {
            assert_eq!(labels_of(&method, &path, &[]), expected, "{method} {path}");
        }
    }

    #[test]
    fn request_metrics_labels_by_headers() {
        let pod = "/api/v1/namespaces/a/pods/b";
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        for (method, path, name, value, expected) in [
            (
                Method::PATCH,
                pod,
                header::CONTENT_TYPE,
                "application/apply-patch+yaml",
                "APPLY - v1 pods - resource apiserver - -",
            ),
            (
                Method::PATCH,
                pod,
                header::CONTENT_TYPE,
                "application/merge-patch+json",
                "PATCH - v1 pods - resource apiserver - -",
            ),
            (
                Method::GET,
                pod,
                header::USER_AGENT,
                "kube-scheduler/v1.36.1 (linux/amd64)",
                "GET - v1 pods - resource apiserver - kube-scheduler",
            ),
            (
                Method::GET,
                pod,
                header::USER_AGENT,
                "kube-scheduler",
                "GET - v1 pods - resource apiserver - -",
            ),
            (Method::GET, "/apis", header::ACCEPT, kubectl, "GET - - - /apis - apiserver - -"),
        ] {
            assert_eq!(labels_of(&method, path, &[(name, value)]), expected, "{method} {path}");
        }
    }
}
