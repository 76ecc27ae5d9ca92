//! A Docker Engine of the host's own: its folders, socket, network namespace and cgroup.
use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::cgroup::CgroupDriver;
use crate::command::search_path;
use crate::daemon::Daemon;
use crate::disk;
use crate::error::{AtPath, Error, Result};
use crate::host::{Containers, Host};
use crate::image::{Image, PAUSE};
use crate::node::NodeOptions;
use crate::wait::poll_until;

const START: Duration = Duration::from_secs(60);
/// How long an answer may take: of a load, of a removal.
const ANSWER: Duration = Duration::from_secs(60);
const PROGRAM: &str = "dockerd";

/// How an engine is started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DockerOptions {
    /// Whether containers outlive the engine.
    pub live_restore: bool,
    /// Registries in whose place a [`crate::Registry::start_inside`] at port 80 is asked.
    pub registries: &'static [&'static str],
    /// The bytes of a disk of its own, for all that it keeps. That is the host's otherwise.
    pub disk: Option<u64>,
}

/// A running engine. Dropping it kills the engine; what is left of its containers goes with the host.
#[derive(Debug)]
pub struct Docker {
    daemon: Option<Daemon>,
    dir: PathBuf,
    options: DockerOptions,
}

impl Docker {
    /// Whether the machine has an engine that can be started.
    pub fn is_installed() -> bool {
        search_path().split(':').any(|dir| Path::new(dir).join(PROGRAM).is_file())
    }

    /// Starts an engine on a host, and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, ends, or is not ready in time; the error holds the end of its log.
    pub fn start(host: &Host, options: DockerOptions) -> Result<Self> {
        let dir = host.dir().join("docker");
        fs::create_dir_all(&dir).at(&dir)?;
        let mut docker = Self { daemon: None, dir, options };
        if let Some(bytes) = options.disk {
            disk::mount(&docker.dir.join("root.img"), bytes, &docker.data_root())?;
        }
        docker.start_again(host)?;
        Ok(docker)
    }

    /// A host without containerd that has an engine, with the images of [`Host::start`] in it.
    ///
    /// # Errors
    /// As for [`Host::start`] and [`Docker::start`].
    pub fn with_host(options: DockerOptions) -> Result<(Host, Self)> {
        let host = Host::bare()?;
        let docker = Self::start(&host, options)?;
        docker.load(&Image::pause()?)?;
        docker.load(&Image::busybox()?)?;
        Ok((host, docker))
    }

    /// Starts the engine anew, after it was stopped or killed.
    ///
    /// # Errors
    /// As for [`Docker::start`].
    pub fn start_again(&mut self, host: &Host) -> Result<()> {
        let settings = self.dir.join("daemon.json");
        // What the machine's own engine is set to must not matter. Engines before 28 have CDI only as a feature.
        fs::write(&settings, r#"{"features": {"cdi": true}}"#).at(&settings)?;
        let mut command = host.command(PROGRAM);
        let driver = CgroupDriver::of_tests();
        let parent = match driver {
            CgroupDriver::Cgroupfs => host.cgroup_root(),
            CgroupDriver::Systemd => format!("{}.slice", host.name()),
        };
        command
            .arg("--config-file")
            .arg(&settings)
            .arg(format!("--host=unix://{}", self.socket().display()))
            .arg(format!("--data-root={}", self.dir.join("root").display()))
            .arg(format!("--exec-root={}", self.dir.join("run").display()))
            .arg(format!("--pidfile={}", self.dir.join("pid").display()))
            .arg(format!("--cgroup-parent={parent}"))
            .arg(format!("--exec-opt=native.cgroupdriver={}", driver.name()))
            .args(["--bridge=none", "--iptables=false", "--ip-masq=false"])
            .args(["--storage-driver=overlay2", "--userland-proxy=false"])
            // Registries of tests speak plain HTTP.
            .arg("--insecure-registry=0.0.0.0/0")
            .arg(format!("--live-restore={}", self.options.live_restore));
        // Engines before 25 lower the score, which they cannot without CAP_SYS_RESOURCE, and have no CDI.
        let help = host.command(PROGRAM).arg("--help").output().at(PROGRAM)?;
        let help = String::from_utf8_lossy(&help.stdout);
        for (flag, value) in [
            ("--oom-score-adjust", "0".to_owned()),
            ("--cdi-spec-dir", self.cdi_dir().display().to_string()),
        ] {
            if help.contains(flag) {
                command.arg(format!("{flag}={value}"));
            }
        }
        host.pass_proxy(&mut command);
        if !self.options.registries.is_empty() {
            // The second keeps engines that have it from looking for the address of the name.
            let flags = ["--insecure-registry", "--allow-nondistributable-artifacts"];
            for flag in flags.into_iter().filter(|flag| help.contains(flag)) {
                command.args(self.options.registries.iter().map(|name| format!("{flag}={name}")));
            }
            // A registry answers what is asked of it as a proxy, too. Nothing listens at the other address.
            command.env("HTTP_PROXY", format!("http://{}", host.node_ip()));
            command.env("HTTPS_PROXY", "http://127.0.0.1:9");
        }
        let _ = fs::remove_file(self.socket());
        // One that was killed has left these. Its containerd ends with it, but as long as nobody has reaped that, its
        // pid looks alive.
        for file in ["pid", "run/containerd/containerd.pid", "run/containerd/containerd.sock"] {
            let _ = fs::remove_file(self.dir.join(file));
        }
        let mut daemon = host.spawn("docker", command)?;
        poll_until(START, "the Docker Engine to answer", || {
            daemon.check_running()?;
            Ok(match self.request("GET", "/version", &[]) {
                Ok((200, _)) => Ok(()),
                Ok((status, answer)) => Err(format!("{status} {answer}")),
                Err(error) => Err(error.to_string()),
            })
        })?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// The engine's process.
    ///
    /// # Errors
    /// When it was stopped.
    pub fn daemon(&mut self) -> Result<&mut Daemon> {
        self.daemon.as_mut().ok_or_else(|| Error::Machine("the Docker Engine is stopped".into()))
    }

    /// Stops the engine in order, with its containers unless they outlive it.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&mut self) -> Result<()> {
        self.daemon()?.terminate(START)?;
        self.daemon = None;
        Ok(())
    }

    /// Kills the engine, as a crash would end it.
    ///
    /// # Errors
    /// When it was stopped.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon()?.kill()?;
        self.daemon = None;
        Ok(())
    }

