//! The node daemon on a host: started as its users start it, with a configuration file and flags.
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::cgroup::CgroupDriver;
use crate::command::program;
use crate::daemon::Daemon;
use crate::error::{AtPath, Result};
use crate::host::Host;

/// What differs from the usual start.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Fields of the KubeletConfiguration that replace the usual ones; `null` takes one out.
    pub config: Map<String, Value>,
    /// Further flags.
    pub args: Vec<String>,
    /// Environment, such as `RUST_LOG`.
    pub env: Vec<(String, String)>,
    /// A KubeProxyConfiguration: kube-proxy runs in the same process.
    pub proxy: Option<Value>,
}

/// A running `longshore kubelet`, or `longshore node` with kube-proxy in it; or one that was stopped and can be started again.
#[derive(Debug)]
pub struct Node {
    args: Vec<String>,
    env: Vec<(String, String)>,
    dir: PathBuf,
    daemon: Daemon,
}

impl Node {
    /// Starts the daemon for the node [`Host::name`]. It is not awaited: a node becomes Ready when
    /// the apiserver says so.
    ///
    /// # Errors
    /// When it is not built or cannot be started.
    pub fn start(
        host: &Host,
        kubeconfig: &Path,
        client_ca: &Path,
        options: NodeOptions,
    ) -> Result<Self> {
        Self::launch(host, Some((kubeconfig, client_ca)), options)
    }

    /// Starts the daemon without an apiserver: its pods come from manifests alone.
    ///
    /// # Errors
    /// As for [`Node::start`].
    pub fn standalone(host: &Host, options: NodeOptions) -> Result<Self> {
        Self::launch(host, None, options)
    }

    fn launch(host: &Host, cluster: Option<(&Path, &Path)>, options: NodeOptions) -> Result<Self> {
        let dir = host.dir().join("node");
        for folder in [dir.join("root"), Self::manifests_on(host), dir.join("pod-logs")] {
            fs::create_dir_all(&folder).at(&folder)?;
        }
        let config = dir.join("config.yaml");
        // JSON is YAML.
        let client_ca = cluster.map(|(_, client_ca)| client_ca);
        let text = configuration(host, &dir, client_ca, options.config).to_string();
        fs::write(&config, text).at(&config)?;
        let mut args = vec![
            if options.proxy.is_some() { "node".into() } else { "kubelet".into() },
            format!("--config={}", config.display()),
            format!("--hostname-override={}", host.name()),
            format!("--node-ip={}", host.node_ip()),
            format!("--root-dir={}", dir.join("root").display()),
            // The kernel is that of the machine.
            "--keep-kernel-tunables".into(),
        ];
        args.extend(
            cluster.map(|(kubeconfig, _)| format!("--kubeconfig={}", kubeconfig.display())),
        );
        if let Some(proxy) = options.proxy {
            let file = dir.join("kube-proxy.yaml");
            fs::write(&file, proxy.to_string()).at(&file)?;
            args.push(format!("--proxy-config={}", file.display()));
        }
        args.extend(options.args);
        let daemon = spawn(host, &args, &options.env)?;
        Ok(Self { args, env: options.env, dir, daemon })
    }

    /// Kills it if it runs, and starts it again with the same arguments.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart(&mut self, host: &Host) -> Result<()> {
        self.daemon.kill()?;
        self.daemon = spawn(host, &self.args, &self.env)?;
        Ok(())
    }

    /// The same with a further flag from now on.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart_with(&mut self, host: &Host, flag: &str) -> Result<()> {
        self.args.push(flag.to_owned());
        self.restart(host)
    }

    /// The process, to signal it or to read its log.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// The folder of static pod manifests.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// The same for a node that has yet to start; the folder may not be there.
    pub fn manifests_on(host: &Host) -> PathBuf {
        host.dir().join("node").join("manifests")
    }

    /// The node's `--root-dir`.
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Where container logs are.
    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("pod-logs")
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.join("config.yaml")
    }
}

fn spawn(host: &Host, args: &[String], env: &[(String, String)]) -> Result<Daemon> {
    let mut command = host.command(program("longshore")?);
    command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
    host.spawn("longshore", command)
}

fn configuration(
    host: &Host,
    dir: &Path,
    client_ca: Option<&Path>,
    with: Map<String, Value>,
) -> Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", host.socket().display()),
        "cgroupDriver": CgroupDriver::of_tests().name(),
        "cgroupRoot": host.cgroup_root(),
        "podLogsDir": dir.join("pod-logs"),
        "staticPodPath": dir.join("manifests"),
        "authentication": {
            "x509": { "clientCAFile": client_ca },
            "anonymous": { "enabled": false },
            "webhook": { "enabled": false },
        },
        "authorization": { "mode": "AlwaysAllow" },
        // Whatever machine the tests run on must do.
        "failCgroupV1": false,
        "failSwapOn": false,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
    });
    if let Value::Object(fields) = &mut config {
        fields.extend(host.resolv_conf().map(|file| ("resolvConf".into(), json!(file))));
        fields.extend(with);
        fields.retain(|_, value| !value.is_null());
    }
    config
}
