//! kube-proxy by itself on a host: started as its users start it, with a configuration file.
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::command::{program, search_path};
use crate::daemon::Daemon;
use crate::error::{AtPath, Result};
use crate::host::Host;

/// How long a proxy may take to remove its rules.
const CLEANUP: Duration = Duration::from_secs(60);

/// A running `longshore proxy`, or one that was stopped and can be started again.
#[derive(Debug)]
pub struct KubeProxy {
    args: Vec<String>,
    programs: Option<PathBuf>,
    daemon: Daemon,
}

impl KubeProxy {
    /// Starts it for the node [`Host::name`]; `with` replaces fields of the KubeProxyConfiguration
    /// that [`kube_proxy_configuration`] gives. It is not awaited.
    ///
    /// # Errors
    /// When it is not built or cannot be started.
    pub fn start(host: &Host, kubeconfig: &Path, with: Map<String, Value>) -> Result<Self> {
        Self::start_at(host, Some(kubeconfig), with, &[], None)
    }

    /// [`KubeProxy::start`] with more flags, and with programs in a folder that go before all others
    /// of their names. Without a kubeconfig the flags are to name the apiserver.
    ///
    /// # Errors
    /// As for [`KubeProxy::start`].
    pub fn start_at(
        host: &Host,
        kubeconfig: Option<&Path>,
        with: Map<String, Value>,
        flags: &[&str],
        programs: Option<&Path>,
    ) -> Result<Self> {
        let file = host.dir().join("kube-proxy.yaml");
        let mut config = kube_proxy_configuration(host);
        config["clientConnection"] = json!({"kubeconfig": kubeconfig.unwrap_or(Path::new(""))});
        if let Value::Object(fields) = &mut config {
            fields.extend(with);
        }
        // JSON is YAML.
        fs::write(&file, config.to_string()).at(&file)?;
        let config = format!("--config={}", file.display());
        let mut args = vec![config, format!("--hostname-override={}", host.name())];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let programs = programs.map(Path::to_owned);
        let daemon = spawn(host, &args, programs.as_deref())?;
        Ok(Self { args, programs, daemon })
    }

    /// Kills it if it runs, and starts it again with the same arguments.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart(&mut self, host: &Host) -> Result<()> {
        self.daemon.kill()?;
        self.daemon = spawn(host, &self.args, self.programs.as_deref())?;
        Ok(())
    }

    /// Removes what any kube-proxy left on the host (`--cleanup`); blocks.
    ///
    /// # Errors
    /// When it fails; its log says why.
    pub fn clean_up(host: &Host) -> Result<bool> {
        let mut daemon = spawn(host, &["--cleanup".to_owned()], None)?;
        Ok(daemon.wait(CLEANUP)?.success())
    }

    /// The process, to signal it or to read its log.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

/// A KubeProxyConfiguration for a host: its ports are reachable from the machine, and it leaves
/// alone what all hosts of a machine share.
pub fn kube_proxy_configuration(host: &Host) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "metricsBindAddress": format!("{}:10249", host.node_ip()),
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
    })
}

fn spawn(host: &Host, args: &[String], programs: Option<&Path>) -> Result<Daemon> {
    let mut command = host.command(program("longshore")?);
    if let Some(programs) = programs {
        command.env("PATH", format!("{}:{}", programs.display(), search_path()));
    }
    command.arg("proxy").args(args).env("RUST_LOG", "info,longshore=debug");
    host.spawn("kube-proxy", command)
}
