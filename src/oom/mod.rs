//! The OOM watcher: follows the kernel log, and records a `SystemOOM` event for the node when a process
//! is killed because the machine is out of memory. The OOM kill of a container at its own limit is
//! reported by the runtime.

mod kernel_log;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use longshore_base::files::awaitable;
use longshore_client::events::{EventType, Recorder, node_reference};
use nix::fcntl::OFlag;
use tokio::io::Interest;
use tracing::warn;

use self::kernel_log::{KernelLog, SystemKill};

const KERNEL_LOG: &str = "/dev/kmsg";
/// Maximum size of a record; a read with a smaller buffer fails.
const LONGEST_RECORD: usize = 8192;

/// Records an event for each system OOM kill from now on. Ends only if the log cannot be read.
pub async fn watch(recorder: Recorder, node_name: String) {
    let record = |kill: SystemKill| {
        let SystemKill { process, pid } = kill;
        let message = format!("System OOM encountered, victim process: {process}, pid: {pid}");
        recorder.event(node_reference(&node_name), EventType::Warning, "SystemOOM", &message);
    };
    let outcome = match open(Path::new(KERNEL_LOG)) {
        Ok(log) => follow(log, record).await,
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        warn!(%error, "cannot read {KERNEL_LOG}: system OOM kills are not reported");
    }
}

/// Opens a log at its end.
fn open(path: &Path) -> io::Result<File> {
    let mut log = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    log.seek(SeekFrom::End(0))?;
    Ok(log)
}

/// Follows the log; each read returns one record.
async fn follow(log: File, mut on_kill: impl FnMut(SystemKill)) -> io::Result<()> {
    let log = awaitable(log, Interest::READABLE)?;
    let mut records = KernelLog::default();
    let mut record = vec![0; LONGEST_RECORD];
    loop {
        match log.async_io(Interest::READABLE, |mut file| file.read(&mut record)).await {
            Ok(0) => return Ok(()),
            Ok(length) => {
                record.get(..length).and_then(|record| records.read(record)).map(&mut on_kill);
            }
            // The ring buffer was overrun.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => records.gap(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // Many records must not block the thread.
        tokio::task::coop::consume_budget().await;
    }
}
