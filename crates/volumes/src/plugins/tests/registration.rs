//! Drivers that register, die, return, and are refused.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_csi::Code;
use longshore_metrics::Registry;
use longshore_plugins::{CSI_PLUGIN, Handlers};
use longshore_testkit::csi::{CsiDriver, CsiOptions};
use longshore_testkit::fakecri::Fault;
use longshore_testkit::wait_until;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::super::csi_node::NODE_IDS;
use super::super::fake::Objects;
use super::super::{CsiNode, CsiPlugins, Drivers};

const TIMEOUT: Duration = Duration::from_secs(10);
const NODE: &str = "/api/v1/nodes/n1";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n1";

/// A node with a plugin directory, and a fake apiserver.
struct Node {
    dir: TempDir,
    objects: Objects,
    drivers: Drivers,
    registry: Registry,
    plugin_manager: JoinHandle<()>,
}

impl Node {
    async fn start() -> Self {
        let (dir, objects) = (tempfile::tempdir().unwrap(), Objects::start().await);
        objects.put(NODE, json!({"metadata": {"uid": "u1", "labels": {"zone": "a"}}}));
        let registry = Registry::default();
        let drivers = Drivers::new("n1", &registry);
        let csi_node = CsiNode::new("n1", Some(objects.client()));
        let plugins = Arc::new(CsiPlugins::new(drivers.clone(), csi_node));
        let handlers = Handlers::default().with(CSI_PLUGIN, plugins);
        let plugin_manager = tokio::spawn(longshore_plugins::run(dir.path(), handlers, &registry));
        Self { dir, objects, drivers, registry, plugin_manager }
    }

    fn registry_dir(&self) -> PathBuf {
        self.dir.path().join("plugins_registry")
    }

    fn driver(&self, options: CsiOptions) -> CsiDriver {
        let dir = self.dir.path().join("drivers").join(&options.name);
        CsiDriver::start(options, &dir, &self.registry_dir()).unwrap()
    }

    async fn wait_registered(&self, name: &str, expected: bool) {
        until(&format!("{name} is registered: {expected}"), || {
            self.drivers.get(name).is_some() == expected
        })
        .await;
    }

    /// The drivers in the CSINode.
    fn csi_node_drivers(&self) -> Vec<Value> {
        let csi_node = self.objects.get(CSI_NODE).unwrap_or_default();
        csi_node["spec"]["drivers"].as_array().cloned().unwrap_or_default()
    }

    fn annotation(&self) -> Value {
        let node = self.objects.get(NODE).unwrap();
        node["metadata"]["annotations"][NODE_IDS].clone()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.plugin_manager.abort();
    }
}

async fn until(what: &str, check: impl Fn() -> bool) {
    wait_until(TIMEOUT, what, async || if check() { Ok(()) } else { Err("not yet") })
        .await
        .unwrap();
}

