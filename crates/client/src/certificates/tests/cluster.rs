//! An apiserver that knows nothing but certificate signing requests, and what signs them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rcgen::{CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

/// What becomes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    Hold,
    /// Signed for a life from and until so many seconds from now.
    Sign(i64, i64),
    Deny,
    /// All requests get 401.
    Refuse,
}

pub(super) struct Cluster {
    pub(super) url: String,
    shared: Arc<Shared>,
}

struct Shared {
    policy: Mutex<Policy>,
    requests: Mutex<Vec<Value>>,
    /// The headers `authorization` of the requests.
    askers: Mutex<Vec<String>>,
    ca: Issuer<'static, KeyPair>,
}

impl Cluster {
    pub(super) async fn start(policy: Policy) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let shared = Arc::new(Shared {
            policy: Mutex::new(policy),
            requests: Mutex::default(),
            askers: Mutex::default(),
            ca: Issuer::new(params, KeyPair::generate().unwrap()),
        });
        let all = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
        let router = Router::new()
            .route(all, get(list).post(create))
            .route(&format!("{all}/{{name}}"), get(one))
            .route("/api/v1/nodes", get(silence))
            .with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, shared }
    }

    pub(super) fn set(&self, policy: Policy) {
        *self.shared.policy.lock() = policy;
    }

    /// The requests as they are now.
    pub(super) fn requests(&self) -> Vec<Value> {
        let mut requests = self.shared.requests.lock();
        self.shared.decide(&mut requests);
        requests.clone()
    }

    pub(super) fn askers(&self) -> Vec<String> {
        self.shared.askers.lock().clone()
    }

    pub(super) async fn wait_until_requested(&self, times: usize) {
        let asked = async {
            while self.requests().len() < times {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), asked).await.expect("a request comes");
    }
}

impl Shared {
    fn decide(&self, requests: &mut [Value]) {
        for (index, csr) in requests.iter_mut().enumerate() {
            if csr.get("status").is_some() {
                continue;
            }
            let condition =
                |kind| json!([{"type": kind, "status": "True", "message": "as requested"}]);
            match *self.policy.lock() {
                Policy::Hold | Policy::Refuse => continue,
                Policy::Deny => csr["status"] = json!({"conditions": condition("Denied")}),
                Policy::Sign(from, until) => {
                    let certificate = STANDARD.encode(self.sign(csr, from, until));
                    csr["status"] =
                        json!({"conditions": condition("Approved"), "certificate": certificate});
                }
            }
            csr["metadata"]["resourceVersion"] = json!((index + 100).to_string());
        }
    }

    fn sign(&self, csr: &Value, from: i64, until: i64) -> String {
        let pem = STANDARD.decode(csr["spec"]["request"].as_str().unwrap()).unwrap();
        let pem = String::from_utf8(pem).unwrap();
        let mut request = CertificateSigningRequestParams::from_pem(&pem).unwrap();
        let at = |seconds| {
            std::time::SystemTime::from(Timestamp::now() + SignedDuration::from_secs(seconds))
        };
        request.params.not_before = at(from).into();
        request.params.not_after = at(until).into();
        request.signed_by(&self.ca).unwrap().pem()
    }
}

async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: String,
) -> Result<Response, Response> {
    let asker = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    shared.askers.lock().push(asker.unwrap_or_default());
    if *shared.policy.lock() == Policy::Refuse {
        return Err(status(StatusCode::UNAUTHORIZED, "Unauthorized"));
    }
    let mut csr: Value = serde_json::from_str(&body).unwrap();
    let mut requests = shared.requests.lock();
    let name = match csr["metadata"]["name"].as_str() {
        Some(name) => name.to_owned(),
        None => format!("csr-{}", requests.len()),
    };
    if requests.iter().any(|other| other["metadata"]["name"] == name) {
        return Err(status(StatusCode::CONFLICT, "AlreadyExists"));
    }
    csr["metadata"] = json!({"name": name, "uid": name, "resourceVersion": "1"});
    requests.push(csr.clone());
    shared.decide(&mut requests);
    Ok(json_body(csr).into_response())
}

async fn one(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Response {
    let requests = shared.requests.lock();
    match requests.iter().find(|csr| csr["metadata"]["name"] == name) {
        Some(csr) => json_body(csr.clone()).into_response(),
        None => status(StatusCode::NOT_FOUND, "NotFound"),
    }
}

async fn list(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let value = |key: &str| query.iter().find(|(name, _)| name == key).map(|(_, value)| value);
    let name = value("fieldSelector").unwrap().strip_prefix("metadata.name=").unwrap().to_owned();
    let found = move |shared: &Shared| {
        let mut requests = shared.requests.lock();
        shared.decide(&mut requests);
        requests.iter().find(|csr| csr["metadata"]["name"] == name).cloned()
    };
    if value("watch").is_none() {
        return json_body(json!({
            "kind": "CertificateSigningRequestList", "apiVersion": "certificates.k8s.io/v1",
            "metadata": {"resourceVersion": "1"}, "items": Vec::from_iter(found(&shared)),
        }))
        .into_response();
    }
    // one event when it is decided, and then silence
    let decided = futures::stream::once(async move {
        loop {
            match found(&shared) {
                Some(csr) if csr.get("status").is_some() => {
                    return Ok::<_, std::io::Error>(
                        json!({"type": "MODIFIED", "object": csr}).to_string() + "\n",
                    );
                }
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    });
    let silence = futures::stream::pending();
    Body::from_stream(futures::StreamExt::chain(decided, silence)).into_response()
}

fn json_body(value: Value) -> Response {
    ([("content-type", "application/json")], value.to_string()).into_response()
}

/// A watch in which nothing happens.
async fn silence() -> Body {
    Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>())
}

fn status(code: StatusCode, reason: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
        "reason": reason, "code": code.as_u16(),
    });
    (code, json_body(status)).into_response()
}
