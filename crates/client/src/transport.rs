//! The service under a client: a request waits for its turn and for a credential, goes to the first
//! server that is up, and to the next one when it is not let in there.
//!
//! A server that cannot be reached, or does not answer, is passed over until it answers again; that
//! is tried aside, so that no request waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::Body as _;
use hyper::http::header::USER_AGENT;
use hyper::http::{HeaderValue, Method, Request, Response};
use hyper_util::client::legacy;
use kube::client::Body;
use longshore_base::rate::TokenBucket;
use longshore_base::version::{KUBERNETES_VERSION, go_arch};
use longshore_metrics::RestClient;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};
use tracing::{info, warn};

use super::answer::Answer;
use super::connection_pool::SharesConnection;
use super::kubeconfig::{Endpoint, Stamp, changes, endpoints, stamp};
use super::mutex::locked;
use super::{ClientError, CredentialState, Credentials, Limits};

/// How often the files behind a client are looked at for renewal.
pub(super) const RELOAD_INTERVAL: Duration = Duration::from_secs(30);
/// How often a server that is down is tried.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// The service under a client.
#[derive(Clone)]
pub(super) struct Transport(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) credentials: Credentials,
    pub(super) limits: Limits,
    pub(super) bucket: Option<Mutex<TokenBucket>>,
    pub(super) current: Mutex<Current>,
    metrics: RestClient,
    me: Weak<Shared>,
}

/// The servers as the files have them now.
pub(super) struct Current {
    servers: Vec<Arc<Server>>,
    stamp: Stamp,
    pub(super) looked: Instant,
    /// What `servers` were made for.
    standing: CredentialState,
}

struct Server {
    endpoint: Endpoint,
    state: Mutex<State>,
}

struct State {
    up: bool,
    /// Ends the watches on this server.
    cut: CancellationToken,
}

impl Server {
    fn is_up(&self) -> bool {
        locked(&self.state).up
    }

    /// Marks it; whether that is news. Watches on one that is down look for another.
    fn mark(&self, up: bool) -> bool {
        let mut state = locked(&self.state);
        if !up {
            std::mem::take(&mut state.cut).cancel();
        }
        std::mem::replace(&mut state.up, up) != up
    }

    fn cut(&self) -> CancellationToken {
        locked(&self.state).cut.clone()
    }
}

impl Shared {
    /// Reads the files; a credential that is still to come is waited for with each request.
    pub(super) async fn open(
        credentials: Credentials,
        limits: Limits,
        metrics: RestClient,
    ) -> Result<Arc<Self>, ClientError> {
        let now = Instant::now();
        let bucket = (limits.qps > 0)
            .then(|| TokenBucket::new(f64::from(limits.qps), f64::from(limits.burst.max(1)), now));
        let stamp = stamp(&credentials.way);
        let standing = credentials.standing();
        let servers = match &standing {
            CredentialState::Lacking(_) => Vec::new(),
            standing => servers(&credentials, standing, limits).await?,
        };
        let follow = credentials.identity.as_ref().map(|identity| identity.standing.clone());
        let shared = Arc::new_cyclic(|me| Self {
            credentials,
            limits,
            bucket: bucket.map(Mutex::new),
            current: Mutex::new(Current { servers, stamp, looked: now, standing }),
            metrics,
            me: me.clone(),
        });
        if let Some(standing) = follow {
            tokio::spawn(take_up(Arc::downgrade(&shared), standing));
        }
        Ok(shared)
    }

    pub(super) async fn send(
        &self,
        mut request: Request<Body>,
    ) -> Result<Response<Answer>, BoxError> {
        let mut wait = Duration::ZERO;
        if let Some(bucket) = &self.bucket {
            wait = locked(bucket).reserve(Instant::now());
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        request.headers_mut().insert(USER_AGENT, user_agent(self.limits.component));
        self.await_credential().await?;
        let mut servers = self.servers().await;
        // those that are down come last, for when all are
        servers.sort_by_key(|server| !server.is_up());
        if let Some(server) = servers.first() {
            self.metrics.waited(request.method().as_str(), &server.endpoint.host, wait);
        }
        let (alone, mut last) = (servers.len() < 2, None);
        for server in servers {
            let Some(attempt) = copy(&request) else {
                return self.attempt(&server, request).await.map_err(Failure::into);
            };
            match self.attempt(&server, attempt).await {
                Ok(answer) => {
                    server.mark(true);
                    return Ok(answer);
                }
                Err(failure) if alone => return Err(failure.into()),
                Err(failure) => {
                    self.give_up(&server, &failure);
                    // what a server may have done already is for the caller to do again
                    if !failure.unsent && *request.method() != Method::GET {
                        return Err(failure.into());
                    }
                    last = Some(failure);
                }
            }
        }
        Err(last.map_or_else(|| "the kubeconfig names no server".into(), Failure::into))
    }

    async fn attempt(
        &self,
        server: &Server,
        request: Request<Body>,
    ) -> Result<Response<Answer>, Failure> {
        let cut = is_watch(&request).then(|| server.cut());
        let size = request.body().size_hint().exact().filter(|_| cut.is_none());
        let (method, began) = (request.method().clone(), Instant::now());
        let sent = async {
            if request.extensions().get::<SharesConnection>().is_none() {
                return server.endpoint.client.send(request).await.map(|answer| (answer, None));
            }
            let sent = server.endpoint.lanes.send(request).await;
            sent.map(|(answer, place)| (answer, Some(place)))
        };
        let answer = tokio::time::timeout(self.limits.timeout, sent).await;
        let status = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok());
        let status = status.map(|(answer, _)| answer.status().as_u16());
        let host = &server.endpoint.host;
        self.metrics.request(method.as_str(), host, status, began.elapsed());
        if let Some(size) = size {
            self.metrics.sent(method.as_str(), host, size);
        }
        match answer {
            Ok(Ok((answer, place))) => Ok(answer.map(|body| match cut {
                Some(cut) => Answer::watch(body, cut, place),
                None => Answer::to(method, host.clone(), body, place, self.metrics.clone()),
            })),
            Ok(Err(error)) => Err(Failure { unsent: is_unsent(&error), error: error.into() }),
            Err(_) => {
                let text = format!("no answer from the apiserver within {:?}", self.limits.timeout);
                Err(Failure { unsent: false, error: text.into() })
            }
        }
    }

