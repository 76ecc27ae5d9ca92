//! What services log: into the journal, or into files that are named after them.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use longshore_base::panics;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::debug;

use super::files::{FileError, Root};
use super::query::Options;
use super::text_stream;

/// How long one answer may take to make.
const DEADLINE: Duration = Duration::from_secs(30);
/// Queries at one time; others wait for their turn.
const AT_ONCE: usize = 4;
const BLOCK: usize = 32 * 1024;
/// Blocks that wait for a slow client.
const BLOCKS: usize = 4;

/// Reads logs by the names of services.
pub(super) struct Services {
    root: Root,
    turns: Arc<Semaphore>,
}

type Output = mpsc::Sender<Bytes>;

impl Services {
    pub(super) fn new(root: Root) -> Self {
        Self { root, turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// An answer that is made while it is sent. What goes wrong is told in it, as by upstream.
    pub(super) fn answer(&self, services: Vec<String>, options: Options) -> Response {
        let (output, input) = mpsc::channel(BLOCKS);
        let (root, turns) = (self.root.clone(), Arc::clone(&self.turns));
        tokio::spawn(panics::contain(async move {
            let work = async {
                let Ok(_turn) = turns.acquire().await else { return };
                copy(&root, services, &options, &output).await;
            };
            tokio::select! {
                late = tokio::time::timeout(DEADLINE, work) => if late.is_err() {
                    say(&output, format!("\nlogs were cut off after {DEADLINE:?}\n")).await;
                },
                // nobody reads any more
                () = output.closed() => {}
            }
        }));
        text_stream(Body::from_stream(ReceiverStream::new(input).map(Ok::<_, std::io::Error>)))
    }
}

async fn say(output: &Output, text: String) {
    let _ = output.send(text.into()).await;
}

async fn copy(root: &Root, services: Vec<String>, options: &Options, output: &Output) {
    let units = journal_units().await;
    let suffixed = |name: &str| units.contains(&format!("{name}.service"));
    let (journaled, filed): (Vec<_>, Vec<_>) =
        services.into_iter().partition(|name| units.contains(name) || suffixed(name));
    if !journaled.is_empty() {
        run_journalctl(&journalctl_args(&journaled, options), output).await;
    }
    if !filed.is_empty() && *options != Options::default() {
        let text = format!(
            "\noptions present and query resolved to log files for {filed:?}\ntry without specifying options\n"
        );
        return say(output, text).await;
    }
    for service in filed {
        copy_file(root, &service, output).await;
    }
}

/// The units that the journal has lines of; none where there is no journal.
async fn journal_units() -> Vec<String> {
    let mut command = Command::new("journalctl");
    command.args(["--field", "_SYSTEMD_UNIT"]).stdin(Stdio::null()).kill_on_drop(true);
    match command.output().await {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
        }
        Ok(_) => Vec::new(),
        Err(error) => {
            debug!("journalctl cannot be asked: {error}");
            Vec::new()
        }
    }
}

/// Every value is behind its flag in one argument, so that none can pass for another flag.
fn journalctl_args(services: &[String], options: &Options) -> Vec<String> {
    let mut args: Vec<String> =
        ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
    // seconds since 1970 mean the same in every time zone
    args.extend(options.since.map(|time| format!("--since=@{}", time.as_second())));
    args.extend(options.until.map(|time| format!("--until=@{}", time.as_second())));
    args.extend(options.tail.map(|lines| format!("--lines={lines}")));
    args.extend(services.iter().map(|service| format!("--unit={service}")));
    args.extend(options.pattern.as_ref().map(|pattern| format!("--grep={pattern}")));
    args.extend(options.boot.map(|boot| format!("--boot={boot}")));
    args
}

async fn run_journalctl(args: &[String], output: &Output) {
    let mut command = Command::new("journalctl");
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            debug!("journalctl cannot be run: {error}");
            return say(output, "\nerror: journal output not available\n".to_owned()).await;
        }
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let told = async |stream: Option<_>| match stream {
        Some(stream) => send_all(stream, output).await,
        None => Ok(()),
    };
    let complained = async {
        match stderr {
            Some(stream) => send_all(stream, output).await,
            None => Ok(()),
        }
    };
    let _ = tokio::join!(told(stdout), complained);
    let _ = child.wait().await;
}

/// Hands everything on; ends early when nobody reads it.
async fn send_all(mut from: impl AsyncRead + Unpin, output: &Output) -> std::io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(BLOCK);
        if from.read_buf(&mut buffer).await? == 0
            || output.send(buffer.split().freeze()).await.is_err()
        {
            return Ok(());
        }
    }
}

/// Copies the first file of those that are named after a service.
async fn copy_file(root: &Root, service: &str, output: &Output) {
    let names = [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")];
    for name in names {
        let (root, path) = (root.clone(), PathBuf::from(&name));
        let opened = panics::blocking(move || root.open(&path)).await;
        let result = match opened.map_err(std::io::Error::other) {
            Ok(Ok(file)) => send_all(tokio::fs::File::from_std(file), output).await,
            Ok(Err(FileError::Missing)) => continue,
            Ok(Err(error)) => Err(std::io::Error::other(error)),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            say(output, format!("\nerror getting log for {service}: {error}\n")).await;
        }
        return;
    }
    say(output, format!("\nlog not found for {service}\n")).await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_behind_their_flags() {
        let options = Options {
            since: Some("2024-01-01T00:00:00Z".parse().unwrap()),
            until: None,
            tail: Some(7),
            boot: Some(-1),
            pattern: Some("--root=/ $(x)".to_owned()),
        };
        assert_eq!(
            journalctl_args(&["-x".to_owned(), "kubelet".to_owned()], &options),
            [
                "--utc",
                "--no-pager",
                "--output=short-precise",
                "--since=@1704067200",
                "--lines=7",
                "--unit=-x",
                "--unit=kubelet",
                "--grep=--root=/ $(x)",
                "--boot=-1",
            ]
        );
    }
}
