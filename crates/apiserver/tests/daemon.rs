//! The binary as a process: what it keeps, and how it stops.

use crate::common;

use std::process::{Child, Command, Stdio};

use common::*;
use serde_json::json;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemon_restart_keeps_objects_and_certificates() {
    let daemon = Daemon::start(&["--service-cluster-ip-range=10.7.0.0/24"]);
    let created = daemon.client().await.create(MAPS, config_map("kept", json!({"a": "b"}))).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}});
    let service =
        daemon.client().await.create("/api/v1/namespaces/default/services", service).await;
    let ca = std::fs::read(daemon.dir.path().join("pki/ca.crt")).unwrap();

    let mut daemon = daemon.restart(&["--service-cluster-ip-range=10.7.0.0/24"]);
    assert_eq!(std::fs::read(daemon.dir.path().join("pki/ca.crt")).unwrap(), ca);
    let client = daemon.client().await;
    assert_eq!(client.get(&format!("{MAPS}/kept")).await, (200, created.clone()));
    // What services hold is known again.
    let taken = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "t"},
        "spec": {"clusterIP": service["spec"]["clusterIP"], "ports": [{"port": 1}]}});
    assert_eq!(
        client.call("POST", "/api/v1/namespaces/default/services", Some(taken)).await.0,
        422
    );
    // A client that was away resumes where it was, from the store's own history.
    client.create(MAPS, config_map("new", json!({}))).await;
    let mut watch =
        client.watch(&format!("{MAPS}?watch=1&resourceVersion={}", revision(&created))).await;
    assert_eq!(watch.line().await, "ADDED new");
    client.create(MAPS, config_map("newer", json!({}))).await;
    assert_eq!(watch.line().await, "ADDED newer");
    drop(watch);
    assert_eq!(daemon.terminate(), Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemon_sigterm_ends_watches_then_exits() {
    let mut daemon = Daemon::start(&[]);
    let client = daemon.client().await;
    let mut watch = client.watch(&format!("{MAPS}?watch=1&labelSelector=none")).await;
    let stopper = tokio::task::spawn_blocking(move || (daemon.terminate(), daemon));
    assert!(watch.next().await.is_none());
    let (code, daemon) = stopper.await.unwrap();
    assert_eq!(code, Some(0), "{}", daemon.log());
}

#[test]
fn daemon_start_errors_name_the_flag() {
    let run = |flags: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_longshore-apiserver")).args(flags).output().unwrap();
        assert!(!output.status.success(), "{flags:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let (data, pki) = (
        format!("--data-dir={}", dir.path().display()),
        format!("--cert-dir={}", dir.path().join("p").display()),
    );
    let common = ["--bind-address=127.0.0.1", "--secure-port=0", &data, &pki];
    let with = |flag: &'static str| [common.as_slice(), &[flag]].concat();
    for (flags, said) in [
        (vec!["--secure-port=x"], "--secure-port"),
        (with("--node-name=Not A Name"), "--node-name"),
        (with("--client-ca-file=/nonexistent/ca.crt"), "/nonexistent/ca.crt"),
        (vec!["--etcd-servers=ftp://x", &pki], "--etcd-servers"),
        (vec!["--data-dir=/dev/null/x", &pki], "--data-dir"),
        (with("--enable-admission-plugins=EventRateLimit"), "EventRateLimit has no limits"),
        (
            [&with("--max-requests-inflight=0")[..], &["--max-mutating-requests-inflight=0"]]
                .concat(),
            "they must add up to something positive",
        ),
    ] {
        let error = run(&flags);
        assert!(error.contains(said), "{flags:?}: {error}");
    }
}

struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemon_with_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{}", port());
    let etcd = Command::new("etcd")
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--data-dir"])
        .arg(dir.path())
        .args(["--listen-peer-urls", &format!("http://127.0.0.1:{}", port())])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _etcd = Etcd(etcd.expect("etcd (Debian's etcd-server) must be in PATH"));
    eventually("etcd", || async {
        tokio::net::TcpStream::connect(url.strip_prefix("http://").unwrap()).await.is_ok()
    })
    .await;
    let mut daemon = Daemon::start(&[&format!("--etcd-servers={url}")]);
    let client = daemon.client().await;
    let created = client.create(MAPS, config_map("a", json!({}))).await;
    let mut watch =
        client.watch(&format!("{MAPS}?watch=1&resourceVersion={}", revision(&created))).await;
    client.create(MAPS, config_map("b", json!({}))).await;
    assert_eq!(watch.line().await, "ADDED b");
    let (code, list) = client.get(&format!("{MAPS}?limit=1")).await;
    assert_eq!((code, list["metadata"]["remainingItemCount"].as_u64()), (200, Some(1)));
    drop(watch);
    assert_eq!(daemon.terminate(), Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemon_log_contains_no_token() {
    let daemon = Daemon::start(&["-v=9"]);
    let client = daemon.client().await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"});
    let answer = client.create(path, request).await;
    let token = answer["status"]["token"].as_str().unwrap();
    let (claims, signature) = token.rsplit_once('.').unwrap();
    let forged = format!("{claims}.{}", signature.replace(|letter| letter != 'A', "B"));
    let config = std::fs::read_to_string(daemon.kubeconfig()).unwrap();
    let server = config.split("server: ").nth(1).unwrap().lines().next().unwrap();
    let url = format!("{}/api/v1/nodes", server.trim().trim_matches('"'));
    for (shown, code) in [
        (token, "403"),
        (&forged, "401"),
        ("planted-in-vain", "401"),
        ("abcdef.planted000000000", "401"),
    ] {
        for version in ["--http1.1", "--http2"] {
            let header = format!("authorization: Bearer {shown}");
            let output = Command::new("curl")
                .args([
                    "-sk",
                    "-o",
                    "/dev/null",
                    "-w",
                    "%{http_code}",
                    version,
                    "-H",
                    &header,
                    &url,
                ])
                .output();
            assert_eq!(String::from_utf8_lossy(&output.unwrap().stdout), code, "{shown}");
        }
    }
    let log = daemon.log();
    assert!(log.contains("authentication failed"), "{log}");
    assert!(!log.contains("planted"), "{log}");
    assert!(!log.contains(signature) && !log.contains(claims), "{log}");
}
