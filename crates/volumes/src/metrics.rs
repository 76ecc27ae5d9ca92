//! Metrics of volume operations, and the number of volumes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use longshore_metrics::{Buckets, Counter, Family, Histogram, Kind, Labels, Registry, Text};
use parking_lot::Mutex;

use crate::error::Error;

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    durations: Family<Histogram, 4>,
    waits: Family<Histogram, 2>,
    errors: Family<Counter, 2>,
    collections: Family<Histogram, 1>,
    reconstructed: Counter,
    not_found: Counter,
    pods: Arc<Mutex<HashMap<String, Volumes>>>,
}

/// The plugin of a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plugin {
    pub(super) name: &'static str,
    /// Whether the volume is subject to CSI migration.
    pub(super) migrated: bool,
}

/// The volumes of a pod by their name.
type Volumes = BTreeMap<String, VolumeState>;

/// What is known of a volume.
#[derive(Clone, Copy, Debug)]
struct VolumeState {
    plugin: Plugin,
    /// Since when it should be set up.
    since: Instant,
    /// Whether it is set up.
    is_up: bool,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let buckets = Buckets::of(&[
            0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
        ]);
        let pods = Arc::<Mutex<HashMap<String, Volumes>>>::default();
        let known = Arc::clone(&pods);
        registry.collect(move |text| write(text, &known.lock()));
        Self {
            pods,
            durations: registry.histograms(
                "storage_operation_duration_seconds",
                "How long operations on volumes took, in seconds.",
                ["volume_plugin", "operation_name", "status", "migrated"],
                buckets.clone(),
            ),
            waits: registry.histograms(
                "volume_operation_total_seconds",
                "How long pods waited for their volumes, with all that was tried, in seconds.",
                ["plugin_name", "operation_name"],
                buckets,
            ),
            errors: registry.counters(
                "storage_operation_errors_total",
                "Operations on volumes that failed.",
                ["volume_plugin", "operation_name"],
            ),
            collections: registry.histograms(
                "kubelet_volume_metric_collection_duration_seconds",
                "How long it took to find out how full a volume is, in seconds, by who was asked.",
                ["metric_source"],
                Buckets::usual(),
            ),
            reconstructed: registry.counter(
                "reconstruct_volume_operations_total",
                "Volumes of pods that were on disk when the daemon started.",
            ),
            not_found: registry.counter(
                "reconstruct_volume_operations_errors_total",
                "Volumes on disk that were not understood when the daemon started.",
            ),
        }
    }

    /// The numbers of volumes that were reconstructed at the start, and of those that were not.
    pub(super) fn reconstructed(&self, volumes: u64, unknown: u64) {
        self.reconstructed.add(volumes.saturating_add(unknown));
        self.not_found.add(unknown);
    }

    /// A volume is to be set up for the pod with that UID.
    pub(super) fn add_desired(&self, uid: &str, volume: &str, plugin: Plugin) {
        let mut pods = self.pods.lock();
        let volumes = pods.entry(uid.to_owned()).or_default();
        let new = VolumeState { plugin, since: Instant::now(), is_up: false };
        volumes.entry(volume.to_owned()).or_insert(new);
    }

    /// A set-up has ended.
    pub(super) fn set_up<T>(
        &self,
        uid: &str,
        volume: &str,
        plugin: Plugin,
        began: Instant,
        outcome: &Result<T, Error>,
    ) {
        self.observe(plugin, "volume_mount", began, outcome);
        if outcome.is_ok()
            && let Some(volumes) = self.pods.lock().get_mut(uid)
        {
            let known = volumes.get(volume).filter(|known| !known.is_up);
            let since = known.map_or(began, |known| known.since);
            if known.is_some() {
                self.waits.with([plugin.name, "overall_volume_mount"]).took(since.elapsed());
            }
            volumes.insert(volume.to_owned(), VolumeState { plugin, since, is_up: true });
        }
    }

    /// The teardown of the pod's volumes has ended.
    pub(super) fn unmounted(&self, uid: &str, began: Instant, outcome: &Result<(), Error>) {
        let volumes = match outcome {
            Ok(()) => self.pods.lock().remove(uid),
            Err(_) => self.pods.lock().get(uid).cloned(),
        };
        let set_up = volumes.unwrap_or_default().into_values().filter(|known| known.is_up);
        for VolumeState { plugin, .. } in set_up {
            self.observe(plugin, "volume_unmount", began, outcome);
        }
    }

    /// The stats of a volume were collected.
    pub(super) fn observe_collection(&self, source: &str, began: Instant) {
        self.collections.with([source]).took(began.elapsed());
    }

    fn observe<T>(
        &self,
        plugin: Plugin,
        operation: &'static str,
        began: Instant,
        outcome: &Result<T, Error>,
    ) {
        let status = if outcome.is_ok() { "success" } else { "fail-unknown" };
        let migrated = if plugin.migrated { "true" } else { "false" };
        self.durations.with([plugin.name, operation, status, migrated]).took(began.elapsed());
        if outcome.is_err() {
            self.errors.with([plugin.name, operation]).inc();
        }
    }
}

fn write(text: &mut Text, pods: &HashMap<String, Volumes>) {
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for VolumeState { plugin, is_up, .. } in pods.values().flat_map(BTreeMap::values) {
        *counts.entry((plugin.name, "desired_state_of_world")).or_default() += 1;
        *counts.entry((plugin.name, "actual_state_of_world")).or_default() += u32::from(*is_up);
    }
    let help = "Volumes of pods, by plugin: those that should be set up, and those that are.";
    let mut samples = text.family("volume_manager_total_volumes", help, Kind::Gauge);
    for ((plugin, state), count) in counts {
        let labels = Labels::new(&[("plugin_name", plugin), ("state", state)]);
        samples.add(&labels, f64::from(count));
    }
}
