//! Command line and configuration files as one [`Config`]. Flags take precedence over files; everything
//! is validated before the start, and all errors are reported together.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod cgroups;
mod checks_managers;
mod cri_docker;
mod docker;
mod effects;
mod eviction;
mod file;
mod flags;
mod gates;
mod help;
mod kubelet;
mod labels;
mod pflag;
mod proxy;
mod quantities;
#[cfg(test)]
mod tests;
mod validation;
mod version;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

use longshore_base::logging;
pub use longshore_duration::{GoDuration, ParseDurationError};

pub use self::cri_docker::CriDockerConfig;
pub use self::docker::DockerConfig;
pub use self::eviction::Eviction;
pub use self::file::{FileError, decode_strict, parse_tree as parse_document};
pub use self::flags::DOCKER_SCHEME;
use self::flags::{DOCKER_FLAGS, KUBELET_FLAGS, KubeletFlags};
pub use self::gates::FeatureGates;
pub use self::kubelet::*;
use self::pflag::Parsed;
pub use self::proxy::banner as proxy_banner;
pub use self::proxy::{ProxyConfig, ProxyTask};
pub use self::quantities::Reserved;
use self::version::version_text;

/// Errors of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Invalid command line.
    #[error("{0}")]
    CommandLine(String),
    /// Invalid configuration file.
    #[error(transparent)]
    File(#[from] FileError),
    /// Invalid settings, one line each.
    #[error("invalid configuration:\n  {}", .0.join("\n  "))]
    Invalid(Vec<String>),
}

/// The requested command.
#[derive(Debug)]
pub enum Command {
    /// Print this text and exit.
    Print(String),
    /// Write this text to a file and exit.
    Write {
        /// The file.
        path: PathBuf,
        /// The content.
        text: String,
    },
    /// Run the kubelet, with kube-proxy beside it if the config has one.
    Kubelet(Box<Config>),
    /// Run kube-proxy alone.
    Proxy(Box<ProxyConfig>, ProxyTask),
    /// Serve CRI over a Docker Engine.
    CriDocker(Box<CriDockerConfig>),
    /// Become the program [`HOST_PROGRAM`], with these arguments.
    Host(Vec<String>),
}

/// The complete and validated configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The fields of `KubeletConfiguration`, from files and flags.
    pub kubelet: KubeletConfiguration,
    /// The effective feature gates.
    pub gates: FeatureGates,
    /// The node's name: the host's name in lower case, unless overridden.
    pub node_name: String,
    /// Addresses from `--node-ip`, at most one per family; empty: detect them.
    pub node_ips: Vec<IpAddr>,
    /// Labels that self-registration gives the node.
    pub node_labels: BTreeMap<String, String>,
    /// Kubeconfig of the apiserver; `None`: standalone mode.
    pub kubeconfig: Option<PathBuf>,
    /// Bootstrap kubeconfig, used when `kubeconfig` does not exist.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// The root directory (`/var/lib/kubelet`).
    pub root_dir: PathBuf,
    /// Directory of the daemon's certificates.
    pub cert_dir: PathBuf,
    /// `external`: a cloud controller completes the node object.
    pub external_cloud: bool,
    /// Lock file, for a single instance.
    pub lock_file: Option<PathBuf>,
    /// Exit on lock contention.
    pub exit_on_lock_contention: bool,
    /// The cgroup of the container runtime, for separate statistics.
    pub runtime_cgroups: String,
    /// Configuration of the image credential plugins.
    pub image_credential_provider_config: Option<PathBuf>,
    /// Directory of the credential plugins.
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Minimum age of dead containers before removal.
    pub minimum_container_ttl: GoDuration,
    /// Maximum number of dead instances per container.
    pub maximum_dead_containers_per_container: i32,
    /// Maximum number of dead containers; negative: unlimited.
    pub maximum_dead_containers: i32,
    /// Whether running a command in a pod requires the verb `create`, whatever the HTTP method.
    pub strict_streams: bool,
    /// Whether pods that were admitted before wait for their device plugin after a restart of the
    /// daemon or the machine, in place of a new admission that may reject them.
    pub wait_for_device_plugins: bool,
    /// Whether containers that are not ready are probed more often than their period.
    pub early_readiness_probes: bool,
    /// Whether kernel settings that a node needs are left as they are.
    pub keep_kernel_tunables: bool,
    /// Port of the cAdvisor API, on the address of the server; 0: off.
    pub cadvisor_port: i32,
    /// Where the node shows itself to browsers, a loopback address; `None`: nowhere.
    pub dashboard: Option<SocketAddr>,
    /// CRI over a Docker Engine in this process; `None` where no endpoint is `docker://`.
    pub docker: Option<DockerConfig>,
    /// Reserved resources.
    pub reserved: Reserved,
    /// Settings of eviction.
    pub eviction: Eviction,
    /// All flags with their effective values, for display.
    pub flags: BTreeMap<&'static str, String>,
    /// Warnings, for the log.
    pub warnings: Vec<String>,
    /// What the log is started with.
    pub logging: logging::Settings,
    /// kube-proxy, if it runs in the same process.
    pub proxy: Option<Box<ProxyConfig>>,
}

