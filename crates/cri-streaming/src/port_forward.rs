//! Port-forward: a client's connections to ports of a sandbox. On SPDY each is a pair of streams with the
//! same request ID, one for data and one for an error; on WebSockets it is a pair of channels.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_base::{panics, time};
use longshore_streams::STREAM_TYPE;
use longshore_streams::spdy::Headers;
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::connection::{Conditions, Outgoing, Queue};
use crate::remote_command::limited;
use crate::spdy::{self, Opened};
use crate::websocket::{self, Format, MAX_CHANNELS};
use crate::{Input, Output, PortStream, Runtime};

/// The protocol on SPDY connections.
pub(crate) const PROTOCOL: &str = "portforward.k8s.io";
/// Those on WebSockets.
pub(crate) const CHANNELS: [(&str, Format); 2] = [
    ("v4.channel.k8s.io", BINARY),
    ("v4.base64.channel.k8s.io", Format { is_base64: true, has_close: false }),
];
/// That of WebSocket clients that name none.
pub(crate) const BINARY: Format = Format { is_base64: false, has_close: false };
/// The most ports of a WebSocket.
pub(crate) const MAX_PORTS: usize = MAX_CHANNELS as usize / 2;

const PORT: &str = "port";
const REQUEST_ID: &str = "requestid";
const DATA: &str = "data";
const ERROR: &str = "error";
/// The most bytes of a request ID.
const MAX_REQUEST_ID: usize = 256;

/// A sandbox whose ports are forwarded.
#[derive(Clone)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl Sandbox {
    /// Forwards one connection to its end, and returns why it failed.
    async fn forward(self, port: u16, stream: PortStream) -> Option<Bytes> {
        let run = self.runtime.port_forward(self.id.clone(), port, stream);
        let error = panics::contained(run, || Err("internal error".into())).await.err()?;
        let text = format!("error forwarding port {port} to pod {}, uid : {error}", self.id);
        Some(limited(&text).into())
    }
}

/// Forwards ports for a client on a SPDY connection, which has to open both streams of a pair in that time.
pub(crate) async fn serve_spdy<S: AsyncRead + AsyncWrite>(
    io: S,
    conditions: &Conditions,
    creation: Duration,
    sandbox: Sandbox,
) {
    let accept = |headers: &Headers| check(headers);
    let session = async |mut opened: mpsc::Receiver<Opened>, queue: Queue| {
        let mut pairs = Pairs { creation, waiting: HashMap::new() };
        let mut forwards = JoinSet::new();
        loop {
            tokio::select! {
                stream = opened.recv() => {
                    let Some(stream) = stream else { return };
                    if let Some((data, error)) = pairs.add(stream, &queue).await {
                        forwards.spawn(forward(sandbox.clone(), data, error, queue.clone()));
                    }
                }
                Some(_) = forwards.join_next() => {}
                () = time::until(pairs.deadline()) => pairs.expire(&queue).await,
            }
        }
    };
    spdy::serve(io, conditions, accept, session).await;
}

/// Whether a stream has valid headers.
fn check(headers: &Headers) -> Result<(), String> {
    let port = headers.get(PORT).ok_or_else(|| format!("{PORT:?} header is required"))?;
    match port.parse::<u16>() {
        Ok(1..) => {}
        _ => return Err(format!("unable to parse {port:?} as a port")),
    }
    match headers.get(STREAM_TYPE) {
        Some(DATA | ERROR) => {}
        None => return Err(format!("{STREAM_TYPE:?} header is required")),
        Some(kind) => return Err(format!("invalid stream type {kind:?}")),
    }
    match headers.get(REQUEST_ID) {
        Some(id) if id.len() > MAX_REQUEST_ID => Err("the request ID is too long".to_owned()),
        _ => Ok(()),
    }
}

