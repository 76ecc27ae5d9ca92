//! A long-running process of a host: started with its output in a log file, stopped by signal.
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command;
use crate::error::{AtPath, Error, Result};
use crate::wait::poll_until;

/// A running process and its log. Dropping it kills the process and reaps it.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts `command`, its output appended to `log`.
    ///
    /// # Errors
    /// When the log cannot be opened or the program cannot be started.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log).at(log)?;
        let err = out.try_clone().at(log)?;
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        // A Ctrl-C at the terminal is for whoever started the host, who ends it in order.
        command.process_group(0);
        let child = command.spawn().map_err(|e| Error::Command {
            command: command::line_of(&command),
            message: command::start_failure(&command, &e),
        })?;
        Ok(Self { name: name.into(), log: log.into(), child })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its output goes.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Everything it has written so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last `lines` lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        tail_of(&self.log(), lines)
    }

    /// An error that names the exit status and the end of the log, once it is no longer running.
    ///
    /// # Errors
    /// [`Error::Ended`] when it ended.
    pub fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait().at(&self.log)? {
            None => Ok(()),
            Some(status) => Err(self.ended(status)),
        }
    }

    /// Sends a signal. A process that has already gone is no error.
    pub fn signal(&mut self, signal: Signal) {
        // Until a child is reaped its pid cannot be anyone else's.
        let running = matches!(self.child.try_wait(), Ok(None));
        if let (true, Ok(pid)) = (running, i32::try_from(self.child.id())) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// SIGKILL, then reaps it.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        // std remembers a reaped child and then sends nothing.
        self.child.kill().at(&self.log)?;
        self.child.wait().at(&self.log)
    }

    /// SIGTERM, then waits up to `timeout` for it to leave by itself.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it does not: it is left running.
    pub fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM);
        self.wait(timeout)
    }

    /// Waits for it to leave by itself.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it does not.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let what = format!("{} to end", self.name);
        poll_until(timeout, &what, || {
            let status = self.child.try_wait().at(&self.log)?;
            Ok(status.ok_or_else(|| format!("pid {} still runs", self.child.id())))
        })
    }

    fn ended(&self, status: ExitStatus) -> Error {
        let status = match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => status.to_string(),
        };
        Error::Ended { name: self.name.clone(), status, tail: self.log_tail(15) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The last `lines` lines of a log, each cut to a readable length.
pub(crate) fn tail_of(log: &str, lines: usize) -> String {
    let all: Vec<&str> = log.lines().collect();
    let tail = all[all.len().saturating_sub(lines)..].iter();
    let cut = tail.map(|line| line.char_indices().nth(400).map_or(*line, |(end, _)| &line[..end]));
    cut.collect::<Vec<_>>().join("\n")
}
