//! The control loops of a cluster on a host: controllers and scheduler in one process.
use std::path::Path;

use crate::command::program;
use crate::daemon::Daemon;
use crate::error::Result;
use crate::host::Host;

/// The controllers that bind volumes to claims and attach them to nodes, and keep what is used.
const OF_VOLUMES: &str = "--controllers=persistentvolume-binder-controller,\
    persistentvolume-attach-detach-controller,persistentvolumeclaim-protection-controller,\
    persistentvolume-protection-controller,ephemeral-volume-controller";

/// A running `longshore-controllers`, or one that was stopped and can be started again.
#[derive(Debug)]
pub struct Controllers {
    args: Vec<String>,
    daemon: Daemon,
}

impl Controllers {
    /// Starts it with the credentials of a kubeconfig, with further flags. It is not awaited. Without
    /// other flags it elects no leader, so that it works at once.
    ///
    /// # Errors
    /// When it is not built or cannot be started.
    pub fn start(host: &Host, kubeconfig: &Path, flags: &[&str]) -> Result<Self> {
        Self::launch(host, kubeconfig, Vec::new(), flags)
    }

    /// Starts the controllers of volumes alone, without a scheduler.
    ///
    /// # Errors
    /// As for [`Controllers::start`].
    pub fn start_for_volumes(host: &Host, kubeconfig: &Path) -> Result<Self> {
        let program = vec!["kube-controller-manager".to_owned()];
        Self::launch(host, kubeconfig, program, &[OF_VOLUMES])
    }

    fn launch(
        host: &Host,
        kubeconfig: &Path,
        program: Vec<String>,
        flags: &[&str],
    ) -> Result<Self> {
        let mut args = program;
        args.push(format!("--kubeconfig={}", kubeconfig.display()));
        args.push(format!("--bind-address={}", host.node_ip()));
        if !flags.iter().any(|flag| flag.starts_with("--leader-elect")) {
            args.push("--leader-elect=false".to_owned());
        }
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let daemon = spawn(host, &args)?;
        Ok(Self { args, daemon })
    }

    /// Kills it if it runs, and starts it again with the same arguments.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart(&mut self, host: &Host) -> Result<()> {
        self.daemon.kill()?;
        self.daemon = spawn(host, &self.args)?;
        Ok(())
    }

    /// The process, to signal it or to read its log.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

fn spawn(host: &Host, args: &[String]) -> Result<Daemon> {
    let mut command = host.command(program("longshore-controllers")?);
    command.args(args);
    host.spawn("longshore-controllers", command)
}
