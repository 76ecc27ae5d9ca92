use std::convert::Infallible;

use bytes::{Buf, BufMut, BytesMut};
use futures::executor::block_on;
use futures::{FutureExt, SinkExt, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;
use crate::relay::{OpenStreams, relay};
use crate::spdy::{Control, Data, Frame, Opener, PIECE, Reader};

const IDLE: Duration = Duration::from_secs(3600);

type Reply = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

fn target() -> Uri {
    Uri::from_static("http://runtime:1/exec/token")
}

/// A server at the other end of the pipe that is returned.
fn server<F>(response: impl Fn(Request<Incoming>) -> F + Send + 'static) -> DuplexStream
where
    F: Future<Output = Reply> + Send + 'static,
{
    let (near, far) = duplex(1 << 16);
    tokio::spawn(async move {
        let service = service_fn(move |request| response(request).map(Ok::<_, Infallible>));
        let http = hyper::server::conn::http1::Builder::new();
        let _ = http.serve_connection(TokioIo::new(far), service).with_upgrades().await;
    });
    near
}

fn respond_with(status: u16, text: impl Into<Bytes>) -> Reply {
    let body = Full::new(text.into()).map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(status).header("location", "/x").body(body).unwrap()
}

/// Errors of this crate have status 599.
fn reply(response: Result<Answer, Error>) -> Reply {
    match response {
        Ok(response) => response.map(|body| {
            let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
                Ok(error) => *error,
                Err(error) => panic!("{error}"),
            });
            body.boxed_unsync()
        }),
        Err(error) => respond_with(599, error.to_string()),
    }
}

/// A server that passes requests to `backend`.
fn passing(backend: DuplexStream, idle: Duration) -> DuplexStream {
    let backend = parking_lot::Mutex::new(Some(backend));
    server(move |mut request| {
        let backend = backend.lock().take().unwrap();
        async move { reply(pass(&mut request, &target(), backend, idle).await) }
    })
}

/// A backend that upgrades, and then runs `session`.
fn upgrading<F>(
    session: impl Fn(TokioIo<Upgraded>) -> F + Send + Sync + Clone + 'static,
) -> DuplexStream
where
    F: Future<Output = ()> + Send + 'static,
{
    server(move |mut request| {
        let (upgrade, session) = (hyper::upgrade::on(&mut request), session.clone());
        tokio::spawn(async move { session(TokioIo::new(upgrade.await.unwrap())).await });
        let mut reply = respond_with(101, "");
        reply.headers_mut().insert("connection", "Upgrade".parse().unwrap());
        reply.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
        async { reply }
    })
}

async fn send_request(io: DuplexStream, request: Request<Empty<Bytes>>) -> Response<Incoming> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await.unwrap()
}

async fn text(response: Response<Incoming>) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn pass_returns_responses_without_upgrade_to_the_client() {
    let upgrade = || spdy_request(&target(), &["v4.channel.k8s.io"]);
    let plain = Request::new(Empty::new());
    for (request, backend, expected) in [
        (upgrade(), respond_with(404, "gone"), (404, "gone")),
        (upgrade(), respond_with(302, ""), (599, "redirect this request, which is not permitted")),
        (plain, respond_with(200, ""), (599, "Upgrade request required")),
    ] {
        let backend = parking_lot::Mutex::new(Some(backend));
        let backend = server(move |_| {
            let reply = backend.lock().take().unwrap();
            async { reply }
        });
        let (status, body) = text(send_request(passing(backend, IDLE), request).await).await;
        assert_eq!(status, expected.0, "{body}");
        assert!(body.contains(expected.1), "{body}");
    }
}

