//! Idle pods, which have used no CPU time since the last sample: for these, only two files are
//! read, and what the kernel changes by itself, instead of dozens of files.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use longshore_pod::usage::Memory;

use super::cgroup::{Cgroup, Detail, MemoryUse, Reader, Watch};
use super::cgroup_reader::CgroupReader;
use super::snapshot::PodGroup;

/// Maximum age of the sample of an idle pod.
const MAX_AGE: Duration = Duration::from_secs(600);
/// How long the kernel may take to write dirty pages to disk.
const WRITEBACK_DELAY: Duration = Duration::from_secs(60);

impl PodGroup {
    /// Whether it has used no CPU time since; the pod's cgroup includes its children. Packets are
    /// not covered.
    pub(super) fn is_idle(&self, cgroup: &Cgroup, reader: &mut Reader) -> bool {
        let Some(then) = self.own.as_ref().and_then(|own| own.reading.cpu) else { return false };
        let now = match &self.watch {
            Some(watch) => watch.cpu(reader),
            None => cgroup.cpu(reader).map(|now| now.total),
        };
        now.is_ok_and(|now| now == then.total)
    }

    /// Whether the sample may be reused if the pod is idle.
    pub(super) fn is_fresh(&self) -> bool {
        self.read.elapsed() <= MAX_AGE
    }

    /// Whether its I/O was read after it had been idle for the writeback delay.
    pub(super) fn io_is_final(&self) -> bool {
        self.read_io.saturating_duration_since(self.idle_since) >= WRITEBACK_DELAY
    }

    /// The sample with updates of what changes while it is idle: reclaimed memory, pressure
    /// averages, delayed writes, and packets. `None` if that cannot be read.
    pub(super) fn refreshed(
        &self,
        cgroup: &Cgroup,
        cgroup_reader: &mut CgroupReader<'_>,
    ) -> Option<Self> {
        let mut same = self.clone();
        let watch = same.watch.take().or_else(|| Some(Arc::new(Watch::open(cgroup).ok()?)))?;
        let reader = &mut cgroup_reader.reader;
        let own = watch.memory(reader).ok()?;
        let reclaimed = own != self.own.as_ref()?.reading.memory?.memory.usage;
        let (now, at) = (Instant::now(), Timestamp::now());
        let finalizes_io = cgroup_reader.detail >= Detail::Everything
            && !self.io_is_final()
            && now.saturating_duration_since(self.idle_since) >= WRITEBACK_DELAY;
        let path = cgroup.path();
        for group in same.groups_mut() {
            // Empty for the pod's cgroup.
            let name = group.path.strip_prefix(&path).unwrap_or_default();
            let below = || cgroup.child(name.trim_start_matches('/'));
            let reading = &mut group.reading;
            reading.at = at;
            if reclaimed {
                let memory = reading.memory.as_mut()?;
                let usage = match name.is_empty() {
                    true => own,
                    false => below().memory_usage(reader).ok()?,
                };
                if usage != memory.memory.usage {
                    *memory = memory.after(below().memory_in_use(Some(usage), reader).ok()?);
                }
            }
            if !reading.pressure.is_calm() {
                reading.pressure = below().pressure(reader);
            }
            if finalizes_io {
                reading.io = below().io(reader);
            }
        }
        if finalizes_io {
            same.read_io = now;
        }
        same.watch = Some(watch);
        same.sandboxes.iter_mut().for_each(|run| cgroup_reader.network(&mut run.group));
        Some(same)
    }
}

