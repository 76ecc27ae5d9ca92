//! What is on the machine that may be the cluster's or the kubelet's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::down::POD_UID;
use crate::runtime::Folders;
use crate::settings::{RUNTIMES, Settings};
use crate::setup::{run, yaml};
use crate::{Paths, Result, network, runtime, units};

const RUNTIME: Duration = Duration::from_secs(10);
/// A tree of cgroups is read to this depth.
const DEPTH: usize = 64;
/// The drop-in of logind that a kubelet with graceful shutdown writes.
pub(crate) const LOGIND: &str = "/etc/systemd/logind.conf.d/99-kubelet.conf";
/// Links to the logs of containers.
const CONTAINER_LOGS: &str = "/var/log/containers";

/// A pod's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    /// The sandbox.
    pub(crate) id: String,
    /// Namespace and name.
    pub(crate) name: String,
}

/// Everything that was found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Services that run.
    pub(crate) services: Vec<String>,
    /// The runtime's endpoint.
    pub(crate) runtime: String,
    /// What it has beside it, if it is a Docker Engine.
    pub(crate) folders: Folders,
    /// Pods in the runtime.
    pub(crate) pods: Vec<Pod>,
    /// Why the runtime does not say, if it does not.
    pub(crate) pods_unknown: Option<String>,
    /// Mount points under the node's directory, in the order of mounting.
    pub(crate) mounts: Vec<PathBuf>,
    /// The cgroups of pods that there are.
    pub(crate) cgroups: Vec<PathBuf>,
    /// What iptables-save and ip6tables-save say, each with the program that reads it.
    pub(crate) rules: Vec<(&'static str, String)>,
    /// What `nft list tables` says.
    pub(crate) tables: String,
    /// What `ip route show` says of our routes.
    pub(crate) routes: String,
    /// Whether our bridge is there.
    pub(crate) has_bridge: bool,
    /// Files of the kubelet and of this project that are there.
    pub(crate) files: Vec<PathBuf>,
    /// The directory of this project's state, if it is there.
    pub(crate) state: Option<PathBuf>,
}

impl Facts {
    pub(crate) async fn gather(paths: &Paths, endpoint: Option<&str>) -> Result<Self> {
        // A file that cannot be read is to be removed too.
        let settings = Settings::load(paths).ok().flatten();
        let runtime = match (endpoint, &settings) {
            (Some(given), _) => given.to_owned(),
            (None, Some(settings)) => settings.runtime.clone(),
            (None, None) => {
                let known =
                    RUNTIMES.iter().find(|socket| paths.is_machine() && Path::new(socket).exists());
                known.map(|socket| format!("unix://{socket}")).unwrap_or_default()
            }
        };
        let folders = Folders::of(paths, settings.as_ref());
        let found = match runtime.is_empty() {
            true => Ok(Vec::new()),
            false => pods(&runtime, &folders).await,
        };
        let (pods, pods_unknown) = match found {
            Ok(pods) => (pods, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let owned = settings.is_some() || paths.is_machine();
        let saved = |program: &str| run(Command::new(program)).unwrap_or_default();
        let (mut rules, mut tables, mut routes) = (Vec::new(), String::new(), String::new());
        // The network is the machine's: another root has none of it before it has a cluster.
        if owned {
            rules = vec![
                ("iptables-restore", saved("iptables-save")),
                ("ip6tables-restore", saved("ip6tables-save")),
            ];
            let mut nft = Command::new("nft");
            nft.args(["list", "tables"]);
            tables = run(nft).unwrap_or_default();
            routes = network::ip(&format!("-4 route show proto {}", network::PROTOCOL))
                .unwrap_or_default();
        }
        let cni = settings.as_ref().map_or_else(|| paths.cni(), |settings| settings.cni.clone());
        Ok(Self {
            services: services(paths),
            runtime,
            folders,
            pods,
            pods_unknown,
            mounts: mounts(&mountinfo(), &paths.kubelet_root()),
            cgroups: cgroups(&cgroup_root(paths), owned),
            rules,
            tables,
            routes,
            // What /sys shows are the links of the namespace that has mounted it.
            has_bridge: owned && network::ip(&format!("link show {}", network::BRIDGE)).is_ok(),
            files: files(paths, &cni, settings.as_ref()),
            state: Some(paths.state()).filter(|state| state.exists()),
        })
    }
}

fn services(paths: &Paths) -> Vec<String> {
    let mut running = Vec::new();
    if crate::lock::is_held(paths) {
        running.push("longshore up or join --foreground".to_owned());
    }
    if paths.is_machine() {
        running.extend(units::running().into_iter().map(str::to_owned));
    }
    running
}

async fn pods(endpoint: &str, folders: &Folders) -> std::result::Result<Vec<Pod>, String> {
    let client = runtime::connect(endpoint, folders, RUNTIME).await;
    let client = client.map_err(|error| error.to_string())?;
    let found = client.list_pod_sandboxes(None).await.map_err(|error| error.to_string())?;
    let of_node = found.into_iter().filter(|sandbox| sandbox.labels.contains_key(POD_UID));
    let pod = |sandbox: longshore_cri::v1::PodSandbox| {
        let metadata = sandbox.metadata.unwrap_or_default();
        Pod { id: sandbox.id, name: format!("{}/{}", metadata.namespace, metadata.name) }
    };
    Ok(of_node.map(pod).collect())
}

fn mountinfo() -> String {
    String::from_utf8_lossy(&std::fs::read("/proc/self/mountinfo").unwrap_or_default()).into_owned()
}

/// A line of mountinfo.
struct Mount<'a> {
    device: &'a str,
    /// The directory of that file system which is mounted.
    root: PathBuf,
    point: PathBuf,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(' ').skip(2);
        let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self { device, root: unescaped(root), point: unescaped(point) })
    }

    /// Whether this mounts a directory of `outer` on itself.
    fn is_copy_in(&self, outer: &Mount<'_>) -> bool {
        let inside = self.point.strip_prefix(&outer.point);
        self.device == outer.device
            && inside.is_ok_and(|inside| self.root == outer.root.join(inside))
    }
}

