//! A CRI proxy between a daemon and its container runtime, on a Unix socket. It makes selected calls
//! fail, delay or hang, or answers them itself, and counts them. It forwards HTTP/2 requests by path,
//! so that all calls pass, also streams; of messages it reads only the pod and container.
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use longshore_cri::{Code, Server};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::error::{AtPath, Result};
use message::{decode, encode, whole};
use subject::{Subject, Subjects};

mod message;
mod subject;
#[cfg(test)]
mod tests;

/// All methods without a fault of their own.
pub const ANY_METHOD: &str = "*";

/// The calls that a fault applies to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Calls {
    method: String,
    /// Empty: all pods.
    pod: String,
    /// Empty: all containers, or none.
    container: String,
}

impl Calls {
    /// All calls of `method` (such as `StopContainer`, or [`ANY_METHOD`]).
    pub fn of(method: &str) -> Self {
        Self { method: method.to_owned(), pod: String::new(), container: String::new() }
    }

    /// Only those of this pod, its sandboxes or containers. The pod is known by name if its sandbox was
    /// created through the proxy.
    #[must_use]
    pub fn about(self, pod: &str) -> Self {
        Self { pod: pod.to_owned(), ..self }
    }

    /// Only those of a container of that name.
    #[must_use]
    pub fn in_container(self, container: &str) -> Self {
        Self { container: container.to_owned(), ..self }
    }
}

impl From<&str> for Calls {
    fn from(method: &str) -> Self {
        Self::of(method)
    }
}

/// A fault of a call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Answered by the proxy, without the runtime: [`Fault::answer`].
    Answer(Stand),
    /// Answered with this error, without the runtime.
    Error(Code, String),
    /// Forwarded; this error replaces the response.
    ErrorReply(Code, String),
    /// Forwarded after a delay.
    Delay(Duration),
    /// Forwarded when released.
    Hang,
    /// Forwarded; the response is held until released.
    HangReply,
}

/// Answers calls instead of the runtime.
#[derive(Clone)]
pub struct Stand(Arc<Answering>);

/// From the body of a request to that of its response.
type Answering = dyn Fn(&[u8]) -> Result<Bytes, Status> + Send + Sync;

impl fmt::Debug for Stand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stand")
    }
}

impl Fault {
    /// Answers a method that the installed runtime does not support: `answer` maps the request message
    /// to the response message.
    pub fn answer<Q, A>(
        answer: impl Fn(Q) -> Result<A, (Code, String)> + Send + Sync + 'static,
    ) -> Self
    where
        Q: Message + Default,
        A: Message,
    {
        Self::Answer(Stand(Arc::new(move |body| {
            let request =
                decode::<Q>(body).ok_or_else(|| Status::invalid_argument("no request"))?;
            let answer = answer(request).map_err(|(code, message)| Status::new(code, message))?;
            Ok(encode(&answer))
        })))
    }
}

/// The proxy. Dropping it breaks all connections and removes its socket.
#[derive(Debug)]
pub struct FaultProxy {
    state: Arc<State>,
    socket: PathBuf,
    _server: Server,
}

impl FaultProxy {
    /// Listens at `socket` and forwards to the runtime at `runtime`, which may be down: calls then
    /// return Unavailable.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(socket: impl Into<PathBuf>, runtime: impl Into<PathBuf>) -> Result<Self> {
        let socket = socket.into();
        let listener = UnixListener::bind(&socket).at(&socket)?;
        let state = Arc::new(State::default());
        let upstream = Arc::new(Upstream { path: runtime.into(), connection: Mutex::default() });
        let service = {
            let state = state.clone();
            service_fn(move |request| handle(state.clone(), upstream.clone(), request))
        };
        Ok(Self { state, socket, _server: Server::serve(listener, service) })
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Injects this fault into these calls, and replaces an earlier one. Of several matching faults,
    /// the most specific one applies.
    pub fn inject(&self, calls: impl Into<Calls>, fault: Fault) {
        self.put(calls.into(), fault, None);
    }

