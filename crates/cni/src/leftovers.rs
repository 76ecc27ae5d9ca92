//! What a machine that lost its power has left in the files of CNI, which no one else removes.
//!
//! libcni and the plugin host-local do not sync what they write: after a loss of power files are there without their
//! content. A cached result without content makes every DEL of its sandbox fail, so that its pod never ends (containerd
//! says "decoding version from network config: unexpected end of JSON input"); a lease without content, or of a
//! container that the runtime has forgotten, takes an address for ever.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use longshore_base::files::{self, if_present};

/// More than any result or lease has.
const MAX_FILE: u64 = 1 << 20;

/// The folders in which files of CNI are. Those that are not there have nothing.
#[derive(Debug, Clone, Default)]
pub struct Leftovers {
    /// Cached results are in `results` of these.
    pub caches: Vec<PathBuf>,
    /// Leases of host-local are in a folder for each network in these.
    pub leases: Vec<PathBuf>,
}

impl Leftovers {
    /// Where libcni, CRI-O and Docker's shims keep results, and host-local leases, unless configured otherwise.
    #[must_use]
    pub fn usual() -> Self {
        Self {
            caches: vec!["/var/lib/cni".into(), "/var/lib/cni/cache".into()],
            leases: vec!["/var/lib/cni/networks".into()],
        }
    }

    /// Removes, of the files that were written before `boot`, results that are no JSON and leases that are not of one of
    /// the containers `running`. Returns what was removed.
    ///
    /// # Errors
    /// A folder cannot be read, or a file cannot be removed.
    pub fn clear(&self, boot: SystemTime, running: &HashSet<String>) -> io::Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        for cache in &self.caches {
            for path in files_before(&cache.join("results"), boot)? {
                if serde_json::from_slice::<serde_json::Map<_, _>>(&read(&path)?).is_err() {
                    remove(path, &mut removed)?;
                }
            }
        }
        for leases in &self.leases {
            for network in entries(leases)? {
                for path in files_before(&network, boot)? {
                    // Beside leases there are a lock and the last address that was given.
                    let is_lease =
                        path.file_name().and_then(|name| name.to_str()).is_some_and(is_address);
                    if is_lease && !is_of(&read(&path)?, running) {
                        remove(path, &mut removed)?;
                    }
                }
            }
        }
        Ok(removed)
    }
}

/// host-local writes the colons of IPv6 as they are.
fn is_address(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
}

/// A lease has the id of its container in its first line.
fn is_of(lease: &[u8], running: &HashSet<String>) -> bool {
    let text = String::from_utf8_lossy(lease);
    text.lines().next().is_some_and(|id| running.contains(id.trim()))
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// Files of a folder, not links, that were last written before a time.
fn files_before(folder: &Path, time: SystemTime) -> io::Result<Vec<PathBuf>> {
    let mut found = entries(folder)?;
    found.retain(|path| {
        fs::symlink_metadata(path).is_ok_and(|file| {
            file.is_file() && file.modified().is_ok_and(|modified| modified < time)
        })
    });
    Ok(found)
}

/// A file that is gone meanwhile is empty, and so is one that is too large to be what it should be.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    match files::read_at_most(path, MAX_FILE) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::FileTooLarge) =>
        {
            Ok(Vec::new())
        }
        read => read,
    }
}

fn remove(path: PathBuf, removed: &mut Vec<PathBuf>) -> io::Result<()> {
    if_present(fs::remove_file(&path))?;
    removed.push(path);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn leftovers_of_an_earlier_boot_are_removed() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (cache, leases) = (folder.path().join("cache"), folder.path().join("networks"));
        fs::create_dir_all(cache.join("results"))?;
        fs::create_dir_all(leases.join("net"))?;
        let boot = SystemTime::now() - Duration::from_secs(60);
        let table = [
            // name, content, written before the boot, removed
            ("cache/results/net-empty-eth0", "", true, true),
            ("cache/results/net-zeroes-eth0", "\0\0\0\0", true, true),
            ("cache/results/net-half-eth0", "{\"kind\":\"cniCa", true, true),
            ("cache/results/net-list-eth0", "[]", true, true),
            ("cache/results/net-whole-eth0", "{\"kind\":\"cniCacheV1\"}", true, false),
            ("cache/results/net-being-written-eth0", "", false, false),
            ("networks/net/10.0.0.2", "", true, true),
            ("networks/net/10.0.0.3", "\0\0\0\0", true, true),
            ("networks/net/10.0.0.4", "gone\r\neth0", true, true),
            ("networks/net/fd00::4", "gone\r\neth0", true, true),
            ("networks/net/10.0.0.5", "alive\r\neth0", true, false),
            ("networks/net/10.0.0.6", "new\r\neth0", false, false),
            ("networks/net/10.0.0.7", "", false, false),
            ("networks/net/last_reserved_ip.0", "10.0.0.7", true, false),
            ("networks/net/lock", "", true, false),
            ("networks/stray", "", true, false),
        ];
        for (name, content, is_old, _) in table {
            let path = folder.path().join(name);
            fs::write(&path, content)?;
            if is_old {
                fs::File::options()
                    .write(true)
                    .open(&path)?
                    .set_modified(boot - Duration::from_secs(1))?;
            }
        }
        // A link is no one's lease, and nothing behind it is touched.
        std::os::unix::fs::symlink(
            folder.path().join("networks/stray"),
            leases.join("net/10.0.0.8"),
        )?;
        let running = HashSet::from(["alive".to_owned()]);
        let leftovers = Leftovers { caches: vec![cache], leases: vec![leases.clone()] };
        let removed = leftovers.clear(boot, &running)?;
        for (name, _, _, is_removed) in table {
            let path = folder.path().join(name);
            assert_eq!(removed.contains(&path), is_removed, "{name}");
            assert_eq!(path.exists(), !is_removed, "{name}");
        }
        assert!(leases.join("net/10.0.0.8").is_symlink());
        assert!(leftovers.clear(boot, &running)?.is_empty());
        let absent = vec![folder.path().join("absent")];
        let absent = Leftovers { caches: absent.clone(), leases: absent };
        assert!(absent.clear(boot, &running)?.is_empty());
        Ok(())
    }
}
