//! The holder of the xtables lock, which programs of the legacy variant take.

use std::env;
use std::fmt;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the lock is, unless the environment has it elsewhere.
const PATH: &str = "/run/xtables.lock";

/// A process that holds the xtables lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id, as this process sees it; 0 for one of another PID namespace.
    pub pid: u32,
    /// Its name, if it can be read.
    pub name: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.name) {
            (0, _) => f.write_str("a process of another PID namespace"),
            (pid, Some(name)) => write!(f, "process {pid} ({name})"),
            (pid, None) => write!(f, "process {pid}"),
        }
    }
}

/// The file that iptables locks: it follows the same variable.
pub(super) fn path() -> PathBuf {
    env::var_os("XTABLES_LOCKFILE").map_or_else(|| PATH.into(), PathBuf::from)
}

/// The holder of a lock on the file.
pub(super) fn holder(path: &Path) -> Option<Holder> {
    let file = fs::metadata(path).ok()?;
    let (device, inode) = (file.st_dev(), file.st_ino());
    let id = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    let pid = holder_in(&fs::read_to_string("/proc/locks").ok()?, &id)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    Some(Holder { pid, name: name.map(|name| name.trim().to_owned()) })
}

/// The holder of a file's lock in the text of `/proc/locks`, the file given as it is written there.
/// Lines of waiters have an arrow.
pub(super) fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (Some("FLOCK"), pid, id) = (words.next(), words.nth(2)?, words.next()?) else {
            return None;
        };
        // -1 is a lock that is no process's own.
        (id == file).then(|| pid.parse().unwrap_or(0))
    })
}
