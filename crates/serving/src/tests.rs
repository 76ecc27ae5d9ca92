use std::convert::Infallible;
use std::task::Poll;

use futures::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::StatusCode;
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower::service_fn;

use super::*;

/// A port with a handler of paths, its address, and the token that stops it.
async fn port(options: Options) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handler = Routes::new(service_fn(answer));
    let stop = CancellationToken::new();
    let served = serve(listener, None, Arc::new(handler), options, stop.clone());
    (address, stop, tokio::spawn(served))
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    match request.uri().path() {
        "/panic" => panic!("here"),
        "/slow" => sleep(Duration::from_secs(5)).await,
        _ => assert!(request.extensions().get::<Arc<Peer>>().unwrap().address.is_some()),
    }
    Ok(Response::new(Full::from("fine")))
}

/// A connection to the port, and its end.
async fn connect(
    address: SocketAddr,
) -> (http1::SendRequest<Full<Bytes>>, JoinHandle<Result<(), hyper::Error>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

async fn get(sender: &mut http1::SendRequest<Full<Bytes>>, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).header("host", "port").body(Full::default()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&text).into_owned())
}

// Finding 2: a panic in one request ended the daemon
#[tokio::test]
async fn panic_in_a_request_is_contained() {
    let (address, _stop, _port) = port(Options::DEFAULT).await;
    let (mut sender, _) = connect(address).await;
    assert_eq!(get(&mut sender, "/panic").await.0, 500);
    assert_eq!(get(&mut sender, "/").await, (StatusCode::OK, "fine".to_owned()));
}

#[tokio::test]
async fn panic_in_a_response_body_is_contained() {
    let frames =
        stream::poll_fn(|_| -> Poll<Option<Result<Frame<Bytes>, BoxError>>> { panic!("here") });
    let held = Arc::new(());
    let mut body = Guarded::new(StreamBody::new(frames), Arc::clone(&held));
    assert!(body.frame().await.unwrap().is_err());
    assert!(body.frame().await.is_none());
    assert_eq!(Arc::strong_count(&held), 2);
    drop(body);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed() {
    let (address, _stop, _port) = port(Options::DEFAULT).await;
    let began = tokio::time::Instant::now();
    let (_unused, ended) = connect(address).await;
    drop(ended.await.unwrap());
    let seconds = began.elapsed().as_secs();
    assert!((15..20).contains(&seconds), "without a request: {seconds} s");
    let (mut sender, ended) = connect(address).await;
    assert_eq!(get(&mut sender, "/").await.0, 200);
    let began = tokio::time::Instant::now();
    drop(ended.await.unwrap());
    let seconds = began.elapsed().as_secs();
    assert!((90..95).contains(&seconds), "after a request: {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_active_requests() {
    for (completes_requests, expected) in [(true, Some(200)), (false, None)] {
        let (address, stop, port) = port(Options { completes_requests, ..Options::DEFAULT }).await;
        let (mut sender, _) = connect(address).await;
        let request = Request::get("/slow").header("host", "port").body(Full::default()).unwrap();
        let slow = tokio::spawn(sender.send_request(request));
        sleep(Duration::from_secs(1)).await;
        stop.cancel();
        let answer = slow.await.unwrap().ok().map(|response| response.status().as_u16());
        assert_eq!(answer, expected);
        port.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
    }
}
