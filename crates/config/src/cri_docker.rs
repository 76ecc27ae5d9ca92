//! The command line of `longshore cri-docker`: cri-dockerd's flags, where it has them.
//!
//! Current limitations: cri-dockerd's flags of networks that are not CNI's have no effect (`--hairpin-mode`,
//! `--network-plugin-mtu`, `--ipv6-dual-stack`), as neither has `--runtime-cgroups`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use longshore_base::logging;

use super::docker::{DockerConfig, DockerFlags, absolute, positive};
use super::pflag::Target::{
    self, Bool, Duration as Span, Ignored, IgnoredBool, List, Text, VModule, Verbosity, Word,
};
use super::pflag::{Flag, Parsed};
use super::{Command, ConfigError, FeatureGates, GoDuration, Logging, help, version_text};

/// The settings of `longshore cri-docker`.
#[derive(Debug, Clone)]
pub struct CriDockerConfig {
    /// The engine's endpoint.
    pub docker_endpoint: String,
    /// The socket of CRI.
    pub listen: PathBuf,
    /// What a node in the same process is told, too.
    pub docker: DockerConfig,
    /// The range of the node's pods, where no kubelet says it.
    pub pod_cidr: Option<String>,
    /// Where exec, attach and port-forward are served.
    pub streaming_address: SocketAddr,
    /// How long a streaming connection may be idle.
    pub streaming_idle_timeout: Duration,
    /// How long a request to the engine may take.
    pub request_timeout: Duration,
    /// What the log is started with.
    pub logging: logging::Settings,
}

struct Flags {
    help: bool,
    version: String,
    docker_endpoint: String,
    listen: String,
    docker: DockerFlags,
    pod_cidr: String,
    network_plugin: String,
    streaming_address: String,
    streaming_idle_timeout: GoDuration,
    request_timeout: GoDuration,
    logging: Logging,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            help: false,
            version: String::new(),
            docker_endpoint: "unix:///var/run/docker.sock".to_owned(),
            listen: "unix:///run/longshore-docker.sock".to_owned(),
            docker: DockerFlags::default(),
            pod_cidr: String::new(),
            network_plugin: CNI.to_owned(),
            streaming_address: "127.0.0.1:0".to_owned(),
            streaming_idle_timeout: GoDuration::secs(4 * 60 * 60),
            request_timeout: GoDuration::secs(120),
            logging: Logging::default(),
        }
    }
}

const CNI: &str = "cni";

const fn flag(name: &'static str, target: Target<Flags>) -> Flag<Flags> {
    Flag { name, target, deprecated: false }
}

static FLAGS: &[Flag<Flags>] = &[
    flag("help", Bool(|s| &mut s.help)),
    flag("version", Word(|s| &mut s.version)),
    flag("docker-endpoint", Text(|s| &mut s.docker_endpoint)),
    flag("listen", Text(|s| &mut s.listen)),
    // cri-dockerd's name for it
    flag("container-runtime-endpoint", Text(|s| &mut s.listen)),
    flag("cri-dockerd-root-directory", Text(|s| &mut s.docker.root_dir)),
    flag("pod-infra-container-image", Text(|s| &mut s.docker.sandbox_image)),
    flag("pod-cidr", Text(|s| &mut s.pod_cidr)),
    flag("network-plugin", Text(|s| &mut s.network_plugin)),
    flag("cni-bin-dir", List(|s| &mut s.docker.cni_bin_dirs)),
    flag("cni-conf-dir", Text(|s| &mut s.docker.cni_conf_dir)),
    flag("cni-cache-dir", Text(|s| &mut s.docker.cni_cache_dir)),
    flag("streaming-address", Text(|s| &mut s.streaming_address)),
    // cri-dockerd's name for it
    flag("streaming-bind-addr", Text(|s| &mut s.streaming_address)),
    flag("streaming-connection-idle-timeout", Span(|s| &mut s.streaming_idle_timeout)),
    flag("image-pull-progress-deadline", Span(|s| &mut s.docker.image_pull_progress_deadline)),
    flag("runtime-request-timeout", Span(|s| &mut s.request_timeout)),
    flag("hairpin-mode", Ignored),
    flag("network-plugin-mtu", Ignored),
    flag("ipv6-dual-stack", IgnoredBool),
    flag("runtime-cgroups", Ignored),
    flag("log-level", Ignored),
    // logging
    flag("v", Verbosity(|s| &mut s.logging.verbosity)),
    flag("vmodule", VModule(|s| &mut s.logging.vmodule)),
    flag("logging-format", Text(|s| &mut s.logging.format)),
];

