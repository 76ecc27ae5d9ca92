//! The cgroups of system daemons.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use longshore_config::{Config, DOCKER_SCHEME};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::cgroup::{Cgroup, Hierarchies, Reader};
use super::process::Proc;

/// Configured cgroups of daemons. If empty, they are detected or omitted.
#[derive(Clone, Debug, Default)]
pub struct SystemNames {
    kubelet: String,
    runtime: String,
    misc: String,
    socket: Option<PathBuf>,
}

impl SystemNames {
    /// From the config.
    pub fn new(config: &Config) -> Self {
        let kubelet = &config.kubelet;
        let endpoint = &kubelet.container_runtime_endpoint;
        let socket = ["unix://", DOCKER_SCHEME].iter().find_map(|s| endpoint.strip_prefix(s));
        Self {
            kubelet: kubelet.kubelet_cgroups.clone(),
            runtime: config.runtime_cgroups.clone(),
            misc: kubelet.system_cgroups.clone(),
            socket: socket.map(PathBuf::from),
        }
    }

    /// Detects cgroups that are not configured. Blocks.
    pub(super) fn find(&self, unified: bool) -> io::Result<SystemGroups> {
        let (proc, mut reader) = (Proc::open()?, Reader::default());
        let hierarchies = Hierarchies::find(unified);
        let exists = |name: &str| Cgroup::new(&hierarchies, name.as_ref()).created().is_ok();
        let mut of = |name: &str, pid: &dyn Fn() -> Option<u32>| {
            // One that does not exist says nothing of where the daemon is.
            let configured = Some(name.to_owned()).filter(|name| !name.is_empty() && exists(name));
            let found = configured.or_else(|| proc.cgroup(pid()?, unified, &mut reader));
            found.filter(|path| path != "/")
        };
        Ok(SystemGroups {
            kubelet: of(&self.kubelet, &|| Some(std::process::id())),
            runtime: of(&self.runtime, &|| self.runtime_pid()),
            misc: of(&self.misc, &|| None),
        })
    }

    /// The PID of the process behind the runtime's socket.
    fn runtime_pid(&self) -> Option<u32> {
        let connection = UnixStream::connect(self.socket.as_ref()?).ok()?;
        let peer = getsockopt(&connection, PeerCredentials).ok()?;
        u32::try_from(peer.pid()).ok().filter(|pid| *pid > 1)
    }
}

/// The cgroups of daemons, as paths from the hierarchies' roots down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SystemGroups {
    kubelet: Option<String>,
    runtime: Option<String>,
    misc: Option<String>,
}

impl SystemGroups {
    /// With their names in the summary.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let named = [
            ("kubelet", self.kubelet.as_deref()),
            ("runtime", self.runtime.as_deref()),
            ("misc", self.misc.as_deref()),
        ];
        named.into_iter().filter_map(|(name, path)| Some((name, path?)))
    }
}

#[cfg(test)]
mod tests {
    use longshore_machine::cgroup::is_unified;

    use super::*;

    /// `--runtime-cgroups` often names a cgroup of another machine: the daemon's own one counts then.
    #[test]
    fn stats_cgroups_of_daemons_that_do_not_exist_are_detected() {
        let absent = "/no-such-cgroup".to_owned();
        let wrong = SystemNames { kubelet: absent.clone(), misc: absent, ..Default::default() };
        let unified = is_unified();
        assert_eq!(wrong.find(unified).unwrap(), SystemNames::default().find(unified).unwrap());
    }
}
