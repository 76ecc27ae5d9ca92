//! The transport of a client: a request waits for the rate limiter and for a credential, goes to the
//! first server that is up, and to the next one on failure.
//!
//! A server that cannot be reached, or does not respond, is skipped until a probe in the background
//! succeeds.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::Body as _;
use hyper::http::header::USER_AGENT;
use hyper::http::{HeaderValue, Method, Request, Response};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use longshore_base::rate::TokenBucket;
use longshore_base::version::{KUBERNETES_VERSION, go_arch};
use longshore_exec_credentials::Credential;
use longshore_metrics::RestClient;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};
use tracing::{info, warn};

use super::connection_pool::{copy, is_unsent};
use super::kubeconfig::{Endpoint, ModificationTimes, changes, endpoints, modification_times};
use super::response_body::ResponseBody;
use super::{ClientError, CredentialState, Credentials, Limits};

/// How often the files of a client are checked for changes.
pub(super) const RELOAD_INTERVAL: Duration = Duration::from_secs(30);
/// How often a server that is down is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// How soon after a look at the files a plugin is called for another credential.
const PLUGIN_INTERVAL: Duration = Duration::from_secs(5);

/// The transport of a client.
#[derive(Clone)]
pub(super) struct Transport(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) credentials: Credentials,
    pub(super) limits: Limits,
    pub(super) bucket: Option<Mutex<TokenBucket>>,
    pub(super) current: Mutex<Current>,
    /// One call of a plugin at a time: requests meanwhile wait for its credential.
    calling: AsyncMutex<()>,
    metrics: RestClient,
    me: Weak<Shared>,
}

/// The servers in the current files.
pub(super) struct Current {
    servers: Vec<Arc<Server>>,
    modification_times: ModificationTimes,
    pub(super) checked: Instant,
    /// What `servers` were made for.
    state: CredentialState,
    plugin: Plugin,
}

/// What a plugin gave for the servers.
enum Plugin {
    /// The kubeconfig names none.
    Unused,
    /// A credential; `is_refused`: a server has refused it.
    Issued { credential: Credential, is_refused: bool },
    /// Nothing, for this reason.
    Failed(String),
}

impl Plugin {
    fn of(issued: Option<Credential>) -> Self {
        match issued {
            None => Self::Unused,
            Some(credential) => Self::Issued { credential, is_refused: false },
        }
    }

    /// Whether there is to be another credential.
    fn is_due(&self) -> bool {
        match self {
            Self::Unused => false,
            Self::Issued { credential, is_refused } => {
                *is_refused || credential.is_expired(Timestamp::now())
            }
            Self::Failed(_) => true,
        }
    }
}

struct Server {
    endpoint: Endpoint,
    state: Mutex<State>,
}

struct State {
    up: bool,
    /// Cancels the watches on this server.
    cancel: CancellationToken,
}

impl Server {
    fn is_up(&self) -> bool {
        self.state.lock().up
    }

    /// Marks it up or down; returns whether that changed. Watches on one that is down are cancelled.
    fn set_up(&self, up: bool) -> bool {
        let mut state = self.state.lock();
        if !up {
            std::mem::take(&mut state.cancel).cancel();
        }
        std::mem::replace(&mut state.up, up) != up
    }

    fn cancel(&self) -> CancellationToken {
        self.state.lock().cancel.clone()
    }
}

impl Shared {
    /// Reads the files. Each request waits for a credential that is not there yet.
    pub(super) async fn open(
        credentials: Credentials,
        limits: Limits,
        metrics: RestClient,
    ) -> Result<Arc<Self>, ClientError> {
        let now = Instant::now();
        let bucket = (limits.qps > 0)
            .then(|| TokenBucket::new(f64::from(limits.qps), f64::from(limits.burst.max(1)), now));
        let modification_times = modification_times(&credentials.config_source);
        let state = credentials.state();
        let (servers, plugin) = match &state {
            CredentialState::Lacking(_) => (Vec::new(), Plugin::Unused),
            state => match servers(&credentials, state, limits).await {
                Ok(made) => made,
                // it may have one later
                Err(error @ ClientError::Plugin { .. }) => {
                    warn!("{error}");
                    (Vec::new(), Plugin::Failed(error.to_string()))
                }
                Err(error) => return Err(error),
            },
        };
        let follow = credentials.identity.as_ref().map(|identity| identity.state.clone());
        let shared = Arc::new_cyclic(|me| Self {
            credentials,
            limits,
            bucket: bucket.map(Mutex::new),
            current: Mutex::new(Current {
                servers,
                modification_times,
                checked: now,
                state,
                plugin,
            }),
            calling: AsyncMutex::default(),
            metrics,
            me: me.clone(),
        });
        if let Some(state) = follow {
            tokio::spawn(reload_on_change(Arc::downgrade(&shared), state));
        }
        Ok(shared)
    }

