//! Image garbage collection: every five minutes, and under disk pressure.

mod plan;
mod records;
#[cfg(test)]
mod tests;
mod users;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use longshore_cri::{Runtime, v1};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

pub(super) use plan::Policy;

use super::disk::{self, Usage};
use super::{Error, Metrics, blocking};
use longshore_client::events::{EventType, Recorder};
use longshore_pod::labels;
use longshore_podstate::desired::Desired;
use longshore_telemetry::{Kind, within};
use plan::{Candidate, ImagesInUse, candidates};
use records::ImageRecords;

/// Collection interval.
const PERIOD: Duration = Duration::from_secs(300);
/// Maximum number of parallel container status requests.
const PARALLEL: usize = 8;
/// Unlimited number of bytes.
const ALL: u64 = i64::MAX as u64;

/// Callback with an image's id and a time.
type Removed = Box<dyn Fn(&str, Timestamp) + Send + Sync>;

/// Inputs of the collector.
pub(super) struct Parts {
    /// The runtime.
    pub(super) cri: Runtime,
    /// Desired pods.
    pub(super) desired: Desired,
    /// Events.
    pub(super) recorder: Recorder,
    /// Reference of the node for events.
    pub(super) node: ObjectReference,
    /// Retention policy.
    pub(super) policy: Policy,
    /// The daemon's directory.
    pub(super) root_dir: PathBuf,
    /// Where the logs of pods are.
    pub(super) pod_logs_dir: PathBuf,
    /// Metrics.
    pub(super) metrics: Metrics,
    /// Called for each removed image, with the time of the decision.
    pub(super) removed: Removed,
}

/// Collects unused images. Cheap to clone.
#[derive(Clone)]
pub struct Images {
    shared: Arc<Shared>,
}

struct Shared {
    parts: Parts,
    /// `None` before the first detection. Locked during a collection.
    records: Mutex<Option<ImageRecords>>,
}

/// Existing images, and the candidates for removal.
struct Inventory {
    at: Timestamp,
    images: Vec<v1::Image>,
    candidates: Vec<Candidate>,
}

/// The part of the runtime's configuration that names the sandbox image.
#[derive(Deserialize)]
struct RuntimeConfig {
    #[serde(rename = "sandboxImage", default)]
    sandbox_image: String,
}

/// Result of an attempt to free space.
#[derive(Default)]
struct Freed {
    bytes: u64,
    errors: Vec<String>,
}

impl Images {
    /// A collector that works with these parts, once [`run`](Self::run) or
    /// [`delete_unused_images`](Self::delete_unused_images) is called.
    pub(super) fn new(parts: Parts) -> Self {
        Self { shared: Arc::new(Shared { parts, records: Mutex::default() }) }
    }

