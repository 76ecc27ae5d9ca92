//! A manager with an apiserver in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use longshore_metrics::Registry;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::pure::decoded;
use crate::testing::ScriptedDriver;
use crate::{Gates, Manager, Parts};

/// The driver of the tests.
pub(super) const DRIVER: &str = "gpu.example.com";

#[derive(Default)]
pub(super) struct Objects {
    /// Claims by name.
    claims: BTreeMap<String, Value>,
    /// Deletions: the queries.
    pub(super) deletions: Vec<String>,
    /// The next deletions fail.
    pub(super) failures: usize,
}

pub(super) struct World {
    pub(super) dir: tempfile::TempDir,
    pub(super) objects: Arc<Mutex<Objects>>,
    pub(super) node: watch::Sender<Option<Arc<Node>>>,
    pub(super) registry: Registry,
    pub(super) manager: Manager,
    pub(super) driver: ScriptedDriver,
}

fn open(
    dir: &std::path::Path,
    objects: &Arc<Mutex<Objects>>,
    node: &watch::Sender<Option<Arc<Node>>>,
    registry: &Registry,
) -> Manager {
    let router = Router::new().fallback(answer).with_state(objects.clone());
    let parts = Parts {
        root: dir.to_owned(),
        node_name: "n1".to_owned(),
        client: Some(kube::Client::new(router, "default")),
        node: Some(node.subscribe()),
        gates: Gates { extended_resources: true, health: true, health_messages: true },
    };
    Manager::open(parts, registry).unwrap()
}

impl World {
    /// With a driver that is registered.
    pub(super) fn start() -> Self {
        let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::default());
        let (objects, node) = (Arc::default(), watch::Sender::new(Some(Arc::default())));
        let manager = open(dir.path(), &objects, &node, &registry);
        let driver = ScriptedDriver::new(DRIVER);
        driver.register(&manager);
        Self { dir, objects, node, registry, manager, driver }
    }

    /// The daemon is started anew: another manager with the same checkpoint, with which the driver registers.
    pub(super) fn restart(&mut self) {
        self.registry = Registry::default();
        self.manager = open(self.dir.path(), &self.objects, &self.node, &self.registry);
        self.driver.register(&self.manager);
    }

    /// A claim that is allocated from these drivers, and reserved for these pods.
    pub(super) fn put_claim(&self, name: &str, drivers: &[&str], pods: &[&str]) {
        let results: Vec<Value> = drivers
            .iter()
            .map(
                |driver| json!({"driver": driver, "pool": "pool", "device": "0", "request": "gpu"}),
            )
            .collect();
        let reserved: Vec<Value> =
            pods.iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid})).collect();
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
        });
        self.objects.lock().claims.insert(name.to_owned(), claim);
    }

    pub(super) fn change_claim(&self, name: &str, change: impl FnOnce(&mut Value)) {
        change(self.objects.lock().claims.get_mut(name).unwrap());
    }

    pub(super) async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        self.manager.prepare(pod).await.map_err(|error| error.to_string())
    }

    pub(super) async fn unprepare(&self, uid: &str) -> Result<(), String> {
        self.manager.unprepare(uid).await.map_err(|error| error.to_string())
    }

    /// The calls to the driver, such as `prepare a b`.
    pub(super) fn calls(&self) -> Vec<String> {
        let calls = self.driver.calls().into_iter();
        calls.map(|(method, claims)| format!("{method} {}", claims.join(" "))).collect()
    }
}

/// A pod with its UID as name, and one container that uses these claims whole.
pub(super) fn pod(uid: &str, claims: &[&str]) -> Pod {
    let of_pod: Vec<Value> =
        claims.iter().map(|name| json!({"name": name, "resourceClaimName": name})).collect();
    let of_container: Vec<Value> = claims.iter().map(|name| json!({"name": name})).collect();
    decoded(json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {
            "resourceClaims": of_pod,
            "containers": [{"name": "c", "resources": {"claims": of_container}}],
        },
    }))
}

pub(super) fn container(claims: Value) -> Container {
    decoded(json!({"name": "c", "resources": {"claims": claims}}))
}

async fn answer(
    State(objects): State<Arc<Mutex<Objects>>>,
    method: Method,
    uri: Uri,
) -> (StatusCode, String) {
    let mut objects = objects.lock();
    let failed = |code: StatusCode, message: String| {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
            "reason": "", "message": message, "code": code.as_u16(),
        });
        (code, status.to_string())
    };
    if method == Method::DELETE {
        if objects.failures > 0 {
            objects.failures -= 1;
            return failed(StatusCode::INTERNAL_SERVER_ERROR, "no".to_owned());
        }
        assert_eq!(uri.path(), "/apis/resource.k8s.io/v1/resourceslices");
        objects.deletions.push(uri.query().unwrap_or_default().to_owned());
        return (StatusCode::OK, json!({"kind": "Status", "status": "Success"}).to_string());
    }
    let name = uri.path().strip_prefix("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/");
    let name = name.unwrap_or_default();
    match objects.claims.get(name) {
        Some(claim) => (StatusCode::OK, claim.to_string()),
        None => failed(
            StatusCode::NOT_FOUND,
            format!("resourceclaims.resource.k8s.io {name:?} not found"),
        ),
    }
}
