//! Processes of a cgroup, and their network devices, from /proc.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use super::cgroup::{Cgroup, Reader};
use super::open_files::{OpenFileCount, OpenFiles};

/// Maximum number of processes per cgroup whose descriptors are counted.
const MOST: usize = 4096;
/// Prefixes of devices that are ignored.
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Processes of a cgroup, without its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// How many there are.
    pub count: u64,
    /// One of them, usually the first.
    pub first: Option<u32>,
    /// Their open descriptors.
    pub open: Option<OpenFileCount>,
    /// The soft limit of open files of the first; `None`: unlimited or unknown.
    pub file_limit: Option<u64>,
}

/// Statistics of a network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Received.
    pub received: Traffic,
    /// Sent.
    pub sent: Traffic,
}

/// One direction of a network device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets with errors.
    pub errors: u64,
    /// Dropped packets.
    pub dropped: u64,
}

/// /proc, open.
pub(super) struct Proc(OwnedFd);

impl Proc {
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self(rustix::fs::open("/proc", DIRECTORY, Mode::empty())?))
    }

    /// The processes of a cgroup; with open descriptors if a cache is given.
    pub(super) fn processes(
        &self,
        cgroup: &Cgroup,
        open_files: Option<&OpenFiles>,
        reader: &mut Reader,
    ) -> Processes {
        let pids = cgroup.processes(reader);
        let first = pids.first().copied();
        let mut found = Processes { count: pids.len() as u64, first, ..Processes::default() };
        if let Some(open_files) = open_files {
            let each = pids.iter().take(MOST).map(|pid| open_files.of(&self.0, *pid));
            found.open = Some(each.sum());
            found.file_limit = first.and_then(|pid| self.file_limit(pid, reader));
        }
        found
    }

    fn file_limit(&self, pid: u32, reader: &mut Reader) -> Option<u64> {
        let text = reader.text(&self.0, &format!("{pid}/limits")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// The network devices of a process; `None` for the daemon itself.
    pub(super) fn network(&self, pid: Option<u32>, reader: &mut Reader) -> Vec<Interface> {
        let name = match pid {
            Some(pid) => format!("{pid}/net/dev"),
            None => "self/net/dev".to_owned(),
        };
        reader.text(&self.0, &name).map(interfaces).unwrap_or_default()
    }

    /// The cgroup of a process, on v2 or of v1's memory controller.
    pub(super) fn cgroup(&self, pid: u32, unified: bool, reader: &mut Reader) -> Option<String> {
        let text = reader.text(&self.0, &format!("{pid}/cgroup")).ok()?;
        text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it = match unified {
                true => number == "0",
                false => controllers.split(',').any(|name| name == "memory"),
            };
            is_it.then(|| path.to_owned())
        })
    }
}

/// Parses `/proc/PID/net/dev`, without ignored devices.
fn interfaces(text: &str) -> Vec<Interface> {
    let line = |line: &str| {
        let (name, figures) = line.split_once(':')?;
        let name = name.trim();
        if IGNORED.iter().any(|ignored| name.starts_with(ignored)) {
            return None;
        }
        let figures: Vec<u64> =
            figures.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let traffic = |from: usize| {
            let of = |index: usize| figures.get(from + index).copied().unwrap_or(0);
            Traffic { bytes: of(0), packets: of(1), errors: of(2), dropped: of(3) }
        };
        Some(Interface { name: name.to_owned(), received: traffic(0), sent: traffic(8) })
    };
    text.lines().skip(2).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_network_device_table() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
  eth0:1296 16 1 2 0 0 0 0 816 10 3 4 0 0 0 0
vethab: 5 5 0 0 0 0 0 0 5 5 0 0 0 0 0 0
";
        let expected = Interface {
            name: "eth0".to_owned(),
            received: Traffic { bytes: 1296, packets: 16, errors: 1, dropped: 2 },
            sent: Traffic { bytes: 816, packets: 10, errors: 3, dropped: 4 },
        };
        assert_eq!(interfaces(text), [expected]);
        assert_eq!(interfaces(""), []);
    }

    #[test]
    fn process_file_descriptor_limit() {
        let proc = Proc::open().unwrap();
        let limit = proc.file_limit(std::process::id(), &mut Reader::default());
        let expected = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        assert_eq!(limit, expected);
    }
}
