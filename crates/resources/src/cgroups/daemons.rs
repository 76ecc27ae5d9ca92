//! `kubeletCgroups` and `systemCgroups`: moves the daemon, and the processes of the root cgroup, into
//! cgroups of their own, where their resources are counted.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_base::panics;
use nix::errno::Errno;
use tracing::info;

use super::fs::Fs;
use super::hierarchy::join;
use super::name::Name;
use super::{Cgroups, Driver, Error};

/// How often it is done again: processes may be started in the root cgroup, or moved there.
const PERIOD: Duration = Duration::from_secs(60);
/// How often the processes of the root are listed, as they may fork meanwhile.
const ROUNDS: usize = 11;

/// The cgroups of daemons, as the config names them; empty for those that stay where they are.
#[derive(Clone, Debug, Default)]
pub struct Daemons {
    kubelet: Option<PathBuf>,
    system: Option<PathBuf>,
}

impl Daemons {
    /// `kubeletCgroups` and `systemCgroups` of the config: paths, whatever the driver is.
    pub fn new(kubelet: &str, system: &str) -> Result<Self, Error> {
        let of = |field, text: &str| match text {
            "" => Ok(None),
            text => {
                let name = Name::of_path(text).map_err(|error| error.of_field(field))?;
                Ok(Some(PathBuf::from(name.path(Driver::Cgroupfs))))
            }
        };
        let system = of("systemCgroups", system)?;
        if system.as_deref() == Some(Path::new("/")) {
            return Err(Error::SystemRoot);
        }
        let kubelet = of("kubeletCgroups", kubelet)?.filter(|path| path != Path::new("/"));
        Ok(Self { kubelet, system })
    }

    fn is_empty(&self) -> bool {
        self.kubelet.is_none() && self.system.is_none()
    }
}

impl Cgroups {
    /// Creates the cgroups of daemons, and moves processes there. What cannot be moved is logged,
    /// and tried again by [`keep_daemons`](Self::keep_daemons).
    pub async fn place_daemons(&self, daemons: &Daemons) -> Result<(), Error> {
        if daemons.is_empty() {
            return Ok(());
        }
        let (fs, daemons) = (self.shared.fs.clone(), daemons.clone());
        let fs = Fs { unbalanced: false, ..fs };
        let placed = panics::blocking(move || place(&fs, &daemons)).await;
        placed.map_err(|error| Error::at(Path::new("/"))(io::Error::other(error)))?
    }

    /// Does that each minute.
    pub async fn keep_daemons(self, daemons: Daemons) {
        while !daemons.is_empty() {
            tokio::time::sleep(PERIOD).await;
            if let Err(error) = self.place_daemons(&daemons).await {
                info!(%error, "processes stay outside of their cgroup");
            }
        }
    }
}

fn place(fs: &Fs, daemons: &Daemons) -> Result<(), Error> {
    // The daemon first: it is no process of the system then.
    if let Some(path) = &daemons.kubelet {
        fs.make_leaf(path)?;
        if is_on_host() && !is_in(fs, path, "self") {
            attach(fs, path, std::process::id())?;
        }
    }
    if let Some(path) = &daemons.system {
        fs.make_leaf(path)?;
        for _ in 0..ROUNDS {
            let pids = processes_of_root(fs)?;
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                if let Err(error) = attach(fs, path, pid) {
                    info!(pid, %error, "process stays in the root cgroup");
                }
            }
        }
    }
    Ok(())
}

/// Whether the daemon is in the PID namespace of `/proc`, and not in a container that has the host's:
/// there it is left to who started the container.
fn is_on_host() -> bool {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ids = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_some_and(|ids| ids.split_whitespace().count() == 1)
}

/// Whether a process is in that cgroup in each hierarchy with controllers.
fn is_in(fs: &Fs, path: &Path, pid: &str) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut its = text.lines().filter_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let (controllers, cgroup) = rest.split_once(':')?;
        let counts = match fs.hierarchies.unified {
            true => number == "0",
            false => !controllers.is_empty() && !controllers.starts_with("name="),
        };
        counts.then_some(Path::new(cgroup))
    });
    its.all(|cgroup| cgroup == path)
}