    /// Collects periodically. Never ends.
    pub async fn run(self) {
        let policy = self.shared.parts.policy;
        let began = Timestamp::now();
        let mut failed_before = false;
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let done = match policy.is_off() {
                true => self.record_use().await,
                false => {
                    let tracer = self.shared.parts.cri.tracer();
                    let span = tracer.span("Images/GarbageCollect", Kind::Internal);
                    within(span.context(), self.collect(began)).await
                }
            };
            let failed = done.is_err();
            if let Err(error) = done {
                warn!(%error, again = failed_before, "image garbage collection failed");
                // The first failure may be due to a runtime that is not ready yet.
                if failed_before {
                    self.warn("ImageGCFailed", &error.to_string());
                }
            }
            failed_before = failed;
        }
    }

    /// Removes all images that are not in use, pinned, or younger than the minimum age. Returns their
    /// size in bytes as reported by the runtime. May take long.
    ///
    /// # Errors
    /// If unused images cannot be determined, or some removals failed.
    pub async fn delete_unused_images(&self) -> Result<u64, Error> {
        info!("attempting to delete unused images");
        let mut records = self.shared.records.lock().await;
        let records = self.loaded(&mut records).await;
        let inventory = self.detect(records).await?;
        let freed = self.free_space(records, &inventory, &inventory.candidates, ALL, None).await;
        self.save(records).await;
        match freed {
            Freed { bytes, errors } if errors.is_empty() => Ok(bytes),
            Freed { bytes, errors } => Err(Error::Images { wanted: ALL, freed: bytes, errors }),
        }
    }

    /// Only records which images are used.
    async fn record_use(&self) -> Result<(), Error> {
        let mut records = self.shared.records.lock().await;
        let records = self.loaded(&mut records).await;
        self.detect(records).await?;
        self.save(records).await;
        Ok(())
    }

    async fn collect(&self, began: Timestamp) -> Result<(), Error> {
        let mut records = self.shared.records.lock().await;
        let records = self.loaded(&mut records).await;
        let inventory = self.detect(records).await?;
        let collected = self.collect_detected(records, &inventory, began).await;
        self.save(records).await;
        collected
    }

    async fn collect_detected(
        &self,
        records: &mut ImageRecords,
        inventory: &Inventory,
        began: Timestamp,
    ) -> Result<(), Error> {
        let parts = &self.shared.parts;
        let Parts { cri, policy, .. } = parts;
        let (old, rest): (Vec<Candidate>, Vec<Candidate>) = inventory
            .candidates
            .iter()
            .cloned()
            .partition(|image| image.is_too_old(policy, began, inventory.at));
        let mut errors = Vec::new();
        for image in &old {
            let removed = self.remove(records, inventory, image, "age").await;
            errors.extend(removed.err().map(|e| e.to_string()));
        }
        if !errors.is_empty() {
            return Err(Error::Old { age: policy.max_age, errors });
        }
        let path = disk::image_filesystem(cri).await?;
        let usage = Usage::read(&path).await?;
        if usage.capacity == 0 {
            self.warn("InvalidDiskCapacity", &Error::NoCapacity.to_string());
            return Err(Error::NoCapacity);
        }
        let percent = usage.percent();
        if percent < policy.high {
            return Ok(());
        }
        let wanted = usage.above(policy.low);
        info!(percent, wanted, "image file system usage is over the high threshold, freeing space");
        let Freed { bytes, errors } =
            self.free_space(records, inventory, &rest, wanted, Some(&path)).await;
        if !errors.is_empty() {
            return Err(Error::Images { wanted, freed: bytes, errors });
        }
        if bytes >= wanted {
            return Ok(());
        }
        let capacity = disk::human(usage.capacity);
        let message = format!(
            "Insufficient free disk space on the node's image filesystem ({percent}% of {capacity} used). \
             Failed to free sufficient space by deleting unused images (freed {bytes} bytes). \
             Investigate disk usage, as it could be used by active images, logs, volumes, or other data.{}",
            disk::biggest(users::find(parts, inventory, records, &path).await)
        );
        self.warn("FreeDiskSpaceFailed", &message);
        Err(Error::Full(message))
    }

    /// Removes images one by one until `wanted` bytes are free: by their own size, or by the free space on
    /// the file system at `path`, which counts unpacked layers.
    async fn free_space(
        &self,
        records: &mut ImageRecords,
        inventory: &Inventory,
        images: &[Candidate],
        wanted: u64,
        path: Option<&Path>,
    ) -> Freed {
        let before = available(path).await;
        let mut freed = Freed::default();
        let policy = &self.shared.parts.policy;
        let mut sizes = 0_u64;
        for image in images {
            if !image.may_go(policy, inventory.at) {
                continue;
            }
            match self.remove(records, inventory, image, "space").await {
                Ok(()) => sizes = sizes.saturating_add(image.size),
                Err(error) => freed.errors.push(error.to_string()),
            }
            freed.bytes = sizes.max(available(path).await.saturating_sub(before));
            if freed.bytes >= wanted {
                break;
            }
        }
        freed
    }

    async fn remove(
        &self,
        records: &mut ImageRecords,
        inventory: &Inventory,
        image: &Candidate,
        reason: &'static str,
    ) -> Result<(), Error> {
        let Parts { cri, removed, metrics, .. } = &self.shared.parts;
        let id = &image.key.id;
        info!(id, size = image.size, handler = image.handler, "removing an unused image");
        let spec = v1::ImageSpec {
            image: id.clone(),
            runtime_handler: image.handler.clone(),
            ..v1::ImageSpec::default()
        };
        cri.remove_image(spec).await?;
        metrics.removed_image(reason);
        records.remove(&image.key);
        if !records.has(id) {
            removed(id, inventory.at);
        }
        Ok(())
    }

    /// Detects existing images and their use, and records it.
    async fn detect(&self, records: &mut ImageRecords) -> Result<Inventory, Error> {
        let Parts { cri, policy, .. } = &self.shared.parts;
        let at = Timestamp::now();
        let (images, invalid): (Vec<v1::Image>, Vec<v1::Image>) =
            cri.list_images(None).await?.into_iter().partition(|image| !image.id.is_empty());
        for image in invalid {
            // Its key, which is an id and a handler.
            let key = format!(",{}", plan::handler(&image));
            let message = format!("ImageID is not valid, skipping, image: {key}");
            self.warn("InvalidImageID", &message);
        }
        let mut in_use = ImagesInUse { by_handler: policy.by_handler, ..ImagesInUse::default() };
        let containers = cri.list_containers(None).await?;
        for container in &containers {
            let spec = container.image.as_ref();
            let handler = spec.map_or("", |spec| &spec.runtime_handler);
            let name = spec.map_or("", |spec| &spec.image);
            for name in [&container.image_id, &container.image_ref, name] {
                in_use.add(name, handler);
            }
        }
        self.add_mounted(&containers, &mut in_use).await?;
        if let Some(sandbox_image) = self.sandbox_image().await? {
            for image in &images {
                let names = || image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
                if names().any(|name| *name == sandbox_image) {
                    in_use.add(&image.id, plan::handler(image));
                }
            }
        }
        records.note(&images, &in_use, at);
        let candidates = candidates(&images, records, &in_use);
        debug!(images = images.len(), unused = candidates.len(), "detected images");
        Ok(Inventory { at, images, candidates })
    }

    /// Image volumes are in use, too.
    async fn add_mounted(
        &self,
        containers: &[v1::Container],
        in_use: &mut ImagesInUse,
    ) -> Result<(), Error> {
        let Parts { cri, desired, .. } = &self.shared.parts;
        let may_mount = |container: &&v1::Container| {
            let pod = container.labels.get(labels::POD_UID).and_then(|uid| desired.pod(uid));
            // The volumes of a deleted pod are not known.
            pod.is_none_or(|pod| {
                let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
                volumes.into_iter().any(|volume| volume.image.is_some())
            })
        };
        let requests: Vec<_> = containers
            .iter()
            .filter(may_mount)
            .map(|container| mounts(cri.clone(), container.id.clone()))
            .collect();
        let mut answers = stream::iter(requests).buffer_unordered(PARALLEL);
        while let Some(mounts) = answers.next().await {
            for image in mounts?.into_iter().filter_map(|mount| mount.image) {
                in_use.add(&image.image, &image.runtime_handler);
                in_use.add(&image.image_ref, &image.runtime_handler);
            }
        }
        Ok(())
    }

    /// The sandbox image, if the runtime reports it; others pin it.
    async fn sandbox_image(&self) -> Result<Option<String>, Error> {
        let mut status = self.shared.parts.cri.status(true).await?;
        let config = status.info.remove("config");
        let config = config.and_then(|text| serde_json::from_str::<RuntimeConfig>(&text).ok());
        Ok(config.map(|config| config.sandbox_image).filter(|image| !image.is_empty()))
    }

    fn warn(&self, reason: &str, message: &str) {
        let Parts { recorder, node, .. } = &self.shared.parts;
        recorder.event(node.clone(), EventType::Warning, reason, message);
    }

    async fn loaded<'a>(&self, records: &'a mut Option<ImageRecords>) -> &'a mut ImageRecords {
        if records.is_none() {
            let dir = self.shared.parts.root_dir.clone();
            *records = blocking(move || ImageRecords::load(&dir)).await;
        }
        records.get_or_insert_default()
    }

    async fn save(&self, records: &ImageRecords) {
        let (records, dir) = (records.clone(), self.shared.parts.root_dir.clone());
        if let Some(Err(error)) = blocking(move || records.save(&dir)).await {
            warn!(%error, "cannot write image records");
        }
    }
}

async fn available(path: Option<&Path>) -> u64 {
    match path {
        Some(path) => Usage::read(path).await.map_or(0, |usage| usage.available),
        None => 0,
    }
}

async fn mounts(cri: Runtime, container: String) -> longshore_cri::Result<Vec<v1::Mount>> {
    match cri.container_status(&container).await {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        status => status.map(|status| status.mounts),
    }
}
