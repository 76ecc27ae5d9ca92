//! Command line and configuration file of kube-proxy as one [`ProxyConfig`]. As upstream: with a file,
//! all flags that have a field are ignored.

mod effects;
mod flags;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longshore_base::logging;
use longshore_base::version::KUBERNETES_VERSION;
use longshore_proxy::config::{KubeProxyConfiguration, Mode};
use serde_json::Value;

use self::flags::PROXY_FLAGS;
use super::pflag::{self, Parsed};
use super::{
    Command, ConfigError, FeatureGates, FileError, Logging, file, gates, help, node_name, path,
    version_text,
};

/// The complete and validated configuration of kube-proxy.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// The fields of `KubeProxyConfiguration`, from the file or from flags.
    pub settings: KubeProxyConfiguration,
    /// The effective feature gates.
    pub gates: FeatureGates,
    /// The node's name: the host's name in lower case, unless overridden.
    pub node_name: String,
    /// The apiserver's address, which overrides the kubeconfig.
    pub master: Option<String>,
    /// What the log is started with.
    pub logging: logging::Settings,
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// All flags with their values, for the page that shows them.
    pub flags: BTreeMap<&'static str, String>,
    /// Warnings.
    pub notes: Vec<String>,
}

/// The task of kube-proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyTask {
    /// Run the proxy.
    Run,
    /// Apply privileged settings (`--init-only`).
    Init,
    /// Remove its rules (`--cleanup`).
    CleanUp,
}

/// The values of the command line, as given.
struct ProxyFlags {
    help: bool,
    version: String,
    config: String,
    write_config_to: String,
    cleanup: bool,
    init_only: bool,
    master: String,
    hostname_override: String,
    healthz_port: i32,
    metrics_port: i32,
    mode: String,
    detect_local_mode: String,
    logging: Logging,
    proxy: KubeProxyConfiguration,
}

impl Default for ProxyFlags {
    fn default() -> Self {
        Self {
            help: false,
            version: String::new(),
            config: String::new(),
            write_config_to: String::new(),
            cleanup: false,
            init_only: false,
            master: String::new(),
            hostname_override: String::new(),
            healthz_port: 10256,
            metrics_port: 10249,
            mode: String::new(),
            detect_local_mode: String::new(),
            logging: Logging::default(),
            proxy: KubeProxyConfiguration::default(),
        }
    }
}

/// Parses the arguments of `longshore proxy`, or of a program named `kube-proxy`.
pub(super) fn command(args: &[String]) -> Result<Command, ConfigError> {
    let parsed = Parsed::new(PROXY_FLAGS, args).map_err(ConfigError::CommandLine)?;
    let mut flags = ProxyFlags::default();
    parsed.apply(&mut flags).map_err(ConfigError::CommandLine)?;
    if flags.help {
        let about = "kube-proxy: leads packets for services to their endpoints.\n\n\
                     Flags marked (config) are void when --config names a file.";
        return Ok(Command::Print(help::table("kube-proxy", about, PROXY_FLAGS)));
    }
    if !matches!(flags.version.as_str(), "" | "false") {
        return Ok(Command::Print(version_text(&flags.version)));
    }
    let task = match (flags.cleanup, flags.init_only) {
        (true, _) => ProxyTask::CleanUp,
        (_, true) => ProxyTask::Init,
        _ => ProxyTask::Run,
    };
    let write_to = path(&flags.write_config_to);
    let mut notes = Vec::new();
    let file = path(&flags.config);
    let settings = match &file {
        Some(file) => {
            let settings = read(file, &mut notes)?;
            notes.extend(
                parsed
                    .deprecated()
                    .map(|flag| format!("--{flag} is void: {} holds", file.display())),
            );
            flags.logging = read_logging(&settings.logging, file)?;
            parsed.apply(&mut flags).map_err(ConfigError::CommandLine)?;
            settings
        }
        None => from_flags(&flags)?,
    };
    if let Some(path) = write_to {
        let text = serde_saphyr::to_string(&settings.to_tree())
            .map_err(|error| ConfigError::CommandLine(error.to_string()))?;
        return Ok(Command::Write { path, text });
    }
    let shown = pflag::shown(PROXY_FLAGS, &mut flags);
    let mut config = checked(settings, &flags.hostname_override, task)?;
    config.master = Some(flags.master).filter(|master| !master.is_empty());
    config.logging =
        flags.logging.settings("logging.", &config.gates).map_err(ConfigError::Invalid)?;
    config.flags = shown;
    config.file = file;
    config.notes.extend(notes);
    Ok(Command::Proxy(Box::new(config), task))
}