    /// The processes of the engine: dockerd, and the containerd that it has started. Shims and containers are not
    /// among them.
    ///
    /// # Errors
    /// When it does not run.
    pub fn processes(&mut self) -> Result<Vec<u32>> {
        let file = self.dir.join("run/containerd/containerd.pid");
        let daemon = self.daemon()?;
        daemon.check_running()?;
        let text = fs::read_to_string(&file).at(&file)?;
        let containerd = text.trim().parse().ok();
        Ok([Some(daemon.pid()), containerd].into_iter().flatten().collect())
    }

    /// The first process of each container that runs, by the container's ID.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub fn container_pids(&self) -> Result<HashMap<String, i32>> {
        let (_, running) = self.request("GET", "/containers/json", &[])?;
        let mut pids = HashMap::new();
        for id in running.as_array().into_iter().flatten().filter_map(|one| one["Id"].as_str()) {
            // One that has ended meanwhile has none.
            let (_, container) = self.request("GET", &format!("/containers/{id}/json"), &[])?;
            let pid = container["State"]["Pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            pids.extend(pid.filter(|pid| *pid > 0).map(|pid| (id.to_owned(), pid)));
        }
        Ok(pids)
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    /// Where it looks for specifications of CDI devices, from version 25 on.
    pub fn cdi_dir(&self) -> PathBuf {
        self.dir.join("cdi")
    }

    /// The minor version of the newest API 1.x that it speaks.
    ///
    /// # Errors
    /// When it does not say one.
    pub fn api(&self) -> Result<u32> {
        let (status, answer) = self.request("GET", "/version", &[])?;
        let minor = answer["ApiVersion"].as_str().and_then(|version| version.strip_prefix("1."));
        minor
            .and_then(|minor| minor.parse().ok())
            .ok_or_else(|| self.refused("say its API", status, &answer))
    }

    /// All that it keeps.
    pub fn data_root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Puts an image into the engine.
    ///
    /// # Errors
    /// When it is refused.
    pub fn load(&self, image: &Image) -> Result<()> {
        match self.request("POST", "/images/load?quiet=1", image.archive())? {
            (200, answer) if answer.get("error").is_none() => Ok(()),
            (status, answer) => Err(self.refused("load an image", status, &answer)),
        }
    }

    /// What a node is told that serves CRI over this engine itself.
    ///
    /// # Errors
    /// When there are no plugins of CNI.
    pub fn node_options(&self, host: &Host) -> Result<NodeOptions> {
        let [conf, bin] = host.cni_dirs()?;
        let endpoint = format!("docker://{}", self.socket().display());
        let config = [("containerRuntimeEndpoint".to_owned(), endpoint.into())];
        Ok(NodeOptions {
            config: config.into_iter().collect(),
            args: vec![
                format!("--pod-infra-container-image={PAUSE}"),
                format!("--cni-conf-dir={}", conf.display()),
                format!("--cni-bin-dir={}", bin.display()),
                format!("--cni-cache-dir={}", self.dir.join("cni").display()),
                format!("--cri-dockerd-root-directory={}", self.dir.join("sandboxes").display()),
            ],
            ..NodeOptions::default()
        })
    }

    /// What is left of a pod, as [`Host::pod_leftovers`] has it for containerd.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub fn pod_leftovers(&self, host: &Host, uid: &str) -> Result<Vec<String>> {
        let (status, answer) = self.request("GET", "/containers/json?all=true", &[])?;
        let all = match answer.as_array() {
            Some(all) if status == 200 => all,
            _ => return Err(self.refused("list containers", status, &answer)),
        };
        let id = |one: &Value| one["Id"].as_str().unwrap_or_default().to_owned();
        let of_pod = all.iter().filter(|one| one["Labels"]["io.kubernetes.pod.uid"] == uid);
        let containers =
            Containers { of_pod: of_pod.map(id).collect(), all: all.iter().map(id).collect() };
        Ok(host.leftovers_beside(uid, &containers))
    }

    /// A request behind the back of everyone: its status and answer. An answer of several JSON objects is the
    /// last of them.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Value)> {
        let socket = self.socket();
        let mut stream = UnixStream::connect(&socket).at(&socket)?;
        stream.set_read_timeout(Some(ANSWER)).at(&socket)?;
        let kind =
            if body.first() == Some(&b'{') { "application/json" } else { "application/x-tar" };
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).at(&socket)?;
        // It may answer before it has read all.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).at(&socket)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let values = serde_json::Deserializer::from_str(body).into_iter::<Value>();
        Ok((status, values.map_while(std::result::Result::ok).last().unwrap_or_default()))
    }

    fn refused(&self, what: &str, status: u16, answer: &Value) -> Error {
        Error::Command {
            command: format!("dockerd: {what}"),
            message: format!("{status} {answer}"),
        }
    }
}
