//! Clients of the server.

use std::collections::BTreeMap;

use bytes::{Buf, BytesMut};
use futures::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use longshore_streams::spdy::{self, Data, Frame, Opener, Reader};
use longshore_streams::{self as streams, STREAM_TYPE};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::PATIENCE;

pub(super) async fn dial(url: &str) -> (Uri, TcpStream) {
    let uri: Uri = url.parse().unwrap();
    let stream = TcpStream::connect(uri.authority().unwrap().as_str()).await.unwrap();
    (uri, stream)
}

/// Sends a request on a connection of its own.
pub(super) async fn send<B>(url: &str, request: Request<B>) -> Response<Incoming>
where
    B: hyper::body::Body<Data: Send, Error: Into<crate::BoxError>> + Send + 'static,
{
    let (_, stream) = dial(url).await;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap()
}

pub(super) async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// A client of SPDY.
pub(super) struct Spdy<S = TokioIo<Upgraded>> {
    reader: Reader<ReadHalf<S>>,
    pub(super) writer: WriteHalf<S>,
    opener: Opener,
    kinds: BTreeMap<u32, String>,
}

/// What a client has received by the end of the connection.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// By what the stream was opened as.
    pub(super) data: BTreeMap<String, String>,
    pub(super) ended: Vec<String>,
    pub(super) reset: Vec<String>,
    pub(super) replies: usize,
    pub(super) pings: Vec<u32>,
}

impl Spdy {
    pub(super) async fn connect(url: &str, protocols: &[&str]) -> Self {
        let (uri, stream) = dial(url).await;
        let upgraded = streams::upgrade(stream, streams::spdy_request(&uri, protocols));
        Self::new(TokioIo::new(upgraded.await.unwrap()))
    }
}

impl<S: AsyncRead + AsyncWrite> Spdy<S> {
    pub(super) fn new(io: S) -> Self {
        let (read, writer) = split(io);
        let (opener, kinds) = (Opener::default(), BTreeMap::new());
        Self { reader: Reader::new(read), writer, opener, kinds }
    }

    /// Opens a stream, and calls it that.
    pub(super) async fn open_as(&mut self, name: &str, headers: &[(&str, &str)]) -> u32 {
        let (id, frame) = self.opener.open(headers);
        self.writer.write_all(&frame).await.unwrap();
        self.writer.flush().await.unwrap();
        self.kinds.insert(id, name.to_owned());
        id
    }

    pub(super) async fn open(&mut self, kind: &str) -> u32 {
        self.open_as(kind, &[(STREAM_TYPE, kind)]).await
    }

    /// Opens both streams of a forwarded connection, and returns that for data.
    pub(super) async fn forward(&mut self, id: &str, port: &str) -> u32 {
        let headers = |kind: &'static str| [(STREAM_TYPE, kind), ("port", port), ("requestID", id)];
        self.open_as(&format!("error {id}"), &headers("error")).await;
        self.open_as(&format!("data {id}"), &headers("data")).await
    }

    pub(super) async fn data(&mut self, stream: u32, mut bytes: &[u8], last: bool) {
        while bytes.len() > spdy::PIECE {
            let (piece, rest) = bytes.split_at(spdy::PIECE);
            self.frame(stream, piece, false).await;
            bytes = rest;
        }
        self.frame(stream, bytes, last).await;
    }

    async fn frame(&mut self, stream: u32, bytes: &[u8], last: bool) {
        let head = spdy::data(stream, bytes.len(), last);
        self.writer.write_all_buf(&mut (&head[..]).chain(bytes)).await.unwrap();
        self.writer.flush().await.unwrap();
    }

    /// Reads to the end of the connection, or until it is enough.
    pub(super) async fn receive(&mut self, is_enough: impl Fn(&Received) -> bool) -> Received {
        let mut received = Received::default();
        let mut bytes: BTreeMap<String, BytesMut> = BTreeMap::new();
        while !is_enough(&received) {
            let frame = timeout(PATIENCE, self.reader.next()).await;
            let Ok(Some(frame)) = frame.unwrap_or_else(|_| panic!("{received:?}")) else { break };
            let name = |stream: u32| self.kinds.get(&stream).cloned().unwrap_or(stream.to_string());
            match frame {
                Frame::Data(Data { stream, bytes: data, last }) => {
                    bytes.entry(name(stream)).or_default().extend_from_slice(&data);
                    let text = String::from_utf8_lossy(&bytes[&name(stream)]).into_owned();
                    received.data.insert(name(stream), text);
                    if last {
                        received.ended.push(name(stream));
                    }
                }
                Frame::Reset { stream } => received.reset.push(name(stream)),
                Frame::Reply { .. } => received.replies += 1,
                Frame::Ping { id } => received.pings.push(id),
            }
        }
        received.ended.sort();
        received
    }
}

/// A client of WebSockets with the chosen subprotocol.
pub(super) async fn websocket(url: &str, protocol: &str) -> WebSocketStream<TokioIo<Upgraded>> {
    let (uri, _) = dial(url).await;
    let mut request = Request::get(uri.path())
        .header("host", "local")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    if !protocol.is_empty() {
        request = request.header("sec-websocket-protocol", format!("unknown, {protocol}"));
    }
    let response = send(url, request.body(Empty::<Bytes>::new()).unwrap()).await;
    assert_eq!(response.status(), 101);
    let chosen = response.headers().get("sec-websocket-protocol");
    assert_eq!(chosen.map_or("", |name| name.to_str().unwrap()), protocol);
    let io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    WebSocketStream::from_raw_socket(io, Role::Client, None).await
}

/// All messages up to the close, those of a channel together, and the code of the close.
pub(super) async fn messages(
    socket: &mut WebSocketStream<TokioIo<Upgraded>>,
) -> (BTreeMap<u8, Vec<u8>>, Option<u16>) {
    let mut received: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    loop {
        match timeout(PATIENCE, socket.next()).await.unwrap() {
            Some(Ok(Message::Binary(message))) => {
                received.entry(message[0]).or_default().extend_from_slice(&message[1..]);
            }
            Some(Ok(Message::Text(message))) => {
                let message = message.as_bytes();
                received.entry(message[0]).or_default().extend_from_slice(&message[1..]);
            }
            Some(Ok(Message::Close(close))) => {
                let _ = socket.flush().await;
                return (received, close.map(|close| close.code.into()));
            }
            Some(Ok(_)) => {}
            _ => return (received, None),
        }
    }
}
