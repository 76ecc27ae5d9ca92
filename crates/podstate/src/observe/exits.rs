//! The end of a container's first process, as the kernel tells it: a hint to look, never the truth.
//!
//! It comes before the runtime itself knows, so the container is looked at until the runtime tells
//! of the end too. It costs a descriptor per container that runs.
//!
//! Current limitations: none for sandboxes, nor where the runtime tells no pid or one that this
//! daemon cannot see; relists and the runtime's events have to do there.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use longshore_base::{panics, time};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{debug, trace};

use super::Observer;

/// Pauses before looks at a container whose process has ended, each longer by a quarter, so that
/// no end is seen later than a quarter of its time. Runtimes tell of most within 50 ms; after the
/// last pause, most of a second is over and a relist is due anyway.
const FIRST_PAUSE: Duration = Duration::from_millis(8);
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// Wait for the end of a container that runs, and look until it is seen. Its first process is
/// asked for if it is not told.
pub(super) fn follow(
    observer: Observer,
    uid: String,
    id: String,
    sandbox_id: String,
    pid: Option<i32>,
) {
    let following = async move {
        match end(&observer, &id, pid).await {
            Ok(()) => Box::pin(look(&observer, &uid, &id, &sandbox_id)).await,
            Err(error) => debug!(%uid, %id, %error, "the end of a container cannot be awaited"),
        }
        observer.unfollow(&uid, &id);
    };
    tokio::spawn(panics::contain(following));
}

/// Until the container's first process has ended.
async fn end(observer: &Observer, id: &str, pid: Option<i32>) -> io::Result<()> {
    // Boxed, as the looks are, for what waits so long must be small.
    let Some(process) = Box::pin(open(observer, id, pid)).await? else { return Ok(()) };
    let _ended = process.readable().await?;
    Ok(())
}

/// The container's first process; `None` if it is gone. Were its pid another's by now, the relist
/// would tell of the end.
async fn open(
    observer: &Observer,
    id: &str,
    pid: Option<i32>,
) -> io::Result<Option<AsyncFd<OwnedFd>>> {
    let pid = match pid {
        Some(pid) => Some(pid),
        None => {
            let status = observer.runtime.container_status_and_pid(id).await;
            status.map_err(io::Error::other)?.1
        }
    };
    let pid = pid.and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("the runtime tells no pid"))?;
    match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(process) => Ok(Some(awaitable(process)?)),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[allow(deprecated, reason = "its successor is the same and unsafe, for other types than OwnedFd")]
fn awaitable(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    Ok(AsyncFd::try_with_interest(process, Interest::READABLE)?)
}

async fn look(observer: &Observer, uid: &str, id: &str, sandbox_id: &str) {
    let mut pause = FIRST_PAUSE;
    while pause <= LAST_PAUSE {
        tokio::time::sleep(pause).await;
        if !observer.is_running(uid, id) {
            return; // seen by another way
        }
        trace!(uid, id, ?pause, "look at a container whose process has ended");
        let _ = observer.look_at_container(uid, id, sandbox_id).await; // has said why it failed
        pause = pause.saturating_add(time::part(pause, 4));
    }
}
