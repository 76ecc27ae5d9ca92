//! What the machine says of itself, as text and numbers. What cannot be read is absent: a check says so.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use longshore_machine::FileSystem;
use longshore_machine::cgroup::is_unified;
use longshore_tls::certificates;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::args::CheckArgs;
use crate::runtime::{CNI_PLUGINS, Folders};
use crate::services::{Port, ports};
use crate::settings::{Machine, Settings};
use crate::setup::{run, yaml};
use crate::{Paths, preflight, runtime, start, units};

const RUNTIME: Duration = Duration::from_secs(10);
const APISERVER: Duration = Duration::from_secs(10);
/// The largest configuration of a kernel that is read, as text.
const MAX_CONFIG: u64 = 4 << 20;

/// A file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Inodes in all; 0: it does not count them.
    pub inodes: u64,
    /// Inodes that are free.
    pub free_inodes: u64,
}

/// What the container runtime says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The version of CRI.
    pub api: String,
    /// Its cgroup driver.
    pub driver: String,
    /// Why it is not ready, other than by its network.
    pub unready: Option<String>,
}

/// What the apiserver says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiserverFacts {
    /// Its version, such as v1.36.2.
    pub version: String,
    /// How far its clock is before this machine's, in seconds.
    pub offset: Option<i64>,
}

/// A certificate of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Its file.
    pub path: PathBuf,
    /// When it ends, in seconds since 1970; or why that cannot be read.
    pub end: std::result::Result<i64, String>,
}

