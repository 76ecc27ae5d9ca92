//! The executor of image garbage collection: every five minutes, and when eviction asks for it.

mod ledger;
mod plan;
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
use ledger::Ledger;
use longshore_client::events::{EventType, Recorder};
use longshore_pod::labels;
use longshore_podstate::desired::Desired;
use plan::{Candidate, ImagesInUse, candidates};

/// How often images are looked at.
const PERIOD: Duration = Duration::from_secs(300);
/// Questions about containers under way at once.
const PARALLEL: usize = 8;
/// As many bytes as there can be.
const ALL: u64 = i64::MAX as u64;

/// A function of an image's id and a time.
type Removed = Box<dyn Fn(&str, Timestamp) + Send + Sync>;

/// What the collector works with.
pub(super) struct Parts {
    /// The runtime.
    pub(super) cri: Runtime,
    /// What should run.
    pub(super) desired: Desired,
    /// Events.
    pub(super) recorder: Recorder,
    /// The node, as events name it.
    pub(super) node: ObjectReference,
    /// When images go.
    pub(super) policy: Policy,
    /// The daemon's directory.
    pub(super) root_dir: PathBuf,
    /// Where the logs of pods are.
    pub(super) pod_logs_dir: PathBuf,
    /// What is counted.
    pub(super) metrics: Metrics,
    /// Is told of each image that was removed, and when that was decided.
    pub(super) removed: Removed,
}

/// Collects unused images. Cheap to clone.
#[derive(Clone)]
pub struct Images {
    shared: Arc<Shared>,
}

struct Shared {
    parts: Parts,
    /// `None` before the first look. Held by the round that goes on.
    ledger: Mutex<Option<Ledger>>,
}

/// What there is, and what of it may go.
struct Inventory {
    at: Timestamp,
    images: Vec<v1::Image>,
    candidates: Vec<Candidate>,
}

/// What of the runtime's own configuration says which image its sandboxes are made of.
#[derive(Deserialize)]
struct RuntimeConfig {
    #[serde(rename = "sandboxImage", default)]
    sandbox_image: String,
}

/// What came of an attempt to make room.
#[derive(Default)]
struct Freed {
    bytes: u64,
    errors: Vec<String>,
}

impl Images {
    /// A collector that works with these parts, once [`run`](Self::run) or
    /// [`delete_unused_images`](Self::delete_unused_images) is called.
    pub(super) fn new(parts: Parts) -> Self {
        Self { shared: Arc::new(Shared { parts, ledger: Mutex::default() }) }
    }

