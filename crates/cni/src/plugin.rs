//! Runs the programs of plugins.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use longshore_base::files::awaitable;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::process::{Child, Command};

use crate::attachment::Attachment;
use crate::{Error, Result};

/// No answer of a plugin is longer.
const MAX_OUTPUT: u64 = 1 << 20;
/// So much of what it writes to its standard error is told.
const MAX_DIAGNOSTICS: u64 = 4096;
/// A plugin that has ended is reaped so much later. The end is told of while the last of its threads still takes its
/// directory out of /proc; wait4 does the same with that of the process, and spins until the thread is done. With
/// all CPUs busy that was a sixth of what a node on Docker took for starting pods.
const REAPED_AFTER: Duration = Duration::from_millis(100);

/// One run of a plugin.
pub(crate) struct Call<'a> {
    pub(crate) command: crate::Command,
    pub(crate) network: &'a str,
    pub(crate) plugin: &'a str,
    pub(crate) config: Value,
    pub(crate) attachment: &'a Attachment,
}

impl Call<'_> {
    fn failed(&self, reason: impl Into<String>) -> Error {
        Error::Run {
            command: self.command.name(),
            plugin: self.plugin.to_owned(),
            network: self.network.to_owned(),
            reason: reason.into(),
        }
    }
}

/// The error that a plugin writes to its standard output.
#[derive(Deserialize)]
struct Report {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

/// The name of a program in one of the folders, and nothing that leads elsewhere.
pub(crate) fn is_type(name: &str) -> bool {
    !name.is_empty() && !matches!(name, "." | "..") && !name.contains(['/', '\0'])
}

/// The program of a plugin. Looks at files in place, as starting it does.
pub(crate) fn find(folders: &[PathBuf], plugin: &str) -> Result<PathBuf> {
    if is_type(plugin) {
        for folder in folders {
            let path = folder.join(plugin);
            if path.is_file() {
                return Ok(path);
            }
        }
    }
    Err(Error::NoPlugin { plugin: plugin.to_owned(), folders: folders.to_vec() })
}

/// Runs a plugin to its end; `None` when it printed nothing.
pub(crate) async fn run(
    folders: &[PathBuf],
    call: Call<'_>,
    limit: Duration,
) -> Result<Option<Value>> {
    let program = find(folders, call.plugin)?;
    let output = tokio::time::timeout(limit, output(&program, folders, &call)).await;
    let (succeeded, stdout, stderr) = match output {
        Ok(result) => result.map_err(|error| call.failed(error.to_string()))?,
        Err(_) => {
            return Err(Error::Timeout {
                command: call.command.name(),
                plugin: call.plugin.to_owned(),
                network: call.network.to_owned(),
                limit,
            });
        }
    };
    if !succeeded {
        return Err(reported(&call, &stdout, &stderr));
    }
    if stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let result = serde_json::from_slice(&stdout);
    result.map(Some).map_err(|error| call.failed(format!("invalid result: {error}")))
}

async fn output(
    program: &Path,
    folders: &[PathBuf],
    call: &Call<'_>,
) -> io::Result<(bool, Vec<u8>, Vec<u8>)> {
    let attachment = call.attachment;
    let args: Vec<_> =
        attachment.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut command = Command::new(program);
    command
        .env("CNI_COMMAND", call.command.name())
        .env("CNI_CONTAINERID", &attachment.container_id)
        .env("CNI_NETNS", attachment.netns.as_deref().unwrap_or(Path::new("")))
        .env("CNI_IFNAME", &attachment.interface)
        .env("CNI_ARGS", args.join(";"))
        .env("CNI_PATH", std::env::join_paths(folders).map_err(io::Error::other)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let config = call.config.to_string();
    let write = async {
        if let Some(mut stdin) = stdin {
            // A plugin may end before it has read all: what it says then counts.
            let _ = stdin.write_all(config.as_bytes()).await;
        }
    };
    let (_, stdout, stderr) =
        tokio::join!(write, read(stdout, MAX_OUTPUT), read(stderr, MAX_DIAGNOSTICS));
    let succeeded = match exit_status(&child).await {
        Ok(status) => {
            tokio::spawn(async move {
                tokio::time::sleep(REAPED_AFTER).await;
                child.wait().await
            });
            status == Some(0)
        }
        // A kernel that lacks the calls.
        Err(_) => child.wait().await?.success(),
    };
    Ok((succeeded, stdout?, stderr?))
}

/// Waits for the end of a process, which is not reaped: its exit status; none when a signal has ended it.
async fn exit_status(child: &Child) -> io::Result<Option<i32>> {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let id = id.ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(id, PidfdFlags::NONBLOCK)?;
    let process = awaitable(process, Interest::READABLE)?;
    loop {
        let mut ready = process.readable().await?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(process.get_ref().as_fd()), options)? {
            Some(status) => return Ok(status.exit_status()),
            None => ready.clear_ready(),
        }
    }
}

/// Reads all; keeps the first `limit` bytes.
async fn read(pipe: Option<impl tokio::io::AsyncRead + Unpin>, limit: u64) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let Some(mut pipe) = pipe {
        (&mut pipe).take(limit).read_to_end(&mut kept).await?;
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok(kept)
}

/// The error of a plugin that failed, in its own words as far as it has any.
fn reported(call: &Call<'_>, stdout: &[u8], stderr: &[u8]) -> Error {
    let stderr = String::from_utf8_lossy(stderr).trim().to_owned();
    match serde_json::from_slice::<Report>(stdout) {
        Ok(report) if !report.msg.is_empty() || report.code != 0 => {
            let Report { code, msg, details } = report;
            let message = if details.is_empty() { msg } else { format!("{msg}; {details}") };
            Error::Plugin {
                command: call.command.name(),
                plugin: call.plugin.to_owned(),
                network: call.network.to_owned(),
                code,
                message,
            }
        }
        _ if stderr.is_empty() => call.failed("it gave no error message"),
        _ => call.failed(stderr),
    }
}
