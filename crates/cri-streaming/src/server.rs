//! URLs for sessions, and the HTTP server behind them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version as Http};
use hyper_util::rt::TokioIo;
use longshore_base::budget::{Holder, Priority};
use longshore_base::connections::Limits;
use longshore_base::panics;
use longshore_cri::v1::{
    AttachRequest, AttachResponse, ExecRequest, ExecResponse, PortForwardRequest,
    PortForwardResponse,
};
use longshore_serving::{self as serving, Peer, Routes};
use longshore_streams::{
    self as streams, CREATION_TIMEOUT, STREAM_PROTOCOL, Streams, spdy, websocket,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::connection::Conditions;
use crate::port_forward::{self, Sandbox};
use crate::remote_command::{self, Channels, Command, Version};
use crate::tokens::Tokens;
use crate::{Error, Runtime};

const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");
/// How much a tunnel buffers.
const TUNNEL: usize = 64 << 10;

/// How sessions are served; the defaults are upstream's.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a session may be idle; zero: for ever.
    pub idle_timeout: Duration,
    /// How long a client may take to open the streams of a session, on SPDY connections.
    pub creation_timeout: Duration,
    /// How many connections there may be.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(4 * 60 * 60),
            creation_timeout: CREATION_TIMEOUT,
            limits: Limits::DEFAULT,
        }
    }
}

/// A streaming server.
pub struct Server {
    /// What URLs begin with.
    base: String,
    runtime: Arc<dyn Runtime>,
    options: Options,
    requested: Tokens<Requested>,
    /// Sessions in tasks of their own.
    sessions: TaskTracker,
    stop: CancellationToken,
}

/// A session that was requested.
enum Requested {
    Command(Command),
    PortForward { sandbox_id: String, ports: Vec<u16> },
}

impl Requested {
    /// The object that it is for.
    fn object(&self) -> &str {
        match self {
            Self::Command(command) => &command.container_id,
            Self::PortForward { sandbox_id, .. } => sandbox_id,
        }
    }

    /// The first part of the URL's path.
    fn path(&self) -> &'static str {
        match self {
            Self::Command(Command { command: Some(_), .. }) => "exec",
            Self::Command(_) => "attach",
            Self::PortForward { .. } => "portforward",
        }
    }
}

