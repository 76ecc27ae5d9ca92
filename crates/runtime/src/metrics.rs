//! Metrics of runtime calls, images and sandboxes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_cri::Error;
use longshore_metrics::{Buckets, Counter, Family, Histogram, Registry};
use parking_lot::{Mutex, MutexGuard};

/// Prefix of the CRI error when an image cannot be mounted as a volume.
const IMAGE_NOT_MOUNTED: &str = "ImageVolumeMountFailed";

/// Metrics of runtime calls.
#[derive(Debug)]
pub struct Calls {
    all: Family<Counter, 1>,
    failed: Family<Counter, 1>,
    durations: Family<Histogram, 1>,
}

impl Calls {
    /// Register the metrics.
    pub fn new(registry: &Registry) -> Self {
        let by = ["operation_type"];
        Self {
            all: registry.counters(
                "kubelet_runtime_operations_total",
                "Calls to the container runtime, by operation.",
                by,
            ),
            failed: registry.counters(
                "kubelet_runtime_operations_errors_total",
                "Calls to the container runtime that failed, by operation.",
                by,
            ),
            durations: registry.histograms(
                "kubelet_runtime_operations_duration_seconds",
                "How long calls to the container runtime took, in seconds, by operation.",
                by,
                Buckets::exponential(0.005, 2.5, 14),
            ),
        }
    }
}

impl longshore_cri::Observer for Calls {
    fn observe(&self, operation: &'static str, took: Duration, error: Option<&Error>) {
        self.all.with([operation]).inc();
        self.durations.with([operation]).took(took);
        if error.is_some() {
            self.failed.with([operation]).inc();
        }
    }
}

/// Metrics of this crate.
#[derive(Clone, Debug)]
pub struct Metrics {
    sandboxes: Family<Histogram, 1>,
    sandbox_failures: Family<Counter, 1>,
    pulls: Family<Histogram, 1>,
    images: Family<Counter, 3>,
    image_checks: Family<Counter, 1>,
    image_volumes: Counter,
    mounted_images: Counter,
    unmounted_images: Counter,
    pub(super) http_fallbacks: Counter,
    pub(super) sleeps_cut_short: Counter,
    /// Time of image pulls for pods, by UID.
    pulling: Arc<Mutex<HashMap<String, Pulling>>>,
    /// For what is counted when somebody asks.
    pub(super) registry: Registry,
}

/// Time of image pulls for a pod.
#[derive(Debug)]
struct Pulling {
    total: Duration,
    /// When the last pull ended: parallel pulls count once.
    end: Instant,
}

impl Metrics {
    /// Register the metrics.
    pub fn new(registry: &Registry) -> Self {
        Self {
            sandboxes: registry.histograms(
                "kubelet_run_podsandbox_duration_seconds",
                "How long it took to run sandboxes, in seconds, by the runtime's handler.",
                ["runtime_handler"],
                Buckets::usual(),
            ),
            sandbox_failures: registry.counters(
                "kubelet_run_podsandbox_errors_total",
                "Sandboxes that could not be run, by the runtime's handler.",
                ["runtime_handler"],
            ),
            pulls: registry.histograms(
                "kubelet_image_pull_duration_seconds",
                "How long pulls of images took, in seconds, by the size of the image.",
                ["image_size_in_bytes"],
                Buckets::of(&[
                    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
                    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
                ]),
            ),
            images: registry.counters(
                "kubelet_image_manager_ensure_image_requests_total",
                "How often an image was to be there, by its policy, whether it was and whether it \
                 had to be pulled.",
                ["pull_policy", "present_locally", "pull_required"],
            ),
            image_checks: registry.counters(
                "kubelet_imagemanager_image_mustpull_checks_total",
                "How often it was found out whether a pod may use an image that is there.",
                ["result"],
            ),
            image_volumes: registry.counter(
                "kubelet_image_volume_requested_total",
                "Volumes that are images, of containers that were to be made.",
            ),
            mounted_images: registry.counter(
                "kubelet_image_volume_mounted_succeed_total",
                "Mounts of images, of containers that were made.",
            ),
            unmounted_images: registry.counter(
                "kubelet_image_volume_mounted_errors_total",
                "Mounts of images that the runtime could not make.",
            ),
            http_fallbacks: registry.counter(
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "Hooks that were to use HTTPS and succeeded with HTTP.",
            ),
            sleeps_cut_short: registry.counter(
                "kubelet_sleep_action_terminated_early_total",
                "Hooks that were to sleep for longer than their pod's end could take.",
            ),
            pulling: Arc::default(),
            registry: registry.clone(),
        }
    }

    /// The runtime was called to run a sandbox.
    pub(super) fn ran_sandbox(&self, handler: &str, began: Instant, failed: bool) {
        self.sandboxes.with([handler]).took(began.elapsed());
        if failed {
            self.sandbox_failures.with([handler]).inc();
        }
    }

