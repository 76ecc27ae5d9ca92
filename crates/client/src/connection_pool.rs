//! Connections that requests share. Controllers watch some hundred resources, and a node each object
//! that its pods refer to: both would need a connection for each if these were not HTTP/2 streams of
//! shared ones. A server limits the streams of a connection, so further connections are opened as
//! needed. A server without TLS or HTTP/2, or one behind a proxy, is sent HTTP/1.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::http::{Request, Response, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connection as _, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};

/// Streams on a connection: what kube-apiserver takes.
const STREAMS: usize = 100;
/// As Go's client: watches whose events nobody reads for a while do not stop the others. What is
/// unread of one is limited by the window of its stream.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// A connection that was silent for so long while it has streams is pinged, as by Go's client: a request
/// that is lost on the way makes TCP send it again for a quarter of an hour.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How soon a ping is answered, else the connection is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// The shared connections to one server.
pub(super) struct ConnectionPool {
    config: Config,
    /// For a server that is not sent HTTP/2.
    http1: Client,
    is_http1: AtomicBool,
    connections: Mutex<Vec<PooledConnection>>,
    /// Held while a connection is opened: requests at the same time would open their own.
    opening: AsyncMutex<()>,
    /// The attempts to open a connection that failed, and the last one's error.
    failures: Mutex<(u64, Option<ConnectError>)>,
}

struct PooledConnection {
    client: Client,
    sender: http2::SendRequest<Body>,
    streams: Arc<Semaphore>,
}

/// A stream of a connection, held until its response is read.
pub(super) struct StreamPermit {
    _permit: OwnedSemaphorePermit,
}

/// No connection could be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
struct ConnectError(Arc<BoxError>);

/// The connection was closed before the request was sent on it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct ClosedError(#[source] hyper::Error);

/// Whether the request that failed so was not sent.
pub(super) fn is_unsent(error: &kube::Error) -> bool {
    causes(error).any(|cause| {
        cause.is::<ConnectError>()
            || cause.is::<ClosedError>()
            || cause.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect)
    })
}

fn causes(error: &kube::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source())
}

impl ConnectionPool {
    /// No connection yet to the server of that config.
    ///
    /// # Errors
    /// When the config is invalid.
    pub(super) fn new(config: Config) -> Result<Self, kube::Error> {
        let has_tls = config.cluster_url.scheme_str() == Some("https");
        Ok(Self {
            http1: Client::try_from(config.clone())?,
            is_http1: AtomicBool::new(!has_tls || config.proxy_url.is_some()),
            config,
            connections: Mutex::default(),
            opening: AsyncMutex::default(),
            failures: Mutex::default(),
        })
    }

