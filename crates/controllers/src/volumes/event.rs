//! Events about decisions and their reasons.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;

use longshore_client::events::{EventType, Recorder};
use longshore_informer::Object;
use tokio::time::Instant;

use crate::workload::uid_of;
use crate::writes::reference;

/// After this time the same event about an object is recorded again.
pub(super) const REPEAT: Duration = Duration::from_secs(300);
/// Objects whose last event is remembered.
const MAX_REMEMBERED: usize = 16 * 1024;

/// An event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeEvent {
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl VolumeEvent {
    pub(super) fn normal(reason: &'static str, message: impl Into<String>) -> Option<VolumeEvent> {
        Some(VolumeEvent { is_warning: false, reason, message: message.into() })
    }

    pub(super) fn warning(reason: &'static str, message: impl Into<String>) -> Option<VolumeEvent> {
        Some(VolumeEvent { is_warning: true, reason, message: message.into() })
    }
}

/// Records the event of a decision, which is made anew whenever something related changes, once in
/// a while.
pub(super) struct Events {
    recorder: Recorder,
    /// The last event and its time, by the UID of its object.
    last: Mutex<HashMap<String, (VolumeEvent, Instant)>>,
}

impl Events {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self { recorder, last: Mutex::default() }
    }

    pub(super) fn record<K: Object + k8s_openapi::Resource>(
        &self,
        about: &K,
        event: Option<VolumeEvent>,
    ) {
        let Some(event) = event else { return };
        if self.is_due(uid_of(about), &event) {
            let kind = if event.is_warning { EventType::Warning } else { EventType::Normal };
            self.recorder.event(reference(about), kind, event.reason, &event.message);
        }
    }

    fn is_due(&self, uid: &str, event: &VolumeEvent) -> bool {
        let now = Instant::now();
        let is_old = |at: Instant| now.saturating_duration_since(at) >= REPEAT;
        let mut last = self.last.lock();
        if last.get(uid).is_some_and(|(known, at)| known == event && !is_old(*at)) {
            return false;
        }
        if last.len() >= MAX_REMEMBERED {
            last.retain(|_, (_, at)| !is_old(*at));
        }
        last.insert(uid.to_owned(), (event.clone(), now));
        true
    }
}
