//! The programs that are measured.
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use longshore_testkit::{Apiserver, Daemon, Host, program};

use crate::process::{self, Use};

/// How long a program may take to leave after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// By default a scheduler binds 50 pods a second.
const QUICK: [&str; 2] = ["--kube-api-qps=5000", "--kube-api-burst=5000"];

/// Whose programs.
#[derive(Debug, Clone)]
pub(super) enum Programs {
    Ours,
    /// Those of a folder.
    Upstream(PathBuf),
}

impl fmt::Display for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "longshore",
            Self::Upstream(_) => "upstream",
        })
    }
}

/// A program that runs.
pub(super) struct Program(Daemon);

impl Program {
    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Errs when it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        Ok(self.0.check_running()?)
    }

    pub(super) fn used(&self) -> Result<Use> {
        process::look(self.0.pid()).with_context(|| self.0.name().to_owned())
    }

    pub(super) fn log_tail(&self) -> String {
        self.0.log_tail(10)
    }

    pub(super) fn stop(mut self) -> Result<()> {
        self.0.terminate(GRACE)?;
        Ok(())
    }
}

impl Programs {
    /// The scheduler alone.
    pub(super) fn start_scheduler(&self, host: &Host, apiserver: &Apiserver) -> Result<Program> {
        match self {
            Self::Ours => {
                let mut flags = vec!["kube-scheduler"];
                flags.extend(QUICK);
                start(host, apiserver, &program("longshore-controllers")?, &flags)
            }
            Self::Upstream(folder) => {
                start(host, apiserver, &folder.join("kube-scheduler"), &QUICK)
            }
        }
    }

    /// Scheduler and controllers: one process of ours, two of upstream's.
    pub(super) fn start_all(&self, host: &Host, apiserver: &Apiserver) -> Result<Vec<Program>> {
        let signing = apiserver.signing_flags();
        let signing: Vec<&str> = signing.iter().map(String::as_str).collect();
        match self {
            Self::Ours => {
                let path = program("longshore-controllers")?;
                Ok(vec![start(host, apiserver, &path, &signing)?])
            }
            Self::Upstream(folder) => {
                let manager = folder.join("kube-controller-manager");
                let scheduler = self.start_scheduler(host, apiserver)?;
                Ok(vec![start(host, apiserver, &manager, &signing)?, scheduler])
            }
        }
    }
}

/// Starts a program as administrator, without leader election.
fn start(host: &Host, apiserver: &Apiserver, path: &Path, flags: &[&str]) -> Result<Program> {
    let admin = apiserver.admin_kubeconfig();
    let mut command: Command = host.command(path);
    // A subcommand comes first.
    command.args(flags);
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        command.arg(format!("--{flag}={}", admin.display()));
    }
    command.arg("--leader-elect=false").arg(format!("--bind-address={}", host.node_ip()));
    // The generated certificate of the port lies in the host's folder, if the program makes one.
    command.arg(format!("--cert-dir={}", host.dir().join("certificates").display()));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Program(host.spawn(&name, command)?))
}
