//! What there is to read of one cgroup, and of one pod.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_pod::observed::ObservedPod;

use super::cgroup::{Cgroup, Detail, Reader, container_id};
use super::links::{End, Links};
use super::opened::Opened;
use super::process::{Proc, Processes};
use super::snapshot::{Group, PodGroup, Run};

/// So long, what was counted of the processes in the root holds: there may be hundreds, and v1 sorts
/// all their threads for who asks.
const COUNTED: Duration = Duration::from_secs(300);
/// And of those in the cgroups of daemons, a runtime's with the shims of all containers.
const COUNTED_DAEMONS: Duration = Duration::from_secs(60);

/// One thread's tools.
pub(super) struct CgroupReader<'a> {
    pub(super) detail: Detail,
    proc: Proc,
    pub(super) reader: Reader,
    opened: &'a Opened,
    links: &'a Links,
}

impl<'a> CgroupReader<'a> {
    pub(super) fn new(detail: Detail, opened: &'a Opened, links: &'a Links) -> io::Result<Self> {
        Ok(Self { detail, proc: Proc::open()?, reader: Reader::default(), opened, links })
    }

    /// The error says that it is not there.
    pub(super) fn group(&mut self, cgroup: &Cgroup) -> io::Result<Group> {
        self.counted(cgroup, None, Duration::ZERO)
    }

    /// The root of all cgroups, and as it was before.
    pub(super) fn root(&mut self, cgroup: &Cgroup, before: Option<&Group>) -> io::Result<Group> {
        let mut group = self.counted(cgroup, before, COUNTED)?;
        if self.detail >= Detail::Load {
            group.network = self.proc.network(None, &mut self.reader);
        }
        Ok(group)
    }

    /// The cgroup of a daemon, and as it was before.
    pub(super) fn daemon(&mut self, cgroup: &Cgroup, before: Option<&Group>) -> io::Result<Group> {
        self.counted(cgroup, before, COUNTED_DAEMONS)
    }

    /// One whose processes need not be counted again so soon.
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
        let (network, end) = (Vec::new(), End::Unknown);
        Ok(Group { path, created, reading, nano_cores: None, processes, counted, network, end })
    }

    fn processes(&mut self, cgroup: &Cgroup) -> Processes {
        match self.detail {
            Detail::Usage => Processes::default(),
            Detail::Load => self.proc.processes(cgroup, None, &mut self.reader),
            Detail::Everything => self.proc.processes(cgroup, Some(self.opened), &mut self.reader),
        }
    }

    /// The network devices of a sandbox's processes, of which something may be known from before.
    pub(super) fn network(&mut self, group: &mut Group) {
        let Some(first) = group.processes.first else { return };
        let Group { network, end, .. } = group;
        if self.detail >= Detail::Load && !self.links.renew(end, network) {
            let seen = self.proc.network(Some(first), &mut self.reader);
            *end = self.links.end(end, first, network, &seen);
            *network = seen;
        }
    }

    /// The cgroups right below that belong to the pod, of which something may be known.
    fn runs(
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
                (group.network, group.end) = (known.group.network.clone(), known.group.end);
            }
            self.network(&mut group);
            found.sandboxes.push(Run { index, group });
        }
        let pod = found.pod.clone();
        let name = |run: &Run| pod.containers.get(run.index).map(|container| &container.name);
        found.containers.sort_by(|a, b| name(a).cmp(&name(b)).then(a.index.cmp(&b.index)));
    }
}

/// A pod that is to be read.
pub(super) struct Job {
    pub(super) pod: Arc<ObservedPod>,
    /// The pod's own cgroup, or the one that it shares with others.
    cgroup: Cgroup,
    /// Where pods have no cgroup: the names of those of its containers.
    containers: Option<Vec<String>>,
    /// Whether it was found to have done nothing.
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

    /// The pod as it was before, if it runs what it ran then and has done nothing since, but for what
    /// changes by itself. If not, it is to be read.
    pub(super) fn again(
        &mut self,
        before: Option<&PodGroup>,
        look: &mut CgroupReader<'_>,
    ) -> Option<PodGroup> {
        let before = before.filter(|before| Arc::ptr_eq(&before.pod, &self.pod))?;
        self.idle = before.is_idle(&self.cgroup, &mut look.reader);
        if !self.idle || !before.holds() {
            return None;
        }
        before.again(&self.cgroup, look)
    }

    /// All files of the pod. What was known of it before counts if it runs what it ran then.
    pub(super) fn read(
        self,
        before: Option<&PodGroup>,
        look: &mut CgroupReader<'_>,
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
                // First: what the pod does while its containers are read is to show next time.
                found.own = Some(look.group(&self.cgroup).ok()?);
                look.runs(&self.cgroup, &self.cgroup.children(), before, &mut found);
            }
            Some(names) => look.runs(&self.cgroup, &names, before, &mut found),
        }
        Some(found)
    }
}
