//! The cgroups of pods: `kubepods`, a level for each quality of service but the best, one cgroup a
//! pod. Written through the file system, on cgroup v1 (each controller has a tree) and v2.
//!
//! Current limitations: with the systemd driver the runtime makes the slices, and their own limits
//! are not set; node allocatable is not enforced.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::qos::{self, QosClass};
use longshore_pod::spec;

use crate::runtime::resources;

const MOUNT: &str = "/sys/fs/cgroup";
/// `f_type` of cgroup v2.
const CGROUP2_MAGIC: i64 = 0x6367_7270;
/// Controllers that are handed down on cgroup v2.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

/// A cgroup could not be made, set or removed.
#[derive(Debug, thiserror::Error)]
#[error("cgroup {path}: {source}")]
pub struct Error {
    /// The file or directory.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// Who makes cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The daemon and the runtime, as directories.
    Cgroupfs,
    /// systemd, as slices and scopes.
    Systemd,
}

/// The cgroups of this node's pods.
#[derive(Clone, Debug)]
pub struct Cgroups {
    driver: Driver,
    /// Below which cgroup `kubepods` stands, such as `/`.
    root: PathBuf,
    /// One tree a controller (v1), or the one tree there is (v2).
    trees: Vec<PathBuf>,
    unified: bool,
    /// Off: pods run below `root` itself.
    per_qos: bool,
    cfs_quota_period: Option<std::time::Duration>,
}

