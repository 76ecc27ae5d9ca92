//! Records events about decisions and their reasons, each once until another one is recorded.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::binder::VolumeEvent;
use crate::kinds::core;
use crate::object;
use crate::operations::Api;
use crate::status::StatusError;
use crate::user::User;

/// The last event, by the UID of its object.
#[derive(Default)]
pub(super) struct EventRecorder(HashMap<String, VolumeEvent>);

impl EventRecorder {
    /// Records the event, unless it was the last one of the object.
    pub(super) async fn record_event(&mut self, api: &Api, about: &Value, event: VolumeEvent) {
        let uid = object::uid(about).to_owned();
        if self.0.get(&uid) == Some(&event) {
            return;
        }
        if let Err(error) = write(api, about, &event).await {
            // A namespace that is being deleted takes no events.
            tracing::debug!(%error, about = object::name(about), "cannot write an event");
        }
        self.0.insert(uid, event);
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

async fn write(api: &Api, about: &Value, event: &VolumeEvent) -> Result<(), StatusError> {
    const COMPONENT: &str = "persistentvolume-controller";
    let namespace = match object::namespace(about) {
        "" => "default",
        namespace => namespace,
    };
    let name = object::name(about);
    let now = object::now().to_string();
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{name}.{:x}", Timestamp::now().as_nanosecond()),
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": name,
            "namespace": object::namespace(about),
            "uid": object::uid(about),
            "resourceVersion": object::resource_version(about),
        },
        "reason": event.reason,
        "message": event.message,
        "type": if event.is_warning { "Warning" } else { "Normal" },
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    });
    api.create(&User::apiserver(), core("events")?, namespace, event, false).await.map(drop)
}
