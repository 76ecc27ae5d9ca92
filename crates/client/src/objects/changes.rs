//! Notifies a pod's worker of changes of the objects that the pod refers to.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::jiff::Timestamp;
use longshore_base::{clock, time};
use longshore_pod::spec;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::references::{self, Reference, References};

/// What changed of the sources of a pod's volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    references: References,
    /// A token is due for renewal.
    tokens: bool,
    /// A source of certificates has another, or another error.
    certificates: bool,
    /// The pod itself: its labels, annotations or resources.
    pod: bool,
    /// Something, or nothing: it is not known.
    any: bool,
}

impl Changed {
    /// The pod itself changed.
    pub fn pod() -> Self {
        Self { pod: true, ..Self::default() }
    }

    /// It is not known what changed: there are no watches.
    fn any() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// Whether nothing changed.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Both.
    pub fn add(&mut self, other: Self) {
        self.references.extend(other.references);
        self.tokens |= other.tokens;
        self.certificates |= other.certificates;
        self.pod |= other.pod;
        self.any |= other.any;
    }

    /// Whether the data of that volume of the pod may be another now.
    pub fn touches(&self, pod: &Pod, volume: &Volume) -> bool {
        let sources =
            || volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        self.any
            || self.pod
                && (volume.downward_api.is_some()
                    || sources().any(|source| source.downward_api.is_some()))
            || self.tokens && sources().any(|source| source.service_account_token.is_some())
            || self.certificates && sources().any(|source| source.pod_certificate.is_some())
            || !self.references.is_empty()
                && !references::of_volume(spec::namespace(pod), volume)
                    .is_disjoint(&self.references)
    }
}

/// The changes for one pod. Clones share them: each change is delivered once.
#[derive(Clone)]
pub struct Changes {
    pending: Arc<PendingChanges>,
    /// The resync period, where there are no watches.
    period: Option<Duration>,
}

/// The changes that a pod's worker has not taken yet.
pub(super) struct PendingChanges {
    changed: Mutex<Changed>,
    notify: Notify,
    /// When the first of the pod's tokens is to be renewed.
    pub(super) renewal: watch::Sender<Option<Timestamp>>,
    /// The last resync, where there are no watches.
    last_resync: Mutex<Instant>,
}

impl Default for PendingChanges {
    fn default() -> Self {
        let (renewal, last_resync) = (watch::Sender::new(None), Mutex::new(Instant::now()));
        Self { changed: Mutex::default(), notify: Notify::new(), renewal, last_resync }
    }
}

impl PendingChanges {
    /// An object changed.
    pub(super) fn add(&self, reference: &Reference) {
        self.changed.lock().references.insert(reference.clone());
        self.notify.notify_one();
    }

    /// A source of certificates has another, or another error.
    pub(super) fn add_certificates(&self) {
        self.changed.lock().certificates = true;
        self.notify.notify_one();
    }

    /// Waits until the first token is due for renewal. Returns once: the renewal sets the next time.
    async fn due(&self) {
        let mut renewal = self.renewal.subscribe();
        loop {
            let at = *renewal.borrow_and_update();
            tokio::select! {
                () = clock::until(at) => break,
                changed = renewal.changed() => if changed.is_err() { std::future::pending().await },
            }
        }
        self.renewal.send_replace(None);
    }
}

impl Changes {
    pub(super) fn new(pending: Arc<PendingChanges>, period: Option<Duration>) -> Self {
        // Spreads the resyncs of pods that were created together.
        Self { pending, period: period.map(|period| period.mul_f64(1.0 + fastrand::f64() / 2.0)) }
    }

    /// The changes since the last answer, once there are any. Nothing is lost when this is dropped
    /// before.
    pub async fn next(&self) -> Changed {
        let resync = async {
            match self.period {
                None => std::future::pending().await,
                Some(period) => {
                    let last = *self.pending.last_resync.lock();
                    sleep_until(time::later(last, period)).await;
                    *self.pending.last_resync.lock() = Instant::now();
                }
            }
        };
        let changed = async {
            loop {
                let changed = std::mem::take(&mut *self.pending.changed.lock());
                if !changed.is_nothing() {
                    return changed;
                }
                self.pending.notify.notified().await;
            }
        };
        tokio::select! {
            changed = changed => changed,
            () = self.pending.due() => Changed { tokens: true, ..Changed::default() },
            () = resync => Changed::any(),
        }
    }
}
