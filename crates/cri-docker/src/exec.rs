//! Commands in containers: run to their end (ExecSync), or with the streams of a client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bollard::models::ExecInspectResponse;
use longshore_cri::v1::ExecSyncResponse;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::hijack::{Hijacked, copy_output};
use crate::labels::Kind;
use crate::runtime::DockerRuntime;
use crate::{Error, Result};

/// Of each stream of a command so much is kept, as upstream has it.
const MAX_OUTPUT: usize = 16 << 20;
/// How long after its output the engine may take to know how a command has ended.
const AFTERMATH: Duration = Duration::from_secs(10);
/// How often it is asked then, at first.
const POLL: Duration = Duration::from_millis(5);

/// What a command has of its caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) tty: bool,
}

impl DockerRuntime {
    /// Runs a command to its end. After `timeout` seconds, if there are any, it is killed.
    ///
    /// # Errors
    /// NotFound, DeadlineExceeded, and of the engine.
    pub(crate) async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: i64,
    ) -> Result<ExecSyncResponse> {
        let streams = Streams { stdin: false, stdout: true, stderr: true, tty: false };
        let exec = self.create_exec(id, command, streams).await?;
        let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
        let run = async {
            let Hijacked { output, .. } = self.start_exec(&exec, false).await?;
            let copied = copy_output(output, false, &mut stdout, &mut stderr).await;
            copied.map_err(|error| Error::Internal(format!("output of a command: {error}")))?;
            self.exit_code(&exec).await
        };
        let exit_code = match u64::try_from(timeout) {
            Ok(seconds @ 1..) => {
                let limit = Duration::from_secs(seconds);
                match tokio::time::timeout(limit, run).await {
                    Ok(result) => result?,
                    Err(_) => {
                        self.kill_exec(&exec).await;
                        return Err(Error::Timeout { seconds });
                    }
                }
            }
            _ => run.await?,
        };
        Ok(ExecSyncResponse { stdout: stdout.0.into(), stderr: stderr.0.into(), exit_code })
    }

    /// Prepares a command, and returns its identifier.
    pub(crate) async fn create_exec(
        &self,
        id: &str,
        command: Vec<String>,
        streams: Streams,
    ) -> Result<String> {
        if command.is_empty() {
            return Err(Error::Invalid("the command is empty".to_owned()));
        }
        let container = self.inspect(id, Kind::Container).await?;
        let id = container.id.as_deref().unwrap_or(id);
        if container.state.as_ref().and_then(|state| state.running) != Some(true) {
            return Err(Error::Precondition(format!("container {id} is not running")));
        }
        let config = bollard::models::ExecConfig {
            cmd: Some(command),
            attach_stdin: Some(streams.stdin),
            attach_stdout: Some(streams.stdout),
            attach_stderr: Some(streams.stderr),
            tty: Some(streams.tty),
            ..bollard::models::ExecConfig::default()
        };
        let created = self.engine.create_exec(id, config).await;
        let created =
            created.map_err(|error| Error::docker(format!("exec in container {id}"), error))?;
        Ok(created.id)
    }

    pub(crate) async fn start_exec(&self, exec: &str, tty: bool) -> Result<Hijacked> {
        let body = json!({"Detach": false, "Tty": tty});
        self.engine.hijack(&format!("/exec/{exec}/start"), Some(&body)).await
    }

    /// How a command has ended whose output has. The engine may know a moment later.
    pub(crate) async fn exit_code(&self, exec: &str) -> Result<i32> {
        let ended = async {
            let mut pause = POLL;
            loop {
                let command = self.inspect_exec(exec).await?;
                if command.running != Some(true) {
                    let code = command.exit_code.and_then(|code| i32::try_from(code).ok());
                    return Ok(code.unwrap_or(-1));
                }
                tokio::time::sleep(pause).await;
                pause = pause.saturating_mul(2);
            }
        };
        let late = || Error::Internal("the command's output has ended, but it has not".to_owned());
        tokio::time::timeout(AFTERMATH, ended).await.unwrap_or_else(|_| Err(late()))
    }

    async fn inspect_exec(&self, exec: &str) -> Result<ExecInspectResponse> {
        let command = self.engine.inspect_exec(exec).await;
        command.map_err(|error| Error::docker(format!("inspect command {exec}"), error))
    }

    /// Kills a command, which the engine cannot. It is held by a descriptor before the engine is asked
    /// again whether it still is what the engine means.
    pub(crate) async fn kill_exec(&self, exec: &str) {
        let kill = async {
            let pid = self.process_of(exec).await?;
            let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            if self.process_of(exec).await? != pid {
                return None;
            }
            pidfd_send_signal(&process, Signal::KILL).ok()
        };
        if kill.await.is_none() {
            tracing::debug!("command {exec} is not killed: it has ended");
        }
    }

    /// The process of a command that runs.
    async fn process_of(&self, exec: &str) -> Option<Pid> {
        let command = self.inspect_exec(exec).await.ok()?;
        if command.running != Some(true) {
            return None;
        }
        Pid::from_raw(i32::try_from(command.pid?).ok()?).filter(|pid| !pid.is_init())
    }
}

/// Joins a process's streams to a client's, until the output has ended. Input that ends before ends the
/// process's input and nothing else.
///
/// # Errors
/// Of the connection, and of the client's streams.
pub(crate) async fn join(
    hijacked: Hijacked,
    tty: bool,
    stdin: Option<impl AsyncRead + Unpin>,
    stdout: &mut (impl AsyncWrite + Unpin),
    stderr: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let Hijacked { output, mut input } = hijacked;
    let feed = async {
        if let Some(mut stdin) = stdin {
            // The process may end, or close its input, before all is read.
            let _ = tokio::io::copy(&mut stdin, &mut input).await;
        }
        let _ = input.shutdown().await;
        std::future::pending().await
    };
    tokio::select! {
        copied = copy_output(output, tty, stdout, stderr) => copied,
        never = feed => never,
    }
}

/// The first bytes of what is written; the rest is taken and dropped.
#[derive(Debug, Default)]
struct Kept(Vec<u8>);

impl AsyncWrite for Kept {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let remaining = MAX_OUTPUT.saturating_sub(self.0.len());
        self.0.extend(bytes.iter().take(remaining));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_is_kept_up_to_its_limit() {
        let mut kept = Kept::default();
        let piece = vec![7; MAX_OUTPUT - 1];
        kept.write_all(&piece).await.unwrap();
        kept.write_all(&piece).await.unwrap();
        assert_eq!(kept.0.len(), MAX_OUTPUT);
    }
}
