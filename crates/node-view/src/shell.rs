//! A shell in a container, on the terminal of this process, by the streaming server of the container runtime.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use longshore_streams::{self as streams, Status, TerminalInput};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What is run: bash where the container has it, as k9s does.
pub(crate) const COMMAND: [&str; 3] =
    ["sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash || exec sh"];
/// How soon a new size is seen, and the end of the session.
const EVERY: Duration = Duration::from_millis(100);
const KEYS: usize = 4096;

/// Runs the session at that URL of the runtime, until the shell ends or `stop`. The error is for a person.
pub(crate) async fn run(url: &str, stop: &CancellationToken) -> Result<(), String> {
    let text = |error: streams::Error| error.to_string();
    let (target, connection) = streams::dial(url).await.map_err(text)?;
    let request = streams::spdy_request(&target, &streams::REMOTE_COMMANDS);
    let session = streams::upgrade(connection, request).await.map_err(text)?;
    let _raw = RawMode::enter().map_err(|error| error.to_string())?;
    let (sender, mut input) = mpsc::channel(16);
    let reader = std::thread::spawn(move || read(&sender));
    let ended = tokio::select! {
        ended = streams::terminal(session, &mut input, Terminal) => ended,
        () = stop.cancelled() => Ok(Status::Success),
    };
    drop(input);
    // Two readers of one terminal would share its keys.
    let _ = tokio::task::spawn_blocking(|| reader.join()).await;
    meaning(ended.map_err(text)?)
}

/// Whether there was a shell. Its exit code is that of the last command, and no error.
fn meaning(status: Status) -> Result<(), String> {
    let Status::Internal(why) = status else { return Ok(()) };
    let lower = why.to_lowercase();
    let is_absent = lower.contains("no such file or directory")
        || (lower.contains("executable file") && lower.contains("not found"));
    Err(if is_absent { "there is no shell (sh) in this container".to_owned() } else { why })
}

/// Without echo, and with each key at once; as before when it is dropped.
struct RawMode;

impl RawMode {
    fn enter() -> io::Result<Self> {
        enable_raw_mode().map(|()| Self)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = disable_raw_mode();
    }
}

/// Sends what is typed, and the terminal's sizes, until nobody wants them or the terminal is gone.
fn read(sender: &mpsc::Sender<TerminalInput>) {
    let stdin = io::stdin();
    let (mut known, mut bytes) = (None, [0; KEYS]);
    while !sender.is_closed() {
        let now = size().ok();
        if let Some((columns, rows)) = now.filter(|_| now != known)
            && sender.blocking_send(TerminalInput::Size { columns, rows }).is_err()
        {
            return;
        }
        known = now;
        let keys = match wait(&stdin) {
            Ok(false) | Err(rustix::io::Errno::INTR) => continue,
            Ok(true) => rustix::io::read(&stdin, &mut bytes),
            Err(error) => Err(error),
        };
        let Some(keys) =
            keys.ok().and_then(|count| bytes.get(..count)).filter(|keys| !keys.is_empty())
        else {
            return;
        };
        if sender.blocking_send(TerminalInput::Keys(keys.to_vec().into())).is_err() {
            return;
        }
    }
}

/// Whether there is something to be read, in a short time.
fn wait(stdin: &impl AsFd) -> rustix::io::Result<bool> {
    let mut files = [PollFd::new(stdin, PollFlags::IN)];
    let time = Timespec::try_from(EVERY).map_err(|_| rustix::io::Errno::INVAL)?;
    poll(&mut files, Some(&time)).map(|count| count > 0)
}

/// Standard output. Writing blocks while a person has stopped it.
struct Terminal;

impl AsyncWrite for Terminal {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(io::stdout().write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(io::stdout().flush())
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_view_shell_that_is_not_there_is_said_plainly() {
        let absent = "there is no shell (sh) in this container";
        let runc = r#"error executing command in container: failed to exec in container: OCI runtime exec failed: exec failed: unable to start container process: exec: "sh": executable file not found in $PATH: unknown"#;
        let crun = "executable file `sh` not found in $PATH: No such file or directory";
        for (status, expected) in [
            (Status::Success, Ok(())),
            (Status::Exit(127), Ok(())),
            (Status::Internal(runc.into()), Err(absent.to_owned())),
            (Status::Internal(crun.into()), Err(absent.to_owned())),
            (Status::Internal("container is paused".into()), Err("container is paused".to_owned())),
        ] {
            assert_eq!(meaning(status.clone()), expected, "{status:?}");
        }
    }
}