impl MemoryUse {
    /// Merges current usage with the limits and high-water marks of this sample.
    fn after(&self, now: Self) -> Self {
        let Self { swap_limit, peak, failures, reserved, .. } = *self;
        let memory = Memory { limit: self.memory.limit, ..now.memory };
        let kernel = now.kernel.or(self.kernel);
        Self { memory, kernel, swap_limit, peak, failures, reserved, ..now }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Instant;

    use super::super::Stalls;
    use super::super::cgroup::{Detail, Hierarchies};
    use super::super::cgroup_reader::Job;
    use super::super::fixture;
    use super::super::links::Links;
    use super::super::open_files::OpenFiles;
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
    fn idle_pod_stats_are_cached() {
        let root = tempfile::tempdir().unwrap();
        let (own, below) = (root.path().join("pod1"), root.path().join("pod1/c1"));
        let change = |cpu, memory| {
            write(&own, cpu, memory);
            write(&below, cpu + 1, memory);
        };
        change(10, 100);
        let (open_files, links) = (OpenFiles::default(), Links::default());
        let mut reader = CgroupReader::new(Detail::Everything, &open_files, &links).unwrap();
        let cgroup = Cgroup::root(&Hierarchies::at(root.path(), false)).child("pod1");
        let containers = vec![fixture::container("c1", "c", fixture::AT)];
        let pod = fixture::pod("a", "1", fixture::AT, containers).pod;
        let mut read = |pod: &Arc<_>, before: Option<&PodGroup>| {
            let mut job = Job::new(Arc::clone(pod), cgroup.clone(), None);
            let same = job.refreshed(before, &mut reader);
            same.unwrap_or_else(|| job.read(before, &mut reader).unwrap())
        };
        let used = |pod: &PodGroup| pod.containers[0].group.reading.cpu.unwrap().total;
        let first = read(&pod, None);
        assert_eq!(used(&first), 11);
        // Not possible in the kernel; shows that it is not read.
        write(&below, 99, 100);
        let same = read(&pod, Some(&first));
        assert_eq!(used(&same), 11);
        assert!(same.watch.is_some() && !same.io_is_final());
        assert!(same.own.as_ref().unwrap().reading.at > first.own.as_ref().unwrap().reading.at);
        assert_eq!(same.read, first.read, "its age is not reset");

        let other = Arc::new((*pod).clone());
        assert_eq!(used(&read(&other, Some(&first))), 99, "it runs something else");
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        if let (Some(then), Some(since)) = (ago(601), ago(6_000)) {
            let old = PodGroup { read: then, idle_since: since, ..first.clone() };
            let anew = read(&pod, Some(&old));
            assert_eq!(used(&anew), 99, "nothing holds for ever");
            assert_eq!(anew.idle_since, since, "it is idle all the same");
            assert!(anew.io_is_final());
        }

        let with = |stalls: Stalls| {
            let mut waited = first.clone();
            waited.containers[0].group.reading.pressure.cpu = Some(stalls);
            waited
        };
        let waited = |pod: &PodGroup| pod.containers[0].group.reading.pressure.cpu.is_some();
        assert!(waited(&read(&pod, Some(&with(Stalls::default())))), "no pressure: reused");
        let mut stalls = Stalls::default();
        stalls.full.avg300 = 0.01;
        let calmer = read(&pod, Some(&with(stalls)));
        assert_eq!((used(&calmer), waited(&calmer)), (11, false), "its averages sink");

        let wrote = |pod: &PodGroup| pod.containers[0].group.reading.io.len();
        let late = "8:0 Write 4096\nTotal 4096\n";
        fs::write(below.join("blkio.throttle.io_service_bytes_recursive"), late).unwrap();
        assert_eq!(wrote(&read(&pod, Some(&first))), 0, "not looked at again so soon");
        if let (Some(then), Some(since)) = (ago(61), ago(62)) {
            let old = PodGroup { read: then, idle_since: since, read_io: since, ..first.clone() };
            let settled = read(&pod, Some(&old));
            assert_eq!((used(&settled), wrote(&settled)), (11, 1), "the kernel wrote later");
            assert!(settled.io_is_final() && settled.read == old.read);
        }
        write(&own, 10, 101);
        write(&below, 99, 60);
        let reclaimed = read(&pod, Some(&first));
        let memory = |pod: &PodGroup| {
            let of_all = pod.groups().map(|group| group.reading.memory.unwrap().memory);
            of_all.map(|memory| (memory.usage, memory.rss)).collect::<Vec<_>>()
        };
        assert_eq!(memory(&reclaimed), [(101, 101), (60, 60)], "the kernel has taken some");
        assert_eq!(used(&reclaimed), 11, "nothing else is read");
        change(12, 100);
        for before in [&first, &same] {
            let busy = read(&pod, Some(before));
            assert_eq!((used(&busy), busy.idle_since), (13, busy.read));
            assert!(busy.watch.is_none(), "no file is kept open of what is read anyway");
        }
        fs::remove_dir_all(&own).unwrap();
        let mut job = Job::new(pod, cgroup, None);
        assert!(job.refreshed(Some(&first), &mut reader).is_none());
        assert!(job.read(Some(&first), &mut reader).is_none(), "it is gone");
    }
}
