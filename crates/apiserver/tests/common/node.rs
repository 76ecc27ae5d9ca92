//! A stand-in for a node's port 10250 with configured responses.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::json;
use tokio::net::TcpListener;

use super::Cluster;

pub type NodeBody = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// A node's port: notes what is asked, demands a certificate of the cluster's CA.
pub struct Node {
    pub port: u16,
    /// The target and the headers of each request.
    pub asked: Arc<Mutex<Vec<String>>>,
    pub headers: Arc<Mutex<Vec<HeaderMap>>>,
}

/// Registers the node `n1` on this machine, which answers so.
pub async fn node(
    cluster: &Cluster,
    answer: impl Fn(Request<Incoming>) -> Response<NodeBody> + Copy + Send + 'static,
) -> Node {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cluster.pki().join("ca.crt")).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(["n1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let headers = Arc::new(Mutex::new(Vec::new()));
    let notes = (asked.clone(), headers.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, notes) = (acceptor.clone(), notes.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request: Request<Incoming>| {
                    notes.0.lock().unwrap().push(request.uri().to_string());
                    notes.1.lock().unwrap().push(request.headers().clone());
                    async move { Ok::<_, Infallible>(answer(request)) }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades()
                    .await;
            });
        }
    });
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
    });
    cluster.admin.create("/api/v1/nodes", node).await;
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": "n1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }});
    let (code, set) = cluster.admin.call("PATCH", "/api/v1/nodes/n1/status", Some(status)).await;
    assert_eq!(code, 200, "{set}");
    Node { port, asked, headers }
}
