//! `kubectl` from PATH, as a person would use it.
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{run, run_with_input};
use crate::error::Result;

/// kubectl with a kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// For the cluster and user of this file.
    pub fn new(kubeconfig: impl Into<PathBuf>) -> Self {
        Self { kubeconfig: kubeconfig.into() }
    }

    /// A command to add to, for `logs -f` and the like.
    pub fn command(&self) -> Command {
        let mut command = Command::new("kubectl");
        // Its discovery cache belongs beside the kubeconfig, not into the user's home.
        let cache = self.kubeconfig.parent().unwrap_or(Path::new("/")).join("kubectl-cache");
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(cache);
        // A proxy of the machine knows no way into a host.
        command.env("NO_PROXY", "*");
        command
    }

    /// Runs kubectl to its end and gives its standard output.
    ///
    /// # Errors
    /// When it fails, with what it wrote to stderr.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command = self.command();
        command.args(args);
        run(command)
    }

    /// `kubectl apply -f -` of a manifest.
    ///
    /// # Errors
    /// When it fails, with what it wrote to stderr.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        let mut command = self.command();
        command.args(["apply", "-f", "-"]);
        run_with_input(command, manifest)
    }
}
