//! Exec and attach.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::SinkExt;
use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, TerminalSize};
use longshore_streams::spdy::PIECE;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio_tungstenite::tungstenite::Message;

use super::clients::{Spdy, dial, messages, send, text, websocket};
use super::*;

const V4: &[&str] = &["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"];

/// A command to its end, for a client that opens these streams, and closes its input.
async fn spdy_exec(
    running: &Running,
    protocols: &[&str],
    command: &[&str],
    streams: Streams,
) -> clients::Received {
    let mut client = Spdy::connect(&running.exec(command, streams), protocols).await;
    let kinds = [("stdin", streams.stdin), ("stdout", streams.stdout), ("stderr", streams.stderr)];
    client.open("error").await;
    for (kind, _) in kinds.iter().filter(|(_, wanted)| *wanted) {
        let id = client.open(kind).await;
        if *kind == "stdin" {
            client.data(id, b"in", true).await;
        }
    }
    client.receive(|_| false).await
}

fn exit(code: i32) -> Value {
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

#[tokio::test]
async fn exec_has_output_and_status_in_every_version_of_spdy() {
    let running = Running::start().await;
    let not_running = "error executing command in container: container c1 is not running";
    for (command, streams, output, status, words) in [
        (&["cat"][..], IN_OUT, "in", json!({"metadata": {}, "status": "Success"}), ""),
        (
            &["exit", "7"],
            OUT,
            "",
            exit(7),
            "command terminated with non-zero exit code: exit status 7",
        ),
        (
            &["both"],
            OUT_ERR,
            "out",
            exit(3),
            "command terminated with non-zero exit code: exit status 3",
        ),
        (
            &["nothing"],
            OUT,
            "",
            json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": format!("Internal error occurred: {not_running}"),
                "details": {"causes": [{"message": not_running}]},
            }),
            &format!("Internal error occurred: {not_running}"),
        ),
    ] {
        for protocols in
            [V4, &["v3.channel.k8s.io"], &["v2.channel.k8s.io"], &["channel.k8s.io"], &[]]
        {
            let received = spdy_exec(&running, protocols, command, streams).await;
            let opened: Vec<&str> = [
                ("error", true),
                ("stderr", streams.stderr),
                ("stdin", streams.stdin),
                ("stdout", true),
            ]
            .into_iter()
            .filter(|(_, wanted)| *wanted)
            .map(|(kind, _)| kind)
            .collect();
            assert_eq!(received.ended, opened, "{protocols:?} {command:?}: all streams end");
            assert_eq!(received.replies, opened.len());
            assert_eq!(received.data["stdout"], output);
            if streams.stderr {
                assert_eq!(received.data["stderr"], "err");
            }
            let error = &received.data["error"];
            match protocols == V4 {
                true => assert_eq!(serde_json::from_str::<Value>(error).unwrap(), status),
                false => assert_eq!(error, words),
            }
        }
    }
    let received = spdy_exec(&running, V4, &["panic"], OUT).await;
    assert!(received.data["error"].contains("internal error"), "{received:?}");
    running.end().await;
}

#[tokio::test]
async fn exec_passes_much_input_and_its_end() {
    let running = Running::start().await;
    let mut client = Spdy::connect(&running.exec(&["cat"], IN_OUT), V4).await;
    client.open("error").await;
    client.open("stdout").await;
    let stdin = client.open("stdin").await;
    let much = "0123456789abcdef".repeat(10 * PIECE / 16);
    client.data(stdin, much.as_bytes(), false).await;
    let received = client.receive(|received| received.data.get("stdout") == Some(&much)).await;
    assert!(received.ended.is_empty(), "the command goes on until its input ends");
    client.data(stdin, b"", true).await;
    let received = client.receive(|_| false).await;
    assert_eq!(received.ended, ["error", "stdin", "stdout"]);
    running.end().await;
}

