//! A snapshot of all cgroups for the server: the machine, the QoS levels, pods with their sandboxes
//! and containers, and system daemons.
//!
//! Pods are found by their cgroups and identified by the observer. A few threads read in parallel,
//! as most of the time is spent in the kernel. Idle pods are copied from the previous snapshot.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use longshore_base::panics;
use longshore_pod::observed::{Container, ObservedPod, Sandbox};
use parking_lot::Mutex;

use super::Shared;
use super::cgroup::{Cgroup, Detail, Reading, Watch, container_id, is_level, pod_uid};
use super::cgroup_reader::{CgroupReader, Job};
use super::devices::Devices;
use super::links::{Links, Peer};
use super::machine::Machine;
use super::process::{Interface, Processes};
use super::system::SystemGroups;

/// Threads that read at the same time.
const THREADS: usize = 4;
/// Minimum number of pods per thread.
const WORTH_A_THREAD: usize = 8;

/// The stats of the machine and its cgroups at one time.
#[derive(Debug)]
pub struct Snapshot {
    /// How much was read.
    pub detail: Detail,
    /// The machine's memory, swap and process ids.
    pub machine: Machine,
    /// The root cgroup.
    pub node: Group,
    /// The cgroup of all pods (the first, if any) and those of QoS classes.
    pub levels: Vec<Group>,
    /// System daemons with a cgroup: `kubelet`, `runtime` and `misc`.
    pub system: Vec<(&'static str, Group)>,
    /// Pods, by namespace and name.
    pub pods: Vec<PodGroup>,
    /// Block devices, at [`Detail::Everything`].
    pub devices: Devices,
    /// The pods that were running.
    pub(super) observed: Vec<Arc<ObservedPod>>,
}

/// A cgroup.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its absolute path.
    pub path: String,
    /// Its approximate creation time.
    pub created: Option<Timestamp>,
    /// Its stats.
    pub reading: Reading,
    /// CPU nanoseconds per second, since the previous sample.
    pub nano_cores: Option<u64>,
    /// Its own processes.
    pub processes: Processes,
    /// When they were counted.
    pub(super) counted: Instant,
    /// The network devices of its processes: of sandboxes, and of the machine.
    pub network: Vec<Interface>,
    /// The host-side peer of a sandbox's device.
    pub(super) peer: Peer,
}

/// A pod's cgroups.
#[derive(Clone, Debug)]
pub struct PodGroup {
    /// The pod.
    pub pod: Arc<ObservedPod>,
    /// When all its files were read.
    pub(super) read: Instant,
    /// Since when it is idle; the time of the read if it is not.
    pub(super) idle_since: Instant,
    /// When its I/O stats were read.
    pub(super) read_io: Instant,
    /// Open files to check for activity; `None` while it is active.
    pub(super) watch: Option<Arc<Watch>>,
    /// The pod's cgroup; `None` without pod cgroups.
    pub own: Option<Group>,
    /// The cgroups of sandboxes.
    pub sandboxes: Vec<Run>,
    /// The cgroups of containers, by name.
    pub containers: Vec<Run>,
}

/// The cgroup of a sandbox or a container.
#[derive(Clone, Debug)]
pub struct Run {
    /// The index among the pod's containers or sandboxes.
    pub(super) index: usize,
    /// The cgroup.
    pub group: Group,
}

impl PodGroup {
    /// The container of a run.
    pub fn container(&self, run: &Run) -> Option<&Container> {
        self.pod.containers.get(run.index)
    }

    /// The sandbox of a run.
    pub fn sandbox(&self, run: &Run) -> Option<&Sandbox> {
        self.pod.sandboxes.get(run.index)
    }

    /// The newest instance of each container: an earlier one may still have its cgroup.
    pub fn newest(&self) -> impl Iterator<Item = (&Container, &Run)> {
        let runs = self.containers.iter().filter_map(|run| Some((self.container(run)?, run)));
        runs.filter(|(container, run)| {
            let newer = self.containers.iter().filter(|other| other.index < run.index);
            !newer
                .filter_map(|other| self.container(other))
                .any(|other| other.name == container.name)
        })
    }