/// All facts.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Whether this runs as root.
    pub is_root: bool,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's configuration, `CONFIG_X=y` a line; `None`: it is not to be found.
    pub kernel_config: Option<String>,
    /// Modules that are loaded or built in.
    pub modules: BTreeSet<String>,
    /// Modules that could be loaded.
    pub loadable: BTreeSet<String>,
    /// Whether cgroups are v2.
    pub is_unified: bool,
    /// Controllers of cgroups.
    pub controllers: BTreeSet<String>,
    /// Kernel settings by their path below /proc/sys.
    pub sysctls: BTreeMap<&'static str, String>,
    /// Swap areas.
    pub swaps: Vec<String>,
    /// Whether the node's configuration allows swap.
    pub is_swap_allowed: bool,
    /// Ports that are taken, with who needs them.
    pub taken: Vec<(u16, &'static str)>,
    /// Whether the services of the cluster run, so that ports are theirs.
    pub is_running: bool,
    /// The runtime's socket, if one is known.
    pub runtime_endpoint: Option<String>,
    /// The runtime, or why it does not answer.
    pub runtime: Option<std::result::Result<RuntimeFacts, String>>,
    /// The cgroup driver of the node's configuration.
    pub configured_driver: Option<String>,
    /// Names of network configurations.
    pub cni_files: Vec<String>,
    /// The folder of them.
    pub cni_folder: PathBuf,
    /// Whether the plugins of CNI are where distributions have them.
    pub has_cni_plugins: bool,
    /// What `iptables --version` says.
    pub iptables: Option<String>,
    /// Rules of kube-proxy in the other backend of iptables: how many.
    pub foreign_rules: usize,
    /// Programs that are not in the path.
    pub missing_programs: Vec<&'static str>,
    /// Whether the clock is kept by a server of time; `None`: not known.
    pub is_clock_synchronized: Option<bool>,
    /// Now, in seconds since 1970.
    pub now: i64,
    /// File systems by what is on them.
    pub spaces: Vec<(&'static str, PathBuf, Space)>,
    /// The limit of open files of all programs.
    pub max_files: Option<u64>,
    /// Whether SELinux enforces; `None`: it is not there.
    pub is_selinux_enforcing: Option<bool>,
    /// Whether `AppArmor` is on; `None`: it is not there.
    pub is_apparmor_enabled: Option<bool>,
    /// Whether there is a parser of `AppArmor`'s profiles.
    pub has_apparmor_parser: bool,
    /// Certificates of this machine.
    pub certificates: Vec<CertificateFacts>,
    /// The kubeconfig of the node, if there is one.
    pub kubeconfig: Option<PathBuf>,
    /// The apiserver, or why it does not answer.
    pub apiserver: Option<std::result::Result<ApiserverFacts, String>>,
    /// The release of Kubernetes of this node.
    pub own_version: &'static str,
    /// The machine's name.
    pub host_name: String,
    /// Memory in bytes.
    pub memory: u64,
}

/// Kernel settings that are looked at.
pub(super) const SYSCTLS: [&str; 7] = [
    "net/ipv4/ip_forward",
    "net/bridge/bridge-nf-call-iptables",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
];

const PROGRAMS: [&str; 6] =
    ["ip", "mount", "umount", "iptables", "iptables-save", "iptables-restore"];

impl Facts {
    /// Looks at this machine. Nothing is changed.
    pub async fn gather(paths: &Paths, args: &CheckArgs) -> Self {
        let settings = Settings::load(paths).ok().flatten();
        let machine = Machine::read();
        let kernel = text("/proc/sys/kernel/osrelease");
        let runtime_endpoint = args
            .container_runtime_endpoint
            .clone()
            .or_else(|| settings.as_ref().map(|settings| settings.runtime.clone()))
            .or_else(|| {
                machine.runtime.as_ref().map(|socket| format!("unix://{}", socket.display()))
            });
        let config = yaml(&text(paths.kubelet_config())).unwrap_or_default();
        let kubeconfig =
            args.kubeconfig.clone().or_else(|| Some(paths.kubelet()).filter(|path| path.exists()));
        let cni_folder = args
            .cni_conf_dir
            .clone()
            .or_else(|| settings.as_ref().map(|settings| settings.cni.clone()))
            .unwrap_or_else(|| paths.cni());
        let images = match &runtime_endpoint {
            Some(endpoint) if runtime::is_docker(endpoint) => "/var/lib/docker",
            _ => "/var/lib/containerd",
        };
        let is_unified = is_unified();
        let is_running =
            crate::lock::is_held(paths) || (paths.is_machine() && !units::running().is_empty());
        Self {
            is_root: nix::unistd::geteuid().is_root(),
            kernel_config: kernel_config(&kernel),
            modules: modules(),
            loadable: module_names(&text(format!("/lib/modules/{kernel}/modules.dep"))),
            is_unified,
            controllers: controllers(is_unified),
            sysctls: SYSCTLS
                .into_iter()
                .filter_map(|name| {
                    let value = std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
                    Some((name, value.trim().to_owned()))
                })
                .collect(),
            swaps: preflight::swaps(&text("/proc/swaps")),
            is_swap_allowed: config["failSwapOn"] == false,
            taken: if is_running { Vec::new() } else { taken(settings.as_ref()) },
            is_running,
            runtime: match &runtime_endpoint {
                Some(endpoint) => {
                    Some(runtime_facts(endpoint, &Folders::of(paths, settings.as_ref())).await)
                }
                None => None,
            },
            runtime_endpoint,
            configured_driver: config["cgroupDriver"].as_str().map(str::to_owned),
            cni_files: cni_files(&cni_folder),
            cni_folder,
            has_cni_plugins: CNI_PLUGINS
                .iter()
                .any(|folder| Path::new(folder).join("bridge").exists()),
            iptables: output("iptables", &["--version"]),
            foreign_rules: output("iptables-legacy-save", &[])
                .map_or(0, |rules| rules.lines().filter(|line| line.contains("KUBE-")).count()),
            missing_programs: PROGRAMS.into_iter().filter(|name| !is_in_path(name)).collect(),
            is_clock_synchronized: is_clock_synchronized(),
            now: Timestamp::now().as_second(),
            spaces: [
                ("pods and their volumes", paths.kubelet_root()),
                ("images and containers", PathBuf::from(images)),
                ("the cluster's state", paths.state()),
                ("logs", PathBuf::from("/var/log")),
            ]
            .into_iter()
            .filter_map(|(what, path)| Some((what, path.clone(), space(&path)?)))
            .collect(),
            max_files: text("/proc/sys/fs/file-max").parse().ok(),
            is_selinux_enforcing: match text("/sys/fs/selinux/enforce").as_str() {
                "" => None,
                value => Some(value == "1"),
            },
            is_apparmor_enabled: match text("/sys/module/apparmor/parameters/enabled").as_str() {
                "" => None,
                value => Some(value == "Y"),
            },
            has_apparmor_parser: is_in_path("apparmor_parser"),
            certificates: all_certificates(paths),
            apiserver: match &kubeconfig {
                Some(path) => Some(apiserver(path).await),
                None => None,
            },
            kubeconfig,
            own_version: longshore_base::version::KUBERNETES_VERSION,
            host_name: machine.host_name,
            memory: memory(&text("/proc/meminfo")),
            kernel,
        }
    }
}

fn text(path: impl AsRef<Path>) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args);
    run(command).ok()
}

