//! Logs of services, from the journal, or from files with their names.

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

/// Timeout of a response.
const DEADLINE: Duration = Duration::from_secs(30);
/// Maximum number of concurrent queries; others wait.
const MAX_CONCURRENT: usize = 4;
/// Bytes of the list of units that are read; with more, the rest of the units is not known.
const MOST_UNITS: u64 = 1 << 20;
const BLOCK: usize = 32 * 1024;
/// Maximum number of buffered blocks per client.
const BLOCKS: usize = 4;

/// Reads logs of services.
pub(super) struct Services {
    root: Root,
    permits: Arc<Semaphore>,
}

type Output = mpsc::Sender<Bytes>;

impl Services {
    pub(super) fn new(root: Root) -> Self {
        Self { root, permits: Arc::new(Semaphore::new(MAX_CONCURRENT)) }
    }

    /// A streamed response. Errors are part of the body, as upstream.
    pub(super) fn answer(&self, services: Vec<String>, options: Options) -> Response {
        let (output, input) = mpsc::channel(BLOCKS);
        let (root, permits) = (self.root.clone(), Arc::clone(&self.permits));
        tokio::spawn(panics::contain(async move {
            let work = async {
                let Ok(_permit) = permits.acquire().await else { return };
                copy(&root, services, &options, &output).await;
            };
            tokio::select! {
                late = tokio::time::timeout(DEADLINE, work) => if late.is_err() {
                    send_text(&output, format!("\nlogs were cut off after {DEADLINE:?}\n")).await;
                },
                // the client is gone
                () = output.closed() => {}
            }
        }));
        text_stream(Body::from_stream(ReceiverStream::new(input).map(Ok::<_, std::io::Error>)))
    }
}

async fn send_text(output: &Output, text: String) {
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
        return send_text(output, text).await;
    }
    for service in filed {
        copy_file(root, &service, output).await;
    }
}

/// The units in the journal; none without a journal.
async fn journal_units() -> Vec<String> {
    let listed = async {
        let mut command = Command::new("journalctl");
        command.args(["--field", "_SYSTEMD_UNIT"]).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let mut text = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MOST_UNITS).read_to_end(&mut text).await?;
        }
        // One that has more to say is ended by its closed pipe.
        let is_cut = u64::try_from(text.len()).is_ok_and(|read| read >= MOST_UNITS);
        Ok::<_, std::io::Error>((child.wait().await?.success() || is_cut, text))
    };
    match listed.await {
        Ok((true, text)) => String::from_utf8_lossy(&text).lines().map(str::to_owned).collect(),
        Ok(_) => Vec::new(),
        Err(error) => {
            debug!("failed to list the units of the journal: {error}");
            Vec::new()
        }
    }
}

/// Each value is in the same argument as its flag, so that it cannot be parsed as another flag.
fn journalctl_args(services: &[String], options: &Options) -> Vec<String> {
    let mut args: Vec<String> =
        ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
    // independent of the time zone
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
            debug!("failed to run journalctl: {error}");
            return send_text(output, "\nerror: journal output not available\n".to_owned()).await;
        }
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let forward = async |stream: Option<_>| match stream {
        Some(stream) => send_all(stream, output).await,
        None => Ok(()),
    };
    let forward_stderr = async {
        match stderr {
            Some(stream) => send_all(stream, output).await,
            None => Ok(()),
        }
    };
    let _ = tokio::join!(forward(stdout), forward_stderr);
    let _ = child.wait().await;
}

/// Forwards all output, until the client is gone.
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

/// Copies the first existing file with the name of the service.
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
            send_text(output, format!("\nerror getting log for {service}: {error}\n")).await;
        }
        return;
    }
    send_text(output, format!("\nlog not found for {service}\n")).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_logs_journalctl_arguments_are_not_flags() {
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
