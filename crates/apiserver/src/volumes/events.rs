//! Tells people, by events, what was decided and why: once, until something else is to be said.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::binder::Told;
use crate::admission::core;
use crate::auth::User;
use crate::object;
use crate::operations::Api;
use crate::status::StatusError;

/// What was last told, by the UID of whom it is about.
#[derive(Default)]
pub(super) struct Teller(HashMap<String, Told>);

impl Teller {
    /// Tells it, unless it was the last thing that was told of the object.
    pub(super) async fn tell(&mut self, api: &Api, about: &Value, told: Told) {
        let uid = object::uid(about).to_owned();
        if self.0.get(&uid) == Some(&told) {
            return;
        }
        if let Err(error) = write(api, about, &told).await {
            // A namespace that ends takes no events, which nobody would read anyway.
            tracing::debug!(%error, about = object::name(about), "an event could not be written");
        }
        self.0.insert(uid, told);
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

async fn write(api: &Api, about: &Value, told: &Told) -> Result<(), StatusError> {
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
        "reason": told.reason,
        "message": told.message,
        "type": if told.is_warning { "Warning" } else { "Normal" },
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    });
    api.create(&User::apiserver(), core("events")?, namespace, event, false).await.map(drop)
}