    pub(super) async fn send(
        &self,
        mut request: Request<Body>,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let mut wait = Duration::ZERO;
        if let Some(bucket) = &self.bucket {
            wait = bucket.lock().reserve(Instant::now());
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        let agent = match request.extensions().get::<UserAgent>() {
            Some(agent) => agent.clone(),
            None => UserAgent::new(self.limits.component),
        };
        request.headers_mut().insert(USER_AGENT, agent.0);
        self.await_credential().await?;
        let mut servers = self.servers().await;
        // those that are down come last, in case all are
        servers.sort_by_key(|server| !server.is_up());
        if let Some(server) = servers.first() {
            self.metrics.waited(request.method().as_str(), &server.endpoint.host, wait);
        }
        let (alone, mut last) = (servers.len() < 2, None);
        for server in servers {
            // The only server is sent the request as it is: there is no second attempt.
            let Some(attempt) = (!alone).then(|| copy(&request)).flatten() else {
                return self.attempt(&server, request).await.map_err(Failure::into);
            };
            match self.attempt(&server, attempt).await {
                Ok(answer) => {
                    server.set_up(true);
                    return Ok(answer);
                }
                Err(failure) => {
                    self.mark_down(&server, &failure);
                    // the server may have executed it: a retry is the caller's decision
                    if !failure.unsent && *request.method() != Method::GET {
                        return Err(failure.into());
                    }
                    last = Some(failure);
                }
            }
        }
        Err(match last {
            Some(failure) => failure.into(),
            None => match &self.current.lock().plugin {
                Plugin::Failed(why) => why.clone().into(),
                _ => "the kubeconfig names no server".into(),
            },
        })
    }

    async fn attempt(
        &self,
        server: &Server,
        request: Request<Body>,
    ) -> Result<Response<ResponseBody>, Failure> {
        let cancel = is_watch(&request).then(|| server.cancel());
        let size = request.body().size_hint().exact().filter(|_| cancel.is_none());
        let (method, began) = (request.method().clone(), Instant::now());
        let sent = server.endpoint.connections.send(request);
        let answer = tokio::time::timeout(self.limits.timeout, sent).await;
        let status = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok());
        let status = status.map(|(answer, _)| answer.status().as_u16());
        let host = &server.endpoint.host;
        self.metrics.request(method.as_str(), host, status, began.elapsed());
        if status == Some(401)
            && let Plugin::Issued { is_refused, .. } = &mut self.current.lock().plugin
        {
            *is_refused = true;
        }
        if let Some(size) = size {
            self.metrics.sent(method.as_str(), host, size);
        }
        match answer {
            Ok(Ok((answer, stream))) => Ok(answer.map(|body| match cancel {
                Some(cancel) => ResponseBody::watch(body, cancel, stream),
                None => ResponseBody::to(method, host.clone(), body, stream, self.metrics.clone()),
            })),
            Ok(Err(error)) => Err(Failure { unsent: is_unsent(&error), error: error.into() }),
            Err(_) => {
                let text = format!("no answer from the apiserver within {:?}", self.limits.timeout);
                Err(Failure { unsent: false, error: text.into() })
            }
        }
    }

    /// Skips a server until it responds again.
    fn mark_down(&self, server: &Arc<Server>, failure: &Failure) {
        if !server.set_up(false) {
            return;
        }
        warn!(server = server.endpoint.url, "apiserver is down: {}", failure.error);
        tokio::spawn(probe(self.me.clone(), Arc::downgrade(server), self.limits.timeout));
    }

    /// Waits for a credential, with the request timeout.
    async fn await_credential(&self) -> Result<(), BoxError> {
        let Some(identity) = &self.credentials.identity else { return Ok(()) };
        let mut state = identity.state.clone();
        let there = state.wait_for(|state| !matches!(state, CredentialState::Lacking(_)));
        if matches!(tokio::time::timeout(self.limits.timeout, there).await, Ok(Ok(_))) {
            return Ok(());
        }
        match self.credentials.state() {
            CredentialState::Lacking(why) => {
                Err(format!("no credential for the apiserver: {why}").into())
            }
            _ => Ok(()),
        }
    }

