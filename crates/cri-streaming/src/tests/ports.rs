//! Port-forward.

use futures::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use super::clients::{Spdy, messages, websocket};
use super::*;

const PROTOCOLS: &[&str] = &["portforward.k8s.io"];

/// Forwards connections for a client, with and without a failure.
async fn forward_ports<S: tokio::io::AsyncRead + tokio::io::AsyncWrite>(client: &mut Spdy<S>) {
    let first = client.forward("a", "80").await;
    let second = client.forward("b", "80").await;
    client.forward("c", "9").await;
    client.data(second, b"second", true).await;
    client.data(first, b"first", true).await;
    let received = client.receive(|received| received.ended.len() == 6).await;
    assert_eq!(received.data["data a"], "80 of s1: first");
    assert_eq!(received.data["data b"], "80 of s1: second");
    assert_eq!((received.data["error a"].as_str(), received.data["data c"].as_str()), ("", ""));
    let failure = "error forwarding port 9 to pod s1, uid : connection refused";
    assert_eq!(received.data["error c"], failure);
    assert_eq!(received.replies, 6);
    // one after another, on one connection
    for i in 0..20 {
        let id = format!("later {i}");
        let stream = client.forward(&id, "81").await;
        client.data(stream, b"hello", false).await;
        let received = client.receive(|received| received.ended.len() == 2).await;
        assert_eq!(received.data[&format!("data {id}")], "hello");
    }
}

#[tokio::test]
async fn ports_are_forwarded_over_spdy() {
    let running = Running::start().await;
    let mut client = Spdy::connect(&running.port_forward(&[]), PROTOCOLS).await;
    forward_ports(&mut client).await;
    running.end().await;
}

#[tokio::test]
async fn ports_are_forwarded_for_clients_without_request_ids() {
    let running = Running::start().await;
    let mut client = Spdy::connect(&running.port_forward(&[80]), &[]).await;
    let headers = |kind: &'static str| [("streamtype", kind), ("port", "81")];
    client.open_as("error", &headers("error")).await;
    let data = client.open_as("data", &headers("data")).await;
    client.data(data, b"hello", true).await;
    let received = client.receive(|received| received.ended.len() == 2).await;
    assert_eq!(received.data["data"], "hello");
    running.end().await;
}

#[tokio::test]
async fn ports_are_forwarded_through_a_tunnel() {
    let running = Running::start().await;
    let socket = websocket(&running.port_forward(&[]), "SPDY/3.1+portforward.k8s.io").await;
    let (sink, source) = socket.split();
    let sink = sink.sink_map_err(std::io::Error::other);
    let sink = sink.with(async |bytes| Ok::<_, std::io::Error>(Message::Binary(bytes)));
    let source = source.filter_map(async |message| match message {
        Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
        Ok(_) => None,
        Err(error) => Some(Err(std::io::Error::other(error))),
    });
    let io = tokio::io::join(
        StreamReader::new(Box::pin(source)),
        Box::pin(SinkWriter::new(CopyToBytes::new(sink))),
    );
    let mut client = Spdy::new(io);
    forward_ports(&mut client).await;
    running.end().await;
}

#[tokio::test]
async fn ports_are_forwarded_over_a_websocket() {
    let running = Running::start().await;
    let mut socket = websocket(&running.port_forward(&[81, 9]), "v4.channel.k8s.io").await;
    socket.send(Message::binary(&b"\0hello"[..])).await.unwrap();
    let (received, code) = messages(&mut socket).await;
    assert_eq!(received[&0], b"\x51\0hello");
    assert_eq!(received[&1], b"\x51\0");
    assert_eq!(received[&2], b"\x09\0");
    assert_eq!(received[&3], b"\x09\0error forwarding port 9 to pod s1, uid : connection refused");
    assert_eq!(code, Some(1000));
    let mut socket = websocket(&running.port_forward(&[81]), "v4.base64.channel.k8s.io").await;
    socket.send(Message::text("0aGVsbG8=")).await.unwrap();
    let (received, _) = messages(&mut socket).await;
    assert_eq!(received[&b'0'], b"UQA=aGVsbG8=");
    running.end().await;
}

#[tokio::test]
async fn invalid_streams_of_port_forward_are_refused() {
    let creation_timeout = Duration::from_millis(100);
    let running = Running::start_with(Options { creation_timeout, ..Options::default() }).await;
    let mut client = Spdy::connect(&running.port_forward(&[]), PROTOCOLS).await;
    let long = "x".repeat(300);
    for (name, headers) in [
        ("no port", &[("streamtype", "data")][..]),
        ("port 0", &[("streamtype", "data"), ("port", "0")]),
        ("port 65536", &[("streamtype", "data"), ("port", "65536")]),
        ("port of words", &[("streamtype", "data"), ("port", "http")]),
        ("no type", &[("port", "80")]),
        ("type", &[("streamtype", "stdin"), ("port", "80")]),
        ("long", &[("streamtype", "data"), ("port", "80"), ("requestid", &long)]),
    ] {
        client.open_as(name, headers).await;
        let received = client.receive(|received| !received.reset.is_empty()).await;
        assert_eq!((received.reset, received.replies), (vec![name.to_owned()], 0));
    }
    // a second one, and one whose other does not come
    let headers = [("streamtype", "error"), ("port", "80"), ("requestid", "1")];
    client.open_as("first", &headers).await;
    client.open_as("second", &headers).await;
    let received = client.receive(|received| !received.ended.is_empty()).await;
    assert_eq!(received.reset, ["second"]);
    assert_eq!(received.data["first"], "request 1: timed out waiting for streams");
    running.end().await;
}

#[tokio::test]
async fn a_reset_ends_one_forwarded_connection() {
    let running = Running::start().await;
    let mut client = Spdy::connect(&running.port_forward(&[]), PROTOCOLS).await;
    let stays = client.forward("a", "81").await;
    let ends = client.forward("b", "82").await;
    running.until_sessions(2).await;
    let reset = longshore_streams::spdy::reset(ends, longshore_streams::spdy::CANCEL);
    client.writer.write_all(&reset).await.unwrap();
    running.until_sessions(1).await;
    client.data(stays, b"hello", false).await;
    let received = client.receive(|received| received.ended.len() == 3).await;
    assert_eq!(received.data["data a"], "hello");
    drop(client);
    running.end().await;
}

#[tokio::test]
async fn ports_are_forwarded_by_kube_rs() {
    use k8s_openapi::api::core::v1::Pod;
    let running = Running::start().await;
    let client = super::commands::kube_client(running.port_forward(&[81]));
    let pods: kube::Api<Pod> = kube::Api::default_namespaced(client);
    let mut forwarder = pods.portforward("p", &[81]).await.unwrap();
    let mut stream = forwarder.take_stream(81).unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut received = [0; 5];
    stream.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"hello");
    running.end().await;
}