#[tokio::test]
async fn pass_closes_the_connection_after_a_refused_upgrade() {
    let backend = server(|_| {
        let mut reply = respond_with(403, "no");
        reply.headers_mut().insert("connection", "keep-alive, x-hop".parse().unwrap());
        reply.headers_mut().insert("x-hop", "1".parse().unwrap());
        async { reply }
    });
    // there is one backend: a second request that came through would fail
    let mut client = passing(backend, IDLE);
    let upgrade = "POST /exec HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\
                   connection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n";
    client.write_all(upgrade.as_bytes()).await.unwrap();
    client.write_all(b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut received = String::new();
    client.read_to_string(&mut received).await.unwrap();
    assert!(received.starts_with("HTTP/1.1 403 "), "{received}");
    assert_eq!(received.matches("HTTP/1.1 ").count(), 1, "{received}");
    assert!(!received.contains("x-hop") && received.contains("connection: close"), "{received}");
}

#[tokio::test]
async fn pass_removes_the_credentials_of_the_client() {
    let mut request = spdy_request(&target(), &["v4.channel.k8s.io", "channel.k8s.io"]);
    for (name, value) in
        [("authorization", "Bearer x"), ("impersonate-user", "root"), ("x-more", "y")]
    {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    *request.uri_mut() = Uri::from_static("/exec/ns/pod/c?command=ls");
    let backend = server(|request| {
        let line = format!("{} {}\n{:?}", request.method(), request.uri(), request.headers());
        async { respond_with(200, line) }
    });
    let (_, seen) = text(send_request(passing(backend, IDLE), request).await).await;
    assert!(seen.starts_with("POST /exec/token\n"), "{seen}");
    for part in ["runtime:1", "SPDY/3.1", "v4.channel.k8s.io", "x-more"] {
        assert!(seen.contains(part), "no {part}: {seen}");
    }
    assert!(!seen.contains("Bearer") && !seen.contains("impersonate"), "{seen}");
}

#[tokio::test]
async fn pass_copies_both_ways_until_a_side_closes() {
    let backend = upgrading(async |mut io| {
        let mut word = [0; 13];
        io.read_exact(&mut word).await.unwrap();
        io.write_all(&word).await.unwrap();
        io.flush().await.unwrap();
    });
    let response = send_request(passing(backend, IDLE), spdy_request(&target(), &[])).await;
    assert_eq!(response.status(), 101);
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let frame = [&spdy::data(1, 5, false)[..], b"hello"].concat();
    io.write_all(&frame).await.unwrap();
    let mut received = Vec::new();
    io.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, frame);
}

#[tokio::test(start_paused = true)]
async fn session_ends_after_the_idle_time() {
    let backend = upgrading(async |mut io| {
        io.write_all(b"one").await.unwrap();
        io.flush().await.unwrap();
        let _ = io.read(&mut [0]).await;
    });
    let idle = Duration::from_secs(60);
    let response = send_request(passing(backend, idle), spdy_request(&target(), &[])).await;
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let began = tokio::time::Instant::now();
    let mut received = Vec::new();
    let _ = io.read_to_end(&mut received).await;
    assert_eq!(received, b"one");
    assert!((60..=61).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

/// A streaming server that runs `cat`, or that fails with its streams open.
async fn cat(mut io: TokioIo<Upgraded>, fails: bool) {
    let (mut head, mut streams) = ([0; 8], Vec::new());
    while io.read_exact(&mut head).await.is_ok() {
        let (mut first, mut second) = (&head[..4], &head[4..]);
        let (first, second) = (first.get_u32(), second.get_u32());
        let mut body = vec![0; (second & 0xff_ffff) as usize];
        io.read_exact(&mut body).await.unwrap();
        if first == 0x8003_0001 {
            streams.push((&body[..4]).get_u32());
            let mut frame = BytesMut::from(&[0x80, 3, 0, 2, 0, 0, 0, 4][..]);
            frame.put_slice(&body[..4]);
            io.write_all(&frame).await.unwrap();
            io.flush().await.unwrap();
            if fails && streams.len() == 3 {
                return;
            }
            continue;
        }
        let [error, stdin, stdout] = streams[..] else { panic!("{streams:?}") };
        assert_eq!(first, stdin);
        let last = second >> 24 == 1;
        io.write_all(&spdy::data(stdout, body.len(), last)).await.unwrap();
        io.write_all(&body).await.unwrap();
        if last {
            let status = br#"{"status":"Success"}"#;
            io.write_all(&spdy::data(error, status.len(), true)).await.unwrap();
            io.write_all(status).await.unwrap();
        }
        io.flush().await.unwrap();
    }
}

fn websocket_request(protocols: &str) -> Request<Empty<Bytes>> {
    let request = Request::builder()
        .header("connection", "keep-alive, Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("sec-websocket-protocol", protocols)
        .method(Method::GET);
    request.body(Empty::new()).unwrap()
}

/// A WebSocket client of a command on that backend.
async fn command(
    backend: impl Future<Output = Result<Upgraded, Error>> + Send + 'static,
) -> WebSocketStream<TokioIo<Upgraded>> {
    command_until(backend, IDLE).await
}

/// A WebSocket client of a command, whose session ends when it was idle for so long.
async fn command_until(
    backend: impl Future<Output = Result<Upgraded, Error>> + Send + 'static,
    idle: Duration,
) -> WebSocketStream<TokioIo<Upgraded>> {
    let backend = parking_lot::Mutex::new(Some(backend));
    let front = server(move |mut request| {
        assert!(is_remote_command(request.headers()));
        let backend = backend.lock().take().unwrap();
        let streams = Streams { stdin: true, stdout: true, ..Streams::default() };
        let reply = reply(remote_command(&mut request, streams, backend, idle));
        async { reply }
    });
    let request = websocket_request("v5.channel.k8s.io, v4.channel.k8s.io");
    let response = send_request(front, request).await;
    assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(response.headers()["sec-websocket-protocol"], "v5.channel.k8s.io");
    let io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Client, None).await;
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary(&[1][..]));
    socket
}

async fn status(socket: &mut WebSocketStream<TokioIo<Upgraded>>) -> Value {
    let message = socket.next().await.unwrap().unwrap().into_data();
    assert_eq!(message[0], 3, "{message:?}");
    let Some(Ok(Message::Close(Some(close)))) = socket.next().await else {
        panic!("no close with a code")
    };
    assert_eq!(u16::from(close.code), 1000);
    serde_json::from_slice(&message[1..]).unwrap()
}

#[tokio::test]
async fn remote_command_translates_channels_and_streams() {
    let backend = upgrading(|io| cat(io, false));
    let mut socket = command(upgrade(backend, spdy_request(&target(), &[]))).await;
    let much = vec![7; 3 * PIECE];
    socket.send(Message::binary([&[0], &much[..]].concat())).await.unwrap();
    socket.send(Message::binary(&[4, 1][..])).await.unwrap();
    let mut received = Vec::new();
    while received.len() < much.len() {
        let message = socket.next().await.unwrap().unwrap().into_data();
        assert_eq!(message[0], 1);
        received.extend_from_slice(&message[1..]);
    }
    assert_eq!(received, much);
    socket.send(Message::binary(&[255, 0][..])).await.unwrap();
    assert_eq!(status(&mut socket).await["status"], "Success");
}

#[tokio::test(start_paused = true)]
async fn remote_command_is_idle_in_spite_of_pings() {
    let idle = Duration::from_secs(60);
    let backend = upgrading(|io| cat(io, false));
    let mut socket = command_until(upgrade(backend, spdy_request(&target(), &[])), idle).await;
    let began = tokio::time::Instant::now();
    tokio::time::sleep(idle / 2).await;
    socket.send(Message::binary(&[0, 7][..])).await.unwrap();
    let mut pings = 0;
    let mut each_second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            message = socket.next() => match message {
                Some(Ok(Message::Ping(_))) => pings += 1,
                Some(Ok(Message::Binary(bytes))) => assert_eq!(bytes, &[1, 7][..]),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            },
            _ = each_second.tick() => {
                let _ = socket.send(Message::Ping(Bytes::new())).await;
            }
        }
        assert!(began.elapsed() < 3 * idle, "it did not end");
    }
    assert!((90..=92).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(pings > 0);
}

#[tokio::test]
async fn remote_command_reports_backend_errors_as_status() {
    let mut refused = command(async { Err(Error::Timeout) }).await;
    let dead = upgrading(|io| cat(io, true));
    let mut dead = command(upgrade(dead, spdy_request(&target(), &[]))).await;
    let gone = server(|_| async { respond_with(404, "no such token\n") });
    let mut gone = command(upgrade(gone, spdy_request(&target(), &[]))).await;
    for (socket, expected) in [
        (&mut refused, "Internal error occurred: no response from the backend in time"),
        (
            &mut dead,
            "Internal error occurred: SPDY: closed before the command's status was received",
        ),
        (
            &mut gone,
            "Internal error occurred: unable to upgrade connection: no such token (404 Not Found)",
        ),
    ] {
        let status = status(socket).await;
        assert_eq!((&status["status"], &status["code"]), (&"Failure".into(), &500.into()));
        assert_eq!(status["message"], expected);
    }
}

#[tokio::test]
async fn websocket_rejects_invalid_handshakes() {
    for (method, version, key, expected) in [
        ("POST", "13", Some("x"), "the method is not GET"),
        ("GET", "8", Some("x"), "the version is not 13"),
        ("GET", "13", None, "no key"),
    ] {
        let mut request =
            Request::builder().method(method).header("sec-websocket-version", version);
        if let Some(key) = key {
            request = request.header("sec-websocket-key", key);
        }
        let error = websocket::accept(&request.body(()).unwrap(), None).unwrap_err();
        assert_eq!(error.to_string(), format!("invalid WebSocket handshake: {expected}"));
    }
}

/// All frames, and whether they ended without an error.
fn frames(bytes: &[u8]) -> (Vec<Frame>, bool) {
    let mut reader = Reader::new(bytes);
    let mut frames = Vec::new();
    loop {
        match block_on(reader.next()) {
            Ok(Some(frame)) => frames.push(frame),
            end => return (frames, end.is_ok()),
        }
    }
}

#[test]
fn spdy_frames_are_parsed() {
    let mut bytes = BytesMut::new();
    bytes.put_slice(&[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 5]);
    bytes.put_slice(&[0x80, 3, 0, 4, 0, 0, 0, 2, 9, 9]); // settings
    bytes.put_slice(&spdy::data(5, PIECE + 1, true));
    bytes.put_bytes(1, PIECE + 1);
    bytes.put_slice(&spdy::data(5, 0, false));
    bytes.put_slice(&[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0, 1]);
    bytes.put_slice(&spdy::ping(2));
    let part = |length, last| Frame::Data(Data { stream: 5, bytes: vec![1; length].into(), last });
    let expected = [
        Frame::Reply { stream: 5 },
        part(PIECE, false),
        part(1, true),
        part(0, false),
        Frame::Reset { stream: 7 },
        Frame::Ping { id: 2 },
    ];
    assert_eq!(frames(&bytes), (expected.into(), true));
    assert!(!frames(&bytes[..bytes.len() - 1]).1, "an end within a frame is none");
    assert!(!frames(&[0x80, 3, 0, 6, 0, 0, 0, 2, 0, 0]).1, "a ping has an id");
    assert!(!frames(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]).1, "control frames are short");
}

