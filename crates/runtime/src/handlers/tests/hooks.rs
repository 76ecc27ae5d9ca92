//! Hooks that need no runtime.

use std::time::{Duration, Instant};

use serde_json::json;

use super::server::{raw, tls};
use super::{Fallback, closed_port, hook};

fn ok() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
}

#[tokio::test]
async fn hook_accepts_any_response() {
    let (port, requests) = raw(|_| b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n".to_vec()).await;
    assert_eq!(hook(json!({"httpGet": {"port": port, "path": "/bye"}})).await.unwrap(), None);
    let request = requests.lock().pop().unwrap();
    assert!(request.starts_with("GET /bye HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("User-Agent: kube-lifecycle/1.36\r\n"), "{request}");
    let port = tls(&["http/1.1"]).await;
    assert_eq!(hook(json!({"httpGet": {"port": port, "scheme": "HTTPS"}})).await.unwrap(), None);
}

#[tokio::test]
async fn hook_errors_name_hook_container_and_pod() {
    let port = closed_port().await;
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    let of = "for Container \"c\" in Pod \"p_ns(u)\" failed - error:";
    for (hook_spec, expected) in [
        (
            json!({"httpGet": {"port": port, "path": "/x"}}),
            format!("HTTP lifecycle hook (/x) {of} Get \"http://127.0.0.1:{port}/x\": {refused}"),
        ),
        (
            json!({"tcpSocket": {"port": port}}),
            format!("TCP lifecycle hook (127.0.0.1) {of} {refused}"),
        ),
        (json!({}), "Cannot run handler: invalid handler: no action is set".to_owned()),
    ] {
        assert_eq!(hook(hook_spec).await.unwrap_err().to_string(), expected);
    }
    let error = hook(json!({"exec": {"command": ["a", "b"]}})).await.unwrap_err().to_string();
    let expected =
        format!("Exec lifecycle hook ([a b]) {of} rpc error: code = Unavailable desc = ");
    assert!(error.starts_with(&expected), "{error}");
    assert!(error.ends_with(", message: \"\""), "{error}");
}

#[tokio::test]
async fn hook_falls_back_from_https_to_http() {
    let (port, requests) = raw(|request| match request.starts_with("GET") {
        true => ok(),
        false => b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    })
    .await;
    let hook_spec = json!({"httpGet": {"port": port, "scheme": "HTTPS", "httpHeaders": [
        {"name": "Authorization", "value": "secret"}, {"name": "X", "value": "y"}
    ]}});
    let message = format!(
        "request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded"
    );
    assert_eq!(hook(hook_spec).await.unwrap(), Some(Fallback(message)));
    let request = requests.lock().pop().unwrap();
    assert!(request.contains("X: y\r\n") && !request.contains("secret"), "{request}");
}

#[tokio::test]
async fn hook_sleep() {
    let start = Instant::now();
    assert_eq!(hook(json!({"sleep": {"seconds": 1}})).await.unwrap(), None);
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert_eq!(hook(json!({"sleep": {"seconds": 0}})).await.unwrap(), None);
}
