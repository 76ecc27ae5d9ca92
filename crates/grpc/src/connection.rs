//! A connection that is kept up: unlike a [`tonic`] channel it connects without a call, and shows
//! whether it is connected.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::body::Body;
use tower::Service;

use crate::{Endpoint, Failure};

/// Delay before the second attempt to connect; each further delay is twice as long.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Longest delay between attempts.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// A stream of bytes to a peer.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An attempt to connect.
type Dialled = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

/// Connects to a peer. Called for each attempt.
type Dial = dyn Fn() -> Dialled + Send + Sync;

/// A connection to one peer, which is made again when it is lost. Cheap to clone; it ends with its last
/// clone.
#[derive(Clone)]
pub struct Connection {
    state: watch::Receiver<State>,
    /// Ends a delay between attempts.
    wake: Arc<Notify>,
    _task: Arc<Task>,
}

#[derive(Clone)]
enum State {
    Connecting,
    Connected(SendRequest<Body>),
    /// The last attempt failed, and the next one follows a delay.
    Failed(String),
}

struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    /// Connects to a socket. Must be called inside a tokio runtime.
    #[must_use]
    pub fn open(endpoint: Endpoint) -> Self {
        Self::dial(move || {
            let endpoint = endpoint.clone();
            async move { endpoint.connect().await.map(|stream| Box::new(stream) as _) }
        })
    }

    /// Connects by this function. Must be called inside a tokio runtime.
    pub fn dial<F>(dial: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<Box<dyn Stream>>> + Send + 'static,
    {
        let dial: Box<Dial> = Box::new(move || Box::pin(dial()));
        let (sender, state) = watch::channel(State::Connecting);
        let wake = Arc::new(Notify::new());
        let task = tokio::spawn(keep(dial, sender, wake.clone()));
        Self { state, wake, _task: Arc::new(Task(task)) }
    }

    /// Whether it is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(&*self.state.borrow(), State::Connected(sender) if !sender.is_closed())
    }

    /// Until the state has changed since the last call. Cancel safe.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// The connection for calls. If the last attempt to connect failed, it is tried once more at once.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] when the peer cannot be reached.
    pub async fn ready(&self) -> Result<Connected, Failure> {
        let mut state = self.state.clone();
        let mut is_retry = false;
        loop {
            match &*state.borrow_and_update() {
                State::Connected(sender) if !sender.is_closed() => {
                    return Ok(Connected(sender.clone()));
                }
                State::Failed(error) if is_retry => {
                    return Err(Failure::Unavailable(error.clone()));
                }
                State::Failed(_) => {
                    is_retry = true;
                    self.wake.notify_one();
                }
                State::Connecting | State::Connected(_) => {}
            }
            if state.changed().await.is_err() {
                return Err(Failure::Unavailable("the connection has ended".to_owned()));
            }
        }
    }
}

/// An established connection, as a service for generated clients. Their origin must be [`origin`].
#[derive(Clone)]
pub struct Connected(SendRequest<Body>);

/// The origin of requests: servers written in Go reject a socket's path as authority.
#[must_use]
pub fn origin() -> Uri {
    Uri::from_static("http://localhost")
}

impl Service<Request<Body>> for Connected {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Connects, again and again.
async fn keep(dial: Box<Dial>, state: watch::Sender<State>, wake: Arc<Notify>) {
    let mut delay = FIRST_DELAY;
    loop {
        let began = Instant::now();
        let error = match connect(&dial).await {
            Ok((sender, connection)) => {
                state.send_replace(State::Connected(sender));
                let ended = connection.await;
                let error = ended.err().map(|error| error.to_string());
                error.unwrap_or_else(|| "the peer has closed the connection".to_owned())
            }
            Err(error) => error,
        };
        // A peer that closes every connection at once does not keep this task busy.
        if began.elapsed() > LONGEST_DELAY {
            delay = FIRST_DELAY;
        } else {
            state.send_replace(State::Failed(error));
            tokio::select! {
                () = sleep(delay) => {}
                () = wake.notified() => {}
            }
            delay = delay.saturating_mul(2).min(LONGEST_DELAY);
        }
        state.send_replace(State::Connecting);
    }
}

type Http = http2::Connection<TokioIo<Box<dyn Stream>>, Body, TokioExecutor>;

async fn connect(dial: &Dial) -> Result<(SendRequest<Body>, Http), String> {
    let stream = dial().await.map_err(|error| error.to_string())?;
    let builder = http2::Builder::new(TokioExecutor::new());
    builder.handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hyper::server::conn::http2 as server;
    use hyper::service::service_fn;
    use tokio::time::timeout;

    use super::*;

    type Ends = Arc<Mutex<Vec<JoinHandle<()>>>>;

    /// A connection to a peer in memory, which is there after so many attempts; the tasks of the peer.
    fn connection(refused: usize) -> (Connection, Ends, Arc<AtomicUsize>) {
        let (ends, attempts) = (Ends::default(), Arc::new(AtomicUsize::new(0)));
        let (served, counted) = (ends.clone(), attempts.clone());
        let connection = Connection::dial(move || {
            let attempt = counted.fetch_add(1, Ordering::Relaxed);
            let (client, peer) = tokio::io::duplex(1 << 16);
            if attempt >= refused {
                let answer = service_fn(|_| async {
                    Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
                });
                let builder = server::Builder::new(TokioExecutor::new());
                let served_one = builder.serve_connection(TokioIo::new(peer), answer);
                let task = tokio::spawn(async move { drop(served_one.await) });
                served.lock().unwrap().push(task);
            }
            std::future::ready(match attempt >= refused {
                true => Ok(Box::new(client) as Box<dyn Stream>),
                false => Err(io::ErrorKind::ConnectionRefused.into()),
            })
        });
        (connection, ends, attempts)
    }

    async fn until(connection: &mut Connection, connected: bool) {
        let reached = async {
            while connection.is_connected() != connected {
                connection.changed().await;
            }
        };
        timeout(Duration::from_secs(60), reached).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn connection_is_made_without_a_call_and_again_when_it_is_lost() {
        let (mut connection, ends, attempts) = connection(3);
        until(&mut connection, true).await;
        assert_eq!(attempts.load(Ordering::Relaxed), 4);
        let mut ready = connection.ready().await.unwrap();
        let request = || Request::get(origin()).body(Body::empty()).unwrap();
        assert!(ready.call(request()).await.is_ok());
        ends.lock().unwrap().drain(..).for_each(|task| task.abort());
        until(&mut connection, false).await;
        assert!(ready.call(request()).await.is_err());
        until(&mut connection, true).await;
        assert!(connection.ready().await.unwrap().call(request()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn connection_to_nobody_fails_at_once_and_tries_seldom() {
        let (connection, _, attempts) = connection(usize::MAX);
        let began = Instant::now();
        for _ in 0..3 {
            let error = connection.ready().await.err().unwrap();
            assert!(
                matches!(&error, Failure::Unavailable(text) if text.contains("refused")),
                "{error:?}"
            );
        }
        assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
        let before = attempts.load(Ordering::Relaxed);
        sleep(Duration::from_secs(100)).await;
        let tried = attempts.load(Ordering::Relaxed) - before;
        assert!((9..=14).contains(&tried), "{tried}");
        drop(connection);
        let before = attempts.load(Ordering::Relaxed);
        sleep(Duration::from_secs(100)).await;
        assert_eq!(attempts.load(Ordering::Relaxed), before, "it has ended with its last handle");
    }
}
