//! Probes over HTTP.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::server::{listen, raw, read_head, tls};
use super::{Outcome, closed_port, failure, hook, probe};

fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

#[tokio::test]
async fn http_probe_status_codes() {
    let (port, _) = raw(|request| {
        let status = request.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
        answer(status, "", "said")
    })
    .await;
    let warning = || Outcome::Warning("Probe terminated redirects, Response body: said".to_owned());
    let failed = |code| Outcome::Failure(format!("HTTP probe failed with statuscode: {code}"));
    for (status, expected) in [
        (200, Outcome::Success),
        (204, Outcome::Success),
        (299, Outcome::Success),
        (300, warning()),
        (399, warning()),
        // A redirect without target.
        (302, warning()),
        (400, failed(400)),
        (404, failed(404)),
        (500, failed(500)),
        (503, failed(503)),
    ] {
        let probe_spec = json!({"httpGet": {"port": port, "path": format!("/{status}")}});
        assert_eq!(probe(probe_spec).await.unwrap(), expected, "{status}");
    }
}

/// Finding 13: a header map panics beyond 24,576 names.
#[tokio::test]
async fn http_probe_headers_are_limited() {
    let (port, requests) = raw(|_| answer(200, "", "")).await;
    let named = |count: usize| {
        let header = |index| json!({"name": format!("X-{index}"), "value": "v"});
        (0..count).map(header).collect::<Vec<_>>()
    };
    let get = |headers: Vec<serde_json::Value>| json!({"port": port, "httpHeaders": headers});
    assert_eq!(probe(json!({"httpGet": get(named(1000))})).await.unwrap(), Outcome::Success);
    assert!(requests.lock()[0].contains("X-999: v"));
    let same = vec![json!({"name": "X", "value": "v"}); 30_000];
    let large = vec![json!({"name": "X", "value": "v".repeat(1 << 20)})];
    for headers in [named(30_000), same, large] {
        let message = failure(json!({"httpGet": get(headers.clone())})).await;
        assert!(message.contains("too many headers: "), "{message}");
        let error = hook(json!({"httpGet": get(headers)})).await.unwrap_err().to_string();
        assert!(error.contains("too many headers: "), "{error}");
    }
    // A path that no request can have is not silently replaced.
    let path = format!("/{}", "x".repeat(100_000));
    let message = failure(json!({"httpGet": {"port": port, "path": path}})).await;
    assert!(message.contains("invalid URL: "), "{}", &message[message.len() - 100..]);
}

#[tokio::test]
async fn http_probe_headers_equal_upstream() {
    let (port, requests) = raw(|_| answer(200, "", "")).await;
    let default_host = format!("Host: 127.0.0.1:{port}");
    let header = |name: &str, value: &str| json!({"name": name, "value": value});
    for (headers, there, missing) in [
        (
            vec![],
            vec![
                "User-Agent: kube-probe/1.36",
                "Accept: */*",
                "Connection: close",
                default_host.as_str(),
            ],
            vec!["Accept-Encoding"],
        ),
        (
            vec![header("user-agent", "foo/1.0"), header("Accept", "text/html")],
            vec!["User-Agent: foo/1.0", "Accept: text/html"],
            vec!["kube-probe", "*/*"],
        ),
        (
            vec![header("User-Agent", ""), header("Accept", "")],
            vec!["Connection: close"],
            vec!["User-Agent", "Accept"],
        ),
        (vec![header("HOST", "example.com")], vec!["Host: example.com"], vec!["127.0.0.1"]),
        (
            vec![header("X-a", "1"), header("x-A", "2"), header("Content-Length", "7")],
            vec!["X-A: 1", "X-A: 2"],
            vec!["Content-Length"],
        ),
    ] {
        let probe_spec =
            json!({"httpGet": {"port": port, "path": "/p?q=1", "httpHeaders": headers}});
        assert_eq!(probe(probe_spec).await.unwrap(), Outcome::Success);
        let request = requests.lock().pop().unwrap();
        assert!(request.starts_with("GET /p?q=1 HTTP/1.1\r\n"), "{request}");
        let lines: Vec<&str> = request.lines().collect();
        for line in there {
            assert!(lines.contains(&line), "{line:?} not in {request}");
        }
        for text in missing {
            assert!(!request.contains(text), "{text:?} in {request}");
        }
    }
    let probe_spec = json!({"httpGet": {"port": port, "httpHeaders": [header("a b", "")]}});
    let refused =
        format!("Get \"http://127.0.0.1:{port}\": net/http: invalid header field name \"a b\"");
    assert_eq!(failure(probe_spec).await, refused);
}

