//! A node with CSI volumes, and pods that use them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::plugins::fake::Objects as Api;
use crate::plugins::{CsiNode, CsiPlugins, Drivers};
use crate::tests::Root;
use crate::{PodMounts, Volumes};
use k8s_openapi::api::core::v1::{Node, Pod};
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_client::objects::{Detection, Objects};
use longshore_metrics::Registry;
use longshore_testkit::csi::{CsiDriver, CsiOptions};
use longshore_testkit::wait_until;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

pub(super) const DRIVER: &str = "csi.example.com";
const TIMEOUT: Duration = Duration::from_secs(10);
/// Poll interval of claims.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(50);
const SOON: Duration = Duration::from_millis(5);

type NodeObject = Option<watch::Receiver<Option<Arc<Node>>>>;

pub(super) struct World {
    pub(super) volumes: Volumes,
    pub(super) api: Api,
    drivers: Drivers,
    node: NodeObject,
    plugin_manager: JoinHandle<()>,
    pub(super) driver: CsiDriver,
    /// The driver's name.
    name: String,
    pub(super) root: Root,
}

impl World {
    /// A node with that driver and CSIDriver spec, if any.
    pub(super) async fn start(options: CsiOptions, policy: Value) -> Self {
        Self::start_on(options, policy, None).await
    }

    /// The same on the node with that object.
    pub(super) async fn start_on(options: CsiOptions, policy: Value, node: NodeObject) -> Self {
        let (root, api) = (Root::new(), Api::start().await);
        std::fs::create_dir(root.join("node")).unwrap();
        let (drivers, plugin_manager) = drivers(&root);
        let registry = root.join("node/plugins_registry");
        let name = options.name.clone();
        let driver = CsiDriver::start(options, &root.join("driver"), &registry).unwrap();
        let volumes = volumes(&root, &api, &drivers, node.clone());
        let world = Self { volumes, api, drivers, node, plugin_manager, driver, name, root };
        world.wait_registered(true).await;
        if policy.is_object() {
            world.set_policy(policy);
        }
        world
    }

    /// Sets the CSIDriver spec.
    pub(super) fn set_policy(&self, policy: Value) {
        let path = format!("/apis/storage.k8s.io/v1/csidrivers/{}", self.name);
        self.api.put(&path, json!({"spec": policy}));
    }

    pub(super) async fn wait_registered(&self, expected: bool) {
        until("the driver is registered", || self.drivers.get(&self.name).is_some() == expected)
            .await;
    }

    /// The notification of an exceeded attach limit.
    pub(super) fn exhausted(&self) -> Arc<Notify> {
        self.drivers.exhausted(&self.name).unwrap()
    }

    /// Restarts the daemon.
    pub(super) fn restart(&mut self) {
        self.volumes = volumes(&self.root, &self.api, &self.drivers, self.node.clone());
    }

    /// Restarts the daemon in that runtime. The driver is not registered yet, and the backoff of
    /// unstaging is short.
    pub(super) fn restart_in(&mut self, runtime: &Runtime) {
        let _entered = runtime.enter();
        self.plugin_manager.abort();
        (self.drivers, self.plugin_manager) = drivers(&self.root);
        self.restart();
        Arc::get_mut(&mut self.volumes.inner).unwrap().csi.pause = SOON;
        runtime.spawn(self.volumes.clone().unstage_unused());
    }

