//! System tools, run without a shell, with a limit of time, and killed with their process group. Their
//! output is part of errors.

mod printed;

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::error::Error;
use printed::{Printed, shortened};

/// How long to wait for a killed tool; one that hangs in the kernel is left.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A tool, and the package that most systems have it in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
}

/// The result of a tool.
#[derive(Debug)]
pub(crate) struct Output {
    tool: &'static str,
    status: ExitStatus,
    /// What it printed, to either stream.
    pub(crate) text: String,
}

impl Output {
    /// The exit code; `None` if it was killed by a signal.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// An error unless it was successful.
    pub(crate) fn checked(self) -> Result<Self, Error> {
        if self.status.success() { Ok(self) } else { Err(self.into_error()) }
    }

    /// The result as an error.
    pub(crate) fn into_error(self) -> Error {
        let output = shortened(&self.text);
        Error::Tool { tool: self.tool, status: self.status.to_string(), output }
    }
}

/// The search path of tools, and their timeout. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    path: Vec<PathBuf>,
    limit: Duration,
}

impl Default for Tools {
    /// The daemon's `PATH` and the usual directories, with a timeout of two minutes.
    fn default() -> Self {
        let own = std::env::var_os("PATH").unwrap_or_default();
        let usual =
            ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
        let path = std::env::split_paths(&own).chain(usual).filter(|dir| dir.is_absolute());
        Self { path: path.collect(), limit: Duration::from_secs(120) }
    }
}

impl Tools {
    /// The same, with those directories first, and another timeout.
    #[cfg(test)]
    pub(crate) fn after(dirs: &[PathBuf], limit: Duration) -> Self {
        let path = dirs.iter().cloned().chain(Self::default().path).collect();
        Self { path, limit }
    }

    /// The path of a tool.
    pub(crate) fn find(&self, tool: Tool) -> Result<PathBuf, Error> {
        let places = self.path.iter().map(|dir| dir.join(tool.name));
        let mut found = places.filter(|path| path.is_file());
        found.next().ok_or(Error::NoTool { tool: tool.name, package: tool.package })
    }

    /// How long a tool may take.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Runs a tool to its end, or until its limit of time. The caller checks its exit status.
    pub(crate) async fn run<A: AsRef<OsStr>>(
        &self,
        tool: Tool,
        args: impl IntoIterator<Item = A>,
    ) -> Result<Output, Error> {
        self.run_until(tool, args, sleep(self.limit)).await
    }

    /// The same without a limit: the tool's work is as large as a device.
    pub(crate) async fn run_unlimited<A: AsRef<OsStr>>(
        &self,
        tool: Tool,
        args: impl IntoIterator<Item = A>,
    ) -> Result<Output, Error> {
        self.run_until(tool, args, std::future::pending()).await
    }

    async fn run_until<A: AsRef<OsStr>>(
        &self,
        tool: Tool,
        args: impl IntoIterator<Item = A>,
        limit: impl Future<Output = ()>,
    ) -> Result<Output, Error> {
        let program = self.find(tool)?;
        let path = std::env::join_paths(&self.path).unwrap_or_default();
        let env = [("PATH".into(), path), ("LC_ALL".into(), "C".into())];
        self.run_program(tool.name, &program, args, env, limit).await
    }

    /// Runs a program, of that name in errors, with that environment, to its end, or until `limit` ends:
    /// then it is killed. The caller checks its exit status.
    pub(crate) async fn run_program<A: AsRef<OsStr>>(
        &self,
        name: &'static str,
        program: &Path,
        args: impl IntoIterator<Item = A>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        limit: impl Future<Output = ()>,
    ) -> Result<Output, Error> {
        let fail = |error: std::io::Error| Error::io("run", program, error);
        let (reader, writer) = std::io::pipe().map_err(fail)?;
        let began = Instant::now();
        let mut child = Command::new(program)
            .args(args)
            .env_clear()
            .envs(env)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(fail)?)
            .stderr(writer)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(fail)?;
        let mut printed = Printed::new(OwnedFd::from(reader)).map_err(fail)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let ended = async {
            tokio::select! {
                ended = child.wait() => Some(ended),
                () = limit => None,
            }
        };
        if let Some(ended) = printed.keep_until(ended).await {
            let status = ended.map_err(fail)?;
            return Ok(Output { tool: name, status, text: printed.text() });
        }
        if let Some(group) = group {
            let _ = killpg(group, Signal::SIGKILL);
        }
        if timeout(KILL_TIMEOUT, child.wait()).await.is_err() {
            warn!(tool = name, "tool hangs in the kernel and cannot be killed");
        }
        let output = shortened(&printed.text());
        let limit = Duration::from_secs(began.elapsed().as_secs());
        Err(Error::ToolHung { tool: name, limit, output })
    }
}
