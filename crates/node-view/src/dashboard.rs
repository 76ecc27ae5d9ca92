//! A page with what `longshore top` shows, for a browser on the same machine. It only reads, loads nothing from
//! elsewhere, and writes what it is told as text alone.
//!
//! There are no credentials: who reaches the port sees everything. So it is for loopback addresses, and a request
//! whose `Host` is another name is refused: a page from elsewhere whose name is made to lead here (DNS rebinding)
//! would read it otherwise.
//!
//! A snapshot is taken when somebody asks, and at most each second.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::inspector::Inspector;
use crate::processes::processes_of_node;
use crate::snapshot::Snapshot;

/// A snapshot that is not older serves the next request too.
const FRESH: Duration = Duration::from_secs(1);
const PAGE: &str = include_str!("../data/dashboard.html");
const STYLE: &str = include_str!("../data/dashboard.css");
const SCRIPT: &str = include_str!("../data/dashboard.js");
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct Dashboard {
    inspector: Inspector,
    sampled: Option<(Instant, Arc<Snapshot>)>,
}

impl Dashboard {
    async fn snapshot(&mut self) -> Arc<Snapshot> {
        if let Some((at, snapshot)) = &self.sampled
            && at.elapsed() < FRESH
        {
            return Arc::clone(snapshot);
        }
        let snapshot = Arc::new(self.inspector.sample(&processes_of_node()).await.clone());
        self.sampled = Some((Instant::now(), Arc::clone(&snapshot)));
        snapshot
    }
}

type Shared = State<Arc<Mutex<Dashboard>>>;

/// The page of a node, for a listener on a loopback address.
pub fn dashboard(inspector: Inspector) -> Router {
    let dashboard = Dashboard { inspector, sampled: None };
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", PAGE)))
        .route("/dashboard.css", get(async || file("text/css; charset=utf-8", STYLE)))
        .route("/dashboard.js", get(async || file("text/javascript; charset=utf-8", SCRIPT)))
        .route("/snapshot.json", get(snapshot))
        .route("/log.json", get(log))
        .with_state(Arc::new(Mutex::new(dashboard)))
        .layer(from_fn(protect))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind)], text).into_response()
}

async fn snapshot(State(dashboard): Shared) -> Response {
    let snapshot = dashboard.lock().await.snapshot().await;
    json(&*snapshot)
}

#[derive(Deserialize)]
struct LogOf {
    container: String,
}

/// The end of the log of a container that is shown.
async fn log(State(dashboard): Shared, Query(of): Query<LogOf>) -> Response {
    let mut dashboard = dashboard.lock().await;
    let snapshot = dashboard.snapshot().await;
    let mut shown = snapshot.pods.iter().flat_map(|pod| &pod.containers);
    if !shown.any(|container| container.id == of.container) {
        return refusal(StatusCode::NOT_FOUND, "there is no such container");
    }
    match dashboard.inspector.log(&of.container).await {
        Ok(lines) => json(&json!({"lines": lines})),
        Err(why) => refusal(StatusCode::NOT_FOUND, &why),
    }
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn refusal(status: StatusCode, why: &str) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], format!("{why}\n")).into_response()
}

/// Refuses what is not from this machine's own pages, and says to browsers what they may do with the rest.
async fn protect(request: Request, next: Next) -> Response {
    let mut response = if !is_local(request.headers()) {
        refusal(StatusCode::MISDIRECTED_REQUEST, "this page is for localhost")
    } else if ![Method::GET, Method::HEAD].contains(request.method()) {
        refusal(StatusCode::METHOD_NOT_ALLOWED, "this page only shows")
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether the one `Host` is `localhost` or a loopback address; the port may be that of a tunnel.
fn is_local(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    // A name of a user before it is no host.
    if authority.as_str().contains('@') {
        return false;
    }
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[path = "dashboard_tests.rs"]
mod tests;