#[test]
fn spdy_streams_have_odd_ids_and_one_zlib_stream() {
    let mut opener = Opener::default();
    let (first, frame) = opener.open(&[("streamtype", "error")]);
    let (second, other) = opener.open(&[("streamtype", "stdin")]);
    assert_eq!((first, second), (1, 3));
    // id, no parent, priority: 10 bytes; then the start of the stream, once
    assert_eq!(frame[18..20], [0x78, 0x01]);
    assert_eq!(other[18], 0);
    for frame in [&frame, &other] {
        assert_eq!((&frame[4..8]).get_u32() as usize, frame.len() - 8);
        assert!(frame.ends_with(&[0, 0, 0, 0xff, 0xff]), "flushed");
    }
}

/// What a server receives of a client's bytes, and why the session is closed.
fn relayed(bytes: &[u8]) -> (Vec<u8>, Option<String>) {
    let mut received = Vec::new();
    let result = block_on(relay(bytes, &mut received, &mut OpenStreams::default()));
    (received, result.err().map(|error| error.to_string()))
}

fn control(kind: u32, body: &[u8]) -> Vec<u8> {
    Control { kind, flags: 0, body: Bytes::copy_from_slice(body) }.encoded().to_vec()
}

/// A `SYN_STREAM` with that header block.
fn syn_stream(stream: u8, block: &[u8]) -> Vec<u8> {
    control(1, &[&[0, 0, 0, stream, 0, 0, 0, 0, 0, 0], block].concat())
}

