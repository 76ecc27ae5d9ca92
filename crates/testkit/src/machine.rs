//! A test host as `longshore up` and `longshore join` see a machine: a root of its own, where their files go, and
//! what differs between a test host and a machine of its own as arguments.
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::command::program;
use crate::error::{AtPath, Result};
use crate::host::Host;

/// A host without a node, with a container runtime.
#[derive(Debug)]
pub struct Machine {
    /// The host itself.
    pub host: Host,
    /// The endpoint of its container runtime.
    endpoint: String,
}

impl Machine {
    /// One with a containerd.
    ///
    /// # Errors
    /// As for [`Host::start`].
    pub fn start() -> Result<Self> {
        let host = Host::start()?;
        let endpoint = format!("unix://{}", host.socket().display());
        Self::with(host, endpoint)
    }

    /// A host whose container runtime has this endpoint. The network configuration of the host is removed: `up`
    /// writes its own.
    ///
    /// # Errors
    /// When files of the host cannot be written.
    pub fn with(host: Host, endpoint: String) -> Result<Self> {
        let machine = Self { host, endpoint };
        let own = machine.cni_conf_dir().join("10-longshore.conflist");
        fs::remove_file(&own).at(&own)?;
        let never = [
            "memory.available",
            "nodefs.available",
            "nodefs.inodesFree",
            "imagefs.available",
            "imagefs.inodesFree",
        ];
        let evictions: Value =
            never.iter().map(|signal| ((*signal).to_owned(), json!("0%"))).collect();
        let node = json!({
            "cgroupRoot": machine.host.cgroup_root(),
            "failSwapOn": false,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": evictions,
            "resolvConf": machine.host.resolv_conf(),
        });
        let proxy = json!({
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "oomScoreAdj": 0,
        });
        for (path, config) in [(machine.node_config(), node), (machine.proxy_config(), proxy)] {
            fs::write(&path, config.to_string()).at(&path)?;
        }
        Ok(machine)
    }

    /// What `--root` says.
    pub fn root(&self) -> PathBuf {
        self.host.dir().join("root")
    }

    /// Where the host's container runtime reads its network configuration.
    pub fn cni_conf_dir(&self) -> PathBuf {
        self.host.dir().join("containerd/cni")
    }

    fn node_config(&self) -> PathBuf {
        self.host.dir().join("node.yaml")
    }

    fn proxy_config(&self) -> PathBuf {
        self.host.dir().join("proxy.yaml")
    }

    /// `longshore` with these words, on this machine.
    ///
    /// # Errors
    /// When it is not built.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = self.host.command(program("longshore")?);
        command.args(words).arg("--root").arg(self.root());
        Ok(command)
    }

    /// The same for words that start the node, which stays in the foreground.
    ///
    /// # Errors
    /// When it is not built.
    pub fn starting(&self, words: &[&str]) -> Result<Command> {
        let mut command = self.command(words)?;
        command.arg("--foreground");
        command.arg(format!("--node-name={}", self.host.name()));
        command.arg(format!("--address={}", self.host.node_ip()));
        command.arg(format!("--container-runtime-endpoint={}", self.endpoint));
        command.arg(format!("--cni-conf-dir={}", self.cni_conf_dir().display()));
        command.arg(format!("--node-config={}", self.node_config().display()));
        command.arg(format!("--proxy-config={}", self.proxy_config().display()));
        // The kernel is that of the machine.
        command.arg("--node-arg=--keep-kernel-tunables");
        Ok(command)
    }
}
