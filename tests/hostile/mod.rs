//! Hostile clients at the ports of a real node: they get errors, the daemon does not grow, and
//! authorized clients are served meanwhile.

use crate::common;
mod target;

use std::time::{Duration, Instant};

use common::{Cluster, FOREVER, script};
use longshore_testkit::{Host, NodeOptions};
use serde_json::{Value, json};
use target::Target;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What must never be logged.
const PLANTED: &str = "pl4nted-s3cret";
/// Requests for paths that there are not, on each of the two ports.
const ODD: usize = 50_000;
/// How much larger a daemon may be after it was flooded.
const GROWTH_KIB: u64 = 24 << 10;
/// The daemon's bound of connections that have shown nothing, and some of its own.
const MOST_FILES: usize = 256 + 200;

/// Sends a request for each path on one connection, many before the first is answered, and counts
/// the answers, all of which must be 404.
async fn flood(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    paths: impl Iterator<Item = String>,
) -> usize {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut lines = BufReader::new(reader).lines();
    let requests: Vec<String> =
        paths.map(|path| format!("GET {path} HTTP/1.1\r\nHost: n\r\n\r\n")).collect();
    let mut answered = 0;
    for batch in requests.chunks(64) {
        writer.write_all(batch.concat().as_bytes()).await.unwrap();
        writer.flush().await.unwrap();
        let mut open = batch.len();
        while open > 0 {
            let line = lines.next_line().await.unwrap().expect("the connection stays open");
            if line.contains("HTTP/1.1 ") {
                assert!(line.contains("HTTP/1.1 404 "), "{line}");
                open -= 1;
            }
        }
        answered += batch.len();
    }
    answered
}

/// CVE-2020-8551, and CVE-2020-8552 for the node's part: each odd request made a series of metrics,
/// and so 100,000 of them took the daemon's memory.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_floods_do_not_disturb_the_node() {
    let mut target = Target::start().await;
    target.serves().await;
    let files = target.open_files();
    let before = target.memory_kib();
    let series = target.get(true, "/metrics").await.lines().count();
    let odd =
        |n: usize| format!("/x{n}/{}?label{n}={}&token={PLANTED}", "y".repeat(n % 400), n * 7);

    // distinct paths and labels, with leave and without any
    let admin = target.connect(&target.tls(true, "http/1.1")).await;
    let anonymous = TcpStream::connect((target.node, 10255)).await.unwrap();
    let (known, unknown) =
        tokio::join!(flood(admin, (0..ODD).map(odd)), flood(anonymous, (0..ODD).map(odd)));
    assert_eq!((known, unknown), (ODD, ODD));
    for n in 0..100 {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer {PLANTED}-{n}\r\n\r\n",
            odd(n)
        );
        let answer = target.send(false, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    }
    http2(&target).await;
    target.serves().await;
    target.until_few_files(files + 8).await;
    let more = target.get(true, "/metrics").await.lines().count().saturating_sub(series);
    // each method, kind of path and port is counted once, in some lines of a histogram
    assert!(more < 400, "{series} lines of metrics, and {more} more after the flood");
    let after = target.memory_kib();
    assert!(after < before + GROWTH_KIB, "{before} KiB before, {after} KiB after");

    let log = target.cluster.node.daemon().log();
    assert!(log.contains("request refused"), "no log line about the attack");
    assert!(
        !log.contains(PLANTED) && !log.contains("panicked"),
        "{}",
        target.cluster.node.daemon().log_tail(30)
    );
}

