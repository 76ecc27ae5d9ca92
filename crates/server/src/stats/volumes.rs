//! Stats of persistent volumes, for the summary and as metrics. Volumes are read independently: if
//! one hangs, its last known stats are used, and others are not delayed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use longshore_metrics::{Kind, Labels, Text};
use longshore_pod::spec;
use longshore_resources::stats::{Cached, Error, Freshness};
use longshore_volumes::{PersistentMount, VolumeStats, Volumes};
use parking_lot::Mutex;

/// Entries that were not used for this time are removed.
const ENTRY_TTL: Duration = Duration::from_secs(600);

/// Cached stats of volumes, by the UID of their pod and their name in it.
pub(super) struct VolumeStatsCache {
    /// Whether volume conditions are reported.
    pub(super) reports_health: bool,
    entries: Mutex<HashMap<Key, (Instant, Cached<Reading>)>>,
}

type Key = (String, String);

/// The stats of a volume at a time.
pub(super) struct Reading {
    pub(super) at: Timestamp,
    pub(super) stats: VolumeStats,
}

/// A volume and its stats.
pub(super) struct VolumeSample {
    pub(super) volume: PersistentMount,
    pub(super) reading: Arc<Reading>,
}

impl VolumeStatsCache {
    pub(super) fn new(reports_health: bool) -> Self {
        Self { reports_health, entries: Mutex::default() }
    }

    /// The volume stats of those pods by UID.
    pub(super) async fn read(
        &self,
        volumes: &Volumes,
        pods: &[Arc<Pod>],
        freshness: Freshness,
    ) -> HashMap<String, Vec<VolumeSample>> {
        let all = pods.iter().flat_map(|pod| {
            volumes.persistent_mounts(pod).into_iter().map(|volume| (Arc::clone(pod), volume))
        });
        let readings = all.map(async |(pod, volume)| {
            let reading = self.one(volumes, spec::uid(&pod), &volume, freshness).await?;
            Some((spec::uid(&pod).to_owned(), VolumeSample { volume, reading }))
        });
        let mut by_uid: HashMap<String, Vec<VolumeSample>> = HashMap::new();
        for (uid, sample) in join_all(readings).await.into_iter().flatten() {
            by_uid.entry(uid).or_default().push(sample);
        }
        by_uid
    }

    async fn one(
        &self,
        volumes: &Volumes,
        uid: &str,
        volume: &PersistentMount,
        freshness: Freshness,
    ) -> Option<Arc<Reading>> {
        let figure = self.figure(uid, volume);
        // Drivers are queried at the configured interval only.
        let max_age = if volume.is_csi() { freshness.acceptable_age } else { freshness.max_age };
        let freshness = Freshness { max_age, ..freshness };
        let (volumes, mount) = (volumes.clone(), volume.clone());
        let reports_health = self.reports_health;
        let read = || async move {
            let at = Timestamp::now();
            let stats = volumes.stats(&mount).await.map_err(Error::of)?;
            let condition = stats.condition.clone().filter(|_| reports_health);
            Ok(Reading { at, stats: VolumeStats { condition, ..stats } })
        };
        figure.get_or_stale(freshness, read).await
    }

    fn figure(&self, uid: &str, volume: &PersistentMount) -> Cached<Reading> {
        let now = Instant::now();
        let mut known = self.entries.lock();
        let key = (uid.to_owned(), volume.name.clone());
        if !known.contains_key(&key) {
            known.retain(|_, (last_used, _)| now.duration_since(*last_used) < ENTRY_TTL);
        }
        let (last_used, figure) = known.entry(key).or_insert_with(|| (now, Cached::default()));
        *last_used = now;
        figure.clone()
    }
}

/// Name, help and value of a metric family.
type FamilyOf = (&'static str, &'static str, fn(&VolumeStats) -> Option<u64>);

const FAMILIES: [FamilyOf; 7] = [
    ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", |f| {
        Some(f.capacity)
    }),
    ("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", |f| {
        Some(f.available)
    }),
    ("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", |f| Some(f.used)),
    ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", |f| Some(f.inodes)),
    ("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", |f| {
        Some(f.inodes_free)
    }),
    ("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", |f| {
        Some(f.inodes_used)
    }),
    (
        "kubelet_volume_stats_health_status_abnormal",
        "Whether the driver of the volume says that something is wrong with it: 1, or 0",
        |f| f.condition.as_ref().map(|condition| u64::from(condition.abnormal)),
    ),
];

