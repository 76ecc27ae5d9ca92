//! What there is to read of one cgroup, and of one pod.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_pod::observed::ObservedPod;

use super::cgroup::{Cgroup, Detail, Reader, container_id};
use super::opened::Opened;
use super::process::{Proc, Processes};
use super::snapshot::{Group, PodGroup, Run, Snapshot};

/// So long, what was counted of the machine's own processes holds: there may be hundreds, and v1 sorts
/// all their threads for who asks.
const COUNTED: Duration = Duration::from_secs(300);

/// One thread's tools.
pub(super) struct Look<'a> {
    pub(super) detail: Detail,
    proc: Proc,
    pub(super) reader: Reader,
    opened: &'a Opened,
}

impl<'a> Look<'a> {
    pub(super) fn new(detail: Detail, opened: &'a Opened) -> io::Result<Self> {
        Ok(Self { detail, proc: Proc::open()?, reader: Reader::default(), opened })
    }

    /// The error says that it is not there.
    pub(super) fn group(&mut self, cgroup: &Cgroup) -> io::Result<Group> {
        let processes = self.processes(cgroup);
        self.group_of(cgroup, processes)
    }

    /// The root of all cgroups, and when its processes were counted.
    pub(super) fn root(
        &mut self,
        cgroup: &Cgroup,
        before: Option<&Snapshot>,
    ) -> io::Result<(Group, Instant)> {
        let known = before.filter(|before| before.counted.elapsed() <= COUNTED);
        let (counted, processes) = match known {
            Some(known) => (known.counted, known.node.processes),
            None => (Instant::now(), self.processes(cgroup)),
        };
        let mut group = self.group_of(cgroup, processes)?;
        if self.detail >= Detail::Load {
            group.network = self.proc.network(None, &mut self.reader);
        }
        Ok((group, counted))
    }

    fn group_of(&mut self, cgroup: &Cgroup, processes: Processes) -> io::Result<Group> {
        let created = cgroup.created()?;
        let reading = cgroup.read(self.detail, &mut self.reader);
        let (path, network) = (cgroup.path(), Vec::new());
        Ok(Group { path, created, reading, nano_cores: None, processes, network })
    }

    fn processes(&mut self, cgroup: &Cgroup) -> Processes {
        match self.detail {
            Detail::Usage => Processes::default(),
            Detail::Load => self.proc.processes(cgroup, None, &mut self.reader),
            Detail::Everything => self.proc.processes(cgroup, Some(self.opened), &mut self.reader),
        }
    }

    /// The network devices of a sandbox's processes.
    pub(super) fn network(&mut self, group: &mut Group) {
        if let Some(first) = group.processes.first
            && self.detail >= Detail::Load
        {
            group.network = self.proc.network(Some(first), &mut self.reader);
        }
    }

    /// The cgroups right below that belong to the pod.
    fn runs(&mut self, cgroup: &Cgroup, names: &[String], found: &mut PodGroup) {
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
    pub(super) cgroup: Cgroup,
    /// Where pods have no cgroup: the names of those of its containers.
    pub(super) containers: Option<Vec<String>>,
}

impl Job {
    /// The pod as it is now. What was known of it before counts if it runs what it ran then.
    pub(super) fn read(self, before: Option<&PodGroup>, look: &mut Look<'_>) -> Option<PodGroup> {
        let before = before.filter(|before| Arc::ptr_eq(&before.pod, &self.pod));
        let idle = before.filter(|before| before.is_idle(&self.cgroup, &mut look.reader));
        let good = idle.filter(|idle| idle.holds());
        if let Some(same) = good.and_then(|good| good.again(&self.cgroup, look)) {
            return Some(same);
        }
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
                look.runs(&self.cgroup, &self.cgroup.children(), &mut found);
            }
            Some(names) => look.runs(&self.cgroup, &names, &mut found),
        }
        Some(found)
    }
}