#[tokio::test]
async fn exec_follows_the_size_of_a_terminal() {
    let running = Running::start().await;
    let mut client = Spdy::connect(&running.exec(&["sizes", "2"], TTY), V4).await;
    for kind in ["stdin", "stdout", "error"] {
        client.open(kind).await;
    }
    let resize = client.open("resize").await;
    client.data(resize, br#"{"Width":80,"#, false).await;
    client.data(resize, br#""Height":24}"#, false).await;
    client
        .receive(|received| received.data.get("stdout").is_some_and(|text| text == "80x24\n"))
        .await;
    client.data(resize, br#"{"Width":100,"Height":30}"#, false).await;
    let received = client.receive(|_| false).await;
    assert_eq!(received.data["stdout"], "100x30\n");
    // version 2 has none
    let received = spdy_exec(&running, &["v2.channel.k8s.io"], &["cat"], TTY).await;
    assert_eq!(received.data["stdout"], "in");
    running.end().await;
}

#[tokio::test]
async fn attach_joins_a_client_to_the_process() {
    let running = Running::start().await;
    let mut client = Spdy::connect(&running.attach(), V4).await;
    for kind in ["error", "stdout"] {
        client.open(kind).await;
    }
    let stdin = client.open("stdin").await;
    client.data(stdin, b"hello", true).await;
    let received = client.receive(|_| false).await;
    assert_eq!(received.data["stdout"], "attached to c1\nhello");
    assert!(received.data["error"].contains("Success"));
    running.end().await;
}

#[tokio::test]
async fn exec_over_websockets() {
    let running = Running::start().await;
    for (protocol, has_status) in [
        ("v5.channel.k8s.io", true),
        ("v4.channel.k8s.io", true),
        ("channel.k8s.io", false),
        ("", false),
    ] {
        let mut socket = websocket(&running.exec(&["both"], OUT_ERR), protocol).await;
        let (received, code) = messages(&mut socket).await;
        assert_eq!(
            (&received[&1][..], &received[&2][..], code),
            (&b"out"[..], &b"err"[..], Some(1000))
        );
        match has_status {
            true => assert_eq!(serde_json::from_slice::<Value>(&received[&3]).unwrap(), exit(3)),
            false => assert!(received[&3].ends_with(b"exit status 3")),
        }
    }
    for (protocol, has_status) in
        [("v4.base64.channel.k8s.io", true), ("base64.channel.k8s.io", false)]
    {
        let mut socket = websocket(&running.exec(&["both"], OUT_ERR), protocol).await;
        let (received, code) = messages(&mut socket).await;
        let decoded = |channel: u8| STANDARD.decode(&received[&channel]).unwrap();
        assert_eq!(
            (&decoded(b'1')[..], &decoded(b'2')[..], code),
            (&b"out"[..], &b"err"[..], Some(1000))
        );
        assert_eq!(decoded(b'3').starts_with(b"{"), has_status);
    }
    // input, its end, and sizes
    let mut socket = websocket(&running.exec(&["cat"], IN_OUT), "v5.channel.k8s.io").await;
    let much = vec![b'x'; 3 * PIECE];
    socket.send(Message::binary([&[0], &much[..]].concat())).await.unwrap();
    socket.send(Message::binary(&[255, 0][..])).await.unwrap();
    let (received, _) = messages(&mut socket).await;
    assert!(received[&1] == much);
    let mut socket = websocket(&running.exec(&["sizes", "1"], TTY), "v4.channel.k8s.io").await;
    socket.send(Message::binary(&b"\x04{\"Width\":80,\"Height\":24}"[..])).await.unwrap();
    let (received, _) = messages(&mut socket).await;
    assert_eq!(received[&1], b"80x24\n");
    running.end().await;
}

/// A client of kube-rs whose requests all go to that URL.
pub(super) fn kube_client(url: String) -> kube::Client {
    let service = tower::service_fn(move |mut request: Request<kube::client::Body>| {
        let url = url.clone();
        async move {
            let (uri, stream) = dial(&url).await;
            *request.uri_mut() = uri.path().parse().unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection.with_upgrades());
            sender.send_request(request).await
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test]
async fn exec_by_kube_rs() {
    let running = Running::start().await;
    let pods: Api<Pod> = Api::default_namespaced(kube_client(running.exec(&["both"], OUT_ERR)));
    let mut process = pods.exec("p", ["x"], &AttachParams::default()).await.unwrap();
    let (mut stdout, mut stderr) = (String::new(), String::new());
    process.stdout().unwrap().read_to_string(&mut stdout).await.unwrap();
    process.stderr().unwrap().read_to_string(&mut stderr).await.unwrap();
    let status = process.take_status().unwrap().await.unwrap();
    process.join().await.unwrap();
    assert_eq!((stdout.as_str(), stderr.as_str()), ("out", "err"));
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));

    let pods: Api<Pod> = Api::default_namespaced(kube_client(running.exec(&["cat"], IN_OUT)));
    let params = AttachParams::default().stdin(true).stderr(false);
    let mut process = pods.exec("p", ["x"], &params).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    let much = vec![b'x'; 1 << 20];
    let mut stdout = process.stdout().unwrap();
    let write = async {
        stdin.write_all(&much).await.unwrap();
        stdin.shutdown().await.unwrap();
        drop(stdin);
    };
    let mut read = vec![0; much.len()];
    let (_, result) = tokio::join!(write, stdout.read_exact(&mut read));
    result.unwrap();
    assert!(read == much);
    process.abort();
    running.until_sessions(0).await;

    let pods: Api<Pod> = Api::default_namespaced(kube_client(running.exec(&["sizes", "1"], TTY)));
    let mut process = pods.exec("p", ["x"], &AttachParams::interactive_tty()).await.unwrap();
    let mut sizes = process.terminal_size().unwrap();
    sizes.send(TerminalSize { width: 132, height: 43 }).await.unwrap();
    let mut stdout = String::new();
    process.stdout().unwrap().read_to_string(&mut stdout).await.unwrap();
    assert_eq!(stdout, "132x43\n");
    running.end().await;
}

#[tokio::test]
async fn sessions_end_with_their_client_when_idle_and_with_the_server() {
    let running = Running::start().await;
    let sleeping = async |running: &Running| {
        let mut client = Spdy::connect(&running.exec(&["sleep"], IN_OUT), V4).await;
        for kind in ["error", "stdin", "stdout"] {
            client.open(kind).await;
        }
        running.until_sessions(1).await;
        client
    };
    drop(sleeping(&running).await);
    running.until_sessions(0).await;
    let socket = websocket(&running.exec(&["sleep"], OUT), "v4.channel.k8s.io").await;
    running.until_sessions(1).await;
    drop(socket);
    running.until_sessions(0).await;
    let mut client = sleeping(&running).await;
    running.end().await;
    assert!(client.receive(|_| false).await.ended.is_empty());

    let idle_timeout = Duration::from_millis(200);
    let running = Running::start_with(Options { idle_timeout, ..Options::default() }).await;
    let _client = sleeping(&running).await;
    running.until_sessions(0).await;
    running.end().await;
}

#[tokio::test]
async fn sessions_without_idle_timeout_go_on() {
    let idle_timeout = Duration::ZERO;
    let running = Running::start_with(Options { idle_timeout, ..Options::default() }).await;
    let received = spdy_exec(&running, V4, &["cat"], IN_OUT).await;
    assert_eq!(received.data["stdout"], "in", "{received:?}");
    running.end().await;
}

#[tokio::test]
async fn a_client_has_to_open_its_streams_in_time() {
    let creation_timeout = Duration::from_millis(100);
    let running = Running::start_with(Options { creation_timeout, ..Options::default() }).await;
    let mut client = Spdy::connect(&running.exec(&["exit"], OUT), V4).await;
    client.open("error").await;
    let received = client.receive(|_| false).await;
    assert_eq!((received.replies, received.ended.len()), (1, 0));
    running.end().await;
}

#[tokio::test]
async fn output_that_is_not_read_is_bounded() {
    let running = Running::start().await;
    let mut client = Spdy::connect(&running.exec(&["yes"], OUT), V4).await;
    client.open("error").await;
    client.open("stdout").await;
    let written = || running.runtime.written.load(Ordering::SeqCst);
    until(|| written() > 0).await;
    // until the buffers are full
    let mut before = 0;
    while before != written() {
        before = written();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(written() < 64 << 20, "{}", written());
    drop(client);
    running.until_sessions(0).await;
    running.end().await;
}

#[tokio::test]
async fn tokens_work_once_for_their_own_kind_of_session() {
    let running = Running::start().await;
    let exec = || running.exec(&["exit"], OUT);
    let ask = async |url: &str, method: &str, headers: &[(&str, &str)]| {
        let (uri, _) = dial(url).await;
        let mut request = Request::builder().method(method).uri(uri.path()).header("host", "local");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = send(url, request.body(Empty::<Bytes>::new()).unwrap()).await;
        (response.status().as_u16(), text(response).await)
    };
    let spdy = [("connection", "upgrade"), ("upgrade", "spdy/3.1")];
    let url = exec();
    let (status, text) =
        ask(&url, "POST", &[("x-stream-protocol-version", "v4.channel.k8s.io")]).await;
    assert_eq!(
        (status, text.as_str()),
        (400, "unable to upgrade: missing upgrade headers in request\n")
    );
    assert_eq!(ask(&url, "POST", &spdy).await, (404, "404 page not found\n".to_owned()), "used");
    let url = exec();
    assert_eq!(ask(&url, "DELETE", &spdy).await.0, 405);
    assert_eq!(ask(&url.replace("/exec/", "/attach/"), "GET", &spdy).await.0, 404);
    for path in ["", "/", "/exec", "/exec/", "/exec/none", "/exec/a/b", "/other/a"] {
        let (uri, _) = dial(&url).await;
        let url = format!("http://{}{path}", uri.authority().unwrap());
        assert_eq!(ask(&url, "GET", &spdy).await.0, 404, "{path}");
    }
    let unknown = [spdy[0], spdy[1], ("x-stream-protocol-version", "v9.channel.k8s.io")];
    let (status, text) = ask(&exec(), "POST", &unknown).await;
    assert_eq!(status, 403);
    assert!(
        text.contains("client supports [v9.channel.k8s.io], server accepts [v4.channel.k8s.io v3")
    );
    let socket = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "v9"),
        ("sec-websocket-key", "eA=="),
    ];
    assert_eq!(ask(&exec(), "GET", &socket).await.0, 403);
    assert_eq!(ask(&exec(), "POST", &[socket[0], socket[1]]).await.0, 400);
    running.end().await;
}
