//! Servers that answer as a test wants them to.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::ring;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A server that sends the bytes that `answer` returns for each request, and closes.
pub(super) async fn raw(
    answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
) -> (u16, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let received = requests.clone();
    let answer = Arc::new(answer);
    let port = listen(move |stream| {
        let (answer, received) = (answer.clone(), received.clone());
        async move {
            let mut stream = stream;
            let request = read_head(&mut stream).await;
            let said = answer(&request);
            received.lock().push(request);
            let _ = stream.write_all(&said).await;
            let _ = stream.shutdown().await;
            // Unread data would turn the close into a reset.
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
    })
    .await;
    (port, requests)
}

/// A TLS server that offers these protocols and sends back the request.
pub(super) async fn tls(protocols: &[&str]) -> u16 {
    let certified = rcgen::generate_simple_self_signed(["elsewhere".to_owned()]).unwrap();
    let key = certified.signing_key.serialize_der().try_into().unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    listen(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream).await;
            }
        }
    })
    .await
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let service = service_fn(|request: Request<Incoming>| async move {
        let said = format!("{:?} {}", request.version(), request.uri());
        // The body of a redirect to another host is reported.
        let response = Response::builder().status(302).header("location", "http://elsewhere/");
        Ok::<_, Infallible>(response.body(said).unwrap())
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// A server that handles each connection with `handle`.
pub(super) async fn listen<F>(handle: impl Fn(TcpStream) -> F + Send + 'static) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle(stream));
        }
    });
    port
}

/// What a client sends up to the empty line, or its first byte if it is not text.
pub(super) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await.unwrap_or(0) == 0 {
            break;
        }
        head.extend(byte);
        if !head[0].is_ascii_alphabetic() {
            break;
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}
