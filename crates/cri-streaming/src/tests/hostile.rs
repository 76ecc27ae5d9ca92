//! Clients that break the rules.

use longshore_streams::spdy::{Control, Opener, SYN_STREAM};
use longshore_streams::{STREAM_TYPE, spdy as frames};
use proptest::prelude::*;
use tokio::io::duplex;

use super::clients::Spdy;
use super::*;
use crate::connection::Conditions;
use crate::port_forward::{self, Sandbox};
use crate::remote_command::{self, Channels, Command, Version};
use crate::spdy::MAX_STREAMS;

#[tokio::test]
async fn streams_of_a_connection_are_bounded() {
    let running = Running::start().await;
    let mut client = Spdy::connect(&running.port_forward(&[]), &[]).await;
    let count = MAX_STREAMS + 100;
    for i in 0..count {
        let id = i.to_string();
        client.open_as(&id, &[(STREAM_TYPE, "data"), ("port", "82"), ("requestid", &id)]).await;
    }
    let all = |received: &clients::Received| received.replies + received.reset.len() == count;
    let received = client.receive(all).await;
    assert_eq!((received.replies, received.reset.len()), (MAX_STREAMS, 100));
    running.end().await;
}

#[tokio::test]
async fn streams_of_a_command_are_checked() {
    let running = Running::start().await;
    let mut client = Spdy::connect(&running.exec(&["cat"], IN_OUT), &["v4.channel.k8s.io"]).await;
    client.open("error").await;
    for (name, kind) in [("second", "error"), ("unknown", "data"), ("empty", "")] {
        client.open_as(name, &[(STREAM_TYPE, kind)]).await;
    }
    client.open_as("none", &[("other", "x")]).await;
    let received = client.receive(|received| received.reset.len() == 4).await;
    assert_eq!(
        (received.reset, received.replies),
        (["second", "unknown", "empty", "none"].map(str::to_owned).to_vec(), 1)
    );
    client.open("stdout").await;
    let stdin = client.open("stdin").await;
    running.until_sessions(1).await;
    // it runs, and takes no more
    client.open("stderr").await;
    let received = client.receive(|received| !received.reset.is_empty()).await;
    assert_eq!(received.reset, ["stderr"]);
    // data of streams that are not there, numbers that are not the client's, and pings
    client.data(99, b"lost", true).await;
    client.writer.write_all(&frames::ping(1)).await.unwrap();
    client.writer.write_all(&frames::ping(2)).await.unwrap();
    client.writer.write_all(&frames::ping(3)).await.unwrap();
    client.data(stdin, b"in", true).await;
    let received = client.receive(|_| false).await;
    assert_eq!((received.data["stdout"].as_str(), &received.pings[..]), ("in", &[1, 3][..]));
    running.end().await;
}

#[tokio::test]
async fn what_breaks_the_protocol_ends_the_session() {
    let running = Running::start().await;
    let control =
        |kind, body: &'static [u8]| Control { kind, flags: 0, body: body.into() }.encoded();
    for bytes in [
        control(SYN_STREAM, b"\0\0\0\x09\0\0\0\0\0\0\xff\xff\xff\xff"),
        control(4, b"\xff\xff\xff\xff"),
        bytes::Bytes::from_static(b"\x80\x03\0\x01\0\xff\xff\xff"),
        bytes::Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n"),
    ] {
        let mut client = Spdy::connect(&running.exec(&["sleep"], IN_OUT), &[]).await;
        for kind in ["error", "stdin", "stdout"] {
            client.open(kind).await;
        }
        running.until_sessions(1).await;
        client.writer.write_all(&bytes).await.unwrap();
        client.writer.shutdown().await.unwrap();
        client.receive(|_| false).await;
        running.until_sessions(0).await;
    }
    let mut socket =
        clients::websocket(&running.exec(&["sleep"], IN_OUT), "v4.base64.channel.k8s.io").await;
    running.until_sessions(1).await;
    futures::SinkExt::send(&mut socket, tokio_tungstenite::tungstenite::Message::text("0???"))
        .await
        .unwrap();
    running.until_sessions(0).await;
    running.end().await;
}

/// What a hostile client may send: any bytes, and frames that are nearly right.
fn sent() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop::sample::select(vec!["error", "stdin", "stdout", "resize", "data", ""]);
    let opened = prop::collection::vec(kind, 0..6).prop_map(|kinds| {
        let mut opener = Opener::default();
        let open = |kind| opener.open(&[(STREAM_TYPE, kind), ("port", "81")]).1.to_vec();
        kinds.into_iter().map(open).collect::<Vec<_>>().concat()
    });
    let control = (0u32..12, any::<u8>(), prop::collection::vec(any::<u8>(), 0..30)).prop_map(
        |(kind, flags, body)| {
            Control { kind, flags: u32::from(flags), body: body.into() }.encoded().to_vec()
        },
    );
    let data = (0u32..16, prop::collection::vec(any::<u8>(), 0..40), any::<bool>()).prop_map(
        |(stream, bytes, last)| [&frames::data(stream, bytes.len(), last)[..], &bytes].concat(),
    );
    let any_bytes = prop::collection::vec(any::<u8>(), 0..60);
    let rest = prop::collection::vec(prop_oneof![3 => data, 2 => control, 1 => any_bytes], 0..8);
    (opened, rest).prop_map(|(opened, rest)| [opened, rest.concat()].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn extremes_of_clients(sent in sent(), channels in 0..Channels::NAMES.len()) {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        tokio.block_on(async {
            let runtime = Arc::new(Scripted::default());
            let conditions = Conditions { idle: Duration::from_secs(60), stop: CancellationToken::new() };
            let command = || Command {
                container_id: "c".to_owned(), command: Some(vec!["cat".to_owned()]), streams: IN_OUT,
            };
            let creation = Duration::from_secs(30);
            for part in 0..3 {
                let (mut near, far) = duplex(1 << 10);
                let client = async {
                    let (mut read, mut write) = tokio::io::split(&mut near);
                    let write = async {
                        let _ = write.write_all(&sent).await;
                        let _ = write.shutdown().await;
                    };
                    let mut received = tokio::io::sink();
                    let _ = tokio::join!(write, copy(&mut read, &mut received));
                };
                let server = async {
                    match part {
                        0 => remote_command::serve_spdy(far, &conditions, creation, Version::V4, command(), &*runtime).await,
                        1 => {
                            let sandbox = Sandbox { id: "s".to_owned(), runtime: runtime.clone() };
                            port_forward::serve_spdy(far, &conditions, creation, sandbox).await;
                        }
                        _ => remote_command::serve_websocket(far, &conditions, Channels::NAMES[channels].1, command(), &*runtime).await,
                    }
                };
                tokio::join!(client, server);
            }
            // tasks of forwarded connections were cancelled
            while runtime.sessions.load(Ordering::SeqCst) > 0 {
                tokio::task::yield_now().await;
            }
        });
    }
}