#[tokio::test]
async fn plugin_registration_updates_csi_node() {
    let node = Node::start().await;
    let mut options = CsiOptions::new("csi.example.com");
    options.max_volumes = 25;
    options.topology =
        [("zone".to_owned(), "a".to_owned()), ("rack".to_owned(), "7".to_owned())].into();
    let mut driver = node.driver(options);
    node.wait_registered("csi.example.com", true).await;
    until("the driver is notified of its registration", || {
        driver.statuses().iter().any(|status| status.plugin_registered)
    })
    .await;
    let expected = json!({
        "name": "csi.example.com", "nodeID": "csi.example.com-node",
        "topologyKeys": ["rack", "zone"], "allocatable": {"count": 25},
    });
    assert_eq!(node.csi_node_drivers(), [expected]);
    let csi_node = node.objects.get(CSI_NODE).unwrap();
    assert_eq!(csi_node["metadata"]["ownerReferences"][0]["uid"], "u1");
    let migrated =
        &csi_node["metadata"]["annotations"]["storage.alpha.kubernetes.io/migrated-plugins"];
    assert!(migrated.as_str().unwrap().starts_with("kubernetes.io/aws-ebs,"), "{migrated}");
    assert_eq!(node.annotation(), json!(r#"{"csi.example.com":"csi.example.com-node"}"#));
    let labels = node.objects.get(NODE).unwrap()["metadata"]["labels"].clone();
    assert_eq!(labels, json!({"zone": "a", "rack": "7"}));

    driver.withdraw().unwrap();
    node.wait_registered("csi.example.com", false).await;
    until("the driver is removed from the CSINode", || {
        node.csi_node_drivers().is_empty() && node.annotation() == Value::Null
    })
    .await;
    driver.announce().unwrap();
    node.wait_registered("csi.example.com", true).await;
    until("the driver is in the CSINode again", || node.csi_node_drivers().len() == 1).await;
    let page = node.registry.text();
    let calls = "csi_operations_seconds_count{driver_name=\"csi.example.com\",method_name=\"/csi.v1.Node/NodeGetInfo\",grpc_status_code=\"OK\",migrated=\"false\"} 2";
    assert!(page.contains(calls), "{page}");
    assert!(page.contains("plugin_manager_total_plugins"), "{page}");
}

#[tokio::test]
async fn plugin_registration_of_a_restarted_driver() {
    let node = Node::start().await;
    let mut driver = node.driver(CsiOptions::new("d"));
    node.wait_registered("d", true).await;
    let before = node.drivers.get("d").unwrap();
    assert!(before.capabilities().await.unwrap().stage);
    // Killed with its registrar: the stale sockets remain.
    driver.die();
    assert_eq!(before.info().await.unwrap_err().code(), Some(Code::Unavailable));
    assert!(node.drivers.get("d").is_some(), "who may come back is not forgotten");
    driver.change(|options| {
        options.capabilities.clear();
        options.node_id = "renamed".to_owned();
    });
    driver.resume().unwrap();
    driver.announce().unwrap();
    until("the new driver is in the CSINode", || {
        node.csi_node_drivers().iter().any(|d| d["nodeID"] == "renamed")
    })
    .await;
    node.wait_registered("d", true).await;
    let now = node.drivers.get("d").unwrap().capabilities().await.unwrap();
    assert!(!now.stage, "what the one before could do is not taken for granted");
}

#[tokio::test]
async fn plugin_registration_failures_are_reported() {
    let node = Node::start().await;
    let named = |name: &str| CsiOptions::new(name);
    let refused = [
        (
            CsiOptions { plugin_type: "DRAPlugin".to_owned(), ..named("dra") },
            "no handler registered for plugin type: DRAPlugin",
        ),
        (
            CsiOptions { plugin_type: "DevicePlugin".to_owned(), ..named("dev") },
            "no handler registered for plugin type: DevicePlugin",
        ),
        (
            CsiOptions { versions: vec!["0.3.0".to_owned()], ..named("old") },
            "supports none of the node's versions",
        ),
        (
            CsiOptions { versions: Vec::new(), ..named("none") },
            "supports none of the node's versions",
        ),
        (named("-name"), "invalid name of a CSI driver"),
        (
            CsiOptions { topology: [("zone".to_owned(), "b".to_owned())].into(), ..named("moved") },
            "topology value collision",
        ),
        (CsiOptions { node_id: String::new(), ..named("nobody") }, "the response has no node_id"),
    ];
    for (options, why) in refused {
        let name = options.name.clone();
        let driver = node.driver(options);
        until(&format!("{name} is notified of: {why}"), || {
            let statuses = driver.statuses();
            statuses.iter().any(|status| !status.plugin_registered && status.error.contains(why))
        })
        .await;
        assert!(node.drivers.get(&name).is_none(), "{name}");
    }
    assert_eq!(node.csi_node_drivers(), Vec::<Value>::new());
}

#[tokio::test]
async fn plugin_registration_of_duplicate_names() {
    let node = Node::start().await;
    let mut first = node.driver(CsiOptions::new("d"));
    node.wait_registered("d", true).await;
    let twin = |versions: &str, dir: &str| {
        let options = CsiOptions {
            versions: vec![versions.to_owned()],
            node_id: dir.to_owned(),
            ..CsiOptions::new("d")
        };
        let registry = node.registry_dir().join(dir);
        CsiDriver::start(options, &node.dir.path().join(dir), &registry).unwrap()
    };
    let same = twin("1.0.0", "same");
    until("the twin is refused", || {
        same.statuses()
            .iter()
            .any(|status| status.error.contains("already registered with version 1.0.0"))
    })
    .await;
    let _newer = twin("1.1.0", "newer");
    until("the newer one is in the CSINode", || {
        node.csi_node_drivers().iter().any(|d| d["nodeID"] == "newer")
    })
    .await;
    // The end of the replaced driver does not unregister the new one.
    first.withdraw().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(node.drivers.get("d").is_some());
    assert_eq!(node.csi_node_drivers()[0]["nodeID"], "newer");
}

#[tokio::test]
async fn plugin_registration_is_not_blocked_by_a_hanging_driver() {
    let node = Node::start().await;
    let stuck = node.driver(CsiOptions::new("stuck"));
    stuck.inject("NodeGetInfo", Fault::Hang);
    let mute = node.driver(CsiOptions::new("mute"));
    mute.inject("GetInfo", Fault::Hang);
    let _well = node.driver(CsiOptions::new("well"));
    node.wait_registered("well", true).await;
    assert!(node.drivers.get("stuck").is_none() && node.drivers.get("mute").is_none());
    stuck.release("NodeGetInfo");
    mute.release("GetInfo");
    node.wait_registered("stuck", true).await;
    node.wait_registered("mute", true).await;
}

#[tokio::test]
async fn plugin_registration_needs_a_successful_notification() {
    let node = Node::start().await;
    let driver = node.driver(CsiOptions::new("deaf"));
    let fault = Fault::Error(Code::Internal, "no ear".to_owned());
    driver.inject("NotifyRegistrationStatus", fault);
    tokio::time::sleep(Duration::from_millis(500)).await;
    driver.release("NotifyRegistrationStatus");
    node.wait_registered("deaf", true).await;
    until("it is notified once it responds", || {
        driver.statuses().iter().any(|status| status.plugin_registered)
    })
    .await;
}

#[tokio::test]
async fn csi_node_of_an_earlier_node_is_replaced() {
    let node = Node::start().await;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "of-another"});
    node.objects.put(
        CSI_NODE,
        json!({
            "metadata": {"ownerReferences": [owner]},
            "spec": {"drivers": [{"name": "gone", "nodeID": "x"}]},
        }),
    );
    let (readiness, csi_node_drivers) = tokio::sync::watch::channel(Some("not yet".to_owned()));
    CsiNode::initialize("n1".to_owned(), node.objects.client(), readiness).await;
    assert_eq!(*csi_node_drivers.borrow(), None);
    let csi_node = node.objects.get(CSI_NODE).unwrap();
    assert_eq!(csi_node["metadata"]["ownerReferences"][0]["uid"], "u1");
    assert_eq!(csi_node["spec"]["drivers"], json!([]));
}
