//! A proxy between a daemon and its container runtime, on a real Unix socket, that makes chosen
//! calls fail, tarry or hang, and counts them. It forwards HTTP/2 requests by their path and knows
//! no message, so every call of CRI passes, streams as well.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{Either, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use longshore_cri::{Code, Server};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::error::{AtPath, Result};

#[cfg(test)]
mod tests;

/// Stands for every method that has no fault of its own.
pub const ANY_METHOD: &str = "*";

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Answered with this error; the runtime never hears of it.
    Error(Code, String),
    /// Reaches the runtime this much later.
    Delay(Duration),
    /// Reaches the runtime only when released.
    Hang,
    /// Reaches the runtime at once; its answer is held back until released.
    HangReply,
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

    /// Gives each further call of `method` (such as `StopContainer`, or [`ANY_METHOD`]) this fault,
    /// in place of the one that it had.
    pub fn inject(&self, method: &str, fault: Fault) {
        self.put(method, fault, None);
    }

    /// Gives the next `times` calls of `method` this fault; later ones pass.
    pub fn inject_times(&self, method: &str, fault: Fault, times: usize) {
        self.put(method, fault, Some(times));
    }

    /// Takes the fault from `method`; its calls that hang go on.
    pub fn release(&self, method: &str) {
        self.state.lock().faults.remove(method);
    }

    /// How many calls of `method` have come, whatever became of them.
    #[must_use]
    pub fn calls(&self, method: &str) -> usize {
        self.state.lock().calls.get(method).map_or(0, |calls| calls.seen)
    }

    /// How many calls of `method` are under way: not yet answered and not given up.
    #[must_use]
    pub fn pending(&self, method: &str) -> usize {
        self.state.lock().calls.get(method).map_or(0, |calls| calls.pending)
    }

    fn put(&self, method: &str, fault: Fault, left: Option<usize>) {
        let planned = Planned { fault, left, released: Release::default() };
        self.state.lock().faults.insert(method.to_owned(), planned);
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
    faults: HashMap<String, Planned>,
    calls: HashMap<String, Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    seen: usize,
    pending: usize,
}

#[derive(Debug)]
struct Planned {
    fault: Fault,
    /// None: for all calls.
    left: Option<usize>,
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
    fn arrive(&self, method: &str) -> Option<(Fault, CancellationToken)> {
        let mut ledger = self.lock();
        let calls = ledger.calls.entry(method.to_owned()).or_default();
        calls.seen += 1;
        calls.pending += 1;
        let own = if ledger.faults.contains_key(method) { method } else { ANY_METHOD };
        let planned = ledger.faults.get_mut(own)?;
        if let Some(left) = &mut planned.left {
            *left = left.checked_sub(1)?;
        }
        Some((planned.fault.clone(), planned.released.0.clone()))
    }
}

/// A call under way; counted off when it is answered or its caller gives up.
struct Pending<'a> {
    state: &'a State,
    method: &'a str,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(calls) = self.state.lock().calls.get_mut(self.method) {
            calls.pending -= 1;
        }
    }
}

type Answer = Response<Either<Incoming, Empty<Bytes>>>;

async fn handle(
    state: Arc<State>,
    upstream: Arc<Upstream>,
    request: Request<Incoming>,
) -> std::result::Result<Answer, std::convert::Infallible> {
    let path = request.uri().path().to_owned();
    let method = path.rsplit('/').next().unwrap_or_default();
    let fault = state.arrive(method);
    let _pending = Pending { state: &state, method };
    let answer = match fault {
        None => upstream.send(request).await,
        Some((Fault::Error(code, message), _)) => Err(Status::new(code, message)),
        Some((Fault::Delay(delay), _)) => {
            tokio::time::sleep(delay).await;
            upstream.send(request).await
        }
        Some((Fault::Hang, released)) => {
            released.cancelled().await;
            upstream.send(request).await
        }
        Some((Fault::HangReply, released)) => {
            let answer = upstream.send(request).await;
            released.cancelled().await;
            answer
        }
    };
    Ok(match answer {
        Ok(response) => response.map(Either::Left),
        Err(status) => status.into_http::<()>().map(|()| Either::Right(Empty::new())),
    })
}

/// The runtime, over one connection that is made anew when it broke.
#[derive(Debug)]
struct Upstream {
    path: PathBuf,
    connection: Mutex<Option<SendRequest<Incoming>>>,
}

impl Upstream {
    async fn send(&self, request: Request<Incoming>) -> Result<Response<Incoming>, Status> {
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

    fn connected(&self) -> Option<SendRequest<Incoming>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().filter(|c| !c.is_closed()).cloned()
    }

    async fn connect(&self) -> Result<SendRequest<Incoming>, Box<dyn std::error::Error>> {
        let stream = UnixStream::connect(&self.path).await?;
        let (connection, driver) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        // ends with the last clone of `connection`, or when the runtime goes away
        tokio::spawn(driver);
        let mut slot = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(slot.insert(connection).clone())
    }
}
