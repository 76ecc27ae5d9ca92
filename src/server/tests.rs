#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State as Extract;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::config::{Command, from_args};

/// A node with one pod, whose container `c` logs to a file.
struct OnePod {
    pod: Mutex<Arc<Pod>>,
    log: PathBuf,
    running: watch::Sender<bool>,
    healthy: AtomicBool,
    metrics: Metrics,
}

impl Host for OnePod {
    fn pods(&self) -> Vec<Arc<Pod>> {
        vec![Arc::clone(&self.pod.lock().unwrap())]
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let pod = Arc::clone(&self.pod.lock().unwrap());
        (namespace == "ns" && name == "p").then_some(pod)
    }

    fn observed(&self, _: &str) -> Option<Arc<ObservedPod>> {
        None
    }

    fn log_path(&self, id: &str) -> Option<PathBuf> {
        assert_eq!(id, "abc");
        Some(self.log.clone())
    }

    fn until_ended(&self, _: &str, id: &str) -> BoxFuture<'static, ()> {
        assert_eq!(id, "abc");
        let mut running = self.running.subscribe();
        Box::pin(async move { drop(running.wait_for(|running| !*running).await) })
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn healthy(&self) -> Result<(), String> {
        if self.healthy.load(Ordering::SeqCst) { Ok(()) } else { Err("stuck".to_owned()) }
    }
}

/// An apiserver that knows a token and gives leave to some users.
#[derive(Default)]
struct Reviews {
    allowed: HashSet<(String, String)>,
    asked: AtomicUsize,
    broken: AtomicBool,
}

async fn review(Extract(reviews): Extract<Arc<Reviews>>, body: Bytes) -> Response {
    reviews.asked.fetch_add(1, Ordering::SeqCst);
    if reviews.broken.load(Ordering::SeqCst) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    review["status"] = if review["kind"] == "TokenReview" {
        match review["spec"]["token"].as_str() {
            Some("good") => {
                json!({"authenticated": true, "user": {"username": "robot", "groups": ["robots"]}})
            }
            _ => json!({"authenticated": false}),
        }
    } else {
        let attributes = &review["spec"]["resourceAttributes"];
        assert_eq!((&attributes["resource"], &attributes["name"]), (&json!("nodes"), &json!("n1")));
        let user = review["spec"]["user"].as_str().unwrap().to_owned();
        let leave = format!(
            "{} {}",
            attributes["verb"].as_str().unwrap(),
            attributes["subresource"].as_str().unwrap()
        );
        json!({"allowed": reviews.allowed.contains(&(user, leave))})
    };
    review.to_string().into_response()
}

fn no_runtime() -> Runtime {
    Runtime::new(longshore_cri::Options::new("unix:///nonexistent/runtime.sock")).unwrap()
}

struct Pki {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test CA");
        let key = KeyPair::generate().unwrap();
        fs::write(directory.path().join("ca.crt"), params.self_signed(&key).unwrap().pem())
            .unwrap();
        Self { directory, issuer: Issuer::new(params, key) }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// A certificate with its key, as files of that name.
    fn issue(&self, file: &str, name: &str, usage: ExtendedUse) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "team");
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{file}.crt")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

use rcgen::ExtendedKeyUsagePurpose as ExtendedUse;

struct Setup {
    pki: Pki,
    host: Arc<OnePod>,
    reviews: Arc<Reviews>,
    addresses: Vec<SocketAddr>,
}

fn config(pki: &Pki, more: &[&str]) -> Box<Config> {
    let base = [
        "kubelet",
        "--fail-cgroupv1=false",
        "--hostname-override=n1",
        "--address=127.0.0.1",
        "--port=1",
        "--read-only-port=0",
        "--healthz-port=0",
        &format!("--cert-dir={}", pki.path("own").display()),
        &format!("--client-ca-file={}", pki.path("ca.crt").display()),
    ];
    match from_args(base.iter().chain(more).map(|arg| (*arg).to_owned())) {
        Ok(Command::Kubelet(config)) => config,
        other => panic!("{other:?}"),
    }
}

