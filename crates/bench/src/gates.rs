//! What the readiness probes of the measured pods ask: a small HTTP server, so that the moment of
//! an answer is known, whichever kubelet asked.
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Longest request that is read (bytes).
const REQUEST: usize = 4096;

/// The server; it stops when dropped.
pub(crate) struct Gates {
    pub(crate) address: SocketAddr,
    shared: Arc<Mutex<HashMap<String, Gate>>>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Gate {
    open: bool,
    /// When it was first asked since it was turned.
    answered: Option<Instant>,
    requests: u64,
}

impl Gates {
    pub(crate) async fn start(ip: IpAddr) -> Result<Self> {
        let listener = TcpListener::bind((ip, 0)).await.with_context(|| ip.to_string())?;
        let address = listener.local_addr()?;
        let shared = Arc::default();
        let server = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, server })
    }

    /// From now on the probes of this pod succeed, or fail.
    pub(crate) fn turn(&self, pod: &str, open: bool) {
        let mut gates = self.shared.lock();
        let gate = gates.entry(pod.to_owned()).or_default();
        (gate.open, gate.answered) = (open, None);
    }

    /// When a probe of the pod was first answered since [`turn`](Self::turn).
    pub(crate) fn answered(&self, pod: &str) -> Option<Instant> {
        self.shared.lock().get(pod)?.answered
    }

    /// How many probes were answered.
    pub(crate) fn requests(&self) -> u64 {
        self.shared.lock().values().map(|gate| gate.requests).sum()
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, gates: Arc<Mutex<HashMap<String, Gate>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let gates = gates.clone();
        tokio::spawn(async move {
            // A prober that goes away early has no answer to miss.
            let _ = answer(stream, &gates).await;
        });
    }
}

async fn answer(
    mut stream: TcpStream,
    gates: &Mutex<HashMap<String, Gate>>,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
    let open = {
        let mut gates = gates.lock();
        let gate = gates.entry(path.to_owned()).or_default();
        gate.requests += 1;
        gate.answered.get_or_insert_with(Instant::now);
        gate.open
    };
    let status = if open { "200 OK" } else { "503 Service Unavailable" };
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(gates: &Gates, path: &str) -> String {
        let mut stream = TcpStream::connect(gates.address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn gate_answers_as_set_with_timestamps() {
        let gates = Gates::start([127, 0, 0, 1].into()).await.unwrap();
        assert!(get(&gates, "/a").await.starts_with("HTTP/1.1 503 "));
        gates.turn("a", true);
        assert_eq!(gates.answered("a"), None);
        let before = Instant::now();
        assert!(get(&gates, "/a").await.starts_with("HTTP/1.1 200 "));
        let first = gates.answered("a");
        get(&gates, "/a").await;
        assert!(first.is_some_and(|at| at > before) && gates.answered("a") == first);
        assert!(get(&gates, "/b").await.starts_with("HTTP/1.1 503 "));
        assert_eq!(gates.requests(), 4);
    }
}
