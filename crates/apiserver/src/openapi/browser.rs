//! `/openapi/ui`: a page with which people read the API in a browser. It is one static file that loads
//! nothing from elsewhere. What it shows it gets from `/openapi/v3` and by GETs, as the user of the token
//! that is typed into it, or as the one that the browser is known as.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Response;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use sha2::{Digest, Sha256};

/// Where the page is.
pub const PATH: &str = "/openapi/ui";
const PAGE: &str = include_str!("../../data/api-browser.html");

/// The page's own script and style may run, and nothing else; connections go to this server.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let [script, style] = ["script", "style"].map(|tag| {
        let text = between(PAGE, &format!("<{tag}>"), &format!("</{tag}>"));
        format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
    });
    let policy = format!(
        "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    // it is all ASCII; without it, nothing may run
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let after = text.split_once(begin).map_or("", |(_, after)| after);
    after.split_once(end).map_or("", |(inner, _)| inner)
}

/// The page.
pub fn page<B: From<String>>() -> Response<B> {
    let mut response = Response::new(B::from(PAGE.to_owned()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn api_browser_loads_nothing_and_writes_no_html() {
        for word in [
            "http:",
            "https:",
            "//cdn",
            "src=",
            "<link",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "onclick",
            "onload",
            "javascript:",
            "localStorage",
            "sessionStorage",
            "cookie",
        ] {
            assert!(!PAGE.contains(word), "{word}");
        }
        assert_eq!((PAGE.matches("<script").count(), PAGE.matches("<style").count()), (1, 1));
        assert!(!PAGE.contains("style=\""), "styles of elements need another policy");
    }

    #[test]
    fn api_browser_has_a_policy_for_its_own_script() {
        let response = page::<String>();
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        let script = STANDARD.encode(Sha256::digest(between(PAGE, "<script>", "</script>")));
        assert!(policy.contains(&format!("script-src 'sha256-{script}'")), "{policy}");
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"));
    }
}
