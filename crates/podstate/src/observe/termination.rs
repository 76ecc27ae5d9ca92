//! Termination messages: from the container's file, or the end of its log.

use std::io::{self, SeekFrom};
use std::path::Path;

use longshore_base::files::if_present;
use longshore_base::panics;
use longshore_cri::v1;
use longshore_logs as logs;
use longshore_pod::labels;
use nix::libc::O_NONBLOCK;
use tokio::fs::OpenOptions;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

/// Limit of a termination message (bytes).
const MESSAGE_LIMIT: u64 = 4096;
/// Limits of a message taken from a log (bytes, lines).
const LOG_LIMIT: usize = 2048;
const LOG_LINES: u64 = 80;

/// The termination message of an exited container; empty if there is none.
///
/// A message of the runtime takes precedence: it explains why a container never started.
pub(super) async fn message(status: &v1::ContainerStatus) -> String {
    let path = status.annotations.get(labels::TERMINATION_MESSAGE_PATH);
    let mount = path
        .filter(|path| !path.is_empty())
        .and_then(|path| status.mounts.iter().find(|mount| mount.container_path == *path));
    let mut message = match mount {
        Some(mount) => tail(Path::new(&mount.host_path)).await.unwrap_or_else(|error| {
            format!("Error on reading termination log {}: {error}", mount.host_path)
        }),
        None => String::new(),
    };
    // One that could not be started has no log.
    let ran = status.reason != "ContainerCannotRun";
    let fallback = ran
        && status
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

/// The end of a file: the last lines of a program usually give the reason. Empty if there is none.
async fn tail(path: &Path) -> io::Result<String> {
    // A pod can put a pipe in place of the file, and opening that must not wait for a writer.
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).await;
    let Some(mut file) = if_present(opened)? else { return Ok(String::new()) };
    let length = file.metadata().await?.len();
    if length > MESSAGE_LIMIT {
        file.seek(SeekFrom::Start(length.saturating_sub(MESSAGE_LIMIT))).await?;
    }
    let mut bytes = Vec::new();
    file.take(MESSAGE_LIMIT).read_to_end(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a log.
async fn log_tail(path: &Path) -> String {
    let path = path.to_owned();
    let tail = panics::blocking(move || logs::tail(&path, LOG_LINES, LOG_LIMIT)).await;
    let tail = match tail {
        Ok(Ok(tail)) => tail,
        Ok(Err(error)) => {
            return format!("Error on reading termination message from logs: {error}");
        }
        Err(_) => Vec::new(), // the daemon stops
    };
    // the limit may have cut a character
    let is_inside = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    let whole = tail.iter().position(|byte| !is_inside(byte)).unwrap_or(0);
    String::from_utf8_lossy(&tail[whole..]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[tokio::test]
    async fn termination_message_pipe_does_not_block() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
        let read = tokio::time::timeout(Duration::from_secs(5), tail(&path)).await;
        assert_eq!(read.expect("in time").expect("no error"), "");
    }

    #[tokio::test]
    async fn termination_message_that_cannot_be_read_says_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let read = async |host_path: &Path, policy: &str| {
            let annotations = [
                (labels::TERMINATION_MESSAGE_PATH, "/message"),
                (labels::TERMINATION_MESSAGE_POLICY, policy),
            ];
            message(&v1::ContainerStatus {
                exit_code: 1,
                log_path: dir.path().join("0.log").display().to_string(),
                annotations: annotations.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
                mounts: vec![v1::Mount {
                    container_path: "/message".to_owned(),
                    host_path: host_path.display().to_string(),
                    ..v1::Mount::default()
                }],
                ..v1::ContainerStatus::default()
            })
            .await
        };
        let log = "2024-01-01T00:00:00Z stderr F from the log\n";
        tokio::fs::write(dir.path().join("0.log"), log).await.expect("a file");
        let text = format!("Error on reading termination log {}: ", dir.path().display());
        let found = read(dir.path(), "FallbackToLogsOnError").await;
        assert!(found.starts_with(&text) && found.len() > text.len(), "{found}");
        let absent = dir.path().join("absent");
        assert_eq!(read(&absent, "FallbackToLogsOnError").await, "from the log\n");
        assert_eq!(read(&absent, "File").await, "");
    }

    #[tokio::test]
    async fn termination_message_from_the_end_of_a_long_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("message");
        let message: String = (0..2000).map(|line| format!("{line}\n")).collect();
        tokio::fs::write(&path, &message).await.expect("a file");
        assert_eq!(tail(&path).await.expect("no error"), message[message.len() - 4096..]);
        tokio::fs::write(&path, "short").await.expect("a file");
        assert_eq!(tail(&path).await.expect("no error"), "short");
    }

    #[tokio::test]
    async fn termination_message_from_the_last_lines_of_a_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0.log");
        assert_eq!(log_tail(&path).await, "");
        let lines = |range: std::ops::Range<u32>| -> String {
            range.map(|n| format!("2024-01-01T00:00:00Z stderr F line {n}\n")).collect()
        };
        // it was rotated just before the end
        tokio::fs::write(dir.path().join("0.log.20240101-000000"), lines(0..100)).await.expect("");
        tokio::fs::write(&path, lines(100..110)).await.expect("a file");
        let expected: String = (30..110).map(|n| format!("line {n}\n")).collect();
        assert_eq!(log_tail(&path).await, expected);
        let long = format!("2024-01-01T00:00:00Z stderr F {}\n", "\u{e4}".repeat(3000));
        tokio::fs::write(&path, long).await.expect("a file");
        assert_eq!(log_tail(&path).await, "\u{e4}".repeat(1023) + "\n");
    }

    #[tokio::test]
    async fn termination_message_of_the_runtime_takes_precedence() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("message");
        let said = async |runtime: &str, own: &str| {
            tokio::fs::write(&path, own).await.expect("a file");
            let annotation = (labels::TERMINATION_MESSAGE_PATH.to_owned(), "/message".to_owned());
            message(&v1::ContainerStatus {
                message: runtime.to_owned(),
                annotations: [annotation].into(),
                mounts: vec![v1::Mount {
                    container_path: "/message".to_owned(),
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
