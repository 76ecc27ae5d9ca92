//! An apiserver in memory: pods, whose changes it sends to the daemon, config maps and events. It
//! records what no node should write.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use k8s_openapi::api::core::v1::Pod;
use longshore_podstate::sources::{Source, Update};
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Default)]
pub(super) struct Objects {
    version: u64,
    /// By name.
    pub(super) pods: BTreeMap<String, Value>,
    pub(super) config_maps: BTreeMap<String, Value>,
    /// Reasons and messages of events.
    pub(super) events: Vec<(String, String)>,
    /// The phases that were written, by the UID of the pod, without repetitions.
    pub(super) phases: BTreeMap<String, Vec<String>>,
    /// Restart counts that were written last, by UID and container.
    restarts: BTreeMap<(String, String), u64>,
    /// The next writes of statuses and deletions fail.
    pub(super) failures: usize,
    pub(super) violations: Vec<String>,
    updates: Option<mpsc::Sender<(Source, Update)>>,
}

/// A handle of the apiserver. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Api(Arc<Mutex<Objects>>);

impl Api {
    pub(super) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.0.lock().unwrap()
    }

    pub(super) fn client(&self) -> kube::Client {
        kube::Client::new(Router::new().fallback(answer).with_state(self.clone()), "default")
    }

    /// Sends all pods and, from then on, their changes.
    pub(super) fn follow(&self, updates: mpsc::Sender<(Source, Update)>) {
        let mut objects = self.objects();
        let pods = objects.pods.values().map(decoded).collect();
        updates.try_send((Source::Api, Update::Snapshot(pods))).unwrap();
        objects.updates = Some(updates);
    }

    /// Creates the pod, or changes it with this function.
    pub(super) fn put_pod(&self, pod: Value) {
        self.objects().store(pod);
    }

    pub(super) fn change_pod(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut objects = self.objects();
        let Some(mut pod) = objects.pods.get(name).cloned() else { return };
        change(&mut pod);
        objects.store(pod);
    }

    /// Requests the deletion with that grace period in seconds, which can only be shortened. A pod with
    /// none is gone at once.
    pub(super) fn delete_pod(&self, name: &str, grace: i64) {
        if grace == 0 {
            return self.objects().remove(name);
        }
        self.change_pod(name, |pod| {
            let before = pod["metadata"]["deletionGracePeriodSeconds"].as_i64();
            let grace = before.map_or(grace, |before| before.min(grace));
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
    }

    /// The status of the pod in the apiserver.
    pub(super) fn status(&self, name: &str) -> Value {
        self.objects().pods.get(name).map(|pod| pod["status"].clone()).unwrap_or_default()
    }

    /// The message of the first event with that reason.
    pub(super) fn event(&self, reason: &str) -> Option<String> {
        let objects = self.objects();
        let found = objects.events.iter().find(|(known, _)| known == reason);
        found.map(|(_, message)| message.clone())
    }
}

fn decoded(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

impl Objects {
    fn send(&self, update: Update) {
        if let Some(updates) = &self.updates {
            // A daemon that was ended does not listen.
            let _ = updates.try_send((Source::Api, update));
        }
    }

    fn store(&mut self, mut pod: Value) {
        self.version += 1;
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.send(Update::Set(Box::new(decoded(&pod))));
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.pods.insert(name, pod);
    }

    fn remove(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.send(Update::Remove(Box::new(decoded(&pod))));
        }
    }

    /// Phases and restart counts only go forward.
    fn check(&mut self, uid: &str, status: &Value) {
        let rank = |phase: &str| match phase {
            "Pending" => 0,
            "Running" => 1,
            _ => 2,
        };
        let phase = status["phase"].as_str().unwrap_or("Pending").to_owned();
        let phases = self.phases.entry(uid.to_owned()).or_default();
        if let Some(last) = phases.last()
            && (rank(&phase) < rank(last) || rank(last) == 2 && *last != phase)
        {
            self.violations.push(format!("phase of {uid} from {last} to {phase}"));
        }
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
        for container in status["containerStatuses"].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            let count = container["restartCount"].as_u64().unwrap_or(0);
            let known = self.restarts.entry((uid.to_owned(), name.clone())).or_default();
            if count < *known {
                self.violations.push(format!("restarts of {name} from {known} to {count}"));
            }
            *known = count;
        }
    }
}

async fn answer(
    State(api): State<Api>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> (StatusCode, String) {
    let mut objects = api.objects();
    let parts: Vec<&str> = uri.path().split('/').skip(5).collect();
    let found = |value: Option<&Value>| match value {
        Some(value) => (StatusCode::OK, value.to_string()),
        None => error(StatusCode::NOT_FOUND, "NotFound"),
    };
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    match (method.as_str(), parts.as_slice()) {
        ("POST" | "PATCH", ["events", ..]) => {
            let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
            objects.events.push((text("reason"), text("message")));
            (StatusCode::CREATED, request.to_string())
        }
        ("GET", ["configmaps", name]) => found(objects.config_maps.get(*name)),
        ("GET", ["pods", name]) => found(objects.pods.get(*name)),
        ("PATCH" | "DELETE", ["pods", name, ..]) => {
            if objects.failures > 0 {
                objects.failures -= 1;
                return error(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
            }
            let Some(mut pod) = objects.pods.get(*name).cloned() else {
                return error(StatusCode::NOT_FOUND, "NotFound");
            };
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let wanted = match method == Method::DELETE {
                true => &request["preconditions"]["uid"],
                false => &request["metadata"]["uid"],
            };
            if *wanted != json!(uid) {
                return error(StatusCode::CONFLICT, "Conflict");
            }
            if method == Method::DELETE {
                objects.remove(name);
                return (StatusCode::OK, pod.to_string());
            }
            merge(&mut pod["status"], &request["status"]);
            objects.check(&uid, &pod["status"]);
            objects.store(pod);
            found(objects.pods.get(*name))
        }
        _ => error(StatusCode::NOT_FOUND, "NotFound"),
    }
}

fn error(code: StatusCode, reason: &str) -> (StatusCode, String) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16(),
    });
    (code, status.to_string())
}

/// A strategic merge, as far as patches of pod statuses need it.
fn merge(old: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *old = patch.clone();
        return;
    };
    if !old.is_object() {
        *old = json!({});
    }
    let old = old.as_object_mut().unwrap();
    for (key, value) in fields {
        match value {
            Value::Null => {
                old.remove(key);
            }
            Value::Object(_) => merge(old.entry(key).or_insert(Value::Null), value),
            Value::Array(items) if key == "conditions" => {
                let list = old.entry(key).or_insert(json!([])).as_array_mut().unwrap();
                for item in items {
                    list.retain(|known| known["type"] != item["type"]);
                    if item.get("$patch").is_none() {
                        list.push(item.clone());
                    }
                }
            }
            Value::Array(items) => {
                let items = items.iter().filter(|item| item.get("$patch").is_none());
                old.insert(key.clone(), items.cloned().collect());
            }
            value => {
                old.insert(key.clone(), value.clone());
            }
        }
    }
}