    /// Looks and collects every five minutes. Never ends.
    pub async fn run(self) {
        let policy = self.shared.parts.policy;
        let began = Timestamp::now();
        let mut failed_before = false;
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let done = match policy.is_off() {
                true => self.watch().await,
                false => self.collect(began).await,
            };
            let failed = done.is_err();
            if let Err(error) = done {
                warn!(%error, again = failed_before, "image garbage collection failed");
                // The first failure may be a runtime that is not there yet.
                if failed_before {
                    self.warn("ImageGCFailed", &error.to_string());
                }
            }
            failed_before = failed;
        }
    }

    /// Remove all images that are not in use, pinned, or younger than the minimum age. Gives their
    /// size in bytes as the runtime tells it, which for packed images is less than what comes free.
    /// Takes as long as the runtime does, so it is not for a room's own loop.
    ///
    /// # Errors
    /// When it cannot be found out which those are, or some would not go; the others are gone.
    pub async fn delete_unused_images(&self) -> Result<u64, Error> {
        info!("attempting to delete unused images");
        let mut ledger = self.shared.ledger.lock().await;
        let ledger = self.loaded(&mut ledger).await;
        let look = self.look(ledger).await?;
        let freed = self.make_room(ledger, &look, &look.candidates, ALL, None).await;
        self.save(ledger).await;
        match freed {
            Freed { bytes, errors } if errors.is_empty() => Ok(bytes),
            Freed { bytes, errors } => Err(Error::Images { wanted: ALL, freed: bytes, errors }),
        }
    }

    /// Only take note of what is used, for the day when room is needed.
    async fn watch(&self) -> Result<(), Error> {
        let mut ledger = self.shared.ledger.lock().await;
        let ledger = self.loaded(&mut ledger).await;
        self.look(ledger).await?;
        self.save(ledger).await;
        Ok(())
    }

    async fn collect(&self, began: Timestamp) -> Result<(), Error> {
        let mut ledger = self.shared.ledger.lock().await;
        let ledger = self.loaded(&mut ledger).await;
        let look = self.look(ledger).await?;
        let collected = self.collect_seen(ledger, &look, began).await;
        self.save(ledger).await;
        collected
    }

    async fn collect_seen(
        &self,
        ledger: &mut Ledger,
        look: &Inventory,
        began: Timestamp,
    ) -> Result<(), Error> {
        let parts = &self.shared.parts;
        let Parts { cri, policy, .. } = parts;
        let (old, rest): (Vec<Candidate>, Vec<Candidate>) = look
            .candidates
            .iter()
            .cloned()
            .partition(|image| image.is_too_old(policy, began, look.at));
        let mut errors = Vec::new();
        for image in &old {
            let removed = self.remove(ledger, look, image, "age").await;
            errors.extend(removed.err().map(|e| e.to_string()));
        }
        if !errors.is_empty() {
            return Err(Error::Old { age: policy.max_age, errors });
        }
        let place = disk::image_filesystem(cri).await?;
        let usage = Usage::read(&place).await?;
        if usage.capacity == 0 {
            self.warn("InvalidDiskCapacity", &Error::NoCapacity.to_string());
            return Err(Error::NoCapacity);
        }
        let percent = usage.percent();
        if percent < policy.high {
            return Ok(());
        }
        let wanted = usage.above(policy.low);
        info!(percent, wanted, "the image file system is over its threshold, images make room");
        let Freed { bytes, errors } =
            self.make_room(ledger, look, &rest, wanted, Some(&place)).await;
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
            disk::biggest(users::find(parts, look, ledger, &place).await)
        );
        self.warn("FreeDiskSpaceFailed", &message);
        Err(Error::Full(message))
    }

    /// Remove images, one after the other, until so many bytes are free: by their own size, or as
    /// the file system at `place` shows it, which knows what they take unpacked.
    async fn make_room(
        &self,
        ledger: &mut Ledger,
        look: &Inventory,
        images: &[Candidate],
        wanted: u64,
        place: Option<&Path>,
    ) -> Freed {
        let before = available(place).await;
        let mut freed = Freed::default();
        let policy = &self.shared.parts.policy;
        let mut sizes = 0_u64;
        for image in images {
            if !image.may_go(policy, look.at) {
                continue;
            }
            match self.remove(ledger, look, image, "space").await {
                Ok(()) => sizes = sizes.saturating_add(image.size),
                Err(error) => freed.errors.push(error.to_string()),
            }
            freed.bytes = sizes.max(available(place).await.saturating_sub(before));
            if freed.bytes >= wanted {
                break;
            }
        }
        freed
    }

    async fn remove(
        &self,
        ledger: &mut Ledger,
        look: &Inventory,
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
        ledger.remove(&image.key);
        if !ledger.has(id) {
            removed(id, look.at);
        }
        Ok(())
    }

    /// Find out which images there are and which of them are in use, and note it.
    async fn look(&self, ledger: &mut Ledger) -> Result<Inventory, Error> {
        let Parts { cri, policy, .. } = &self.shared.parts;
        let at = Timestamp::now();
        let images = cri.list_images(None).await?;
        let mut held = ImagesInUse { by_handler: policy.by_handler, ..ImagesInUse::default() };
        let containers = cri.list_containers(None).await?;
        for container in &containers {
            let spec = container.image.as_ref();
            let handler = spec.map_or("", |spec| &spec.runtime_handler);
            let name = spec.map_or("", |spec| &spec.image);
            for name in [&container.image_id, &container.image_ref, name] {
                held.hold(name, handler);
            }
        }
        self.hold_mounted(&containers, &mut held).await?;
        if let Some(sandbox_image) = self.sandbox_image().await? {
            for image in &images {
                let names = || image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
                if names().any(|name| *name == sandbox_image) {
                    held.hold(&image.id, plan::handler(image));
                }
            }
        }
        ledger.note(&images, &held, at);
        let candidates = candidates(&images, ledger, &held);
        debug!(images = images.len(), unused = candidates.len(), "images were looked at");
        Ok(Inventory { at, images, candidates })
    }

    /// Images that are mounted as volumes are in use like those that containers run.
    async fn hold_mounted(
        &self,
        containers: &[v1::Container],
        held: &mut ImagesInUse,
    ) -> Result<(), Error> {
        let Parts { cri, desired, .. } = &self.shared.parts;
        let may_mount = |container: &&v1::Container| {
            let pod = container.labels.get(labels::POD_UID).and_then(|uid| desired.pod(uid));
            // Nobody knows what a container mounts whose pod is gone.
            pod.is_none_or(|pod| {
                let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
                volumes.into_iter().any(|volume| volume.image.is_some())
            })
        };
        let asked: Vec<_> = containers
            .iter()
            .filter(may_mount)
            .map(|container| mounts(cri.clone(), container.id.clone()))
            .collect();
        let mut answers = stream::iter(asked).buffer_unordered(PARALLEL);
        while let Some(mounts) = answers.next().await {
            for image in mounts?.into_iter().filter_map(|mount| mount.image) {
                held.hold(&image.image, &image.runtime_handler);
                held.hold(&image.image_ref, &image.runtime_handler);
            }
        }
        Ok(())
    }

    /// The image of sandboxes, if the runtime names it. One that does not pins it.
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

    async fn loaded<'a>(&self, ledger: &'a mut Option<Ledger>) -> &'a mut Ledger {
        if ledger.is_none() {
            let dir = self.shared.parts.root_dir.clone();
            *ledger = blocking(move || Ledger::load(&dir)).await;
        }
        ledger.get_or_insert_default()
    }

    async fn save(&self, ledger: &Ledger) {
        let (ledger, dir) = (ledger.clone(), self.shared.parts.root_dir.clone());
        if let Some(Err(error)) = blocking(move || ledger.save(&dir)).await {
            warn!(%error, "when images were used is not written down");
        }
    }
}

async fn available(place: Option<&Path>) -> u64 {
    match place {
        Some(place) => Usage::read(place).await.map_or(0, |usage| usage.available),
        None => 0,
    }
}

async fn mounts(cri: Runtime, container: String) -> longshore_cri::Result<Vec<v1::Mount>> {
    match cri.container_status(&container).await {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        status => status.map(|status| status.mounts),
    }
}
