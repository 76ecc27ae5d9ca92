//! An apiserver in memory: pods, whose changes it sends to the daemon, config maps, events, and any other
//! objects by their path. It records what no node should write.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use longshore_podstate::sources::{Source, Update};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// The ends of paths that are lists.
const COLLECTIONS: [&str; 5] = ["/pods", "/services", "/nodes", "/csidrivers", "/runtimeclasses"];

#[derive(Default)]
pub(crate) struct Objects {
    version: u64,
    /// By name.
    pub(crate) pods: BTreeMap<String, Value>,
    pub(crate) config_maps: BTreeMap<String, Value>,
    /// Reasons and messages of events.
    pub(crate) events: Vec<(String, String)>,
    /// The phases that were written, by the UID of the pod, without repetitions.
    pub(crate) phases: BTreeMap<String, Vec<String>>,
    /// Restart counts that were written last and the container that had exited then, by UID and
    /// container.
    restarts: BTreeMap<(String, String), (u64, Option<String>)>,
    /// The next writes of statuses and deletions fail.
    pub(crate) failures: usize,
    /// The next writes of statuses and deletions take so long, before they have an effect.
    pub(crate) delays: VecDeque<Duration>,
    pub(crate) violations: Vec<String>,
    /// The static pods of the node's manifests.
    manifests: Vec<Pod>,
    updates: Option<mpsc::Sender<(Source, Update)>>,
    /// Watches of pods.
    watches: Vec<mpsc::UnboundedSender<Value>>,
    /// Objects of other kinds, by their path.
    pub(crate) others: BTreeMap<String, Value>,
    /// Whether all requests fail.
    pub(crate) is_down: bool,
    /// Methods and paths of all requests.
    pub(crate) requests: Vec<String>,
}

/// A handle of the apiserver. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Api(Arc<Mutex<Objects>>);

impl Api {
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.0.lock().unwrap()
    }

    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::new(Router::new().fallback(answer).with_state(self.clone()), "default")
    }

    /// Sends all pods and, from then on, their changes.
    pub(crate) fn follow(&self, updates: mpsc::Sender<(Source, Update)>) {
        let mut objects = self.objects();
        let pods = objects.pods.values().map(decoded).collect();
        updates.try_send((Source::Api, Update::Snapshot(pods))).unwrap();
        let manifests = objects.manifests.clone();
        updates.try_send((Source::File, Update::Snapshot(manifests))).unwrap();
        objects.updates = Some(updates);
    }

    /// Creates the pod, or changes it with this function.
    pub(crate) fn put_pod(&self, pod: Value) {
        self.objects().store(pod);
    }

    /// The manifests of the node are these from now on.
    pub(crate) fn put_manifests(&self, pods: &[Value]) {
        let mut objects = self.objects();
        objects.manifests = pods.iter().map(decoded).collect();
        let snapshot = Update::Snapshot(objects.manifests.clone());
        objects.updates.as_ref().unwrap().try_send((Source::File, snapshot)).unwrap();
    }

    /// The UID of the object of that name; empty if there is none.
    pub(crate) fn uid(&self, name: &str) -> String {
        let objects = self.objects();
        let uid = objects.pods.get(name).and_then(|pod| pod["metadata"]["uid"].as_str());
        uid.unwrap_or_default().to_owned()
    }

    pub(crate) fn change_pod(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut objects = self.objects();
        let Some(mut pod) = objects.pods.get(name).cloned() else { return };
        change(&mut pod);
        objects.store(pod);
    }

    /// Requests the deletion with that grace period in seconds, which can only be shortened. A pod with
    /// none is gone at once.
    pub(crate) fn delete_pod(&self, name: &str, grace: i64) {
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
    pub(crate) fn status(&self, name: &str) -> Value {
        self.objects().pods.get(name).map(|pod| pod["status"].clone()).unwrap_or_default()
    }

    /// The message of the first event with that reason.
    pub(crate) fn event(&self, reason: &str) -> Option<String> {
        let objects = self.objects();
        let found = objects.events.iter().find(|(known, _)| known == reason);
        found.map(|(_, message)| message.clone())
    }
}

