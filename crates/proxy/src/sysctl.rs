//! Settings of the kernel that kube-proxy owns: sizes and times of connection tracking, and
//! loopback addresses as sources of node ports. Written only where they differ.

use std::fs;
use std::io;
use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::info;

/// Node ports at loopback addresses need it; the guard of KUBE-FIREWALL goes with it.
pub const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";
/// Packets out of window pass: those that are invalid need not be dropped then.
pub const BE_LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";

/// More entries than this would cost unexpected memory on many cores.
const MOST: u32 = 1 << 20;
/// Entries a bucket of the hash table, at most.
const DEPTH: u32 = 4;

/// A setting could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its file cannot be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The setting's file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Its file cannot be written.
    #[error("{}: set to {value}: {source}", .path.display())]
    Write {
        /// The setting's file.
        path: PathBuf,
        /// What it was to be.
        value: u32,
        /// Why not.
        source: io::Error,
    },
    /// It is no number.
    #[error("{}: {source}", .path.display())]
    Number {
        /// The setting's file.
        path: PathBuf,
        /// What is wrong with it.
        source: ParseIntError,
    },
}

/// Connection tracking as the configuration has it (`conntrack` of KubeProxyConfiguration). What is
/// zero or not set stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries for each CPU of the machine.
    pub max_per_core: u32,
    /// The least number of entries, if they go by CPUs.
    pub min: u32,
    /// How long an idle TCP connection is kept.
    pub tcp_established: Duration,
    /// How long one that is half closed is kept.
    pub tcp_close_wait: Duration,
    /// Take packets out of window for valid.
    pub tcp_be_liberal: bool,
    /// How long an unanswered UDP flow is kept.
    pub udp: Duration,
    /// How long a UDP flow with answers is kept.
    pub udp_stream: Duration,
}

impl Conntrack {
    /// The size of the table for so many CPUs; none if it stays as it is.
    pub fn max(&self, cpus: u32) -> Option<u32> {
        let scaled = self.max_per_core.saturating_mul(cpus);
        match self.max_per_core {
            0 => None,
            _ if scaled > MOST => Some(MOST),
            _ => Some(scaled.max(self.min)).filter(|max| *max > 0),
        }
    }
}

/// The kernel's settings, as files.
#[derive(Clone, Debug)]
pub struct Sysctls {
    root: PathBuf,
    hash_size: PathBuf,
}

impl Default for Sysctls {
    fn default() -> Self {
        Self {
            root: "/proc/sys".into(),
            hash_size: "/sys/module/nf_conntrack/parameters/hashsize".into(),
        }
    }
}

impl Sysctls {
    /// Settings below another directory.
    pub fn at(root: &Path, hash_size: &Path) -> Self {
        Self { root: root.into(), hash_size: hash_size.into() }
    }

    /// A setting, by its path below `/proc/sys`.
    pub fn get(&self, name: &str) -> Result<u32, Error> {
        read(&self.root.join(name))
    }

    /// Give it a value, unless it has it; whether it had.
    pub fn ensure(&self, name: &str, value: u32) -> Result<bool, Error> {
        // What cannot be read is reported when it cannot be written either.
        if self.get(name).is_ok_and(|it| it == value) {
            return Ok(true);
        }
        info!(name, value, "sysctl");
        write(&self.root.join(name), value)?;
        Ok(false)
    }

