//! Limits of anonymous clients and of users: attacks over real HTTPS.

use crate::common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use longshore_apiserver::{
    AdmissionConfig, ConnectionLimits, Plugins, RequestLimits, kubeconfig, pki,
};
use proptest::prelude::*;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const RESPONSE_TIME: Duration = Duration::from_secs(20);
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A TLS connection: as nobody, or with the certificate of this user.
async fn connect(cluster: &Cluster, user: Option<&str>, protocol: &str) -> TlsStream<TcpStream> {
    let pki = cluster.pki();
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(pki.join("ca.crt")).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match user {
        None => config.with_no_client_auth(),
        Some(user) => {
            let file = |end: &str| pki.join(format!("client-{user}.{end}"));
            let chain = CertificateDer::pem_file_iter(file("crt")).unwrap().map(Result::unwrap);
            let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
            config.with_client_auth_cert(chain.collect(), key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(cluster.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// A user of no rights but those that everybody has.
fn add_user(cluster: &Cluster, user: &str) {
    let pki = pki::Pki::open(&cluster.pki()).unwrap();
    let server = format!("https://{}", cluster.address);
    kubeconfig(&pki, &server, user, "").unwrap();
}

/// Whether the administrator is served, soon, on a new connection.
async fn is_served(cluster: &Cluster) -> bool {
    let mut admin = connect(cluster, Some("kubernetes-admin"), "http/1.1").await;
    let request = "GET /api/v1/namespaces/default HTTP/1.1\r\nHost: localhost\r\n\r\n";
    admin.write_all(request.as_bytes()).await.unwrap();
    head(&mut admin).await.starts_with("HTTP/1.1 200")
}

/// What the server says next; empty when it has closed the connection.
async fn head(stream: &mut TlsStream<TcpStream>) -> String {
    let mut text = vec![0; 64 << 10];
    match timeout(RESPONSE_TIME, stream.read(&mut text)).await.expect("no answer") {
        Ok(count) => String::from_utf8_lossy(&text[..count]).into_owned(),
        Err(_) => String::new(),
    }
}

/// One connection of HTTP/2.
async fn http2(cluster: &Cluster, user: Option<&str>) -> SendRequest<Full<Bytes>> {
    http2_with(cluster, user, 64 << 10).await
}

/// One connection of HTTP/2, on which so many bytes of each answer may be sent.
async fn http2_with(
    cluster: &Cluster,
    user: Option<&str>,
    window: u32,
) -> SendRequest<Full<Bytes>> {
    let stream = connect(cluster, user, "h2").await;
    let handshake = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

fn uri(path: &str) -> Uri {
    format!("https://localhost{path}").parse().unwrap()
}

// Finding 8: 1,024 idle connections kept everybody out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_limit_idle_unauthorized_do_not_block_others() {
    let cluster = Cluster::start_with(|config| {
        config.connections = ConnectionLimits { unauthorized: 8, authorized: 8, reserved: 4 };
    })
    .await;
    let mut held = Vec::new();
    for _ in 0..40 {
        // not even a handshake
        held.push(TcpStream::connect(cluster.address).await.unwrap());
    }
    assert!(is_served(&cluster).await);
    // nor those in TLS handshakes, and those that request public paths
    let mut anonymous = Vec::new();
    for _ in 0..20 {
        let mut connection = connect(&cluster, None, "http/1.1").await;
        let request = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
        connection.write_all(request.as_bytes()).await.unwrap();
        assert!(head(&mut connection).await.starts_with("HTTP/1.1 200"));
        anonymous.push(connection);
    }
    assert!(is_served(&cluster).await);
    let mut first = anonymous.swap_remove(0);
    assert_eq!(head(&mut first).await, "", "the oldest was closed");
}

// Finding 8: the server held all error responses of a client that does not read them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_with_unread_responses_is_closed() {
    const MOST: usize = 2048 + 100;
    let cluster = Cluster::start().await;
    let (mut unread, mut senders) = (Vec::new(), Vec::new());
    let refused = loop {
        let mut sender = http2_with(&cluster, Some("kubernetes-admin"), 0).await;
        let mut asking = Vec::new();
        for _ in 0..100 {
            let request = Request::get(uri("/api/v1/none")).body(Full::default()).unwrap();
            asking.push(sender.send_request(request));
        }
        let answers = timeout(RESPONSE_TIME, futures::future::join_all(asking)).await.unwrap();
        // of those that come last some may be refused before the connection is
        let is_held = |answer: &Result<Response<_>, _>| {
            answer.as_ref().is_ok_and(|answer| answer.status() == 404)
        };
        let (held, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(is_held);
        unread.extend(held.into_iter().map(Result::unwrap));
        if !lost.is_empty() {
            break lost.len();
        }
        assert!(unread.len() <= MOST, "{}", unread.len());
        // a connection without its sender would end
        senders.push(sender);
    };
    assert!(refused > 0 && unread.len() >= MOST / 2, "{refused} {}", unread.len());
    assert!(is_served(&cluster).await);
}

// Finding 8: nor do the connections of one user keep out others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_limit_per_user() {
    let cluster = Cluster::start_with(|config| {
        config.connections = ConnectionLimits { unauthorized: 8, authorized: 8, reserved: 4 };
    })
    .await;
    for user in ["greedy", "other"] {
        add_user(&cluster, user);
    }
    let request = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut served = Vec::new();
    for _ in 0..6 {
        let mut stream = connect(&cluster, Some("greedy"), "http/1.1").await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = head(&mut stream).await;
        match answer.starts_with("HTTP/1.1 200") {
            true => served.push(stream),
            false => assert!(answer.starts_with("HTTP/1.1 429"), "{answer}"),
        }
    }
    assert_eq!(served.len(), 4, "half of eight");
    let mut other = connect(&cluster, Some("other"), "http/1.1").await;
    other.write_all(request.as_bytes()).await.unwrap();
    assert!(head(&mut other).await.starts_with("HTTP/1.1 200"));
    assert!(is_served(&cluster).await);
}

// Finding 8, CVE-2023-44487: unauthenticated HTTP/2 connections get one request at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_http2_unauthenticated_is_closed() {
    let cluster = Cluster::start().await;
    let mut connection = http2(&cluster, None).await;
    let request = || Request::get(uri("/version")).body(Full::default()).unwrap();
    let answer = connection.send_request(request()).await.unwrap();
    assert_eq!(answer.status(), 200);
    let closed = async {
        while connection.ready().await.is_ok() && !connection.is_closed() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(RESPONSE_TIME, closed).await.expect("the connection stays");
    let mut admin = http2(&cluster, Some("kubernetes-admin")).await;
    for _ in 0..3 {
        assert_eq!(admin.send_request(request()).await.unwrap().status(), 200);
    }
}

// Finding 3: five slow chunked bodies of any token halted all writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_limit_slow_bodies_do_not_block_writes() {
    let cluster = Cluster::start().await;
    add_user(&cluster, "slow");
    let started = Instant::now();
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = connect(&cluster, Some("slow"), "http/1.1").await;
        let head = format!(
            "POST {REVIEWS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                       "metadata": {"name": "n1", "namespace": "kube-node-lease"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    cluster.node().await.create(leases, lease).await;
    cluster.admin.create("/api/v1/namespaces/default/configmaps", config_map("a", json!({}))).await;
    // The slow ones are waited for still.
    let ended = timeout(Duration::from_millis(10), slow[1].read(&mut [0; 16])).await;
    assert!(ended.is_err(), "{ended:?}");
    // a byte now and then is too little
    let mut first = slow.swap_remove(0);
    let answer = loop {
        let _ = first.write_all(b"1\r\n \r\n").await;
        let mut text = vec![0; 4096];
        match timeout(Duration::from_secs(1), first.read(&mut text)).await {
            Err(_) => assert!(started.elapsed() < Duration::from_secs(40), "it does not end"),
            Ok(count) => break String::from_utf8_lossy(&text[..count.unwrap_or(0)]).into_owned(),
        }
    };
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
}

// Finding 3: a user may hold a part of what all bodies may hold, and gets 429 beyond that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_limit_body_memory_per_user() {
    let cluster = Cluster::start().await;
    for user in ["greedy", "other"] {
        add_user(&cluster, user);
    }
    let mut held = Vec::new();
    let part = vec![b' '; 2 << 20];
    for _ in 0..4 {
        let mut stream = connect(&cluster, Some("greedy"), "http/1.1").await;
        let head = format!(
            "POST {REVIEWS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            part.len() + 2
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&part).await.unwrap();
        held.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut codes = Vec::new();
    for mut stream in held {
        // one that was refused at once may be closed by now
        let _ = stream.write_all(b"{}").await;
        codes.push(head(&mut stream).await.get(9..12).unwrap_or("429").to_owned());
    }
    assert!(codes.contains(&"429".to_owned()), "{codes:?}");
    assert!(codes.iter().any(|code| code == "422" || code == "201"), "{codes:?}");
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    cluster.user("other", "").await.create(REVIEWS, review).await;
}

// Finding 3: requests under way are shared out as well; watches do not count as such.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_limit_per_user() {
    let cluster = Cluster::start_with(|config| {
        config.requests = RequestLimits { reading: 4, mutating: 4, has_flow_control: false };
    })
    .await;
    for user in ["greedy", "other"] {
        add_user(&cluster, user);
    }
    let slow = |user| {
        let cluster = &cluster;
        async move {
            let mut stream = connect(cluster, Some(user), "http/1.1").await;
            let head = format!(
                "POST {REVIEWS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: 100\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            stream
        }
    };
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(slow("greedy").await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut refused = held.pop().unwrap();
    let answer = head(&mut refused).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.to_lowercase().contains("retry-after: 1"), "{answer}");
    assert!(answer.contains("Too many requests, please try again later."), "{answer}");
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    cluster.user("other", "").await.create(REVIEWS, review).await;
    let mut watches = Vec::new();
    for _ in 0..10 {
        watches.push(cluster.admin.watch("/api/v1/namespaces?watch=1").await);
    }
}

// Finding 2 and CVE-2020-8552: each parameter at its extremes, and in great number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_query_parameters() {
    const LIST: &str = "limit continue resourceVersion resourceVersionMatch labelSelector \
        fieldSelector includeObject pretty";
    const WATCH: &str = "timeoutSeconds resourceVersion resourceVersionMatch sendInitialEvents \
        allowWatchBookmarks labelSelector fieldSelector";
    const WRITE: &str = "dryRun fieldManager fieldValidation force";
    const DELETE: &str = "gracePeriodSeconds propagationPolicy orphanDependents labelSelector \
        fieldSelector continue limit";
    const LOG: &str = "tailLines limitBytes sinceSeconds sinceTime timestamps follow previous \
        stream insecureSkipTLSVerifyBackend container";
    const EXEC: &str = "container command stdin tty";
    let numbers = [
        "0",
        "-1",
        "1",
        "18446744073709551615",
        "18446744073709551616",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
        "4294967296",
        "1e400",
        "NaN",
        "0x10",
        "+1",
    ];
    let texts = [
        "",
        "%00",
        "%ff%fe",
        "%",
        "%2e%2e%2f",
        "true",
        "All",
        "Exact",
        "NotOlderThan",
        "a%3Db",
        "metadata.name%3D..",
        "metadata.name%3D%00",
        "spec.nodeName%3D%ff",
        "a+in+(",
        "!",
        "%3D%3D",
        "9999-12-31T23:59:59.999999999Z",
        "-009999-01-01T00:00:00Z",
        "0000-00-00T00:00:00Z",
        "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OTIyMzM3MjAzNjg1NDc3NTgwNywic3RhcnQiOiJhXHUwMDAwIn0",
    ];
    let cluster = Cluster::start().await;
    cluster.admin.create("/api/v1/namespaces/default/pods", pod("web", "n1")).await;
    let terms = |term: &str| (0..60_000 / term.len()).map(|_| term).collect::<String>();
    let short: Vec<String> = numbers.iter().chain(&texts).map(|v| (*v).to_owned()).collect();
    let long = [terms("a"), terms("a%3Db,"), terms("!a,"), terms("metadata.name%3Da,"), terms("(")];
    let takes_text = "labelSelector fieldSelector continue container command sinceTime";
    let paths = [
        ("GET", "/api/v1/namespaces/default/pods", "watch=1", WATCH),
        ("GET", "/api/v1/namespaces/default/pods", "x=1", LIST),
        ("GET", "/api/v1/namespaces/default/pods/web", "x=1", "resourceVersion includeObject"),
        ("GET", "/api/v1/namespaces/default/pods/web/log", "x=1", LOG),
        ("POST", "/api/v1/namespaces/default/pods/web/exec", "x=1", EXEC),
        ("POST", "/api/v1/namespaces/default/pods/web/portforward", "x=1", "ports"),
        ("GET", "/api/v1/namespaces/default/pods/web/proxy", "x=1", "path"),
        ("POST", "/api/v1/namespaces/default/configmaps", "x=1", WRITE),
        ("PATCH", "/api/v1/namespaces/default/pods/web", "dryRun=All", WRITE),
        ("DELETE", "/api/v1/namespaces/default/pods/web", "dryRun=All", DELETE),
        ("DELETE", "/api/v1/namespaces/default/pods", "dryRun=All", DELETE),
        ("GET", "/livez", "x=1", "verbose timeoutSeconds"),
    ];
    let mut asked = Vec::new();
    for (method, path, with, parameters) in paths {
        for parameter in parameters.split_whitespace() {
            let long = long.iter().filter(|_| takes_text.contains(parameter));
            for value in short.iter().chain(long) {
                asked.push((method, format!("{path}?{with}&{parameter}={value}")));
            }
        }
        // far more of them than anybody reads
        asked.push((method, format!("{path}?{}", "a&".repeat(30_000))));
        asked.push((method, format!("{path}?{}", "command=a&".repeat(6_000))));
    }
    // One at a time takes minutes where other tests keep the processors busy.
    let parts = asked.chunks(asked.len().div_ceil(8));
    futures::future::join_all(parts.map(|part| request_each(&cluster, part))).await;
    assert!(is_served(&cluster).await);
}

/// Whether an answer is a failure of the server. Some that are the client's fault have the code 500, too, as
/// upstream has it, and no reason.
async fn is_failure(answer: Response<Incoming>) -> bool {
    if answer.status().as_u16() != 500 {
        return false;
    }
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&text).contains("\"reason\":")
}

/// Sends these requests one after the other, as an administrator; each is to be answered, and not by
/// a failure of the server.
async fn request_each(cluster: &Cluster, requests: &[(&str, String)]) {
    let mut admin = http2(cluster, Some("kubernetes-admin")).await;
    for (method, path) in requests {
        let Ok(uri) = format!("https://localhost{path}").parse::<Uri>() else { continue };
        let request = Request::builder()
            .method(*method)
            .uri(uri)
            .header("content-type", "application/merge-patch+json")
            .body(Full::from("{}"))
            .unwrap();
        let short: String = path.chars().take(200).collect();
        if admin.ready().await.is_err() {
            admin = http2(cluster, Some("kubernetes-admin")).await;
        }
        let answer = timeout(RESPONSE_TIME, admin.send_request(request)).await;
        match answer.unwrap_or_else(|_| panic!("{method} {short} is not answered")) {
            // a watch goes on, and is dropped here
            Ok(answer) => {
                let is_of_the_node = path.contains("/web/");
                assert!(is_of_the_node || !is_failure(answer).await, "{method} {short}");
            }
            Err(error) => assert!(path.len() > 30_000, "{method} {short}: {error:?}"),
        }
    }
}

// Finding 2: the one request that ended the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_timeout_overflow_is_harmless() {
    let cluster = Cluster::start().await;
    for seconds in [i64::MAX, i64::MAX / 2, i64::from(u32::MAX)] {
        let path = format!("/api/v1/namespaces?watch=1&timeoutSeconds={seconds}");
        let mut watch = cluster.admin.watch(&path).await;
        assert_eq!(watch.next().await.unwrap()["type"], "ADDED", "{seconds}");
    }
}

// Findings 2 and 8: each header at its extremes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_headers() {
    let cluster = Cluster::start().await;
    cluster.admin.create("/api/v1/namespaces/default/pods", pod("web", "n1")).await;
    let names = [
        "Accept",
        "Accept-Encoding",
        "Authorization",
        "Content-Type",
        "Content-Length",
        "Expect",
        "Transfer-Encoding",
        "Connection",
        "Upgrade",
        "Sec-WebSocket-Protocol",
        "Sec-WebSocket-Key",
        "Sec-WebSocket-Version",
        "X-Stream-Protocol-Version",
        "Impersonate-User",
        "Impersonate-Group",
        "Impersonate-Uid",
        "Impersonate-Extra-a",
        "Impersonate-Extra-%ff",
        "If-Match",
        "If-None-Match",
        "Range",
        "User-Agent",
        "X-Remote-User",
        "X-Forwarded-For",
        "Host",
        "Cookie",
        "TE",
        "Trailer",
    ];
    let long = "a".repeat(40_000);
    let clauses = "application/json;as=Table;g=x;v=y;q=NaN,".repeat(1_200);
    let values: [&[u8]; 16] = [
        b"",
        b"\xff\xfe",
        b"*/*;q=NaN",
        b"application/json;q=1e999",
        b"18446744073709551616",
        b"-1",
        b"0, 0",
        b"chunked, chunked",
        b"websocket",
        b"SPDY/3.1",
        b"v5.channel.k8s.io",
        b"base64url.bearer.authorization.k8s.io.\xff",
        b"Bearer ",
        b"system:masters",
        long.as_bytes(),
        clauses.as_bytes(),
    ];
    let targets = [
        "GET /api/v1/namespaces/default/pods",
        "POST /api/v1/namespaces/default/configmaps",
        "GET /api/v1/namespaces/default/pods/web/exec?command=a&stdout=1",
        "GET /api/v1/nodes/n1/proxy/x",
    ];
    for target in targets {
        for name in names {
            for value in values {
                for count in [1, 90] {
                    if count > 1 && value.len() > 700 {
                        continue;
                    }
                    let mut request =
                        format!("{target} HTTP/1.1\r\nHost: localhost\r\n").into_bytes();
                    for _ in 0..count {
                        request.extend_from_slice(name.as_bytes());
                        request.extend_from_slice(b": ");
                        request.extend_from_slice(value);
                        request.extend_from_slice(b"\r\n");
                    }
                    request.extend_from_slice(b"Connection: close\r\n\r\n");
                    let mut admin = connect(&cluster, Some("kubernetes-admin"), "http/1.1").await;
                    let _ = admin.write_all(&request).await;
                    let shown = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
                    let mut text = vec![0; 4096];
                    // a body that never comes is waited for, and a refusal may be no more than a close
                    let read = timeout(Duration::from_secs(3), admin.read(&mut text)).await;
                    if let Ok(Ok(count)) = read {
                        let text = String::from_utf8_lossy(&text[..count.min(12)]).into_owned();
                        let is_of_node = target.contains("web") || target.contains("nodes");
                        assert!(
                            !text.ends_with("500") || is_of_node,
                            "{target} {name}: {shown}: {text}"
                        );
                    }
                }
            }
        }
    }
    assert!(is_served(&cluster).await);
}

