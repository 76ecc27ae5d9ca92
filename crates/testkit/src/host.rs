//! The test host: a network namespace with a containerd of its own. Tests and `make run` start their
//! daemons on it; its removal removes everything on it, and reports what remains.
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{run, search_path};
use crate::containerd::{self, Layout};
use crate::daemon::{Daemon, tail_of};
use crate::error::{AtPath, Error, Result};
use crate::image::Image;
use crate::leftovers::{self, Snapshot};
use crate::slot::{Names, Slot};
use crate::wait::poll_until;
use crate::{cgroup, disk, egress, folders, net, proxy, resolver};

const CONTAINERD_START: Duration = Duration::from_secs(30);

/// Identifiers of a runtime's containers, sandboxes among them.
pub(crate) struct Containers {
    pub(crate) of_pod: Vec<String>,
    pub(crate) all: Vec<String>,
}

/// A running host. Dropping it removes everything; tests should end with [`Host::assert_clean`], which
/// also checks that nothing is left.
#[derive(Debug)]
pub struct Host {
    slot: Slot,
    layout: Layout,
    system_group: PathBuf,
    containerd: Option<Daemon>,
    egress: bool,
    before: Snapshot,
    up: bool,
}

impl Host {
    /// Sweeps what dead owners left, then brings up namespace, link, cgroup and containerd, with
    /// the images [`crate::PAUSE`] and [`crate::BUSYBOX`] in it. Takes about a second; blocks.
    ///
    /// # Errors
    /// When not root, when a program is missing, or when any step fails: then nothing is left.
    pub fn start() -> Result<Self> {
        let mut host = Self::bare()?;
        host.start_containerd()?;
        host.import(&Image::pause()?)?;
        host.import(&Image::busybox()?)?;
        Ok(host)
    }

    /// [`Host::start`], with a file system of its own, of `bytes` in all, for what containerd keeps:
    /// images and containers fill that and no other.
    ///
    /// # Errors
    /// As for [`Host::start`], and when there is no loop device to be had.
    pub fn with_disk(bytes: u64) -> Result<Self> {
        let mut host = Self::bare()?;
        disk::mount(&host.dir().join("containerd.img"), bytes, &host.layout.root)?;
        host.start_containerd()?;
        host.import(&Image::pause()?)?;
        host.import(&Image::busybox()?)?;
        Ok(host)
    }