/// Streams that are opened and taken back at once, which cost the sender nothing.
async fn http2(target: &Target) {
    let tls = target.tls(false, "h2");
    for _ in 0..3 {
        let mut stream = target.connect(&tls).await;
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let mut frame = |kind: u8, flags: u8, id: u32, body: &[u8]| {
            let length = u32::try_from(body.len()).unwrap().to_be_bytes();
            bytes.extend_from_slice(&length[1..]);
            bytes.extend_from_slice(&[kind, flags]);
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.extend_from_slice(body);
        };
        frame(4, 0, 0, &[]);
        for n in 0..20_000 {
            let id = 2 * n + 1;
            // GET https://a/
            frame(1, 0x5, id, &[0x82, 0x87, 0x84, 0x41, 1, b'a']);
            frame(3, 0, id, &8u32.to_be_bytes());
        }
        let (mut reader, mut writer) = tokio::io::split(&mut stream);
        let flood = async { writer.write_all(&bytes).await };
        let mut received = Vec::new();
        let ended = timeout(Duration::from_secs(30), async {
            let (_, ended) = tokio::join!(flood, reader.read_to_end(&mut received));
            ended
        })
        .await;
        assert!(ended.is_ok(), "the flood is put up with");
        target.serves().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_malformed_requests_get_error_statuses() {
    let mut target = Target::start().await;
    let (long, many) = ("x".repeat(200_000), "A: b\r\n".repeat(5000));
    let head = "Host: n\r\nConnection: close\r\n";
    for (bytes, expected) in [
        ("GET\r\n\r\n".to_owned(), &["400"][..]),
        ("\0\u{1}\u{2}\u{3}\r\n\r\n".to_owned(), &["400"]),
        (format!("GET /{long} HTTP/1.1\r\n{head}\r\n"), &["414", "431"]),
        (format!("GET / HTTP/1.1\r\n{head}A: {long}\r\n\r\n"), &["431"]),
        (format!("GET / HTTP/1.1\r\n{head}{many}\r\n"), &["431"]),
        (format!("GET / HTTP/1.1\r\n{head}Content-Length: x\r\n\r\n"), &["400"]),
        (
            format!("GET / HTTP/1.1\r\n{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            &["400"],
        ),
        (format!("GET / HTTP/1.1\r\n{head}A b: c\r\n\r\n"), &["400"]),
        (format!("GET / HTTP/9.9\r\n{head}\r\n"), &["400", "505"]),
        (format!("BREW / HTTP/1.1\r\n{head}\r\n"), &["404", "405"]),
        (format!("GET /pods?%zz=%%% HTTP/1.1\r\n{head}\r\n"), &["200", "400"]),
        (format!("GET /containerLogs/a/b/%ff HTTP/1.1\r\n{head}\r\n"), &["400"]),
        (format!("GET /logs/%2e%2e/%2e%2e/etc/shadow HTTP/1.1\r\n{head}\r\n"), &["400"]),
        (format!("POST /pods HTTP/1.1\r\n{head}Content-Length: 99999999999\r\n\r\n"), &["405"]),
        (format!("POST /exec/a/b/c?command=x&output=1 HTTP/1.1\r\n{head}\r\n"), &["404"]),
        (format!("GET /exec/a/b/c HTTP/1.1\r\n{head}Upgrade: websocket\r\n\r\n"), &["400"]),
        ("GET /pods HTTP/1.0\r\n\r\n".to_owned(), &["200"]),
    ] {
        let answer = target.send(true, bytes.as_bytes()).await;
        let code = answer.split(' ').nth(1).unwrap_or("none");
        let start: String = bytes.chars().take(60).collect();
        assert!(expected.contains(&code), "{start:?}: {answer}");
    }
    // no TLS at all, and half of it
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 1, 2, 3]] {
        let mut socket = TcpStream::connect((target.node, 10250)).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let mut received = Vec::new();
        let reading = socket.read_to_end(&mut received);
        let _ = timeout(Duration::from_secs(30), reading).await.expect("the connection stays open");
    }
    target.serves().await;
    let log = target.cluster.node.daemon().log();
    assert!(!log.contains("panicked"), "{}", target.cluster.node.daemon().log_tail(30));
    assert!(log.contains("TLS handshake failed"), "no log line about the attack");
}

/// CVE-2026-35469: a client of a command sends 2^32-1 settings, or headers, in one frame of SPDY, and
/// the runtime ends for want of memory.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_frames_of_a_command_do_not_end_the_runtime() {
    let target = Target::start().await;
    target.cluster.create("web", script(FOREVER)).await;
    target.cluster.until_ready("web").await;
    let settings = b"\x80\x03\0\x04\0\0\0\x04\xff\xff\xff\xff";
    // SYN_STREAM, a zlib stream with one stored block
    let headers = b"\x80\x03\0\x01\0\0\0\x1a\0\0\0\x01\0\0\0\0\0\0\x78\x01\
        \0\x04\0\xfb\xff\xff\xff\xff\xff\0\0\0\xff\xff";
    for frame in [&settings[..], headers] {
        let mut bytes = b"POST /exec/default/web/c?command=cat&input=1&output=1 HTTP/1.1\r\n\
            Host: n\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
            X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
            .to_vec();
        bytes.extend_from_slice(frame);
        let answer = target.send(true, &bytes).await;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    }
    let kubectl = target.cluster.apiserver.kubectl();
    assert_eq!(kubectl.run(["exec", "web", "--", "echo", "done"]).unwrap(), "done\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_idle_connections_do_not_block_others() {
    let target = Target::start().await;
    target.serves().await;
    let files = target.open_files();
    let tls = target.tls(false, "http/1.1");
    // far more than the limit: silent ones, and some that never end their request
    let mut crowd = Vec::new();
    for _ in 0..750 {
        crowd.push(TcpStream::connect((target.node, 10250)).await.unwrap());
        if crowd.len() % 250 == 0 {
            target.serves().await;
        }
    }
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = target.connect(&tls).await;
        stream.write_all(b"GET /pods HTTP/1.1\r\nHo").await.unwrap();
        slow.push(stream);
    }
    assert!(target.open_files() <= files.max(MOST_FILES), "{} open files", target.open_files());
    target.serves().await;

    // a byte now and then does not keep a connection
    let began = Instant::now();
    let mut stream = slow.pop().unwrap();
    let dribble = async {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if stream.write_all(b"s").await.is_err() || stream.flush().await.is_err() {
                break;
            }
        }
    };
    timeout(Duration::from_secs(60), dribble).await.expect("half a head is put up with");
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());

    // half-closed: who says no more gets no more
    let mut stream = target.connect(&target.tls(true, "http/1.1")).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = Vec::new();
    let reading = stream.read_to_end(&mut received);
    let _ = timeout(Duration::from_secs(30), reading).await.expect("the connection stays open");
    drop((crowd, slow));
    target.until_few_files(files + 8).await;
    target.serves().await;
}