    /// Passes over a server until it answers again.
    fn give_up(&self, server: &Arc<Server>, failure: &Failure) {
        if !server.mark(false) {
            return;
        }
        warn!(server = server.endpoint.url, "apiserver given up for now: {}", failure.error);
        tokio::spawn(probe(self.me.clone(), Arc::downgrade(server), self.limits.timeout));
    }

    /// Waits, but not for ever, while there is nothing to show to the apiserver.
    async fn await_credential(&self) -> Result<(), BoxError> {
        let Some(identity) = &self.credentials.identity else { return Ok(()) };
        let mut standing = identity.standing.clone();
        let there = standing.wait_for(|standing| !matches!(standing, CredentialState::Lacking(_)));
        if matches!(tokio::time::timeout(self.limits.timeout, there).await, Ok(Ok(_))) {
            return Ok(());
        }
        match self.credentials.standing() {
            CredentialState::Lacking(why) => {
                Err(format!("no credential for the apiserver: {why}").into())
            }
            _ => Ok(()),
        }
    }

    /// The servers for the files as they are; those that cannot be used leave the old ones.
    async fn servers(&self) -> Vec<Arc<Server>> {
        let standing = self.credentials.standing();
        let stale = {
            let mut current = locked(&self.current);
            let renewed = current.standing != standing;
            if !renewed && current.looked.elapsed() < RELOAD_INTERVAL {
                return current.servers.clone();
            }
            current.looked = Instant::now();
            renewed || changes(current.stamp.iter().map(|(path, _)| path.clone())) != current.stamp
        };
        if stale && !matches!(standing, CredentialState::Lacking(_)) {
            self.reload(standing).await;
        }
        locked(&self.current).servers.clone()
    }

    async fn reload(&self, standing: CredentialState) {
        let way = &self.credentials.way;
        let stamp = stamp(way);
        match servers(&self.credentials, &standing, self.limits).await {
            Ok(servers) => {
                info!("credentials of the {way} reloaded");
                let mut current = locked(&self.current);
                let old = std::mem::replace(&mut current.servers, servers);
                (current.stamp, current.standing) = (stamp, standing);
                drop(current);
                old.iter().for_each(|server| server.cut().cancel());
            }
            Err(error) => warn!(%error, "the old credentials stay in use"),
        }
    }
}

async fn servers(
    credentials: &Credentials,
    standing: &CredentialState,
    limits: Limits,
) -> Result<Vec<Arc<Server>>, ClientError> {
    let server = |endpoint| {
        let state = Mutex::new(State { up: true, cut: CancellationToken::new() });
        Arc::new(Server { endpoint, state })
    };
    Ok(endpoints(credentials, standing, limits).await?.into_iter().map(server).collect())
}

/// Takes up each new pair at once, for the sake of watches that send nothing.
async fn take_up(shared: Weak<Shared>, mut standing: watch::Receiver<CredentialState>) {
    while standing.changed().await.is_ok() {
        let Some(shared) = shared.upgrade() else { return };
        shared.servers().await;
    }
}

/// Asks a server that is down until it answers, whatever that is.
async fn probe(shared: Weak<Shared>, server: Weak<Server>, timeout: Duration) {
    loop {
        tokio::time::sleep(PROBE_INTERVAL).await;
        let (Some(_in_use), Some(server)) = (shared.upgrade(), server.upgrade()) else { return };
        if server.is_up() {
            return;
        }
        let Ok(request) = Request::get("/livez").body(Body::empty()) else { return };
        let answer = tokio::time::timeout(timeout, server.endpoint.client.send(request)).await;
        if matches!(answer, Ok(Ok(answer)) if !answer.status().is_server_error())
            && server.mark(true)
        {
            info!(server = server.endpoint.url, "apiserver is back");
            return;
        }
    }
}

/// Why a server gave no answer.
struct Failure {
    /// It never saw the request.
    unsent: bool,
    error: BoxError,
}

impl From<Failure> for BoxError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// Whether an error came up before there was a connection.
fn is_unsent(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.filter_map(|cause| cause.downcast_ref::<legacy::Error>()).any(legacy::Error::is_connect)
}

/// The same request once more; `None`: its body is a stream.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

fn user_agent(component: &'static str) -> HeaderValue {
    let text = format!(
        "{component}/{KUBERNETES_VERSION} (linux/{}) longshore/{}",
        go_arch(),
        env!("CARGO_PKG_VERSION")
    );
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(component))
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Answer>;
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