#[tokio::test]
async fn http_probe_follows_redirects_on_the_same_host() {
    let (port, requests) = raw(|request| {
        let path = request.split(' ').nth(1).unwrap();
        let to = |location: &str| answer(302, &format!("Location: {location}\r\n"), "moved");
        match path {
            "/" => to("/new"),
            "/bad" => to("/gone"),
            "/gone" => answer(500, "", ""),
            "/away" => to("http://example.com/"),
            "/loop" => to("/loop"),
            "/broken" => to("http://[::1"),
            _ => answer(200, "", ""),
        }
    })
    .await;
    let probe_of = |path: &str| {
        json!({"httpGet": {"port": port, "path": path, "httpHeaders": [
            {"name": "Host", "value": "named.example"}
        ]}})
    };
    assert_eq!(probe(probe_of("/")).await.unwrap(), Outcome::Success);
    let last = requests.lock().pop().unwrap();
    assert!(last.contains("Host: named.example\r\n"), "{last}");
    assert!(last.contains(&format!("Referer: http://127.0.0.1:{port}/\r\n")), "{last}");
    assert_eq!(failure(probe_of("/bad")).await, "HTTP probe failed with statuscode: 500");
    let warning = "Probe terminated redirects, Response body: moved".to_owned();
    assert_eq!(probe(probe_of("/away")).await.unwrap(), Outcome::Warning(warning));
    requests.lock().clear();
    assert_eq!(failure(probe_of("/loop")).await, "Get \"/loop\": stopped after 10 redirects");
    assert_eq!(requests.lock().len(), 10);
    let broken = failure(probe_of("/broken")).await;
    assert!(broken.ends_with("failed to parse Location header \"http://[::1\""), "{broken}");
}

#[tokio::test]
async fn http_probe_accepts_any_certificate() {
    for (protocols, version) in [
        (&[][..], "HTTP/1.1 /x"),
        (&["http/1.1"], "HTTP/1.1 /x"),
        (&["h2"], "HTTP/2.0 https://host/x"),
    ] {
        let port = tls(protocols).await;
        let probe_spec = json!({"httpGet": {"port": port, "scheme": "HTTPS", "path": "/x",
            "httpHeaders": [{"name": "Host", "value": "host"}]}});
        let said = format!("Probe terminated redirects, Response body: {version}");
        assert_eq!(probe(probe_spec).await.unwrap(), Outcome::Warning(said));
    }
}

#[tokio::test]
async fn http_probe_errors_equal_upstream() {
    let get = |port: u16, what: &str| format!("Get \"http://127.0.0.1:{port}/\": {what}");
    let probe_of = |port: u16| json!({"httpGet": {"port": port, "path": "/"}});
    let port = closed_port().await;
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(failure(probe_of(port)).await, get(port, &refused));

    let (port, _) = raw(|_| Vec::new()).await;
    assert_eq!(failure(probe_of(port)).await, get(port, "EOF"));

    let (port, _) = raw(|_| b"SSH-2.0-x\r\n".to_vec()).await;
    let broken =
        "net/http: HTTP/1.x transport connection broken: malformed HTTP response \"SSH-2\"";
    assert_eq!(failure(probe_of(port)).await, get(port, broken));

    let (port, _) = raw(|_| answer(200, "", "")).await;
    let probe_spec = json!({"httpGet": {"port": port, "scheme": "HTTPS"}});
    let plain = "http: server gave HTTP response to HTTPS client";
    assert_eq!(failure(probe_spec).await, format!("Get \"https://127.0.0.1:{port}\": {plain}"));

    let probe_spec = json!({"httpGet": {"port": port, "scheme": "ftp"}});
    let scheme = "unsupported protocol scheme \"ftp\"";
    assert_eq!(failure(probe_spec).await, format!("Get \"ftp://127.0.0.1:{port}\": {scheme}"));

    let port = listen(|stream| async move {
        stream.set_zero_linger().unwrap();
    })
    .await;
    let reset = failure(probe_of(port)).await;
    assert!(reset.ends_with("connection reset by peer"), "{reset}");
}

#[tokio::test]
async fn http_probe_timeout() {
    let port = listen(|mut stream| async move {
        read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let start = Instant::now();
    let why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(
        failure(json!({"httpGet": {"port": port, "path": "/"}, "timeoutSeconds": 1})).await,
        format!("Get \"http://127.0.0.1:{port}/\": {why}")
    );
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn http_probe_interrupted_response_has_no_result() {
    let (port, requests) =
        raw(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_vec()).await;
    let error = probe(json!({"httpGet": {"port": port}})).await.unwrap_err();
    assert_eq!((error.state(), error.to_string().as_str()), ("failure", "unexpected EOF"));
    assert_eq!(requests.lock().len(), 3, "it is probe_spec again");
}

#[tokio::test]
async fn http_probe_truncates_long_bodies() {
    let port = listen(|mut stream| async move {
        read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while stream.write_all(&[b'x'; 1024]).await.is_ok() {}
    })
    .await;
    assert_eq!(probe(json!({"httpGet": {"port": port}})).await.unwrap(), Outcome::Success);
}
