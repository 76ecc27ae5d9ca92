//! The server's side of a SPDY connection: streams that the client opens.

use std::collections::HashMap;
use std::pin::pin;

use bytes::{Buf, Bytes};
use longshore_base::time;
use longshore_streams::spdy::{
    self, Acceptor, CANCEL, Control, Data, FIN, HeaderBlocks, Headers, PING, Part, REFUSED_STREAM,
    RST_STREAM, Reader, SYN_STREAM, check,
};
use longshore_streams::{Activity, Error, KEEP_ALIVE, LINGER};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, copy, sink, split};
use tokio::sync::mpsc;
use tokio::time::{interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::connection::{Conditions, Outgoing, Queue};
use crate::pipes::input;
use crate::{Input, Output};

/// The most streams of a connection.
pub(crate) const MAX_STREAMS: usize = 512;
/// Streams that were opened and that the session has not taken yet.
const OPENED: usize = 8;
/// The ping of this side: its number is even.
const OUR_PING: u32 = 2;

/// A stream that a client has opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) id: u32,
    pub(crate) headers: Headers,
    pub(crate) input: Input,
    pub(crate) output: Output,
    /// Cancelled when nothing can be sent on it any more.
    pub(crate) closed: CancellationToken,
    /// Cancelled when the client has reset it.
    pub(crate) reset: CancellationToken,
}

/// Serves one connection. Streams whose headers `accept` refuses are reset, with the reason in the log;
/// the others go to the session.
pub(crate) async fn serve<S, T>(
    io: S,
    conditions: &Conditions,
    accept: impl FnMut(&Headers) -> Result<(), String>,
    session: impl FnOnce(mpsc::Receiver<Opened>, Queue) -> T,
) where
    S: AsyncRead + AsyncWrite,
    T: Future<Output = ()>,
{
    let (mut read, write) = split(io);
    let activity = Activity::default();
    let (queue, frames) = Queue::new();
    let (opened, streams) = mpsc::channel(OPENED);
    let mut writer = pin!(send(write, frames, &activity));
    let incoming = Incoming {
        headers: HeaderBlocks::default(),
        acceptor: Acceptor::default(),
        streams: HashMap::new(),
        last: 0,
        accept,
        opened,
        queue: queue.clone(),
        activity: &activity,
    };
    let reader = async {
        match incoming.run(Reader::new(BufReader::new(&mut read))).await {
            Err(error @ Error::Spdy(_)) => warn!("the session is closed: {error}"),
            Err(error) => debug!("the session has failed: {error}"),
            Ok(()) => {}
        }
    };
    let session = async {
        session(streams, queue.clone()).await;
        queue.send(Outgoing::End).await;
    };
    if conditions.hold(&activity, reader, writer.as_mut(), session).await {
        // closing a connection with unread data may discard data that was sent
        let drain = async {
            writer.await;
            let _ = copy(&mut read, &mut sink()).await;
        };
        let _ = timeout(LINGER, drain).await;
    }
}

/// Sends frames until there are no more, or the client has gone.
async fn send<W>(mut io: W, mut frames: mpsc::Receiver<Outgoing>, activity: &Activity)
where
    W: AsyncWrite + Unpin,
{
    // a client whose input nobody takes is not read from: without these, nobody would see it go
    let mut keep_alive = interval_at(time::after(KEEP_ALIVE), KEEP_ALIVE);
    loop {
        let sent = tokio::select! {
            frame = frames.recv() => match frame {
                Some(Outgoing::Data { stream, bytes, last }) => {
                    activity.note();
                    let head = spdy::data(stream, bytes.len(), last);
                    io.write_all_buf(&mut head.as_slice().chain(bytes)).await
                }
                Some(Outgoing::Frame(frame)) => io.write_all(&frame).await,
                Some(Outgoing::End) | None => break,
            },
            _ = keep_alive.tick() => io.write_all(&spdy::ping(OUR_PING)).await,
        };
        if sent.is_err() || io.flush().await.is_err() {
            return;
        }
    }
    let _ = io.shutdown().await;
}

