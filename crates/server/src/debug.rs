//! `/debug/flags/v`, which sets the log verbosity, and `/debug/pprof/`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use longshore_base::logging;
use longshore_config::KubeletConfiguration;
use longshore_serving::Profiles;
use tracing::info;

use super::Refusal;

/// Maximum length of the level.
const MAX_LEVEL: usize = 16;
/// Timeout of reading the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn routes(settings: &KubeletConfiguration) -> Router {
    let refuse = |why: &'static str| {
        any(async move || Refusal::line(StatusCode::METHOD_NOT_ALLOWED, why.to_owned()))
    };
    let flags = match settings.enable_debug_flags_handler {
        true => any(verbosity),
        false => refuse("flags endpoint is disabled."),
    };
    let router = Router::new().route("/debug/flags/v", flags);
    match settings.enable_profiling_handler {
        true => router.merge(profiles()),
        false => {
            let refuse = || refuse("profiling endpoint is disabled.");
            router.route("/debug/pprof/", refuse()).route("/debug/pprof/{*name}", refuse())
        }
    }
}

async fn verbosity(request: Request) -> Response {
    if request.method() != Method::PUT {
        let why = "unsupported http method".to_owned();
        return Refusal::line(StatusCode::NOT_ACCEPTABLE, why).into_response();
    }
    match level(request.into_body()).await {
        Ok(level) if logging::set_verbosity(level) => {
            info!(level, "verbosity changed");
            format!("successfully set klog.logging.verbosity to {level}\n").into_response()
        }
        Ok(_) => Refusal::line(
            StatusCode::BAD_REQUEST,
            "the log verbosity of this process cannot be changed".to_owned(),
        )
        .into_response(),
        Err(why) => Refusal::line(StatusCode::BAD_REQUEST, why).into_response(),
    }
}

/// Parses the level in a body; errors are for the client.
async fn level(body: Body) -> Result<u32, String> {
    let read = tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, MAX_LEVEL)).await;
    let failed = |error: &dyn std::fmt::Display| format!("error reading request body: {error}");
    let bytes = read.map_err(|late| failed(&late))?.map_err(|error| failed(&error))?;
    let text = String::from_utf8_lossy(&bytes);
    text.parse().map_err(|error| format!("parsing {text:?}: {error}"))
}

/// `/debug/pprof/`. Callers are not authorized here.
pub fn profiles() -> Router {
    Router::new()
        .route("/debug/pprof/", get(profile))
        .route("/debug/pprof/{*name}", get(profile))
        .with_state(Arc::new(Profiles::default()))
}

async fn profile(
    State(profiles): State<Arc<Profiles>>,
    name: Option<Path<String>>,
    RawQuery(query): RawQuery,
) -> Response {
    let name = name.map_or_else(String::new, |Path(name)| name);
    profiles.page(&name, &query.unwrap_or_default()).await.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn debug_log_level_is_parsed() {
        assert_eq!(level(Body::from("4")).await, Ok(4));
        for body in ["", "-1", "x", "99999999999", "00000000000000000000004"] {
            assert!(level(Body::from(body)).await.is_err(), "{body}");
        }
    }
}
