//! A fake apiserver for tests that stores objects by path.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

/// The server; it ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct Objects {
    kept: Arc<Mutex<BTreeMap<String, Value>>>,
    config: kube::Config,
}

impl Objects {
    pub(crate) async fn start() -> Self {
        let kept = Arc::<Mutex<BTreeMap<String, Value>>>::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(kept.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        Self { kept, config }
    }

    /// A client with its own connections, bound to the current runtime.
    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::try_from(self.config.clone()).unwrap()
    }

    /// Stores an object at a path such as `/api/v1/nodes/n`, whose last part is its name.
    pub(crate) fn put(&self, path: &str, object: Value) {
        let mut object = object;
        object["metadata"]["name"] = json!(path.rsplit('/').next().unwrap());
        self.kept().insert(path.to_owned(), object);
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.kept().get(path).cloned()
    }

    /// Takes an object away.
    pub(crate) fn remove(&self, path: &str) -> Option<Value> {
        self.kept().remove(path)
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<String, Value>> {
        self.kept.lock()
    }
}

async fn answer(
    State(kept): State<Arc<Mutex<BTreeMap<String, Value>>>>,
    method: Method,
    uri: Uri,
    body: String,
) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    let mut kept = kept.lock();
    let path = uri.path().trim_end_matches("/status").to_owned();
    let object = match method {
        Method::POST if path.ends_with("/token") => Some(token(body)),
        Method::POST => {
            let name = body["metadata"]["name"].as_str().unwrap();
            let mut object = body.clone();
            object["metadata"]["uid"] = json!(format!("uid-of-{name}"));
            kept.insert(format!("{path}/{name}"), object.clone());
            Some(object)
        }
        Method::PUT => kept.insert(path.clone(), body.clone()).map(|_| body),
        Method::PATCH => kept.get_mut(&path).map(|object| {
            json_patch::merge(object, &body);
            object.clone()
        }),
        Method::DELETE => kept.remove(&path),
        _ => kept.get(&path).cloned(),
    };
    let (code, body) = match object {
        Some(object) => (StatusCode::OK, object),
        None => (
            StatusCode::NOT_FOUND,
            json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "message": format!("{path} not found"), "reason": "NotFound", "code": 404,
            }),
        ),
    };
    (code, [("content-type", "application/json")], body.to_string()).into_response()
}

fn token(request: Value) -> Value {
    let mut token = request;
    let audience = token["spec"]["audiences"][0].as_str().unwrap_or("default").to_owned();
    token["spec"]["expirationSeconds"] = json!(3600);
    token["status"] = json!({
        "token": format!("token-for-{audience}"), "expirationTimestamp": "2126-01-01T00:00:00Z",
    });
    token
}
