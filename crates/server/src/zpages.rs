//! The routes of `/statusz` and `/flagz`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;
use longshore_config::FeatureGates;
pub use longshore_serving::Zpages;
use longshore_serving::{NotAcceptable, Page};

use super::Refusal;

/// Replaces the values of secret flags.
const CLASSIFIED: &str = "CLASSIFIED";
/// Flags whose values are secret.
const SECRET_FLAGS: [&str; 1] = ["manifest-url-header"];

/// The routes of the pages, if enabled by their feature gates.
pub fn zpages(
    pages: Zpages,
    gates: &FeatureGates,
    flags: &BTreeMap<&'static str, String>,
) -> Router {
    let mut router = Router::new();
    if gates.enabled("ComponentFlagz") {
        let flags = Arc::new(redacted(flags));
        let page = async move |headers: HeaderMap| answer(pages.flagz(accept(&headers), &flags));
        router = router.route("/flagz", get(page));
    }
    if gates.enabled("ComponentStatusz") {
        let started = Timestamp::now();
        let page = async move |headers: HeaderMap| answer(pages.statusz(accept(&headers), started));
        router = router.route("/statusz", get(page));
    }
    router
}

fn accept(headers: &HeaderMap) -> &str {
    headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn answer(page: Result<Page, NotAcceptable>) -> Response {
    match page {
        Ok(Page { content_type, body }) => {
            ([(header::CONTENT_TYPE, content_type)], body).into_response()
        }
        Err(refusal) => {
            Refusal::line(StatusCode::NOT_ACCEPTABLE, refusal.to_string()).into_response()
        }
    }
}

fn redacted(flags: &BTreeMap<&'static str, String>) -> BTreeMap<&'static str, String> {
    let mut flags = flags.clone();
    for name in SECRET_FLAGS {
        flags.entry(name).and_modify(|value| *value = CLASSIFIED.to_owned());
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zpages_redact_secret_flags() {
        let flags = BTreeMap::from([
            ("manifest-url-header", "Authorization:planted".to_owned()),
            ("port", "10250".to_owned()),
        ]);
        let redacted = redacted(&flags);
        assert_eq!(redacted["manifest-url-header"], CLASSIFIED);
        assert_eq!(redacted["port"], "10250");
    }
}