/// Where `--dashboard` without an address is.
const DASHBOARD: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10247));

/// The program of the commands that are about a machine and its cluster, beside this one.
pub const HOST_PROGRAM: &str = "longshore-host";
/// Those commands.
const HOST_COMMANDS: [&str; 8] = ["up", "join", "token", "down", "reset", "check", "status", "top"];

const USAGE: &str = "\
Longshore, a Kubernetes node.

Usage:
  longshore kubelet [flags]   run the kubelet (also when the program's name is kubelet)
  longshore proxy [flags]     run kube-proxy (also when the program's name is kube-proxy)
  longshore node [flags]      run both in one process; takes the kubelet's flags, and
                              --proxy-config=FILE, a KubeProxyConfiguration
  longshore cri-docker [flags] serve the Container Runtime Interface over a Docker Engine
  longshore up [flags]        make this machine a cluster, or start the one that it is
  longshore join [flags]      make this machine a node of a cluster
  longshore token COMMAND     create, list and delete the tokens by which machines join
  longshore down              stop what up or join has started
  longshore reset             remove everything of the cluster from this machine
  longshore check             check whether this machine can be a node
  longshore status            show what runs on this node
  longshore top               the same on the whole terminal, each second anew
  longshore version [-o json] print the version
";

/// Parses the command line, including the program name, and the files it refers to.
pub fn from_args(args: impl IntoIterator<Item = String>) -> Result<Command, ConfigError> {
    let mut args = args.into_iter();
    let program = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let name = Path::new(&program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name {
        "kubelet" => return kubelet_command(&rest, Roles::Kubelet),
        "kube-proxy" => return proxy::command(&rest),
        _ => {}
    }
    match rest.split_first().map(|(command, rest)| (command.as_str(), rest)) {
        Some(("kubelet", rest)) => kubelet_command(rest, Roles::Kubelet),
        Some(("node", rest)) => kubelet_command(rest, Roles::Both),
        Some(("proxy", rest)) => proxy::command(rest),
        Some(("cri-docker", rest)) => cri_docker::command(rest),
        Some((command, _)) if HOST_COMMANDS.contains(&command) => Ok(Command::Host(rest)),
        // Flags of those commands may come before them.
        Some(("--root", _)) => Ok(Command::Host(rest)),
        Some((flag, _)) if flag.starts_with("--root=") => Ok(Command::Host(rest)),
        Some(("--version", _)) => Ok(Command::Print(version_text("true"))),
        Some(("version", rest)) => version::command(rest),
        Some(("--help" | "-h" | "help", _)) => Ok(Command::Print(USAGE.to_owned())),
        Some((other, _)) => {
            Err(ConfigError::CommandLine(format!("unknown command {other}\n\n{USAGE}")))
        }
        None => Err(ConfigError::CommandLine(format!("no command given\n\n{USAGE}"))),
    }
}

/// Roles of a process.
#[derive(Clone, Copy, PartialEq)]
enum Roles {
    Kubelet,
    /// With kube-proxy beside it.
    Both,
}

fn kubelet_command(args: &[String], roles: Roles) -> Result<Command, ConfigError> {
    let parsed = Parsed::new(KUBELET_FLAGS, args).map_err(ConfigError::CommandLine)?;
    let mut flags = KubeletFlags::over(KubeletConfiguration::without_file());
    parsed.apply(&mut flags).map_err(ConfigError::CommandLine)?;
    if flags.help {
        return Ok(Command::Print(help::text()));
    }
    let mut warnings = Vec::new();
    match flags.version.as_str() {
        "" | "false" => {}
        "true" | "raw" => return Ok(Command::Print(version_text(&flags.version))),
        other if other.starts_with('v') => {
            warnings.push(format!("--version={other}: the reported version cannot be set"));
        }
        other => {
            let fault = "must be true, false, raw or a version that begins with v";
            return Err(ConfigError::CommandLine(format!("--version: {other:?} {fault}")));
        }
    }
    let (main, drop_ins) = (path(&flags.config), path(&flags.config_dir));
    if main.is_some() || drop_ins.is_some() {
        // once more over the files' settings: flags win
        let (settings, passed_over) = file::load(main.as_deref(), drop_ins.as_deref())?;
        warnings.extend(passed_over);
        flags = KubeletFlags::over(settings);
        parsed.apply(&mut flags).map_err(ConfigError::CommandLine)?;
    }
    let proxy_config = path(&flags.proxy_config);
    if roles == Roles::Kubelet && proxy_config.is_some() {
        let fault = "--proxy-config: only `longshore node` runs kube-proxy beside the kubelet";
        return Err(ConfigError::CommandLine(fault.to_owned()));
    }
    let shown = pflag::shown(KUBELET_FLAGS, &mut flags);
    let mut config = checked(flags)?;
    config.flags = shown;
    warnings.extend(parsed.deprecated().map(|flag| {
        format!("--{flag} is deprecated: it works, but belongs in the file of --config")
    }));
    warnings.extend(parsed.ignored().map(|flag| format!("--{flag} has no effect")));
    warnings.extend(effects::without_effect(&config.kubelet));
    if config.docker.is_none() {
        warnings.extend(parsed.among(&DOCKER_FLAGS).map(|flag| {
            format!("--{flag} has no effect: no endpoint of the runtime is {DOCKER_SCHEME}")
        }));
    }
    config.warnings = warnings;
    if roles == Roles::Both {
        let proxy = proxy::beside_kubelet(proxy_config, &config.node_name)?;
        config.proxy = Some(Box::new(proxy));
    }
    Ok(Command::Kubelet(Box::new(config)))
}

/// Checks everything and gathers every fault.
fn checked(mut flags: KubeletFlags) -> Result<Config, ConfigError> {
    let mut errors = Vec::new();
    let gates = self::gates::requested(&flags.kubelet.feature_gates, &gates::MISSING, &mut errors);
    flags.kubelet.fill_gated(&gates);
    errors.extend(validation::faults(&flags.kubelet, &gates));
    errors.extend(cgroups::host_faults(&flags.kubelet));
    errors.extend(checks_managers::faults(&flags.kubelet, &gates));
    errors.extend(validation::container_faults(flags.minimum_container_ttl));
    errors.extend(labels::check_node_labels(&flags.node_labels).err().into_iter().flatten());
    let mut or_fault = |fault: String| errors.push(fault);
    let node_name = node_name(&flags.hostname_override).map_err(&mut or_fault).unwrap_or_default();
    let node_ips = node_ips(&flags.node_ip).map_err(&mut or_fault).unwrap_or_default();
    let ignores_eviction = flags.allocatable_ignores_eviction;
    let eviction = Eviction::new(&flags.kubelet, ignores_eviction).unwrap_or_else(|faults| {
        errors.extend(faults);
        Eviction::default()
    });
    let reserved = Reserved::new(&flags.kubelet, &eviction.thresholds, ignores_eviction)
        .unwrap_or_else(|faults| {
            errors.extend(faults);
            Reserved::default()
        });
    if !matches!(flags.cloud_provider.as_str(), "" | "external") {
        errors.push(format!(
            "--cloud-provider: {:?} must be empty or \"external\"",
            flags.cloud_provider
        ));
    }
    if flags.exit_on_lock_contention && flags.lock_file.is_empty() {
        errors.push("--exit-on-lock-contention: --lock-file must be set with it".to_owned());
    }
    errors.extend(effects::unprotected_flags(&flags));
    let docker = flags.is_on_docker().then(|| flags.docker.checked()).transpose();
    let docker = docker.unwrap_or_else(|fault| {
        errors.push(fault);
        None
    });
    let dashboard = dashboard(&flags.dashboard).unwrap_or_else(|fault| {
        errors.push(fault);
        None
    });
    if !(0..=65535).contains(&flags.cadvisor_port) {
        errors.push("--cadvisor-port: must be a port from 1 to 65535, or 0 for none".to_owned());
    }
    if !errors.is_empty() {
        return Err(ConfigError::Invalid(errors));
    }
    // its faults are among the errors
    let logging = flags.kubelet.logging.settings("", &gates).unwrap_or_default();
    Ok(Config {
        gates,
        logging,
        node_name,
        node_ips,
        reserved,
        eviction,
        docker,
        external_cloud: flags.cloud_provider == "external",
        kubeconfig: path(&flags.kubeconfig),
        bootstrap_kubeconfig: path(&flags.bootstrap_kubeconfig),
        root_dir: flags.root_dir.into(),
        cert_dir: flags.cert_dir.into(),
        lock_file: path(&flags.lock_file),
        image_credential_provider_config: path(&flags.image_credential_provider_config),
        image_credential_provider_bin_dir: path(&flags.image_credential_provider_bin_dir),
        node_labels: flags.node_labels,
        exit_on_lock_contention: flags.exit_on_lock_contention,
        runtime_cgroups: flags.runtime_cgroups,
        minimum_container_ttl: flags.minimum_container_ttl,
        maximum_dead_containers_per_container: flags.maximum_dead_containers_per_container,
        maximum_dead_containers: flags.maximum_dead_containers,
        strict_streams: flags.strict_streams,
        wait_for_device_plugins: flags.wait_for_device_plugins,
        early_readiness_probes: flags.early_readiness_probes,
        keep_kernel_tunables: flags.keep_kernel_tunables,
        cadvisor_port: flags.cadvisor_port,
        dashboard,
        kubelet: flags.kubelet,
        flags: BTreeMap::new(),
        warnings: Vec::new(),
        proxy: None,
    })
}

/// The address of the dashboard, which asks nobody who they are.
fn dashboard(value: &str) -> Result<Option<SocketAddr>, String> {
    match value {
        "" | "false" => return Ok(None),
        "true" => return Ok(Some(DASHBOARD)),
        _ => {}
    }
    let address: SocketAddr = value
        .parse()
        .map_err(|_| format!("--dashboard: {value:?} is not IP:PORT, such as {DASHBOARD}"))?;
    match address.ip().is_loopback() {
        true => Ok(Some(address)),
        false => Err(format!(
            "--dashboard: {address} is not a loopback address, and whoever reaches it would see pods and their logs; \
             give 127.0.0.1 or [::1]"
        )),
    }
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

fn node_name(hostname_override: &str) -> Result<String, String> {
    let name = if hostname_override.is_empty() {
        nix::unistd::gethostname()
            .map_err(|error| format!("cannot read the host's name: {error}"))?
            .to_string_lossy()
            .into_owned()
    } else {
        hostname_override.to_owned()
    };
    let name = name.trim().to_lowercase();
    if labels::is_dns_subdomain(&name) {
        Ok(name)
    } else {
        Err(format!(
            "node name {name:?} (the host's name or --hostname-override) is not a DNS name"
        ))
    }
}

/// One address, or one of each family; `0.0.0.0` and `::` choose a family alone.
fn node_ips(text: &str) -> Result<Vec<IpAddr>, String> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let ip: IpAddr =
            item.parse().map_err(|_| format!("--node-ip: {item:?} is not an IP address"))?;
        if ips.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            return Err(format!(
                "--node-ip: {text:?} must have at most one address of each family"
            ));
        }
        if text.contains(',') && ip.is_unspecified() {
            return Err(format!("--node-ip: {item:?} cannot be one of two addresses"));
        }
        ips.push(ip);
    }
    Ok(ips)
}
