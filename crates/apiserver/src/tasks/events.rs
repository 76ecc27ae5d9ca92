//! Events about what this server has found and mended.

use std::collections::HashMap;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::kinds::lookup;
use crate::object;
use crate::operations::Api;

/// The namespace of events about what has none.
const DEFAULT_NAMESPACE: &str = "default";
/// How many events are remembered so that none is written again and again.
const MAX_KNOWN: usize = 1000;

/// Writes warnings as one controller, each of them once for each version of what it is about.
pub(super) struct Recorder {
    controller: &'static str,
    written: Mutex<HashMap<String, String>>,
}

impl Recorder {
    pub(super) fn new(controller: &'static str) -> Recorder {
        Recorder { controller, written: Mutex::default() }
    }

    /// Writes a warning about an object. That it cannot be written is logged.
    pub(super) async fn warn(
        &self,
        api: &Api,
        regarding: &Value,
        reason: &str,
        action: &str,
        note: String,
    ) {
        tracing::warn!(
            namespace = object::namespace(regarding),
            name = object::name(regarding),
            reason,
            "{note}"
        );
        if !self.is_new(regarding, &note) {
            return;
        }
        let Some(events) = lookup("events.k8s.io", "v1", "events") else { return };
        let event = event(self.controller, regarding, reason, action, &note, Timestamp::now());
        if let Err(error) = api.ensure_for(events, event, Some(api.event_ttl)).await {
            tracing::warn!(%error, reason, "cannot write an event");
        }
    }

    fn is_new(&self, regarding: &Value, note: &str) -> bool {
        let mut written = self.written.lock();
        if written.len() >= MAX_KNOWN {
            written.clear();
        }
        let key = format!("{} {note}", object::uid(regarding));
        let version = object::resource_version(regarding).to_owned();
        written.insert(key, version.clone()).is_none_or(|before| before != version)
    }
}

fn event(
    controller: &str,
    regarding: &Value,
    reason: &str,
    action: &str,
    note: &str,
    now: Timestamp,
) -> Value {
    let namespace = match object::namespace(regarding) {
        "" => DEFAULT_NAMESPACE,
        namespace => namespace,
    };
    let host = super::hostname();
    let mut reference = json!({
        "kind": regarding["kind"],
        "apiVersion": regarding["apiVersion"],
        "name": object::name(regarding),
        "uid": object::uid(regarding),
        "resourceVersion": object::resource_version(regarding),
    });
    if !object::namespace(regarding).is_empty() {
        reference["namespace"] = object::namespace(regarding).into();
    }
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{}.{:x}", object::name(regarding), now.as_nanosecond()),
            "namespace": namespace,
        },
        "eventTime": format!("{now:.6}"),
        "reportingController": controller,
        "reportingInstance": format!("{controller}-{host}"),
        "action": action,
        "reason": reason,
        "regarding": reference,
        "note": note,
        "type": "Warning",
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::kinds;

    #[test]
    fn repair_events_are_valid() {
        let service = json!({"kind": "Service", "apiVersion": "v1",
            "metadata": {"name": "web", "namespace": "a", "uid": "u", "resourceVersion": "7"}});
        let events = lookup("events.k8s.io", "v1", "events").unwrap();
        let note = "Port 30001 is not allocated; repairing";
        let now = "2026-01-01T00:00:00.123456789Z".parse().unwrap();
        let mut event =
            event("controller", &service, "PortNotAllocated", "PortAllocation", note, now);
        kinds::apply_defaults(events, &mut event);
        kinds::prepare_create(events, &mut event);
        event["metadata"]["uid"] = "e".into();
        event["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        kinds::validate_create(events, &event).unwrap();
        assert_eq!(event["eventTime"], "2026-01-01T00:00:00.123456Z");
        assert_eq!(event["regarding"]["namespace"], "a");
    }

    #[test]
    fn repair_events_are_written_once_a_version() {
        let recorder = Recorder::new("controller");
        let about = |version: &str| json!({"metadata": {"uid": "u", "resourceVersion": version}});
        assert!(recorder.is_new(&about("1"), "a") && !recorder.is_new(&about("1"), "a"));
        assert!(recorder.is_new(&about("1"), "b") && recorder.is_new(&about("2"), "a"));
    }
}