async fn setup(more: &[&str], allowed: &[(&str, &str)]) -> Setup {
    let pki = Pki::new();
    pki.issue("admin", "admin", ExtendedUse::ClientAuth);
    let mut config = config(&pki, more);
    // the test's own ports are whatever is free
    config.kubelet.port = 0;
    let reviews = Arc::new(Reviews {
        allowed: allowed
            .iter()
            .map(|(user, leave)| ((*user).to_owned(), (*leave).to_owned()))
            .collect(),
        ..Reviews::default()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let apiserver = listener.local_addr().unwrap();
    let router = Router::new().fallback(review).with_state(Arc::clone(&reviews));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut client = kube::Config::new(format!("http://{apiserver}").parse().unwrap());
    client.default_retry = false;
    let client = Client::try_from(client).unwrap();
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [{"name": "c"}, {"name": "slow"}]},
        "status": {"containerStatuses": [{"name": "c", "state": {"running": {}}, "containerID": "containerd://abc",
                    "image": "", "imageID": "", "ready": true, "restartCount": 0}]},
    });
    let host = Arc::new(OnePod {
        pod: Mutex::new(Arc::new(serde_json::from_value(pod).unwrap())),
        log: pki.path("0.log"),
        running: watch::Sender::new(true),
        healthy: AtomicBool::new(true),
        metrics: Metrics::new("node"),
    });
    fs::write(&host.log, "2024-01-01T00:00:00Z stdout F one\n2024-01-01T00:00:01Z stderr F two\n")
        .unwrap();
    let server = Server::bind(
        &config,
        &["127.0.0.1".parse().unwrap()],
        Some(&client),
        host.clone(),
        no_runtime(),
    )
    .await
    .unwrap();
    let addresses = server.addresses();
    tokio::spawn(server.run());
    Setup { pki, host, reviews, addresses }
}

impl Setup {
    async fn connect(&self, certificate: Option<&str>) -> TlsStream<TcpStream> {
        // the server's own certificate is its own root
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.pki.path("own/kubelet.crt")).unwrap())
            .unwrap();
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
        let config = match certificate {
            Some(name) => {
                let chain =
                    CertificateDer::from_pem_file(self.pki.path(&format!("{name}.crt"))).unwrap();
                let key =
                    PrivateKeyDer::from_pem_file(self.pki.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![chain], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        let socket = TcpStream::connect(self.addresses[0]).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
    }

    /// The status and the body of the answer to a GET.
    async fn get(
        &self,
        certificate: Option<&str>,
        token: Option<&str>,
        path: &str,
    ) -> (u16, String) {
        exchange(self.connect(certificate).await, token, "GET", path).await
    }

    fn log(&self) -> fs::File {
        fs::OpenOptions::new().append(true).open(&self.host.log).unwrap()
    }
}

async fn exchange<S>(mut stream: S, token: Option<&str>, method: &str, path: &str) -> (u16, String)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    send(&mut stream, token, method, path).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap_or("0").parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status, if chunked { unchunk(body) } else { body.to_owned() })
}

async fn send<S: tokio::io::AsyncWrite + Unpin>(
    stream: &mut S,
    token: Option<&str>,
    method: &str,
    path: &str,
) {
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n{token}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

fn unchunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    text
}

const WEBHOOK: [&str; 3] =
    ["--authorization-mode=Webhook", "--authentication-token-webhook", "--anonymous-auth=false"];
const LOGS: &str = "/containerLogs/ns/p/c";

#[tokio::test]
async fn only_those_with_leave_are_answered() {
    let setup = setup(&WEBHOOK, &[("admin", "get proxy"), ("robot", "get pods")]).await;
    setup.pki.issue("server", "admin", ExtendedUse::ServerAuth);
    let stranger = Pki::new();
    stranger.issue("admin", "admin", ExtendedUse::ClientAuth);
    for file in ["stranger.crt", "stranger.key"] {
        fs::copy(stranger.path(&file.replace("stranger", "admin")), setup.pki.path(file)).unwrap();
    }
    for (certificate, token, path, expected) in [
        (Some("admin"), None, "/pods", 200),
        (Some("admin"), None, LOGS, 200),
        (Some("admin"), None, "/metrics", 403),
        (Some("admin"), None, "/nothing", 404),
        (Some("admin"), None, "/debug/pprof/", 404),
        (None, None, "/pods", 401),
        (None, None, "/nothing", 401),
        (None, Some("good"), "/pods", 200),
        (None, Some("good"), LOGS, 403),
        (None, Some("bad"), "/pods", 401),
        // a certificate of another CA, or for another use, is nobody's; a token beside it counts
        (Some("stranger"), None, "/pods", 401),
        (Some("server"), None, "/pods", 401),
        (Some("stranger"), Some("good"), "/pods", 200),
    ] {
        let (status, body) = setup.get(certificate, token, path).await;
        assert_eq!(status, expected, "{certificate:?} {token:?} {path}: {body}");
        if status == 403 && certificate.is_some() {
            assert_eq!(
                body,
                "Forbidden (user=admin, verb=get, resource=nodes, subresource(s)=[metrics])\n"
            );
        }
    }
    let (status, _) = exchange(setup.connect(Some("admin")).await, None, "POST", "/pods").await;
    assert_eq!(status, 403, "a POST takes other leave than a GET");
}

