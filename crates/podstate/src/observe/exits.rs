//! Exits of containers' processes, observed with a pidfd: a hint to inspect the container, never
//! the source of truth.
//!
//! The exit is seen before the runtime reports it, so the container is inspected until the runtime
//! reports it too. It costs a file descriptor per running container.
//!
//! Current limitations: none for sandboxes, nor where the runtime reports no pid or one outside of
//! this daemon's pid namespace; relists and the runtime's events are used there.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use longshore_base::files::awaitable;
use longshore_base::{panics, time};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{debug, trace};

use super::Observer;

/// Delays between inspections of a container whose process has exited, each longer by a quarter, so
/// that no exit is reported later than a quarter of its time. Most runtimes report it within 50 ms;
/// after the last delay, a relist is due anyway.
const FIRST_PAUSE: Duration = Duration::from_millis(8);
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// Wait for the exit of a running container, and inspect it until the runtime reports the exit. The
/// runtime is queried for the pid if it is not given.
pub(super) fn follow(
    observer: Observer,
    uid: String,
    id: String,
    sandbox_id: String,
    pid: Option<i32>,
) {
    let following = async move {
        match exited(&observer, &id, pid).await {
            Ok(()) => Box::pin(inspect_until_exited(&observer, &uid, &id, &sandbox_id)).await,
            Err(error) => debug!(%uid, %id, %error, "cannot wait for the exit of a container"),
        }
        observer.unfollow(&uid, &id);
    };
    tokio::spawn(panics::contain(following));
}

/// Returns when the container's first process has exited.
async fn exited(observer: &Observer, id: &str, pid: Option<i32>) -> io::Result<()> {
    // Boxed, as the inspections are, to keep the long-lived future small.
    let Some(process) = Box::pin(open_pidfd(observer, id, pid)).await? else { return Ok(()) };
    let _ended = process.readable().await?;
    Ok(())
}

/// The container's first process; `None` if it is gone. If the pid was reused already, the relist
/// finds the exit.
async fn open_pidfd(
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
    let pid = pid.ok_or_else(|| io::Error::other("the runtime reports no pid"))?;
    match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(process) => awaitable(process, Interest::READABLE).map(Some),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn inspect_until_exited(observer: &Observer, uid: &str, id: &str, sandbox_id: &str) {
    let mut pause = FIRST_PAUSE;
    while pause <= LAST_PAUSE {
        tokio::time::sleep(pause).await;
        if !observer.is_running(uid, id) {
            return; // observed otherwise
        }
        trace!(uid, id, ?pause, "inspecting a container whose process has exited");
        let _ = observer.inspect_container(uid, id, sandbox_id).await; // has said why it failed
        pause = pause.saturating_add(time::part(pause, 4));
    }
}
