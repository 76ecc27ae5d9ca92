//! How many requests one caller may have under way on a port. An answer counts until all of it is
//! sent, so that callers who do not read their answers cannot make the daemon hold many of them.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use longshore_base::budget::{Budget, Holder, Priority};

use super::Refusal;
use super::auth::Peer;
use super::listen::Tracked;

/// Requests that are answered with something that is there, and those beyond them that are kept for
/// the control plane.
const REQUESTS: (u64, u64) = (256, 256);
/// Sessions in pods, and files that are sent as they are read: these hold little memory.
const STREAMS: (u64, u64) = (4096, 4096);

/// The budgets of a port.
struct RequestLimits {
    requests: Arc<Budget>,
    streams: Arc<Budget>,
}

/// The router's requests, limited by caller: the user whom authorization found, or the address.
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
        None => address(request.extensions().get::<Arc<Peer>>().map(AsRef::as_ref)),
    };
    let budget = match is_long(request.uri().path()) {
        true => &limits.streams,
        false => &limits.requests,
    };
    let share = budget.take(&caller, 1).ok_or_else(too_many)?;
    let answer = next.run(request).await;
    Ok(answer.map(|body| Body::new(Tracked::new(body, share))))
}

/// A caller of whom only the address is known.
pub(super) fn address(peer: Option<&Peer>) -> Holder {
    let connection = peer.and_then(|peer| peer.connection.as_ref());
    connection.map_or_else(|| Holder::new("", Priority::Ordinary), |one| one.peer().clone())
}

/// The refusal of a caller who has too much under way.
pub(super) fn too_many() -> Refusal {
    let text = "Too many requests, please try again later.".to_owned();
    Refusal::line(StatusCode::TOO_MANY_REQUESTS, text)
}

/// Whether the path's answers last as long as the client likes, or may be large files.
fn is_long(path: &str) -> bool {
    let first = path.split('/').nth(1).unwrap_or_default();
    matches!(first, "exec" | "attach" | "portForward" | "run" | "containerLogs" | "logs")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    async fn ask(router: &Router, path: &str, user: Option<&Holder>) -> Response {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        if let Some(user) = user {
            request.extensions_mut().insert(user.clone());
        }
        router.clone().oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn who_takes_no_answers_gets_no_more_and_others_do() {
        let routes = ["/pods", "/containerLogs/a/b/c"];
        let router = routes
            .iter()
            .fold(Router::new(), |router, path| router.route(path, get(async || "an answer")));
        let router = limited(router);
        let greedy = Holder::new("greedy", Priority::Ordinary);
        let mut held = Vec::new();
        let refused = loop {
            let answer = ask(&router, "/pods", Some(&greedy)).await;
            match answer.status() {
                StatusCode::OK => held.push(answer),
                status => break status,
            }
        };
        assert_eq!((refused, held.len()), (StatusCode::TOO_MANY_REQUESTS, 128), "half of all");
        let other = Holder::new("other", Priority::Ordinary);
        assert_eq!(ask(&router, "/pods", Some(&other)).await.status(), 200);
        assert_eq!(ask(&router, "/pods", None).await.status(), 200);
        let logs = ask(&router, "/containerLogs/a/b/c", Some(&greedy)).await;
        assert_eq!(logs.status(), 200, "files are counted on their own");
        held.pop();
        assert_eq!(ask(&router, "/pods", Some(&greedy)).await.status(), 200, "one was given back");
    }

    #[tokio::test]
    async fn the_control_plane_has_requests_of_its_own() {
        let router = limited(Router::new().route("/pods", get(async || "an answer")));
        let mut held = Vec::new();
        for i in 0..1000 {
            let user = Holder::new(&format!("user{i}"), Priority::Ordinary);
            held.push(ask(&router, "/pods", Some(&user)).await);
        }
        let refused = held.iter().filter(|answer| answer.status() == 429).count();
        assert_eq!(refused, 1000 - 256);
        let apiserver = Holder::new("kube-apiserver-kubelet-client", Priority::System);
        assert_eq!(ask(&router, "/pods", Some(&apiserver)).await.status(), 200);
    }
}