/// CVE-2020-8564, CVE-2019-11250, CVE-2020-8565: logins of registries, bearer tokens and data of
/// secrets in a log of maximum verbosity.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_not_logged_at_any_verbosity() {
    let cluster = loudest().await;
    let kubectl = cluster.apiserver.kubectl();
    let login = json!({"auths": {"registry.invalid": {"username": "u", "password": PLANTED}}});
    for secret in [
        json!({"metadata": {"name": "values"}, "stringData": {"key": PLANTED, "file": PLANTED}}),
        json!({
            "metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": login.to_string()},
        }),
    ] {
        let mut secret: Value = secret;
        secret["apiVersion"] = json!("v1");
        secret["kind"] = json!("Secret");
        // the apiserver's own defaulting of stringData is not what is tested
        let data = secret.as_object_mut().unwrap().remove("stringData").unwrap();
        secret["data"] = data
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.clone(), json!(base64(value.as_str().unwrap()))))
            .collect::<serde_json::Map<_, _>>()
            .into();
        kubectl.apply(&secret.to_string()).unwrap();
    }
    let mut spec = script(FOREVER);
    spec["containers"][0]["env"] =
        json!([{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "values", "key": "key"}}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    spec["volumes"] = json!([{"name": "v", "secret": {"secretName": "values"}}]);
    cluster.create("web", spec.clone()).await;
    cluster.until_ready("web").await;
    let mut pulls = script(FOREVER);
    pulls["containers"][0]["image"] = json!("registry.invalid/private/image:1");
    pulls["containers"][0]["imagePullPolicy"] = json!("Always");
    pulls["imagePullSecrets"] = json!([{"name": "login"}]);
    cluster.create("pulls", pulls).await;
    cluster
        .until("pulls", "fails to be pulled", |pod| {
            let text = serde_json::to_string(&pod.status).unwrap();
            let failed = ["ErrImagePull", "ImagePullBackOff"].iter().any(|why| text.contains(why));
            failed.then_some(()).ok_or(text)
        })
        .await;
    let shown = kubectl
        .run(["exec", "web", "--", "sh", "-c", &format!("cat /v/file; : {PLANTED}")])
        .unwrap();
    assert_eq!(shown, PLANTED);

    let mut cluster = cluster;
    let node = cluster.host.node_ip();
    let pid = cluster.node.daemon().pid();
    let target = Target { cluster, node, pid };
    for request in [
        format!("GET /pods HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer {PLANTED}\r\n\r\n"),
        format!("GET /pods?token={PLANTED} HTTP/1.1\r\nHost: n\r\nCookie: a={PLANTED}\r\n\r\n"),
    ] {
        assert!(target.send(false, request.as_bytes()).await.starts_with("HTTP/1.1 401 "));
    }
    let run = format!("/run/default/web/c?cmd=echo+{PLANTED}");
    let run = format!("POST {run} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n");
    assert!(target.send(true, run.as_bytes()).await.contains(PLANTED));
    assert!(!target.get(true, "/configz").await.contains(PLANTED));

    let mut cluster = target.cluster;
    for daemon in [cluster.node.daemon(), cluster.apiserver.daemon()] {
        let log = daemon.log();
        assert!(!log.is_empty());
        for secret in [PLANTED.to_owned(), base64(PLANTED), base64(&format!("u:{PLANTED}"))] {
            let line = log.lines().find(|line| line.contains(&secret));
            assert_eq!(line, None, "{} logs a secret", daemon.name());
        }
    }
    let log = cluster.node.daemon().log();
    assert!(
        log.contains("path=\"/exec/default/web/c\"") || log.contains("/exec/default/web/c"),
        "an exec is logged"
    );
}

/// A node that logs all it can.
async fn loudest() -> Cluster {
    let host = Host::start().expect("a host");
    let apiserver = longshore_testkit::Apiserver::start(&host).expect("an apiserver");
    let client = common::client(apiserver.admin_kubeconfig()).await;
    let options = NodeOptions { args: vec!["-v=10".to_owned()], ..NodeOptions::default() };
    let node = longshore_testkit::Node::start(
        &host,
        &apiserver.node_kubeconfig(),
        &apiserver.client_ca(),
        options,
    )
    .expect("a node");
    Cluster { node, controllers: None, apiserver, client, host }
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}
