use std::path::Path;

use axum::http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use longshore_serving::FrontProxyHeaders;
use longshore_tls::testing::Authority;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::*;

/// An apiserver that knows the token `good` of `ann`, and lets `ann` and `cert` read `/metrics`. Its
/// ConfigMap for other servers has this data.
async fn apiserver(data: Value) -> Client {
    let metadata = json!({"name": "extension-apiserver-authentication",
        "namespace": "kube-system", "uid": "u", "resourceVersion": "1"});
    let map = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data});
    let get = async move || match map["data"].is_null() {
        true => (StatusCode::NOT_FOUND, "{}".to_owned()),
        false => (StatusCode::OK, map.to_string()),
    };
    let maps = json!({"kind": "ConfigMapList", "apiVersion": "v1",
        "metadata": {"resourceVersion": "1"}, "items": [{"metadata": metadata, "data": data}]});
    let list = async move |uri: Uri| {
        let query = uri.query().unwrap_or_default();
        assert!(query.contains("extension-apiserver-authentication"), "{query}");
        if query.contains("watch=") {
            std::future::pending::<()>().await;
        }
        ([(CONTENT_TYPE, "application/json")], maps.to_string())
    };
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
                let path = wanted["path"].as_str().unwrap();
                let is_read = wanted["verb"] == "get" && path.starts_with("/metrics");
                json!({"allowed": known && is_read})
            }
        };
        ([(CONTENT_TYPE, "application/json")], review.to_string())
    };
    let path = "/api/v1/namespaces/kube-system/configmaps";
    let router = axum::Router::new()
        .route(path, axum::routing::get(list))
        .route(&format!("{path}/extension-apiserver-authentication"), axum::routing::get(get))
        .fallback(review);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap()
}

async fn port(client_ca: Option<&Path>) -> SocketAddr {
    let delegated = DelegatedOptions {
        client_ca: client_ca.map(Path::to_owned),
        ..DelegatedOptions::default()
    };
    port_with(delegated, json!({})).await
}

async fn endpoints(data: Value) -> Endpoints {
    let client = apiserver(data).await;
    Endpoints {
        reviewers: Reviewers { authentication: client.clone(), authorization: client },
        registry: Registry::default(),
        more: vec![("/metrics/resources", Registry::default())],
        configz: "{}".to_owned(),
        health: Health::default(),
    }
}

async fn port_with(delegated: DelegatedOptions, data: Value) -> SocketAddr {
    let options = options(delegated);
    let serving = Serving::open(options, endpoints(data).await).unwrap();
    let address = serving.address();
    tokio::spawn(serving.run());
    address
}

fn options(delegated: DelegatedOptions) -> PortOptions {
    PortOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        certificate: None,
        delegated,
        tls_min_version: "VersionTLS13".to_owned(),
        cipher_suites: Vec::new(),
        curves: Vec::new(),
        sni: Vec::new(),
        http1_alone: false,
        profiling: true,
        always_allow_paths: vec!["/healthz".into(), "/read*".into()],
        token_ttl: Duration::from_secs(10),
        decision_ttls: DecisionTtls {
            allowed: Duration::from_secs(10),
            denied: Duration::from_secs(10),
        },
    }
}

/// A GET on a connection of its own: status and text.
async fn get(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    identity: Option<&(CertificateDer<'static>, PrivateKeyDer<'static>)>,
) -> (u16, String) {
    let token = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = token.iter().map(|token| ("authorization", token.as_str())).collect();
    get_with(address, path, &headers, identity).await
}