/// The metrics, one series per claim.
pub(super) fn page(pods: &[Arc<Pod>], samples: &HashMap<String, Vec<VolumeSample>>) -> String {
    let mut claims = BTreeMap::new();
    for pod in pods {
        for sample in samples.get(spec::uid(pod)).into_iter().flatten() {
            if let Some(claim) = &sample.volume.claim {
                claims.entry((spec::namespace(pod), claim.as_str())).or_insert(&sample.reading);
            }
        }
    }
    let mut text = Text::new();
    for (name, help, figure) in FAMILIES {
        let known = claims.iter().filter_map(|(key, reading)| {
            let labels = [("namespace", key.0), ("persistentvolumeclaim", key.1)];
            Some((Labels::new(&labels), figure(&reading.stats)?))
        });
        let mut known = known.peekable();
        if known.peek().is_some() {
            let mut samples = text.family(name, help, Kind::Gauge);
            known.for_each(|(labels, value)| samples.add(&labels, value as f64));
        }
    }
    text.finish()
}

#[cfg(test)]
mod tests {
    use longshore_metrics::parse::parse;
    use proptest::prelude::*;
    use serde_json::json;

    use longshore_volumes::Condition;

    use super::*;
    use longshore_resources::stats::fixture::{amount, name, time};

    #[test]
    fn volume_metrics_have_one_series_per_claim() {
        let pod = |uid: &str| {
            let metadata = json!({"name": uid, "namespace": "ns", "uid": uid});
            Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
        };
        let samples = |claim: &str, used, abnormal: Option<bool>| {
            let condition = abnormal.map(|abnormal| Condition { abnormal, ..Condition::default() });
            let stats = VolumeStats { capacity: 100, used, condition, ..VolumeStats::default() };
            let reading = Arc::new(Reading { at: Timestamp::UNIX_EPOCH, stats });
            VolumeSample { volume: PersistentMount::of_claim("v", claim), reading }
        };
        let known = HashMap::from([
            ("a".to_owned(), vec![samples("shared", 7, None), samples("sick", 9, Some(true))]),
            ("b".to_owned(), vec![samples("shared", 8, None)]),
        ]);
        let page = page(&[pod("a"), pod("b")], &known);
        let samples: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let of = |family: &str| {
            let prefix = format!("kubelet_volume_stats_{family}{{");
            let own = samples.iter().filter_map(|line| line.strip_prefix(prefix.as_str()));
            own.collect::<Vec<_>>()
        };
        let claim = |name: &str| format!("namespace=\"ns\",persistentvolumeclaim=\"{name}\"}} ");
        assert_eq!(of("used_bytes"), [claim("shared") + "7", claim("sick") + "9"]);
        assert_eq!(of("health_status_abnormal"), [claim("sick") + "1"]);
        assert_eq!(samples.len(), 6 * 2 + 1, "{page}");
        assert_eq!(super::page(&[], &HashMap::new()), "");
    }

    proptest! {
        /// Finding 1: whatever drivers say of claims of any names, the page can be read.
        #[test]
        fn extremes_of_volume_metrics(
            pods in prop::collection::vec((name(), name()), 1..4),
            amounts in prop::collection::vec(amount(), 6),
            condition in prop::option::of((any::<bool>(), name())),
            at in time(),
        ) {
            let condition = condition.map(|(abnormal, message)| Condition { abnormal, message });
            let stats = VolumeStats {
                capacity: amounts[0],
                available: amounts[1],
                used: amounts[2],
                inodes: amounts[3],
                inodes_free: amounts[4],
                inodes_used: amounts[5],
                condition,
            };
            let reading = Arc::new(Reading { at, stats });
            let (mut all, mut samples) = (Vec::new(), HashMap::new());
            for (uid, (namespace, claim)) in pods.iter().enumerate() {
                let uid = uid.to_string();
                let pod = json!({"metadata": {"name": claim, "namespace": namespace, "uid": uid}});
                all.push(Arc::new(serde_json::from_value(pod).unwrap()));
                let volume = PersistentMount::of_claim("v", claim);
                samples.insert(uid, vec![VolumeSample { volume, reading: Arc::clone(&reading) }]);
            }
            let page = page(&all, &samples);
            let found = parse(&page).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let claims: std::collections::BTreeSet<_> = pods.iter().collect();
            let samples = found.samples("kubelet_volume_stats_used_bytes", &[]);
            prop_assert_eq!(samples.count(), claims.len());
        }
    }
}