    /// A host without containerd, for daemons that need only a network and a cgroup, or to start
    /// containerd later.
    ///
    /// # Errors
    /// As for [`Host::start`].
    pub fn bare() -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Error::Machine("it needs root".into()));
        }
        sweep_abandoned()?;
        let slot = Slot::claim()?;
        let names = slot.names;
        let left = leftovers::sweep(names);
        if !left.is_empty() {
            return Err(Error::LeftBehind(left));
        }
        let mut host = Self {
            slot,
            layout: Layout::under(&names.dir()),
            system_group: PathBuf::new(),
            containerd: None,
            egress: false,
            before: Snapshot::take(),
            up: true,
        };
        folders::note()?;
        fs::create_dir_all(host.log_dir()).at(host.log_dir())?;
        host.system_group = cgroup::create(&names.name())?;
        net::create(names)?;
        containerd::configure(names, &host.layout)?;
        Ok(host)
    }

    /// Opens egress: node and pods reach what the machine reaches, names are resolved, and containerd,
    /// if it is not started yet, pulls through the proxy of the environment. The machine forwards and
    /// masquerades until the host is removed.
    ///
    /// Returns what is not possible, one line each.
    pub fn open_egress(&mut self) -> Vec<String> {
        if let Err(error) = egress::open(self.names()) {
            let why = error.to_string().lines().collect::<Vec<_>>().join("; ");
            return vec![format!("no way out, so images are not pulled: {why}")];
        }
        self.egress = true;
        let unresolved = resolver::configure(self.names()).err();
        let unresolved = unresolved.map(|error| format!("names are not resolved: {error}"));
        let proxies = proxy::unreachable().into_iter().map(|name| {
            format!("the proxy of {name} is out of reach: it listens on the machine's loopback")
        });
        unresolved.into_iter().chain(proxies).collect()
    }

    /// The resolver configuration that holds on the host, where it is not the machine's own.
    pub fn resolv_conf(&self) -> Option<PathBuf> {
        Some(resolver::file(self.names())).filter(|file| file.exists())
    }

    /// Lets containerd, from the next pull on, speak plain HTTP to the registry at `address`.
    ///
    /// # Errors
    /// When the configuration cannot be written.
    pub fn allow_plain_http(&self, address: SocketAddr) -> Result<()> {
        containerd::allow_plain_http(&self.layout, address)
    }

    /// Describes CDI devices to containerd: a CDI specification. Returns whether this containerd knows CDI.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn describe_devices(&self, description: &serde_json::Value) -> Result<bool> {
        containerd::describe_devices(&self.layout, description)
    }

    /// Joins two hosts by a link: their nodes and pods reach each other.
    ///
    /// # Errors
    /// When the link cannot be made.
    pub fn join(&self, other: &Self) -> Result<()> {
        net::join(self.names(), other.names())
    }

    /// The host's name, unique on this machine; usable as a node name.
    pub fn name(&self) -> String {
        self.names().name()
    }

    /// The directory of the host, removed with it.
    pub fn dir(&self) -> PathBuf {
        self.names().dir()
    }

    /// The folder of the daemons' logs.
    pub fn log_dir(&self) -> PathBuf {
        self.dir().join("log")
    }

    /// containerd's socket.
    pub fn socket(&self) -> &Path {
        &self.layout.socket
    }

    /// containerd's root and state directories.
    pub fn containerd_dirs(&self) -> [&Path; 2] {
        [&self.layout.root, &self.layout.state]
    }

    /// The folders of CNI: of its configurations, and of its plugins.
    ///
    /// # Errors
    /// When there are no plugins.
    pub fn cni_dirs(&self) -> Result<[&Path; 2]> {
        Ok([&self.layout.cni, Path::new(containerd::cni_plugins()?)])
    }

    /// The file that holds the network namespace (for `nsenter --net=`).
    pub fn netns(&self) -> PathBuf {
        self.names().netns()
    }

    /// The node's address, reachable from the machine.
    pub fn node_ip(&self) -> Ipv4Addr {
        self.names().node_ip()
    }

    /// The machine's address, reachable from the host.
    pub fn machine_ip(&self) -> Ipv4Addr {
        self.names().machine_ip()
    }

    /// The range of the pods' addresses, reachable from the machine.
    pub fn pod_cidr(&self) -> String {
        self.names().pod_cidr()
    }

    /// The cgroup to give a node as its `cgroupRoot`.
    pub fn cgroup_root(&self) -> String {
        format!("/{}", self.name())
    }

    /// A command that runs on the host: in its network namespace and its cgroup. The pid does not
    /// change on the way in.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_in(&self.netns(), program)
    }

    /// A command in the machine's own network that goes with the host: a neighbour.
    pub fn neighbour_command(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_in(Path::new("/proc/self/ns/net"), program)
    }

    fn command_in(&self, netns: &Path, program: impl AsRef<OsStr>) -> Command {
        let enter =
            r#"echo 0 >"$1/cgroup.procs" && n=$2 && shift 2 && exec nsenter --net="$n" "$@""#;
        let mut command = Command::new("sh");
        command.args(["-c", enter, "sh"]).arg(&self.system_group).arg(netns).arg(program);
        command.env("PATH", search_path());
        // A proxy of the machine cannot reach a host.
        proxy::forget(&mut command);
        command
    }

    /// Runs a program on the host to its end and gives its standard output.
    ///
    /// # Errors
    /// When it cannot be started or fails.
    pub fn run<S: AsRef<OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<String> {
        let mut command = self.command(program);
        command.args(args);
        run(command)
    }

    /// Starts a [`Host::command`] as a daemon that logs to `NAME.log` in [`Host::log_dir`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Daemon> {
        Daemon::start(name, command, &self.log_dir().join(format!("{name}.log")))
    }

    /// Runs `ctr` against the host's containerd, in the namespace of the CRI plugin.
    ///
    /// # Errors
    /// When `ctr` fails.
    pub fn ctr<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command = Command::new("ctr");
        command.arg("-a").arg(self.socket()).args(["-n", "k8s.io"]).args(args);
        run(command)
    }

    /// Puts an image into containerd, and waits until CRI knows it.
    ///
    /// # Errors
    /// When it cannot be written or imported.
    pub fn import(&self, image: &Image) -> Result<()> {
        let archive = self.dir().join("import.tar");
        image.write(&archive)?;
        self.ctr([OsStr::new("images"), OsStr::new("import"), archive.as_os_str()])?;
        fs::remove_file(&archive).at(&archive)?;
        let reference = image.reference();
        poll_until(CONTAINERD_START, &format!("CRI to know {reference}"), || {
            // The CRI plugin is notified by an event, and labels the image then.
            let filter = format!("name=={reference},labels.\"io.cri-containerd.image\"==managed");
            let known = self.ctr(["images", "ls", "-q", &filter])?;
            Ok(if known.trim() == reference { Ok(()) } else { Err("no label yet".into()) })
        })
    }

    /// The host's containerd.
    ///
    /// # Errors
    /// When it was never started.
    pub fn containerd(&mut self) -> Result<&mut Daemon> {
        self.containerd.as_mut().ok_or_else(|| Error::Machine("containerd is not started".into()))
    }

    /// Starts containerd, for the first time or after it was killed, and waits until it serves CRI.
    ///
    /// # Errors
    /// When it ends or is not ready in time; the error holds the end of its log.
    pub fn start_containerd(&mut self) -> Result<()> {
        let mut command = self.command("containerd");
        command.arg("--config").arg(&self.layout.config);
        self.pass_proxy(&mut command);
        // The socket of a killed one would look alive until it is replaced.
        let _ = fs::remove_file(&self.layout.socket);
        let mut daemon = self.spawn("containerd", command)?;
        poll_until(CONTAINERD_START, "containerd to serve CRI", || {
            daemon.check_running()?;
            if !self.layout.socket.exists() {
                return Ok(Err("no socket yet".into()));
            }
            let plugins = self.ctr(["plugins", "ls", "id==cri"]).map_err(|e| e.to_string());
            Ok(plugins.and_then(|table| {
                if table.lines().any(|l| l.trim_end().ends_with("ok")) {
                    Ok(())
                } else {
                    Err(table)
                }
            }))
        })?;
        self.containerd = Some(daemon);
        Ok(())
    }

    /// Every process of the host, its daemons and the pods'.
    pub fn processes(&self) -> Vec<u32> {
        let pids = cgroup::processes(&self.name());
        pids.into_iter().filter_map(|pid| pid.as_raw().try_into().ok()).collect()
    }

    /// What is left of a pod: containers, cgroups, mounts, its directories under the node's root
    /// directory and log directory, unused addresses.
    ///
    /// # Errors
    /// When containerd does not answer.
    pub fn pod_leftovers(&self, uid: &str) -> Result<Vec<String>> {
        let filter = format!("labels.\"io.kubernetes.pod.uid\"=={uid}");
        let ids = |listed: String| listed.lines().map(str::to_owned).collect();
        let of_pod = ids(self.ctr(["containers", "ls", "-q", &filter])?);
        let all = ids(self.ctr(["containers", "ls", "-q"])?);
        Ok(self.leftovers_beside(uid, &Containers { of_pod, all }))
    }

    /// The same, where the runtime has these containers.
    pub(crate) fn leftovers_beside(&self, uid: &str, containers: &Containers) -> Vec<String> {
        let of_pod = containers.of_pod.iter().map(|id| format!("container {id}"));
        let mut found: Vec<String> = of_pod.collect();
        found.extend(leftovers::of_pod(self.names(), uid));
        let reserved = containerd::reservations(self.names(), &self.layout);
        let orphans = reserved.into_iter().filter(|(_, owner)| !containers.all.contains(owner));
        found.extend(orphans.map(|(address, _)| format!("address {address}")));
        found
    }

    /// Lets a daemon that pulls images do so through the proxy of the environment, where there is a way out.
    pub(crate) fn pass_proxy(&self, command: &mut Command) {
        if self.egress {
            proxy::pass(command);
        }
    }

    /// Ends every process and removes everything: containers, shims, mounts, cgroups, namespaces,
    /// links, files.
    ///
    /// # Errors
    /// [`Error::LeftBehind`] lists what remains.
    pub fn teardown(mut self) -> Result<()> {
        let left = self.take_down();
        if left.is_empty() { Ok(()) } else { Err(Error::LeftBehind(left)) }
    }

    /// [`Host::teardown`]; nothing of a Kubernetes node may have appeared elsewhere on the machine
    /// since the host started: pod cgroups outside its own, links, mounts, iptables rules.
    ///
    /// # Panics
    /// With the list of what is left.
    #[allow(clippy::panic, reason = "an assertion")]
    #[track_caller]
    pub fn assert_clean(mut self) {
        let mut left = self.take_down();
        left.extend(Snapshot::take().grown_since(&self.before));
        if !left.is_empty() {
            panic!("{}", Error::LeftBehind(left));
        }
    }

    fn take_down(&mut self) -> Vec<String> {
        self.up = false;
        let left = leftovers::sweep(self.names());
        // Reaps it.
        self.containerd = None;
        left
    }

    fn names(&self) -> Names {
        self.slot.names
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.up {
            return;
        }
        // Not removed in order: a step or a test failed, and the logs are about to be removed.
        for (name, tail) in log_tails(&self.log_dir(), 30) {
            say(&format!("--- {name}, the end:\n{tail}"));
        }
        let left = self.take_down();
        if !left.is_empty() {
            say(&Error::LeftBehind(left).to_string());
        }
    }
}

/// To stderr, ignoring errors: a panic here would prevent the removal.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The names and last `lines` lines of the logs in a folder.
pub fn log_tails(folder: &Path, lines: usize) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut tails: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let text = String::from_utf8_lossy(&fs::read(entry.path()).ok()?).into_owned();
            Some((entry.file_name().to_string_lossy().into_owned(), tail_of(&text, lines)))
        })
        .collect();
    tails.sort();
    tails
}

/// Removes what hosts of killed owners left. Returns the names of those hosts.
///
/// # Errors
/// [`Error::LeftBehind`] when something cannot be removed.
pub fn sweep_abandoned() -> Result<Vec<String>> {
    let mut swept = Vec::new();
    for slot in Slot::abandoned()? {
        let left = leftovers::sweep(slot.names);
        if !left.is_empty() {
            return Err(Error::LeftBehind(left));
        }
        swept.push(slot.names.name());
    }
    Ok(swept)
}
