//! What a node says of itself at its health port (10248, on loopback).

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(3);
/// More than any answer of a node.
const MOST: u64 = 16 << 10;

/// `ok`, or why not.
pub(crate) async fn query(address: SocketAddr) -> String {
    match tokio::time::timeout(TIMEOUT, get(address)).await {
        Ok(Ok(answer)) => meaning(&answer),
        Ok(Err(error)) => format!("no answer at {address}: {error}"),
        Err(_) => format!("no answer at {address} in {} s", TIMEOUT.as_secs()),
    }
}

async fn get(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /healthz HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MOST).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn meaning(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => "ok".to_owned(),
        Some(code) => format!("{code} {}", body.lines().next().unwrap_or_default()),
        None => "an answer that is not HTTP".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn node_view_health_is_the_answer_of_the_port() {
        for (answer, expected) in [
            ("HTTP/1.0 200 OK\r\nA: b\r\n\r\nok", "ok"),
            (
                "HTTP/1.1 500 Internal Server Error\r\n\r\nPLEG is not healthy\nmore",
                "500 PLEG is not healthy",
            ),
            ("", "an answer that is not HTTP"),
            ("nonsense", "an answer that is not HTTP"),
        ] {
            assert_eq!(meaning(answer), expected);
        }
    }

    #[tokio::test]
    async fn node_view_health_is_asked_over_http() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // All of it: a connection that is closed before is reset.
            let mut request = vec![0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            request.truncate(length);
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nok").await.unwrap();
            request
        });
        assert_eq!(query(address).await, "ok");
        assert!(served.await.unwrap().starts_with(b"GET /healthz HTTP/1.0"));
        assert!(query(address).await.starts_with("no answer at 127.0.0.1:"));
    }
}
