//! Responses of the endpoints, also to malformed requests.

use proptest::prelude::*;

use super::*;

const OPEN: [&str; 1] = ["--authorization-mode=AlwaysAllow"];

#[tokio::test]
async fn server_endpoints_about_the_daemon() {
    let header = "--manifest-url-header=Authorization:planted";
    let setup = setup(&["--authorization-mode=AlwaysAllow", header], &[]).await;
    let get = async |path: &str| setup.get(Some("admin"), None, path).await;
    let (status, configz) = get("/configz").await;
    let configz: Value = serde_json::from_str(&configz).unwrap();
    assert_eq!((status, &configz["kubeletconfig"]["address"]), (200, &json!("127.0.0.1")));
    let (status, flagz) = get("/flagz").await;
    assert_eq!(status, 200);
    assert!(flagz.starts_with("\nkubelet flagz\nWarning: "), "{flagz}");
    assert!(flagz.contains("\nhostname-override=n1\n"), "{flagz}");
    let (status, statusz) = get("/statusz").await;
    assert!(status == 200 && statusz.contains("\nBinary version: 1.36"), "{statusz}");
    let (status, running) = get("/runningpods/").await;
    let running: Value = serde_json::from_str(&running).unwrap();
    assert_eq!((status, &running["kind"], &running["items"]), (200, &json!("PodList"), &json!([])));
    for path in ["/pods/", "/runningpods", "/logs", "/logs/"] {
        assert_eq!(get(path).await.0, 200, "{path}");
    }
    assert_eq!(get("/debug/pprof/cmdline").await.0, 200);
    let (status, tasks) = get("/debug/pprof/goroutine?debug=2").await;
    assert!(status == 200 && tasks.starts_with("goroutine profile: total "), "{tasks}");
    assert_eq!(get("/debug/pprof/other").await, (404, "Unknown profile\n".to_owned()));
    for path in ["/configz", "/flagz", "/debug/pprof/cmdline"] {
        assert!(!get(path).await.1.contains("planted"), "{path}");
    }
}

#[tokio::test]
async fn healthz_checks_can_be_excluded() {
    let setup = setup(&OPEN, &[]).await;
    setup.host.healthy.store(false, Ordering::SeqCst);
    let get = async |path: &str| setup.get(Some("admin"), None, path).await;
    let failed =
        "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
    assert_eq!(get("/healthz").await, (500, failed.to_owned()));
    assert_eq!(get("/healthz?exclude=syncloop").await, (200, "ok".to_owned()));
    let (status, text) = get("/healthz?exclude=syncloop,none&verbose").await;
    assert_eq!(status, 200);
    assert!(text.contains("[+]syncloop excluded: ok\nwarn: "), "{text}");
    assert_eq!(get("/healthz/syncloop").await, (500, "internal server error: stuck\n".to_owned()));
    assert_eq!(get("/healthz/ping").await, (200, "ok".to_owned()));
    assert_eq!(get("/healthz/none").await.0, 404);
}

#[tokio::test]
async fn server_handlers_can_be_disabled() {
    let yaml = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                enableProfilingHandler: false\nenableDebugFlagsHandler: false\n\
                enableSystemLogHandler: false\nfeatureGates: {ContainerCheckpoint: false}\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), yaml).unwrap();
    let file = format!("--config={}", file.path().display());
    let setup = setup(&["--authorization-mode=AlwaysAllow", &file], &[]).await;
    for (method, path, expected) in [
        ("GET", "/debug/pprof/", (405, "profiling endpoint is disabled.\n")),
        ("GET", "/debug/pprof/cmdline", (405, "profiling endpoint is disabled.\n")),
        ("PUT", "/debug/flags/v", (405, "flags endpoint is disabled.\n")),
        ("GET", "/logs/", (405, "logs endpoint is disabled.\n")),
        ("GET", "/logs/a", (405, "logs endpoint is disabled.\n")),
        ("POST", "/checkpoint/ns/p/c", (404, "")),
    ] {
        let (status, body) = exchange(setup.connect(Some("admin")).await, None, method, path).await;
        assert_eq!((status, body.as_str()), expected, "{path}");
    }
}

#[tokio::test]
async fn checkpoint_errors() {
    let setup = setup(&OPEN, &[]).await;
    for (path, expected) in [
        ("/checkpoint/ns/other/c", (404, "pod does not exist")),
        ("/checkpoint/ns/p/other", (404, "container other does not exist")),
        ("/checkpoint/ns/p/c?timeout=x", (404, "cannot parse value of timeout parameter")),
        (
            "/checkpoint/ns/p/c?timeout=-1",
            (500, "checkpointing of ns/p/c failed (the timeout must not be negative)"),
        ),
        ("/checkpoint/ns/p/c", (500, "checkpointing of ns/p/c failed (container c not found)")),
    ] {
        let (status, body) = exchange(setup.connect(Some("admin")).await, None, "POST", path).await;
        assert_eq!((status, body.as_str()), expected, "{path}");
    }
    assert_eq!(setup.get(Some("admin"), None, "/checkpoint/ns/p/c").await.0, 405);
}

#[tokio::test]
async fn attach_and_exec_errors() {
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

/// Data after a refused upgrade may be meant for the stream, so it must not be parsed as a request.
#[tokio::test]
async fn refused_upgrade_closes_the_connection() {
    let setup = setup(&WEBHOOK, &[("admin", "get proxy"), ("admin", "get pods")]).await;
    for (certificate, path, expected) in [
        (Some("admin"), "/exec/ns/other/c?output=1", 404),
        (Some("admin"), "/exec/ns/p/c?output=1", 500),
        (Some("admin"), "/attach/ns/p/c", 400),
        (Some("admin"), "/pods", 200),
        (Some("admin"), "/metrics", 403),
        (None, "/exec/ns/p/c?output=1", 401),
    ] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n\
             GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n"
        );
        let mut stream = setup.connect(certificate).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        let _ = tokio::time::timeout(Duration::from_secs(10), reading).await.unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{path}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{path}: {answer}");
    }
}

