//! Disk usage of pods and of directory trees.

use std::collections::{BTreeMap, HashSet};
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{self as spec_v1, Pod};
use k8s_openapi::jiff::Timestamp;
use longshore_base::trees::OpenDir;
use longshore_machine::FileSystem;
use longshore_machine::projects::{self, Counted};
use longshore_pod::spec;
use longshore_pod::usage::Space;
use rustix::fs::{AtFlags, Dir, FileType, Stat, statat, statvfs};

/// Maximum depth of directories that are kept open.
const DEEPEST: usize = 64;
/// Maximum number of hard-linked files that are counted once.
const MOST_LINKED: usize = 1 << 18;
/// Block size of `st_blocks`.
const BLOCK: u64 = 512;

/// Disk usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDisk {
    /// When it was read.
    pub at: Timestamp,
    /// Its ephemeral volumes, by name.
    pub volumes: BTreeMap<String, VolumeUse>,
    /// Logs by container.
    pub logs: BTreeMap<String, Space>,
    /// Other files of the node for it.
    pub own: Space,
}

/// Disk usage of a volume, and its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeUse {
    /// The usage of the volume.
    pub used: Space,
    /// Its file system: the node's, or a tmpfs.
    pub file_system: FileSystem,
}

#[derive(Clone, Debug)]
struct Volume {
    name: String,
    path: PathBuf,
    in_memory: bool,
}

impl Volume {
    /// Reads its usage, unless known.
    fn read(&self, known: Option<Space>) -> io::Result<VolumeUse> {
        let used = match known {
            _ if self.in_memory => mounted(&self.path)?,
            Some(known) => known,
            None => counted(&self.path)?,
        };
        Ok(VolumeUse { used, file_system: FileSystem::of(&self.path)? })
    }
}

/// What a volume uses: what its file system counts for it, or else what a walk finds.
fn counted(path: &Path) -> io::Result<Space> {
    match projects::counted(path) {
        Ok(Some(Counted { bytes, inodes })) => Ok(Space { bytes, inodes }),
        Ok(None) | Err(_) => tree(path),
    }
}

/// The paths of a pod's files.
#[derive(Clone, Debug)]
pub(super) struct PodPaths {
    volumes: Vec<Volume>,
    logs: PathBuf,
    /// The pod's `/etc/hosts`, which containers may write to.
    etc_hosts: PathBuf,
    /// The termination message files of containers.
    termination_logs: PathBuf,
}

impl PodPaths {
    pub(super) fn of(pod: &Pod, root_dir: &Path, pod_logs_dir: &Path) -> Self {
        let dir = root_dir.join("pods").join(spec::uid(pod));
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
        let volumes = volumes.unwrap_or_default().iter().filter_map(|volume| {
            let path = dir.join("volumes").join(plugin(volume)?).join(&volume.name);
            let medium = volume.empty_dir.as_ref().and_then(|source| source.medium.as_deref());
            let in_memory = medium == Some("Memory");
            Some(Volume { name: volume.name.clone(), path, in_memory })
        });
        let (namespace, name, uid) = (spec::namespace(pod), spec::name(pod), spec::uid(pod));
        Self {
            volumes: volumes.collect(),
            logs: pod_logs_dir.join(format!("{namespace}_{name}_{uid}")),
            etc_hosts: dir.join("etc-hosts"),
            termination_logs: dir.join("containers"),
        }
    }

    /// The previous usage with updated file system stats.
    pub(super) fn refreshed(&self, before: &PodDisk) -> PodDisk {
        let volumes = self.volumes(|name| before.volumes.get(name).map(|volume| volume.used));
        PodDisk { at: Timestamp::now(), volumes, ..before.clone() }
    }

    fn volumes(&self, known: impl Fn(&str) -> Option<Space>) -> BTreeMap<String, VolumeUse> {
        let read = |volume: &Volume| {
            let used = volume.read(known(&volume.name)).ok()?;
            Some((volume.name.clone(), used))
        };
        self.volumes.iter().filter_map(read).collect()
    }

    /// Reads the disk usage; missing files count nothing.
    pub(super) fn read(&self) -> PodDisk {
        let at = Timestamp::now();
        let (logs, mut own) = self.read_logs();
        for own_path in [&self.etc_hosts, &self.termination_logs] {
            own += tree(own_path).unwrap_or_default();
        }
        PodDisk { at, volumes: self.volumes(|_| None), logs, own }
    }

    /// The logs by container, and other files beside them.
    pub(super) fn read_logs(&self) -> (BTreeMap<String, Space>, Space) {
        let (mut logs, mut other) = (BTreeMap::new(), Space::default());
        for entry in std::fs::read_dir(&self.logs).into_iter().flatten().flatten() {
            let space = tree(&entry.path()).unwrap_or_default();
            match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true => {
                    let container = entry.file_name().to_string_lossy().into_owned();
                    logs.insert(container, space);
                }
                false => other += space,
            }
        }
        (logs, other)
    }
}

/// The plugin directory of an ephemeral volume.
fn plugin(volume: &spec_v1::Volume) -> Option<&'static str> {
    let kinds = [
        (volume.empty_dir.is_some(), "kubernetes.io~empty-dir"),
        (volume.config_map.is_some(), "kubernetes.io~configmap"),
        (volume.secret.is_some(), "kubernetes.io~secret"),
        (volume.downward_api.is_some(), "kubernetes.io~downward-api"),
        (volume.projected.is_some(), "kubernetes.io~projected"),
    ];
    kinds.into_iter().find(|(is_it, _)| *is_it).map(|(_, plugin)| plugin)
}