    /// Sends a request over a connection that has a free stream. The response may be a watch: the stream
    /// is in use until the permit is dropped.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<(Response<Body>, Option<StreamPermit>), kube::Error> {
        let Some((client, permit)) = self.stream().await? else {
            return Ok((self.http1.send(request).await?, None));
        };
        let again = copy(&request);
        match (client.send(request).await, again) {
            (Ok(answer), _) => Ok((answer, Some(permit))),
            // A connection that was idle may be closed at the moment when it is used.
            (Err(error), Some(request))
                if causes(&error).any(|cause| cause.is::<ClosedError>()) =>
            {
                drop(permit);
                let Some((client, permit)) = self.stream().await? else { return Err(error) };
                Ok((client.send(request).await?, Some(permit)))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// A free stream and the client of its connection; none: the server is sent HTTP/1.
    async fn stream(&self) -> Result<Option<(Client, StreamPermit)>, kube::Error> {
        if let Some(stream) = self.free_stream() {
            return Ok(Some(stream));
        }
        let failures = self.failures.lock().0;
        let _opening = self.opening.lock().await;
        if self.is_http1.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // Another request may have opened one meanwhile, or have found that it cannot be done.
        if let Some(stream) = self.free_stream() {
            return Ok(Some(stream));
        }
        if let (now, Some(error)) = &*self.failures.lock()
            && *now != failures
        {
            return Err(kube::Error::Service(error.clone().into()));
        }
        match open(&self.config).await {
            Ok(Some(sender)) => {
                let client = client(&self.config, sender.clone())?;
                let streams = Arc::new(Semaphore::new(STREAMS));
                self.connections.lock().push(PooledConnection { client, sender, streams });
                Ok(self.free_stream())
            }
            Ok(None) => {
                self.is_http1.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => {
                let error = ConnectError(Arc::new(error));
                let mut failures = self.failures.lock();
                *failures = (failures.0.wrapping_add(1), Some(error.clone()));
                Err(kube::Error::Service(error.into()))
            }
        }
    }

    fn free_stream(&self) -> Option<(Client, StreamPermit)> {
        let mut connections = self.connections.lock();
        connections.retain(|connection| !connection.sender.is_closed());
        connections.iter().find_map(|connection| {
            let permit = Arc::clone(&connection.streams).try_acquire_owned().ok()?;
            Some((connection.client.clone(), StreamPermit { _permit: permit }))
        })
    }
}

/// A copy of the request; `None`: its body is a stream.
pub(super) fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// Opens a connection; `None`: the server does not speak HTTP/2.
async fn open(config: &Config) -> Result<Option<http2::SendRequest<Body>>, BoxError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let mut tls =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_only();
    let name = config.tls_server_name.clone().and_then(|name| name.try_into().ok());
    if let Some(name) = name {
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = tls.enable_all_versions().wrap_connector(tcp);
    let stream = connector.oneshot(Uri::clone(&config.cluster_url)).await?;
    if !stream.connected().is_negotiated_h2() {
        return Ok(None);
    }
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .handshake(stream)
        .await?;
    // Its end is seen by the requests on it.
    tokio::spawn(connection);
    Ok(Some(sender))
}

/// A client of one connection, as kube makes them.
fn client(config: &Config, sender: http2::SendRequest<Body>) -> Result<Client, kube::Error> {
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Sender(sender));
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

#[derive(Clone)]
struct Sender(http2::SendRequest<Body>);

impl Service<Request<Body>> for Sender {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let sent = self.0.try_send_request(request);
        Box::pin(async move {
            sent.await.map_err(|mut error| match error.take_message() {
                Some(_) => ClosedError(error.into_error()).into(),
                None => error.into_error().into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicUsize;

    use axum::body::Body as Content;
    use futures::future::join_all;
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use hyper_util::server::conn::auto::Builder;
    use longshore_metrics::RestClient;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::transport::Shared;
    use crate::{Credentials, Limits};

    /// Answers, and says that it has.
    struct Answers(tokio::sync::mpsc::Sender<()>);

    impl hyper::service::Service<Request<Incoming>> for Answers {
        type Response = Response<Content>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<Content>, Infallible>>;

        fn call(&self, _: Request<Incoming>) -> Self::Future {
            let _ = self.0.try_send(());
            std::future::ready(Ok(Response::new(Content::from("answer"))))
        }
    }

    /// A TLS listener with these protocols.
    async fn listen(protocols: &[&str]) -> (TlsAcceptor, tokio::net::TcpListener, Config) {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(pair.signing_key.serialize_der());
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key.unwrap())
        .unwrap();
        tls.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let mut config = Config::new(url.parse().unwrap());
        config.accept_invalid_certs = true;
        (acceptor, listener, config)
    }

    /// A server with these protocols whose responses never end; counts its connections.
    async fn serve(protocols: &[&str]) -> (Config, Arc<AtomicUsize>) {
        let (acceptor, listener, config) = listen(protocols).await;
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    count.fetch_add(1, Ordering::SeqCst);
                    let answer = service_fn(|_: Request<Incoming>| async {
                        let endless = futures::stream::pending::<Result<String, Infallible>>();
                        Ok::<_, Infallible>(Response::new(Content::from_stream(endless)))
                    });
                    let mut server = Builder::new(TokioExecutor::new());
                    server.http2().max_concurrent_streams(u32::try_from(STREAMS).unwrap());
                    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        (config, connections)
    }

    #[tokio::test]
    async fn connection_pool_shares_connections_up_to_the_stream_limit() {
        let (config, connections) = serve(&["h2", "http/1.1"]).await;
        let pool = ConnectionPool::new(config).unwrap();
        let watch = || async {
            let request = Request::get("/watch").body(Body::empty()).unwrap();
            pool.send(request).await.unwrap()
        };
        let mut open = join_all((0..2 * STREAMS + 1).map(|_| watch())).await;
        assert_eq!(connections.load(Ordering::SeqCst), 3);
        // A stream that ends is reused, without a new connection.
        open.truncate(STREAMS);
        open.extend(join_all((0..STREAMS).map(|_| watch())).await);
        assert_eq!(connections.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn connection_pool_supports_http1() {
        let (config, connections) = serve(&["http/1.1"]).await;
        let pool = ConnectionPool::new(config).unwrap();
        let request = || Request::get("/watch").body(Body::empty()).unwrap();
        let first = pool.send(request()).await.unwrap();
        let second = pool.send(request()).await.unwrap();
        // One of them has shown that the server does not speak HTTP/2.
        assert_eq!(connections.load(Ordering::SeqCst), 3);
        assert!(first.0.status().is_success() && second.0.status().is_success());
    }

    #[tokio::test]
    async fn connection_pool_has_all_requests_of_a_client() {
        let (config, connections) = serve(&["h2", "http/1.1"]).await;
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: '{}', insecure-skip-tls-verify: true}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
            config.cluster_url
        );
        std::fs::write(file.path(), text).unwrap();
        let limits =
            Limits { component: "kubelet", qps: 0, burst: 0, timeout: Duration::from_secs(10) };
        let metrics = RestClient::new(&longshore_metrics::Registry::default());
        let client = Shared::open(Credentials::of(file.path()), limits, metrics).await.unwrap();
        let send = |path: &'static str| {
            client.send(Request::get(path).body(kube::client::Body::empty()).unwrap())
        };
        let mut open = Vec::new();
        for path in ["/api/v1/pods?watch=true", "/api/v1/nodes?watch=1", "/apis/a/v1/b?&watch=true"]
        {
            open.push(send(path).await.unwrap());
            assert_eq!(connections.load(Ordering::SeqCst), 1);
        }
        open.push(send("/api/v1/pods").await.unwrap());
        assert_eq!(connections.load(Ordering::SeqCst), 1);
    }

    /// A TLS server of HTTP/2 that says on each connection, once it has answered a request, that it takes
    /// no more.
    async fn serve_one_each() -> Config {
        let (acceptor, listener, config) = listen(&["h2"]).await;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let (answered, mut is_answered) = tokio::sync::mpsc::channel(1);
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let served = server.serve_connection(TokioIo::new(stream), Answers(answered));
                tokio::spawn(async move {
                    let mut served = std::pin::pin!(served);
                    tokio::select! {
                        _ = served.as_mut() => return,
                        _ = is_answered.recv() => served.as_mut().graceful_shutdown(),
                    }
                    let _ = served.await;
                });
            }
        });
        config
    }

    #[tokio::test]
    async fn connection_pool_leaves_connections_that_the_server_ends() {
        let config = serve_one_each().await;
        let pool = ConnectionPool::new(config).unwrap();
        for _ in 0..50 {
            let request = Request::post("/api").body(Body::from(b"{}".to_vec())).unwrap();
            let (answer, _permit) = pool.send(request).await.unwrap();
            let bytes = answer.into_body().collect_bytes().await.unwrap();
            assert_eq!(&bytes[..], b"answer");
        }
    }

    #[tokio::test]
    async fn connection_pool_says_that_requests_were_not_sent() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        drop(listener);
        let pool = ConnectionPool::new(Config::new(url.parse().unwrap())).unwrap();
        let send = || pool.send(Request::get("/").body(Body::empty()).unwrap());
        for answer in join_all((0..20).map(|_| send())).await {
            assert!(is_unsent(&answer.map(drop).unwrap_err()));
        }
    }
}