/// PURE: mount points under `root`, in the order of mounting; `root` itself only where it is mounted on
/// itself, as a node does to share it. Anything else there is its administrator's.
pub(super) fn mounts(mountinfo: &str, root: &Path) -> Vec<PathBuf> {
    let all: Vec<Mount<'_>> = mountinfo.lines().filter_map(Mount::parse).collect();
    let outer = all
        .iter()
        .filter(|mount| root.starts_with(&mount.point) && root != mount.point)
        .max_by_key(|mount| mount.point.components().count());
    let is_nodes = |mount: &&Mount<'_>| {
        mount.point.starts_with(root)
            && (mount.point != root || outer.is_some_and(|outer| mount.is_copy_in(outer)))
    };
    all.iter().filter(is_nodes).map(|mount| mount.point.clone()).collect()
}

/// The kernel writes blanks and backslashes in octal.
fn unescaped(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code = (*byte == b'\\')
            .then(|| text.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(code.unwrap_or(*byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    std::ffi::OsString::from_vec(out).into()
}

/// `cgroupRoot` of the node's configuration, as a relative path.
fn cgroup_root(paths: &Paths) -> PathBuf {
    let text = std::fs::read_to_string(paths.kubelet_config()).unwrap_or_default();
    let root = yaml(&text).ok().and_then(|config| Some(config["cgroupRoot"].as_str()?.to_owned()));
    let root = PathBuf::from(root.unwrap_or_default().trim_start_matches('/'));
    let is_inside = root.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if is_inside { root } else { PathBuf::new() }
}

/// Of another root without a configuration there are none: those of `/` are the machine's.
fn cgroups(root: &Path, owned: bool) -> Vec<PathBuf> {
    if !owned {
        return Vec::new();
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let hierarchies = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        matches!(kind, "cgroup" | "cgroup2").then(|| unescaped(path))
    });
    let groups = hierarchies
        .flat_map(|mount| ["kubepods", "kubepods.slice"].map(|name| mount.join(root).join(name)));
    groups.filter(|group| group.is_dir()).collect()
}

/// A cgroup and all below it, parents first.
pub(super) fn tree(group: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut level = vec![group.to_owned()];
    for _ in 0..DEPTH {
        let below = level.iter().flat_map(|dir| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path())
        });
        let below: Vec<_> = below.collect();
        found.append(&mut level);
        if below.is_empty() {
            break;
        }
        level = below;
    }
    found
}

fn files(paths: &Paths, cni: &Path, settings: Option<&Settings>) -> Vec<PathBuf> {
    let mut all = vec![paths.kubelet(), paths.bootstrap(), paths.kubelet_root(), paths.pod_logs()];
    all.extend([
        cni.join(network::CNI_FILE),
        paths.cni_addresses().join(network::NETWORK),
        paths.logs(),
    ]);
    if paths.is_machine() {
        all.push(LOGIND.into());
        all.extend(log_links(Path::new(CONTAINER_LOGS), &paths.pod_logs()));
    }
    if let Some(settings) = settings {
        // The CA of a cluster that the machine did not make or join is not ours.
        all.extend(certificates(&paths.pki()));
        if settings.server().is_some() {
            all.extend([paths.admin(), paths.controllers(), paths.dns()]);
        }
    }
    all.retain(|path| path.symlink_metadata().is_ok() && !is_empty_mount(path));
    all
}

/// What is left when a directory is removed on which an administrator has mounted something.
fn is_empty_mount(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| path.symlink_metadata().map(|found| found.dev()).ok();
    let is_empty = || std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    path.is_dir() && path.parent().and_then(device) != device(path) && is_empty()
}

