//! Exec and attach: the streams of a client, the runtime's part, and the status at the end.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use longshore_base::panics;
use longshore_streams::spdy::Headers;
use longshore_streams::{STREAM_TYPE, Status, Streams, channel};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::connection::{Conditions, Outgoing, Queue};
use crate::spdy::{self, Opened};
use crate::websocket::{self, Format};
use crate::{Input, Io, Output, Runtime, Sizes, sizes};

/// The most characters of a status.
const MAX_TEXT: usize = 4 << 10;

const ERROR: &str = "error";
const STDIN: &str = "stdin";
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";
const RESIZE: &str = "resize";

/// A version of the protocol on SPDY connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    /// The first. Clients that name none speak it.
    V1,
    /// As the first; the differences are the client's.
    V2,
    /// With a stream of terminal sizes.
    V3,
    /// With the status as JSON.
    V4,
}

impl Version {
    /// All, newest first.
    pub(crate) const NAMES: [(&str, Version); 4] = [
        ("v4.channel.k8s.io", Version::V4),
        ("v3.channel.k8s.io", Version::V3),
        ("v2.channel.k8s.io", Version::V2),
        ("channel.k8s.io", Version::V1),
    ];
}

/// A version of the protocol on WebSockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    pub(crate) format: Format,
    /// Whether the status is JSON.
    pub(crate) has_status: bool,
}

impl Channels {
    /// Of clients that name none.
    pub(crate) const FIRST: Self = Self::new(false, false, false);
    /// All, newest first.
    pub(crate) const NAMES: [(&str, Self); 5] = [
        ("v5.channel.k8s.io", Self::new(false, true, true)),
        ("v4.channel.k8s.io", Self::new(false, false, true)),
        ("v4.base64.channel.k8s.io", Self::new(true, false, true)),
        ("channel.k8s.io", Self::FIRST),
        ("base64.channel.k8s.io", Self::new(true, false, false)),
    ];

    const fn new(is_base64: bool, has_close: bool, has_status: bool) -> Self {
        Self { format: Format { is_base64, has_close }, has_status }
    }
}

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) container_id: String,
    /// The command; to attach to the container's process, there is none.
    pub(crate) command: Option<Vec<String>>,
    pub(crate) streams: Streams,
}

impl Command {
    /// Runs it to its end.
    async fn run(self, runtime: &dyn Runtime, io: Io) -> Status {
        let action = match self.command {
            Some(_) => "error executing command in container",
            None => "error attaching to container",
        };
        let run = async {
            match self.command {
                Some(command) => runtime.exec(self.container_id, command, io).await,
                None => runtime.attach(self.container_id, io).await.map(|()| 0),
            }
        };
        match panics::contained(run, || Err("internal error".into())).await {
            Ok(0) => Status::Success,
            Ok(code) => Status::Exit(code),
            Err(error) => Status::Internal(limited(&format!("{action}: {error}"))),
        }
    }

    /// Runs it while sizes are read.
    async fn run_resized(
        self,
        runtime: &dyn Runtime,
        stdin: Option<Input>,
        stdout: Option<Output>,
        stderr: Option<Output>,
        resize: Option<Input>,
    ) -> Status {
        let (sender, sizes) = Sizes::new();
        let resizing = async {
            if let Some(resize) = resize {
                sizes::read(resize, sender).await;
            }
            pending().await
        };
        let tty = self.streams.tty;
        tokio::select! {
            status = self.run(runtime, Io { stdin, stdout, stderr, tty, sizes }) => status,
            status = resizing => status,
        }
    }
}

