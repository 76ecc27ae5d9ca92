//! Selects images for removal and their order. Pure.

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use longshore_config::{Config, GoDuration};
use longshore_cri::v1;

use super::records::{ImageRecords, Key};

/// Retention policy of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gc) struct Policy {
    /// Disk usage (percent) from which on unused images are removed.
    pub(in crate::gc) high: u64,
    /// Disk usage (percent) down to which they are removed.
    pub(in crate::gc) low: u64,
    /// Minimum age since the image was first detected.
    pub(in crate::gc) min_age: Duration,
    /// Maximum time without use, whatever the disk usage; zero: unlimited.
    pub(in crate::gc) max_age: GoDuration,
    /// Whether images are distinguished by runtime handler.
    pub(in crate::gc) by_handler: bool,
}

impl Policy {
    /// The configured policy.
    pub(in crate::gc) fn new(config: &Config) -> Self {
        let kubelet = &config.kubelet;
        Self {
            high: u64::try_from(kubelet.image_gc_high_threshold_percent).unwrap_or_default(),
            low: u64::try_from(kubelet.image_gc_low_threshold_percent).unwrap_or_default(),
            min_age: kubelet.image_minimum_gc_age.get(),
            max_age: kubelet.image_maximum_gc_age,
            by_handler: config.gates.enabled("RuntimeClassInImageCriApi"),
        }
    }

    /// Whether neither threshold nor maximum age is configured.
    pub(super) fn is_off(&self) -> bool {
        self.high >= 100 && self.max_age == GoDuration::ZERO
    }
}

/// An image that is not in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) key: Key,
    /// As reported by the runtime (bytes).
    pub(super) size: u64,
    pub(super) first_seen: Timestamp,
    pub(super) last_used: Option<Timestamp>,
    /// The handler that the runtime pulled it for.
    pub(super) handler: String,
}

impl Candidate {
    /// Whether it is above the minimum age.
    pub(super) fn may_go(&self, policy: &Policy, now: Timestamp) -> bool {
        let min_age = SignedDuration::try_from(policy.min_age).unwrap_or(SignedDuration::MAX);
        now.duration_since(self.first_seen) >= min_age
    }

    /// Whether it is above the maximum age. Time while the daemon was down does not count.
    pub(super) fn is_too_old(&self, policy: &Policy, began: Timestamp, now: Timestamp) -> bool {
        if policy.max_age == GoDuration::ZERO {
            return false;
        }
        let max_age = SignedDuration::from_nanos(policy.max_age.as_nanos());
        let idle_since = self.last_used.map_or(self.first_seen, |used| used.max(self.first_seen));
        now.duration_since(began) > max_age && now.duration_since(idle_since) > max_age
    }
}

/// Names and ids of images in use by containers and sandboxes.
#[derive(Clone, Debug, Default)]
pub(super) struct ImagesInUse {
    /// Name or id, and runtime handler if images are distinguished by it.
    pub(super) names: HashSet<(String, String)>,
    pub(super) by_handler: bool,
}

impl ImagesInUse {
    pub(super) fn add(&mut self, name: &str, handler: &str) {
        if !name.is_empty() {
            let handler = if self.by_handler { handler } else { "" };
            self.names.insert((name.to_owned(), handler.to_owned()));
        }
    }

    pub(super) fn contains(&self, image: &v1::Image) -> bool {
        let handler = if self.by_handler { handler(image) } else { "" };
        let names = image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
        let mut names = names.map(|name| (name.clone(), handler.to_owned()));
        names.any(|name| self.names.contains(&name))
    }
}

pub(super) fn handler(image: &v1::Image) -> &str {
    image.spec.as_ref().map_or("", |spec| &spec.runtime_handler)
}

/// Unused images in order of removal: never used ones first, then least recently used ones; equal ones
/// by first detection.
pub(super) fn candidates(
    images: &[v1::Image],
    records: &ImageRecords,
    in_use: &ImagesInUse,
) -> Vec<Candidate> {
    let unused = images.iter().filter(|image| !image.pinned && !in_use.contains(image));
    let candidate = |image: &v1::Image| {
        let key = Key::of(image, in_use.by_handler);
        let seen = records.get(&key)?;
        Some(Candidate {
            size: image.size,
            first_seen: seen.first_detected,
            last_used: seen.last_used,
            handler: handler(image).to_owned(),
            key,
        })
    };
    let mut candidates: Vec<Candidate> = unused.filter_map(candidate).collect();
    candidates.sort_by(|a, b| {
        (a.last_used, a.first_seen, &a.key).cmp(&(b.last_used, b.first_seen, &b.key))
    });
    candidates.dedup_by(|a, b| a.key == b.key);
    candidates
}
