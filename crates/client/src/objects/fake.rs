//! A scripted apiserver for tests: objects by path, with lists and watches of single ones; answers
//! that can be made to fail, watches that can be cut off, and counts of requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

const SELECTOR: &str = "fieldSelector=metadata.name%3D";

/// The server; it ends with the test's runtime.
#[derive(Clone)]
pub struct FakeApi {
    state: Arc<Mutex<Script>>,
    client: kube::Client,
    url: String,
}

#[derive(Default)]
struct Script {
    objects: BTreeMap<String, Value>,
    /// The history: version, path, and the watch event.
    history: Vec<(u64, String, Value)>,
    /// How much happened, and how often watches were cut off.
    news: watch::Sender<(usize, usize)>,
    /// What happened before that version is forgotten.
    forgotten: u64,
    /// Watches that are open.
    watches: usize,
    requests: Vec<(String, Value)>,
    delay: Duration,
    failing: bool,
    token_life: i64,
    /// So many tokens are refused before one is given.
    token_refusals: usize,
}

impl FakeApi {
    /// Starts one, on a port of loopback.
    pub async fn start() -> Self {
        let state = Arc::new(Mutex::new(Script { token_life: 3600, ..Script::default() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let url = format!("http://{address}");
        Self { state, client: Self::connect(&url), url }
    }

    /// A client of the server with that URL, in whatever process.
    pub fn connect(url: &str) -> kube::Client {
        kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap()
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client of it.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Stores an object of namespace `ns`, at that version or the next; `resource` is its plural name.
    pub fn put(&self, resource: &str, name: &str, version: u64, fields: Value) {
        let (mut script, path) = (self.script(), path(resource, name));
        let version = version.max(script.version() + 1);
        let object = object(name, version, fields);
        let kind = match script.objects.insert(path.clone(), object.clone()) {
            Some(_) => "MODIFIED",
            None => "ADDED",
        };
        script.record(version, path, json!({"type": kind, "object": object}));
    }

    /// Goes back to an older version, as a server does that is behind the others.
    pub fn put_stale(&self, resource: &str, name: &str, version: u64, fields: Value) {
        let object = object(name, version, fields);
        self.script().objects.insert(path(resource, name), object);
    }

    /// Stores an object as it is at its path, such as `/api/v1/persistentvolumes/x`.
    pub fn put_at(&self, path: &str, object: Value) {
        self.script().objects.insert(path.to_owned(), object);
    }

    /// Deletes an object of namespace `ns`.
    pub fn delete(&self, resource: &str, name: &str) {
        let (mut script, path) = (self.script(), path(resource, name));
        if let Some(mut object) = script.objects.remove(&path) {
            let version = script.version() + 1;
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            script.record(version, path, json!({"type": "DELETED", "object": object}));
        }
    }

    /// Cuts all watches off, in the middle of a line.
    pub fn cut_watches(&self) {
        self.script().news.send_modify(|(_, cuts)| *cuts += 1);
    }

    /// Makes watches from now on start with a list: what happened so far is forgotten.
    pub fn forget(&self) {
        let mut script = self.script();
        script.forgotten = script.version();
    }

    /// How many watches are open.
    pub fn watches(&self) -> usize {
        self.script().watches
    }

    /// Makes every answer an error 500.
    pub fn fail(&self, failing: bool) {
        self.script().failing = failing;
    }

    /// Delays every answer from now on by that long.
    pub fn delay(&self, delay: Duration) {
        self.script().delay = delay;
    }

    /// The life of tokens made from now on, in seconds.
    pub fn token_life(&self, seconds: i64) {
        self.script().token_life = seconds;
    }

    /// Refuses that many tokens, as an apiserver does that has yet to hear of the pod's binding.
    pub fn refuse_tokens(&self, times: usize) {
        self.script().token_refusals = times;
    }

    /// The object at that path.
    pub fn object(&self, path: &str) -> Option<Value> {
        self.script().objects.get(path).cloned()
    }

    /// The requests so far: path with query, and body.
    pub fn requests(&self) -> Vec<(String, Value)> {
        self.script().requests.clone()
    }

    fn script(&self) -> parking_lot::MutexGuard<'_, Script> {
        self.state.lock()
    }
}

impl Script {
    fn version(&self) -> u64 {
        self.history.last().map_or(0, |(version, ..)| *version)
    }

    fn record(&mut self, version: u64, path: String, event: Value) {
        self.history.push((version, path, event));
        self.news.send_modify(|(length, _)| *length += 1);
    }

    /// The answer to a list or a watch of the one object at that path.
    fn select(&mut self, state: &Arc<Mutex<Self>>, path: &str, query: &str) -> Response {
        if !query.contains("watch=true") {
            let items: Vec<_> = self.objects.get(path).into_iter().collect();
            let version = self.version().to_string();
            let list = json!({"metadata": {"resourceVersion": version}, "items": items});
            return axum_json(StatusCode::OK, &list);
        }
        let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
        let from: u64 = from.unwrap().parse().unwrap();
        if from < self.forgotten {
            return status(410, "too old resource version");
        }
        let events = events(state.clone(), self.news.subscribe(), path.to_owned(), from);
        self.watches += 1;
        (StatusCode::OK, Body::from_stream(events)).into_response()
    }
}

/// A watch that is open.
struct Open(Arc<Mutex<Script>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().watches -= 1;
    }
}

/// The events of one object since a version, until the watch is cut off.
fn events(
    state: Arc<Mutex<Script>>,
    mut news: watch::Receiver<(usize, usize)>,
    path: String,
    from: u64,
) -> impl futures::Stream<Item = Result<String, std::io::Error>> {
    let cuts = news.borrow_and_update().1;
    let begin = (Open(state), news, 0);
    futures::stream::unfold(begin, move |(open, mut news, mut next)| {
        let path = path.clone();
        async move {
            loop {
                if news.borrow_and_update().1 != cuts {
                    return Some((
                        Err(std::io::ErrorKind::ConnectionReset.into()),
                        (open, news, next),
                    ));
                }
                let event = {
                    let script = open.0.lock();
                    let rest = script.history.iter().enumerate().skip(next);
                    let mut own =
                        rest.filter(|(_, (version, at, _))| *version > from && *at == path);
                    own.next().map(|(index, (.., event))| (index, format!("{event}\n")))
                };
                match event {
                    Some((index, line)) => {
                        next = index + 1;
                        return Some((Ok(line), (open, news, next)));
                    }
                    None => news.changed().await.ok()?,
                }
            }
        }
    })
}

fn object(name: &str, version: u64, fields: Value) -> Value {
    let mut object = fields;
    object["metadata"] =
        json!({"name": name, "namespace": "ns", "resourceVersion": version.to_string()});
    object
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
        let mut script = state.lock();
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        script.requests.push((uri.to_string(), body.clone()));
        let object = script.objects.get(uri.path()).cloned();
        let query = uri.query().unwrap_or_default();
        let selected = query.split('&').find_map(|pair| pair.strip_prefix(SELECTOR));
        let selected = selected.map(|name| format!("{}/{name}", uri.path()));
        let answer = match (method, object) {
            _ if script.failing => status(500, "the store is away"),
            (Method::GET, None) if selected.is_some() => {
                script.select(&state, &selected.unwrap_or_default(), query)
            }
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
            (Method::PATCH, _) => {
                let path = uri.path().trim_end_matches("/status");
                match script.objects.get_mut(path) {
                    Some(object) => {
                        merge(object, body);
                        axum_json(StatusCode::OK, object)
                    }
                    None => status(404, "not found"),
                }
            }
            _ => status(404, "not found"),
        };
        (script.delay, answer)
    };
    tokio::time::sleep(delay).await;
    answer
}

/// A merge patch.
fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                match value {
                    Value::Null => drop(target.remove(&key)),
                    value => merge(target.entry(key).or_insert_with(|| json!({})), value),
                }
            }
        }
        (target, patch) => *target = patch,
    }
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