/// A zlib stream without a preset dictionary, flushed after each block.
fn deflated(blocks: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut deflater = flate2::Compress::new(flate2::Compression::best(), true);
    let deflated = blocks.iter().map(|block| {
        let mut out = Vec::with_capacity(block.len() + 1024);
        deflater.compress_vec(block, &mut out, flate2::FlushCompress::Sync).unwrap();
        out
    });
    deflated.collect()
}

/// Header blocks as a client in Go sends them, with the dictionary of SPDY: `streamtype: error` and
/// `streamtype: stdin`, each with `accept-charset: utf-8`.
const BLOCKS_OF_GO: [&[u8]; 2] = [
    b"\x78\xbb\xe3\xc6\xa7\xc2\x02\xe5\x0e\x70\x3a\x2b\x29\x4a\x4d\xcc\x85\x16\x25\xac\xa9\xa0\
      \x80\xc6\x5a\xd4\xb2\x82\x4d\x05\x00\x00\x00\xff\xff",
    b"\xc2\xae\xab\xb8\x04\x98\x93\xf0\xe8\x02\x00\x00\x00\xff\xff",
];

#[test]
fn valid_frames_of_a_client_are_passed_on_unchanged() {
    let mut opener = Opener::default();
    let ours =
        [opener.open(&[("streamtype", "error")]).1, opener.open(&[("streamtype", "stdin")]).1]
            .concat();
    let go = [syn_stream(1, BLOCKS_OF_GO[0]), syn_stream(3, BLOCKS_OF_GO[1])].concat();
    let later = [control(8, &[&[0, 0, 0, 1], BLOCKS_OF_GO[1]].concat())].concat();
    let others = [
        control(4, &[0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 100]),
        control(4, &[0, 0, 0, 0]),
        control(3, &[0, 0, 0, 1, 0, 0, 0, 5]),
        control(6, &[0, 0, 0, 1]),
        control(9, &[0, 0, 0, 1, 0, 0, 1, 0]),
        spdy::data(1, 5, true).to_vec(),
        b"hello".to_vec(),
        control(7, &[0; 8]),
    ];
    for frames in [ours, [go, later].concat(), others.concat()] {
        assert_eq!(relayed(&frames), (frames, None));
    }
    // long data is passed on in pieces, and only the last of them ends the stream
    let long = vec![7; PIECE + 1];
    let mut sent = vec![0, 0, 0, 1, 1, 0, 0x80, 1];
    sent.extend(&long);
    let (received, error) = relayed(&sent);
    assert_eq!(error, None);
    let (frames, complete) = frames(&received);
    assert!(complete);
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for frame in frames {
        let Frame::Data(data) = frame else { panic!("{frame:?}") };
        assert_eq!(data.stream, 1);
        bytes.extend(data.bytes);
        ends.push(data.last);
    }
    assert!(bytes == long);
    assert_eq!(ends.iter().rposition(|last| !last), Some(ends.len() - 2));
    assert_eq!(ends.last(), Some(&true));
}

