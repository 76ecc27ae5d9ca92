//! Finds and removes everything of a host on the machine, by its names only, so that it also cleans up
//! after an owner that was killed.
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::folders::{self, CNI_RESULTS, CONTAINER_LOGS, SHIM_SOCKETS};
use crate::slot::Names;
use crate::{cgroup, command, egress, net};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Kills and removes everything with the names of the host. Returns what could not be removed.
pub(crate) fn sweep(names: Names) -> Vec<String> {
    // Both are only known while the files and mounts of the host exist.
    let outside = files_outside(names);
    let namespaces = Namespaces::under(&names.dir());
    let deadline = Instant::now() + TIMEOUT;
    loop {
        thaw(names);
        cgroup::kill_all(&names.name());
        for pid in namespaces.processes() {
            let _ = kill(pid, Signal::SIGKILL);
        }
        egress::close(names);
        net::remove_link(names);
        for mount in mounts_under(&names.dir()).iter().rev() {
            let _ = umount2(mount, MntFlags::MNT_DETACH);
        }
        cgroup::remove(&names.name());
        for file in &outside {
            let _ = fs::remove_file(file);
        }
        // Never descend into a mount: it may be a volume of others.
        // Keep the note of what is still to be reverted.
        if mounts_under(&names.dir()).is_empty() && egress::left(names).is_empty() {
            let _ = fs::remove_dir_all(names.dir());
        }
        let left = find(names, &outside, &namespaces);
        if left.is_empty() || Instant::now() >= deadline {
            folders::remove(names);
            return left;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Cgroups, mounts and directories with the uid of a pod.
pub(crate) fn of_pod(names: Names, uid: &str) -> Vec<String> {
    // In cgroup names of systemd, dashes are underscores.
    let spellings = [uid.to_owned(), uid.replace('-', "_")];
    let bears = |path: &Path| {
        let name = path.to_string_lossy();
        spellings.iter().any(|spelling| name.contains(spelling))
    };
    let node = names.dir().join("node");
    let folders = [node.join("root/pods"), node.join("pod-logs")];
    let groups = cgroup::existing(&names.name()).into_iter().map(|path| ("cgroup", path));
    let mounts = mounts_under(&names.dir()).into_iter().map(|path| ("mount", path));
    let folders = folders.iter().flat_map(|dir| children(dir)).map(|path| ("file", path));
    let all = groups.chain(mounts).chain(folders).filter(|(_, path)| bears(path));
    all.map(|(kind, path)| format!("{kind} {}", path.display())).collect()
}

fn find(names: Names, outside: &[PathBuf], namespaces: &Namespaces) -> Vec<String> {
    let mut pids = cgroup::processes(&names.name());
    pids.extend(namespaces.processes());
    let processes = pids.into_iter().map(|pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        format!("process {pid} {}", line.replace('\0', " ").trim_end())
    });
    let path = |kind: &'static str| move |p: &PathBuf| format!("{kind} {}", p.display());
    let mounts = mounts_under(&names.dir());
    let files: Vec<PathBuf> = outside
        .iter()
        .cloned()
        .chain([names.dir()])
        .filter(|p| p.symlink_metadata().is_ok())
        .collect();
    let link = net::link_exists(names).then(|| format!("link {}", names.link()));
    let mut left: Vec<String> = processes
        .chain(mounts.iter().map(path("mount")))
        .chain(cgroup::existing(&names.name()).iter().map(path("cgroup")))
        .chain(files.iter().map(path("file")))
        .chain(link)
        .chain(egress::left(names))
        .collect();
    left.sort();
    left.dedup();
    left
}

/// A process in a frozen v1 cgroup cannot be killed.
fn thaw(names: Names) {
    for group in cgroup::existing(&names.name()) {
        for (file, word) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            let file = group.join(file);
            if file.exists() {
                let _ = fs::write(file, word);
            }
        }
    }
}

/// Mount points under `dir`, in the order of mounting.
fn mounts_under(dir: &Path) -> Vec<PathBuf> {
    mountinfo().into_iter().map(|(_, point)| point).filter(|point| point.starts_with(dir)).collect()
}

/// (root within its file system, mount point) of every mount.
fn mountinfo() -> Vec<(String, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        Some((fields.next()?.to_owned(), PathBuf::from(fields.next()?)))
    });
    fields.collect()
}

/// The network namespaces of host and pods. They are kept open, as the kernel reuses the inode number
/// of a removed one.
struct Namespaces {
    /// As `net:[inode]`.
    names: HashSet<String>,
    _held: Vec<File>,
}

impl Namespaces {
    /// Those that are mounted under `dir`.
    fn under(dir: &Path) -> Self {
        let mounted = mountinfo()
            .into_iter()
            .filter(|(root, point)| root.starts_with("net:[") && point.starts_with(dir));
        let held = mounted.filter_map(|(name, point)| Some((name, File::open(point).ok()?)));
        let (names, _held) = held.unzip();
        Self { names, _held }
    }

    fn processes(&self) -> Vec<Pid> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            // A zombie has no namespace.
            let netns = fs::read_link(entry.path().join("ns/net")).ok()?;
            self.names.contains(netns.to_str()?).then(|| Pid::from_raw(pid))
        });
        pids.collect()
    }
}

