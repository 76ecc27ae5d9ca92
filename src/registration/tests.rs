#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::VecDeque;
use std::sync::Mutex;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::ContainerImage;
use serde_json::json;
use tokio::sync::broadcast;

use super::*;
use crate::config::{Command, from_args};

/// An apiserver of one node and one lease, with failures on demand.
#[derive(Clone)]
struct Script(Arc<Mutex<Inner>>, broadcast::Sender<String>);

#[derive(Default)]
struct Inner {
    node: Option<Value>,
    lease: Option<Value>,
    version: u64,
    requests: Vec<(Method, String, Value)>,
    failures: VecDeque<StatusCode>,
}

impl Script {
    fn of<T>(&self, read: impl FnOnce(&mut Inner) -> T) -> T {
        read(&mut self.0.lock().unwrap())
    }

    fn requests(&self, method: Method, part: &str) -> Vec<Value> {
        self.of(|inner| {
            let matching =
                inner.requests.iter().filter(|(m, path, _)| *m == method && path.contains(part));
            matching.map(|(_, _, body)| body.clone()).collect()
        })
    }

    /// Keeps an object and tells those who watch it.
    fn store(&self, inner: &mut Inner, mut object: Value) -> Value {
        inner.version += 1;
        object["metadata"]["resourceVersion"] = json!(inner.version.to_string());
        if object["kind"] == "Lease" {
            inner.lease = Some(object.clone());
        } else {
            object["kind"] = json!("Node");
            object["apiVersion"] = json!("v1");
            object["metadata"]["uid"] = json!("u1");
            let event = json!({"type": "MODIFIED", "object": object});
            let _ = self.1.send(format!("{event}\n"));
            inner.node = Some(object.clone());
        }
        object
    }
}

