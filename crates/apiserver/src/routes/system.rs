//! Paths that are no resources: health, version, metrics, discovery and OpenAPI.

use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Uri};
use longshore_serving::PROFILES;
use serde_json::{Value, json};

use super::negotiate::DocumentForm;
use super::request::RequestLine;
use super::respond::{self, Result};
use super::{Router, negotiate, served};
use crate::discovery::{self, Custom};
use crate::openapi;
use crate::status::StatusError;

impl Router {
    pub(super) async fn system(&self, line: &RequestLine, head: &Parts) -> Result {
        let headers = &head.headers;
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let path = match line.path.trim_end_matches('/') {
            "" | "/index.html" => "/",
            path => path,
        };
        // Upstream's router answers "//" and more so too.
        if line.path.starts_with("//") {
            return Err(StatusError::no_such_page());
        }
        let is_routed = is_routed(path);
        if is_routed && head.method != Method::GET {
            return Err(StatusError::method_not_allowed());
        }
        if let Some(page) = self.pages.page(&line.path, accept, PATHS).await {
            return page;
        }
        let aggregator = &self.api.aggregator;
        if let Some(answer) = self.discovery(path) {
            return answer;
        }
        if let Some(answer) = self.flow_control_page(path, line) {
            return Ok(answer);
        }
        if let Some(answer) = self.health(&line.path, line).await {
            return Ok(answer);
        }
        let snapshot = self.api.definitions.snapshot();
        let custom = snapshot.resources();
        let has_logs = self.pages.has_logs();
        if let Some(group) = path.strip_prefix("/apis/").filter(|group| !group.contains('/')) {
            let group = aggregator.group(group, discovery::group(custom, group));
            let group = group.ok_or_else(StatusError::no_such_page)?;
            negotiate::document(accept, false)?;
            return Ok(respond::json(StatusCode::OK, &group));
        }
        match path {
            "/version" => {
                negotiate::json_document(accept)?;
                Ok(respond::json(StatusCode::OK, &discovery::version()))
            }
            "/metrics" => {
                let encryption = self.encryption.as_ref().map(|known| known.metrics());
                let flow_control = self.flow_control.as_ref();
                let in_flight = flow_control.map(|known| known.in_flight());
                let text = [
                    self.metrics.render(in_flight.unwrap_or_else(|| self.limits.in_flight())),
                    flow_control.map(|known| known.metrics()).unwrap_or_default(),
                    self.audit.metrics(),
                    encryption.unwrap_or_default(),
                    self.api.chain.metrics(),
                    self.api.converter.metrics(),
                    aggregator.metrics(),
                    self.authenticator.metrics(),
                    self.api.authorizer.metrics(),
                ];
                let text = text.concat();
                Ok(respond::metrics(text))
            }
            "/" => Ok(respond::json(StatusCode::OK, &paths())),
            "/api" | "/apis" if negotiate::wants_aggregated_discovery(accept) => {
                let content_type = HeaderValue::from_static(discovery::AGGREGATED_CONTENT_TYPE);
                let document = match path {
                    "/api" => discovery::aggregated(custom, true),
                    _ => aggregator.aggregated(discovery::aggregated(custom, false)),
                };
                let document = document.to_string();
                let mut answer = respond::tagged(headers, content_type, document);
                let cached = HeaderValue::from_static("public");
                answer.headers_mut().insert(header::CACHE_CONTROL, cached);
                Ok(answer)
            }
            "/api" => {
                negotiate::document(accept, true)?;
                let address = self.api.advertised.to_string();
                Ok(respond::json(StatusCode::OK, &discovery::api_versions(&address)))
            }
            "/apis" => {
                negotiate::document(accept, false)?;
                Ok(respond::json(StatusCode::OK, &aggregator.groups(discovery::groups(custom))))
            }
            "/openapi/v2" => {
                let message = HeaderValue::from_static(openapi::v2::PROTOBUF);
                Ok(match negotiate::document_form(accept, openapi::v2::PROTOBUF) {
                    Some(DocumentForm::Message) => {
                        respond::tagged(headers, message, openapi::v2::protobuf(custom, has_logs))
                    }
                    Some(DocumentForm::Json) => {
                        let document = snapshot
                            .swagger(|custom| openapi::v2::document(custom, has_logs).to_string());
                        respond::tagged(headers, respond::JSON, document.to_owned())
                    }
                    None => respond::empty(StatusCode::NOT_ACCEPTABLE),
                })
            }
            openapi::browser::PATH => Ok(openapi::browser::page()),
            "/openapi/v3" => {
                let mut index = snapshot.index(|custom| openapi::index(custom, has_logs)).clone();
                for (path, url) in aggregator.openapi() {
                    index["paths"][path] = json!({"serverRelativeURL": url});
                }
                // as upstream has it, whatever it is
                Ok(respond::text(StatusCode::OK, index.to_string()))
            }
            path => match document(custom, has_logs, path) {
                Some(document) if path.starts_with("/openapi/") => {
                    let message = HeaderValue::from_static(openapi::PROTOBUF);
                    Ok(match negotiate::document_form(accept, openapi::PROTOBUF) {
                        Some(DocumentForm::Message) => {
                            respond::tagged(headers, message, openapi::message(&document))
                        }
                        Some(DocumentForm::Json) => {
                            respond::tagged(headers, respond::JSON, document.to_string())
                        }
                        None => respond::empty(StatusCode::NOT_ACCEPTABLE),
                    })
                }
                Some(document) => {
                    negotiate::document(accept, is_routed)?;
                    Ok(respond::json(StatusCode::OK, &document))
                }
                None if path.starts_with("/openapi/v3/") => {
                    Ok(respond::empty(StatusCode::NOT_FOUND))
                }
                None if is_routed || path.starts_with("/version/") => {
                    Err(StatusError::no_such_path())
                }
                None => Err(StatusError::no_such_page()),
            },
        }
    }