/// CVE-2026-35469: a runtime allocates by the counts in a client's frames, and ends.
#[test]
fn frames_that_count_more_than_they_have_are_not_passed_on() {
    let header = |name: &[u8], value: &[u8], length: u32| {
        let mut block = vec![0, 0, 0, 1, 0, 0, 0, name.len() as u8];
        block.extend(name);
        block.put_u32(length);
        block.extend(value);
        block
    };
    let one = |block: &[u8]| syn_stream(1, &deflated(&[block])[0]);
    let sound = header(b"a", b"b", 1);
    let bomb = vec![0; 1 << 20];
    let [first, second] = &deflated(&[&sound, b"\xff\xff\xff\xff"])[..] else { panic!() };
    let mut odd_dictionary = BLOCKS_OF_GO[0].to_vec();
    odd_dictionary[2] = 0;
    let counts = "SPDY: a header block counts more than it has";
    let length = "SPDY: a control frame has another length than it counts";
    let short = "SPDY: a control frame is too short";
    for (name, frames, expected) in [
        ("settings", control(4, b"\xff\xff\xff\xff"), length),
        ("settings that are hidden", control(4, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), length),
        ("no settings", control(4, &[0, 0]), short),
        ("headers", one(b"\xff\xff\xff\xff"), counts),
        ("name", one(b"\0\0\0\x01\xff\xff\xff\xff"), counts),
        ("value", one(&header(b"a", b"b", u32::MAX)), counts),
        ("value that is longer by one", one(&header(b"a", b"b", 2)), counts),
        ("nothing", one(&[]), counts),
        (
            "count after the headers",
            one(&[&sound[..], b"\xff\xff\xff\xff"].concat()),
            "SPDY: a header block has more than it counts",
        ),
        ("second block", [syn_stream(1, first), syn_stream(3, second)].concat(), counts),
        ("bomb", one(&bomb), "SPDY: a header block is too long"),
        ("no zlib", syn_stream(1, b"\0\0\0\0"), "SPDY: a header block is not zlib"),
        ("no deflate", syn_stream(1, b"\x78\x01\xff\xff"), "SPDY: a header block is not deflated"),
        (
            "dictionary",
            syn_stream(1, &odd_dictionary),
            "SPDY: a header block has an unknown dictionary",
        ),
        ("frame without a block", control(1, &[0; 9]), short),
        ("reset with another frame behind", control(3, &[0; 16]), length),
        ("ping", control(6, &[0; 12]), length),
        ("unknown", control(5, &[]), "SPDY: a control frame is of no known kind"),
        ("long", vec![0x80, 3, 0, 4, 0, 0xff, 0xff, 0xff], "SPDY: a control frame is too long"),
        ("old", vec![0x80, 2, 0, 4, 0, 0, 0, 4], "SPDY: a control frame is not of version 3"),
    ] {
        let before = spdy::ping(1);
        let (received, error) = relayed(&[&before[..], &frames].concat());
        assert_eq!(error.as_deref(), Some(expected), "{name}");
        let passed = if name == "second block" { 12 + 8 + 10 + first.len() } else { 12 };
        assert_eq!(received.len(), passed, "{name}");
    }
}