/// The start of a text.
pub(crate) fn limited(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// Runs a command for a client on a SPDY connection, which has to open the streams in that time.
pub(crate) async fn serve_spdy<S: AsyncRead + AsyncWrite>(
    io: S,
    conditions: &Conditions,
    creation: Duration,
    version: Version,
    command: Command,
    runtime: &dyn Runtime,
) {
    let session = async |mut opened: mpsc::Receiver<Opened>, queue: Queue| {
        let wanted = wanted(command.streams, version);
        let collected = timeout(creation, collect(&mut opened, &wanted)).await;
        // others are refused
        drop(opened);
        match collected {
            Ok(Some(streams)) => run_spdy(command, version, streams, runtime, &queue).await,
            Ok(None) => {}
            Err(_) => debug!("timed out waiting for client to create streams"),
        }
    };
    let mut seen = Vec::new();
    let accept = move |headers: &Headers| {
        let kind = headers.get(STREAM_TYPE).unwrap_or_default();
        let known = [ERROR, STDIN, STDOUT, STDERR, RESIZE].into_iter().find(|known| kind == *known);
        match known {
            None => Err(format!("unexpected stream type: {kind:?}")),
            Some(known) if seen.contains(&known) => Err(format!("a second stream for {known}")),
            Some(known) => {
                seen.push(known);
                Ok(())
            }
        }
    };
    spdy::serve(io, conditions, accept, session).await;
}

/// The streams that a client must open.
fn wanted(streams: Streams, version: Version) -> Vec<&'static str> {
    let all = [
        (true, ERROR),
        (streams.stdin, STDIN),
        (streams.stdout, STDOUT),
        (streams.stderr, STDERR),
        (streams.tty && version >= Version::V3, RESIZE),
    ];
    all.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, kind)| kind).collect()
}

/// Streams by their type, once all that are wanted are there; `None` when the client has gone.
async fn collect(
    opened: &mut mpsc::Receiver<Opened>,
    wanted: &[&str],
) -> Option<HashMap<String, Opened>> {
    let mut streams = HashMap::new();
    while !wanted.iter().all(|kind| streams.contains_key(*kind)) {
        let stream = opened.recv().await?;
        let kind = stream.headers.get(STREAM_TYPE).unwrap_or_default().to_owned();
        streams.insert(kind, stream);
    }
    Some(streams)
}

async fn run_spdy(
    command: Command,
    version: Version,
    mut streams: HashMap<String, Opened>,
    runtime: &dyn Runtime,
    queue: &Queue,
) {
    let ends: Vec<(u32, CancellationToken)> =
        streams.values().map(|stream| (stream.id, stream.closed.clone())).collect();
    let mut take = |kind, is_wanted| streams.remove(kind).filter(|_: &Opened| is_wanted);
    let wanted = command.streams;
    let error = take(ERROR, true);
    let stdin = take(STDIN, wanted.stdin).map(|stream| stream.input);
    let stdout = take(STDOUT, wanted.stdout).map(|stream| stream.output);
    let stderr = take(STDERR, wanted.stderr).map(|stream| stream.output);
    let resize = take(RESIZE, wanted.tty).map(|stream| stream.input);
    let status = command.run_resized(runtime, stdin, stdout, stderr, resize).await;
    let text = if version >= Version::V4 { status.json() } else { status.text() };
    if let Some(error) = error {
        queue.finish(error.id, text.into(), &error.closed).await;
    }
    for (stream, closed) in ends {
        queue.finish(stream, Bytes::new(), &closed).await;
    }
}

/// Runs a command for a client on a WebSocket.
pub(crate) async fn serve_websocket<S: AsyncRead + AsyncWrite + Unpin>(
    io: S,
    conditions: &Conditions,
    channels: Channels,
    command: Command,
    runtime: &dyn Runtime,
) {
    let wanted = command.streams;
    let stdin = wanted.stdin.then_some(channel::STDIN);
    let readable = stdin.into_iter().chain([channel::RESIZE]);
    let session = async |mut inputs: BTreeMap<u8, Input>, queue: Queue| {
        let first = match wanted {
            Streams { stdout: true, .. } => channel::STDOUT,
            Streams { stderr: true, .. } => channel::STDERR,
            _ => channel::ERROR,
        };
        let data = |channel: u8, bytes: Bytes| Outgoing::Data {
            stream: channel.into(),
            bytes,
            last: false,
        };
        // shows the client that it is connected
        queue.send(data(first, Bytes::new())).await;
        let closed = CancellationToken::new();
        let output = |channel: u8, is_wanted: bool| {
            is_wanted.then(|| Output::new(channel.into(), &queue, closed.child_token()))
        };
        let stdout = output(channel::STDOUT, wanted.stdout);
        let stderr = output(channel::STDERR, wanted.stderr);
        let (stdin, resize) = (inputs.remove(&channel::STDIN), inputs.remove(&channel::RESIZE));
        let status = command.run_resized(runtime, stdin, stdout, stderr, resize).await;
        closed.cancel();
        let text = if channels.has_status { status.json() } else { status.text() };
        if !text.is_empty() {
            queue.send(data(channel::ERROR, text.into())).await;
        }
    };
    websocket::serve(io, conditions, channels.format, readable, session).await;
}
