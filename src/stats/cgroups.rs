//! What the cgroups of the kernel tell, v1 (a hierarchy for each controller) and v2.

use std::io;
use std::path::{Path, PathBuf};

use longshore_pod::usage::{Figures, Memory};

const MOUNT: &str = "/sys/fs/cgroup";
/// Limits from here on are none: v1 knows no other word for it, and rounds it to pages.
const UNLIMITED: u64 = 1 << 62;

/// Where the controllers are.
#[derive(Clone, Debug)]
pub(super) struct Hierarchies {
    unified: bool,
    memory: PathBuf,
    cpu: PathBuf,
    pids: PathBuf,
}

impl Hierarchies {
    pub(super) fn find(unified: bool) -> Self {
        let of = |controller: &str| match unified {
            true => PathBuf::from(MOUNT),
            false => Path::new(MOUNT).join(controller),
        };
        Self { unified, memory: of("memory"), cpu: of("cpuacct"), pids: of("pids") }
    }

    pub(super) fn is_unified(&self) -> bool {
        self.unified
    }
}

/// One cgroup in all hierarchies.
#[derive(Debug)]
pub(super) struct Group {
    unified: bool,
    is_root: bool,
    memory: PathBuf,
    cpu: PathBuf,
    pids: PathBuf,
}

impl Group {
    pub(super) fn new(hierarchies: &Hierarchies, path: &Path) -> Self {
        let path = path.strip_prefix("/").unwrap_or(path);
        Self {
            unified: hierarchies.unified,
            is_root: path.as_os_str().is_empty(),
            memory: hierarchies.memory.join(path),
            cpu: hierarchies.cpu.join(path),
            pids: hierarchies.pids.join(path),
        }
    }

    pub(super) fn root(hierarchies: &Hierarchies) -> Self {
        Self::new(hierarchies, Path::new(""))
    }

    pub(super) fn memory_file(&self, name: &str) -> PathBuf {
        self.memory.join(name)
    }

    /// Cgroups right below that belong to containers: their names and ids. Runtimes name a scope
    /// of systemd after themselves and the container.
    pub(super) fn containers(&self) -> Vec<(PathBuf, String)> {
        let entries = std::fs::read_dir(&self.memory).into_iter().flatten().flatten();
        let name = |entry: std::fs::DirEntry| entry.file_name().into_string().ok();
        let names = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        names
            .filter_map(name)
            .map(|name| {
                let stem = name.strip_suffix(".scope").unwrap_or(&name);
                let id = stem.rsplit('-').next().unwrap_or(stem).to_owned();
                (PathBuf::from(&name), id)
            })
            .collect()
    }

    /// A cgroup right below.
    pub(super) fn child(&self, name: &Path) -> Self {
        Self {
            unified: self.unified,
            is_root: false,
            memory: self.memory.join(name),
            cpu: self.cpu.join(name),
            pids: self.pids.join(name),
        }
    }

    /// All there is to know. A controller that is not there tells nothing.
    pub(super) fn figures(&self) -> Figures {
        let swap = || number(&self.memory.join("memory.swap.current")).ok();
        Figures {
            cpu: self.cpu().ok(),
            memory: self.memory().ok(),
            swap: if self.unified { swap() } else { None },
            tasks: number(&self.pids.join("pids.current")).ok(),
        }
    }

    /// CPU time in nanoseconds.
    pub(super) fn cpu(&self) -> io::Result<u64> {
        match self.unified {
            true => {
                let stat = read(&self.cpu.join("cpu.stat"))?;
                Ok(value(&stat, "usage_usec").unwrap_or(0).saturating_mul(1000))
            }
            false => number(&self.cpu.join("cpuacct.usage")),
        }
    }

    pub(super) fn memory(&self) -> io::Result<Memory> {
        let stat = read(&self.memory.join("memory.stat"))?;
        let of = |key: &str| value(&stat, key).unwrap_or(0);
        let (usage, inactive, rss, limit) = match self.unified {
            // The root has no such file on v2; this is what v1's says.
            true if self.is_root => {
                (of("anon") + of("file"), of("inactive_file"), of("anon"), None)
            }
            true => {
                let limit = number(&self.memory.join("memory.max")).ok(); // "max" is none
                let usage = number(&self.memory.join("memory.current"))?;
                (usage, of("inactive_file"), of("anon"), limit)
            }
            false => {
                let limit = number(&self.memory.join("memory.limit_in_bytes")).ok();
                let usage = number(&self.memory.join("memory.usage_in_bytes"))?;
                (usage, of("total_inactive_file"), of("total_rss"), limit)
            }
        };
        let limit = limit.filter(|limit| *limit < UNLIMITED);
        Ok(Memory { usage, working_set: usage.saturating_sub(inactive), rss, limit })
    }
}

fn read(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn number(path: &Path) -> io::Result<u64> {
    let text = read(path)?;
    text.trim().parse().map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: no number", path.display()))
    })
}

/// The value of a line `key value`.
fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    fn group(dir: &Path, unified: bool, files: &[(&str, &str)]) -> Group {
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        let of = || dir.to_owned();
        let hierarchies = Hierarchies { unified, memory: of(), cpu: of(), pids: of() };
        Group { is_root: false, ..Group::root(&hierarchies) }
    }

    #[test]
    fn both_versions_tell_the_same() {
        let expected = Memory { usage: 1000, working_set: 700, rss: 400, limit: Some(4096) };
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let v1 = group(
            one.path(),
            false,
            &[
                ("memory.usage_in_bytes", "1000\n"),
                ("memory.limit_in_bytes", "4096\n"),
                ("memory.stat", "rss 1\ninactive_file 9\ntotal_rss 400\ntotal_inactive_file 300\n"),
                ("cpuacct.usage", "5000\n"),
                ("pids.current", "7\n"),
            ],
        );
        let v2 = group(
            two.path(),
            true,
            &[
                ("memory.current", "1000\n"),
                ("memory.max", "4096\n"),
                ("memory.stat", "anon 400\nfile 600\ninactive_file 300\n"),
                ("memory.swap.current", "3\n"),
                ("cpu.stat", "usage_usec 5\nuser_usec 1\n"),
                ("pids.current", "7\n"),
            ],
        );
        let figures =
            Figures { cpu: Some(5000), memory: Some(expected), swap: None, tasks: Some(7) };
        assert_eq!(v1.figures(), figures);
        assert_eq!(v2.figures(), Figures { swap: Some(3), ..figures });
        assert_eq!(expected.available(), Some(3396));
        fs::write(one.path().join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(two.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(v1.memory().unwrap().limit, None);
        assert_eq!(v2.memory().unwrap().limit, None);
        fs::remove_file(two.path().join("memory.current")).unwrap();
        assert!(v2.memory().unwrap_err().to_string().contains("memory.current"));
        let root = Group { is_root: true, ..v2 };
        assert_eq!(root.memory().unwrap(), Memory { limit: None, ..expected });
    }

    #[test]
    fn containers_are_known_by_the_names_that_runtimes_give() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["0a1b", "cri-containerd-2c3d.scope", "crio-4e5f.scope"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let group = group(dir.path(), true, &[("memory.stat", "")]);
        let mut ids: Vec<_> = group.containers().into_iter().map(|(_, id)| id).collect();
        ids.sort();
        assert_eq!(ids, ["0a1b", "2c3d", "4e5f"]);
    }
}