async fn get_with(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
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
    for (name, value) in headers {
        request = request.header(*name, *value);
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
async fn port_serves_health_checks_and_other_pages_as_metrics() {
    let port = port(None).await;
    let page = async |path: &str| get(port, path, Some("good"), None).await;
    assert_eq!(page("/metrics/slis").await, (200, String::new()));
    get(port, "/healthz", None, None).await;
    get(port, "/readyz", None, None).await;
    let (code, text) = page("/metrics/slis").await;
    assert_eq!(code, 200);
    for line in [
        "kubernetes_healthcheck{name=\"leaderElection\",type=\"healthz\"} 1\n",
        "kubernetes_healthcheck{name=\"informer-sync\",type=\"readyz\"} 1\n",
        "kubernetes_healthchecks_total{name=\"leaderElection\",type=\"readyz\",status=\"success\"} 1\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    assert_eq!(page("/metrics/resources").await, (200, String::new()));
    assert_eq!(page("/metrics/other").await.0, 404);
    assert_eq!(get(port, "/metrics/resources", None, None).await.0, 403);
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

/// What the apiserver's ConfigMap says for these CAs.
fn map_of(users: &Authority, proxies: &Authority) -> Value {
    let pem = |authority: &Authority| std::fs::read_to_string(authority.path()).unwrap();
    json!({
        "client-ca-file": pem(users),
        "requestheader-client-ca-file": pem(proxies),
        "requestheader-allowed-names": "[\"proxy\"]",
        "requestheader-username-headers": "[\"X-Remote-User\"]",
        "requestheader-group-headers": "[\"X-Remote-Group\"]",
        "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
    })
}

#[tokio::test]
async fn port_takes_the_cas_of_the_apiservers_config_map() {
    let (users, proxies) = (Authority::default(), Authority::default());
    let port = port_with(DelegatedOptions::default(), map_of(&users, &proxies)).await;
    let admin = users.client("admin", "system:masters");
    // it is read in the background
    for _ in 0..200 {
        if get(port, "/configz", None, Some(&admin)).await.0 == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(get(port, "/configz", None, Some(&admin)).await.0, 200);
    let (proxy, other) = (proxies.client("proxy", "x"), proxies.client("other", "x"));
    let ann = [("x-remote-user", "ann")];
    let masters = [("x-remote-user", "bob"), ("x-remote-group", "system:masters")];
    assert_eq!(get_with(port, "/metrics", &ann, Some(&proxy)).await.0, 200);
    assert_eq!(get_with(port, "/configz", &ann, Some(&proxy)).await.0, 403);
    assert_eq!(get_with(port, "/configz", &masters, Some(&proxy)).await.0, 200);
    // the headers count from nobody else: users of the cluster, proxies of other names, no certificate
    let user = users.client("proxy", "x");
    assert_eq!(get_with(port, "/configz", &masters, Some(&user)).await.0, 403);
    assert_eq!(get_with(port, "/configz", &masters, Some(&other)).await.0, 401);
    assert_eq!(get_with(port, "/configz", &masters, None).await.0, 403);
    // a proxy that names nobody is nobody
    assert_eq!(get_with(port, "/metrics", &[], Some(&proxy)).await.0, 401);
}

#[tokio::test]
async fn port_takes_the_front_proxies_of_the_flags() {
    let (users, proxies) = (Authority::default(), Authority::default());
    let headers = FrontProxyHeaders {
        username_headers: vec!["x-remote-user".to_owned()],
        ..FrontProxyHeaders::default()
    };
    let options = DelegatedOptions {
        client_ca: Some(users.path()),
        front_proxy_ca: Some(proxies.path()),
        headers,
        skip_lookup: true,
        requires_lookup: true,
    };
    // what the map says is not used
    let port = port_with(options, map_of(&proxies, &users)).await;
    let masters = [("x-remote-user", "ann"), ("x-remote-group", "system:masters")];
    let proxy = proxies.client("any", "x");
    assert_eq!(get_with(port, "/metrics", &masters, Some(&proxy)).await.0, 200);
    assert_eq!(get_with(port, "/configz", &masters, Some(&proxy)).await.0, 403, "no such header");
    let user = users.client("cert", "x");
    assert_eq!(get_with(port, "/metrics", &masters, Some(&user)).await.0, 200);
}

#[tokio::test]
async fn port_options_that_cannot_be_used_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("empty.crt");
    std::fs::write(&file, "").unwrap();
    let options =
        options(DelegatedOptions { client_ca: Some(file), ..DelegatedOptions::default() });
    let endpoints = endpoints(json!({})).await;
    let error = Serving::open(options, endpoints).err().unwrap().to_string();
    assert!(error.contains("empty.crt"), "{error}");
}

#[tokio::test]
async fn port_opens_only_with_the_config_map_where_it_is_required() {
    let (users, proxies) = (Authority::default(), Authority::default());
    let requires =
        |requires_lookup| DelegatedOptions { requires_lookup, ..DelegatedOptions::default() };
    let open = async |delegated: DelegatedOptions, data: &Value| {
        let serving = Serving::open(options(delegated), endpoints(data.clone()).await).unwrap();
        let found = serving.look_up().await.map_err(|error| error.to_string());
        (serving, found)
    };
    let (_, found) = open(requires(true), &Value::Null).await;
    let error = found.unwrap_err();
    assert!(error.starts_with("unable to load configmap based request-header-client-ca-file: "));
    assert_eq!(open(requires(false), &Value::Null).await.1, Ok(()));
    let (serving, found) = open(requires(true), &map_of(&users, &proxies)).await;
    assert_eq!(found, Ok(()));
    // the first request is answered as the last
    let address = serving.address();
    tokio::spawn(serving.run());
    let admin = users.client("admin", "system:masters");
    assert_eq!(get(address, "/configz", None, Some(&admin)).await.0, 200);
}

#[tokio::test]
async fn port_serves_profiles_to_those_who_may_read_them() {
    let authority = Authority::default();
    let client_ca = DelegatedOptions { client_ca: Some(authority.path()), ..Default::default() };
    let address = port_with(client_ca.clone(), json!({})).await;
    let admin = authority.client("admin", "system:masters");
    let (code, text) = get(address, "/debug/pprof/", None, Some(&admin)).await;
    assert!(code == 200 && text.contains("goroutine"), "{text}");
    let heap = get(address, "/debug/pprof/heap?debug=1", None, Some(&admin)).await;
    assert!(heap.1.contains("HeapAlloc"), "{heap:?}");
    assert_eq!(get(address, "/debug/pprof/heap", Some("good"), None).await.0, 403);
    assert_eq!(get(address, "/debug/pprof/", None, None).await.0, 403);
    let without = PortOptions { profiling: false, ..options(client_ca) };
    let serving = Serving::open(without, endpoints(json!({})).await).unwrap();
    let address = serving.address();
    tokio::spawn(serving.run());
    assert_eq!(get(address, "/debug/pprof/heap", None, Some(&admin)).await.0, 404);
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
