//! A scripted apiserver for tests, with a signer: PodCertificateRequests are made, followed and answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use longshore_base::clock;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;

/// The server. Clones share it.
#[derive(Clone, Default)]
pub struct FakeSigner(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    /// By name.
    requests: BTreeMap<String, Value>,
    /// How many were made.
    made: watch::Sender<usize>,
    /// So many are refused before one is made.
    refusals: usize,
    version: u64,
    watches: Vec<mpsc::UnboundedSender<Value>>,
    /// Reasons and messages.
    events: watch::Sender<Vec<(String, String)>>,
}

impl FakeSigner {
    /// A client of it, in this process.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        kube::Client::new(Router::new().fallback(answer).with_state(self.clone()), "default")
    }

    /// The request with that number, from 1, once it is made.
    pub async fn request(&self, number: usize) -> Value {
        let mut made = self.0.lock().made.subscribe();
        made.wait_for(|made| *made >= number).await.unwrap();
        self.0.lock().requests[&name(number)].clone()
    }

    /// How many requests were made.
    #[must_use]
    pub fn made(&self) -> usize {
        *self.0.lock().made.borrow()
    }

    /// Refuses the next requests.
    pub fn refuse(&self, times: usize) {
        self.0.lock().refusals = times;
    }

    /// Answers the request with that number.
    pub fn answer(&self, number: usize, status: Value) {
        let mut script = self.0.lock();
        let mut request = script.requests[&name(number)].clone();
        request["status"] = status;
        script.store(name(number), request);
    }

    /// Issues this for the request with that number.
    pub fn issue(&self, number: usize, chain: &str, begin_refresh_at: &str, not_after: &str) {
        let issued = json!({
            "conditions": [condition("Issued", "Issued", "")],
            "certificateChain": chain, "notBefore": "2026-01-01T00:00:00Z",
            "beginRefreshAt": begin_refresh_at, "notAfter": not_after,
        });
        self.answer(number, issued);
    }

    /// Refuses the request with that number for good, with a condition `Denied` or `Failed`.
    pub fn end(&self, number: usize, kind: &str, reason: &str, message: &str) {
        self.answer(number, json!({"conditions": [condition(kind, reason, message)]}));
    }

    /// Deletes the request with that number.
    pub fn delete(&self, number: usize) {
        let mut script = self.0.lock();
        let request = script.requests.remove(&name(number)).unwrap();
        script.send("DELETED", &request);
    }

    /// Waits for events until there is one with that reason; returns its message.
    pub async fn event(&self, reason: &str) -> String {
        let mut events = self.0.lock().events.subscribe();
        let has = |events: &Vec<(String, String)>| events.iter().any(|(known, _)| known == reason);
        let events = events.wait_for(has).await.unwrap();
        events.iter().find(|(known, _)| known == reason).unwrap().1.clone()
    }

    /// How many events with that reason there are.
    #[must_use]
    pub fn events(&self, reason: &str) -> usize {
        self.0.lock().events.borrow().iter().filter(|(known, _)| known == reason).count()
    }
}

fn name(number: usize) -> String {
    format!("req-{number}")
}

fn condition(kind: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

impl Script {
    fn store(&mut self, name: String, mut request: Value) {
        self.version += 1;
        request["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let kind = if self.requests.contains_key(&name) { "MODIFIED" } else { "ADDED" };
        self.send(kind, &request);
        self.requests.insert(name, request);
    }

    fn send(&mut self, kind: &str, request: &Value) {
        let event = json!({"type": kind, "object": request});
        self.watches.retain(|watch| watch.send(event.clone()).is_ok());
    }
}

async fn answer(
    State(signer): State<FakeSigner>,
    method: Method,
    uri: Uri,
    body: String,
) -> Response {
    let mut script = signer.0.lock();
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    let query = uri.query().unwrap_or_default();
    match (method, uri.path()) {
        (Method::GET, "/apis/certificates.k8s.io/v1beta1/podcertificaterequests") => {
            assert!(query.contains("fieldSelector=spec.nodeName%3Dn1"), "{query}");
            if !query.contains("watch=true") {
                let items: Vec<_> = script.requests.values().collect();
                let version = script.version.to_string();
                let list = json!({"metadata": {"resourceVersion": version}, "items": items});
                return reply(StatusCode::OK, &list);
            }
            let (sender, events) = mpsc::unbounded_channel();
            script.watches.push(sender);
            let lines = UnboundedReceiverStream::new(events);
            let lines = futures::StreamExt::map(lines, |event| {
                Ok::<_, std::convert::Infallible>(format!("{event}\n"))
            });
            Body::from_stream(lines).into_response()
        }
        (
            Method::POST,
            "/apis/certificates.k8s.io/v1beta1/namespaces/ns/podcertificaterequests",
        ) => {
            if script.refusals > 0 {
                script.refusals -= 1;
                return refused("not yet");
            }
            let number = *script.made.borrow() + 1;
            let mut request = body;
            request["metadata"]["name"] = json!(name(number));
            request["metadata"]["creationTimestamp"] = json!(clock::now().to_string());
            script.store(name(number), request.clone());
            script.made.send_replace(number);
            reply(StatusCode::CREATED, &request)
        }
        (Method::GET, "/api/v1/namespaces/ns/serviceaccounts/sa") => {
            let account = json!({"metadata": {"name": "sa", "namespace": "ns", "uid": "sa-uid"}});
            reply(StatusCode::OK, &account)
        }
        (Method::POST, "/api/v1/namespaces/ns/events") => {
            let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
            script.events.send_modify(|events| events.push((text("reason"), text("message"))));
            reply(StatusCode::CREATED, &body)
        }
        (method, path) => refused(&format!("unexpected: {method} {path}")),
    }
}

fn refused(message: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
        "message": message, "reason": "Forbidden", "code": 403,
    });
    reply(StatusCode::FORBIDDEN, &status)
}

fn reply(code: StatusCode, body: &Value) -> Response {
    (code, [("content-type", "application/json")], body.to_string()).into_response()
}
