//! What pods have on disk, and what their containers have written over their images.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures::TryFutureExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use longshore_pod::spec;
use longshore_pod::usage::Space;
use tracing::debug;

use super::disk::{Places, PodDisk};
use super::figure::{self, Figure, Terms};
use super::{Stats, pods};

/// How many pods' disks are read at a time.
pub(super) const WALKS: usize = 2;
/// A disk that took long to read is left alone for so many times as long...
const REST: u32 = 20;
/// ...up to this.
const LONGEST_REST: Duration = Duration::from_secs(300);
/// What nobody has asked for in this time is forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// What is known of a pod's disk.
pub(super) struct Known {
    disk: Figure<PodDisk>,
    asked: Instant,
}

/// What containers have written over their images, as the runtime told it.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// When it was told.
    pub at: Timestamp,
    /// By container id.
    pub used: HashMap<String, Space>,
}

impl Stats {
    /// What those pods have on disk, by UID, and what their containers have written over their
    /// images, as far as it is known on those terms.
    pub async fn storage(
        &self,
        pods: &[Arc<Pod>],
        terms: Terms,
    ) -> (HashMap<String, Arc<PodDisk>>, Option<Arc<Layers>>) {
        let disks = pods.iter().map(|pod| self.disk(pod, terms));
        let (disks, layers) = tokio::join!(futures::future::join_all(disks), self.layers(terms));
        let by_uid = pods.iter().zip(disks);
        let by_uid = by_uid.filter_map(|(pod, disk)| Some((spec::uid(pod).to_owned(), disk?)));
        (by_uid.collect(), layers)
    }

    /// What containers have written over their images, by container id.
    pub(super) async fn layers(&self, terms: Terms) -> Option<Arc<Layers>> {
        let runtime = self.shared.runtime.clone();
        let read = || {
            let told = pods::layers(runtime);
            told.inspect_err(|error| debug!(%error, "no news of writable layers"))
        };
        self.shared.layers.known(terms, read).await
    }

    pub(super) async fn disk(&self, pod: &Pod, terms: Terms) -> Option<Arc<PodDisk>> {
        let places = Places::of(pod, &self.shared.root_dir, &self.shared.pod_logs_dir);
        let figure = self.known_disk(spec::uid(pod));
        let rest = figure.cost().saturating_mul(REST).min(LONGEST_REST);
        let walks = self.shared.walks.clone();
        let read = || async move {
            let turn = walks.acquire_owned().await;
            figure::blocking(move || {
                let _turn = turn;
                Ok(places.read())
            })
            .await
        };
        figure.known(Terms { renewed: terms.renewed.max(rest), ..terms }, read).await
    }

    fn known_disk(&self, uid: &str) -> Figure<PodDisk> {
        let now = Instant::now();
        // No code panics while it holds the lock.
        let mut disks = self.shared.disks.lock().unwrap_or_else(PoisonError::into_inner);
        if !disks.contains_key(uid) {
            disks.retain(|_, known| now.duration_since(known.asked) < FORGET);
        }
        let new = || Known { disk: Figure::default(), asked: now };
        let known = disks.entry(uid.to_owned()).or_insert_with(new);
        known.asked = now;
        known.disk.clone()
    }
}
