//! Actions as requests to an apiserver.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use longshore_client::error_message;
use longshore_client::events::{EventType, Recorder};
use longshore_metrics::{Counter, Family};
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::extender::Extenders;
use super::{Action, Executor, Outcome};
use crate::metrics::Metrics;
use crate::model::{Atom, ClaimKey, Pod};
use crate::scheduler::VolumeRequest;

/// How often a status is written.
const MAX_ATTEMPTS: u32 = 3;

/// Carries out actions by requests.
pub struct ApiExecutor {
    client: Client,
    /// Recorders by the name of the scheduler.
    recorders: HashMap<Atom, Recorder>,
    extenders: Extenders,
    /// Claims that were made, by `success` or `failure`.
    pub(super) claim_creates: Family<Counter, 1>,
}

/// The media types of patches.
#[derive(Clone, Copy)]
enum PatchType {
    Merge,
    Strategic,
}

impl ApiExecutor {
    /// Events of each profile are recorded under its name.
    pub fn new(
        client: Client,
        recorders: HashMap<Atom, Recorder>,
        extenders: Extenders,
        metrics: &Metrics,
    ) -> Self {
        Self { client, recorders, extenders, claim_creates: metrics.claim_creates.clone() }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> kube::Result<String> {
        let request = hyper::http::Request::builder()
            .method(method)
            .uri(path)
            .header(hyper::http::header::CONTENT_TYPE, content_type)
            .body(body.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await
    }

    /// An object as it is now.
    pub(super) async fn get(&self, path: &str) -> kube::Result<Value> {
        let request =
            hyper::http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let text = self.client.request_text(request).await?;
        serde_json::from_str(&text).map_err(kube::Error::SerdeError)
    }

    /// Creates an object; what it is then.
    pub(super) async fn post(&self, path: &str, object: &Value) -> kube::Result<Value> {
        let text = self.send("POST", path, "application/json", object).await?;
        serde_json::from_str(&text).map_err(kube::Error::SerdeError)
    }

    /// Deletes the object with that UID.
    pub(super) async fn delete(&self, path: &str, uid: &str) -> kube::Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": uid}});
        self.send("DELETE", path, "application/json", &body).await.map(|_| ())
    }

    /// Replaces an object; what it is then.
    pub(super) async fn put(&self, path: &str, object: &Value) -> kube::Result<Value> {
        let text = self.send("PUT", path, "application/json", object).await?;
        serde_json::from_str(&text).map_err(kube::Error::SerdeError)
    }

    pub(super) async fn patch_strategic(&self, path: &str, body: &Value) -> kube::Result<()> {
        self.patch(path, PatchType::Strategic, body).await
    }

    async fn patch(&self, path: &str, type_: PatchType, body: &Value) -> kube::Result<()> {
        let type_ = match type_ {
            PatchType::Merge => "application/merge-patch+json",
            PatchType::Strategic => "application/strategic-merge-patch+json",
        };
        self.send("PATCH", path, type_, body).await.map(|_| ())
    }

    async fn bind(&self, pod: &Pod, node: &Atom) -> Result<(), String> {
        if let Some(result) = self.extenders.bind(pod, node).await {
            return result;
        }
        let path = format!("{}/binding", path(pod));
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": &*pod.namespace, "name": pod.name, "uid": &*pod.uid},
            "target": {"kind": "Node", "name": &**node},
        });
        let sent = self.send("POST", &path, "application/json", &body).await;
        sent.map(|_| ()).map_err(|error| {
            format!("running Bind plugin \"DefaultBinder\": {}", error_message(&error))
        })
    }

    async fn request_volumes(
        &self,
        node: &Atom,
        volumes: &[VolumeRequest],
        claims: &[(ClaimKey, Box<str>)],
    ) -> kube::Result<()> {
        for own in volumes {
            let path = format!("/api/v1/persistentvolumes/{}", own.name);
            let body = json!({
                "metadata": {
                    "resourceVersion": own.version,
                    "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
                },
                "spec": {"claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": &*own.claim.namespace,
                    "name": &*own.claim.name,
                    "uid": own.uid,
                }},
            });
            self.patch(&path, PatchType::Merge, &body).await?;
        }
        for (key, version) in claims {
            let path =
                format!("/api/v1/namespaces/{}/persistentvolumeclaims/{}", key.namespace, key.name);
            let body = json!({"metadata": {
                "resourceVersion": version,
                "annotations": {crate::model::SELECTED_NODE: &**node},
            }});
            self.patch(&path, PatchType::Merge, &body).await?;
        }
        Ok(())
    }

    /// Writes a status; a pod that is gone needs none.
    async fn patch_status(&self, pod: &Pod, status: Value) {
        let path = format!("{}/status", path(pod));
        let body = json!({ "status": status });
        for attempt in 1..=MAX_ATTEMPTS {
            match self.patch(&path, PatchType::Strategic, &body).await {
                Ok(()) => return,
                Err(error) if is_gone(&error) => return,
                Err(error) if attempt == MAX_ATTEMPTS => {
                    warn!(pod = pod.key(), "cannot write the status: {error}");
                }
                Err(error) => debug!(pod = pod.key(), "cannot write the status: {error}"),
            }
        }
    }

    async fn evict(&self, victim: &Pod, preemptor: &Pod, node: &Atom) -> kube::Result<()> {
        let condition = json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": format!(
                "{}: preempting to accommodate a higher priority pod",
                preemptor.scheduler
            ),
            "lastTransitionTime": now(),
            "observedGeneration": victim.generation,
        });
        self.patch_status(victim, json!({"conditions": [condition]})).await;
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": &*victim.uid},
        });
        match self.send("DELETE", &path(victim), "application/json", &body).await {
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
        let message = preempted(preemptor, node);
        self.event(preemptor, victim, EventType::Normal, "Preempted", &message);
        Ok(())
    }

    fn event(&self, by: &Pod, about: &Pod, kind: EventType, reason: &str, message: &str) {
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(about.namespace.to_string()),
            name: Some(about.name.to_string()),
            uid: Some(about.uid.to_string()),
            ..ObjectReference::default()
        };
        if let Some(recorder) = self.recorders.get(&by.scheduler) {
            recorder.event(reference, kind, reason, message);
        }
    }
}