#[tokio::test]
async fn who_may_only_read_runs_nothing() {
    const RULES: [(&str, &str); 2] = [("admin", "get proxy"), ("robot", "create proxy")];
    let paths = ["/exec/ns/p/c?output=1", "/attach/ns/p/c?output=1", "/portForward/ns/p"];
    let guarded = setup(&WEBHOOK, &RULES).await;
    for path in paths {
        let (status, body) = guarded.get(Some("admin"), None, path).await;
        assert_eq!(status, 403, "{path}: {body}");
        assert!(body.contains("verb=create"), "{body}");
        assert_eq!(guarded.get(None, Some("good"), path).await.0, 500, "{path}");
    }
    let gate = "--feature-gates=AuthorizePodWebsocketUpgradeCreatePermission=false";
    let args: Vec<&str> = WEBHOOK.into_iter().chain([gate]).collect();
    let open = setup(&args, &RULES).await;
    for path in paths {
        assert_eq!(open.get(Some("admin"), None, path).await.0, 500, "{path}");
        assert_eq!(open.get(None, Some("good"), path).await.0, 403, "{path}");
    }
}

#[tokio::test]
async fn what_cannot_be_joined_is_named() {
    let setup = setup(&["--authorization-mode=AlwaysAllow"], &[]).await;
    let no_stream = "you must specify at least 1 of stdin, stdout, stderr";
    for (method, path, expected) in [
        ("GET", "/exec/ns/p/c", (400, no_stream)),
        ("POST", "/attach/ns/p/c?tty=1&error=1", (400, no_stream)),
        ("POST", "/exec/ns/other/c?output=1", (404, "pod does not exist")),
        ("GET", "/exec/ns/p/c?output=1", (500, "container not found (\"c\")")),
        ("GET", "/exec/ns/p/some-uid/c?output=1", (500, "container not found (\"c\")")),
        ("GET", "/attach/ns/p/c?output=1", (500, "container c not found in pod p_ns")),
        ("POST", "/run/ns/p/c?cmd=ls", (500, "container not found (\"c\")")),
        ("GET", "/run/ns/p/c?cmd=ls", (405, "")),
        ("GET", "/portForward/ns/other", (404, "pod does not exist")),
        ("GET", "/portForward/ns/p/other-uid", (404, "pod not found")),
        ("POST", "/portForward/ns/p", (500, "pod not found (\"p_ns\")")),
    ] {
        let (status, body) = exchange(setup.connect(Some("admin")).await, None, method, path).await;
        assert_eq!((status, body.as_str()), expected, "{method} {path}");
    }
}

#[tokio::test]
async fn the_apiservers_word_is_remembered_and_needed() {
    let setup = setup(&WEBHOOK, &[("robot", "get pods")]).await;
    for _ in 0..3 {
        assert_eq!(setup.get(None, Some("good"), "/pods").await.0, 200);
    }
    assert_eq!(setup.reviews.asked.load(Ordering::SeqCst), 2, "one token and one leave");
    setup.reviews.broken.store(true, Ordering::SeqCst);
    assert_eq!(setup.get(None, Some("good"), "/pods").await.0, 200);
    assert_eq!(setup.get(None, Some("other"), "/pods").await.0, 401);
    let (status, body) = setup.get(Some("admin"), None, "/pods").await;
    assert_eq!(
        (status, body.starts_with("Authorization error (user=admin")),
        (500, true),
        "{body}"
    );
}

