use std::path::Path;

use axum::http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use longshore_tls::testing::Authority;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::*;

/// An apiserver that knows the token `good` of `ann`, and lets `ann` and `cert` read `/metrics`.
async fn apiserver() -> Client {
    let review = async |uri: Uri, body: Bytes| {
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        let spec = review["spec"].clone();
        review["status"] = match uri.path().ends_with("/tokenreviews") {
            true => match spec["token"] == "good" {
                true => json!({"authenticated": true, "user": {"username": "ann"}}),
                false => json!({"authenticated": false}),
            },
            false => {
                let (user, wanted) = (&spec["user"], &spec["nonResourceAttributes"]);
                let known = user == "ann" || user == "cert";
                json!({"allowed": known && *wanted == json!({"path": "/metrics", "verb": "get"})})
            }
        };
        ([(CONTENT_TYPE, "application/json")], review.to_string())
    };
    let router = axum::Router::new().fallback(review);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap()
}

async fn port(client_ca: Option<&Path>) -> SocketAddr {
    let options = PortOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        certificate: None,
        client_ca: client_ca.map(Path::to_owned),
        tls_min_version: "VersionTLS13".to_owned(),
        cipher_suites: Vec::new(),
        always_allow_paths: vec!["/healthz".into(), "/read*".into()],
        token_ttl: Duration::from_secs(10),
        decision_ttls: DecisionTtls {
            allowed: Duration::from_secs(10),
            denied: Duration::from_secs(10),
        },
    };
    let endpoints = Endpoints {
        client: apiserver().await,
        registry: Registry::default(),
        configz: "{}".to_owned(),
        health: Health::default(),
    };
    let serving = Serving::open(options, endpoints).unwrap();
    let address = serving.address();
    tokio::spawn(serving.run());
    address
}

/// A GET on a connection of its own: status and text.
async fn get(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    identity: Option<&(CertificateDer<'static>, PrivateKeyDer<'static>)>,
) -> (u16, String) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(longshore_tls::NoVerifier(provider)));
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            config.with_client_auth_cert(vec![certificate.clone()], key.clone_key()).unwrap()
        }
    };
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::get(path).header("host", "localhost");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test]
async fn port_authorizes_tokens_and_serves_health_to_all() {
    let port = port(None).await;
    assert_eq!(get(port, "/healthz", None, None).await, (200, "ok".to_owned()));
    assert_eq!(get(port, "/readyz", None, None).await.0, 200, "a prefix");
    assert_eq!(get(port, "/livez", None, None).await.0, 403, "not in the list");
    assert_eq!(get(port, "/metrics", Some("good"), None).await.0, 200);
    assert_eq!(get(port, "/configz", Some("good"), None).await.0, 403);
    let (code, text) = get(port, "/metrics", Some("bad"), None).await;
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &status["reason"]), (401, &json!("Unauthorized")));
    let (code, text) = get(port, "/metrics", None, None).await;
    let status: Value = serde_json::from_str(&text).unwrap();
    let message = "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"";
    assert_eq!((code, &status["message"]), (403, &json!(message)));
}

#[tokio::test]
async fn port_authenticates_client_certificates() {
    let (authority, other) = (Authority::default(), Authority::default());
    let port = port(Some(&authority.path())).await;
    let [cert, nobody] = ["cert", "nobody"].map(|name| authority.client(name, "some"));
    assert_eq!(get(port, "/metrics", None, Some(&cert)).await.0, 200);
    assert_eq!(get(port, "/metrics", None, Some(&nobody)).await.0, 403);
    let admin = authority.client("admin", "system:masters");
    assert_eq!(get(port, "/configz", None, Some(&admin)).await, (200, "{}".to_owned()));
    let foreign = other.client("cert", "system:masters");
    assert_eq!(get(port, "/metrics", None, Some(&foreign)).await.0, 401);
    assert_eq!(get(port, "/metrics", Some("good"), Some(&foreign)).await.0, 200);
    assert_eq!(get(port, "/healthz", None, Some(&foreign)).await.0, 200);
}

#[tokio::test]
async fn port_options_that_cannot_be_used_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("empty.crt");
    std::fs::write(&file, "").unwrap();
    let endpoints = Endpoints {
        client: apiserver().await,
        registry: Registry::default(),
        configz: String::new(),
        health: Health::default(),
    };
    let options = PortOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        certificate: None,
        client_ca: Some(file),
        tls_min_version: String::new(),
        cipher_suites: Vec::new(),
        always_allow_paths: Vec::new(),
        token_ttl: Duration::ZERO,
        decision_ttls: DecisionTtls { allowed: Duration::ZERO, denied: Duration::ZERO },
    };
    let error = Serving::open(options, endpoints).err().unwrap().to_string();
    assert!(error.contains("empty.crt"), "{error}");
}

// Finding 8: the health of the program is behind this port
#[tokio::test]
async fn serving_port_is_not_locked_by_idle_connections() {
    let port = port(None).await;
    let mut idle = Vec::new();
    for _ in 0..=longshore_base::connections::Limits::DEFAULT.unauthorized {
        idle.push(TcpStream::connect(port).await.unwrap());
    }
    assert_eq!(get(port, "/healthz", None, None).await, (200, "ok".to_owned()));
}
