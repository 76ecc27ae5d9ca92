//! Pods that have done nothing since they were read last: most of a full node's. All that is to be
//! known of one is a look at two files then, or at its memory, in place of dozens of files.

use std::ops::RangeInclusive;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use longshore_pod::usage::Memory;

use super::cgroup::{Cgroup, MemoryUse, Reader};
use super::snapshot::{Look, PodGroup};

/// What was read of a pod that does nothing holds so many times as long as it had done nothing by
/// then...
const TIMES: u32 = 4;
/// ...in these bounds. What the kernel does on its behalf shows late, as when it writes pages back to a
/// disk.
const AGE: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(600);

impl PodGroup {
    /// Whether its processes have done nothing since: whatever they do takes CPU time, and the pod's
    /// own cgroup counts that of those below. Packets it does not count.
    pub(super) fn is_idle(&self, cgroup: &Cgroup, reader: &mut Reader) -> bool {
        let cpu = self.own.as_ref().and_then(|own| own.reading.cpu);
        cpu.is_some_and(|then| cgroup.cpu(reader).is_ok_and(|now| now.total == then.total))
    }

    /// Whether what was read of it is still good if it is idle.
    pub(super) fn holds(&self) -> bool {
        let idle = self.read.saturating_duration_since(self.idle_since);
        let is_calm = self.groups().all(|group| group.reading.pressure.is_calm());
        let age = idle.saturating_mul(TIMES).clamp(*AGE.start(), *AGE.end());
        is_calm && self.read.elapsed() <= age
    }

    /// The same at this moment, but for memory, which the kernel takes also from those that are idle.
    /// `None` if it cannot be read.
    pub(super) fn again(&self, cgroup: &Cgroup, look: &mut Look<'_>) -> Option<Self> {
        let then = self.own.as_ref()?.reading.memory?.memory.usage;
        let mut same = self.clone();
        if cgroup.memory_usage(&mut look.reader).ok()? != then {
            for group in same.groups_mut() {
                // Empty for the own one.
                let name = group.path.strip_prefix(&cgroup.path()).unwrap_or_default();
                let below = cgroup.child(name.trim_start_matches('/'));
                let memory = group.reading.memory.as_mut()?;
                *memory = memory.after(below.memory_in_use(&mut look.reader).ok()?);
            }
        }
        let now = Timestamp::now();
        same.groups_mut().for_each(|group| group.reading.at = now);
        same.sandboxes.iter_mut().for_each(|run| look.network(&mut run.group));
        Some(same)
    }
}

impl MemoryUse {
    /// What is known when this was found to be in use since: limits stay, and marks of the past.
    fn after(&self, now: Self) -> Self {
        let Self { swap_limit, peak, failures, reserved, .. } = *self;
        let memory = Memory { limit: self.memory.limit, ..now.memory };
        let kernel = now.kernel.or(self.kernel);
        Self { memory, kernel, swap_limit, peak, failures, reserved, ..now }
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
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        if let (Some(read_then), Some(since)) = (ago(100), ago(200 + 1)) {
            let old = PodGroup { read: read_then, idle_since: read_then, ..first.clone() };
            let anew = read(&pod, Some(&old));
            assert_eq!(used(&anew), 99, "that was long ago");
            assert_eq!(anew.idle_since, read_then, "it is idle all the same");
            let lazy = PodGroup { idle_since: since, ..old };
            assert_eq!(used(&read(&pod, Some(&lazy))), 11, "it had been idle for longer");
        }
        if let (Some(read_then), Some(since)) = (ago(601), ago(6_000)) {
            let lazy = PodGroup { read: read_then, idle_since: since, ..first.clone() };
            assert_eq!(used(&read(&pod, Some(&lazy))), 99, "nothing holds for ever");
        }
        let mut waiting = first.clone();
        waiting.containers[0].group.reading.pressure.cpu = Some(Default::default());
        assert_eq!(used(&read(&pod, Some(&waiting))), 11, "calm");
        let stalls = waiting.containers[0].group.reading.pressure.cpu.as_mut().unwrap();
        stalls.full.avg300 = 0.01;
        assert_eq!(used(&read(&pod, Some(&waiting))), 99, "its averages sink");
        write(&own, 10, 101);
        write(&below, 99, 60);
        let squeezed = read(&pod, Some(&first));
        let memory = |pod: &PodGroup| {
            let of_all = pod.groups().map(|group| group.reading.memory.unwrap().memory);
            of_all.map(|memory| (memory.usage, memory.rss)).collect::<Vec<_>>()
        };
        assert_eq!(memory(&squeezed), [(101, 101), (60, 60)], "the kernel has taken some");
        assert_eq!(used(&squeezed), 11, "nothing else is read");
        change(12, 100);
        let busy = read(&pod, Some(&first));
        assert_eq!((used(&busy), busy.idle_since), (13, busy.read));
        fs::remove_dir_all(&own).unwrap();
        let job = Job { pod, cgroup, containers: None };
        assert!(job.read(Some(&first), &mut look).is_none(), "it is gone");
    }
}