/// Files of the host outside of its directory: of containerd, libcni and the node.
fn files_outside(names: Names) -> Vec<PathBuf> {
    let dir = names.dir();
    let mark = dir.join("");
    let tasks = ["containerd/state", "docker/run/containerd/daemon"].map(|state| {
        let namespaces = dir.join(state).join("io.containerd.runtime.v2.task");
        children(&namespaces).into_iter().flat_map(|namespace| children(&namespace))
    });
    let bundles = tasks.into_iter().flatten();
    let sockets = bundles.filter_map(|bundle| shim_socket(&bundle));
    let results = children(Path::new(CNI_RESULTS)).into_iter().filter(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        mark.to_str().is_some_and(|mark| text.contains(mark))
    });
    let logs = children(Path::new(CONTAINER_LOGS))
        .into_iter()
        .filter(|file| fs::read_link(file).is_ok_and(|target| target.starts_with(&dir)));
    sockets.chain(results).chain(logs).collect()
}

/// A shim's socket is named by a hash; its bundle says which: containerd 2 in `bootstrap.json`,
/// those before in `address`.
fn shim_socket(bundle: &Path) -> Option<PathBuf> {
    let address = match fs::read(bundle.join("bootstrap.json")) {
        Ok(text) => {
            let bootstrap: serde_json::Value = serde_json::from_slice(&text).ok()?;
            bootstrap.get("address")?.as_str()?.to_owned()
        }
        Err(_) => fs::read_to_string(bundle.join("address")).ok()?,
    };
    let socket = PathBuf::from(address.trim().strip_prefix("unix://")?);
    socket.starts_with(SHIM_SOCKETS).then_some(socket)
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

/// What a faulty node might leave outside of the names of its host: pod cgroups elsewhere, links and
/// rules in the network of the machine, mounts at well-known paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeSet<String>);

impl Snapshot {
    pub(crate) fn take() -> Self {
        let path = |kind: &'static str| move |p: PathBuf| format!("{kind} {}", p.display());
        let groups = cgroup::hierarchies();
        let groups = groups.iter().flat_map(|root| cgroup::walk(root)).filter(|p| is_pod_group(p));
        let links = children(Path::new("/sys/class/net"));
        let links = links.into_iter().filter_map(|link| Some(link.file_name()?.to_owned()));
        let mounts = mountinfo().into_iter().map(|(_, point)| point).filter(|point| {
            let places =
                ["/run/netns", "/run/containerd", "/var/lib/kubelet", "/var/lib/containerd"];
            places.iter().any(|place| point.starts_with(place))
        });
        let all = groups
            .map(path("cgroup"))
            .chain(links.map(|link| format!("link {}", link.to_string_lossy())))
            .chain(mounts.map(path("mount")))
            .chain(rules())
            .filter(|line| !line.contains("longshore"));
        Self(all.collect())
    }

    /// What is new since then, except what has the name of a host.
    pub(crate) fn grown_since(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }
}

fn is_pod_group(group: &Path) -> bool {
    group.iter().filter_map(|part| part.to_str()).any(|part| {
        let is_id = part.len() == 64 && part.bytes().all(|b| b.is_ascii_hexdigit());
        is_id || part.starts_with("kubepods") || part == "k8s.io"
    })
}

/// The rules and chains of Kubernetes and CNI in the machine's own network.
fn rules() -> Vec<String> {
    ["iptables-save", "ip6tables-save"]
        .into_iter()
        .filter_map(|tool| command::run(Command::new(tool)).ok())
        .flat_map(|text| {
            let rules = text.lines().filter(|l| l.contains("KUBE-") || l.contains("CNI-"));
            // A chain's line ends in its counters.
            rules.map(|l| format!("rule {}", l.split(" [").next().unwrap_or(l))).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// The name of a namespace of its own; mounted at a file, if one is given.
    fn namespace(file: Option<PathBuf>) -> String {
        let make = move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let own = Path::new("/proc/thread-self/ns/net");
            if let Some(file) = file {
                mount(Some(own), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            }
            fs::read_link(own).unwrap().to_string_lossy().into_owned()
        };
        thread::spawn(make).join().unwrap()
    }

    #[test]
    fn leftovers_ignore_other_namespaces() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("netns");
        fs::write(&file, "").unwrap();
        let name = namespace(Some(file.clone()));
        let known = Namespaces::under(dir.path());
        assert!(known.names.contains(&name));
        umount2(&file, MntFlags::MNT_DETACH).unwrap();
        for _ in 0..20 {
            assert_ne!(namespace(None), name);
        }
        assert_eq!(known.processes(), []);
    }

    #[test]
    fn leftovers_find_pod_cgroups() {
        let id = "0123456789abcdef".repeat(4);
        let table = [
            ("/sys/fs/cgroup/memory/kubepods", true),
            ("/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice", true),
            ("/sys/fs/cgroup/pids/k8s.io", true),
            (&format!("/sys/fs/cgroup/default/{id}"), true),
            ("/sys/fs/cgroup/system.slice/cron.service", false),
            ("/sys/fs/cgroup/longshore-3/system", false),
        ];
        for (group, expected) in table {
            assert_eq!(is_pod_group(Path::new(group)), expected, "{group}");
        }
    }

    #[test]
    fn leftovers_report_only_growth() {
        let of = |lines: &[&str]| Snapshot(lines.iter().map(ToString::to_string).collect());
        let before = of(&["link eth0", "link veth1"]);
        let after = of(&["link eth0", "link cni0"]);
        assert_eq!(after.grown_since(&before), ["link cni0"]);
    }
}