#[tokio::test]
async fn debug_log_level_is_set() {
    let setup = setup(&OPEN, &[]).await;
    let (status, body) = setup.get(Some("admin"), None, "/debug/flags/v").await;
    assert_eq!((status, body.as_str()), (406, "unsupported http method\n"));
    let mut stream = setup.connect(Some("admin")).await;
    let body = "x".repeat(100_000);
    let head = format!(
        "PUT /debug/flags/v HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let _ = stream.write_all(body.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn unauthenticated_connections_are_closed() {
    let setup = setup(&WEBHOOK, &[("admin", "get proxy")]).await;
    let request = b"GET /pods HTTP/1.1\r\nHost: n1\r\n\r\n";
    let mut answer = Vec::new();
    let mut untrusted = setup.connect(None).await;
    untrusted.write_all(request).await.unwrap();
    let reading = untrusted.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(5), reading).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 401 "));
    // authorized connections are kept
    let mut admin = setup.connect(Some("admin")).await;
    for _ in 0..2 {
        admin.write_all(request).await.unwrap();
        let mut answer = [0; 4096];
        let count = admin.read(&mut answer).await.unwrap();
        assert!(answer[..count].starts_with(b"HTTP/1.1 200 "));
    }
}

#[tokio::test]
async fn authentication_reviews_are_deduplicated() {
    let setup = Arc::new(setup(&WEBHOOK, &[("robot", "get pods")]).await);
    // concurrent requests with the same token cause one review
    let asking = (0..20).map(|_| {
        let setup = Arc::clone(&setup);
        tokio::spawn(async move { setup.get(None, Some("good"), "/pods").await.0 })
    });
    for status in futures::future::join_all(asking).await {
        assert_eq!(status.unwrap(), 200);
    }
    let asked = setup.reviews.asked.load(Ordering::SeqCst);
    assert!((2..=34).contains(&asked), "{asked} questions for one token and one leave");
    let long = "t".repeat(50_000);
    assert_eq!(setup.get(None, Some(&long), "/pods").await.0, 401);
}

/// A path with a served prefix, so that its handler parses the rest.
fn target() -> impl Strategy<Value = String> {
    const FAMILIES: [&str; 14] = [
        "/containerLogs/ns/p/c",
        "/exec/ns/p/c",
        "/attach/ns/p/c",
        "/portForward/ns/p",
        "/run/ns/p/c",
        "/checkpoint/ns/p/c",
        "/logs/",
        "/healthz",
        "/debug/flags/v",
        "/debug/pprof/",
        "/stats/summary",
        "/flagz",
        "/statusz",
        "/",
    ];
    const NAMES: [&str; 17] = [
        "tailLines",
        "tail",
        "sinceTime",
        "sinceSeconds",
        "limitBytes",
        "stream",
        "command",
        "port",
        "timeout",
        "query",
        "pattern",
        "exclude",
        "cmd",
        "input",
        "output",
        "tty",
        "boot",
    ];
    let pair = (prop::sample::select(&NAMES[..]), "[-+%0-9A-Za-z.:/]{0,24}")
        .prop_map(|(name, value)| format!("{name}={value}"));
    let rest = "(/[a-z%0-9.]{0,6}){0,3}";
    (prop::sample::select(&FAMILIES[..]), rest, prop::collection::vec(pair, 0..5))
        .prop_map(|(family, rest, pairs)| format!("{family}{rest}?{}", pairs.join("&")))
}

/// Headers that are used by the server.
fn headers() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    const NAMES: [&str; 6] = [
        "accept",
        "range",
        "upgrade",
        "connection",
        "sec-websocket-protocol",
        "x-stream-protocol-version",
    ];
    const WORDS: [&str; 8] = [
        "websocket",
        "SPDY/3.1",
        "Upgrade",
        "v5.channel.k8s.io",
        "SPDY/3.1+portforward.k8s.io",
        "bytes=0-",
        "application/json;g=config.k8s.io;v=v1beta1;as=Flagz",
        "text/plain",
    ];
    let value = prop_oneof![
        prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
        "[ -~]{0,24}",
        "bytes=[-,0-9]{0,12}",
    ];
    prop::collection::vec((prop::sample::select(&NAMES[..]), value), 0..4)
}

#[test]
fn odd_requests_are_answered() {
    use tower::ServiceExt;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (host, config) = runtime.block_on(async {
        let setup = setup(&OPEN, &[]).await;
        let file = "--enable-debugging-handlers=true";
        let mut config = config(&setup.pki, &["--authorization-mode=AlwaysAllow", file]);
        config.kubelet.enable_system_log_query = true;
        (setup.host.clone(), config)
    });
    let host: Arc<dyn Host> = host;
    let router = runtime.block_on(async { router::control_plane(&config, &host, no_runtime()) });
    let methods = prop::sample::select(&["GET", "POST", "PUT", "HEAD"][..]);
    proptest!(|(target in target(), method in methods, headers in headers(), body in ".{0,20}")| {
        let request = axum::http::Request::builder().method(method).uri(&target);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        let Ok(request) = request.body(axum::body::Body::from(body)) else { return Ok(()) };
        let answer = runtime.block_on(router.clone().oneshot(request)).unwrap();
        prop_assert!(answer.status().as_u16() >= 200, "{}", target);
    });
}