impl Executor for ApiExecutor {
    async fn carry_out(&self, action: Action) -> Option<Outcome> {
        match action {
            Action::Bind { pod, node } => match self.bind(&pod, &node).await {
                Ok(()) => {
                    let message = format!("Successfully assigned {} to {node}", pod.key());
                    self.event(&pod, &pod, EventType::Normal, "Scheduled", &message);
                    Some(Outcome::Bound(pod.uid.clone()))
                }
                Err(error) => Some(Outcome::Failed(pod.uid.clone(), error)),
            },
            Action::PreBind { pod, node, volumes, claims, devices, waits, nominates } => {
                if nominates {
                    // The pod is bound even if that fails.
                    self.patch_status(&pod, json!({"nominatedNodeName": &*node})).await;
                }
                if let Err(error) = self.request_volumes(&node, &volumes, &claims).await {
                    let error = error_message(&error);
                    let error = format!("running PreBind plugin \"VolumeBinding\": {error}");
                    return Some(Outcome::Failed(pod.uid.clone(), error));
                }
                let mut done = Vec::new();
                let uid = pod.uid.clone();
                Some(match self.reserve_devices(&pod, &devices, &mut done).await {
                    Ok(()) => {
                        if waits {
                            let reason = "BindingConditionsPending";
                            let note =
                                format!("waiting for binding conditions for device on node {node}");
                            self.event(&pod, &pod, EventType::Normal, reason, &note);
                        }
                        Outcome::Prepared(uid, done)
                    }
                    Err(error) => {
                        let plugin = "DynamicResources";
                        let error = format!("running PreBind plugin \"{plugin}\": {error}");
                        Outcome::Unprepared(uid, error, done)
                    }
                })
            }
            Action::Unreserve { pod, claims } => {
                self.unreserve(&pod, &claims).await;
                None
            }
            Action::DeleteClaim { claim, uid } => {
                self.delete_claim(&claim, &uid).await;
                None
            }
            Action::Deallocate { pod, claim, uid } => {
                self.deallocate(&pod, &claim, &uid).await;
                None
            }
            Action::Report { pod, condition, message, note, nomination } => {
                if let Some(note) = note {
                    self.event(&pod, &pod, EventType::Warning, "FailedScheduling", &note);
                }
                let status = status(&pod, condition, message, nomination);
                if let Some(status) = status {
                    self.patch_status(&pod, status).await;
                }
                None
            }
            Action::Preempt { pod, node, victims, unbound } => {
                let message = preempted(&pod, &node);
                for victim in &unbound {
                    let message = format!("{message} (in kube-scheduler memory).");
                    self.event(&pod, victim, EventType::Normal, "Preempted", &message);
                }
                let mut is_done = true;
                for victim in &victims {
                    if let Err(error) = self.evict(victim, &pod, &node).await {
                        is_done = false;
                        warn!(pod = victim.key(), "cannot preempt: {error}");
                    }
                }
                Some(Outcome::Preempted(pod.uid.clone(), is_done))
            }
        }
    }
}

/// The note of the event of a pod that makes room.
fn preempted(by: &Pod, node: &Atom) -> String {
    format!("Preempted by pod {} on node {node}", by.uid)
}

/// What changes in the status of a pod that could not be scheduled.
fn status(
    pod: &Pod,
    condition: Option<&str>,
    message: String,
    nomination: Option<Option<Atom>>,
) -> Option<Value> {
    let mut status = json!({});
    if let Some(reason) = condition {
        let mut own = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "observedGeneration": pod.generation,
        });
        // one that was false before stays so since then
        if pod.unscheduled.is_none() {
            own["lastTransitionTime"] = now();
        }
        status["conditions"] = json!([own]);
    }
    if let Some(node) = nomination {
        status["nominatedNodeName"] = node.map_or(Value::Null, |node| json!(&*node));
    }
    (status != json!({})).then_some(status)
}

/// The time in whole seconds.
pub(super) fn now() -> Value {
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    json!(now.to_string())
}

fn path(pod: &Pod) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

/// Whether the object is gone, or another has its name.
pub(super) fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}
