//! `/healthz` and its checks, one by one.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tracing::warn;

use super::{Host, Refusal};

/// The checks, in the order of the report.
const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];

pub(super) fn routes(host: Arc<dyn Host>) -> Router {
    Router::new().route("/healthz", get(all)).route("/healthz/{check}", get(one)).with_state(host)
}

/// The result of a check, with the reason of a failure.
fn outcome(host: &dyn Host, check: &str) -> Result<(), String> {
    match check {
        "syncloop" => host.healthy(),
        // always healthy if the server responds
        _ => Ok(()),
    }
}

async fn all(
    State(host): State<Arc<dyn Host>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let verbose = query.iter().any(|(key, _)| key == "verbose");
    let mut excluded: Vec<&str> = query
        .iter()
        .filter(|(key, _)| key == "exclude")
        .flat_map(|(_, names)| names.split(','))
        .filter(|name| !name.is_empty())
        .collect();
    let (mut report, mut failed) = (String::new(), false);
    for check in CHECKS {
        // writing to a String cannot fail
        let _ = if excluded.contains(&check) {
            excluded.retain(|name| *name != check);
            writeln!(report, "[+]{check} excluded: ok")
        } else if let Err(reason) = outcome(host.as_ref(), check) {
            warn!(check, reason, "health check failed");
            failed = true;
            writeln!(report, "[-]{check} failed: reason withheld")
        } else {
            writeln!(report, "[+]{check} ok")
        };
    }
    if !excluded.is_empty() {
        let _ = writeln!(
            report,
            "warn: some health checks cannot be excluded: no matches for {excluded:?}"
        );
    }
    match (failed, verbose) {
        (true, _) => Err(Refusal::line(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{report}healthz check failed"),
        )),
        (false, true) => Ok(format!("{report}healthz check passed\n").into_response()),
        (false, false) => Ok("ok".into_response()),
    }
}

async fn one(
    State(host): State<Arc<dyn Host>>,
    Path(check): Path<String>,
) -> Result<Response, Refusal> {
    if !CHECKS.contains(&check.as_str()) {
        return Ok(StatusCode::NOT_FOUND.into_response());
    }
    outcome(host.as_ref(), &check).map(|()| "ok".into_response()).map_err(|reason| {
        Refusal::line(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {reason}"))
    })
}
