//! A port in front of an apiserver without authentication and endpoint slices.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, HOST, USER_AGENT};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use kube::Client;
use longshore_testkit::Host;
use parking_lot::Mutex;

use crate::proxy::world::on;

pub(crate) struct Facade {
    address: SocketAddr,
    agents: Arc<Mutex<Vec<String>>>,
}

impl Facade {
    /// Serves on loopback of the host, for as long as the runtime lives.
    pub(crate) fn start(host: &Host, behind: Client) -> Self {
        let listener = on(host, || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let agents = Arc::<Mutex<Vec<String>>>::default();
        let seen = agents.clone();
        let pass = async move |request: Request<Body>| {
            assert!(!request.headers().contains_key(AUTHORIZATION));
            let agent = request.headers()[USER_AGENT].to_str().unwrap().to_owned();
            seen.lock().push(agent);
            pass_on(&behind, request).await
        };
        let router = Router::new().fallback(pass);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, agents }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What all who asked called themselves.
    pub(crate) fn agents(&self) -> Vec<String> {
        self.agents.lock().clone()
    }
}

async fn pass_on(behind: &Client, mut request: Request<Body>) -> Response {
    if request.uri().path().starts_with("/apis/discovery.k8s.io") {
        return (StatusCode::NOT_FOUND, "404 page not found").into_response();
    }
    request.headers_mut().remove(HOST);
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let request = Request::from_parts(head, kube::client::Body::from(body.to_vec()));
    match behind.send(request).await {
        Ok(answer) => answer.map(Body::new).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
