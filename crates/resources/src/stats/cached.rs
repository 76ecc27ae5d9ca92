//! A figure that is read when somebody asks and what is known is too old.

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use longshore_base::panics;
use tokio::time::timeout;

/// A figure cannot be had. Those who asked together share it, so it carries the cause as text.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(Arc<str>);

impl Error {
    /// With the text of its cause.
    pub fn of(cause: impl Display) -> Self {
        Self(cause.to_string().into())
    }
}

/// How old what is told may be, and how long one waits for what is younger.
#[derive(Clone, Copy, Debug)]
pub struct Freshness {
    /// What is older is read again.
    pub renewed: Duration,
    /// Meanwhile, what is younger than this is told as it is...
    pub good: Duration,
    /// ...and for what is older one waits so long.
    pub patience: Duration,
}

impl Freshness {
    /// To wait whenever something is read again.
    pub(super) fn waiting(renewed: Duration, patience: Duration) -> Self {
        Self { renewed, good: renewed, patience }
    }
}

type Answer<T> = Result<Arc<T>, Error>;

/// Cheap to clone: all clones are one figure.
pub struct Cached<T>(Arc<Mutex<State<T>>>);

/// An error holds no longer than this.
const TROUBLE: Duration = Duration::from_secs(5);

struct State<T> {
    known: Option<(Instant, Arc<T>)>,
    /// The last reading's error, if it failed.
    failed: Option<(Instant, Error)>,
    /// How long the last reading took.
    cost: Duration,
    /// A reading that is under way. It goes on though those who wait for it go away.
    reading: Option<Shared<BoxFuture<'static, Answer<T>>>>,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        let state = State { known: None, failed: None, cost: Duration::ZERO, reading: None };
        Self(Arc::new(Mutex::new(state)))
    }
}

impl<T> Clone for Cached<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + Sync + 'static> Cached<T> {
    /// What is known if it is not older than `max_age`, or what `read` finds.
    pub(super) async fn get<R, F>(&self, max_age: Duration, read: R) -> Answer<T>
    where
        R: FnOnce() -> F,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let reading = {
            let mut state = self.state();
            if let Some((at, error)) = &state.failed
                && at.elapsed() < max_age.min(TROUBLE)
            {
                return Err(error.clone());
            }
            match (&state.known, &state.reading) {
                (Some((at, known)), _) if at.elapsed() <= max_age => return Ok(known.clone()),
                (_, Some(reading)) => reading.clone(),
                _ => {
                    let task = tokio::spawn(self.clone().fill(read()));
                    let reading = task.map(|ended| ended.map_err(Error::of).flatten());
                    let reading = reading.boxed().shared();
                    state.reading = Some(reading.clone());
                    reading
                }
            }
        };
        reading.await
    }

    /// What is known on those terms, however old it is if nothing younger comes in time.
    pub async fn known<R, F>(&self, terms: Freshness, read: R) -> Option<Arc<T>>
    where
        R: FnOnce() -> F,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let is_good = |(at, _): &(Instant, Arc<T>)| at.elapsed() <= terms.good;
        let waits = !self.state().known.as_ref().is_some_and(is_good);
        let patience = if waits { terms.patience } else { Duration::ZERO };
        // Also who does not wait begins the reading.
        let answer = timeout(patience, self.get(terms.renewed, read)).await;
        answer.ok().and_then(Result::ok).or_else(|| self.last())
    }

    /// What is known if it is not older than `max_age`.
    pub(super) fn young(&self, max_age: Duration) -> Option<Arc<T>> {
        let state = self.state();
        let (at, known) = state.known.as_ref()?;
        (at.elapsed() <= max_age).then(|| known.clone())
    }

    /// What is known, however old.
    pub(super) fn last(&self) -> Option<Arc<T>> {
        self.state().known.as_ref().map(|(_, known)| known.clone())
    }

    /// How long the last reading took.
    pub(super) fn cost(&self) -> Duration {
        self.state().cost
    }

    async fn fill(self, reading: impl Future<Output = Result<T, Error>>) -> Answer<T> {
        let begun = Instant::now();
        let answer = reading.await.map(Arc::new);
        let mut state = self.state();
        state.reading = None;
        state.cost = begun.elapsed();
        state.failed = answer.as_ref().err().map(|error| (Instant::now(), error.clone()));
        if let Ok(value) = &answer {
            // It is as old as its oldest part.
            state.known = Some((begun, value.clone()));
        }
        answer
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Read where nobody is held up by it.
pub(super) async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    panics::blocking(read).await.map_err(Error::of)?.map_err(Error::of)
}