#[tokio::test]
async fn without_rules_everybody_is_answered() {
    let setup = setup(&["--anonymous-auth=true", "--authorization-mode=AlwaysAllow"], &[]).await;
    assert_eq!(setup.get(None, None, "/pods").await.0, 200);
    let mode = fs::metadata(setup.pki.path("own/kubelet.key")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
}

#[tokio::test]
async fn logs_are_sent_or_the_reason_told() {
    let setup = setup(&["--authorization-mode=AlwaysAllow"], &[]).await;
    for (path, expected) in [
        (LOGS.to_owned(), (200, "one\ntwo\n")),
        (format!("{LOGS}?tailLines=1"), (200, "two\n")),
        (
            format!("{LOGS}?stream=Stdout"),
            (
                400,
                "unable to return the given log stream: \"Stdout\". Please enable PodLogsQuerySplitStreams feature gate in kubelet",
            ),
        ),
        (format!("{LOGS}?stream=All"), (200, "one\ntwo\n")),
        (format!("{LOGS}?timestamps=true&limitBytes=10"), (200, "2024-01-01")),
        (format!("{LOGS}?tailLines=x"), (400, r#"{"message": "Unable to decode query."}"#)),
        (format!("{LOGS}?tailLines=-1"), (422, r#"{"message": "Invalid request."}"#)),
        (
            format!("{LOGS}?previous=true"),
            (400, "previous terminated container \"c\" in pod \"p\" not found"),
        ),
        ("/containerLogs/ns/other/c".to_owned(), (404, "pod \"other\" does not exist")),
        (
            "/containerLogs/ns/p/other".to_owned(),
            (404, "container \"other\" not found in pod \"p\""),
        ),
        (
            "/containerLogs/ns/p/slow".to_owned(),
            (400, "container \"slow\" in pod \"p\" is not available"),
        ),
    ] {
        let (status, body) = setup.get(Some("admin"), None, &path).await;
        assert_eq!((status, body.as_str()), expected, "{path}");
    }
    fs::remove_file(&setup.host.log).unwrap();
    let (status, body) = setup.get(Some("admin"), None, LOGS).await;
    let log = setup.host.log.display();
    let expected = format!(
        "failed to try resolving symlinks in path \"{log}\": lstat {log}: no such file or directory"
    );
    assert_eq!((status, body), (400, expected));

    let gate = "--feature-gates=PodLogsQuerySplitStreams=true";
    let split = self::setup(&["--authorization-mode=AlwaysAllow", gate], &[]).await;
    let path = format!("{LOGS}?stream=Stdout");
    assert_eq!(split.get(Some("admin"), None, &path).await, (200, "one\n".to_owned()));
}

#[tokio::test]
async fn a_followed_log_goes_on_over_rotation_to_the_containers_end() {
    use std::io::Write;
    let setup = setup(&["--authorization-mode=AlwaysAllow"], &[]).await;
    let mut stream = setup.connect(Some("admin")).await;
    send(&mut stream, None, "GET", &format!("{LOGS}?follow=true&tailLines=1")).await;
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    let mut expect = async |stream: &mut TlsStream<TcpStream>, text: &str| {
        while !seen.contains(text) {
            let count = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut buffer))
                .await
                .unwrap()
                .unwrap();
            assert!(count > 0, "{text} never came: {seen}");
            seen.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
    };
    expect(&mut stream, "two\n").await;
    writeln!(setup.log(), "2024-01-01T00:00:02Z stdout F three").unwrap();
    expect(&mut stream, "three\n").await;
    let log = &setup.host.log;
    fs::rename(log, log.with_extension("old")).unwrap();
    fs::write(log, "2024-01-01T00:00:03Z stdout F four\n").unwrap();
    expect(&mut stream, "four\n").await;
    writeln!(setup.log(), "2024-01-01T00:00:04Z stdout F five").unwrap();
    setup.host.running.send_replace(false);
    expect(&mut stream, "five\n").await;
    expect(&mut stream, "\r\n0\r\n\r\n").await;
    assert!(!seen.contains("one"));
}

#[tokio::test]
async fn the_open_ports_tell_little() {
    let setup =
        setup(&["--authorization-mode=AlwaysAllow", "--healthz-bind-address=127.0.0.1"], &[]).await;
    let mut config = config(&setup.pki, &[]);
    config.kubelet.enable_server = false;
    config.kubelet.healthz_port = free_port().await;
    let server = Server::bind(&config, &[], None, setup.host.clone(), no_runtime()).await.unwrap();
    let address = server.addresses()[0];
    tokio::spawn(server.run());
    let get = async |path: &str| {
        exchange(TcpStream::connect(address).await.unwrap(), None, "GET", path).await
    };
    assert_eq!(get("/healthz").await, (200, "ok".to_owned()));
    assert_eq!(get("/healthz/syncloop").await.0, 200);
    assert_eq!(get("/healthz?verbose").await.1.lines().last(), Some("healthz check passed"));
    for path in ["/debug/pprof/", "/pods", "/metrics", "/", "/healthz/none"] {
        assert_eq!(get(path).await.0, 404, "{path}");
    }
    setup.host.healthy.store(false, Ordering::SeqCst);
    let (status, body) = get("/healthz").await;
    assert!(status == 500 && body.contains("[-]syncloop failed"), "{body}");

    // a head without end is cut off
    let mut stream = TcpStream::connect(address).await.unwrap();
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(200_000));
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = [0; 64];
    let count = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut answer))
        .await
        .unwrap()
        .unwrap_or(0);
    let answer = String::from_utf8_lossy(&answer[..count]);
    assert!(answer.is_empty() || answer.contains(" 414 ") || answer.contains(" 431 "), "{answer}");
}

#[tokio::test]
async fn the_read_only_port_gives_pods_alone() {
    let setup = setup(&["--authorization-mode=AlwaysAllow"], &[]).await;
    let mut config = config(&setup.pki, &["--authorization-mode=AlwaysAllow"]);
    config.kubelet.port = 0;
    config.kubelet.read_only_port = free_port().await;
    let server = Server::bind(&config, &[], None, setup.host.clone(), no_runtime()).await.unwrap();
    let address = server.addresses()[1];
    tokio::spawn(server.run());
    let ask = async |method: &str, path: &str| {
        exchange(TcpStream::connect(address).await.unwrap(), None, method, path).await
    };
    let (status, body) = ask("GET", "/pods").await;
    let list: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &list["kind"], &list["items"][0]["metadata"]["name"]),
        (200, &json!("PodList"), &json!("p"))
    );
    assert_eq!(ask("GET", LOGS).await.0, 404);
    assert_eq!(ask("POST", "/checkpoint/ns/p/c").await.0, 404);
    assert_eq!(ask("POST", "/pods").await.0, 405);
}

