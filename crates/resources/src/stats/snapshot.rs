//! All cgroups that the server tells of, read in one go: the machine, the levels of pods, pods with
//! their sandboxes and containers, and the daemons that pods depend on.
//!
//! Which pods there are is seen by their cgroups, and whose they are by what the observer knows. A
//! few threads read, as most of the time goes by in the kernel. A pod that has done nothing since
//! the snapshot before is told from that: a look at two files in place of dozens.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use longshore_base::panics;
use longshore_pod::observed::{Container, ObservedPod, Sandbox};

use super::Shared;
use super::cgroup::{Cgroup, Detail, Reading, Watch, container_id, is_level, pod_uid};
use super::cgroup_reader::{CgroupReader, Job};
use super::devices::Devices;
use super::links::{End, Links};
use super::machine::Machine;
use super::process::{Interface, Processes};
use super::system::SystemGroups;

/// Threads that read at the same time.
const THREADS: usize = 4;
/// Fewer pods are not worth a thread of their own.
const WORTH_A_THREAD: usize = 8;

/// What the machine and its cgroups use, at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// How much was read.
    pub detail: Detail,
    /// The machine's memory, swap and process ids.
    pub machine: Machine,
    /// The root of all cgroups.
    pub node: Group,
    /// The cgroup of all pods (the first, if there is any) and those of their classes.
    pub levels: Vec<Group>,
    /// Daemons: `kubelet`, `runtime` and `misc`, as far as they have a cgroup.
    pub system: Vec<(&'static str, Group)>,
    /// Pods, by namespace and name.
    pub pods: Vec<PodGroup>,
    /// Block devices, at [`Detail::Everything`].
    pub devices: Devices,
    /// What ran on the node then.
    pub(super) observed: Vec<Arc<ObservedPod>>,
}

/// A cgroup.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its path from the hierarchies' roots down.
    pub path: String,
    /// When it was made, as well as the kernel can tell.
    pub created: Option<Timestamp>,
    /// Its figures.
    pub reading: Reading,
    /// CPU time a second, in nanoseconds, since an earlier reading.
    pub nano_cores: Option<u64>,
    /// Its own processes.
    pub processes: Processes,
    /// When they were counted.
    pub(super) counted: Instant,
    /// The network devices of its processes: of sandboxes, and of the machine.
    pub network: Vec<Interface>,
    /// The other end of a sandbox's device.
    pub(super) end: End,
}

/// A pod's cgroups.
#[derive(Clone, Debug)]
pub struct PodGroup {
    /// Whose they are.
    pub pod: Arc<ObservedPod>,
    /// When all its files were read; what it told since was found to be the same.
    pub(super) read: Instant,
    /// Since when it has done nothing, or when it was read if it did something.
    pub(super) idle_since: Instant,
    /// When its reads and writes were read.
    pub(super) read_io: Instant,
    /// What tells whether it has done something; `None` while it does.
    pub(super) watch: Option<Arc<Watch>>,
    /// That of the pod as a whole; `None` where pods have none.
    pub own: Option<Group>,
    /// Those of sandboxes.
    pub sandboxes: Vec<Run>,
    /// Those of containers, by name.
    pub containers: Vec<Run>,
}

/// The cgroup of a sandbox or a container.
#[derive(Clone, Debug)]
pub struct Run {
    /// Where it is among what runs of the pod.
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

    /// The newest run of each container: one that ends may have its cgroup still.
    pub fn newest(&self) -> impl Iterator<Item = (&Container, &Run)> {
        let runs = self.containers.iter().filter_map(|run| Some((self.container(run)?, run)));
        runs.filter(|(container, run)| {
            let newer = self.containers.iter().filter(|other| other.index < run.index);
            !newer
                .filter_map(|other| self.container(other))
                .any(|other| other.name == container.name)
        })
    }