/// The frame of CVE-2026-35469 does not reach the backend, on either way of a client to it.
#[tokio::test]
async fn sessions_with_an_invalid_frame_are_closed() {
    let settings = control(4, b"\xff\xff\xff\xff");
    let (sender, mut received_by_backends) = tokio::sync::mpsc::unbounded_channel();
    let backend = || {
        let sender = sender.clone();
        upgrading(move |mut io| {
            let sender = sender.clone();
            async move {
                let mut received = Vec::new();
                let _ = io.read_to_end(&mut received).await;
                sender.send(received).unwrap();
            }
        })
    };
    let response = send_request(passing(backend(), IDLE), spdy_request(&target(), &[])).await;
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    io.write_all(&[&spdy::ping(1)[..], &settings].concat()).await.unwrap();
    let mut received = Vec::new();
    let _ = io.read_to_end(&mut received).await;
    assert!(received.is_empty(), "{received:?}");
    assert_eq!(received_by_backends.recv().await.unwrap(), spdy::ping(1));

    let backend = parking_lot::Mutex::new(Some(backend()));
    let front = server(move |mut request| {
        let backend = backend.lock().take().unwrap();
        async move { reply(tunnel(&mut request, &target(), backend, IDLE).await) }
    });
    let request = websocket_request("SPDY/3.1+portforward.k8s.io");
    let response = send_request(front, request).await;
    assert_eq!(response.status(), 101);
    let io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Client, None).await;
    // a frame need not end where a message does
    for part in [&spdy::ping(1)[..3], &spdy::ping(1)[3..], &settings[..9], &settings[9..]] {
        socket.send(Message::binary(part.to_vec())).await.unwrap();
    }
    assert!(!matches!(socket.next().await, Some(Ok(_))));
    assert_eq!(received_by_backends.recv().await.unwrap(), spdy::ping(1));
}