// A client that never reads a long list gives back the memory of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_limit_response_memory_per_user() {
    let cluster = Cluster::start().await;
    let text = "x".repeat(1 << 20);
    for i in 0..8 {
        let map = config_map(&format!("m{i}"), json!({"a": text}));
        cluster.admin.create("/api/v1/namespaces/default/configmaps", map).await;
    }
    cluster.aggregate_roles().await;
    let reader = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "greedy"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "greedy"}]});
    cluster.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", reader).await;
    add_user(&cluster, "greedy");
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..24 {
        let mut stream = connect(&cluster, Some("greedy"), "http/1.1").await;
        let request =
            "GET /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut start = [0; 12];
        timeout(RESPONSE_TIME, stream.read_exact(&mut start)).await.expect("no answer").unwrap();
        match &start[9..] {
            b"200" => held.push(stream),
            b"429" => refused += 1,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
    assert!(refused > 0 && held.len() >= 8, "{} held, {refused} refused", held.len());
    assert!(is_served(&cluster).await);
    drop(held);
    let user = cluster.user("greedy", "").await;
    eventually("memory is given back", async || {
        user.get("/api/v1/namespaces/default/configmaps").await.0 == 200
    })
    .await;
}

// Finding 7, CVE-2019-1002100: a patch of thousands of moves kept the server's threads busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_patch_of_moves_does_not_block_others() {
    let cluster = Cluster::start().await;
    let wide: Value =
        (0..60_000).map(|i| (format!("k{i}"), json!(""))).collect::<serde_json::Map<_, _>>().into();
    let maps = "/api/v1/namespaces/default/configmaps";
    cluster.admin.create(maps, config_map("wide", wide)).await;
    let moves: Value = (0..5_000)
        .flat_map(|_| {
            [
                json!({"op": "move", "from": "/data", "path": "/binaryData"}),
                json!({"op": "move", "from": "/binaryData", "path": "/data"}),
            ]
        })
        .collect();
    let bombs = (0..4).map(|_| {
        let (admin, moves) = (cluster.admin.clone(), moves.to_string().into_bytes());
        tokio::spawn(async move {
            let path = format!("{maps}/wide");
            admin.send("PATCH", &path, "application/json-patch+json", moves).await
        })
    });
    let bombs: Vec<_> = bombs.collect();
    let started = Instant::now();
    let is_busy = || bombs.iter().any(|bomb| !bomb.is_finished());
    let mut answered = 0;
    while is_busy() {
        assert_eq!(cluster.admin.get("/api/v1/namespaces/default").await.0, 200);
        assert!(started.elapsed() < Duration::from_secs(60), "the patches go on and on");
        answered += usize::from(is_busy());
    }
    assert!(answered > 0, "no request is answered before the patches end");
    for bomb in bombs {
        let (code, status) = bomb.await.unwrap();
        assert_eq!(code, 413, "{status}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    // Finding 2: any queries at all, of known and unknown parameters.
    #[test]
    fn hostile_queries(queries in proptest::collection::vec(query(), 200)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(async {
            let cluster = Cluster::start().await;
            let mut admin = http2(&cluster, Some("kubernetes-admin")).await;
            for query in queries {
                let Ok(uri) = format!("https://localhost/api/v1/namespaces?{query}").parse::<Uri>() else { continue };
                let request = Request::get(uri).body(Full::default()).unwrap();
                let answer = timeout(RESPONSE_TIME, admin.send_request(request)).await;
                assert!(!is_failure(answer.expect("no answer").unwrap()).await, "{query}");
            }
            assert!(is_served(&cluster).await);
        });
    }
}

fn query() -> impl Strategy<Value = String> {
    let name = proptest::sample::select(
        &[
            "watch",
            "timeoutSeconds",
            "limit",
            "continue",
            "resourceVersion",
            "resourceVersionMatch",
            "sendInitialEvents",
            "allowWatchBookmarks",
            "labelSelector",
            "fieldSelector",
        ][..],
    );
    let value = prop_oneof![
        any::<u64>().prop_map(|number| number.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        (0u32..64).prop_map(|bit| (1u64 << bit).to_string()),
        "[a-z0-9%=!,().]{0,20}",
        Just("NotOlderThan".to_owned()),
        Just("true".to_owned()),
    ];
    proptest::collection::vec((name, value), 0..6).prop_map(|pairs| {
        let pairs = pairs.into_iter().map(|(name, value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join("&")
    })
}

// Rates of events, and resources that need a quota, by the configuration of the plugins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_limits_events_and_resources_by_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("admission.yaml");
    let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n\
        - name: EventRateLimit\n  configuration: {kind: Configuration, \
        apiVersion: eventratelimit.admission.k8s.io/v1alpha1, \
        limits: [{type: Namespace, qps: 1, burst: 4}]}\n\
        - name: ResourceQuota\n  configuration: {kind: ResourceQuotaConfiguration, \
        apiVersion: apiserver.config.k8s.io/v1, \
        limitedResources: [{resource: configmaps, matchContains: [configmaps]}]}\n";
    std::fs::write(&file, text).unwrap();
    let plugins = Plugins { event_rate_limit: true, ..Plugins::default() };
    let (admission, warnings) = AdmissionConfig::load(&file, plugins).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let cluster = Cluster::start_with(|config| {
        config.plugins = plugins;
        config.admission = admission;
    })
    .await;
    let events = "/api/v1/namespaces/default/events";
    // unlike `kube`, `curl` does not try again
    let send = |method: &str, path: &str, kind: &str, body: &Value| {
        let (body, kind) = (body.to_string(), format!("Content-Type: {kind}"));
        let arguments = ["-X", method, "-H", &kind, "--data-binary", &body];
        tokio::task::block_in_place(|| cluster.admin_curl(path, &arguments))
    };
    let event = |name: &str| {
        json!({"metadata": {"name": name}, "type": "Normal", "reason": "x", "message": "y",
               "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}})
    };
    let create = |name: &str| send("POST", events, "application/json", &event(name));
    assert_eq!(create("a").0, 201);
    let patch = json!({"count": 2});
    let first = format!("{events}/a");
    assert_eq!(send("PATCH", &first, "application/merge-patch+json", &patch).0, 200);
    // one more comes each second, so that a slow machine writes some more
    let mut last = (201, Value::Null);
    for i in 0..500 {
        if last.0 == 201 {
            last = create(&format!("e{i}"));
        }
    }
    let (code, status) = last;
    assert_eq!((code, status["reason"].as_str()), (429, Some("TooManyRequests")), "{status}");
    let why = "Too many requests: limit reached on type Namespace for key default";
    assert_eq!(status["message"], why);
    assert_eq!(
        send("POST", &format!("{events}?dryRun=All"), "application/json", &event("d")).0,
        201
    );
    assert_eq!(cluster.admin.call("DELETE", &first, None).await.0, 200);
    // a config map needs a quota
    let maps = "/api/v1/namespaces/default/configmaps";
    let (code, status) = cluster.admin.call("POST", maps, Some(config_map("m", json!({})))).await;
    let why = "configmaps \"m\" is forbidden: insufficient quota to consume: \
               configmaps,count/configmaps";
    assert_eq!((code, status["message"].as_str()), (403, Some(why)));
    // by both of its names
    let amounts = |count: &str| json!({"configmaps": count, "count/configmaps": count});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": amounts("1")}});
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    cluster.admin.create(quotas, quota).await;
    let counted = json!({"status": {"hard": amounts("1"), "used": amounts("0")}});
    let status = format!("{quotas}/q/status");
    assert_eq!(cluster.admin.call("PATCH", &status, Some(counted)).await.0, 200);
    cluster.admin.create(maps, config_map("m", json!({}))).await;
}
