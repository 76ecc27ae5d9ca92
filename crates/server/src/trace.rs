//! A span for each request to the control plane's port. Clients cannot decide what is sampled: their
//! spans are links.

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use longshore_telemetry::{TRACEPARENT, Tracer, within};

/// The router, with spans.
pub(super) fn traced(router: Router, tracer: Tracer) -> Router {
    match tracer.is_on() {
        true => router.layer(from_fn_with_state(tracer, trace)),
        false => router,
    }
}

async fn trace(State(tracer): State<Tracer>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    let client = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let mut span = tracer.request(route, client);
    if span.is_recorded() {
        span.text("http.method", request.method().as_str());
        span.text("http.route", route);
    }
    let response = within(span.context(), next.run(request)).await;
    span.number("http.status_code", i64::from(response.status().as_u16()));
    if response.status().is_server_error() {
        span.fail("");
    }
    response
}
