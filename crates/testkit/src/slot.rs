//! The number of a host, from which its names and addresses are derived.
//!
//! A number is locked by a file lock, which the kernel releases with its owner:
//! leftovers of a number that is not locked are swept.
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::error::{AtPath, Error, Result};

/// Where the state of all hosts lies: on disk even where `/tmp` is memory, so that overlays and
/// fsync behave as they do on a real node.
pub(crate) const BASE: &str = "/var/tmp/longshore";

/// The names and addresses that belong to one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) number: u8,
}

impl Names {
    /// The directory with everything of the host.
    pub(crate) fn dir(self) -> PathBuf {
        Path::new(BASE).join(self.number.to_string())
    }

    /// The file that holds the network namespace.
    pub(crate) fn netns(self) -> PathBuf {
        self.dir().join("netns")
    }

    /// Its cgroup, its CNI network and its node: `longshore-N`.
    pub(crate) fn name(self) -> String {
        format!("longshore-{}", self.number)
    }

    /// The machine's end of its link; 15 bytes are the limit.
    pub(crate) fn link(self) -> String {
        format!("longshore{}", self.number)
    }

    // 198.18.0.0/15 is set aside for test networks (RFC 2544): no real route is shadowed.
    pub(crate) fn machine_ip(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 1)
    }

    pub(crate) fn node_ip(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 2)
    }

    pub(crate) fn pod_cidr(self) -> String {
        format!("198.19.{}.0/24", self.number)
    }

    fn lock(self) -> PathBuf {
        Path::new(BASE).join(format!("{}.lock", self.number))
    }
}

/// A number that is ours until this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) names: Names,
    lock: Option<Flock<File>>,
}

impl Slot {
    /// Locks the lowest free number.
    pub(crate) fn claim() -> Result<Self> {
        for number in 1..=254 {
            if let Some(slot) = Self::try_claim(Names { number })? {
                return Ok(slot);
            }
        }
        Err(Error::Machine("all 254 host numbers are taken".into()))
    }

    /// The numbers that have leftovers in the state folder and no owner.
    pub(crate) fn abandoned() -> Result<Vec<Self>> {
        let mut numbers: Vec<u8> = match fs::read_dir(BASE) {
            Ok(entries) => entries
                .flatten()
                .filter_map(|entry| {
                    Path::new(&entry.file_name()).file_stem()?.to_str()?.parse().ok()
                })
                .collect(),
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e).at(BASE),
        };
        numbers.sort_unstable();
        numbers.dedup();
        let claims = numbers.into_iter().map(|number| Self::try_claim(Names { number }));
        claims.filter_map(Result::transpose).collect()
    }

    fn try_claim(names: Names) -> Result<Option<Self>> {
        let path = names.lock();
        loop {
            make_base()?;
            let file = match File::options().create(true).truncate(false).write(true).open(&path) {
                // Another owner has just removed the directory.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                other => other.at(&path)?,
            };
            let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => lock,
                Err((_, nix::Error::EWOULDBLOCK)) => return Ok(None),
                Err((_, e)) => return Err(e).at(&path),
            };
            // The previous owner removes the file while it holds the lock: check that it is still the
            // same.
            let ours = lock.metadata().at(&path)?;
            match fs::metadata(&path) {
                Ok(now) if now.ino() == ours.ino() => {
                    return Ok(Some(Self { names, lock: Some(lock) }));
                }
                _ => drop(lock),
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // With leftovers the file stays, so that a later sweep finds it by its name.
        if !self.names.dir().exists() {
            let _ = fs::remove_file(self.names.lock());
        }
        drop(self.lock.take());
        // Succeeds for the last one only.
        let _ = fs::remove_dir(BASE);
    }
}

/// Whether any host exists, including our own.
pub(crate) fn others_than(names: Names) -> bool {
    let own = names.lock();
    fs::read_dir(BASE).is_ok_and(|entries| {
        entries.flatten().map(|entry| entry.path()).any(|path| {
            path != own && path.extension() == Some(OsStr::new("lock")) && is_locked(&path)
        })
    })
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
}

/// The directory must belong to root: its name is well known, and others may write beside it.
fn make_base() -> Result<()> {
    match DirBuilder::new().mode(0o700).create(BASE) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e).at(BASE),
        _ => {}
    }
    match fs::symlink_metadata(BASE) {
        Ok(found) if found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0 => Ok(()),
        Ok(_) => Err(io::Error::other("must be a directory that only root can write")).at(BASE),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).at(BASE),
    }
}