/// Forwards one connection, and reports its end.
async fn forward(sandbox: Sandbox, data: Opened, error: Opened, queue: Queue) {
    // checked before the stream was accepted
    let port = data.headers.get(PORT).and_then(|port| port.parse().ok()).unwrap_or_default();
    let forwarded = sandbox.forward(port, join(data.input, data.output));
    let failure = tokio::select! {
        failure = forwarded => failure,
        () = data.reset.cancelled() => None,
    };
    queue.finish(error.id, failure.unwrap_or_default(), &error.closed).await;
    queue.finish(data.id, Bytes::new(), &data.closed).await;
}

/// Streams whose other one is not there yet.
struct Pairs {
    creation: Duration,
    /// By request ID, with the time when the other must be there.
    waiting: HashMap<String, (Instant, Opened)>,
}

impl Pairs {
    /// Both streams, data first, once they are there.
    async fn add(&mut self, stream: Opened, queue: &Queue) -> Option<(Opened, Opened)> {
        let id = request_id(&stream);
        let Some((_, other)) = self.waiting.get(&id) else {
            self.waiting.insert(id, (time::after(self.creation), stream));
            return None;
        };
        if is_data(other) == is_data(&stream) {
            debug!(id, "a second stream of one type in a request");
            stream.reset.cancel();
            queue
                .send(Outgoing::Frame(longshore_streams::spdy::reset(
                    stream.id,
                    longshore_streams::spdy::CANCEL,
                )))
                .await;
            return None;
        }
        let (_, other) = self.waiting.remove(&id)?;
        Some(if is_data(&stream) { (stream, other) } else { (other, stream) })
    }

    /// When the first of them has waited for too long.
    fn deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|(deadline, _)| *deadline).min()
    }

    /// Ends those that have waited for too long.
    async fn expire(&mut self, queue: &Queue) {
        let now = Instant::now();
        let expired = self.waiting.extract_if(|_, (deadline, _)| *deadline <= now);
        let expired: Vec<_> = expired.collect();
        for (id, (_, stream)) in expired {
            let text = match is_data(&stream) {
                true => String::new(),
                false => format!("request {id}: timed out waiting for streams"),
            };
            queue.finish(stream.id, text.into(), &stream.closed).await;
        }
    }
}

fn is_data(stream: &Opened) -> bool {
    stream.headers.get(STREAM_TYPE) == Some(DATA)
}

/// What a pair's streams have in common. Clients before Kubernetes 1.2 send no request ID; they open the
/// stream for the error first, and that for data next.
fn request_id(stream: &Opened) -> String {
    match stream.headers.get(REQUEST_ID) {
        Some(id) if !id.is_empty() => id.to_owned(),
        _ if is_data(stream) => stream.id.saturating_sub(2).to_string(),
        _ => stream.id.to_string(),
    }
}

/// Forwards these ports for a client on a WebSocket, each once; at most [`MAX_PORTS`].
pub(crate) async fn serve_websocket<S: AsyncRead + AsyncWrite + Unpin>(
    io: S,
    conditions: &Conditions,
    format: Format,
    sandbox: Sandbox,
    ports: &[u16],
) {
    let channels = || (0..MAX_CHANNELS).step_by(2).zip(ports.iter().copied());
    let readable: Vec<u8> = channels().map(|(channel, _)| channel).collect();
    let session = async |mut inputs: BTreeMap<u8, Input>, queue: Queue| {
        let mut forwards = JoinSet::new();
        for (data, port) in channels() {
            let error = data.saturating_add(1);
            for channel in [data, error] {
                let bytes = Bytes::copy_from_slice(&port.to_le_bytes());
                queue.send(Outgoing::Data { stream: channel.into(), bytes, last: false }).await;
            }
            let Some(input) = inputs.remove(&data) else { continue };
            let closed = CancellationToken::new();
            let stream = join(input, Output::new(data.into(), &queue, closed.clone()));
            let (sandbox, queue) = (sandbox.clone(), queue.clone());
            forwards.spawn(async move {
                let failure = sandbox.forward(port, stream).await;
                closed.cancel();
                let bytes = failure.unwrap_or_default();
                queue.send(Outgoing::Data { stream: error.into(), bytes, last: true }).await;
            });
        }
        while forwards.join_next().await.is_some() {}
    };
    websocket::serve(io, conditions, format, readable, session).await;
}
