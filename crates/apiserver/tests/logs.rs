//! `pods/log`, from the client through the apiserver to a node's port and back.
//! The node is a stand-in that speaks TLS and answers as scripted; the node daemon's own tests have the real one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use futures::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::json;
use tokio::net::TcpListener;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A node's port: notes what is asked, demands a certificate of the cluster's CA.
struct Node {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

async fn node(cluster: &Cluster) -> Node {
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
    let notes = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, notes) = (acceptor.clone(), notes.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request: Request<Incoming>| {
                    notes.lock().unwrap().push(request.uri().to_string());
                    async move { Ok::<_, Infallible>(answer(&request)) }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
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
    Node { port, asked }
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

fn answer(request: &Request<Incoming>) -> Response<Body> {
    let whole = |text: &'static str| {
        http_body_util::Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync()
    };
    let (code, body) = match request.uri().path() {
        "/containerLogs/default/web/gone" => (404, whole("no such container")),
        "/containerLogs/default/web/moved" => (302, whole("")),
        "/containerLogs/default/web/bad" => (400, whole("container \"bad\" is waiting to start")),
        _ if request.uri().query().is_some_and(|query| query.contains("follow=true")) => {
            let lines = futures::stream::unfold(0, |line| async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Some((Ok(Frame::data(Bytes::from(format!("line {line}\n")))), line + 1))
            });
            (200, StreamBody::new(lines).boxed_unsync())
        }
        _ => (200, whole("hello\n")),
    };
    let mut response = Response::new(body);
    *response.status_mut() = code.try_into().unwrap();
    response.headers_mut().insert("location", "https://127.0.0.1:1/".parse().unwrap());
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_come_from_the_node() {
    let cluster = Cluster::start().await;
    let node = node(&cluster).await;
    let admin = &cluster.admin;
    let mut web = pod("web", "n1");
    web["spec"]["containers"] =
        json!(["c", "gone", "moved", "bad"].map(|name| json!({"name": name, "image": "i"})));
    admin.create(PODS, web).await;
    admin.create(PODS, pod("unscheduled", "")).await;

    let query = "container=c&tailLines=5&timestamps=true&sinceSeconds=60&evil=1";
    assert_eq!(admin.text(&format!("{PODS}/web/log?{query}")).await, (200, "hello\n".into()));
    assert_eq!(
        node.asked.lock().unwrap().last().unwrap(),
        "/containerLogs/default/web/c?timestamps=true&sinceSeconds=60&tailLines=5"
    );
    let (code, status) = admin.get(&format!("{PODS}/web/log")).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (400, "a container name must be specified for pod web, choose one of: [c gone moved bad]")
    );
    for (query, expected) in [
        ("container=x", 400),
        ("container=c&tailLines=-1", 400),
        ("container=c&sinceTime=x", 400),
        ("container=gone", 404),
        ("container=moved", 500),
        ("container=bad", 400),
    ] {
        assert_eq!(
            cluster.admin_curl(&format!("{PODS}/web/log?{query}"), &[]).0,
            expected,
            "{query}"
        );
    }
    assert!(node.port > 0);
    assert_eq!(admin.text(&format!("{PODS}/unscheduled/log")).await, (200, String::new()));

    // Lines come as they are written, and the end of the server ends them.
    let request = Request::get(format!("{PODS}/web/log?container=c&follow=true"));
    let response = admin.0.send(request.body(kube::client::Body::empty()).unwrap()).await.unwrap();
    let mut lines = Box::pin(response.into_body().into_data_stream());
    let mut text = String::new();
    while !text.contains("line 3\n") {
        text.push_str(std::str::from_utf8(&lines.next().await.unwrap().unwrap()).unwrap());
    }
    let began = std::time::Instant::now();
    tokio::join!(cluster.stop(), async { while let Some(Ok(_)) = lines.next().await {} });
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