    /// A volume of the driver, bound to a claim of the same name.
    pub(super) fn volume(&self, name: &str, fields: Value) {
        let claim = format!("/api/v1/namespaces/ns/persistentvolumeclaims/{name}");
        self.api.put(
            &claim,
            json!({
                "metadata": {"uid": format!("claim-{name}"), "namespace": "ns"},
                "spec": {"volumeName": name},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            }),
        );
        let mut volume = json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "csi": {"driver": DRIVER, "volumeHandle": format!("handle-of-{name}")},
            "claimRef": {"uid": format!("claim-{name}")},
        }});
        json_patch::merge(&mut volume["spec"], &fields);
        self.api.put(&format!("/api/v1/persistentvolumes/{name}"), volume);
    }

    pub(super) async fn mount(&self, pod: &Pod) -> Result<PodMounts, String> {
        self.volumes.mount(pod).await.map_err(|error| error.to_string())
    }

    pub(super) async fn remove(&self, pod: &Pod) -> Result<(), String> {
        let uid = pod.metadata.uid.as_deref().unwrap();
        self.volumes.remove_pod(uid).await.map_err(|error| error.to_string())
    }

    /// The calls, without NodeGetCapabilities.
    pub(super) fn calls(&self) -> Vec<String> {
        let calls = self.driver.calls().into_iter().map(|(method, _)| method);
        let calls = calls.filter(|method| method != "NodeGetCapabilities");
        calls.map(|method| method.trim_start_matches("Node").replace("Volume", "")).collect()
    }

    pub(super) async fn wait_calls(&self, expected: &[&str]) {
        let what = format!("the driver is asked for {expected:?}");
        wait_until(TIMEOUT, &what, async || match self.calls() {
            calls if calls == expected => Ok(()),
            calls => Err(format!("{calls:?}")),
        })
        .await
        .unwrap();
    }

    /// Waits until no volume is left on the node.
    pub(super) async fn wait_clean(&self) {
        wait_until(TIMEOUT, "nothing is left", async || {
            let users = self.volumes.devices().in_use().borrow().users().clone();
            match (self.root.mounts(), self.files(), users.is_empty()) {
                (mounts, files, true) if mounts.is_empty() && files.is_empty() => Ok(()),
                left => Err(format!("{left:?}")),
            }
        })
        .await
        .unwrap();
    }

    /// The files of volumes and pods.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut left = vec![self.root.join("node/pods"), self.root.join("node/plugins")];
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => left.push(entry.path()),
                    false => found.push(entry.path()),
                }
            }
        }
        found
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.plugin_manager.abort();
    }
}

/// The drivers, and the task of the plugin manager.
fn drivers(root: &Root) -> (Drivers, JoinHandle<()>) {
    let registry = Registry::default();
    let drivers = Drivers::new("n1", &registry);
    let csi_node = CsiNode::new("n1", None);
    let plugins = Arc::new(CsiPlugins::new(drivers.clone(), csi_node));
    let handlers = longshore_plugins::Handlers::default();
    let handlers = handlers.with(longshore_plugins::CSI_PLUGIN, plugins);
    let running = longshore_plugins::run(&root.join("node"), handlers, &registry);
    let plugin_manager = tokio::spawn(running);
    (drivers, plugin_manager)
}

fn volumes(root: &Root, api: &Api, drivers: &Drivers, node: NodeObject) -> Volumes {
    let parts = crate::Parts {
        root: root.join("node"),
        objects: Objects::new(Some(api.client()), Detection::Watch),
        allocatable: BTreeMap::new(),
        pod_events: PodEventRecorder::new(Recorder::start(Some(api.client()), "n1").0),
        drivers: drivers.clone(),
        node,
        claim_poll_interval: CLAIM_POLL_INTERVAL,
        plugin_dir: "/nowhere".into(),
        node_name: "n1".to_owned(),
        projects: None,
    };
    Volumes::new(parts, &Registry::default())
}

pub(super) async fn until(what: &str, check: impl Fn() -> bool) {
    wait_until(TIMEOUT, what, async || if check() { Ok(()) } else { Err("not yet") })
        .await
        .unwrap();
}

/// A pod with these volumes and, if it has one, the security context.
pub(super) fn pod(uid: &str, volumes: Value, context: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{uid}"), "namespace": "ns", "uid": uid},
        "spec": {
            "containers": [], "volumes": volumes, "securityContext": context,
            "serviceAccountName": "robot",
        },
    }))
    .unwrap()
}

/// A pod that uses a claim.
pub(super) fn user(uid: &str, claim: &str) -> Pod {
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
    pod(uid, json!([volume]), Value::Null)
}

/// The CSIDriver spec of most tests: without attachments.
pub(super) fn unattached() -> Value {
    json!({"attachRequired": false, "fsGroupPolicy": "File"})
}