/// The usage of a mounted file system.
fn mounted(path: &Path) -> io::Result<Space> {
    let ancestors = path.parent().unwrap_or(path);
    if rustix::fs::stat(path)?.st_dev == rustix::fs::stat(ancestors)?.st_dev {
        return Ok(Space::default()); // not mounted
    }
    let all = statvfs(path)?;
    let blocks = all.f_blocks.saturating_sub(all.f_bfree);
    let inodes = all.f_files.saturating_sub(all.f_ffree);
    Ok(Space { bytes: blocks.saturating_mul(all.f_frsize), inodes })
}

/// Disk usage of a tree, on the file system of its root. It may change meanwhile; links are not
/// followed and removed files are skipped.
pub(super) fn tree(root: &Path) -> io::Result<Space> {
    let stat = rustix::fs::lstat(root)?;
    let mut walk = Walk { device: stat.st_dev, linked: HashSet::new(), total: Space::default() };
    walk.count(&stat);
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        walk.below(OpenDir::open(root)?);
    }
    Ok(walk.total)
}

struct Walk {
    device: u64,
    /// Hard-linked inodes that were counted.
    linked: HashSet<u64>,
    total: Space,
}

impl Walk {
    fn count(&mut self, stat: &Stat) {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let has_names = !is_directory && stat.st_nlink > 1;
        if has_names && self.linked.len() < MOST_LINKED && !self.linked.insert(stat.st_ino) {
            return;
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.total += Space { bytes: blocks.saturating_mul(BLOCK), inodes: 1 };
    }

    /// Counts a directory tree of any depth: beyond the limit of open directories, it returns by
    /// `..`; directories that were moved meanwhile are skipped.
    fn below(&mut self, root: OpenDir) {
        let mut here = root;
        let mut left = self.children(&here);
        let mut ancestors: Vec<Ancestor> = Vec::new();
        loop {
            if let Some(name) = left.pop() {
                let Ok(child) = here.child(&name) else { continue };
                let below = self.children(&child);
                if below.is_empty() {
                    continue;
                }
                let parent = std::mem::replace(&mut here, child);
                let left = std::mem::replace(&mut left, below);
                let id = parent.id();
                let open = (ancestors.len() < DEEPEST).then_some(parent);
                ancestors.push(Ancestor { id, open, left });
            } else {
                let back = loop {
                    let Some(Ancestor { id, open, left }) = ancestors.pop() else { return };
                    if let Ok(parent) = open.map_or_else(|| here.above(id), Ok) {
                        break (parent, left);
                    }
                };
                (here, left) = back;
            }
        }
    }

    /// Counts the entries of a directory; returns its subdirectories.
    fn children(&mut self, dir: &OpenDir) -> Vec<CString> {
        let mut below: Vec<CString> = Vec::new();
        let Ok(entries) = Dir::read_from(dir.fd()) else { return below };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(dir.fd(), name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if stat.st_dev != self.device {
                continue;
            }
            self.count(&stat);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                below.push(name.to_owned());
            }
        }
        below
    }
}

/// An ancestor of the current directory.
struct Ancestor {
    id: (u64, u64),
    /// Open, up to the limit.
    open: Option<OpenDir>,
    /// Its subdirectories that are yet to be counted.
    left: Vec<CString>,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use rustix::fs::{Mode, mkdirat};

    use super::*;

    #[test]
    fn disk_usage_matches_du() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b/c")).unwrap();
        fs::write(at("a/large"), vec![7; 1 << 20]).unwrap();
        fs::write(at("a/b/small"), "x").unwrap();
        fs::hard_link(at("a/large"), at("a/b/again")).unwrap();
        std::os::unix::fs::symlink("/proc", at("a/link")).unwrap();
        let sparse = fs::File::create(at("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        let du = |option: &str| {
            let out =
                Command::new("du").args(["-s", "-x", option]).arg(dir.path()).output().unwrap();
            let text = String::from_utf8(out.stdout).unwrap();
            text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let space = tree(dir.path()).unwrap();
        assert_eq!(space.bytes, du("--block-size=1"));
        assert_eq!(space.inodes, du("--inodes"));
        assert_eq!(space.inodes, 8);
        assert_eq!(tree(&at("a/b/small")).unwrap().inodes, 1, "a file is a tree");
        assert!(tree(&at("nothing")).is_err());
    }

    #[test]
    fn disk_usage_of_deep_trees() {
        const DEPTH: usize = 25_000;
        // in memory: so many directories take a disk minutes
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut here = OpenDir::open(dir.path()).unwrap();
        for depth in 0..DEPTH {
            let other = if depth % 5000 == 0 { &[c"a", c"z"][..] } else { &[] };
            for name in other.iter().chain(&[c"d"]) {
                mkdirat(here.fd(), *name, Mode::RWXU).unwrap();
            }
            here = here.child(&c"d".to_owned()).unwrap();
        }
        drop(here);
        let root = dir.path().to_owned();
        let work = move || tree(&root).unwrap().inodes;
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap();
        assert_eq!(thread.join().unwrap(), (DEPTH + 2 * DEPTH / 5000) as u64 + 1);
        longshore_base::trees::remove(&dir.path().join("d")).unwrap();
    }
}
