//! What pods have on disk, and what their containers have written over their images.
//!
//! Who has had no CPU time since his files were counted has written none: they are not counted again,
//! for a while. Project quotas would tell it of any pod, but few file systems are mounted with them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, PoisonError};
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

/// How many pods' disks are read at a time.
pub(super) const WALKS: usize = 2;
/// A disk that took long to read is left alone for so many times as long...
const REST: u32 = 20;
/// ...up to this.
const LONGEST_REST: Duration = Duration::from_secs(300);
/// What was counted of a pod that has done nothing since holds so long: the node may write for it,
/// as when a secret has changed.
const HOLD: Duration = LONGEST_REST;
/// What nobody has asked for in this time is forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// What is known of a pod's disk.
pub(super) struct Known {
    disk: Cached<Counted>,
    asked: Instant,
}

/// A pod's disk, and what tells whether it can have changed.
struct Counted {
    disk: Arc<PodDisk>,
    /// The pod's CPU time before.
    cpu: Option<u64>,
    at: Instant,
}

impl Counted {
    /// Count what is in those places, unless the pod with that CPU time has done nothing since `before`.
    fn read(places: &PodPaths, cpu: Option<u64>, before: Option<&Self>) -> Self {
        let same =
            |before: &&Self| cpu.is_some() && cpu == before.cpu && before.at.elapsed() < HOLD;
        match before.filter(same) {
            Some(before) => Self { disk: Arc::new(places.again(&before.disk)), ..*before },
            None => {
                let at = Instant::now();
                Self { disk: Arc::new(places.read()), cpu, at }
            }
        }
    }
}

/// What containers have written over their images, as the runtime told it.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// When it was told.
    pub at: Timestamp,
    /// By container id.
    pub used: HashMap<String, Space>,
}

/// What the logs of pods take, with their containers.
pub type Logs = Vec<(Arc<Pod>, BTreeMap<String, Space>)>;

impl Stats {
    /// What the logs of those pods take, as far as it is known on those terms.
    pub async fn logs(&self, pods: Vec<Arc<Pod>>, terms: Freshness) -> Option<Arc<Logs>> {
        let shared = self.shared.clone();
        let read = || {
            cached::blocking(move || {
                let logs = |pod: Arc<Pod>| {
                    let places = PodPaths::of(&pod, &shared.root_dir, &shared.pod_logs_dir);
                    let (logs, _) = places.read_logs();
                    (pod, logs)
                };
                Ok(pods.into_iter().map(logs).collect())
            })
        };
        self.shared.logs.known(terms, read).await
    }

    /// What those pods have on disk, by UID, and what their containers have written over their
    /// images, as far as it is known on those terms.
    pub async fn storage(
        &self,
        pods: &[Arc<Pod>],
        terms: Freshness,
    ) -> (HashMap<String, Arc<PodDisk>>, Option<Arc<Layers>>) {
        let disks = pods.iter().map(|pod| self.disk(pod, terms));
        let (disks, layers) = tokio::join!(futures::future::join_all(disks), self.layers(terms));
        let by_uid = pods.iter().zip(disks);
        let by_uid = by_uid.filter_map(|(pod, disk)| Some((spec::uid(pod).to_owned(), disk?)));
        (by_uid.collect(), layers)
    }

    /// What containers have written over their images, by container id.
    pub(super) async fn layers(&self, terms: Freshness) -> Option<Arc<Layers>> {
        let runtime = self.shared.runtime.clone();
        let read = || {
            let told = pods::layers(runtime);
            told.inspect_err(|error| debug!(%error, "no news of writable layers"))
        };
        self.shared.layers.known(terms, read).await
    }

    pub(super) async fn disk(&self, pod: &Pod, terms: Freshness) -> Option<Arc<PodDisk>> {
        let places = PodPaths::of(pod, &self.shared.root_dir, &self.shared.pod_logs_dir);
        let figure = self.known_disk(spec::uid(pod));
        let rest = figure.cost().saturating_mul(REST).min(LONGEST_REST);
        let walks = self.shared.walks.clone();
        let parent = self.shared.cgroups.parent_of(pod);
        let hierarchies = self.shared.hierarchies.clone();
        let before = figure.last();
        let read = || async move {
            let turn = walks.acquire_owned().await;
            cached::blocking(move || {
                let _turn = turn;
                let cgroup = Cgroup::new(&hierarchies, Path::new(&parent));
                let cpu = cgroup.cpu(&mut Reader::default()).ok().map(|cpu| cpu.total);
                Ok(Counted::read(&places, cpu, before.as_deref()))
            })
            .await
        };
        let known =
            figure.known(Freshness { renewed: terms.renewed.max(rest), ..terms }, read).await;
        known.map(|counted| counted.disk.clone())
    }

    fn known_disk(&self, uid: &str) -> Cached<Counted> {
        let now = Instant::now();
        // No code panics while it holds the lock.
        let mut disks = self.shared.disks.lock().unwrap_or_else(PoisonError::into_inner);
        if !disks.contains_key(uid) {
            disks.retain(|_, known| now.duration_since(known.asked) < FORGET);
        }
        let new = || Known { disk: Cached::default(), asked: now };
        let known = disks.entry(uid.to_owned()).or_insert_with(new);
        known.asked = now;
        known.disk.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_files_of_who_did_nothing_are_not_counted_again() {
        let dir = tempfile::tempdir().unwrap();
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "a", "uid": "1"},
            "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let places = PodPaths::of(&pod, dir.path(), &dir.path().join("logs"));
        let volume = dir.path().join("pods/1/volumes/kubernetes.io~empty-dir/v");
        fs::create_dir_all(&volume).unwrap();
        let inodes = |counted: &Counted| counted.disk.volumes["v"].used.inodes;

        let first = Counted::read(&places, Some(7), None);
        assert_eq!(inodes(&first), 1);
        // By hand: so it shows that nobody looks.
        fs::write(volume.join("file"), "x").unwrap();
        let same = Counted::read(&places, Some(7), Some(&first));
        assert_eq!((inodes(&same), same.at), (1, first.at));
        assert!(same.disk.at >= first.disk.at, "told as of now");
        assert_eq!(inodes(&Counted::read(&places, Some(8), Some(&same))), 2, "it did something");
        assert_eq!(inodes(&Counted::read(&places, None, Some(&same))), 2, "nobody knows");
        let unknown = Counted { cpu: None, ..same };
        assert_eq!(inodes(&Counted::read(&places, None, Some(&unknown))), 2, "nor before");
        if let Some(at) = Instant::now().checked_sub(HOLD) {
            let old = Counted { cpu: Some(7), at, ..unknown };
            assert_eq!(inodes(&Counted::read(&places, Some(7), Some(&old))), 2, "long ago");
        }
        let gone = Counted::read(&places, Some(7), Some(&first));
        fs::remove_dir_all(&volume).unwrap();
        assert_eq!(inodes(&gone), 1);
        let gone = Counted::read(&places, Some(7), Some(&gone));
        assert!(gone.disk.volumes.is_empty(), "it is not there any more");
    }
}
