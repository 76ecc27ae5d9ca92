//! Clients of the parts of a program: the header `User-Agent` of their requests names the part too.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::http::{Request, Response};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use tower::Service;

use crate::transport::UserAgent;

/// A client with the connections, credentials and limits of `client`, for a part of the program
/// `component`.
#[must_use]
pub fn named(client: &Client, component: &'static str, part: &str) -> Client {
    let service = Named { client: client.clone(), agent: UserAgent::of(component, part) };
    ClientBuilder::new(service, client.default_namespace()).build()
}

#[derive(Clone)]
struct Named {
    client: Client,
    agent: UserAgent,
}

impl Service<Request<Body>> for Named {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, kube::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let client = self.client.clone();
        request.extensions_mut().insert(self.agent.clone());
        Box::pin(async move { client.send(request).await })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::http::HeaderMap;
    use axum::routing::get;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use longshore_metrics::{Registry, RestClient};
    use parking_lot::Mutex;

    use super::named;
    use crate::{ConfigSource, Credentials, Limits, connect};

    #[tokio::test]
    async fn named_clients_say_which_part_they_are_of() {
        let agents: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = agents.clone();
        let node = get(async move |headers: HeaderMap| {
            seen.lock().push(headers["user-agent"].to_str().unwrap().to_owned());
            (axum::http::StatusCode::NOT_FOUND, "no node")
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/api/v1/nodes/{name}", node);
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let credentials = Credentials::from(ConfigSource::Master(url));
        let timeout = std::time::Duration::from_secs(5);
        let limits = Limits { component: "manager", qps: 0, burst: 0, timeout };
        let metrics = RestClient::new(&Registry::default());
        let client = connect(&credentials, limits, metrics).await.unwrap();
        for client in [named(&client, "manager", "job-controller"), client] {
            let error = Api::<Node>::all(client).get("n").await.unwrap_err();
            assert!(matches!(error, kube::Error::Api(status) if status.code == 404));
        }
        let agents = agents.lock();
        assert_eq!(agents.len(), 2);
        assert_eq!(agents[0], format!("{}/job-controller", agents[1]));
        assert!(agents[1].starts_with("manager/v1.36"), "{agents:?}");
    }
}