#[tokio::test]
async fn disabled_handlers_say_so() {
    let setup =
        setup(&["--authorization-mode=AlwaysAllow", "--enable-debugging-handlers=false"], &[])
            .await;
    for path in [LOGS, "/exec/ns/p/c", "/portForward/ns/p", "/run/ns/p/uid/c"] {
        let answer = setup.get(Some("admin"), None, path).await;
        assert_eq!(answer, (405, "Debug endpoints are disabled.".to_owned()), "{path}");
    }
}

async fn free_port() -> i32 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port().into()
}

#[tokio::test]
async fn what_cannot_be_opened_is_named() {
    let setup = setup(&["--authorization-mode=AlwaysAllow"], &[]).await;
    let bind = async |config: &Config| {
        let outcome = Server::bind(config, &[], None, setup.host.clone(), no_runtime()).await;
        outcome.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let mut taken = config(&setup.pki, &["--authorization-mode=AlwaysAllow"]);
    taken.kubelet.port = setup.addresses[0].port().into();
    let error = bind(&taken).await;
    assert!(error.starts_with(&format!("cannot listen on {}", setup.addresses[0])), "{error}");

    let webhook = config(&setup.pki, &["--authorization-mode=Webhook"]);
    assert_eq!(bind(&webhook).await, "authorization.mode Webhook needs a kubeconfig");

    let mut bad = config(&setup.pki, &["--authorization-mode=AlwaysAllow"]);
    let file = setup.pki.path("empty.crt");
    fs::write(&file, "").unwrap();
    bad.kubelet.authentication.x509.client_ca_file = file.display().to_string();
    assert!(bind(&bad).await.contains("empty.crt"));
    bad.kubelet.authentication.x509.client_ca_file = String::new();
    bad.kubelet.tls_cert_file = "/nonexistent/node.crt".into();
    assert!(bind(&bad).await.contains("/nonexistent/node.crt"));
    let own = Path::new("/proc/nothing-can-be-made-here");
    bad.kubelet.tls_cert_file = String::new();
    bad.cert_dir = own.to_owned();
    assert!(bind(&bad).await.contains("/proc/nothing-can-be-made-here"));
}
