//! A proxy between a daemon and its container runtime, on a real Unix socket, that makes chosen
//! calls fail, tarry or hang, or answers them itself, and counts them. It forwards HTTP/2 requests by their path, so every
//! call of CRI passes, streams as well; of the messages it knows only what tells a pod's from
//! another's.
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use longshore_cri::{Code, Server};
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

/// Stands for every method that has no fault of its own.
pub const ANY_METHOD: &str = "*";

/// Which calls a fault is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Calls {
    method: String,
    /// Empty: of all pods.
    pod: String,
    /// Empty: of all containers, and of none.
    container: String,
}

impl Calls {
    /// All calls of `method` (such as `StopContainer`, or [`ANY_METHOD`]).
    pub fn of(method: &str) -> Self {
        Self { method: method.to_owned(), pod: String::new(), container: String::new() }
    }

    /// Only those about this pod, its sandboxes or its containers. A pod is known by its name, and
    /// only if its sandbox was made through the proxy.
    #[must_use]
    pub fn about(self, pod: &str) -> Self {
        Self { pod: pod.to_owned(), ..self }
    }

    /// Only those about a container of that name.
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

/// What becomes of a call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Answered in the runtime's stead, which never hears of it: [`Fault::answer`].
    Answer(Stand),
    /// Answered with this error; the runtime never hears of it.
    Error(Code, String),
    /// Reaches the runtime, in the place of whose answer this error is given.
    ErrorReply(Code, String),
    /// Reaches the runtime this much later.
    Delay(Duration),
    /// Reaches the runtime only when released.
    Hang,
    /// Reaches the runtime at once; its answer is held back until released.
    HangReply,
}

/// Who answers calls in the runtime's stead.
#[derive(Clone)]
pub struct Stand(Arc<Answering>);

/// From the body of a call to that of its answer.
type Answering = dyn Fn(&[u8]) -> Result<Bytes, Status> + Send + Sync;

impl fmt::Debug for Stand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stand")
    }
}

impl Fault {
    /// Answers what the installed runtime cannot do. `answer` makes the message of a call's answer
    /// from that of its request, which are those of the method in CRI.
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
    /// Listens at `socket` and forwards to the runtime at `runtime`, which need not be there yet:
    /// while it is away, calls get Unavailable.
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

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Gives each further one of these calls this fault, in place of the one that it had. Of
    /// several faults that would do, the one for the closest description holds.
    pub fn inject(&self, calls: impl Into<Calls>, fault: Fault) {
        self.put(calls.into(), fault, None);
    }

    /// Gives the next `times` calls this fault; later ones pass.
    pub fn inject_times(&self, calls: impl Into<Calls>, fault: Fault, times: usize) {
        self.put(calls.into(), fault, Some(times));
    }

    /// Takes the fault from these calls; those that hang go on.
    pub fn release(&self, calls: impl Into<Calls>) {
        self.state.lock().faults.remove(&calls.into());
    }

    /// Takes all faults away.
    pub fn release_all(&self) {
        self.state.lock().faults.clear();
    }

    /// Gives no further call a fault. Those that hang do so until their callers give them up, and
    /// never reach the runtime with what little time they have left.
    pub fn spare_all(&self) {
        self.state.lock().faults.values_mut().for_each(|planned| planned.left = Some(0));
    }

    /// The hanging calls and answers that a fault still waits for, each of which it has none.
    #[must_use]
    pub fn unmet(&self) -> Vec<Calls> {
        let ledger = self.state.lock();
        let unmet = ledger.faults.iter().filter(|(_, planned)| {
            matches!(planned.fault, Fault::Hang | Fault::HangReply) && planned.held == 0
        });
        unmet.map(|(calls, _)| calls.clone()).collect()
    }

    /// How many calls of `method` have come, whatever became of them.
    #[must_use]
    pub fn calls(&self, method: &str) -> usize {
        self.state.lock().counts.get(method).map_or(0, |count| count.seen)
    }

    /// How many calls of `method` are under way: not yet answered and not given up.
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
    /// None: for all calls.
    left: Option<usize>,
    /// How many calls have come to hang by it.
    held: usize,
    released: Release,
}

/// Releases the calls that wait for it when the fault is taken away.
#[derive(Debug, Default)]
struct Release(CancellationToken);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and says what is to become of it.
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

    /// Until the fault is taken away.
    async fn hold(&self, calls: &Calls, released: CancellationToken) {
        if let Some(planned) = self.lock().faults.get_mut(calls) {
            planned.held += 1;
        }
        released.cancelled().await;
    }
}

/// A call under way; counted off when it is answered or its caller gives up.
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

/// An answer is passed on as it comes, or was read to its end and is boxed.
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

/// With its body, which in CRI is always one message.
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

/// The runtime, over one connection that is made anew when it broke.
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
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().filter(|c| !c.is_closed()).cloned()
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error>> {
        let stream = UnixStream::connect(&self.path).await?;
        let (connection, driver) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        // ends with the last clone of `connection`, or when the runtime goes away
        tokio::spawn(driver);
        let mut slot = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(slot.insert(connection).clone())
    }
}