impl Cgroups {
    /// Find the machine's hierarchies, and make the tree that pods stand in.
    pub fn setup(
        driver: Driver,
        root: &Path,
        per_qos: bool,
        cfs_quota_period: Option<std::time::Duration>,
    ) -> Result<Self, Error> {
        let unified = is_unified();
        let trees = match unified {
            true => vec![PathBuf::from(MOUNT)],
            false => v1_trees()?,
        };
        let cgroups =
            Self { driver, root: root.to_owned(), trees, unified, per_qos, cfs_quota_period };
        if per_qos && driver == Driver::Cgroupfs {
            for parent in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
                cgroups.make(&cgroups.qos_path(parent))?;
            }
            // What asks for nothing gets what is left over.
            cgroups.set_shares(&cgroups.qos_path(QosClass::BestEffort), 2)?;
        }
        Ok(cgroups)
    }

    /// Whether the machine has cgroup v2 alone.
    pub fn is_unified(&self) -> bool {
        self.unified
    }

    /// The parent that the runtime is told for a pod's cgroups.
    pub fn parent_of(&self, pod: &Pod) -> String {
        if !self.per_qos {
            return self.root.display().to_string();
        }
        let uid = spec::uid(pod);
        match self.driver {
            Driver::Cgroupfs => self.path_of(qos::class(pod), uid).display().to_string(),
            Driver::Systemd => {
                let uid = uid.replace('-', "_");
                let above = match qos::class(pod) {
                    QosClass::Guaranteed => String::new(),
                    class => format!("/kubepods-{0}.slice", level(class)),
                };
                let stem = match qos::class(pod) {
                    QosClass::Guaranteed => "kubepods".to_owned(),
                    class => format!("kubepods-{}", level(class)),
                };
                format!("/kubepods.slice{above}/{stem}-pod{uid}.slice")
            }
        }
    }

    /// Make the pod's cgroup and set its limits. One that is there already is set again.
    pub fn create(&self, pod: &Pod) -> Result<(), Error> {
        let (true, Driver::Cgroupfs, Some(pod_spec)) = (self.per_qos, self.driver, &pod.spec)
        else {
            return Ok(());
        };
        let class = qos::class(pod);
        let path = self.path_of(class, spec::uid(pod));
        self.make(&path)?;
        if class == QosClass::BestEffort {
            return self.set_shares(&path, 2);
        }
        let amounts = resources::pod_amounts(pod_spec);
        self.set_shares(
            &path,
            resources::shares(amounts.cpu_request.unwrap_or(amounts.cpu_limit)),
        )?;
        if amounts.memory_limit > 0 {
            self.write(
                &path,
                ["memory.limit_in_bytes", "memory.max"],
                &amounts.memory_limit.to_string(),
            )?;
        }
        if let Some(period) = self.cfs_quota_period.filter(|_| amounts.cpu_limit > 0) {
            let period = i64::try_from(period.as_micros()).unwrap_or(100_000);
            let quota = resources::quota(amounts.cpu_limit, period);
            match self.unified {
                true => self.write(&path, ["", "cpu.max"], &format!("{quota} {period}"))?,
                false => {
                    self.write(&path, ["cpu.cfs_period_us", ""], &period.to_string())?;
                    self.write(&path, ["cpu.cfs_quota_us", ""], &quota.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Remove the pod's cgroup, which must be empty of processes.
    pub fn remove(&self, pod: &Pod) -> Result<(), Error> {
        if !self.per_qos || self.driver != Driver::Cgroupfs {
            return Ok(());
        }
        // The class is fixed while the pod lives, but an orphan's spec is not known.
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            for tree in &self.trees {
                remove_tree(&join(tree, &self.path_of(class, spec::uid(pod))))?;
            }
        }
        Ok(())
    }

    fn qos_path(&self, class: QosClass) -> PathBuf {
        let kubepods = self.root.join("kubepods");
        match class {
            QosClass::Guaranteed => kubepods,
            class => kubepods.join(level(class)),
        }
    }

    fn path_of(&self, class: QosClass, uid: &str) -> PathBuf {
        self.qos_path(class).join(format!("pod{uid}"))
    }

    fn make(&self, path: &Path) -> Result<(), Error> {
        for tree in &self.trees {
            let mut dir = tree.clone();
            for part in
                path.components().filter(|part| matches!(part, std::path::Component::Normal(_)))
            {
                if self.unified {
                    hand_down(&dir);
                }
                let parent = dir.clone();
                dir.push(part);
                match std::fs::create_dir(&dir) {
                    Ok(()) => inherit_cpuset(&parent, &dir),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(source) => return Err(Error { path: dir, source }),
                }
            }
            if self.unified {
                hand_down(&dir);
            }
        }
        Ok(())
    }

    fn set_shares(&self, path: &Path, shares: i64) -> Result<(), Error> {
        // The two scales, [2, 262144] and [1, 10000], as runtimes convert them.
        let weight = 1 + (shares - 2) * 9999 / 262_142;
        match self.unified {
            true => self.write(path, ["", "cpu.weight"], &weight.to_string()),
            false => self.write(path, ["cpu.shares", ""], &shares.to_string()),
        }
    }

    /// Write a value to the file of v1 or v2, in whichever tree has it.
    fn write(&self, path: &Path, [v1, v2]: [&str; 2], value: &str) -> Result<(), Error> {
        let name = if self.unified { v2 } else { v1 };
        for tree in &self.trees {
            let file = join(tree, path).join(name);
            if file.exists() {
                return std::fs::write(&file, value).map_err(|source| Error { path: file, source });
            }
        }
        Ok(())
    }
}

fn level(class: QosClass) -> &'static str {
    match class {
        QosClass::Guaranteed => "",
        QosClass::Burstable => "burstable",
        QosClass::BestEffort => "besteffort",
    }
}

fn join(tree: &Path, path: &Path) -> PathBuf {
    tree.join(path.strip_prefix("/").unwrap_or(path))
}

fn is_unified() -> bool {
    nix::sys::statfs::statfs(MOUNT).is_ok_and(|stat| stat.filesystem_type().0 == CGROUP2_MAGIC)
}

/// The hierarchies that are mounted on a machine with cgroup v1, each once (`cpu,cpuacct` has several names).
fn v1_trees() -> Result<Vec<PathBuf>, Error> {
    let at = |source| Error { path: PathBuf::from(MOUNT), source };
    let mut trees: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(MOUNT).map_err(at)? {
        let entry = entry.map_err(at)?;
        let is_dir = entry.file_type().map_err(at)?.is_dir();
        // Beside them there may be a v2 tree without controllers, in which runtimes work too.
        if is_dir && entry.path().join("cgroup.procs").exists() {
            trees.push(entry.path());
        }
    }
    trees.sort();
    Ok(trees)
}

/// Let children of a v2 cgroup use the controllers that it has. A controller that cannot be handed
/// down is missed by the limit that needs it, which then says so.
fn hand_down(dir: &Path) {
    let available = std::fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    for controller in available.split_whitespace().filter(|name| CONTROLLERS.contains(name)) {
        let _ = std::fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// A new v1 cpuset is empty, and nothing can run in it until it has its parent's CPUs and memory.
fn inherit_cpuset(parent: &Path, dir: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = std::fs::read_to_string(parent.join(file)) {
            let _ = std::fs::write(dir.join(file), value);
        }
    }
}

/// Remove a cgroup and all below it, from the leaves up.
fn remove_tree(dir: &Path) -> Result<(), Error> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(Error { path: dir.to_owned(), source }),
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    match std::fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|source| Error { path: dir.to_owned(), source }),
    }
}
