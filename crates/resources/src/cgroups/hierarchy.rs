//! Cgroup hierarchies of the machine, and their controllers.

use std::path::{Path, PathBuf};

use longshore_machine::cgroup::is_unified;

use super::Error;

/// The mount point.
const MOUNT: &str = "/sys/fs/cgroup";
/// Required controllers of v1.
const NEEDED: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];
/// Controllers that an existing cgroup must have.
const USED: [&str; 6] = ["cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids"];

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) root: PathBuf,
    /// Empty for one without controllers, such as systemd's own on v1.
    pub(super) controllers: Vec<String>,
}

/// The hierarchies of a machine: one per controller (v1), or a single one (v2).
#[derive(Clone, Debug)]
pub(super) struct Hierarchies {
    pub(super) unified: bool,
    pub(super) trees: Vec<Tree>,
}

impl Hierarchies {
    pub(super) fn of_machine() -> Result<Self, Error> {
        let read = |path: &Path| std::fs::read_to_string(path).map_err(Error::at(path));
        if is_unified() {
            let controllers = read(&Path::new(MOUNT).join("cgroup.controllers"))?;
            let controllers = controllers.split_whitespace().map(str::to_owned).collect();
            return Ok(Self {
                unified: true,
                trees: vec![Tree { root: PathBuf::from(MOUNT), controllers }],
            });
        }
        let found =
            Self { unified: false, trees: v1_trees(&read(Path::new("/proc/self/mounts"))?) };
        let missing: Vec<&str> =
            NEEDED.into_iter().filter(|name| found.tree(name).is_none()).collect();
        match missing.is_empty() {
            true => Ok(found),
            false => Err(Error::NotMounted(missing.join(", "))),
        }
    }

    /// The hierarchy of a controller; `None` if unavailable.
    pub(super) fn tree(&self, controller: &str) -> Option<&Tree> {
        self.trees.iter().find(|tree| tree.controllers.iter().any(|name| name == controller))
    }

    /// What an existing cgroup lacks: directories of v1, or controllers of v2.
    pub(super) fn missing(&self, path: &Path) -> Vec<String> {
        let mut missing = Vec::new();
        for tree in self.trees.iter().filter(|tree| {
            tree.controllers.iter().any(|controller| USED.contains(&controller.as_str()))
        }) {
            let dir = join(&tree.root, path);
            if !self.unified {
                missing.extend((!dir.is_dir()).then(|| dir.display().to_string()));
                continue;
            }
            let file = dir.join("cgroup.controllers");
            match std::fs::read_to_string(&file) {
                Err(_) => missing.push(dir.display().to_string()),
                Ok(text) => {
                    let has = |name: &str| text.split_whitespace().any(|other| other == name);
                    let used = tree.controllers.iter().filter(|name| USED.contains(&name.as_str()));
                    let lacks = used.filter(|name| !has(name));
                    missing.extend(lacks.map(|name| format!("{name} in {}", file.display())));
                }
            }
        }
        missing
    }
}

/// A cgroup in a hierarchy.
pub(super) fn join(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The hierarchies among a machine's mounts, each once, by its shortest path. One of v2 without
/// controllers may be among them, which runtimes use too.
fn v1_trees(mounts: &str) -> Vec<Tree> {
    const KNOWN: [&str; 14] = [
        "blkio",
        "cpu",
        "cpuacct",
        "cpuset",
        "devices",
        "freezer",
        "hugetlb",
        "memory",
        "misc",
        "net_cls",
        "net_prio",
        "perf_event",
        "pids",
        "rdma",
    ];
    let mut found: Vec<(Vec<&str>, Tree)> = Vec::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(root), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let words = options.split(',').filter(|word| kind == "cgroup" && KNOWN.contains(word));
        let controllers: Vec<&str> = words.collect();
        // A hierarchy is identified by its controllers, or its name.
        let identity = match kind {
            "cgroup" if controllers.is_empty() => {
                options.split(',').filter(|word| word.starts_with("name=")).collect()
            }
            "cgroup" => controllers.clone(),
            "cgroup2" => vec![kind],
            _ => continue,
        };
        let controllers = controllers.into_iter().map(str::to_owned).collect();
        let tree = Tree { root: PathBuf::from(root), controllers };
        match found.iter_mut().find(|(known, _)| *known == identity) {
            Some((_, known)) if known.root.as_os_str().len() > root.len() => *known = tree,
            Some(_) => {}
            None => found.push((identity, tree)),
        }
    }
    found.into_iter().map(|(_, tree)| tree).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_hierarchies_from_mounts() {
        let mounts = "\
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,nosuid,relatime,xattr,name=systemd 0 0
cgroup /host/sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,nodev,noexec,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,nodev,noexec,relatime,cpu,cpuacct 0 0
cgroup /var/lib/other/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
proc /proc proc rw 0 0
";
        let found = v1_trees(mounts);
        let found: Vec<_> = found
            .iter()
            .map(|tree| (tree.root.display().to_string(), tree.controllers.join("+")))
            .collect();
        let expected = [
            ("/sys/fs/cgroup/unified", ""),
            ("/sys/fs/cgroup/systemd", ""),
            ("/sys/fs/cgroup/cpu,cpuacct", "cpu+cpuacct"),
            ("/sys/fs/cgroup/memory", "memory"),
        ];
        let expected = expected.map(|(root, names)| (root.to_owned(), names.to_owned()));
        assert_eq!(found, expected);
    }
}