/// A command whose client is gone comes to the end of its input before the connection is closed, on either way
/// of a client to it.
#[tokio::test]
async fn sessions_whose_client_is_gone_end_their_input() {
    let (sender, mut received_by_backends) = tokio::sync::mpsc::unbounded_channel();
    let backend = || {
        let sender = sender.clone();
        upgrading(move |io| {
            let sender = sender.clone();
            async move { sender.send(input(io).await).unwrap() }
        })
    };
    let mut socket = command(upgrade(backend(), spdy_request(&target(), &[]))).await;
    socket.send(Message::binary(&[0, 7][..])).await.unwrap();
    drop(socket);
    assert_eq!(received_by_backends.recv().await.unwrap(), Some(vec![7]));

    let response = send_request(passing(backend(), IDLE), spdy_request(&target(), &[])).await;
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut opener = Opener::default();
    for name in ["error", "stdin", "stdout"] {
        io.write_all(&opener.open(&[("streamtype", name)]).1).await.unwrap();
    }
    io.write_all(&[&spdy::data(3, 1, false)[..], &[7]].concat()).await.unwrap();
    io.flush().await.unwrap();
    drop(io);
    assert_eq!(received_by_backends.recv().await.unwrap(), Some(vec![7]));
}

/// What a backend receives as input, if that comes to its end while the connection is open.
async fn input(mut io: TokioIo<Upgraded>) -> Option<Vec<u8>> {
    let (mut head, mut received) = ([0; 8], Vec::new());
    loop {
        io.read_exact(&mut head).await.ok()?;
        let (mut first, mut second) = (&head[..4], &head[4..]);
        let (first, second) = (first.get_u32(), second.get_u32());
        let mut body = vec![0; (second & 0xff_ffff) as usize];
        io.read_exact(&mut body).await.ok()?;
        if first == 0x8003_0001 {
            let mut reply = BytesMut::from(&[0x80, 3, 0, 2, 0, 0, 0, 4][..]);
            reply.put_slice(&body[..4]);
            io.write_all(&reply).await.ok()?;
            io.flush().await.ok()?;
        } else if first == 3 {
            received.extend(body);
            if second >> 24 == 1 {
                return Some(received);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        frames(&bytes);
        relayed(&bytes);
        relayed(&syn_stream(1, &[b"\x78\x01", &bytes[..]].concat()));
    }
}
