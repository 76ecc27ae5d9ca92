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
/// What the runtime says goes first: it tells why a container never started.
pub(super) async fn message(status: &v1::ContainerStatus) -> String {
    let path = status.annotations.get(labels::TERMINATION_MESSAGE_PATH);
    let mount = path
        .filter(|path| !path.is_empty())
        .and_then(|path| status.mounts.iter().find(|mount| mount.container_path == *path));
    let mut message = match mount {
        Some(mount) => tail(Path::new(&mount.host_path)).await,
        None => String::new(),
    };
    let fallback = status
        .annotations
        .get(labels::TERMINATION_MESSAGE_POLICY)
        .is_some_and(|policy| policy == "FallbackToLogsOnError");
    if message.is_empty() && fallback && status.exit_code != 0 {
        message = log_tail(Path::new(&status.log_path)).await;
    }
    match (status.message.as_str(), message.as_str()) {
        ("", _) => message,
        (runtime, "") => runtime.to_owned(),
        (runtime, own) => format!("{runtime}: {own}"),
    }
}

/// The end of a file: a program that fails says why in its last line.
async fn tail(path: &Path) -> String {
    // A pod can put a pipe in place of the file, and opening that must not wait for a writer.
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).await;
    let Ok(mut file) = opened else { return String::new() };
    let length = file.metadata().await.map_or(0, |metadata| metadata.len());
    if length > MESSAGE_LIMIT && file.seek(SeekFrom::Start(length - MESSAGE_LIMIT)).await.is_err() {
        return String::new();
    }
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
        let read = tokio::time::timeout(Duration::from_secs(5), tail(&path)).await;
        assert_eq!(read.as_deref(), Ok(""));
    }

    #[tokio::test]
    async fn of_a_long_file_the_end_is_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("words");
        let words: String = (0..2000).map(|line| format!("{line}\n")).collect();
        tokio::fs::write(&path, &words).await.expect("a file");
        assert_eq!(tail(&path).await, words[words.len() - 4096..]);
        tokio::fs::write(&path, "short").await.expect("a file");
        assert_eq!(tail(&path).await, "short");
    }

    #[tokio::test]
    async fn what_the_runtime_says_goes_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("words");
        let said = async |runtime: &str, own: &str| {
            tokio::fs::write(&path, own).await.expect("a file");
            let annotation = (labels::TERMINATION_MESSAGE_PATH.to_owned(), "/words".to_owned());
            message(&v1::ContainerStatus {
                message: runtime.to_owned(),
                annotations: [annotation].into(),
                mounts: vec![v1::Mount {
                    container_path: "/words".to_owned(),
                    host_path: path.display().to_string(),
                    ..v1::Mount::default()
                }],
                ..v1::ContainerStatus::default()
            })
            .await
        };
        assert_eq!(said("", "own").await, "own");
        assert_eq!(said("runtime", "").await, "runtime");
        assert_eq!(said("runtime", "own").await, "runtime: own");
    }
}