    /// Injects this fault into the next `times` calls.
    pub fn inject_times(&self, calls: impl Into<Calls>, fault: Fault, times: usize) {
        self.put(calls.into(), fault, Some(times));
    }

    /// Removes the fault of these calls; hanging ones continue.
    pub fn release(&self, calls: impl Into<Calls>) {
        self.state.lock().faults.remove(&calls.into());
    }

    /// Removes all faults.
    pub fn release_all(&self) {
        self.state.lock().faults.clear();
    }

    /// Stops injecting faults. Hanging calls stay until their callers cancel them, and are never
    /// forwarded.
    pub fn spare_all(&self) {
        self.state.lock().faults.values_mut().for_each(|planned| planned.left = Some(0));
    }

    /// The hang faults that no call has reached yet.
    #[must_use]
    pub fn unmet(&self) -> Vec<Calls> {
        let ledger = self.state.lock();
        let unmet = ledger.faults.iter().filter(|(_, planned)| {
            matches!(planned.fault, Fault::Hang | Fault::HangReply) && planned.held == 0
        });
        unmet.map(|(calls, _)| calls.clone()).collect()
    }

    /// Number of calls of `method`.
    #[must_use]
    pub fn calls(&self, method: &str) -> usize {
        self.state.lock().counts.get(method).map_or(0, |count| count.seen)
    }

    /// Number of calls of `method` in progress.
    #[must_use]
    pub fn pending(&self, method: &str) -> usize {
        self.state.lock().counts.get(method).map_or(0, |count| count.pending)
    }

    fn put(&self, calls: Calls, fault: Fault, left: Option<usize>) {
        let planned = Planned { fault, left, held: 0, released: Release::default() };
        self.state.lock().faults.insert(calls, planned);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[derive(Debug, Default)]
struct State(Mutex<Ledger>);

#[derive(Debug, Default)]
struct Ledger {
    faults: HashMap<Calls, Planned>,
    counts: HashMap<String, Count>,
    subjects: Subjects,
}

#[derive(Debug, Default)]
struct Count {
    seen: usize,
    pending: usize,
}

#[derive(Debug)]
struct Planned {
    fault: Fault,
    /// `None`: unlimited.
    left: Option<usize>,
    /// Number of calls that have hung by it.
    held: usize,
    released: Release,
}

/// Releases waiting calls when the fault is removed.
#[derive(Debug, Default)]
struct Release(CancellationToken);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock()
    }

    /// Counts a call, and returns its fault.
    fn arrive(&self, method: &str, subject: &Subject) -> Option<(Calls, Fault, CancellationToken)> {
        let mut ledger = self.lock();
        let count = ledger.counts.entry(method.to_owned()).or_default();
        count.seen += 1;
        count.pending += 1;
        let Subject { pod, container } = subject;
        let mut scopes = vec![("", "")];
        if !pod.is_empty() {
            scopes.extend([(pod.as_str(), ""), (pod.as_str(), container.as_str())]);
        }
        let calls = scopes.iter().rev().flat_map(|(pod, container)| {
            [method, ANY_METHOD].map(|method| Calls::of(method).about(pod).in_container(container))
        });
        let calls = calls.into_iter().find(|calls| ledger.faults.contains_key(calls))?;
        let planned = ledger.faults.get_mut(&calls)?;
        if let Some(left) = &mut planned.left {
            *left = left.checked_sub(1)?;
        }
        Some((calls, planned.fault.clone(), planned.released.0.clone()))
    }

    /// Until the fault is removed.
    async fn hold(&self, calls: &Calls, released: CancellationToken) {
        if let Some(planned) = self.lock().faults.get_mut(calls) {
            planned.held += 1;
        }
        released.cancelled().await;
    }
}

