//! `nodes/proxy` and refused upgrades, through the apiserver to a stand-in for a node that answers
//! what a bad one would.

use crate::common;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::node::{NodeBody, node};
use common::*;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const NODE: &str = "/api/v1/nodes/n1/proxy";

fn answer(request: Request<Incoming>) -> Response<NodeBody> {
    let text = match request.uri().path() {
        "/echo" => format!("{} {}", request.method(), request.uri()),
        path => path.to_owned(),
    };
    let body: NodeBody = match text == "/body" {
        true => {
            let broken = |error: hyper::Error| -> Infallible { panic!("{error}") };
            request.into_body().map_err(broken).boxed_unsync()
        }
        false => http_body_util::Full::new(Bytes::from(text.clone())).boxed_unsync(),
    };
    let mut response = Response::new(body);
    let code = match text.as_str() {
        "/moved" => 302,
        "/exec/default/web/c" | "/refused" => 403,
        "/teapot" => 418,
        _ => 200,
    };
    *response.status_mut() = code.try_into().unwrap();
    let headers = response.headers_mut();
    headers.insert("location", "https://127.0.0.1:1/".parse().unwrap());
    headers.insert("x-node", "n1".parse().unwrap());
    response
}

/// A connection of the administrator's to the apiserver.
async fn connect(cluster: &Cluster) -> TlsStream<TcpStream> {
    let pki = cluster.pki();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.join("ca.crt")).unwrap()).unwrap();
    let chain = CertificateDer::from_pem_file(pki.join("client-kubernetes-admin.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(pki.join("client-kubernetes-admin.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![chain], key)
        .unwrap();
    let socket = TcpStream::connect(cluster.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::try_from("127.0.0.1").unwrap(), socket).await.unwrap()
}

/// All that comes back for these bytes, until the connection ends.
async fn exchange(cluster: &Cluster, bytes: &str) -> String {
    let mut stream = connect(cluster).await;
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    let reading = stream.read_to_end(&mut heard);
    let _ = tokio::time::timeout(Duration::from_secs(10), reading)
        .await
        .unwrap_or_else(|_| panic!("the connection stays open"));
    String::from_utf8_lossy(&heard).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_proxy_forwards_requests() {
    let cluster = Cluster::start().await;
    let node = node(&cluster, answer).await;
    for (method, path, expected) in [
        ("GET", "/echo?a=b&c=%2F", (200, "GET /echo?a=b&c=%2F")),
        ("DELETE", "/echo", (200, "DELETE /echo")),
        ("POST", "/echo", (200, "POST /echo")),
        ("GET", "/logs/", (200, "/logs/")),
        ("GET", "/logs/%2e%2e/x", (200, "/logs/%2e%2e/x")),
        ("GET", "/teapot", (418, "/teapot")),
    ] {
        let path = format!("{NODE}{path}");
        let (code, text) = cluster.admin_text(&path, &["-X", method]);
        assert_eq!((code, text.as_str()), expected, "{method} {path}");
    }
    let sent = ["-d", "what is sent", "-H", "Authorization: Bearer planted", "-H", "Cookie: a=b"];
    assert_eq!(cluster.admin_text(&format!("{NODE}/body"), &sent).1, "what is sent");
    let headers = node.headers.lock().unwrap().last().unwrap().clone();
    assert!(!headers.contains_key("authorization"), "{headers:?}");
    assert_eq!(headers["host"], format!("127.0.0.1:{}", node.port).as_str());

    let with_port = format!("/api/v1/nodes/https:n1:{}/proxy/echo", node.port);
    assert_eq!(cluster.admin_text(&with_port, &[]), (200, "GET /echo".to_owned()));
    for (path, expected) in [
        ("/api/v1/nodes/n1:22/proxy/", 400),
        ("/api/v1/nodes/none/proxy/", 404),
        ("/api/v1/nodes/n1/proxy/x/../../../y", 200),
    ] {
        assert_eq!(cluster.admin_text(path, &[]).0, expected, "{path}");
    }
    assert!([401, 403].contains(&cluster.curl(&format!("{NODE}/echo"), &[]).0));
}

/// CVE-2018-1002102, CVE-2020-8559: a node's redirect leads nowhere, with an upgrade or without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_proxy_blocks_redirects() {
    let cluster = Cluster::start().await;
    let node = node(&cluster, answer).await;
    for upgrade in ["", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"] {
        let request = format!(
            "POST {NODE}/moved HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n{upgrade}\r\n\
             GET /never HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        );
        let heard = exchange(&cluster, &request).await;
        assert!(heard.starts_with("HTTP/1.1 500 "), "{heard}");
        assert!(heard.contains("redirect this request"), "{heard}");
        assert!(!heard.to_lowercase().contains("location:"), "{heard}");
    }
    assert_eq!(node.asked.lock().unwrap().as_slice(), ["/moved", "/moved"]);
}

/// CVE-2018-1002105: a failed upgrade leaves no way to the node behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_proxy_failed_upgrade_closes_the_connection() {
    let cluster = Cluster::start().await;
    let node = node(&cluster, answer).await;
    cluster.admin.create("/api/v1/namespaces/default/pods", pod("web", "n1")).await;
    let exec = |pod| format!("/api/v1/namespaces/default/pods/{pod}/exec?command=x&stdout=1");
    for (path, expected) in [
        (exec("web"), 403),
        (format!("{NODE}/refused"), 403),
        // nor where this server itself refuses
        (exec("none"), 404),
        ("/api/v1/namespaces/default/pods/web".to_owned(), 405),
    ] {
        // what follows on the connection must reach neither the node nor this server
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\
             Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n\
             GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        );
        let heard = exchange(&cluster, &request).await;
        assert!(heard.starts_with(&format!("HTTP/1.1 {expected} ")), "{path}: {heard}");
        assert_eq!(heard.matches("HTTP/1.1 ").count(), 1, "{path}: {heard}");
    }
    assert_eq!(node.asked.lock().unwrap().len(), 2, "{:?}", node.asked);
}

/// CVE-2022-3294, CVE-2020-8562: what is dialled is what was checked, and is a node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_proxy_rejects_the_apiserver_address() {
    let cluster = Cluster::start().await;
    node(&cluster, answer).await;
    for (address, port) in [
        ("127.0.0.1", cluster.address.port()),
        ("169.254.169.254", 80),
        ("0.0.0.0", cluster.address.port()),
    ] {
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        let (code, set) =
            cluster.admin.call("PATCH", "/api/v1/nodes/n1/status", Some(status)).await;
        assert_eq!(code, 200, "{set}");
        let (code, text) = cluster.admin_text(&format!("{NODE}/api/v1/secrets"), &[]);
        assert_eq!(code, 400, "{address}: {text}");
        assert!(text.contains("is not allowed for a node"), "{text}");
    }
}