    /// The sort key.
    fn key(&self) -> (&str, &str, &str) {
        (&self.pod.namespace, &self.pod.name, &self.pod.uid)
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &Group> {
        let runs = self.sandboxes.iter().chain(&self.containers).map(|run| &run.group);
        self.own.iter().chain(runs)
    }

    pub(super) fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        let runs = self.sandboxes.iter_mut().chain(&mut self.containers);
        self.own.iter_mut().chain(runs.map(|run| &mut run.group))
    }
}

impl Snapshot {
    /// All cgroups, parents first.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        let pods = self.pods.iter().flat_map(PodGroup::groups);
        let system = self.system.iter().map(|(_, group)| group);
        std::iter::once(&self.node).chain(&self.levels).chain(system).chain(pods)
    }

    /// The newest pod of each name.
    pub fn latest_pods(&self) -> impl Iterator<Item = &PodGroup> {
        let same = |a: &PodGroup, b: &PodGroup| {
            (&a.pod.namespace, &a.pod.name) == (&b.pod.namespace, &b.pod.name)
        };
        let made = |pod: &PodGroup| pod.pod.sandboxes.first().map(|sandbox| sandbox.created_at);
        self.pods.chunk_by(same).filter_map(move |one| one.iter().max_by_key(|pod| made(pod)))
    }

    /// Whether the same pods and containers are running.
    pub(super) fn is_current(&self, observed: &[Arc<ObservedPod>]) -> bool {
        let same = |(then, now): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(then, now);
        self.observed.len() == observed.len() && self.observed.iter().zip(observed).all(same)
    }

    pub(super) fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        let pods = self.pods.iter_mut().flat_map(PodGroup::groups_mut);
        let system = self.system.iter_mut().map(|(_, group)| group);
        std::iter::once(&mut self.node).chain(&mut self.levels).chain(system).chain(pods)
    }

    /// Reads all cgroups, except for pods that are idle since the previous snapshot, which must
    /// have the same detail or more. Blocks.
    pub(super) fn read(
        shared: &Shared,
        detail: Detail,
        system: &SystemGroups,
        before: Option<&Self>,
    ) -> io::Result<Self> {
        let links = Links::at(detail);
        let new_reader = || CgroupReader::new(detail, &shared.open_files, &links);
        let mut reader = new_reader()?;
        let known = before.map(|before| &before.node);
        let node = reader.root(&Cgroup::root(&shared.hierarchies), known)?;
        let system = system.named().filter_map(|(name, path)| {
            let cgroup = Cgroup::new(&shared.hierarchies, path.as_ref());
            let mut known = before.into_iter().flat_map(|before| &before.system);
            let known = known.find(|(other, _)| *other == name).map(|(_, group)| group);
            Some((name, reader.daemon(&cgroup, known).ok()?))
        });
        let system = system.collect();
        let observed = shared.observer.all();
        let known = observed.iter().map(|pod| (pod.uid.replace('-', "_"), pod.clone())).collect();
        let mut tree = Tree { known, levels: Vec::new(), pods: Vec::new() };
        let parent = shared.cgroups.of_pods();
        match &parent {
            Some(path) => tree.walk(&Cgroup::new(&shared.hierarchies, path), &mut reader),
            None => tree.collect_without_pod_cgroups(shared),
        }
        let before = before.map(|before| &before.pods).into_iter().flatten();
        let before = before.map(|pod| (pod.pod.uid.as_str(), pod)).collect();
        let mut pods = read_pods(tree.pods, &before, &mut reader, &new_reader)?;
        pods.sort_by(|a, b| a.key().cmp(&b.key()));
        let devices = match detail {
            Detail::Everything => Devices::read(&shared.mounts),
            _ => Devices::default(),
        };
        let machine = Machine::read(&shared.hierarchies)?;
        let levels = tree.levels;
        Ok(Self { detail, machine, node, levels, system, pods, devices, observed })
    }
}

/// Pods and levels that were found.
struct Tree {
    /// Pods by UID, with `_` for dashes.
    known: HashMap<String, Arc<ObservedPod>>,
    levels: Vec<Group>,
    pods: Vec<Job>,
}

impl Tree {
    fn walk(&mut self, cgroup: &Cgroup, reader: &mut CgroupReader<'_>) {
        let Ok(level) = reader.group(cgroup) else { return };
        self.levels.push(level);
        for name in cgroup.children() {
            if let Some(pod) = pod_uid(&name).and_then(|uid| self.known.get(&uid)) {
                let (pod, cgroup) = (pod.clone(), cgroup.child(&name));
                self.pods.push(Job::new(pod, cgroup, None));
            } else if is_level(&name) {
                self.walk(&cgroup.child(&name), reader);
            }
        }
    }