fn decoded(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

impl Objects {
    /// A UID that no object has had.
    pub(crate) fn new_uid(&mut self) -> String {
        self.version += 1;
        format!("uid{}", self.version)
    }

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
        let known = self.pods.insert(name, pod.clone());
        self.notify(if known.is_some() { "MODIFIED" } else { "ADDED" }, &pod);
    }

    fn remove(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.send(Update::Remove(Box::new(decoded(&pod))));
            self.notify("DELETED", &pod);
        }
    }

    /// Sends an event to all watches.
    fn notify(&mut self, kind: &str, pod: &Value) {
        let event = json!({"type": kind, "object": with_kind(pod)});
        self.watches.retain(|watch| watch.send(event.clone()).is_ok());
    }

    /// A watch of pods from that version on.
    fn watch(&mut self, from: u64) -> mpsc::UnboundedReceiver<Value> {
        let (watch, events) = mpsc::unbounded_channel();
        for pod in self.pods.values() {
            let version = pod["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            if version.parse::<u64>().is_ok_and(|version| version > from) {
                let _ = watch.send(json!({"type": "MODIFIED", "object": with_kind(pod)}));
            }
        }
        self.watches.push(watch);
        events
    }

    /// Answers requests about objects of other kinds.
    fn answer_others(&mut self, method: &str, uri: &Uri, request: Value) -> (StatusCode, String) {
        let path = uri.path().strip_suffix("/status").unwrap_or(uri.path()).to_owned();
        self.version += 1;
        let version = &json!(self.version.to_string());
        let stored = |objects: &mut Self, path: String, mut object: Value| {
            object["metadata"]["resourceVersion"] = version.clone();
            objects.others.insert(path, object.clone());
            object.to_string()
        };
        let name = request["metadata"]["name"].as_str().unwrap_or_default();
        let created = format!("{path}/{name}");
        match (method, self.others.get(&path).cloned()) {
            ("POST", _) if self.others.contains_key(&created) => {
                error(StatusCode::CONFLICT, "AlreadyExists")
            }
            ("POST", _) => {
                let mut object = request.clone();
                object["metadata"]["uid"] = json!(created);
                (StatusCode::CREATED, stored(self, created, object))
            }
            ("GET", Some(object)) => (StatusCode::OK, object.to_string()),
            ("PUT", Some(_)) => (StatusCode::OK, stored(self, path, request)),
            ("PATCH", Some(mut object)) => {
                merge(&mut object, &request);
                (StatusCode::OK, stored(self, path, object))
            }
            ("GET", None) if COLLECTIONS.iter().any(|plural| path.ends_with(plural)) => {
                let items: Vec<Value> = match path.ends_with("/pods") {
                    true => self.pods.values().cloned().collect(),
                    false => {
                        let inside = self.others.iter().filter(|(of, _)| of.starts_with(&path));
                        inside.map(|(_, object)| object.clone()).collect()
                    }
                };
                let list = json!({"kind": "List", "apiVersion": "v1", "items": items,
                    "metadata": {"resourceVersion": version}});
                (StatusCode::OK, list.to_string())
            }
            _ => error(StatusCode::NOT_FOUND, "NotFound"),
        }
    }

    /// Phases and restart counts only go forward, and a container that has exited never runs again.
    fn check(&mut self, uid: &str, status: &Value) {
        let rank = |phase: &str| match phase {
            "Pending" => 0,
            "Running" => 1,
            _ => 2,
        };
        let phase = status["phase"].as_str().unwrap_or("Pending").to_owned();
        let phases = self.phases.entry(uid.to_owned()).or_default();
        // After the loss of its sandbox a pod is initialized again.
        let init = status["initContainerStatuses"].as_array().into_iter().flatten();
        let initializes = init.into_iter().any(|one| one["state"]["terminated"].is_null());
        if let Some(last) = phases.last()
            && (rank(&phase) < rank(last) && !initializes || rank(last) == 2 && *last != phase)
        {
            self.violations.push(format!("phase of {uid} from {last} to {phase}"));
        }
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
        for container in status["containerStatuses"].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            let count = container["restartCount"].as_u64().unwrap_or(0);
            let id = container["containerID"].as_str().unwrap_or_default().to_owned();
            let (known, exited) = self.restarts.entry((uid.to_owned(), name.clone())).or_default();
            if count < *known {
                self.violations.push(format!("restarts of {name} from {known} to {count}"));
            }
            if !container["state"]["running"].is_null() && exited.as_ref() == Some(&id) {
                self.violations.push(format!("{name} runs again as {id}"));
            }
            *known = count;
            if !container["state"]["terminated"].is_null() {
                *exited = Some(id);
            }
        }
    }
}