    /// What pods are sorted by.
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
    /// All cgroups, the machine's first and each before those in it.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        let pods = self.pods.iter().flat_map(PodGroup::groups);
        let system = self.system.iter().map(|(_, group)| group);
        std::iter::once(&self.node).chain(&self.levels).chain(system).chain(pods)
    }

    /// Pods, each name once: of one that was made again while it ended, the newer.
    pub fn living(&self) -> impl Iterator<Item = &PodGroup> {
        let same = |a: &PodGroup, b: &PodGroup| {
            (&a.pod.namespace, &a.pod.name) == (&b.pod.namespace, &b.pod.name)
        };
        let made = |pod: &PodGroup| pod.pod.sandboxes.first().map(|sandbox| sandbox.created_at);
        self.pods.chunk_by(same).filter_map(move |one| one.iter().max_by_key(|pod| made(pod)))
    }

    /// Whether this still runs, and nothing else.
    pub(super) fn is_of(&self, observed: &[Arc<ObservedPod>]) -> bool {
        let same = |(then, now): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(then, now);
        self.observed.len() == observed.len() && self.observed.iter().zip(observed).all(same)
    }

    pub(super) fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        let pods = self.pods.iter_mut().flat_map(PodGroup::groups_mut);
        let system = self.system.iter_mut().map(|(_, group)| group);
        std::iter::once(&mut self.node).chain(&mut self.levels).chain(system).chain(pods)
    }

    /// Read it all, but for pods that have done nothing since the one before, which must be no less
    /// detailed. Blocks.
    pub(super) fn read(
        shared: &Shared,
        detail: Detail,
        system: &SystemGroups,
        before: Option<&Self>,
    ) -> io::Result<Self> {
        let links = Links::at(detail);
        let tools = || CgroupReader::new(detail, &shared.opened, &links);
        let mut look = tools()?;
        let known = before.map(|before| &before.node);
        let node = look.root(&Cgroup::root(&shared.hierarchies), known)?;
        let system = system.named().filter_map(|(name, path)| {
            let cgroup = Cgroup::new(&shared.hierarchies, path.as_ref());
            let mut known = before.into_iter().flat_map(|before| &before.system);
            let known = known.find(|(other, _)| *other == name).map(|(_, group)| group);
            Some((name, look.daemon(&cgroup, known).ok()?))
        });
        let system = system.collect();
        let observed = shared.observer.all();
        let known = observed.iter().map(|pod| (pod.uid.replace('-', "_"), pod.clone())).collect();
        let mut tree = Tree { known, levels: Vec::new(), pods: Vec::new() };
        let parent = shared.cgroups.of_pods();
        match &parent {
            Some(path) => tree.walk(&Cgroup::new(&shared.hierarchies, path), &mut look),
            None => tree.flat(shared),
        }
        let before = before.map(|before| &before.pods).into_iter().flatten();
        let before = before.map(|pod| (pod.pod.uid.as_str(), pod)).collect();
        let mut pods = read_pods(tree.pods, &before, &mut look, &tools)?;
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

/// What is found on the way down.
struct Tree {
    /// Pods by UID, with `_` for dashes.
    known: HashMap<String, Arc<ObservedPod>>,
    levels: Vec<Group>,
    pods: Vec<Job>,
}

impl Tree {
    fn walk(&mut self, cgroup: &Cgroup, look: &mut CgroupReader<'_>) {
        let Ok(level) = look.group(cgroup) else { return };
        self.levels.push(level);
        for name in cgroup.children() {
            if let Some(pod) = pod_uid(&name).and_then(|uid| self.known.get(&uid)) {
                let (pod, cgroup) = (pod.clone(), cgroup.child(&name));
                self.pods.push(Job::new(pod, cgroup, None));
            } else if is_level(&name) {
                self.walk(&cgroup.child(&name), look);
            }
        }
    }

    /// Without cgroups of their own, the containers of all pods stand side by side.
    fn flat(&mut self, shared: &Shared) {
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

/// Pods that have done nothing are told from before, which is not worth a thread; the others are shared
/// out among some.
fn read_pods<'a>(
    jobs: Vec<Job>,
    before: &HashMap<&str, &PodGroup>,
    look: &mut CgroupReader<'a>,
    tools: &(impl Fn() -> io::Result<CgroupReader<'a>> + Sync),
) -> io::Result<Vec<PodGroup>> {
    let known = |job: &Job| before.get(job.pod.uid.as_str()).copied();
    let (mut pods, mut left) = (Vec::with_capacity(jobs.len()), Vec::new());
    for mut job in jobs {
        match job.again(known(&job), look) {
            Some(same) => pods.push(same),
            None => left.push(job),
        }
    }
    let threads = (left.len() / WORTH_A_THREAD).clamp(1, THREADS);
    let left = Mutex::new(left);
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let read = |look: &mut CgroupReader<'a>| -> Vec<PodGroup> {
        let jobs = std::iter::from_fn(next);
        jobs.filter_map(|job| {
            let before = known(&job);
            job.read(before, look)
        })
        .collect()
    };
    thread::scope(|scope| {
        let work = || panics::contain_sync(|| tools().map(|mut look| read(&mut look)));
        // With fewer threads than wanted, or none, it takes longer, and no more.
        let others = (1..threads)
            .filter_map(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect::<Vec<_>>();
        pods.extend(read(look));
        for other in others {
            let Ok(Ok(read)) = other.join() else {
                return Err(io::Error::other("a reading was given up"));
            };
            pods.extend(read?);
        }
        Ok(pods)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use super::*;
    use crate::stats::cgroup::Hierarchies;
    use crate::stats::opened::Opened;

    /// No address space has room for such a stack, so no thread can be made.
    const HUGE: usize = 1 << 47;

    /// Finding 13: a scrape on a machine that has no thread to give ended the daemon.
    #[test]
    fn a_reading_needs_no_thread_of_its_own() {
        let alone = "RUST_MIN_STACK";
        if std::env::var(alone).ok() != Some(HUGE.to_string()) {
            let test = "stats::snapshot::tests::a_reading_needs_no_thread_of_its_own";
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
        let (opened, links) = (Opened::default(), Links::default());
        let tools = || CgroupReader::new(Detail::Load, &opened, &links);
        let job = || Job::new(Arc::default(), cgroup.clone(), Some(Vec::new()));
        let jobs = (0..WORTH_A_THREAD * THREADS).map(|_| job()).collect();
        let pods = read_pods(jobs, &HashMap::new(), &mut tools().unwrap(), &tools).unwrap();
        assert_eq!(pods.len(), WORTH_A_THREAD * THREADS);
    }
}
