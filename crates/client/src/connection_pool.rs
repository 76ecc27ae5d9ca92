//! Connections that watches share. Controllers watch some hundred resources, and a node each object
//! that its pods refer to: both would need a connection for each if these were not HTTP/2 streams of
//! shared ones. A server limits the streams of a connection, so further connections are opened as
//! needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::http::{Request, Response};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};
use tower::ServiceBuilder;

/// Streams on a connection: what kube-apiserver takes.
const STREAMS: usize = 100;
/// As Go's client: watches whose events nobody reads for a while do not stop the others. What is
/// unread of one is limited by the window of its stream.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// TCP keepalive detects dead connections without wakeups.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 3;

/// The shared connections to one server.
pub(super) struct ConnectionPool {
    config: Config,
    pool: Mutex<Vec<Arc<PooledConnection>>>,
}

struct PooledConnection {
    client: Client,
    streams: Arc<Semaphore>,
    /// Held by the request that opens the connection: those at the same time would open their own.
    opening: AsyncMutex<()>,
    open: AtomicBool,
}

/// A stream of a watch on a connection, held while the watch lasts.
pub(super) struct StreamPermit {
    connection: Arc<PooledConnection>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        // It may have ended with the connection.
        self.connection.open.store(false, Ordering::Relaxed);
    }
}

impl ConnectionPool {
    /// No connection yet to the server of that config.
    pub(super) fn new(config: Config) -> Self {
        Self { config, pool: Mutex::default() }
    }

    /// Sends a request over a connection that has a free stream. Its response may be a watch.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<(Response<Body>, StreamPermit), kube::Error> {
        let stream = self.acquire()?;
        let connection = &stream.connection;
        let mut opening = Some(connection.opening.lock().await);
        if connection.open.load(Ordering::Relaxed) {
            opening = None;
        }
        let answer = connection.client.send(request).await?;
        connection.open.store(true, Ordering::Relaxed);
        drop(opening);
        Ok((answer, stream))
    }

    fn acquire(&self) -> Result<StreamPermit, kube::Error> {
        let mut pool = self.pool.lock();
        let free = |connection: &Arc<PooledConnection>| {
            let permit = Arc::clone(&connection.streams).try_acquire_owned().ok()?;
            Some(StreamPermit { connection: Arc::clone(connection), _permit: permit })
        };
        if let Some(stream) = pool.iter().find_map(free) {
            return Ok(stream);
        }
        let connection = Arc::new(PooledConnection {
            client: connect(&self.config)?,
            streams: Arc::new(Semaphore::new(STREAMS)),
            opening: AsyncMutex::default(),
            open: AtomicBool::default(),
        });
        pool.push(Arc::clone(&connection));
        free(&connection)
            .ok_or_else(|| kube::Error::Service("a new connection has no free stream".into()))
    }
}

/// A client of one connection, as kube makes them, but for HTTP/2 where the server speaks it.
fn connect(config: &Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        return Client::try_from(config.clone());
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    let name = config.tls_server_name.clone().and_then(|name| name.try_into().ok());
    if let Some(name) = name {
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = tls.enable_all_versions().wrap_connector(tcp);
    let hyper: HyperClient<_, Body> = HyperClient::builder(TokioExecutor::new())
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(hyper);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
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

    /// A server with these protocols whose responses never end; counts its connections.
    async fn serve(protocols: &[&str]) -> (Config, Arc<AtomicUsize>) {
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
        let mut config = Config::new(url.parse().unwrap());
        config.accept_invalid_certs = true;
        (config, connections)
    }

    #[tokio::test]
    async fn connection_pool_shares_connections_up_to_the_stream_limit() {
        let (config, connections) = serve(&["h2", "http/1.1"]).await;
        let pool = ConnectionPool::new(config);
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
        let pool = ConnectionPool::new(config);
        let request = || Request::get("/watch").body(Body::empty()).unwrap();
        let first = pool.send(request()).await.unwrap();
        let second = pool.send(request()).await.unwrap();
        assert_eq!(connections.load(Ordering::SeqCst), 2);
        assert!(first.0.status().is_success() && second.0.status().is_success());
    }

    #[tokio::test]
    async fn connection_pool_has_the_watches_of_all_kinds_and_no_other_requests() {
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
        assert_eq!(connections.load(Ordering::SeqCst), 2);
    }
}
