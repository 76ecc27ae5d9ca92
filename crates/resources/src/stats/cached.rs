//! A cached value that is read on demand when it is too old.

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use longshore_base::panics;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::timeout;

/// A value cannot be read. Shared by concurrent requests, so the cause is a text.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(Arc<str>);

impl Error {
    /// From its cause.
    pub fn of(cause: impl Display) -> Self {
        Self(cause.to_string().into())
    }
}

/// How old a value may be, and how long to wait for a newer one.
#[derive(Clone, Copy, Debug)]
pub struct Freshness {
    /// Older values are read again.
    pub max_age: Duration,
    /// Values up to this age are returned at once meanwhile...
    pub acceptable_age: Duration,
    /// ...otherwise the caller waits this long.
    pub timeout: Duration,
}

impl Freshness {
    /// Waits whenever the value is read again.
    pub(super) fn blocking_for(max_age: Duration, timeout: Duration) -> Self {
        Self { max_age, acceptable_age: max_age, timeout }
    }
}

type CachedResult<T> = Result<Arc<T>, Error>;

/// Cheap to clone: all clones share one value.
pub struct Cached<T>(Arc<Mutex<State<T>>>);

/// How long an error is cached.
const ERROR_TTL: Duration = Duration::from_secs(5);

struct State<T> {
    known: Option<(Instant, Arc<T>)>,
    /// The error of the last read, if it failed.
    failed: Option<(Instant, Error)>,
    /// How long the last read took.
    read_duration: Duration,
    /// A read in progress. It continues if its waiters are cancelled.
    in_flight: Option<Shared<BoxFuture<'static, CachedResult<T>>>>,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        let state =
            State { known: None, failed: None, read_duration: Duration::ZERO, in_flight: None };
        Self(Arc::new(Mutex::new(state)))
    }
}

impl<T> Clone for Cached<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + Sync + 'static> Cached<T> {
    /// The cached value if it is not older than `max_age`, or else a new one from `read`.
    pub(super) async fn get<R, F>(&self, max_age: Duration, read: R) -> CachedResult<T>
    where
        R: FnOnce() -> F,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let in_flight = {
            let mut state = self.state();
            if let Some((at, error)) = &state.failed
                && at.elapsed() < max_age.min(ERROR_TTL)
            {
                return Err(error.clone());
            }
            match (&state.known, &state.in_flight) {
                (Some((at, known)), _) if at.elapsed() <= max_age => return Ok(known.clone()),
                (_, Some(in_flight)) => in_flight.clone(),
                _ => {
                    let task = tokio::spawn(self.clone().refresh(read()));
                    let in_flight = task.map(|ended| ended.map_err(Error::of).flatten());
                    let in_flight = in_flight.boxed().shared();
                    state.in_flight = Some(in_flight.clone());
                    in_flight
                }
            }
        };
        in_flight.await
    }

    /// A value of that freshness, or a stale one after the timeout.
    pub async fn get_or_stale<R, F>(&self, freshness: Freshness, read: R) -> Option<Arc<T>>
    where
        R: FnOnce() -> F,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let is_acceptable = |(at, _): &(Instant, Arc<T>)| at.elapsed() <= freshness.acceptable_age;
        let must_wait = !self.state().known.as_ref().is_some_and(is_acceptable);
        let limit = if must_wait { freshness.timeout } else { Duration::ZERO };
        // With no timeout, this starts the read.
        let result = timeout(limit, self.get(freshness.max_age, read)).await;
        result.ok().and_then(Result::ok).or_else(|| self.last())
    }

    /// The cached value if it is not older than `max_age`.
    pub(super) fn fresh(&self, max_age: Duration) -> Option<Arc<T>> {
        let state = self.state();
        let (at, known) = state.known.as_ref()?;
        (at.elapsed() <= max_age).then(|| known.clone())
    }

    /// The cached value, however old.
    pub(super) fn last(&self) -> Option<Arc<T>> {
        self.state().known.as_ref().map(|(_, known)| known.clone())
    }

    /// How long the last read took.
    pub(super) fn read_duration(&self) -> Duration {
        self.state().read_duration
    }

    async fn refresh(self, read: impl Future<Output = Result<T, Error>>) -> CachedResult<T> {
        let begun = Instant::now();
        let result = read.await.map(Arc::new);
        let mut state = self.state();
        state.in_flight = None;
        state.read_duration = begun.elapsed();
        state.failed = result.as_ref().err().map(|error| (Instant::now(), error.clone()));
        if let Ok(value) = &result {
            // The age counts from the start of the read.
            state.known = Some((begun, value.clone()));
        }
        result
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock()
    }
}

/// Reads on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    panics::blocking(read).await.map_err(Error::of)?.map_err(Error::of)
}