/// The directory of certificates, or, if others have put something into it, what is ours in it.
fn certificates(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let (ours, others): (Vec<_>, Vec<_>) =
        entries.map(|entry| entry.path()).partition(|path| is_certificate(path));
    if others.is_empty() { vec![dir.to_owned()] } else { ours }
}

/// Whether the apiserver makes a file of that name, or `up` and `join` do.
fn is_certificate(path: &Path) -> bool {
    const STEMS: [&str; 7] = [
        "ca",
        "kubelet-serving-ca",
        "front-proxy-ca",
        "front-proxy-client",
        "apiserver",
        "apiserver-kubelet-client",
        "sa",
    ];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, kind) = name.rsplit_once('.').unwrap_or_default();
    let is_pair = matches!(kind, "crt" | "key" | "pub" | "tmp");
    matches!(&*name, "admin.conf" | ".lock")
        || is_pair && (STEMS.contains(&stem) || stem.starts_with("client-"))
}

/// The links in a folder that lead into the logs of pods.
fn log_links(folder: &Path, logs: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .filter(|link| std::fs::read_link(link).is_ok_and(|target| target.starts_with(logs)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_finds_mounts_of_the_node_alone() {
        let text = "1 0 8:1 / / rw - ext4 a rw\n\
                    2 1 8:1 / /var/lib/kubelet rw - ext4 a rw\n\
                    3 2 0:1 / /var/lib/kubelet/pods/u/volumes/kubernetes.io~projected/a\\040b\\134c rw - tmpfs t rw\n\
                    4 1 0:1 / /var/lib/kubelet2/x rw - tmpfs t rw\n\
                    5 1 0:1 / /mnt/\\9\\ rw - tmpfs t rw\nbroken\n";
        let found = mounts(text, Path::new("/var/lib/kubelet"));
        assert_eq!(
            found,
            [PathBuf::from("/var/lib/kubelet/pods/u/volumes/kubernetes.io~projected/a b\\c")]
        );
        // The node's directory, mounted on itself on a file system of its own for /var.
        for (mounted, expected) in [
            ("8:2 /lib/kubelet", true),
            ("8:2 /lib/other", false),
            ("8:3 /lib/kubelet", false),
            ("0:9 /", false),
        ] {
            let text = format!(
                "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /var rw - ext4 b rw\n\
                 3 2 {mounted} /var/lib/kubelet rw - ext4 b rw\n"
            );
            let found = mounts(&text, Path::new("/var/lib/kubelet"));
            assert_eq!(!found.is_empty(), expected, "{mounted}");
        }
    }

    #[test]
    fn reset_reads_the_cgroup_root_of_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        assert_eq!(cgroup_root(&paths), PathBuf::new());
        std::fs::create_dir_all(paths.kubelet_root()).unwrap();
        for (text, expected) in [
            ("cgroupRoot: /a/b", "a/b"),
            ("cgroupRoot: a", "a"),
            ("cgroupRoot: /../../etc", ""),
            ("cgroupRoot: 7", ""),
            ("x: [", ""),
        ] {
            std::fs::write(paths.kubelet_config(), text).unwrap();
            assert_eq!(cgroup_root(&paths), PathBuf::from(expected), "{text}");
        }
    }

    #[test]
    fn reset_leaves_the_certificates_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in [".lock", "ca.crt", "sa.pub", "admin.conf", "client-system_node_n1.key"] {
            std::fs::write(at(name), "").unwrap();
        }
        assert_eq!(certificates(dir.path()), [dir.path()]);
        for name in ["etcd-ca.crt", "ca.srl", "apiserver-etcd-client.key"] {
            std::fs::write(at(name), "").unwrap();
        }
        std::fs::create_dir(at("etcd")).unwrap();
        let mut found = certificates(dir.path());
        found.sort();
        let ours = [".lock", "admin.conf", "ca.crt", "client-system_node_n1.key", "sa.pub"];
        assert_eq!(found, ours.map(at));
        assert!(certificates(&at("nothing")) == [at("nothing")]);
    }

    #[test]
    fn reset_knows_the_links_of_logs() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/var/log/pods/a/0.log", dir.path().join("ours")).unwrap();
        std::os::unix::fs::symlink("/somewhere", dir.path().join("other")).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(log_links(dir.path(), Path::new("/var/log/pods")), [dir.path().join("ours")]);
        assert!(log_links(&dir.path().join("nothing"), Path::new("/")).is_empty());
    }

    #[test]
    fn reset_of_a_root_without_a_cluster_has_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let facts = runtime.block_on(Facts::gather(&paths, None)).unwrap();
        assert!(super::super::plan::plan(&facts).steps.is_empty());
    }

    #[test]
    fn reset_trees_are_parents_first() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/file"), "").unwrap();
        let found = tree(&dir.path().join("a"));
        assert_eq!(found, [dir.path().join("a"), dir.path().join("a/b")]);
    }
}