/// kube-proxy in the process of the kubelet: with a file, or with defaults.
pub(super) fn beside_kubelet(
    file: Option<PathBuf>,
    node_name: &str,
) -> Result<ProxyConfig, ConfigError> {
    let mut notes = Vec::new();
    let settings = match &file {
        Some(file) => read(file, &mut notes)?,
        None => KubeProxyConfiguration::default(),
    };
    let mut config = checked(settings, node_name, ProxyTask::Run)?;
    config.notes.extend(notes);
    Ok(ProxyConfig { file, ..config })
}

fn read(path: &Path, notes: &mut Vec<String>) -> Result<KubeProxyConfiguration, ConfigError> {
    let (tree, faults) = file::parse_tree(&file::read_text(path)?)
        .map_err(|reason| FileError::invalid(path, reason))?;
    let (settings, passed_over) = KubeProxyConfiguration::decode_lenient(tree)
        .map_err(|error| FileError::invalid(path, error))?;
    let file = path.display();
    notes.extend(faults.into_iter().map(|fault| format!("{file}: {fault}, passed over")));
    notes.extend(passed_over.into_iter().map(|field| format!("{file}: {field}")));
    Ok(settings)
}

fn read_logging(tree: &Value, path: &Path) -> Result<Logging, FileError> {
    let logging = serde_json::from_value(tree.clone());
    logging.map_err(|error| FileError::invalid(path, format!("logging: {error}")))
}

fn from_flags(flags: &ProxyFlags) -> Result<KubeProxyConfiguration, ConfigError> {
    fn word<T: serde::de::DeserializeOwned>(flag: &str, word: &str) -> Result<T, ConfigError> {
        serde_json::from_value(word.into())
            .map_err(|error| ConfigError::CommandLine(format!("--{flag}: {error}")))
    }
    let mut settings = flags.proxy.clone();
    settings.mode = word("proxy-mode", &flags.mode)?;
    settings.detect_local_mode = word("detect-local-mode", &flags.detect_local_mode)?;
    if flags.healthz_port == 0 {
        settings.healthz_bind_address.clear();
    }
    if flags.metrics_port == 0 {
        settings.metrics_bind_address.clear();
    }
    Ok(settings.complete())
}

fn checked(
    settings: KubeProxyConfiguration,
    hostname_override: &str,
    task: ProxyTask,
) -> Result<ProxyConfig, ConfigError> {
    let mut errors = settings.faults();
    errors.extend(effects::unprotected(&settings));
    if task != ProxyTask::CleanUp && matches!(settings.mode, Mode::Ipvs | Mode::NfTables) {
        let mode = serde_json::to_value(settings.mode).unwrap_or_default();
        errors
            .push(format!("mode: {mode} is not one of longshore's: it has iptables and userspace"));
    }
    let gates = gates::requested(&settings.feature_gates, &[], &mut errors);
    let notes = super::effects::unused(effects::EFFECTS, &settings);
    let hostname_override = match hostname_override {
        "" => &settings.hostname_override,
        flag => flag,
    };
    let node_name = node_name(hostname_override).unwrap_or_else(|fault| {
        errors.push(fault);
        String::new()
    });
    if !errors.is_empty() {
        return Err(ConfigError::Invalid(errors));
    }
    Ok(ProxyConfig {
        settings,
        gates,
        node_name,
        master: None,
        logging: logging::Settings::default(),
        file: None,
        flags: BTreeMap::new(),
        notes,
    })
}

/// The log line with version and mode at the start.
pub fn banner(config: &ProxyConfig) -> String {
    let mode = match config.settings.mode {
        Mode::Userspace => "userspace",
        _ => "iptables",
    };
    format!("kube-proxy {KUBERNETES_VERSION}, mode {mode}")
}