    /// Without pod cgroups, the containers of all pods have the same parent.
    fn collect_without_pod_cgroups(&mut self, shared: &Shared) {
        let path = PathBuf::from(shared.cgroups.parent_of(&Default::default()));
        let cgroup = Cgroup::new(&shared.hierarchies, &path);
        let mut names = HashMap::<String, Vec<String>>::new();
        for name in cgroup.children() {
            names.entry(container_id(&name).to_owned()).or_default().push(name);
        }
        for pod in self.known.values() {
            let containers = pod.containers.iter().map(|container| &container.id);
            let ids = containers.chain(pod.sandboxes.iter().map(|sandbox| &sandbox.id));
            let found: Vec<String> = ids.filter_map(|id| names.remove(id)).flatten().collect();
            if !found.is_empty() {
                let (pod, cgroup) = (pod.clone(), cgroup.clone());
                self.pods.push(Job::new(pod, cgroup, Some(found)));
            }
        }
    }
}

/// Idle pods are copied from the previous snapshot; the others are read by several threads.
fn read_pods<'a>(
    jobs: Vec<Job>,
    before: &HashMap<&str, &PodGroup>,
    reader: &mut CgroupReader<'a>,
    new_reader: &(impl Fn() -> io::Result<CgroupReader<'a>> + Sync),
) -> io::Result<Vec<PodGroup>> {
    let known = |job: &Job| before.get(job.pod.uid.as_str()).copied();
    let (mut pods, mut remaining) = (Vec::with_capacity(jobs.len()), Vec::new());
    for mut job in jobs {
        match job.refreshed(known(&job), reader) {
            Some(same) => pods.push(same),
            None => remaining.push(job),
        }
    }
    let threads = (remaining.len() / WORTH_A_THREAD).clamp(1, THREADS);
    let remaining = Mutex::new(remaining);
    let next = || remaining.lock().pop();
    let read = |reader: &mut CgroupReader<'a>| -> Vec<PodGroup> {
        let jobs = std::iter::from_fn(next);
        jobs.filter_map(|job| {
            let before = known(&job);
            job.read(before, reader)
        })
        .collect()
    };
    thread::scope(|scope| {
        let work = || panics::contain_sync(|| new_reader().map(|mut reader| read(&mut reader)));
        // It also works with fewer threads, or none.
        let others = (1..threads)
            .filter_map(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect::<Vec<_>>();
        pods.extend(read(reader));
        for other in others {
            let Ok(Ok(read)) = other.join() else {
                return Err(io::Error::other("reading the cgroups of pods failed"));
            };
            pods.extend(read?);
        }
        Ok(pods)
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::stats::cgroup::Hierarchies;
    use crate::stats::open_files::OpenFiles;

    /// A stack size that makes thread creation fail.
    const HUGE: usize = 1 << 47;

    /// Finding 13: a scrape on a machine that has no thread to give ended the daemon.
    #[test]
    fn stats_snapshot_needs_no_blocking_thread() {
        let alone = "RUST_MIN_STACK";
        if std::env::var(alone).ok() != Some(HUGE.to_string()) {
            let test = "stats::snapshot::tests::stats_snapshot_needs_no_blocking_thread";
            let mut program = Command::new(std::env::current_exe().unwrap());
            program.args(["--exact", test, "--test-threads=1"]).env(alone, HUGE.to_string());
            let output = program.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        assert!(thread::Builder::new().spawn(|| ()).is_err(), "no thread is to be had");
        let dir = tempfile::tempdir().unwrap();
        let cgroup = Cgroup::root(&Hierarchies::at(dir.path(), false));
        let (open_files, links) = (OpenFiles::default(), Links::default());
        let new_reader = || CgroupReader::new(Detail::Load, &open_files, &links);
        let job = || Job::new(Arc::default(), cgroup.clone(), Some(Vec::new()));
        let jobs = (0..WORTH_A_THREAD * THREADS).map(|_| job()).collect();
        let pods =
            read_pods(jobs, &HashMap::new(), &mut new_reader().unwrap(), &new_reader).unwrap();
        assert_eq!(pods.len(), WORTH_A_THREAD * THREADS);
    }
}