fn is_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.into_iter().any(|folder| folder.join(name).is_file())
}

/// PURE: `MemTotal` in bytes.
fn memory(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or_default().saturating_mul(1024)
}

fn kernel_config(release: &str) -> Option<String> {
    let file = std::fs::read_to_string(format!("/boot/config-{release}")).ok();
    file.or_else(|| {
        let packed = std::fs::File::open("/proc/config.gz").ok()?;
        let mut config = String::new();
        flate2::read::GzDecoder::new(packed).take(MAX_CONFIG).read_to_string(&mut config).ok()?;
        Some(config)
    })
}

/// PURE: the names of modules in a list of files: `kernel/net/netfilter/nf_nat.ko.xz: …`.
pub(super) fn module_names(list: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let path = line.split(':').next()?;
        let file = path.rsplit('/').next()?;
        let name = file.split(".ko").next()?.replace('-', "_");
        (!name.is_empty()).then_some(name)
    };
    list.lines().filter_map(name).collect()
}

/// Modules in use: loaded ones and those that are part of the kernel and have parameters.
fn modules() -> BTreeSet<String> {
    let release = text("/proc/sys/kernel/osrelease");
    let mut all = module_names(&text(format!("/lib/modules/{release}/modules.builtin")));
    let entries = std::fs::read_dir("/sys/module").into_iter().flatten().flatten();
    all.extend(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    all
}

fn controllers(is_unified: bool) -> BTreeSet<String> {
    if is_unified {
        return text("/sys/fs/cgroup/cgroup.controllers")
            .split_whitespace()
            .map(str::to_owned)
            .collect();
    }
    // subsystem, hierarchy, cgroups, enabled
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(3) == Some(&"1"))
            .then(|| fields.first().map(|name| (*name).to_owned()))
            .flatten()
    };
    text("/proc/cgroups").lines().filter_map(row).collect()
}

fn taken(settings: Option<&Settings>) -> Vec<(u16, &'static str)> {
    let is_taken = |port: &Port| {
        port.probe().is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
    };
    ports(settings).into_iter().filter(is_taken).map(|port| (port.number, port.user)).collect()
}

