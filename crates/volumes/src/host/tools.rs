//! System tools, run without a shell, with a timeout, and killed with their process group. Their
//! output is part of errors.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::fs::{MemfdFlags, memfd_create};
use tokio::process::Command;
use tokio::time::timeout;
use tracing::warn;

use crate::error::Error;

/// Maximum size of captured output.
const MOST_OUTPUT: u64 = 4096;
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
        let output = self.text.trim().to_owned();
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

    /// Runs a tool to its end. The caller checks its exit status.
    pub(crate) async fn run<A: AsRef<OsStr>>(
        &self,
        tool: Tool,
        args: impl IntoIterator<Item = A>,
    ) -> Result<Output, Error> {
        let program = self.find(tool)?;
        let path = std::env::join_paths(&self.path).unwrap_or_default();
        let env = [("PATH".into(), path), ("LC_ALL".into(), "C".into())];
        self.run_program(tool.name, &program, args, env).await
    }

    /// Runs a program, of that name in errors, to its end, with that environment. The caller checks its
    /// exit status.
    pub(crate) async fn run_program<A: AsRef<OsStr>>(
        &self,
        name: &'static str,
        program: &Path,
        args: impl IntoIterator<Item = A>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Output, Error> {
        let fail = |error: std::io::Error| Error::io("run", program, error);
        // A file rather than a pipe, which background processes of the tool would keep open.
        let mut printed = File::from(memory_file(name).map_err(fail)?);
        let stream = || printed.try_clone().map(Stdio::from);
        let mut child = Command::new(program)
            .args(args)
            .env_clear()
            .envs(env)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(stream().map_err(fail)?)
            .stderr(stream().map_err(fail)?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(fail)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let Ok(ended) = timeout(self.limit, child.wait()).await else {
            if let Some(group) = group {
                let _ = killpg(group, Signal::SIGKILL);
            }
            if timeout(KILL_TIMEOUT, child.wait()).await.is_err() {
                warn!(tool = name, "tool hangs in the kernel and cannot be killed");
            }
            let output = read_back(&mut printed, program)?.trim().to_owned();
            return Err(Error::ToolHung { tool: name, limit: self.limit, output });
        };
        let text = read_back(&mut printed, program)?;
        Ok(Output { tool: name, status: ended.map_err(fail)?, text })
    }
}

fn memory_file(name: &str) -> std::io::Result<OwnedFd> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC)?)
}

fn read_back(printed: &mut File, program: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let read = printed
        .seek(SeekFrom::Start(0))
        .and_then(|_| printed.take(MOST_OUTPUT).read_to_end(&mut bytes));
    read.map_err(|error| Error::io("read the output of", program, error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
