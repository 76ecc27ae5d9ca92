//! Disk usage of pods, and writable layers of their containers.
//!
//! Pods that have used no CPU time since the last walk have written nothing: they are not walked
//! again for a while.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::TryFutureExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use longshore_pod::spec;
use longshore_pod::usage::Space;
use tracing::debug;

use super::cached::{self, Cached, Freshness};
use super::cgroup::{Cgroup, Reader};
use super::disk::{PodDisk, PodPaths};
use super::{Stats, pods};

/// Maximum number of concurrent walks.
pub(super) const WALKS: usize = 2;
/// The minimum interval between walks is their duration times this...
const MIN_INTERVAL_FACTOR: u32 = 20;
/// ...up to this.
const MAX_INTERVAL: Duration = Duration::from_secs(300);
/// Maximum age of the usage of an idle pod: the node may write for it, such as an updated secret.
const UNCHANGED_MAX_AGE: Duration = MAX_INTERVAL;
/// Entries that were not used for this time are removed.
const ENTRY_TTL: Duration = Duration::from_secs(600);

/// The cached disk usage of a pod.
pub(super) struct DiskEntry {
    disk: Cached<Counted>,
    last_used: Instant,
}

/// A pod's disk usage, and its CPU time to detect activity.
struct Counted {
    disk: Arc<PodDisk>,
    /// The pod's CPU time before.
    cpu: Option<u64>,
    at: Instant,
}

impl Counted {
    /// Walks those paths, unless the pod's CPU time is unchanged since `before`.
    fn read(paths: &PodPaths, cpu: Option<u64>, before: Option<&Self>) -> Self {
        let same = |before: &&Self| {
            cpu.is_some() && cpu == before.cpu && before.at.elapsed() < UNCHANGED_MAX_AGE
        };
        match before.filter(same) {
            Some(before) => Self { disk: Arc::new(paths.refreshed(&before.disk)), ..*before },
            None => {
                let at = Instant::now();
                Self { disk: Arc::new(paths.read()), cpu, at }
            }
        }
    }
}

/// Writable layers of containers, from the runtime.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// The time of the report.
    pub at: Timestamp,
    /// Usage by container ID.
    pub used: HashMap<String, Space>,
}

/// Log sizes of pods, by container.
pub type Logs = Vec<(Arc<Pod>, BTreeMap<String, Space>)>;

impl Stats {
    /// Log sizes of those pods.
    pub async fn logs(&self, pods: Vec<Arc<Pod>>, freshness: Freshness) -> Option<Arc<Logs>> {
        let shared = self.shared.clone();
        let read = || {
            cached::blocking(move || {
                let logs = |pod: Arc<Pod>| {
                    let paths = PodPaths::of(&pod, &shared.root_dir, &shared.pod_logs_dir);
                    let (logs, _) = paths.read_logs();
                    (pod, logs)
                };
                Ok(pods.into_iter().map(logs).collect())
            })
        };
        self.shared.logs.get_or_stale(freshness, read).await
    }

    /// Disk usage of those pods, by UID, without the writable layers of their containers.
    pub async fn disks(
        &self,
        pods: &[Arc<Pod>],
        freshness: Freshness,
    ) -> HashMap<String, Arc<PodDisk>> {
        let disks = pods.iter().map(|pod| self.disk(pod, freshness));
        let disks = futures::future::join_all(disks).await;
        let by_uid = pods.iter().zip(disks);
        by_uid.filter_map(|(pod, disk)| Some((spec::uid(pod).to_owned(), disk?))).collect()
    }

    /// The writable layers of containers, by container ID.
    pub async fn layers(&self, freshness: Freshness) -> Option<Arc<Layers>> {
        let runtime = self.shared.runtime.clone();
        let read = || {
            let layers = pods::layers(runtime);
            layers.inspect_err(|error| debug!(%error, "failed to list writable layers"))
        };
        self.shared.layers.get_or_stale(freshness, read).await
    }

    pub(super) async fn disk(&self, pod: &Pod, freshness: Freshness) -> Option<Arc<PodDisk>> {
        let paths = PodPaths::of(pod, &self.shared.root_dir, &self.shared.pod_logs_dir);
        let cached = self.disk_entry(spec::uid(pod));
        let min_interval =
            cached.read_duration().saturating_mul(MIN_INTERVAL_FACTOR).min(MAX_INTERVAL);
        let walks = self.shared.walks.clone();
        let parent = self.shared.cgroups.parent_of(pod);
        let hierarchies = self.shared.hierarchies.clone();
        let before = cached.last();
        let read = || async move {
            let permit = walks.acquire_owned().await;
            cached::blocking(move || {
                let _permit = permit;
                let cgroup = Cgroup::new(&hierarchies, Path::new(&parent));
                let cpu = cgroup.cpu(&mut Reader::default()).ok().map(|cpu| cpu.total);
                Ok(Counted::read(&paths, cpu, before.as_deref()))
            })
            .await
        };
        let known = cached
            .get_or_stale(
                Freshness { max_age: freshness.max_age.max(min_interval), ..freshness },
                read,
            )
            .await;
        known.map(|counted| counted.disk.clone())
    }

    fn disk_entry(&self, uid: &str) -> Cached<Counted> {
        let now = Instant::now();
        let mut disks = self.shared.disks.lock();
        if !disks.contains_key(uid) {
            disks.retain(|_, known| now.duration_since(known.last_used) < ENTRY_TTL);
        }
        let new = || DiskEntry { disk: Cached::default(), last_used: now };
        let known = disks.entry(uid.to_owned()).or_insert_with(new);
        known.last_used = now;
        known.disk.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn disk_usage_of_idle_containers_is_cached() {
        let dir = tempfile::tempdir().unwrap();
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "a", "uid": "1"},
            "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let paths = PodPaths::of(&pod, dir.path(), &dir.path().join("logs"));
        let volume = dir.path().join("pods/1/volumes/kubernetes.io~empty-dir/v");
        fs::create_dir_all(&volume).unwrap();
        let inodes = |counted: &Counted| counted.disk.volumes["v"].used.inodes;

        let first = Counted::read(&paths, Some(7), None);
        assert_eq!(inodes(&first), 1);
        // Without CPU time, to show that it is not walked.
        fs::write(volume.join("file"), "x").unwrap();
        let same = Counted::read(&paths, Some(7), Some(&first));
        assert_eq!((inodes(&same), same.at), (1, first.at));
        assert!(same.disk.at >= first.disk.at, "with a new timestamp");
        assert_eq!(inodes(&Counted::read(&paths, Some(8), Some(&same))), 2, "it did something");
        assert_eq!(inodes(&Counted::read(&paths, None, Some(&same))), 2, "nobody knows");
        let unknown = Counted { cpu: None, ..same };
        assert_eq!(inodes(&Counted::read(&paths, None, Some(&unknown))), 2, "nor before");
        if let Some(at) = Instant::now().checked_sub(UNCHANGED_MAX_AGE) {
            let old = Counted { cpu: Some(7), at, ..unknown };
            assert_eq!(inodes(&Counted::read(&paths, Some(7), Some(&old))), 2, "long ago");
        }
        let gone = Counted::read(&paths, Some(7), Some(&first));
        fs::remove_dir_all(&volume).unwrap();
        assert_eq!(inodes(&gone), 1);
        let gone = Counted::read(&paths, Some(7), Some(&gone));
        assert!(gone.disk.volumes.is_empty(), "it is not there any more");
    }
}