async fn runtime_facts(
    endpoint: &str,
    folders: &Folders,
) -> std::result::Result<RuntimeFacts, String> {
    let runtime = runtime::connect(endpoint, folders, RUNTIME).await;
    let runtime = runtime.map_err(|error| error.to_string())?;
    let ask = async {
        let version = runtime.version().await?;
        let status = runtime.status(false).await?;
        let driver = preflight::cgroup_driver(&runtime).await?;
        Ok::<_, longshore_cri::Error>((version, status, driver))
    };
    let (version, status, driver) = ask.await.map_err(|error| error.to_string())?;
    let conditions = status.status.map(|status| status.conditions).unwrap_or_default();
    let unready = conditions.into_iter().find(|one| one.r#type == "RuntimeReady" && !one.status);
    Ok(RuntimeFacts {
        name: version.runtime_name,
        version: version.runtime_version,
        api: version.runtime_api_version,
        driver,
        unready: unready.map(|one| format!("{} {}", one.reason, one.message)),
    })
}

fn cni_files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| {
            let kind = entry.path().extension().map(|kind| kind.to_string_lossy().into_owned());
            matches!(kind.as_deref(), Some("conf" | "conflist" | "json"))
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The kernel says whether something keeps its clock.
fn is_clock_synchronized() -> Option<bool> {
    // chronyd and systemd-timesyncd, where there is no interface to the kernel's word.
    if Path::new("/run/systemd/timesync/synchronized").exists() {
        return Some(true);
    }
    let tracking = output("chronyc", &["-n", "tracking"]);
    if let Some(text) = tracking {
        return Some(
            text.lines().any(|line| line.starts_with("Leap status") && line.contains("Normal")),
        );
    }
    let shown = output("timedatectl", &["show", "--property=NTPSynchronized", "--value"])?;
    match shown.trim() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

fn space(path: &Path) -> Option<Space> {
    let found = FileSystem::of_nearest(path).ok()?;
    Some(Space {
        bytes: found.capacity,
        free_bytes: found.available,
        inodes: found.inodes,
        free_inodes: found.inodes_free,
    })
}

fn all_certificates(paths: &Paths) -> Vec<CertificateFacts> {
    let in_folder = |folder: PathBuf| {
        let entries =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|kind| kind == "crt")).collect();
        files.sort();
        files
    };
    let mut files = in_folder(paths.pki());
    let node = ["kubelet-client-current.pem", "kubelet-server-current.pem"];
    files.extend(
        node.iter().map(|name| paths.kubelet_pki().join(name)).filter(|path| path.exists()),
    );
    files.into_iter().map(|path| CertificateFacts { end: end_of(&path), path }).collect()
}

fn end_of(path: &Path) -> std::result::Result<i64, String> {
    let all = certificates(path).map_err(|error| error.reason)?;
    let ends = all.iter().filter_map(|der| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(certificate.validity().not_after.timestamp())
    });
    ends.min().ok_or_else(|| "it is not an X.509 certificate".to_owned())
}

async fn apiserver(kubeconfig: &Path) -> std::result::Result<ApiserverFacts, String> {
    let ask = async {
        let client = start::client(kubeconfig).await.map_err(|error| error.to_string())?;
        let request =
            hyper::Request::get("/version").body(Vec::new()).map_err(|error| error.to_string())?;
        let response = client.send(request.map(kube::client::Body::from)).await;
        let response = response.map_err(|error| error.to_string())?;
        let date = response.headers().get("date").and_then(|value| value.to_str().ok());
        let date = date.and_then(|text| jiff::fmt::rfc2822::parse(text).ok());
        let offset = date
            .map(|date| date.timestamp().as_second().saturating_sub(Timestamp::now().as_second()));
        let status = response.status();
        let body = http_body_util::BodyExt::collect(http_body_util::Limited::new(
            response.into_body(),
            1 << 16,
        ));
        let body = body.await.map_err(|error| error.to_string())?.to_bytes();
        let version: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        match version["gitVersion"].as_str() {
            Some(version) => Ok(ApiserverFacts { version: version.to_owned(), offset }),
            None => Err(format!("it answers with status {status}")),
        }
    };
    match tokio::time::timeout(APISERVER, ask).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("no answer in {APISERVER:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_reads_the_lists_of_modules() {
        let list =
            "kernel/net/netfilter/nf-nat.ko.xz: kernel/a.ko\nkernel/fs/overlayfs/overlay.ko\n\n";
        assert_eq!(module_names(list).into_iter().collect::<Vec<_>>(), ["nf_nat", "overlay"]);
        assert_eq!(memory("MemFree: 1 kB\nMemTotal:  2048 kB\n"), 2 << 20);
        assert_eq!(memory("MemTotal: x"), 0);
    }

    #[test]
    fn check_facts_are_gathered_without_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = format!("unix://{}/no.sock", dir.path().display());
        let args = CheckArgs { container_runtime_endpoint: Some(endpoint), ..CheckArgs::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let facts = runtime.block_on(Facts::gather(&Paths::new(dir.path()), &args));
        assert!(!facts.kernel.is_empty() && facts.memory > 0 && facts.max_files.is_some());
        assert!(facts.runtime.unwrap().is_err());
        assert_eq!((facts.apiserver, facts.certificates.len()), (None, 0));
    }
}
