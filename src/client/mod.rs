//! The way to the apiserver: a [`kube::Client`] from a kubeconfig file that keeps to a rate limit,
//! gives up on a silent server, and takes up renewed certificates and edits of the kubeconfig.
//!
//! Everything that speaks with the apiserver is given a client made here.

mod bucket;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use axum::http::header::USER_AGENT;
use axum::http::{HeaderValue, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use longshore_metrics::RestClient;
use tower::{BoxError, Service};

pub use self::bucket::TokenBucket;
use crate::config::{KUBERNETES_VERSION, go_arch};

/// How often the files behind a client are looked at for renewal.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);
/// How long a connection may be silent; a watch hears a bookmark each minute.
const SILENCE: Duration = Duration::from_secs(300);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig, or a file that it names, cannot be used.
    #[error("kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The kubeconfig file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// The credentials cannot be used for a connection.
    #[error("kubeconfig {}: {source}", path.display())]
    Connection {
        /// The kubeconfig file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<kube::Error>,
    },
}

/// The manners of one client.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Requests in a second; 0: no limit.
    pub qps: i32,
    /// Requests at once.
    pub burst: i32,
    /// How long the apiserver may take to begin its answer.
    pub timeout: Duration,
}

/// A client for the apiserver of that kubeconfig file.
///
/// Nothing is sent yet: a server that is down shows with the first request. How requests go is
/// told to `metrics`.
pub async fn connect(
    kubeconfig: &Path,
    limits: Limits,
    metrics: RestClient,
) -> Result<Client, ClientError> {
    let stamp = stamp(kubeconfig);
    let (client, host) = load(kubeconfig, limits).await?;
    let default_namespace = client.default_namespace().to_owned();
    let now = Instant::now();
    let bucket = (limits.qps > 0)
        .then(|| TokenBucket::new(f64::from(limits.qps), f64::from(limits.burst.max(1)), now));
    let transport = Transport(Arc::new(Shared {
        kubeconfig: kubeconfig.to_owned(),
        limits,
        bucket: bucket.map(Mutex::new),
        current: Mutex::new(Current { client, host, stamp, looked: now }),
        metrics,
    }));
    Ok(ClientBuilder::new(transport, default_namespace).build())
}

/// The client, and the server's `host:port`.
async fn load(path: &Path, limits: Limits) -> Result<(Client, Arc<str>), ClientError> {
    let error =
        |source| ClientError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(error)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(error)?;
    config.connect_timeout = Some(limits.timeout);
    config.write_timeout = Some(limits.timeout);
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    // callers know best what may be sent twice, and each retry would pass by the rate limit
    config.default_retry = false;
    let host = config.cluster_url.authority().map_or("", |authority| authority.as_str()).into();
    let client = Client::try_from(config).map_err(|source| ClientError::Connection {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    Ok((client, host))
}

/// The files behind a client with the time that each was changed.
type Stamp = Vec<(PathBuf, Option<SystemTime>)>;

fn stamp(kubeconfig: &Path) -> Stamp {
    let mut files = vec![kubeconfig.to_owned()];
    if let Ok(content) = Kubeconfig::read_from(kubeconfig) {
        let clusters = content.clusters.into_iter().filter_map(|named| named.cluster);
        files.extend(
            clusters.filter_map(|cluster| cluster.certificate_authority).map(PathBuf::from),
        );
        for user in content.auth_infos.into_iter().filter_map(|named| named.auth_info) {
            files.extend(
                user.client_certificate.into_iter().chain(user.client_key).map(PathBuf::from),
            );
        }
    }
    changes(files)
}

fn changes(files: impl IntoIterator<Item = PathBuf>) -> Stamp {
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    files.into_iter().map(|path| (path.clone(), changed(&path))).collect()
}

/// The service under a client: waits for its turn, then passes on to the client of the day.
#[derive(Clone)]
struct Transport(Arc<Shared>);

struct Shared {
    kubeconfig: PathBuf,
    limits: Limits,
    bucket: Option<Mutex<TokenBucket>>,
    current: Mutex<Current>,
    metrics: RestClient,
}

struct Current {
    client: Client,
    host: Arc<str>,
    stamp: Stamp,
    looked: Instant,
}

impl Shared {
    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let mut wait = Duration::ZERO;
        if let Some(bucket) = &self.bucket {
            wait = locked(bucket).reserve(Instant::now());
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        request.headers_mut().insert(USER_AGENT, user_agent());
        let method = request.method().clone();
        let (client, host) = self.client().await;
        self.metrics.waited(method.as_str(), &host, wait);
        let began = Instant::now();
        let answer = tokio::time::timeout(self.limits.timeout, client.send(request)).await;
        let status = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok());
        let status = status.map(|answer| answer.status().as_u16());
        self.metrics.request(method.as_str(), &host, status, began.elapsed());
        match answer {
            Ok(answer) => Ok(answer?),
            Err(_) => {
                Err(format!("no answer from the apiserver within {:?}", self.limits.timeout).into())
            }
        }
    }

    /// The client for the files as they are; those that cannot be used leave the old one.
    async fn client(&self) -> (Client, Arc<str>) {
        let stale = {
            let mut current = locked(&self.current);
            if current.looked.elapsed() < RELOAD_INTERVAL {
                return current.known();
            }
            current.looked = Instant::now();
            changes(current.stamp.iter().map(|(path, _)| path.clone())) != current.stamp
        };
        if stale {
            let stamp = stamp(&self.kubeconfig);
            match load(&self.kubeconfig, self.limits).await {
                Ok((client, host)) => {
                    tracing::info!(kubeconfig = %self.kubeconfig.display(), "credentials reloaded");
                    let mut current = locked(&self.current);
                    (current.client, current.host) = (client, host);
                    current.stamp = stamp;
                }
                Err(error) => tracing::warn!(%error, "the old credentials stay in use"),
            }
        }
        locked(&self.current).known()
    }
}

impl Current {
    fn known(&self) -> (Client, Arc<str>) {
        (self.client.clone(), Arc::clone(&self.host))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn user_agent() -> HeaderValue {
    let text = format!(
        "kubelet/{KUBERNETES_VERSION} (linux/{}) longshore/{}",
        go_arch(),
        env!("CARGO_PKG_VERSION")
    );
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("kubelet"))
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move { shared.send(request).await })
    }
}