impl Server {
    /// A server for this runtime, whose listener has that address.
    #[must_use]
    pub fn new(address: SocketAddr, runtime: Arc<dyn Runtime>, options: Options) -> Arc<Self> {
        Arc::new(Self {
            base: format!("http://{address}"),
            runtime,
            options,
            requested: Tokens::default(),
            sessions: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// The URL for a command in a container.
    ///
    /// # Errors
    /// When the request is invalid, and when too many sessions were requested that have not begun.
    pub fn exec(&self, request: ExecRequest) -> Result<ExecResponse, Error> {
        let ExecRequest { container_id, cmd, tty, stdin, stdout, stderr } = request;
        let command = command(container_id, Some(cmd), Streams { stdin, stdout, stderr, tty })?;
        Ok(ExecResponse { url: self.url(Requested::Command(command))? })
    }

    /// The URL for the process of a container.
    ///
    /// # Errors
    /// As [`Server::exec`].
    pub fn attach(&self, request: AttachRequest) -> Result<AttachResponse, Error> {
        let AttachRequest { container_id, stdin, tty, stdout, stderr } = request;
        let command = command(container_id, None, Streams { stdin, stdout, stderr, tty })?;
        Ok(AttachResponse { url: self.url(Requested::Command(command))? })
    }

    /// The URL for ports of a sandbox.
    ///
    /// # Errors
    /// As [`Server::exec`].
    pub fn port_forward(&self, request: PortForwardRequest) -> Result<PortForwardResponse, Error> {
        let PortForwardRequest { pod_sandbox_id: sandbox_id, port } = request;
        if sandbox_id.is_empty() {
            return Err(Error::Missing("pod_sandbox_id"));
        }
        let valid = |port: i32| match u16::try_from(port) {
            Ok(valid @ 1..) => Ok(valid),
            _ => Err(Error::Port(port)),
        };
        let ports = port.into_iter().map(valid).collect::<Result<_, _>>()?;
        Ok(PortForwardResponse { url: self.url(Requested::PortForward { sandbox_id, ports })? })
    }

    fn url(&self, requested: Requested) -> Result<String, Error> {
        let path = requested.path();
        let token = self.requested.insert(requested)?;
        Ok(format!("{}/{path}/{token}", self.base))
    }

    /// Serves until `stop`; sessions end with it.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let server = Arc::clone(&self);
        let service = tower::service_fn(move |request| {
            let response = server.answer(request);
            async { Ok::<_, Infallible>(response) }
        });
        let options = serving::Options { limits: self.options.limits, ..serving::Options::DEFAULT };
        let serving =
            serving::serve(listener, None, Arc::new(Routes::new(service)), options, stop.clone());
        let stopping = async {
            stop.cancelled().await;
            self.stop.cancel();
        };
        tokio::join!(serving, stopping);
        self.sessions.close();
        self.sessions.wait().await;
    }

    fn answer(&self, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
        let is_upgrade = streams::is_upgrade(request.headers());
        let mut response = self.begin(&mut request).unwrap_or_else(|refusal| refusal.response());
        streams::close_on_refusal(is_upgrade, &mut response);
        response
    }

    /// Begins the session of a request in a task of its own.
    fn begin(&self, request: &mut Request<Incoming>) -> Result<Response<Full<Bytes>>, Refusal> {
        if ![Method::GET, Method::POST].contains(request.method()) {
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed"));
        }
        let requested = self.requested(request.uri().path()).ok_or(NOT_FOUND)?;
        let holder = Holder::new(requested.object(), Priority::Ordinary);
        let peer = request.extensions().get::<Arc<Peer>>();
        if !peer.is_none_or(|peer| peer.authorize(&holder)) {
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many connections"));
        }
        if request.version() != Http::HTTP_11 {
            return Err(Refusal::bad("unable to upgrade: HTTP/1.1 is required"));
        }
        match requested {
            Requested::Command(command) => self.begin_command(request, command),
            Requested::PortForward { sandbox_id: id, ports } => {
                let sandbox = Sandbox { id, runtime: Arc::clone(&self.runtime) };
                self.begin_port_forward(request, sandbox, ports)
            }
        }
    }

    /// The session of a path, which cannot be used again.
    fn requested(&self, path: &str) -> Option<Requested> {
        let (kind, token) = path.strip_prefix('/')?.split_once('/')?;
        self.requested.take(token).filter(|requested| requested.path() == kind)
    }

    fn begin_command(
        &self,
        request: &mut Request<Incoming>,
        command: Command,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let (runtime, conditions) = (Arc::clone(&self.runtime), self.conditions());
        if streams::is_websocket(request.headers()) {
            let (name, channels) =
                chosen_channels(request.headers(), &Channels::NAMES, Channels::FIRST)?;
            let response = websocket::accept(request, name)?.map(|_| Full::default());
            self.spawn(request, async move |io| {
                let runtime = &*runtime;
                remote_command::serve_websocket(io, &conditions, channels, command, runtime).await;
            });
            return Ok(response);
        }
        let (response, version) = accept_spdy(request, &Version::NAMES, Version::V1)?;
        let creation = self.options.creation_timeout;
        self.spawn(request, async move |io| {
            let runtime = &*runtime;
            remote_command::serve_spdy(io, &conditions, creation, version, command, runtime).await;
        });
        Ok(response)
    }

    fn begin_port_forward(
        &self,
        request: &mut Request<Incoming>,
        sandbox: Sandbox,
        ports: Vec<u16>,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let (conditions, creation) = (self.conditions(), self.options.creation_timeout);
        if streams::tunnel_uses(request.headers()).any(|used| used == port_forward::PROTOCOL)
            && streams::is_websocket(request.headers())
        {
            let response = streams::accept_tunnel(request, Some(port_forward::PROTOCOL))?;
            self.spawn(request, async move |client: TokioIo<Upgraded>| {
                let (near, far) = tokio::io::duplex(TUNNEL);
                tokio::join!(
                    streams::join_tunnel(client.into_inner(), far, conditions.idle),
                    port_forward::serve_spdy(near, &conditions, creation, sandbox),
                );
            });
            return Ok(response.map(|_| Full::default()));
        }
        if streams::is_websocket(request.headers()) {
            if ports.is_empty() || ports.len() > port_forward::MAX_PORTS {
                let most = port_forward::MAX_PORTS;
                let text = format!("a WebSocket needs between 1 and {most} ports in the request");
                return Err(Refusal::bad(text));
            }
            let (name, format) =
                chosen_channels(request.headers(), &port_forward::CHANNELS, port_forward::BINARY)?;
            let response = websocket::accept(request, name)?.map(|_| Full::default());
            self.spawn(request, async move |io| {
                port_forward::serve_websocket(io, &conditions, format, sandbox, &ports).await;
            });
            return Ok(response);
        }
        let (response, ()) = accept_spdy(request, &[(port_forward::PROTOCOL, ())], ())?;
        self.spawn(request, async move |io| {
            port_forward::serve_spdy(io, &conditions, creation, sandbox).await;
        });
        Ok(response)
    }

    fn conditions(&self) -> Conditions {
        let idle = self.options.idle_timeout;
        let idle = if idle.is_zero() { streams::NO_IDLE_TIMEOUT } else { idle };
        Conditions { idle, stop: self.stop.clone() }
    }

    /// Runs a session once the client's connection is upgraded.
    fn spawn<T>(
        &self,
        request: &mut Request<Incoming>,
        session: impl FnOnce(TokioIo<Upgraded>) -> T + Send + 'static,
    ) where
        T: Future<Output = ()> + Send + 'static,
    {
        let upgrade = hyper::upgrade::on(request);
        self.sessions.spawn(panics::contain(async move {
            match upgrade.await {
                Ok(io) => session(TokioIo::new(io)).await,
                Err(error) => debug!("upgrade failed: {error}"),
            }
        }));
    }
}

/// A command whose streams go together.
fn command(
    container_id: String,
    command: Option<Vec<String>>,
    streams: Streams,
) -> Result<Command, Error> {
    if container_id.is_empty() {
        return Err(Error::Missing("container_id"));
    }
    if streams.tty && streams.stderr {
        return Err(Error::TtyWithStderr);
    }
    if !streams.stdin && !streams.stdout && !streams.stderr {
        return Err(Error::NoStream);
    }
    Ok(Command { container_id, command, streams })
}

/// The first of the client's subprotocols that is supported; `default` if it names none.
fn chosen_channels<T: Copy>(
    headers: &HeaderMap,
    supported: &[(&'static str, T)],
    default: T,
) -> Result<(Option<&'static str>, T), Refusal> {
    let mut offered = websocket::protocols(headers).filter(|name| !name.is_empty()).peekable();
    if offered.peek().is_none() {
        return Ok((None, default));
    }
    let chosen = offered.find_map(|name| supported.iter().find(|(known, _)| *known == name));
    let (name, value) = chosen.ok_or_else(|| {
        Refusal::new(StatusCode::FORBIDDEN, "none of the client's subprotocols is supported")
    })?;
    Ok((Some(name), *value))
}

/// The response that upgrades to SPDY, and the first of the client's protocols that is supported;
/// `default` if it names none.
fn accept_spdy<T: Copy>(
    request: &Request<Incoming>,
    supported: &[(&'static str, T)],
    default: T,
) -> Result<(Response<Full<Bytes>>, T), Refusal> {
    let headers = request.headers();
    let offered: Vec<&str> = headers
        .get_all(STREAM_PROTOCOL)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let mut known =
        offered.iter().filter_map(|name| supported.iter().find(|(known, _)| known == name));
    let chosen = known.next();
    if chosen.is_none() && !offered.is_empty() {
        return Err(Refusal::protocols(&offered, supported.iter().map(|(name, _)| *name)));
    }
    if !streams::is_upgrade(headers) || !streams::is_spdy(headers) {
        return Err(Refusal::bad("unable to upgrade: missing upgrade headers in request"));
    }
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(spdy::PROTOCOL));
    if let Some((name, _)) = chosen {
        headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(name));
    }
    Ok((response, chosen.map_or(default, |(_, value)| *value)))
}

/// Why a session does not begin.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    text: String,
    /// The protocols that are supported, if the client has none of them.
    supported: Vec<&'static str>,
}

const NOT_FOUND: Refusal =
    Refusal { status: StatusCode::NOT_FOUND, text: String::new(), supported: Vec::new() };

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), supported: Vec::new() }
    }

    fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    fn protocols(offered: &[&str], supported: impl Iterator<Item = &'static str>) -> Self {
        let supported: Vec<_> = supported.collect();
        let text = format!(
            "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
            offered.join(" "),
            supported.join(" "),
        );
        Self { status: StatusCode::FORBIDDEN, text: remote_command::limited(&text), supported }
    }

    fn response(self) -> Response<Full<Bytes>> {
        let text = match self.status {
            StatusCode::NOT_FOUND => "404 page not found".to_owned(),
            _ => self.text,
        };
        let mut response = Response::new(Full::from(text + "\n"));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        for name in self.supported {
            headers.append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(name));
        }
        response
    }
}

impl From<streams::Error> for Refusal {
    fn from(error: streams::Error) -> Self {
        Self::bad(error.to_string())
    }
}
