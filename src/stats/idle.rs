//! Pods that have done nothing since they were read last: most of a full node's. All that is to be
//! known of one is a look at two files then, in place of dozens.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::cgroup::Cgroup;
use super::snapshot::{Look, PodGroup};

/// What was read of a pod that does nothing holds so long. What the kernel does on its behalf shows
/// late, as when it writes pages back to a disk, and so does a change of its limits.
const AGE: Duration = Duration::from_secs(60);

impl PodGroup {
    /// The same at this moment; `None` if the pod may have done something since. Whatever its
    /// processes do takes CPU time, and whatever the kernel gives to it or takes from it is memory:
    /// the pod's own cgroup counts both for those below. Packets it does not count.
    pub(super) fn again(&self, cgroup: &Cgroup, look: &mut Look<'_>) -> Option<Self> {
        let reading = &self.own.as_ref()?.reading;
        let is_calm = self.groups().all(|group| group.reading.pressure.is_calm());
        if !is_calm || self.read.elapsed() > AGE {
            return None;
        }
        let cpu = cgroup.cpu(&mut look.reader).ok()?.total;
        let memory = cgroup.memory_usage(&mut look.reader).ok()?;
        if (cpu, memory) != (reading.cpu?.total, reading.memory?.memory.usage) {
            return None;
        }
        let mut same = self.clone();
        let now = Timestamp::now();
        same.groups_mut().for_each(|group| group.reading.at = now);
        same.sandboxes.iter_mut().for_each(|run| look.network(&mut run.group));
        Some(same)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Instant;

    use super::super::cgroup::{Detail, Hierarchies};
    use super::super::fixture;
    use super::super::opened::Opened;
    use super::super::snapshot::Job;
    use super::*;

    /// A cgroup of v1 with all controllers in one directory.
    fn write(dir: &Path, cpu: u64, memory: u64) {
        fs::create_dir_all(dir).unwrap();
        let files = [
            ("cpuacct.usage", cpu.to_string()),
            ("memory.usage_in_bytes", memory.to_string()),
            ("memory.stat", format!("total_rss {memory}\n")),
            ("cgroup.clone_children", String::new()),
        ];
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    #[test]
    fn a_pod_that_does_nothing_is_told_again_and_one_that_does_is_read_again() {
        let root = tempfile::tempdir().unwrap();
        let (own, below) = (root.path().join("pod1"), root.path().join("pod1/c1"));
        let change = |cpu, memory| {
            write(&own, cpu, memory);
            write(&below, cpu + 1, memory);
        };
        change(10, 100);
        let opened = Opened::default();
        let mut look = Look::new(Detail::Everything, &opened).unwrap();
        let cgroup = Cgroup::root(&Hierarchies::at(root.path(), false)).child("pod1");
        let containers = vec![fixture::container("c1", "c", fixture::AT)];
        let pod = fixture::pod("a", "1", fixture::AT, containers).pod;
        let mut read = |pod: &Arc<_>, before: Option<&PodGroup>| {
            let job = Job { pod: Arc::clone(pod), cgroup: cgroup.clone(), containers: None };
            job.read(before, &mut look).unwrap()
        };
        let used = |pod: &PodGroup| pod.containers[0].group.reading.cpu.unwrap().total;
        let first = read(&pod, None);
        assert_eq!(used(&first), 11);
        // In the kernel it could not change alone: so it shows that nobody looks.
        write(&below, 99, 100);
        let same = read(&pod, Some(&first));
        assert_eq!(used(&same), 11);
        assert!(same.own.as_ref().unwrap().reading.at > first.own.as_ref().unwrap().reading.at);
        assert_eq!(same.read, first.read, "it gets old though it is told again");

        let other = Arc::new((*pod).clone());
        assert_eq!(used(&read(&other, Some(&first))), 99, "it runs something else");
        if let Some(read_then) = Instant::now().checked_sub(AGE + Duration::from_secs(1)) {
            let old = PodGroup { read: read_then, ..first.clone() };
            assert_eq!(used(&read(&pod, Some(&old))), 99, "that was long ago");
        }
        let mut waiting = first.clone();
        waiting.containers[0].group.reading.pressure.cpu = Some(Default::default());
        assert_eq!(used(&read(&pod, Some(&waiting))), 11, "calm");
        let stalls = waiting.containers[0].group.reading.pressure.cpu.as_mut().unwrap();
        stalls.full.avg300 = 0.01;
        assert_eq!(used(&read(&pod, Some(&waiting))), 99, "its averages sink");
        write(&own, 10, 101);
        assert_eq!(used(&read(&pod, Some(&first))), 99, "its memory is another");
        change(12, 100);
        assert_eq!(used(&read(&pod, Some(&first))), 13);
        fs::remove_dir_all(&own).unwrap();
        let job = Job { pod, cgroup, containers: None };
        assert!(job.read(Some(&first), &mut look).is_none(), "it is gone");
    }
}
