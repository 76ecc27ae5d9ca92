//! A scripted apiserver for tests: objects by path, answers that can be made to fail, and a count
//! of what was asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// The server; it ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<Script>>,
    client: kube::Client,
}

#[derive(Default)]
struct Script {
    objects: BTreeMap<String, Value>,
    requests: Vec<(String, Value)>,
    delay: Duration,
    failing: bool,
    token_life: i64,
    /// So many tokens are refused before one is given.
    token_refusals: usize,
}

impl FakeApi {
    pub(crate) async fn start() -> Self {
        let state = Arc::new(Mutex::new(Script { token_life: 3600, ..Script::default() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        Self { state, client: kube::Client::try_from(config).unwrap() }
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Stores an object of namespace `ns`; `resource` is its plural name.
    pub(crate) fn put(&self, resource: &str, name: &str, version: u64, fields: Value) {
        let mut object = fields;
        object["metadata"] =
            json!({"name": name, "namespace": "ns", "resourceVersion": version.to_string()});
        self.script().objects.insert(path(resource, name), object);
    }

    /// Stores an object as it is at its path, such as `/api/v1/persistentvolumes/x`.
    pub(crate) fn put_at(&self, path: &str, object: Value) {
        self.script().objects.insert(path.to_owned(), object);
    }

    pub(crate) fn delete(&self, resource: &str, name: &str) {
        self.script().objects.remove(&path(resource, name));
    }

    /// Makes every answer an error 500.
    pub(crate) fn fail(&self, failing: bool) {
        self.script().failing = failing;
    }

    pub(crate) fn delay(&self, delay: Duration) {
        self.script().delay = delay;
    }

    /// The life of tokens made from now on, in seconds.
    pub(crate) fn token_life(&self, seconds: i64) {
        self.script().token_life = seconds;
    }

    /// Refuses that many tokens, as an apiserver does that has yet to hear of the pod's binding.
    pub(crate) fn refuse_tokens(&self, times: usize) {
        self.script().token_refusals = times;
    }

    /// The requests so far: path with query, and body.
    pub(crate) fn requests(&self) -> Vec<(String, Value)> {
        self.script().requests.clone()
    }

    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.state.lock().unwrap()
    }
}

fn path(resource: &str, name: &str) -> String {
    format!("/api/v1/namespaces/ns/{resource}/{name}")
}

async fn answer(
    State(state): State<Arc<Mutex<Script>>>,
    method: Method,
    uri: Uri,
    body: String,
) -> Response {
    let (delay, answer) = {
        let mut script = state.lock().unwrap();
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        script.requests.push((uri.to_string(), body.clone()));
        let object = script.objects.get(uri.path()).cloned();
        let answer = match (method, object) {
            _ if script.failing => status(500, "the store is away"),
            (Method::GET, Some(object)) => axum_json(StatusCode::OK, &object),
            (Method::POST, _) if uri.path().ends_with("/token") && script.token_refusals > 0 => {
                script.token_refusals -= 1;
                status(403, "bound to a pod scheduled on a different node")
            }
            (Method::POST, _) if uri.path().ends_with("/token") => {
                let mut token = body;
                let expires = Timestamp::now() + SignedDuration::from_secs(script.token_life);
                token["spec"]["expirationSeconds"] = json!(3600);
                token["status"] = json!({
                    "token": format!("token-{}", script.requests.len()),
                    "expirationTimestamp": expires.to_string(),
                });
                axum_json(StatusCode::CREATED, &token)
            }
            _ => status(404, "not found"),
        };
        (script.delay, answer)
    };
    tokio::time::sleep(delay).await;
    answer
}

fn status(code: u16, message: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": message, "reason": "Scripted", "code": code,
    });
    axum_json(StatusCode::from_u16(code).unwrap(), &body)
}

fn axum_json(code: StatusCode, body: &Value) -> Response {
    (code, [("content-type", "application/json")], body.to_string()).into_response()
}
