//! `/logs/`: files of the log directory, and logs of system services.
//!
//! Files are opened by the kernel beneath the directory (`openat2`), so no path, link or race leads
//! outside. Query values are passed to `journalctl` as single arguments, without a shell.
//!
//! Current limitations: responses are not compressed; multiple ranges are not supported.

mod files;
mod query;
mod services;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use longshore_config::KubeletConfiguration;

use self::files::{FileError, Root};
use self::query::{LogTarget, NodeLogQuery};
use self::services::Services;
use super::Refusal;

/// The log directory.
const LOG_DIRECTORY: &str = "/var/log";

struct NodeLogs {
    root: Root,
    /// `None`: only files are served.
    services: Option<Services>,
}

pub(super) fn routes(settings: &KubeletConfiguration) -> Router {
    if settings.enable_system_log_handler {
        return routes_in(PathBuf::from(LOG_DIRECTORY), settings.enable_system_log_query);
    }
    let refuse = || {
        any(async || {
            let why = "logs endpoint is disabled.".to_owned();
            Refusal::line(StatusCode::METHOD_NOT_ALLOWED, why)
        })
    };
    Router::new()
        .route("/logs", refuse())
        .route("/logs/", refuse())
        .route("/logs/{*path}", refuse())
}

/// The same for another directory.
fn routes_in(directory: PathBuf, answers_queries: bool) -> Router {
    let root = Root::new(directory);
    let services = answers_queries.then(|| Services::new(root.clone()));
    Router::new()
        .route("/logs", get(top))
        .route("/logs/", get(top))
        .route("/logs/{*path}", get(below))
        .with_state(Arc::new(NodeLogs { root, services }))
}

type Parameters = Query<Vec<(String, String)>>;

async fn top(
    State(logs): State<Arc<NodeLogs>>,
    Query(query): Parameters,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    logs.answer("", uri.path(), &query, &headers).await
}

async fn below(
    State(logs): State<Arc<NodeLogs>>,
    Path(path): Path<String>,
    Query(query): Parameters,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    logs.answer(&path, uri.path(), &query, &headers).await
}

impl NodeLogs {
    /// Serves a request for `path` below the directory; `url` is the path as requested.
    async fn answer(
        &self,
        path: &str,
        url: &str,
        query: &[(String, String)],
        headers: &HeaderMap,
    ) -> Result<Response, Refusal> {
        let refuse = |status, errors: Vec<String>| {
            Refusal::line(
                status,
                match errors.as_slice() {
                    [only] => only.clone(),
                    errors => format!("[{}]", errors.join(", ")),
                },
            )
        };
        let mut path = path.to_owned();
        if let Some(services) = &self.services {
            let query = NodeLogQuery::parse(query)
                .map_err(|errors| refuse(StatusCode::BAD_REQUEST, errors))?;
            if query.is_some() && !path.is_empty() {
                let error = "path not allowed in query mode".to_owned();
                return Err(refuse(StatusCode::NOT_ACCEPTABLE, vec![error]));
            }
            let wanted = query.map(NodeLogQuery::validate).transpose();
            match wanted.map_err(|errors| refuse(StatusCode::NOT_ACCEPTABLE, errors))? {
                Some(LogTarget::Services(names, options)) => {
                    return Ok(services.answer(names, options));
                }
                Some(LogTarget::File(file)) => path = file,
                None => {}
            }
        }
        self.root.serve(&path, url, headers).await.map_err(|error| {
            let status = match &error {
                FileError::Path => StatusCode::BAD_REQUEST,
                FileError::Missing => StatusCode::NOT_FOUND,
                FileError::Forbidden => StatusCode::FORBIDDEN,
                FileError::Range => StatusCode::RANGE_NOT_SATISFIABLE,
                FileError::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            Refusal::line(status, error.to_string())
        })
    }
}

/// A streamed text response.
fn text_stream(body: axum::body::Body) -> Response {
    ([(axum::http::header::CONTENT_TYPE, "text/plain;charset=UTF-8")], body).into_response()
}

#[cfg(test)]
mod tests;