/// The processes of the root cgroup, without init and the kernel's own threads.
fn processes_of_root(fs: &Fs) -> Result<Vec<u32>, Error> {
    const CONTROLLER: &str = "cpu";
    let tree = fs.hierarchies.tree(CONTROLLER);
    let tree = tree.ok_or_else(|| Error::NotMounted(CONTROLLER.to_owned()))?;
    let file = tree.root.join("cgroup.procs");
    let text = std::fs::read_to_string(&file).map_err(Error::at(&file))?;
    // 0 is a process of another namespace.
    let pids = text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1);
    Ok(pids.filter(|pid| !is_of_kernel(*pid)).collect())
}

/// Threads of the kernel have no program.
fn is_of_kernel(pid: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe"));
    program.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Moves a process into a cgroup of all hierarchies; none is an error if it has ended.
fn attach(fs: &Fs, path: &Path, pid: u32) -> Result<(), Error> {
    for tree in &fs.hierarchies.trees {
        // Hierarchies without controllers are systemd's.
        if tree.controllers.is_empty() {
            continue;
        }
        let file = join(&tree.root, path).join("cgroup.procs");
        match std::fs::write(&file, pid.to_string()) {
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => return Ok(()),
            Err(source) => {
                return Err(Error::Write { path: file, value: pid.to_string(), source });
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::hierarchy::{Hierarchies, Tree};
    use super::*;

    fn fs(root: &Path, unified: bool) -> Fs {
        let tree = |name: &str, controllers: &[&str]| Tree {
            root: root.join(name),
            controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
        };
        let trees = match unified {
            true => vec![tree("", &["cpu", "memory"])],
            false => vec![tree("cpu", &["cpu"]), tree("memory", &["memory"]), tree("systemd", &[])],
        };
        Fs { hierarchies: Hierarchies { unified, trees }, unbalanced: false }
    }

    #[test]
    fn cgroups_of_daemons_are_made_and_get_their_processes() {
        for unified in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let fs = fs(dir.path(), unified);
            for tree in &fs.hierarchies.trees {
                std::fs::create_dir_all(&tree.root).unwrap();
            }
            let own = std::process::id();
            // init, a process of another namespace, one that ended, and one that runs.
            let procs = format!("1\n0\n4194305\n{own}\n");
            std::fs::write(fs.hierarchies.trees[0].root.join("cgroup.procs"), procs).unwrap();
            let daemons = Daemons::new("/kubelet", "system/daemons/").unwrap();
            place(&fs, &daemons).unwrap();
            let controlled = if unified { vec![""] } else { vec!["cpu", "memory"] };
            for tree in controlled {
                let of = |cgroup: &str| {
                    let file = dir.path().join(tree).join(cgroup).join("cgroup.procs");
                    std::fs::read_to_string(file).unwrap()
                };
                assert_eq!(of("kubelet"), own.to_string(), "{tree} {unified}");
                assert_eq!(of("system/daemons"), own.to_string(), "{tree} {unified}");
            }
            if !unified {
                assert!(!dir.path().join("systemd/kubelet/cgroup.procs").exists());
            }
        }
    }

    #[test]
    fn cgroups_of_daemons_in_the_config() {
        let names = |kubelet: &str, system: &str| {
            let daemons = Daemons::new(kubelet, system).map_err(|error| error.to_string())?;
            let text = |path: Option<PathBuf>| path.map(|path| path.display().to_string());
            Ok::<_, String>((text(daemons.kubelet), text(daemons.system)))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(names("", ""), Ok((None, None)));
        assert_eq!(names("/", "/system"), Ok((None, some("/system"))));
        assert_eq!(names("/a.slice/b", ""), Ok((some("/a.slice/b"), None)));
        let root = names("", "/").unwrap_err();
        assert_eq!(root, "system container cannot be root (\"/\")");
        assert!(names("/a/../b", "").is_err());
    }
}
