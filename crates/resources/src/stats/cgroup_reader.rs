//! Reads the stats of one cgroup, and of one pod.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_pod::observed::ObservedPod;

use super::cgroup::{Cgroup, Detail, Reader, container_id};
use super::links::{Links, Peer};
use super::open_files::OpenFiles;
use super::process::{Proc, Processes};
use super::snapshot::{Group, PodGroup, Run};

/// Maximum age of the process counts of the root cgroup: there may be hundreds, and v1 sorts all
/// their threads for each read.
const ROOT_PROCESSES_MAX_AGE: Duration = Duration::from_secs(300);
/// The same for the cgroups of daemons: the runtime's has the shims of all containers.
const DAEMON_PROCESSES_MAX_AGE: Duration = Duration::from_secs(60);

/// The state of one reading thread.
pub(super) struct CgroupReader<'a> {
    pub(super) detail: Detail,
    proc: Proc,
    pub(super) reader: Reader,
    open_files: &'a OpenFiles,
    links: &'a Links,
}

impl<'a> CgroupReader<'a> {
    pub(super) fn new(
        detail: Detail,
        open_files: &'a OpenFiles,
        links: &'a Links,
    ) -> io::Result<Self> {
        Ok(Self { detail, proc: Proc::open()?, reader: Reader::default(), open_files, links })
    }

    /// An error if it does not exist.
    pub(super) fn group(&mut self, cgroup: &Cgroup) -> io::Result<Group> {
        self.counted(cgroup, None, Duration::ZERO)
    }

    /// The root cgroup, with its previous sample.
    pub(super) fn root(&mut self, cgroup: &Cgroup, before: Option<&Group>) -> io::Result<Group> {
        let mut group = self.counted(cgroup, before, ROOT_PROCESSES_MAX_AGE)?;
        if self.detail >= Detail::Load {
            group.network = self.proc.network(None, &mut self.reader);
        }
        Ok(group)
    }

    /// The cgroup of a daemon, with its previous sample.
    pub(super) fn daemon(&mut self, cgroup: &Cgroup, before: Option<&Group>) -> io::Result<Group> {
        self.counted(cgroup, before, DAEMON_PROCESSES_MAX_AGE)
    }

    /// A cgroup whose process counts may be reused up to that age.
    fn counted(
        &mut self,
        cgroup: &Cgroup,
        before: Option<&Group>,
        age: Duration,
    ) -> io::Result<Group> {
        let path = cgroup.path();
        let known = before.filter(|before| before.path == path && before.counted.elapsed() <= age);
        let (counted, processes) = match known {
            Some(known) => (known.counted, known.processes),
            None => (Instant::now(), self.processes(cgroup)),
        };
        let created = cgroup.created()?;
        let reading = cgroup.read(self.detail, &mut self.reader);
        let (network, peer) = (Vec::new(), Peer::Unknown);
        Ok(Group { path, created, reading, nano_cores: None, processes, counted, network, peer })
    }

    fn processes(&mut self, cgroup: &Cgroup) -> Processes {
        match self.detail {
            Detail::Usage => Processes::default(),
            Detail::Load => self.proc.processes(cgroup, None, &mut self.reader),
            Detail::Everything => {
                self.proc.processes(cgroup, Some(self.open_files), &mut self.reader)
            }
        }
    }

    /// Reads the network devices of a sandbox, or updates the previous ones.
    pub(super) fn network(&mut self, group: &mut Group) {
        let Some(first) = group.processes.first else { return };
        let Group { network, peer, .. } = group;
        if self.detail >= Detail::Load && !self.links.update_from_peer(peer, network) {
            let seen = self.proc.network(Some(first), &mut self.reader);
            *peer = self.links.peer(peer, first, network, &seen);
            *network = seen;
        }
    }

    /// Reads the child cgroups of the pod's containers and sandboxes.
    fn read_containers(
        &mut self,
        cgroup: &Cgroup,
        names: &[String],
        before: Option<&PodGroup>,
        found: &mut PodGroup,
    ) {
        for name in names {
            let id = container_id(name);
            let pod = &found.pod;
            let container = pod.containers.iter().position(|container| container.id == id);
            let sandbox = pod.sandboxes.iter().position(|sandbox| sandbox.id == id);
            let Some(index) = container.or(sandbox) else { continue };
            let Ok(mut group) = self.group(&cgroup.child(name)) else { continue };
            if container.is_some() {
                found.containers.push(Run { index, group });
                continue;
            }
            let mut known = before.into_iter().flat_map(|before| &before.sandboxes);
            if let Some(known) = known.find(|known| known.group.path == group.path) {
                (group.network, group.peer) = (known.group.network.clone(), known.group.peer);
            }
            self.network(&mut group);
            found.sandboxes.push(Run { index, group });
        }
        let pod = found.pod.clone();
        let name = |run: &Run| pod.containers.get(run.index).map(|container| &container.name);
        found.containers.sort_by(|a, b| name(a).cmp(&name(b)).then(a.index.cmp(&b.index)));
    }
}

/// A pod to read.
pub(super) struct Job {
    pub(super) pod: Arc<ObservedPod>,
    /// The pod's cgroup, or the one that is shared with others.
    cgroup: Cgroup,
    /// Without pod cgroups: the names of its containers' cgroups.
    containers: Option<Vec<String>>,
    /// Whether it is idle.
    idle: bool,
}

impl Job {
    pub(super) fn new(
        pod: Arc<ObservedPod>,
        cgroup: Cgroup,
        containers: Option<Vec<String>>,
    ) -> Self {
        Self { pod, cgroup, containers, idle: false }
    }

    /// The previous sample, partly updated, if the pod has been idle since. Otherwise it must be
    /// read.
    pub(super) fn refreshed(
        &mut self,
        before: Option<&PodGroup>,
        reader: &mut CgroupReader<'_>,
    ) -> Option<PodGroup> {
        let before = before.filter(|before| Arc::ptr_eq(&before.pod, &self.pod))?;
        self.idle = before.is_idle(&self.cgroup, &mut reader.reader);
        if !self.idle || !before.is_fresh() {
            return None;
        }
        before.refreshed(&self.cgroup, reader)
    }

    /// Reads all files of the pod. The previous sample is used if the pod has the same containers.
    pub(super) fn read(
        self,
        before: Option<&PodGroup>,
        reader: &mut CgroupReader<'_>,
    ) -> Option<PodGroup> {
        let before = before.filter(|before| Arc::ptr_eq(&before.pod, &self.pod));
        let idle = before.filter(|_| self.idle);
        let read = Instant::now();
        let mut found = PodGroup {
            pod: self.pod,
            read,
            idle_since: idle.map_or(read, |idle| idle.idle_since),
            read_io: read,
            watch: idle.and_then(|idle| idle.watch.clone()),
            own: None,
            sandboxes: Vec::new(),
            containers: Vec::new(),
        };
        match self.containers {
            None => {
                // First, so that activity during the read shows in the next sample.
                found.own = Some(reader.group(&self.cgroup).ok()?);
                reader.read_containers(&self.cgroup, &self.cgroup.children(), before, &mut found);
            }
            Some(names) => reader.read_containers(&self.cgroup, &names, before, &mut found),
        }
        Some(found)
    }
}