    /// A page about what this process does.
    pub(super) async fn profile(&self, line: &RequestLine, uri: &Uri) -> Result {
        let name = line.path.strip_prefix(PROFILES).filter(|_| line.verb == "get");
        match (self.pages.profiles(), name) {
            (Some(profiles), Some(name)) => {
                let query = uri.query().unwrap_or_default();
                Ok(profiles.page(name, query).await.into_response())
            }
            _ => Err(StatusError::no_such_path()),
        }
    }

    /// What priority and fairness is doing.
    fn flow_control_page(&self, path: &str, line: &RequestLine) -> Option<respond::Answer> {
        let page = path.strip_prefix("/debug/api_priority_and_fairness/")?;
        let flow_control = self.flow_control.as_ref()?;
        let text = match page {
            "dump_priority_levels" => flow_control.dump_levels(),
            "dump_queues" => flow_control.dump_queues(),
            "dump_requests" => {
                flow_control.dump_requests(line.query.get("includeRequestDetails").is_some())
            }
            _ => return None,
        };
        Some(respond::text(StatusCode::OK, text))
    }
}

/// Whether a path is one of those that upstream routes by method: the version, and discovery of what is built in.
fn is_routed(path: &str) -> bool {
    let mut parts = path.strip_prefix('/').unwrap_or(path).split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("version" | "api"), None, ..) | (Some("api"), Some(_), None, _) => true,
        (Some("apis"), Some(group), Some(_), None) => served::is_built_in(group),
        _ => false,
    }
}

/// Discovery of a group or a version, or one OpenAPI document.
fn document(custom: Custom<'_>, has_logs: bool, path: &str) -> Option<Value> {
    let mut parts = path.strip_prefix('/')?.splitn(3, '/');
    match (parts.next()?, parts.next()?, parts.next()) {
        ("api", version, None) => discovery::resources(custom, "", version),
        ("apis", group, Some(version)) => discovery::resources(custom, group, version),
        ("openapi", "v3", Some(document)) => openapi::document(custom, has_logs, document),
        _ => None,
    }
}

/// What is listed at the root.
const PATHS: &[&str] = &[
    "/.well-known/openid-configuration",
    "/api",
    "/api/v1",
    "/apis",
    "/debug/pprof/",
    "/flagz",
    "/healthz",
    "/livez",
    "/metrics",
    "/metrics/slis",
    "/openapi/ui",
    "/openapi/v2",
    "/openapi/v3",
    "/openid/v1/jwks",
    "/readyz",
    "/statusz",
    "/version",
];

fn paths() -> Value {
    json!({"paths": PATHS})
}