/// An open stream.
struct Stream {
    /// Present until the client has sent its last data.
    feed: Option<mpsc::Sender<Bytes>>,
    closed: CancellationToken,
    reset: CancellationToken,
}

impl Stream {
    fn is_open(&self) -> bool {
        !self.closed.is_cancelled() || self.feed.as_ref().is_some_and(|feed| !feed.is_closed())
    }
}

/// What a client sends.
struct Incoming<'a, A> {
    headers: HeaderBlocks,
    acceptor: Acceptor,
    streams: HashMap<u32, Stream>,
    /// The last stream that was opened.
    last: u32,
    accept: A,
    opened: mpsc::Sender<Opened>,
    queue: Queue,
    activity: &'a Activity,
}

impl<A: FnMut(&Headers) -> Result<(), String>> Incoming<'_, A> {
    /// Reads until the client closes.
    async fn run<R: AsyncRead + Unpin>(mut self, mut reader: Reader<R>) -> Result<(), Error> {
        while let Some(part) = reader.part().await? {
            match part {
                Part::Data(data) => {
                    self.activity.note();
                    self.data(data).await;
                }
                Part::Control(frame) => self.control(frame).await?,
            }
        }
        Ok(())
    }

    async fn data(&mut self, data: Data) {
        // of a stream that is closed already
        let Some(stream) = self.streams.get_mut(&data.stream) else { return };
        if let Some(feed) = &stream.feed
            && !data.bytes.is_empty()
        {
            // nobody may want it any more
            let _ = feed.send(data.bytes).await;
        }
        if data.last {
            stream.feed = None;
        }
    }

    async fn control(&mut self, frame: Control) -> Result<(), Error> {
        let headers = check(&frame, &mut self.headers)?;
        let mut body = frame.body;
        // its length is checked
        let first = body.try_get_u32().unwrap_or_default();
        if frame.kind != PING || !first.is_multiple_of(2) {
            self.activity.note();
        }
        match frame.kind {
            SYN_STREAM => self.open(first, frame.flags & FIN != 0, headers).await,
            RST_STREAM => {
                if let Some(stream) = self.streams.remove(&first) {
                    stream.reset.cancel();
                }
            }
            PING if !first.is_multiple_of(2) => {
                self.queue.try_send(Bytes::copy_from_slice(&spdy::ping(first)));
            }
            _ => {}
        }
        Ok(())
    }

    async fn open(&mut self, id: u32, is_last: bool, headers: Headers) {
        if id.is_multiple_of(2) || id <= self.last {
            // it may be in use: a reset would end that one
            debug!(id, "a stream is opened with an invalid number");
            return;
        }
        self.last = id;
        if self.streams.len() >= MAX_STREAMS {
            self.streams.retain(|_, stream| stream.is_open());
        }
        if let Err(reason) = self.check(&headers) {
            debug!(id, reason, "a stream is refused");
            return self.queue.send(Outgoing::Frame(spdy::reset(id, REFUSED_STREAM))).await;
        }
        let (feed, input) = input();
        let reset = CancellationToken::new();
        let closed = reset.child_token();
        let output = Output::new(id, &self.queue, closed.clone());
        let feed = Some(feed).filter(|_| !is_last);
        let stream = Stream { feed, closed: closed.clone(), reset: reset.clone() };
        self.streams.insert(id, stream);
        // before the session can send data on it
        self.queue.send(Outgoing::Frame(self.acceptor.accept(id))).await;
        let opened = Opened { id, headers, input, output, closed, reset };
        if self.opened.send(opened).await.is_err() {
            // the session takes no more
            self.streams.remove(&id);
            self.queue.send(Outgoing::Frame(spdy::reset(id, CANCEL))).await;
        }
    }

    fn check(&mut self, headers: &Headers) -> Result<(), String> {
        match self.streams.len() < MAX_STREAMS {
            true => (self.accept)(headers),
            false => Err("the connection has too many streams".to_owned()),
        }
    }
}
