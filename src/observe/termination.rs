//! A container's last words: the file that it may write, or the end of its log.

use std::io::SeekFrom;
use std::path::Path;

use longshore_cri::v1;
use nix::libc::O_NONBLOCK;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::runtime::labels;

/// Longest message that is told (bytes).
const MESSAGE_LIMIT: u64 = 4096;
/// Longest message that is taken from a log (bytes, lines).
const LOG_LIMIT: usize = 2048;
const LOG_LINES: usize = 80;

/// The termination message of a container that has ended; empty if there is none.
///
/// A runtime that never started the container says why in its own message.
pub(super) async fn message(status: &v1::ContainerStatus) -> String {
    let path = status.annotations.get(labels::TERMINATION_MESSAGE_PATH);
    let mount = path
        .filter(|path| !path.is_empty())
        .and_then(|path| status.mounts.iter().find(|mount| mount.container_path == *path));
    let mut message = match mount {
        Some(mount) => head(Path::new(&mount.host_path)).await,
        None => String::new(),
    };
    let fallback = status
        .annotations
        .get(labels::TERMINATION_MESSAGE_POLICY)
        .is_some_and(|policy| policy == "FallbackToLogsOnError");
    if message.is_empty() && fallback && status.exit_code != 0 {
        message = log_tail(Path::new(&status.log_path)).await;
    }
    if message.is_empty() {
        message.clone_from(&status.message);
    }
    message
}

async fn head(path: &Path) -> String {
    // A pod can put a pipe in place of the file, and opening that must not wait for a writer.
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).await;
    let Ok(file) = opened else { return String::new() };
    let mut bytes = Vec::new();
    match file.take(MESSAGE_LIMIT).read_to_end(&mut bytes).await {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

/// The last lines of a log in the runtime's format, without its time stamps.
async fn log_tail(path: &Path) -> String {
    let Ok(mut file) = File::open(path).await else { return String::new() };
    // The time stamp and stream name of a line take less than 48 bytes.
    let window = LOG_LIMIT + LOG_LINES * 48;
    let length = file.metadata().await.map_or(0, |metadata| metadata.len());
    let start = length.saturating_sub(window as u64);
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(start)).await.is_err()
        || file.take(window as u64).read_to_end(&mut bytes).await.is_err()
    {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let skip = usize::from(start > 0); // most likely cut in the middle
    let lines: Vec<&str> = text.lines().skip(skip).collect();
    let mut message: String = lines[lines.len().saturating_sub(LOG_LINES)..]
        .iter()
        .filter_map(|line| {
            let mut fields = line.splitn(4, ' ').skip(2);
            let partial = fields.next()? == "P";
            Some(format!("{}{}", fields.next()?, if partial { "" } else { "\n" }))
        })
        .collect();
    if message.len() > LOG_LIMIT {
        let mut cut = message.len() - LOG_LIMIT;
        while !message.is_char_boundary(cut) {
            cut += 1;
        }
        message.drain(..cut);
    }
    message
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use std::time::Duration;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[tokio::test]
    async fn a_pipe_in_place_of_the_file_holds_nobody_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
        let read = tokio::time::timeout(Duration::from_secs(5), head(&path)).await;
        assert_eq!(read.as_deref(), Ok(""));
    }
}