    /// An image with that pull policy was required: whether it was present and had to be pulled, as
    /// far as that is known.
    pub(super) fn image_required(&self, policy: &str, present: Option<bool>, pull: Option<bool>) {
        let word = |known: Option<bool>| match known {
            None => "unknown",
            Some(true) => "true",
            Some(false) => "false",
        };
        let policy = match policy {
            "Always" => "always",
            "Never" => "never",
            _ => "ifnotpresent",
        };
        self.images.with([policy, word(present), word(pull)]).inc();
    }

    /// Access of a pod to a present image was checked.
    pub(super) fn image_access_checked(&self, result: &str) {
        self.image_checks.with([result]).inc();
    }

    /// A container was created with that number of image volumes and image mounts.
    pub(super) fn created_with_images(&self, volumes: usize, mounts: usize, error: Option<&str>) {
        self.image_volumes.add(volumes as u64);
        match error {
            None => self.mounted_images.add(mounts as u64),
            Some(error) if error.starts_with(IMAGE_NOT_MOUNTED) => {
                self.unmounted_images.add(mounts as u64);
            }
            Some(_) => {}
        }
    }

    /// An image of that size (in bytes) was pulled for the pod with that UID.
    pub(super) fn pulled(&self, uid: &str, began: Instant, size: u64) {
        self.pulls.with([size_range(size)]).took(began.elapsed());
        self.pull_finished(uid, began);
    }

    /// A pull for the pod with that UID is over, successful or not.
    pub(super) fn pull_finished(&self, uid: &str, began: Instant) {
        let now = Instant::now();
        let mut pulling = self.pulling();
        let new = || Pulling { total: Duration::ZERO, end: began };
        let known = pulling.entry(uid.to_owned()).or_insert_with(new);
        let waited = now.duration_since(began.max(known.end));
        known.total = known.total.saturating_add(waited);
        known.end = now;
    }

    /// The time of image pulls for the pod with that UID.
    pub(crate) fn image_pull_time(&self, uid: &str) -> Duration {
        self.pulling().get(uid).map_or(Duration::ZERO, |pulling| pulling.total)
    }

    /// Remove the pod with that UID.
    pub(super) fn forget(&self, uid: &str) {
        self.pulling().remove(uid);
    }

    fn pulling(&self) -> MutexGuard<'_, HashMap<String, Pulling>> {
        self.pulling.lock()
    }
}

/// The size label of an image.
fn size_range(bytes: u64) -> &'static str {
    const MB: u64 = 1 << 20;
    const GB: u64 = 1 << 30;
    const RANGES: [(u64, &str); 12] = [
        (10 * MB, "0-10MB"),
        (100 * MB, "10MB-100MB"),
        (500 * MB, "100MB-500MB"),
        (GB, "500MB-1GB"),
        (5 * GB, "1GB-5GB"),
        (10 * GB, "5GB-10GB"),
        (20 * GB, "10GB-20GB"),
        (30 * GB, "20GB-30GB"),
        (40 * GB, "30GB-40GB"),
        (60 * GB, "40GB-60GB"),
        (100 * GB, "60GB-100GB"),
        (u64::MAX, "GT100GB"),
    ];
    RANGES.iter().find(|(end, _)| bytes < *end).map_or("GT100GB", |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_image_size_labels() {
        for (bytes, expected) in [
            (0, "0-10MB"),
            ((10 << 20) - 1, "0-10MB"),
            (10 << 20, "10MB-100MB"),
            (1 << 30, "1GB-5GB"),
            (100 << 30, "GT100GB"),
            (u64::MAX, "GT100GB"),
        ] {
            assert_eq!(size_range(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn metrics_count_image_mount_failures() {
        let metrics = Metrics::new(&Registry::default());
        metrics.created_with_images(2, 3, None);
        metrics.created_with_images(1, 1, Some("ImageVolumeMountFailed: no such path"));
        metrics.created_with_images(1, 1, Some("no memory"));
        metrics.created_with_images(0, 0, None);
        let Metrics { image_volumes, mounted_images, unmounted_images, .. } = metrics;
        let found = [image_volumes, mounted_images, unmounted_images].map(|count| count.get());
        assert_eq!(found, [4, 3, 1]);
    }

    #[test]
    fn metrics_count_parallel_pulls_once() {
        let metrics = Metrics::new(&Registry::default());
        let Some(began) = Instant::now().checked_sub(Duration::from_secs(10)) else { return };
        metrics.pull_finished("u", began);
        metrics.pulled("u", began + Duration::from_secs(4), 1);
        let time = metrics.image_pull_time("u").as_secs_f64();
        assert!((10.0..11.0).contains(&time), "{time}");
        metrics.forget("u");
        assert_eq!(metrics.image_pull_time("u"), Duration::ZERO);
    }
}