/// Parses the arguments of `longshore cri-docker`.
pub(super) fn command(args: &[String]) -> Result<Command, ConfigError> {
    let parsed = Parsed::new(FLAGS, args).map_err(ConfigError::CommandLine)?;
    let mut flags = Flags::default();
    parsed.apply(&mut flags).map_err(ConfigError::CommandLine)?;
    if flags.help {
        let about = "cri-docker: the Container Runtime Interface over a Docker Engine.";
        return Ok(Command::Print(help::table("longshore cri-docker", about, FLAGS)));
    }
    if !matches!(flags.version.as_str(), "" | "false") {
        return Ok(Command::Print(version_text(&flags.version)));
    }
    let config = checked(flags).map_err(ConfigError::CommandLine)?;
    Ok(Command::CriDocker(Box::new(config)))
}

fn checked(flags: Flags) -> Result<CriDockerConfig, String> {
    if !matches!(flags.network_plugin.as_str(), "" | CNI) {
        return Err(format!("--network-plugin: {:?}: there is only cni", flags.network_plugin));
    }
    let gates = FeatureGates::default();
    let logging = flags.logging.settings("logging.", &gates);
    Ok(CriDockerConfig {
        listen: socket("--listen", &flags.listen)?,
        streaming_address: address("--streaming-address", &flags.streaming_address)?,
        docker_endpoint: flags.docker_endpoint,
        docker: flags.docker.checked()?,
        pod_cidr: Some(flags.pod_cidr).filter(|cidr| !cidr.is_empty()),
        streaming_idle_timeout: flags.streaming_idle_timeout.get(),
        request_timeout: positive("--runtime-request-timeout", flags.request_timeout)?,
        logging: logging.map_err(|faults| faults.join("; "))?,
    })
}

fn socket(flag: &str, endpoint: &str) -> Result<PathBuf, String> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if path.contains("://") {
        return Err(format!("{flag}: {endpoint:?} is not unix:///path"));
    }
    absolute(flag, path)
}

/// An address with a port, or without, which is any.
fn address(flag: &str, text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok((ip, 0).into()),
        Err(_) if text.is_empty() => Ok((Ipv4Addr::LOCALHOST, 0).into()),
        Err(_) => Err(format!("{flag}: {text:?} is no address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(args: &[&str]) -> Result<CriDockerConfig, String> {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        match command(&args) {
            Ok(Command::CriDocker(config)) => Ok(*config),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn cri_docker_flags_are_those_of_cri_dockerd() {
        let config = config(&[
            "--container-runtime-endpoint=unix:///run/cri.sock",
            "--docker-endpoint",
            "unix:///d.sock",
            "--network-plugin=cni",
            "--cni-bin-dir=/a,/b",
            "--hairpin-mode=none",
            "--ipv6-dual-stack",
            "--streaming-bind-addr=10.0.0.1",
            "--image-pull-progress-deadline=5m",
        ])
        .unwrap();
        assert_eq!(config.listen, PathBuf::from("/run/cri.sock"));
        assert_eq!(config.docker_endpoint, "unix:///d.sock");
        assert_eq!(config.docker.cni_bin_dirs, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(config.streaming_address.to_string(), "10.0.0.1:0");
        assert_eq!(config.docker.image_pull_progress_deadline, Duration::from_secs(300));
        assert_eq!(config.pod_cidr, None);
    }

    #[test]
    fn cri_docker_refuses_what_it_cannot() {
        for wrong in [
            "--listen=tcp://1.2.3.4:5",
            "--listen=relative.sock",
            "--network-plugin=kubenet",
            "--streaming-address=somewhere",
            "--cni-conf-dir=net.d",
            "--runtime-request-timeout=0",
            "--no-such-flag",
        ] {
            assert!(config(&[wrong]).is_err(), "{wrong}");
        }
    }
}