/// A call in progress, until it is answered or cancelled.
struct Pending<'a> {
    state: &'a State,
    method: &'a str,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.state.lock().counts.get_mut(self.method) {
            count.pending -= 1;
        }
    }
}

/// A response is forwarded as a stream, or read completely and boxed.
type Answer = Response<Either<Incoming, UnsyncBoxBody<Bytes, Infallible>>>;

async fn handle(
    state: Arc<State>,
    upstream: Arc<Upstream>,
    request: Request<Incoming>,
) -> std::result::Result<Answer, Infallible> {
    let path = request.uri().path().to_owned();
    let method = path.rsplit('/').next().unwrap_or_default();
    let answer = match collected(request).await {
        Ok(request) => answer(&state, &upstream, method, request).await,
        Err(status) => Err(status),
    };
    Ok(answer.unwrap_or_else(|status| {
        status.into_http::<()>().map(|()| Either::Right(Empty::new().boxed_unsync()))
    }))
}

/// With its body, which is one message in CRI.
async fn collected(request: Request<Incoming>) -> Result<Request<Bytes>, Status> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|e| Status::cancelled(e.to_string()))?;
    Ok(Request::from_parts(head, body.to_bytes()))
}

async fn answer(
    state: &State,
    upstream: &Upstream,
    method: &str,
    request: Request<Bytes>,
) -> Result<Answer, Status> {
    let subject = state.lock().subjects.of(method, request.body());
    let fault = state.arrive(method, &subject);
    let _pending = Pending { state, method };
    let (mut held_reply, mut failure) = (None, None);
    match fault {
        None => {}
        Some((_, Fault::Error(code, message), _)) => return Err(Status::new(code, message)),
        Some((_, Fault::ErrorReply(code, message), _)) => {
            failure = Some(Status::new(code, message))
        }
        Some((_, Fault::Answer(stand), _)) => return Ok(whole((stand.0)(request.body())?)),
        Some((_, Fault::Delay(delay), _)) => tokio::time::sleep(delay).await,
        Some((calls, Fault::Hang, released)) => state.hold(&calls, released).await,
        Some((calls, Fault::HangReply, released)) => held_reply = Some((calls, released)),
    }
    let answer = match upstream.send(request.map(Full::new)).await {
        Ok(answer) if Subjects::makes(method) => {
            let (head, body) = answer.into_parts();
            let body = body.collect().await.map_err(|e| Status::unavailable(e.to_string()))?;
            let trailers = body.trailers().cloned().map(Ok);
            let body = body.to_bytes();
            state.lock().subjects.learn(method, &subject, &body);
            let body = Full::new(body).with_trailers(ready(trailers));
            Ok(Response::from_parts(head, Either::Right(body.boxed_unsync())))
        }
        other => other.map(|answer| answer.map(Either::Left)),
    };
    if let Some((calls, released)) = held_reply {
        state.hold(&calls, released).await;
    }
    failure.map_or(answer, Err)
}

/// The runtime, over one connection that is reopened when it breaks.
#[derive(Debug)]
struct Upstream {
    path: PathBuf,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl Upstream {
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Status> {
        let unavailable = |e: &dyn std::error::Error| {
            Status::unavailable(format!("{}: {e}", self.path.display()))
        };
        let mut connection = match self.connected() {
            Some(connection) => connection,
            None => self.connect().await.map_err(|e| unavailable(&*e))?,
        };
        connection.ready().await.map_err(|e| unavailable(&e))?;
        connection.send_request(request).await.map_err(|e| unavailable(&e))
    }

    fn connected(&self) -> Option<SendRequest<Full<Bytes>>> {
        let connection = self.connection.lock();
        connection.as_ref().filter(|c| !c.is_closed()).cloned()
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error>> {
        let stream = UnixStream::connect(&self.path).await?;
        let (connection, driver) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        // ends with the last clone of `connection`, or when the runtime exits
        tokio::spawn(driver);
        let mut slot = self.connection.lock();
        Ok(slot.insert(connection).clone())
    }
}
