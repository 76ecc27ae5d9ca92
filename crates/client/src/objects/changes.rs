//! What changed for a pod: told to its worker, which then renews what was made of it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::jiff::Timestamp;
use longshore_base::time;
use longshore_pod::spec;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::references::{self, Reference, References};
use crate::mutex::locked;

/// What changed of all that a pod's volumes are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    references: References,
    /// A token is due for renewal.
    tokens: bool,
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

    /// Nobody tells what changes.
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
            || !self.references.is_empty()
                && !references::of_volume(spec::namespace(pod), volume)
                    .is_disjoint(&self.references)
    }
}

/// Tells of the changes for one pod. Clones share them: each change is told once.
#[derive(Clone)]
pub struct Changes {
    told: Arc<Told>,
    /// How often to look by oneself, where nobody tells.
    period: Option<Duration>,
}

/// What is to be told to a pod's worker.
pub(super) struct Told {
    changed: Mutex<Changed>,
    notify: Notify,
    /// When the first of the pod's tokens is to be renewed.
    pub(super) renewal: watch::Sender<Option<Timestamp>>,
    /// When all of it was looked at, where nobody tells.
    looked: Mutex<Instant>,
}

impl Default for Told {
    fn default() -> Self {
        let (renewal, looked) = (watch::Sender::new(None), Mutex::new(Instant::now()));
        Self { changed: Mutex::default(), notify: Notify::new(), renewal, looked }
    }
}

impl Told {
    /// An object changed.
    pub(super) fn note(&self, reference: &Reference) {
        locked(&self.changed).references.insert(reference.clone());
        self.notify.notify_one();
    }

    /// Until the first token is due. That is told once: who renews it sets the next time.
    async fn due(&self) {
        let mut renewal = self.renewal.subscribe();
        loop {
            let at = *renewal.borrow_and_update();
            let due = async {
                match at {
                    None => std::future::pending().await,
                    Some(at) => {
                        let left = at.duration_since(Timestamp::now());
                        sleep(Duration::try_from(left).unwrap_or_default()).await;
                    }
                }
            };
            tokio::select! {
                () = due => break,
                changed = renewal.changed() => if changed.is_err() { std::future::pending().await },
            }
        }
        self.renewal.send_replace(None);
    }
}

impl Changes {
    pub(super) fn new(told: Arc<Told>, period: Option<Duration>) -> Self {
        // Pods that were made together are not looked at together.
        let spread = f64::from(RandomState::new().hash_one(()) as u32) / f64::from(u32::MAX);
        Self { told, period: period.map(|period| period.mul_f64(1.0 + spread / 2.0)) }
    }

    /// The changes since the last answer, once there are any. Nothing is lost when this is dropped
    /// before.
    pub async fn next(&self) -> Changed {
        let look = async {
            match self.period {
                None => std::future::pending().await,
                Some(period) => {
                    let last = *locked(&self.told.looked);
                    sleep_until(time::later(last, period)).await;
                    *locked(&self.told.looked) = Instant::now();
                }
            }
        };
        let told = async {
            loop {
                let changed = std::mem::take(&mut *locked(&self.told.changed));
                if !changed.is_nothing() {
                    return changed;
                }
                self.told.notify.notified().await;
            }
        };
        tokio::select! {
            changed = told => changed,
            () = self.told.due() => Changed { tokens: true, ..Changed::default() },
            () = look => Changed::any(),
        }
    }
}
