//! Which images may go, and in which order: plain functions of what is there and of when it was
//! used.

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use longshore_config::{Config, GoDuration};
use longshore_cri::v1;

use super::ledger::{Key, Ledger};

/// When images go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gc) struct Policy {
    /// From so much use of the disk on (percent), unused images go.
    pub(in crate::gc) high: u64,
    /// Until so much is in use (percent).
    pub(in crate::gc) low: u64,
    /// An image is kept for this long after it was first seen.
    pub(in crate::gc) min_age: Duration,
    /// An image that has not been used for longer goes, however much room there is; zero for never.
    pub(in crate::gc) max_age: GoDuration,
    /// Whether the images of each runtime handler are images of their own.
    pub(in crate::gc) by_handler: bool,
}

impl Policy {
    /// The policy that the configuration asks for.
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

    /// Whether there is nothing to collect by: neither a threshold nor an age.
    pub(super) fn is_off(&self) -> bool {
        self.high >= 100 && self.max_age == GoDuration::ZERO
    }
}

/// An image that is not in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) key: Key,
    /// As the runtime tells it (bytes).
    pub(super) size: u64,
    pub(super) first_seen: Timestamp,
    pub(super) last_used: Option<Timestamp>,
    /// The handler that the runtime pulled it for.
    pub(super) handler: String,
}

impl Candidate {
    /// Old enough to make room: it was not pulled just now for a container that is yet to come.
    pub(super) fn may_go(&self, policy: &Policy, now: Timestamp) -> bool {
        let min_age = SignedDuration::try_from(policy.min_age).unwrap_or(SignedDuration::MAX);
        now.duration_since(self.first_seen) >= min_age
    }

    /// Not used for so long that it goes in any case. The node has watched for that long: what was
    /// used while nobody looked is given the same time again.
    pub(super) fn is_too_old(&self, policy: &Policy, began: Timestamp, now: Timestamp) -> bool {
        if policy.max_age == GoDuration::ZERO {
            return false;
        }
        let max_age = SignedDuration::from_nanos(policy.max_age.as_nanos());
        let idle_since = self.last_used.map_or(self.first_seen, |used| used.max(self.first_seen));
        now.duration_since(began) > max_age && now.duration_since(idle_since) > max_age
    }
}

/// Names and ids by which containers and sandboxes hold images.
#[derive(Clone, Debug, Default)]
pub(super) struct ImagesInUse {
    /// With the handler that it is held for, if handlers are told apart.
    pub(super) names: HashSet<(String, String)>,
    pub(super) by_handler: bool,
}

impl ImagesInUse {
    pub(super) fn hold(&mut self, name: &str, handler: &str) {
        if !name.is_empty() {
            let handler = if self.by_handler { handler } else { "" };
            self.names.insert((name.to_owned(), handler.to_owned()));
        }
    }

    pub(super) fn holds(&self, image: &v1::Image) -> bool {
        let handler = if self.by_handler { handler(image) } else { "" };
        let names = image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
        let mut names = names.map(|name| (name.clone(), handler.to_owned()));
        names.any(|name| self.names.contains(&name))
    }
}

pub(super) fn handler(image: &v1::Image) -> &str {
    image.spec.as_ref().map_or("", |spec| &spec.runtime_handler)
}

/// The images that nobody holds, in the order in which they go: those never used first, then the
/// least recently used; of those alike, the first seen.
pub(super) fn candidates(
    images: &[v1::Image],
    ledger: &Ledger,
    held: &ImagesInUse,
) -> Vec<Candidate> {
    let unused = images.iter().filter(|image| !image.pinned && !held.holds(image));
    let candidate = |image: &v1::Image| {
        let key = Key::of(image, held.by_handler);
        let seen = ledger.get(&key)?;
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
