//! The DNS server of a cluster on a host, at the address of its node.
use std::path::Path;
use std::process::Command;

use crate::command::program;
use crate::daemon::Daemon;
use crate::error::Result;
use crate::host::Host;

/// A running `longshore-dns`.
#[derive(Debug)]
pub struct Dns {
    daemon: Daemon,
}

impl Dns {
    /// Starts it with the credentials of a kubeconfig, on port 53 of [`Host::node_ip`]. It is not
    /// awaited.
    ///
    /// # Errors
    /// When it is not built or cannot be started.
    pub fn start(host: &Host, kubeconfig: &Path) -> Result<Self> {
        let address = host.node_ip();
        let mut command: Command = host.command(program("longshore-dns")?);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--listen={address}:53"))
            .arg(format!("--metrics-addr={address}:9153"))
            .arg(format!("--health-addr={address}:8080"))
            .arg(format!("--ready-addr={address}:8181"));
        if let Some(file) = host.resolv_conf() {
            command.arg(format!("--upstream-resolv-conf={}", file.display()));
        }
        Ok(Self { daemon: host.spawn("longshore-dns", command)? })
    }

    /// The process, to signal it or to read its log.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}
