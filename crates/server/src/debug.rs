//! `/debug/flags/v`, which sets the log verbosity, and `/debug/pprof/`.
//!
//! Current limitations: there are no profiles; `/debug/pprof/` has the command line and symbol
//! endpoints only. `perf` works on the running daemon, which has symbols.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::{Method, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get};
use longshore_base::logging;
use longshore_config::KubeletConfiguration;
use tracing::info;

use super::Refusal;

/// Maximum length of the level.
const MAX_LEVEL: usize = 16;
/// Timeout of reading the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// A flag that holds a secret.
const SECRET_FLAG: &str = "--manifest-url-header";

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
        true => {
            router.route("/debug/pprof/", get(index)).route("/debug/pprof/{*name}", get(profile))
        }
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

async fn index() -> Html<&'static str> {
    Html(
        "<html><head><title>/debug/pprof/</title></head><body>/debug/pprof/<br><table>\
         <tr><td><a href=\"cmdline\">cmdline</a></td></tr>\
         <tr><td><a href=\"symbol\">symbol</a></td></tr></table></body></html>\n",
    )
}

async fn profile(Path(name): Path<String>) -> Result<String, Refusal> {
    match name.as_str() {
        "cmdline" => Ok(command_line(std::env::args())),
        // there are no profiles with addresses to look up
        "symbol" => Ok("num_symbols: 0\n".to_owned()),
        _ => Err(Refusal::line(StatusCode::NOT_FOUND, "Unknown profile".to_owned())),
    }
}

/// The arguments separated by zero bytes, without secrets.
fn command_line(args: impl Iterator<Item = String>) -> String {
    let mut is_secret = false;
    let args = args.map(|arg| {
        let masks = std::mem::take(&mut is_secret);
        is_secret = arg == SECRET_FLAG;
        match arg.strip_prefix(SECRET_FLAG) {
            Some(rest) if rest.starts_with('=') => format!("{SECRET_FLAG}=<masked>"),
            _ if masks => "<masked>".to_owned(),
            _ => arg,
        }
    });
    args.collect::<Vec<_>>().join("\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_command_line_redacts_secrets() {
        let args = ["kubelet", "--manifest-url-header=A:s", "--manifest-url-header", "A:s", "-v=2"];
        assert_eq!(
            command_line(args.into_iter().map(str::to_owned)),
            "kubelet\0--manifest-url-header=<masked>\0--manifest-url-header\0<masked>\0-v=2"
        );
    }

    #[tokio::test]
    async fn debug_log_level_is_parsed() {
        assert_eq!(level(Body::from("4")).await, Ok(4));
        for body in ["", "-1", "x", "99999999999", "00000000000000000000004"] {
            assert!(level(Body::from(body)).await.is_err(), "{body}");
        }
    }
}
