//! The endpoints of each port, and errors of listening.

use super::*;

async fn free_port() -> i32 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port().into()
}

/// CVE-2019-11248: the profiler was served on the open port of `/healthz`. kube-proxy's two ports
/// have the same rule in `tests/proxy`.
#[tokio::test]
async fn healthz_port_serves_only_health() {
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
    for path in [
        "/debug/pprof/",
        "/debug/pprof/goroutine?debug=2",
        "/debug/flags/v",
        "/debug/",
        "/configz",
        "/flagz",
        "/pods",
        "/metrics",
        "/",
        "/healthz/none",
    ] {
        assert_eq!(get(path).await.0, 404, "{path}");
    }
    setup.host.healthy.store(false, Ordering::SeqCst);
    let (status, body) = get("/healthz").await;
    assert!(status == 500 && body.contains("[-]syncloop failed"), "{body}");

    // too large headers are rejected
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

/// Also CVE-2025-0426: no checkpoints on the port without authentication.
#[tokio::test]
async fn read_only_port_serves_only_pods() {
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
    for path in ["/exec/ns/p/c", "/run/ns/p/c", "/logs/", "/configz", "/debug/pprof/", "/flagz"] {
        for method in ["GET", "POST"] {
            assert_eq!(ask(method, path).await.0, 404, "{method} {path}");
        }
    }
    assert_eq!(ask("POST", "/pods").await.0, 405);
}

#[tokio::test]
async fn disabled_debugging_handlers_respond_with_an_error() {
    let setup =
        setup(&["--authorization-mode=AlwaysAllow", "--enable-debugging-handlers=false"], &[])
            .await;
    for path in [
        LOGS,
        "/exec/ns/p/c",
        "/portForward/ns/p",
        "/run/ns/p/uid/c",
        "/runningpods/",
        "/logs/",
        "/logs/a",
        "/debug/pprof/heap",
    ] {
        let answer = setup.get(Some("admin"), None, path).await;
        assert_eq!(answer, (405, "Debug endpoints are disabled.\n".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn listen_errors_name_the_address() {
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