    /// Connection tracking as configured, on a machine of so many CPUs.
    pub fn set_conntrack(&self, config: &Conntrack, cpus: u32) -> Result<(), Error> {
        let ensure = |name: &str, value| self.ensure(&format!("net/netfilter/{name}"), value);
        if let Some(max) = config.max(cpus) {
            ensure("nf_conntrack_max", max)?;
            let buckets = max / DEPTH;
            if read(&self.hash_size)? < buckets {
                info!(buckets, "hash table of conntrack");
                write(&self.hash_size, buckets)?;
            }
        }
        for (name, time) in [
            ("nf_conntrack_tcp_timeout_established", config.tcp_established),
            ("nf_conntrack_tcp_timeout_close_wait", config.tcp_close_wait),
            ("nf_conntrack_udp_timeout", config.udp),
            ("nf_conntrack_udp_timeout_stream", config.udp_stream),
        ] {
            if !time.is_zero() {
                ensure(name, time.as_secs().try_into().unwrap_or(u32::MAX))?;
            }
        }
        if config.tcp_be_liberal {
            self.ensure(BE_LIBERAL, 1)?;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<u32, Error> {
    let text =
        fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
    text.trim().parse().map_err(|source| Error::Number { path: path.into(), source })
}

fn write(path: &Path, value: u32) -> Result<(), Error> {
    fs::write(path, value.to_string()).map_err(|source| Error::Write {
        path: path.into(),
        value,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conntrack_max_follows_cpus_within_bounds() {
        for (max_per_core, min, cpus, max) in [
            (0, 0, 4, None),
            (0, 131_072, 4, None),
            (32_768, 131_072, 1, Some(131_072)),
            (32_768, 131_072, 4, Some(131_072)),
            (32_768, 131_072, 8, Some(262_144)),
            (32_768, 131_072, 64, Some(1 << 20)),
            (1, 3_000_000, 8, Some(3_000_000)),
            (u32::MAX, 0, 8, Some(1 << 20)),
            (1, 0, 0, None),
        ] {
            let config = Conntrack { max_per_core, min, ..Conntrack::default() };
            assert_eq!(config.max(cpus), max, "{config:?}");
        }
    }

    struct Files(tempfile::TempDir);

    impl Files {
        fn new(files: &[(&str, &str)]) -> Self {
            let files_at = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(files_at.0.path().join("net/netfilter")).unwrap();
            for (name, text) in files {
                fs::write(files_at.0.path().join(name), text).unwrap();
            }
            files_at
        }

        fn sysctls(&self) -> Sysctls {
            Sysctls::at(self.0.path(), &self.0.path().join("hashsize"))
        }

        fn text(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.0.path().join(name)).ok()
        }
    }

    #[test]
    fn sysctl_only_configured_values_are_set() {
        let max = "net/netfilter/nf_conntrack_max";
        let files = Files::new(&[("hashsize", "16384\n"), (max, "65536\n")]);
        let config = Conntrack {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: Duration::from_secs(86_400),
            udp: Duration::from_millis(1500),
            ..Conntrack::default()
        };
        files.sysctls().set_conntrack(&config, 2).unwrap();
        let netfilter = |name| files.text(&format!("net/netfilter/nf_conntrack_{name}"));
        assert_eq!(files.text(max).as_deref(), Some("131072"));
        assert_eq!(files.text("hashsize").as_deref(), Some("32768"));
        assert_eq!(netfilter("tcp_timeout_established").as_deref(), Some("86400"));
        assert_eq!(netfilter("udp_timeout").as_deref(), Some("1"));
        for name in ["tcp_timeout_close_wait", "udp_timeout_stream", "tcp_be_liberal"] {
            assert_eq!(netfilter(name), None, "{name}");
        }
        // A bigger hash table is not made smaller.
        fs::write(files.0.path().join("hashsize"), "65536\n").unwrap();
        let liberal = Conntrack { tcp_be_liberal: true, ..config };
        files.sysctls().set_conntrack(&liberal, 2).unwrap();
        assert_eq!(files.text("hashsize").as_deref(), Some("65536\n"));
        assert_eq!(netfilter("tcp_be_liberal").as_deref(), Some("1"));
    }

    #[test]
    fn sysctl_correct_value_is_not_written() {
        let files = Files::new(&[("one", "1\n"), ("two", "many\n")]);
        let sysctls = files.sysctls();
        assert!(sysctls.ensure("one", 1).unwrap());
        assert_eq!(files.text("one").as_deref(), Some("1\n"));
        assert!(!sysctls.ensure("one", 0).unwrap());
        assert_eq!(files.text("one").as_deref(), Some("0"));
        let error = sysctls.get("two").unwrap_err().to_string();
        assert!(error.ends_with("/two: invalid digit found in string"), "{error}");
        let error = sysctls.ensure("no/such", 1).unwrap_err().to_string();
        assert!(
            error.ends_with("/no/such: set to 1: No such file or directory (os error 2)"),
            "{error}"
        );
    }
}
