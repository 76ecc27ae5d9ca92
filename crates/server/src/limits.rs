//! Limits of concurrent requests per client and port. A request counts until its response is
//! completely sent, so that clients that do not read responses cannot exhaust memory.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use longshore_base::budget::{Budget, Holder, Priority};
use longshore_serving::{Guarded, Peer};

use super::Refusal;

/// Limits of requests with immediate responses: for all clients, and additionally for the control
/// plane.
const REQUESTS: (u64, u64) = (256, 256);
/// Limits of streams and files, which need little memory.
const STREAMS: (u64, u64) = (4096, 4096);

/// The limits of a port.
struct RequestLimits {
    requests: Arc<Budget>,
    streams: Arc<Budget>,
}

/// Limits the router's requests by client: the authorized user, or the address.
pub(super) fn limited(router: Router) -> Router {
    let budget = |(ordinary, reserved)| Budget::new(ordinary, reserved);
    let limits = RequestLimits { requests: budget(REQUESTS), streams: budget(STREAMS) };
    router.layer(from_fn_with_state(Arc::new(limits), admit))
}

async fn admit(
    State(limits): State<Arc<RequestLimits>>,
    request: Request<Body>,
    next: Next,
) -> Result<Response, Refusal> {
    let caller = match request.extensions().get::<Holder>() {
        Some(user) => user.clone(),
        None => holder_of_address(request.extensions().get::<Arc<Peer>>().map(AsRef::as_ref)),
    };
    let budget = match is_long_running(request.uri().path()) {
        true => &limits.streams,
        false => &limits.requests,
    };
    let share = budget.take(&caller, 1).ok_or_else(too_many)?;
    let answer = next.run(request).await;
    Ok(answer.map(|body| Body::new(Guarded::new(body, share))))
}

/// An unauthenticated client, by its address.
pub(super) fn holder_of_address(peer: Option<&Peer>) -> Holder {
    peer.map_or_else(|| Holder::new("", Priority::Ordinary), |peer| peer.address_holder().clone())
}

/// The response to a client with too many requests.
pub(super) fn too_many() -> Refusal {
    let text = "Too many requests, please try again later.".to_owned();
    Refusal::line(StatusCode::TOO_MANY_REQUESTS, text)
}

/// Whether responses of the path are streams or files.
fn is_long_running(path: &str) -> bool {
    let first = path.split('/').nth(1).unwrap_or_default();
    matches!(first, "exec" | "attach" | "portForward" | "run" | "containerLogs" | "logs")
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    async fn send(router: &Router, path: &str, user: Option<&Holder>) -> Response {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        if let Some(user) = user {
            request.extensions_mut().insert(user.clone());
        }
        router.clone().oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn connection_limits_for_slow_readers() {
        let routes = ["/pods", "/containerLogs/a/b/c"];
        let router = routes
            .iter()
            .fold(Router::new(), |router, path| router.route(path, get(async || "an answer")));
        let router = limited(router);
        let greedy = Holder::new("greedy", Priority::Ordinary);
        let mut held = Vec::new();
        let refused = loop {
            let answer = send(&router, "/pods", Some(&greedy)).await;
            match answer.status() {
                StatusCode::OK => held.push(answer),
                status => break status,
            }
        };
        assert_eq!((refused, held.len()), (StatusCode::TOO_MANY_REQUESTS, 128), "half of all");
        let other = Holder::new("other", Priority::Ordinary);
        assert_eq!(send(&router, "/pods", Some(&other)).await.status(), 200);
        assert_eq!(send(&router, "/pods", None).await.status(), 200);
        let logs = send(&router, "/containerLogs/a/b/c", Some(&greedy)).await;
        assert_eq!(logs.status(), 200, "files are counted on their own");
        held.pop();
        assert_eq!(send(&router, "/pods", Some(&greedy)).await.status(), 200, "one was given back");
    }

    #[tokio::test]
    async fn connection_limits_reserve_for_authorized_requests() {
        let router = limited(Router::new().route("/pods", get(async || "an answer")));
        let mut held = Vec::new();
        for i in 0..1000 {
            let user = Holder::new(&format!("user{i}"), Priority::Ordinary);
            held.push(send(&router, "/pods", Some(&user)).await);
        }
        let refused = held.iter().filter(|answer| answer.status() == 429).count();
        assert_eq!(refused, 1000 - 256);
        let apiserver = Holder::new("kube-apiserver-kubelet-client", Priority::System);
        assert_eq!(send(&router, "/pods", Some(&apiserver)).await.status(), 200);
    }
}
