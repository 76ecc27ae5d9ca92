//! The OOM watcher: follows the kernel's log, and tells a `SystemOOM` event about the node when a
//! process is killed since the machine ran out of memory. A container over its own limit is no
//! such event: the runtime tells its end, and its reason.

mod kernel_log;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use longshore_client::events::{EventType, Recorder, node_reference};
use nix::fcntl::OFlag;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::warn;

use self::kernel_log::{KernelLog, SystemKill};

const KERNEL_LOG: &str = "/dev/kmsg";
/// More than any record has; a read into less fails.
const LONGEST_RECORD: usize = 8192;

/// Tell of every kill from now on. Ends only if the log cannot be read, with a warning.
pub async fn watch(recorder: Recorder, node_name: String) {
    let tell = |kill: SystemKill| {
        let SystemKill { process, pid } = kill;
        let message = format!("System OOM encountered, victim process: {process}, pid: {pid}");
        recorder.event(node_reference(&node_name), EventType::Warning, "SystemOOM", &message);
    };
    let outcome = match open(Path::new(KERNEL_LOG)) {
        Ok(log) => follow(log, tell).await,
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        warn!(%error, "{KERNEL_LOG} cannot be read: the node will not tell when it is out of memory");
    }
}

/// Open a log at its end: what is in it was told before, or happened before the node was there.
fn open(path: &Path) -> io::Result<File> {
    let mut log = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    log.seek(SeekFrom::End(0))?;
    Ok(log)
}

/// Each read of the log gives one record.
#[allow(deprecated, reason = "its successor is the same and unsafe, for other types than File")]
async fn follow(log: File, mut tell: impl FnMut(SystemKill)) -> io::Result<()> {
    let log = AsyncFd::try_with_interest(log, Interest::READABLE)?;
    let mut records = KernelLog::default();
    let mut record = vec![0; LONGEST_RECORD];
    loop {
        match log.async_io(Interest::READABLE, |mut file| file.read(&mut record)).await {
            Ok(0) => return Ok(()),
            Ok(length) => {
                record.get(..length).and_then(|record| records.read(record)).map(&mut tell);
            }
            // The log is a ring, and it came round before we read on.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => records.gap(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // A flood of records must not keep the thread.
        tokio::task::coop::consume_budget().await;
    }
}
