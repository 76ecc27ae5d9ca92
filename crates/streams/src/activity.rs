//! Idle detection of connections.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use longshore_base::time;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

/// A client connection that keeps the time of its last use.
pub(crate) struct Active {
    io: TokioIo<Upgraded>,
    activity: Arc<Activity>,
}

/// When something was last used.
#[derive(Debug)]
pub struct Activity {
    began: Instant,
    /// Milliseconds since `began`.
    last: AtomicU64,
}

impl Default for Activity {
    /// It is used now.
    fn default() -> Self {
        Self { began: Instant::now(), last: AtomicU64::new(0) }
    }
}

impl Activity {
    /// It is used now.
    pub fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        time::later(self.began, Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }

    /// Completes when it has not been used for that time.
    pub async fn idle_for(&self, idle: Duration) {
        loop {
            let deadline = time::later(self.last(), idle);
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}

impl Active {
    /// The connection, and a future that completes when it has been idle for the `idle` time.
    pub(crate) fn new(
        io: Upgraded,
        idle: Duration,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let activity = Arc::new(Activity::default());
        let watched = Arc::clone(&activity);
        let expiry = async move { watched.idle_for(idle).await };
        (Self { io: TokioIo::new(io), activity }, expiry)
    }
}

impl AsyncRead for Active {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.io).poll_read(context, buffer));
        self.activity.note();
        Poll::Ready(result)
    }
}

impl AsyncWrite for Active {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.io).poll_write(context, bytes));
        self.activity.note();
        Poll::Ready(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