/// Enough of a strategic merge for what is sent here.
fn merge(target: &mut Value, changes: Value) {
    match (target, changes) {
        (Value::Object(target), Value::Object(changes)) => {
            for (key, value) in changes {
                if value.is_null() {
                    target.remove(&key);
                } else {
                    merge(target.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (target, Value::Array(mut items)) => {
            items.retain(|item| item.get("$patch").is_none());
            *target = Value::Array(items);
        }
        (target, value) => *target = value,
    }
}

async fn answer(State(script): State<Script>, method: Method, uri: Uri, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default());
    if query.contains("watch=") {
        let events = script.1.subscribe();
        let stream = futures::stream::unfold(events, |mut events| async {
            Some((events.recv().await.map_err(std::io::Error::other), events))
        });
        return Body::from_stream(stream).into_response();
    }
    let outcome = script.of(|inner| {
        let failure = inner.failures.pop_front();
        inner.requests.push((method.clone(), path.clone(), body.clone()));
        if let Some(code) = failure {
            return Err(code);
        }
        let lease = path.contains("/leases");
        let current = if lease { inner.lease.clone() } else { inner.node.clone() };
        match (method.as_str(), current) {
            ("GET", node) if path.ends_with("/nodes") => Ok(json!({
                "kind": "NodeList", "apiVersion": "v1", "items": node.into_iter().collect::<Vec<_>>(),
                "metadata": {"resourceVersion": inner.version.to_string()},
            })),
            ("GET", current) => current.ok_or(StatusCode::NOT_FOUND),
            ("POST", Some(_)) => Err(StatusCode::CONFLICT),
            ("POST", None) => Ok(script.store(inner, body)),
            ("PUT", Some(current)) => {
                let same = current["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"];
                if same { Ok(script.store(inner, body)) } else { Err(StatusCode::CONFLICT) }
            }
            ("PATCH", Some(mut current)) => {
                merge(&mut current, body);
                Ok(script.store(inner, current))
            }
            _ => Err(StatusCode::NOT_FOUND),
        }
    });
    match outcome {
        Ok(object) => object.to_string().into_response(),
        Err(code) => {
            let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "scripted",
                                "reason": reason, "code": code.as_u16()});
            (code, status.to_string()).into_response()
        }
    }
}

async fn script() -> (Script, Client) {
    let script = Script(Arc::default(), broadcast::Sender::new(64));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(script.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
    config.default_retry = false;
    (script, Client::try_from(config).unwrap())
}

fn config(args: &[&str]) -> Arc<Config> {
    let base = ["kubelet", "--fail-cgroupv1=false", "--hostname-override=n1", "--root-dir=/"];
    match from_args(base.iter().chain(args).map(|arg| (*arg).to_owned())) {
        Ok(Command::Kubelet(config)) => Arc::from(config),
        other => panic!("{other:?}"),
    }
}

fn healthy() -> RuntimeHealth {
    RuntimeHealth {
        version: "containerd://1.6.20".into(),
        runtime_error: None,
        ..RuntimeHealth::default()
    }
}

fn start(config: Arc<Config>, client: Client) -> (Feeds, watch::Receiver<Option<Arc<Node>>>) {
    let (feeds, inputs) = channels(watch::Sender::default().subscribe());
    let (recorder, _) = Recorder::start(None, "n1");
    let startup = Startup::new(&longshore_metrics::Registry::default());
    let registration = Registration::new(config, client, recorder, inputs, startup);
    let node = registration.node();
    tokio::spawn(registration.run());
    (feeds, node)
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..500 {
        if let Some(found) = look() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

fn condition(node: &Value, type_: &str) -> Value {
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == type_).unwrap_or_default()
}

#[tokio::test]
async fn a_node_is_made_and_follows_the_health() {
    let (script, client) = script().await;
    let config = config(&[
        "--node-labels=zone=a",
        "--register-with-taints=t=v:NoSchedule",
        "--kube-reserved=cpu=500m",
    ]);
    let (feeds, known) = start(config, client);
    let node = until("a node", || script.of(|inner| inner.node.clone())).await;
    let labels = &node["metadata"]["labels"];
    assert_eq!((&labels["kubernetes.io/hostname"], &labels["zone"]), (&json!("n1"), &json!("a")));
    assert_eq!(
        (&labels["kubernetes.io/os"], &labels["kubernetes.io/arch"]),
        (&json!("linux"), &json!(crate::config::go_arch()))
    );
    assert_eq!(
        node["metadata"]["annotations"],
        json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"})
    );
    assert_eq!(node["spec"]["taints"], json!([{"key": "t", "value": "v", "effect": "NoSchedule"}]));
    let status = &node["status"];
    assert_eq!(status["nodeInfo"]["kubeletVersion"], crate::config::KUBERNETES_VERSION);
    assert_eq!(status["capacity"]["pods"], "110");
    assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10250);
    assert_eq!(
        status["declaredFeatures"],
        json!([
            "ExtendWebSocketsToKubelet",
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
            "RestartAllContainersOnContainerExits",
        ])
    );
    assert_eq!(
        condition(&node, "Ready")["message"],
        "container runtime status check may not have completed yet"
    );

    feeds.runtime.send_replace(healthy());
    let ready = |status: &'static str| {
        let script = script.clone();
        move || {
            script
                .of(|inner| inner.node.clone())
                .filter(|node| condition(node, "Ready")["status"] == status)
        }
    };
    let node = until("ready", ready("True")).await;
    assert_eq!(condition(&node, "Ready")["reason"], "KubeletReady");
    assert_eq!(condition(&node, "Ready")["message"], "kubelet is posting ready status");
    assert_eq!(node["status"]["nodeInfo"]["containerRuntimeVersion"], "containerd://1.6.20");

    feeds.pleg.send_replace(Some("pleg was last seen active 3m1s ago; threshold is 3m0s".into()));
    let node = until("not ready", ready("False")).await;
    let message = "PLEG is not healthy: pleg was last seen active 3m1s ago; threshold is 3m0s";
    assert_eq!(
        (&condition(&node, "Ready")["reason"], &condition(&node, "Ready")["message"]),
        (&json!("KubeletNotReady"), &json!(message))
    );

    feeds.pleg.send_replace(None);
    let short = longshore_pod::eviction::NodePressure { memory: true, ..Default::default() };
    feeds.pressure.send_replace(short);
    until("ready again", ready("True")).await;
    let pressed = || {
        script
            .of(|inner| inner.node.clone())
            .filter(|node| condition(node, "MemoryPressure")["status"] == "True")
    };
    let node = until("pressure", pressed).await;
    assert_eq!(condition(&node, "MemoryPressure")["reason"], "KubeletHasInsufficientMemory");
    until("the node handed on", || known.borrow().clone()).await;
}

#[tokio::test]
async fn without_news_nothing_is_written() {
    let (script, client) = script().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                nodeStatusUpdateFrequency: 50ms\nnodeStatusReportFrequency: 10m\n";
    std::fs::write(&path, text).unwrap();
    let (feeds, _known) = start(config(&[&format!("--config={}", path.display())]), client);
    feeds.runtime.send_replace(healthy());
    let ready = || {
        script
            .of(|inner| inner.node.clone())
            .filter(|node| condition(node, "Ready")["status"] == "True")
    };
    until("ready", ready).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = script.requests(Method::PATCH, "/status").len();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(script.requests(Method::PATCH, "/status").len(), before);

    // images are news, found at the next look
    let image = |name: &str, size| ContainerImage {
        names: Some(vec![name.into()]),
        size_bytes: Some(size),
    };
    feeds.images.send_replace(vec![image("small", 1), image("large", 9)]);
    let named = || {
        script
            .of(|inner| inner.node.clone())
            .filter(|node| node["status"]["images"][0]["names"][0] == "large")
    };
    until("images", named).await;

    // somebody else's word on our readiness is put right
    script.of(|inner| {
        let mut node = inner.node.clone().unwrap();
        for condition in node["status"]["conditions"].as_array_mut().unwrap() {
            condition["status"] = json!("Unknown");
        }
        script.store(inner, node);
    });
    until("ready again", ready).await;
}

#[tokio::test]
async fn an_existing_node_is_reconciled_and_not_overwritten() {
    let (script, client) = script().await;
    script.of(|inner| {
        let node = json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "wrong", "mine": "yes"}},
                          "spec": {"taints": [{"key": "keep", "effect": "NoSchedule"}], "podCIDR": "10.1.0.0/24"},
                          "status": {"capacity": {"example.com/gpu": "2", "hugepages-3Mi": "3Mi"}}});
        script.store(inner, node)
    });
    let (feeds, _known) =
        start(config(&["--node-labels=other=1", "--register-with-taints=t=v:NoSchedule"]), client);
    feeds.runtime.send_replace(healthy());
    let ready = || {
        script
            .of(|inner| inner.node.clone())
            .filter(|node| condition(node, "Ready")["status"] == "True")
    };
    let node = until("ready", ready).await;
    let labels = &node["metadata"]["labels"];
    assert_eq!((&labels["kubernetes.io/hostname"], &labels["mine"]), (&json!("n1"), &json!("yes")));
    assert_eq!(labels.get("other"), None, "only its own labels are put right");
    assert_eq!(
        node["spec"],
        json!({"taints": [{"key": "keep", "effect": "NoSchedule"}], "podCIDR": "10.1.0.0/24"})
    );
    assert_eq!(
        node["metadata"]["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"],
        "true"
    );
    let capacity = &node["status"]["capacity"];
    assert_eq!((&capacity["example.com/gpu"], capacity.get("hugepages-3Mi")), (&json!("2"), None));
}

