//! Pages of metrics with gzip, for clients that ask for it, as Prometheus does.

use std::io::Write;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt;

/// Smaller pages are sent as they are (bytes).
const MIN: usize = 1024;
/// Larger ones are not packed on a thread that serves requests (bytes).
const LARGE: usize = 64 << 10;

/// The router, whose answers are packed if the client takes that.
pub(super) fn compressed(router: Router) -> Router {
    router.layer(from_fn(compress))
}

async fn compress(request: Request, next: Next) -> Response {
    let takes_gzip = takes_gzip(request.headers());
    let response = next.run(request).await;
    let is_packed = response.headers().contains_key(CONTENT_ENCODING);
    if !takes_gzip || is_packed || response.status() != StatusCode::OK {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(page) = body.collect().await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let page = page.to_bytes();
    let packed = match page.len() {
        0..MIN => None,
        MIN..LARGE => gzip(&page),
        _ => {
            let page = page.clone();
            tokio::task::spawn_blocking(move || gzip(&page)).await.ok().flatten()
        }
    };
    parts.headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    let Some(packed) = packed else { return Response::from_parts(parts, Body::from(page)) };
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    Response::from_parts(parts, Body::from(packed))
}

fn gzip(page: &Bytes) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    encoder.write_all(page).ok()?;
    encoder.finish().ok()
}

/// Whether `Accept-Encoding` has gzip, with a weight above zero.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let all = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        let is_refused = weight.is_some_and(|weight| weight.parse::<f32>().is_ok_and(|w| w <= 0.0));
        name.eq_ignore_ascii_case("gzip") && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use axum::routing::get;
    use flate2::read::GzDecoder;
    use tower::ServiceExt;

    use super::*;

    async fn page(length: usize, accepted: &'static str) -> (Option<String>, Vec<u8>) {
        let router = Router::new().route("/metrics", get(async move || "x".repeat(length)));
        let request = Request::get("/metrics").header(ACCEPT_ENCODING, accepted);
        let request = request.body(Body::empty()).unwrap();
        let response = compressed(router).oneshot(request).await.unwrap();
        let coding = response.headers().get(CONTENT_ENCODING);
        let coding = coding.map(|value| value.to_str().unwrap().to_owned());
        (coding, response.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    #[tokio::test]
    async fn metrics_pages_are_packed_if_the_client_takes_it() {
        for length in [MIN, LARGE, LARGE * 4] {
            let (coding, body) = page(length, "gzip;q=1.0, identity;q=0.5").await;
            assert_eq!(coding.as_deref(), Some("gzip"));
            let mut text = String::new();
            GzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
            assert_eq!(text.len(), length);
        }
        for (length, accepted) in [
            (10, "gzip"),
            (LARGE, ""),
            (LARGE, "identity"),
            (LARGE, "gzip;q=0"),
            (LARGE, "zstd, br"),
        ] {
            let (coding, body) = page(length, accepted).await;
            assert_eq!((coding, body.len()), (None, length), "{accepted}");
        }
    }
}
