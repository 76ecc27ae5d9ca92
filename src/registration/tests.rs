use std::collections::{BTreeMap, VecDeque};
use std::sync::LazyLock;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::ContainerImage;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_config::{Command, from_args};
use longshore_cri::v1;
use longshore_devices::Amount;
use longshore_generators::{NUMBERS, TIMES, examples, hostile, text};
use longshore_pod::qos::milli;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::json;
use tokio::sync::broadcast;

use super::*;

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
        read(&mut self.0.lock())
    }

    fn requests(&self, method: Method, part: &str) -> Vec<Value> {
        self.of(|inner| {
            let matching =
                inner.requests.iter().filter(|(m, path, _)| *m == method && path.contains(part));
            matching.map(|(_, _, body)| body.clone()).collect()
        })
    }

    /// Stores an object and sends a watch event.
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
        down: None,
        network_error: None,
        ..RuntimeHealth::default()
    }
}

fn start(config: Arc<Config>, client: Client) -> (Feeds, watch::Receiver<Option<Arc<Node>>>) {
    let (feeds, inputs) =
        channels(watch::Sender::default().subscribe(), watch::Sender::default().subscribe());
    let (recorder, _) = Recorder::start(None, "n1");
    let startup = Startup::new(&longshore_metrics::Registry::default());
    let object = watch::Sender::new(None);
    let node = object.subscribe();
    let registration = Registration::new(config, client, recorder, inputs, startup, object);
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
async fn registration_creates_node_and_reports_health() {
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
        (&json!("linux"), &json!(longshore_base::version::go_arch()))
    );
    assert_eq!(
        node["metadata"]["annotations"],
        json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"})
    );
    assert_eq!(node["spec"]["taints"], json!([{"key": "t", "value": "v", "effect": "NoSchedule"}]));
    let status = &node["status"];
    assert_eq!(status["nodeInfo"]["kubeletVersion"], longshore_base::version::KUBERNETES_VERSION);
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
        "[container runtime status check may not have completed yet, network state unknown]"
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
    until("ready again", ready("True")).await;
    feeds.shutting_down.send_replace(true);
    let node = until("not ready", ready("False")).await;
    assert_eq!(condition(&node, "Ready")["message"], "node is shutting down");
    feeds.shutting_down.send_replace(false);
    until("ready again", ready("True")).await;
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

#[test]
fn registration_declares_features_by_gates_and_runtime() {
    let host_network = "UserNamespacesHostNetworkSupport";
    let of_runtime = |supported| {
        let features = v1::RuntimeFeatures {
            user_namespaces_host_network: supported,
            ..v1::RuntimeFeatures::default()
        };
        let status = v1::StatusResponse { features: Some(features), ..Default::default() };
        RuntimeHealth::new(&v1::VersionResponse::default(), &status)
    };
    let declared = |gates: &str, supported| {
        let gates = format!("--feature-gates={gates}");
        let (config, machine, runtime) =
            (config(&[&gates]), Machine::default(), of_runtime(supported));
        let inputs = status::StatusInputs {
            config: &config,
            machine: &machine,
            disk: None,
            addresses: None,
            runtime: &runtime,
            pleg: None,
            storage: None,
            shutting_down: false,
            pressure: Default::default(),
            images: &[],
            volumes_in_use: Vec::new(),
            extended: &Capacity::default(),
            resets_extended: false,
            now: Timestamp::UNIX_EPOCH,
        };
        status::node_status(&NodeStatus::default(), &inputs).declared_features
    };
    let has = |gates: &str, supported| {
        declared(gates, supported).unwrap().iter().any(|name| name == host_network)
    };
    assert_eq!(declared("NodeDeclaredFeatures=false", true), None);
    assert!(has("UserNamespacesHostNetworkSupport=true", true));
    assert!(!has("UserNamespacesHostNetworkSupport=true", false));
    assert!(!has("UserNamespacesHostNetworkSupport=false", true));
}

#[tokio::test]
async fn registration_unchanged_status_is_not_written() {
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

    // changed images are written with the next update
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

    // a Ready condition overwritten by others is restored
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
async fn registration_keeps_a_ready_node_ready_until_its_runtime_has_answered() {
    let (script, client) = script().await;
    script.of(|inner| {
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
                           "lastTransitionTime": "2001-02-03T04:05:06Z"});
        let node = json!({"metadata": {"name": "n1"}, "status": {"conditions": [ready]}});
        script.store(inner, node)
    });
    let (feeds, known) = start(config(&[]), client);
    until("the node is known", || known.borrow().clone()).await;
    feeds.pleg.send_replace(Some("pleg has yet to be successful".into()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(script.requests(Method::PATCH, "/status"), Vec::<Value>::new());
    feeds.runtime.send_replace(healthy());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(script.requests(Method::PATCH, "/status"), Vec::<Value>::new());
    feeds.pleg.send_replace(None);
    until("a status", || script.requests(Method::PATCH, "/status").pop()).await;
    let node = script.of(|inner| inner.node.clone()).unwrap();
    assert_eq!(condition(&node, "Ready")["lastTransitionTime"], "2001-02-03T04:05:06Z", "{node}");
}

#[tokio::test]
async fn registration_reconciles_existing_node() {
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
async fn registration_waits_for_manually_created_node() {
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
    let written = || {
        script
            .of(|inner| inner.node.clone())
            .filter(|node| condition(node, "Ready")["message"] == "no network")
    };
    let node = until("a status", written).await;
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    assert_eq!(node["metadata"]["labels"].get("kubernetes.io/hostname"), None);
}

#[tokio::test]
async fn registration_is_retried_until_it_succeeds() {
    let (script, client) = script().await;
    script.of(|inner| inner.failures = VecDeque::from([StatusCode::SERVICE_UNAVAILABLE; 4]));
    let (_feeds, _known) = start(config(&[]), client);
    until("a node", || script.of(|inner| inner.node.clone())).await;
}

#[tokio::test]
async fn lease_is_created_and_renewed() {
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

    // written by another client: the next attempt reads it again; errors are retried
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
fn registration_runtime_conditions_are_mapped() {
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
    let unsaid = RuntimeHealth::new(&version, &status(vec![]));
    assert_eq!(unsaid.runtime_error.as_deref(), Some("container runtime not ready: <nil>"));
    assert_eq!(
        (health.runtime_name(), health.clone().down().down),
        (Some("containerd"), Some("container runtime is down"))
    );
    assert_eq!(RuntimeHealth::default().runtime_name(), None);
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![4 => prop::sample::select(NUMBERS.to_vec()), 1 => any::<i64>()]
}

fn amount() -> impl Strategy<Value = u64> {
    number().prop_map(|number| number as u64)
}

fn time() -> impl Strategy<Value = Timestamp> {
    let known = TIMES.iter().filter_map(|time| time.parse().ok()).chain([Timestamp::MAX]);
    // clocks do not go back so far
    let first: Timestamp = "0000-01-01T00:00:00Z".parse().unwrap();
    prop::sample::select(known.filter(|time| *time >= first).collect::<Vec<_>>())
}

fn any_version() -> impl Strategy<Value = v1::VersionResponse> {
    (text(), text()).prop_map(|(runtime_name, runtime_version)| v1::VersionResponse {
        runtime_name,
        runtime_version,
        ..v1::VersionResponse::default()
    })
}

fn any_runtime() -> impl Strategy<Value = v1::StatusResponse> {
    let known = prop::sample::select(vec!["RuntimeReady", "NetworkReady"]);
    let kind = prop_oneof![3 => known.prop_map(str::to_owned), 1 => text()];
    let condition =
        (kind, any::<bool>(), text(), text()).prop_map(|(kind, status, reason, message)| {
            v1::RuntimeCondition { r#type: kind, status, reason, message }
        });
    let conditions = prop::option::of(prop::collection::vec(condition, 0..4));
    let features = prop::option::of((any::<bool>(), any::<bool>()));
    let handlers = prop::collection::vec((text(), features), 0..4);
    (conditions, handlers, prop::option::of(any::<bool>())).prop_map(
        |(conditions, handlers, features)| {
            let handlers = handlers.into_iter().map(|(name, features)| v1::RuntimeHandler {
                name,
                features: features.map(|(mounts, users)| v1::RuntimeHandlerFeatures {
                    recursive_read_only_mounts: mounts,
                    user_namespaces: users,
                }),
            });
            v1::StatusResponse {
                status: conditions.map(|conditions| v1::RuntimeStatus { conditions }),
                runtime_handlers: handlers.collect(),
                features: features.map(|policy| v1::RuntimeFeatures {
                    supplemental_groups_policy: policy,
                    ..v1::RuntimeFeatures::default()
                }),
                ..v1::StatusResponse::default()
            }
        },
    )
}

fn any_node() -> impl Strategy<Value = Node> {
    let mut example = examples::node();
    example["status"]["nodeInfo"] = json!({
        "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "r", "kernelVersion": "k",
        "kubeProxyVersion": "", "kubeletVersion": "v1", "machineID": "m", "operatingSystem": "linux",
        "osImage": "o", "systemUUID": "u", "swap": {"capacity": 7},
    });
    example["status"]["runtimeHandlers"] =
        json!([{"name": "h", "features": {"userNamespaces": true}}]);
    example["status"]["features"] = json!({"supplementalGroupsPolicy": true});
    example["status"]["capacity"]["hugepages-3Mi"] = json!("3Mi");
    example["metadata"]["labels"]["kubernetes.io/os"] = json!("other");
    example["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"] = json!("1.2.3.4");
    example["metadata"]["resourceVersion"] = json!("1");
    let read = |node: Value| serde_json::from_value::<Node>(node).ok();
    // what is written of years before 0 nobody reads
    let again = move |node: Node| read(serde_json::to_value(node).unwrap());
    hostile(example.clone(), 12).prop_map(move |node| {
        let node = read(node).and_then(again);
        node.unwrap_or_else(|| read(example.clone()).unwrap())
    })
}

fn any_machine() -> impl Strategy<Value = Machine> {
    let pages = prop::collection::vec((amount(), amount()), 0..4);
    let texts = prop::collection::vec(text(), 5);
    (amount(), amount(), amount(), pages, texts).prop_map(
        |(cpus, memory, swap, hugepages, texts)| {
            let [machine_id, system_uuid, boot_id, kernel, os_image] = texts.try_into().unwrap();
            Machine {
                cpus,
                memory,
                swap,
                hugepages,
                machine_id,
                system_uuid,
                boot_id,
                kernel,
                os_image,
            }
        },
    )
}

fn any_images() -> impl Strategy<Value = Vec<ContainerImage>> {
    let names = prop::option::of(prop::collection::vec("[a-z]{1,9}", 0..9));
    let image = (names, prop::option::of(number()))
        .prop_map(|(names, size_bytes)| ContainerImage { names, size_bytes });
    let odd = text().prop_map(|name| ContainerImage { names: Some(vec![name]), size_bytes: None });
    prop_oneof![
        4 => prop::collection::vec(image, 0..80),
        1 => prop::collection::vec(odd, 0..4),
    ]
}

/// Configurations whose numbers are at their limits.
fn configs() -> &'static [Arc<Config>] {
    static CONFIGS: LazyLock<Vec<Arc<Config>>> = LazyLock::new(|| {
        vec![
            config(&[]),
            config(&["--max-pods=2147483647", "--pods-per-core=2147483647", "--node-labels=a=b"]),
            config(&[
                "--kube-reserved=cpu=9223372036854775807,memory=8Ei,ephemeral-storage=8Ei",
                "--system-reserved=cpu=9223372036854775807,memory=8Ei,pid=9223372036854775807",
            ]),
            config(&[
                "--cloud-provider=external",
                "--node-ip=10.0.0.1",
                "--eviction-hard=memory.available<100%",
            ]),
            config(&["--node-status-max-images=-1"]),
            config(&["--node-status-max-images=2147483647", "--max-pods=0"]),
        ]
    });
    &CONFIGS
}

#[test]
fn registration_reports_devices_of_plugins() {
    let (config, machine, runtime) = (config(&[]), Machine::default(), healthy());
    let (gpu, nic, other) = ("example.com/gpu", "example.com/nic", "example.com/other");
    let report = |old: &NodeStatus, extended: &Capacity, resets_extended| {
        let inputs = StatusInputs {
            config: &config,
            machine: &machine,
            disk: None,
            addresses: None,
            runtime: &runtime,
            pleg: None,
            storage: None,
            shutting_down: false,
            pressure: Default::default(),
            images: &[],
            volumes_in_use: Vec::new(),
            extended,
            resets_extended,
            now: Timestamp::UNIX_EPOCH,
        };
        status::node_status(old, &inputs)
    };
    let amounts = |status: &NodeStatus, name: &str| {
        let amount = |list: &Option<BTreeMap<String, Quantity>>| {
            list.as_ref().unwrap().get(name).map(|amount| amount.0.clone())
        };
        (amount(&status.capacity), amount(&status.allocatable))
    };
    let some = |capacity: &str, allocatable: &str| {
        (Some(capacity.to_owned()), Some(allocatable.to_owned()))
    };
    let extended = [
        (gpu.to_owned(), Amount { capacity: 3, allocatable: 2 }),
        (nic.to_owned(), Amount::default()),
    ];
    let first = report(&NodeStatus::default(), &Capacity(extended.into()), false);
    assert_eq!(amounts(&first, gpu), some("3", "2"));
    assert_eq!(amounts(&first, nic), some("0", "0"));
    assert_eq!(amounts(&first, other), (None, None));
    // Others may add resources of the cluster.
    let mut old = first.clone();
    old.capacity.as_mut().unwrap().insert(other.to_owned(), Quantity("5".to_owned()));
    let second = report(&old, &Capacity::default(), false);
    assert_eq!(amounts(&second, gpu), some("3", "3"), "as the object has it");
    assert_eq!(amounts(&second, other), some("5", "5"));
    let reset = report(&old, &Capacity::default(), true);
    assert_eq!(amounts(&reset, gpu), some("0", "0"), "it was another node's");
    assert_eq!(amounts(&reset, other), some("0", "0"));
    assert_ne!(amounts(&reset, "pods"), some("0", "0"));
}

proptest! {
    /// Finding 1: what a runtime says of itself.
    #[test]
    fn extremes_of_runtimes_are_reported(version in any_version(), status in any_runtime()) {
        let health = RuntimeHealth::new(&version, &status);
        let conditions = status.status.iter().flat_map(|status| &status.conditions);
        let mut ready = conditions.filter(|condition| condition.r#type == "RuntimeReady");
        let is_ready = ready.next().is_some_and(|condition| condition.status);
        prop_assert_eq!(health.runtime_error.is_none(), is_ready);
        prop_assert_eq!(health.handlers.len(), status.runtime_handlers.len());
        prop_assert!(health.handlers.is_sorted_by_key(|handler| handler.name.as_deref()));
        prop_assert!(health.down().down.is_some());
    }

    /// Finding 1: whatever the node object holds, and whatever the machine and its runtime have, the
    /// status is written, and has no changes left after that.
    #[test]
    fn extremes_of_nodes_are_reconciled_and_reported(
        node in any_node(),
        machine in any_machine(),
        (version, status) in (any_version(), any_runtime()),
        images in any_images(),
        disk in prop::option::of(amount()),
        addresses in prop::option::of(prop::collection::vec(any::<IpAddr>(), 0..3)),
        (pleg, storage) in (prop::option::of(text()), prop::option::of(text())),
        shutting_down in any::<bool>(),
        pressure in (any::<bool>(), any::<bool>(), any::<bool>()),
        volumes_in_use in prop::collection::vec(text(), 0..3),
        (now, which) in (time(), any::<prop::sample::Index>()),
    ) {
        let config = which.get(configs());
        for change in [node::reconcile, node::required] {
            if let Some(changes) = change(config, &node) {
                let mut object = serde_json::to_value(&node).unwrap();
                merge(&mut object, changes);
                prop_assert_eq!(change(config, &serde_json::from_value(object).unwrap()), None);
            }
        }
        let (memory, disk_pressure, pid) = pressure;
        let inputs = StatusInputs {
            config,
            machine: &machine,
            disk,
            addresses: addresses.as_deref(),
            runtime: &RuntimeHealth::new(&version, &status),
            pleg: pleg.as_deref(),
            storage: storage.as_deref(),
            shutting_down,
            pressure: inputs::Pressure { memory, disk: disk_pressure, pid },
            images: &images,
            volumes_in_use,
            extended: &Capacity::default(),
            resets_extended: false,
            now,
        };
        let old = node.status.clone().unwrap_or_default();
        let new = status::node_status(&old, &inputs);
        let (capacity, allocatable) = (new.capacity.clone().unwrap(), new.allocatable.clone().unwrap());
        for (resource, amount) in &allocatable {
            let (amount, all) = (milli(amount).unwrap(), milli(&capacity[resource]).unwrap());
            prop_assert!(amount >= 0 && (amount <= all || all < 0), "{resource}: {amount} {all}");
        }
        let reported = new.images.as_deref().unwrap();
        let most = usize::try_from(config.kubelet.node_status_max_images).unwrap_or(usize::MAX);
        prop_assert_eq!(reported.len(), images.len().min(most));
        prop_assert!(reported.iter().flat_map(|image| &image.names).all(|names| names.len() <= 5));
        let ready = super::condition(&new, "Ready");
        prop_assert!(ready.is_some_and(|ready| ready.last_heartbeat_time.is_some()));
        let mut object = json!({"status": old});
        merge(&mut object, patch::status_patch(&old, &new));
        let merged: NodeStatus = serde_json::from_value(object["status"].take()).unwrap();
        let again = status::node_status(&merged, &inputs);
        prop_assert!(!patch::has_changes(&merged, &again), "{merged:?} {again:?}");
        transitions(&old, &new);
        let made = node::initial(config, new);
        serde_json::to_vec(&made).unwrap();
    }
}