#[tokio::test]
async fn a_node_made_by_hand_is_waited_for() {
    let (script, client) = script().await;
    let (feeds, _known) = start(config(&["--register-node=false"]), client);
    feeds.runtime.send_replace(healthy());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(script.requests(Method::POST, "nodes").is_empty());
    script.of(|inner| script.store(inner, json!({"metadata": {"name": "n1"}})));
    tokio::time::sleep(Duration::from_millis(100)).await;
    feeds
        .runtime
        .send_replace(RuntimeHealth { network_error: Some("no network".into()), ..healthy() });
    let told = || {
        script
            .of(|inner| inner.node.clone())
            .filter(|node| condition(node, "Ready")["message"] == "no network")
    };
    let node = until("a status", told).await;
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    assert_eq!(node["metadata"]["labels"].get("kubernetes.io/hostname"), None);
}

#[tokio::test]
async fn registration_is_tried_until_it_succeeds() {
    let (script, client) = script().await;
    script.of(|inner| inner.failures = VecDeque::from([StatusCode::SERVICE_UNAVAILABLE; 4]));
    let (_feeds, _known) = start(config(&[]), client);
    until("a node", || script.of(|inner| inner.node.clone())).await;
}

#[tokio::test]
async fn the_lease_is_made_for_the_node_and_renewed() {
    let (script, client) = script().await;
    let (known, node) = watch::channel(None);
    let task = tokio::spawn(renew_lease(client, "n1".into(), 1, node));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(script.of(|inner| inner.lease.clone()).is_none(), "no node could own it yet");
    let mut made = Node::default();
    made.metadata.uid = Some("u1".into());
    known.send_replace(Some(Arc::new(made)));
    let lease = until("a lease", || script.of(|inner| inner.lease.clone())).await;
    assert_eq!(lease["metadata"]["namespace"], "kube-node-lease");
    assert_eq!(
        lease["metadata"]["ownerReferences"][0],
        json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"})
    );
    assert_eq!(
        (&lease["spec"]["holderIdentity"], &lease["spec"]["leaseDurationSeconds"]),
        (&json!("n1"), &json!(1))
    );
    let renewed = |old: Value| {
        let script = script.clone();
        move || {
            script.of(|inner| inner.lease.clone()).filter(|lease| lease["spec"]["renewTime"] != old)
        }
    };
    let lease = until("a renewal", renewed(lease["spec"]["renewTime"].clone())).await;
    let time = lease["spec"]["renewTime"].as_str().unwrap();
    assert_eq!(
        time.split('.').nth(1).map(str::len),
        Some("123456Z".len()),
        "{time} has microseconds"
    );

    // somebody else writes it: the next try asks anew; failures are got over
    script.of(|inner| {
        let mut lease = inner.lease.clone().unwrap();
        lease["metadata"]["labels"] = json!({"touched": "yes"});
        script.store(inner, lease);
        inner.failures = VecDeque::from([StatusCode::INTERNAL_SERVER_ERROR; 2]);
    });
    let old = script.of(|inner| inner.lease.clone().unwrap());
    let lease = until("a renewal", renewed(old["spec"]["renewTime"].clone())).await;
    assert_eq!(lease["metadata"]["labels"]["touched"], "yes");

    // a lease that is gone is made again
    script.of(|inner| inner.lease = None);
    until("a new lease", || script.of(|inner| inner.lease.clone())).await;
    task.abort();
}

#[test]
fn the_runtime_tells_its_health() {
    use longshore_cri::v1::{RuntimeCondition, RuntimeStatus, StatusResponse, VersionResponse};
    let condition = |name: &str, status| RuntimeCondition {
        r#type: name.into(),
        status,
        reason: "Why".into(),
        message: "because".into(),
    };
    let version = VersionResponse {
        runtime_name: "containerd".into(),
        runtime_version: "1.6.20".into(),
        ..Default::default()
    };
    let status = |conditions| StatusResponse {
        status: Some(RuntimeStatus { conditions }),
        ..Default::default()
    };
    let health = RuntimeHealth::new(
        &version,
        &status(vec![condition("RuntimeReady", true), condition("NetworkReady", false)]),
    );
    assert_eq!((health.version.as_str(), &health.runtime_error), ("containerd://1.6.20", &None));
    assert_eq!(
        health.network_error.as_deref(),
        Some("container runtime network not ready: NetworkReady=false reason:Why message:because")
    );
    assert!(RuntimeHealth::new(&version, &status(vec![])).runtime_error.is_some());
    assert_eq!(
        health.down("no socket").runtime_error.as_deref(),
        Some("container runtime is down: no socket")
    );
}