    /// The servers for the current files; if these are invalid, the old servers.
    async fn servers(&self) -> Vec<Arc<Server>> {
        let is_due = self.current.lock().plugin.is_due();
        let _alone = if is_due { Some(self.calling.lock().await) } else { None };
        let state = self.credentials.state();
        let stale = {
            let mut current = self.current.lock();
            let elapsed = current.checked.elapsed();
            let renewed =
                current.state != state || (current.plugin.is_due() && elapsed >= PLUGIN_INTERVAL);
            if !renewed && elapsed < RELOAD_INTERVAL {
                return current.servers.clone();
            }
            current.checked = Instant::now();
            renewed
                || changes(current.modification_times.iter().map(|(path, _)| path.clone()))
                    != current.modification_times
        };
        if stale && !matches!(state, CredentialState::Lacking(_)) {
            self.reload(state).await;
        }
        self.current.lock().servers.clone()
    }

    async fn reload(&self, state: CredentialState) {
        let config_source = &self.credentials.config_source;
        let modification_times = modification_times(config_source);
        match servers(&self.credentials, &state, self.limits).await {
            Ok((servers, plugin)) => {
                info!("credentials of the {config_source} reloaded");
                let mut current = self.current.lock();
                let old = std::mem::replace(&mut current.servers, servers);
                (current.modification_times, current.state) = (modification_times, state);
                current.plugin = plugin;
                drop(current);
                old.iter().for_each(|server| server.cancel().cancel());
            }
            Err(error) => warn!(%error, "cannot reload credentials, the old ones stay in use"),
        }
    }
}

async fn servers(
    credentials: &Credentials,
    state: &CredentialState,
    limits: Limits,
) -> Result<(Vec<Arc<Server>>, Plugin), ClientError> {
    let server = |endpoint| {
        let state = Mutex::new(State { up: true, cancel: CancellationToken::new() });
        Arc::new(Server { endpoint, state })
    };
    let (endpoints, issued) = endpoints(credentials, state, limits).await?;
    Ok((endpoints.into_iter().map(server).collect(), Plugin::of(issued)))
}

/// Reloads at once for each new pair, so that watches that send nothing move too.
async fn reload_on_change(shared: Weak<Shared>, mut state: watch::Receiver<CredentialState>) {
    while state.changed().await.is_ok() {
        let Some(shared) = shared.upgrade() else { return };
        shared.servers().await;
    }
}

/// Probes a server that is down until it responds.
async fn probe(shared: Weak<Shared>, server: Weak<Server>, timeout: Duration) {
    loop {
        tokio::time::sleep(PROBE_INTERVAL).await;
        let (Some(_in_use), Some(server)) = (shared.upgrade(), server.upgrade()) else { return };
        if server.is_up() {
            return;
        }
        let Ok(request) = Request::get("/livez").body(Body::empty()) else { return };
        let answer = tokio::time::timeout(timeout, server.endpoint.connections.send(request)).await;
        if matches!(answer, Ok(Ok((answer, _))) if !answer.status().is_server_error())
            && server.set_up(true)
        {
            info!(server = server.endpoint.url, "apiserver is up again");
            return;
        }
    }
}

/// Why a request failed.
struct Failure {
    /// The request was not sent.
    unsent: bool,
    error: BoxError,
}

impl From<Failure> for BoxError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

/// The header `User-Agent`, as an extension of a request that has one of its own.
#[derive(Clone)]
pub(super) struct UserAgent(HeaderValue);

impl UserAgent {
    fn new(component: &'static str) -> Self {
        Self::with(component, "")
    }

    /// That of a component which acts as that user.
    pub(super) fn of(component: &'static str, user: &str) -> Self {
        Self::with(component, &format!("/{user}"))
    }

    fn with(component: &'static str, end: &str) -> Self {
        let text = format!(
            "{component}/{KUBERNETES_VERSION} (linux/{}) longshore/{}{end}",
            go_arch(),
            env!("CARGO_PKG_VERSION")
        );
        Self(HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(component)))
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<ResponseBody>;
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