fn with_kind(pod: &Value) -> Value {
    let mut pod = pod.clone();
    pod["kind"] = json!("Pod");
    pod["apiVersion"] = json!("v1");
    pod
}

async fn answer(State(api): State<Api>, method: Method, uri: Uri, body: Bytes) -> Response {
    let is_write =
        matches!(method, Method::PATCH | Method::DELETE) && uri.path().contains("/pods/");
    let delay = is_write.then(|| api.objects().delays.pop_front()).flatten();
    sleep(delay.unwrap_or_default()).await;
    let mut objects = api.objects();
    objects.requests.push(format!("{method} {}", uri.path()));
    if objects.is_down {
        return error(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable").into_response();
    }
    let query = uri.query().unwrap_or_default();
    if query.contains("watch=true") {
        let version = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
        let version = version.and_then(|version| version.parse().ok()).unwrap_or(0);
        let events = uri.path().ends_with("/pods").then(|| objects.watch(version));
        let lines = futures::stream::unfold(events, |events| async {
            let Some(mut events) = events else { return std::future::pending().await };
            let event = events.recv().await?;
            Some((Ok::<_, std::io::Error>(format!("{event}\n")), Some(events)))
        });
        return Body::from_stream(lines.boxed()).into_response();
    }
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    objects.answer(&method, &uri, request).into_response()
}

impl Objects {
    fn answer(&mut self, method: &Method, uri: &Uri, request: Value) -> (StatusCode, String) {
        let parts: Vec<&str> = uri.path().split('/').skip(5).collect();
        let found = |value: Option<&Value>| match value {
            Some(value) => (StatusCode::OK, value.to_string()),
            None => error(StatusCode::NOT_FOUND, "NotFound"),
        };
        match (method.as_str(), parts.as_slice()) {
            ("POST" | "PATCH", ["events", ..]) => {
                let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
                self.events.push((text("reason"), text("message")));
                (StatusCode::CREATED, request.to_string())
            }
            ("GET", ["configmaps", name]) => found(self.config_maps.get(*name)),
            ("GET", ["pods", name]) => found(self.pods.get(*name)),
            ("POST", ["pods"]) => {
                let name = request["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                if self.pods.contains_key(&name) {
                    return error(StatusCode::CONFLICT, "AlreadyExists");
                }
                let mut pod = request;
                pod["metadata"]["uid"] = json!(self.new_uid());
                self.store(pod);
                found(self.pods.get(&name))
            }
            ("PATCH" | "DELETE", ["pods", name, ..]) => {
                if self.failures > 0 {
                    self.failures -= 1;
                    return error(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
                }
                let Some(mut pod) = self.pods.get(*name).cloned() else {
                    return error(StatusCode::NOT_FOUND, "NotFound");
                };
                let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                let wanted = match *method == Method::DELETE {
                    true => &request["preconditions"]["uid"],
                    false => &request["metadata"]["uid"],
                };
                if *wanted != json!(uid) {
                    return error(StatusCode::CONFLICT, "Conflict");
                }
                if *method == Method::DELETE {
                    let finalizers = pod["metadata"]["finalizers"].as_array();
                    if finalizers.is_none_or(Vec::is_empty) {
                        self.remove(name);
                    }
                    return (StatusCode::OK, pod.to_string());
                }
                merge(&mut pod["status"], &request["status"]);
                self.check(&uid, &pod["status"]);
                self.store(pod);
                found(self.pods.get(*name))
            }
            _ => self.answer_others(method.as_str(), uri, request),
        }
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
