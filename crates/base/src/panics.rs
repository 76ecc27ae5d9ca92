//! Isolation of panics: a panic in the work on one pod or one request ends only that work. Any other
//! panic aborts the daemon, so that no part of it is missing.
//!
//! Programs call [`install`] first. Work on one pod or one request runs in [`contain`],
//! [`contain_sync`] or [`blocking`]. Stack overflow and out of memory are no panics: they always end
//! the process.

mod body;

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::task::Poll;

use tokio::task::JoinError;
use tracing::error;

pub use self::body::{BoxError, ContainedBody};
use crate::output;

thread_local! {
    /// Depth of contained scopes of this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Information of the hook about the current panic.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A contained panic: its message and location, without data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("internal error: {0}")]
pub struct Panicked(String);

impl From<Panicked> for io::Error {
    fn from(panicked: Panicked) -> Self {
        Self::other(panicked)
    }
}

/// Logs all panics, and aborts the process after one that is not contained.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        let contained = DEPTH.get() > 0;
        let panic = described(info);
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => error!(contained, %backtrace, "panic: {panic}"),
            _ => error!(contained, "panic: {panic}"),
        }
        if !tracing::dispatcher::has_been_set() {
            output::report(format_args!("panic: {panic}"));
        }
        if !contained {
            std::process::abort();
        }
        LAST.set(Some(panic));
    }));
}

/// Runs a future; a panic is an error.
///
/// # Errors
/// The work panicked and was dropped.
pub fn contain<W: Future>(work: W) -> impl Future<Output = Result<W::Output, Panicked>> {
    // Boxed once: as the argument of an `async fn` it would take twice the memory.
    let mut work = Box::pin(work);
    std::future::poll_fn(move |context| {
        contain_sync(|| work.as_mut().poll(context))
            .map_or_else(|panicked| Poll::Ready(Err(panicked)), |poll| poll.map(Ok))
    })
}

/// As [`contain`], with another result instead of a panic. The work is on the heap, and dropped as soon
/// as it has a result.
pub fn contained<W: Future>(
    work: W,
    panicked: impl FnOnce() -> W::Output,
) -> impl Future<Output = W::Output> {
    let work = contain(work);
    async { work.await.unwrap_or_else(|_| panicked()) }
}

/// As [`contain`], for synchronous work.
///
/// # Errors
/// The work panicked.
pub fn contain_sync<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let _scope = Scope::enter();
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|payload| Panicked(LAST.take().unwrap_or_else(|| harmless(&*payload))))
}

/// As [`contain_sync`], on a blocking thread.
///
/// # Errors
/// The work panicked, or the runtime shuts down.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Panicked> {
    flat(tokio::task::spawn_blocking(|| contain_sync(work)).await)
}

/// As [`blocking`], of work that may fail: a panic is a failure.
///
/// # Errors
/// Of the work, or it panicked, or the runtime shuts down.
pub async fn try_blocking<T: Send + 'static, E: From<Panicked> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    blocking(work).await?
}

/// As [`contain`], in a task of its own, which is not cancelled with its caller.
///
/// # Errors
/// The work panicked, or the runtime shuts down.
pub async fn task<W>(work: W) -> Result<W::Output, Panicked>
where
    W: Future<Output: Send + 'static> + Send + 'static,
{
    flat(tokio::spawn(contain(work)).await)
}

fn flat<T>(joined: Result<Result<T, Panicked>, JoinError>) -> Result<T, Panicked> {
    joined.unwrap_or_else(|_| Err(Panicked("the runtime shuts down".to_owned())))
}

/// Counts the contained scopes of this thread.
struct Scope;

impl Scope {
    fn enter() -> Self {
        DEPTH.set(DEPTH.get().saturating_add(1));
        Self
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

fn described(info: &PanicHookInfo<'_>) -> String {
    let message = harmless(info.payload());
    match info.location() {
        Some(location) => format!("{message} at {location}"),
        None => message,
    }
}

/// The message of a panic. Formatted data may be a secret: the standard library quotes, for example,
/// the text that was sliced at an invalid index, and the error of `expect`. So the message ends before
/// the first quotation.
fn harmless(payload: &(dyn Any + Send)) -> String {
    if let Some(message) = payload.downcast_ref::<&'static str>() {
        return (*message).to_owned();
    }
    let message = payload.downcast_ref::<String>().map_or("", String::as_str);
    let message = message.split(['`', '"', '\'']).next().unwrap_or_default().trim_end();
    if message.is_empty() { "panic".to_owned() } else { message.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn panic_ends_only_its_work() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let held = Held(dropped.clone());
        let work = async move {
            let _held = held;
            tokio::task::yield_now().await;
            panic!("of this work");
        };
        let error = contain(work).await.unwrap_err();
        assert!(error.to_string().contains("of this work"), "{error}");
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "what it held is given back");
        assert_eq!(contain(async { 7 }).await, Ok(7));
        assert_eq!(contained(async { panic!("with another result") }, || 8).await, 8);
        assert_eq!(contained(async { 7 }, || 8).await, 7);
        assert!(blocking(|| panic!("on another thread")).await.is_err());
        assert_eq!(blocking(|| 7).await, Ok(7));
        assert!(task(async { panic!("in a task") }).await.is_err());
        assert_eq!(task(async { 7 }).await, Ok(7));
        assert_eq!(DEPTH.get(), 0, "no scope stays open");
    }

    struct Held(Arc<AtomicUsize>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn panic_message_has_no_data() {
        let secret = "pässword";
        let refused: Result<(), &str> = std::hint::black_box(Err(secret));
        let quoting: [&dyn Fn(); 3] =
            [&|| drop(secret[..2].to_owned()), &|| refused.unwrap(), &|| {
                panic!("unexpected: {secret:?}")
            }];
        for work in quoting {
            let error = contain_sync(work).unwrap_err().to_string();
            assert!(!error.contains("ssword"), "{error}");
        }
        let error = contain_sync(|| drop([0; 3][secret.len()..].to_owned())).unwrap_err();
        assert!(error.to_string().contains("out of range"), "{error}");
    }

    /// Runs this test in a child process with that panic.
    fn ends(how: &str) -> std::process::ExitStatus {
        let test = "panics::tests::panic_in_a_separate_process";
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", test, "--nocapture"]).env("PANIC_OF_TEST", how);
        program.output().unwrap().status
    }

    #[test]
    fn panic_in_a_separate_process() {
        let Ok(how) = std::env::var("PANIC_OF_TEST") else { return };
        install();
        let panics = || panic!("as the test wants it");
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let done = match how.as_str() {
            "contained" => runtime.block_on(async {
                let task = tokio::spawn(contain(async move { panics() }));
                task.await.unwrap().is_err() && blocking(panics).await.is_err()
            }),
            "after" => {
                assert!(contain_sync(panics).is_err());
                panics()
            }
            _ => runtime.block_on(async { tokio::spawn(async move { panics() }).await.is_err() }),
        };
        std::process::exit(if done { 0 } else { 3 });
    }

    #[test]
    fn panic_outside_of_contained_work_aborts() {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(ends("contained").code(), Some(0));
        for how in ["elsewhere", "after"] {
            let status = ends(how);
            assert!(status.signal().is_some(), "{how}: {status}");
        }
    }
}
