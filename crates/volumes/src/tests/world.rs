//! A node's volumes with claims in a scripted API, tools of the test's own, and real mounts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::host::kernel::Kernel;
use crate::host::mounts::Table;
use crate::host::tools::Tools;
use crate::plugins::Drivers;
use crate::{PodMounts, Volumes};
use k8s_openapi::api::core::v1::{Node, Pod};
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_client::objects::fake::FakeApi;
use longshore_client::objects::{Detection, Objects};
use longshore_metrics::Registry;
use longshore_testkit::wait_until;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Root;

/// How long a tool may take in these tests.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// The node's object, if there is an apiserver.
type NodeObject = Option<watch::Receiver<Option<Arc<Node>>>>;

pub(super) struct World {
    pub(super) root: Root,
    pub(super) api: FakeApi,
    pub(super) volumes: Volumes,
    pub(super) pod_events: PodEventRecorder,
    limit: Duration,
    node: NodeObject,
}

impl World {
    pub(super) async fn start() -> Self {
        let root = Root::new();
        fs::create_dir(root.join("node")).unwrap();
        Self::at(root).await
    }

    /// With a root directory that is a link to another one, where that of all pods is a link too.
    pub(super) async fn start_behind_links() -> Self {
        let root = Root::new();
        for dir in ["large-disk", "larger-disk"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        symlink("large-disk", root.join("node")).unwrap();
        symlink("../larger-disk", root.join("large-disk/pods")).unwrap();
        Self::at(root).await
    }

    async fn at(root: Root) -> Self {
        let api = FakeApi::start().await;
        for dir in ["bin", "by-path", "by-id", "dev"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        let recorder = Recorder::start(Some(api.client()), "n1").0;
        let pod_events = PodEventRecorder::new(recorder);
        let volumes = open(root.path(), api.client(), &pod_events, LIMIT, None);
        Self { root, api, volumes, pod_events, limit: LIMIT, node: None }
    }

    /// As after a restart of the daemon: all state is on disk and in the kernel.
    pub(super) fn restart(&mut self) {
        let (root, node) = (self.root.path(), self.node.clone());
        self.volumes = open(root, self.api.client(), &self.pod_events, self.limit, node);
    }

    /// The daemon knows that object of the node from here on.
    pub(super) fn set_node(&mut self, node: watch::Receiver<Option<Arc<Node>>>) {
        self.node = Some(node);
        self.restart();
    }

    /// Tools may take that long from here on.
    pub(super) fn limit(&mut self, limit: Duration) {
        self.limit = limit;
        self.restart();
    }

    /// A path below the node's root directory.
    pub(super) fn node(&self, path: &str) -> PathBuf {
        self.root.join("node").join(path)
    }

    /// A tool that is found before the system's.
    pub(super) fn tool(&self, name: &str, script: &str) {
        let path = self.root.write(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Whether mounted file systems can be made larger: the kernel wants CAP_SYS_RESOURCE for that. Without it
    /// `resize2fs` only notes its device in `resized`.
    pub(super) fn can_resize(&self) -> bool {
        const SYS_RESOURCE: u64 = 1 << 24;
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
        let is_capable = u64::from_str_radix(effective, 16).unwrap() & SYS_RESOURCE != 0;
        if !is_capable {
            self.tool("resize2fs", "echo \"$*\" >>\"${0%/bin/resize2fs}/resized\"");
        }
        is_capable
    }

    /// A claim `c-<name>` that is bound to a volume `pv-<name>` of that spec.
    pub(super) fn claim(&self, name: &str, volume: Value) {
        let mut spec = volume;
        spec["claimRef"] = json!({"uid": format!("uid-{name}")});
        let volume = json!({"metadata": {"name": format!("pv-{name}")}, "spec": spec});
        self.api.put_at(&format!("/api/v1/persistentvolumes/pv-{name}"), volume);
        let claim = json!({
            "metadata": {"name": format!("c-{name}"), "namespace": "ns", "uid": format!("uid-{name}")},
            "spec": {"volumeName": format!("pv-{name}")}, "status": {"phase": "Bound"},
        });
        self.put_claim(name, claim);
    }

    /// That claim has become larger since its volume was made, as its controller says, and the volume too.
    pub(super) fn enlarge(&self, name: &str, volume: Value, sizes: [&str; 2]) {
        let [before, now] = sizes;
        let mut spec = volume;
        spec["capacity"] = json!({"storage": now});
        self.claim(name, spec);
        self.put_claim(name, json!({
            "metadata": {"name": format!("c-{name}"), "namespace": "ns", "uid": format!("uid-{name}")},
            "spec": {"volumeName": format!("pv-{name}")},
            "status": {
                "phase": "Bound", "capacity": {"storage": before},
                "allocatedResources": {"storage": now},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            },
        }));
    }

    /// The size in the status of a claim.
    pub(super) fn claim_size(&self, name: &str) -> Value {
        let path = format!("/api/v1/namespaces/ns/persistentvolumeclaims/c-{name}");
        self.api.object(&path).unwrap()["status"]["capacity"]["storage"].clone()
    }

    pub(super) fn put_claim(&self, name: &str, claim: Value) {
        let path = format!("/api/v1/namespaces/ns/persistentvolumeclaims/c-{name}");
        self.api.put_at(&path, claim);
    }

    /// The messages of events with that reason, once there are so many, and the kinds of what they are about.
    pub(super) async fn events(&self, reason: &str, count: usize) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let found = || {
            let bodies = self.api.requests().into_iter().map(|(_, body)| body);
            let events = bodies.filter(|body| body["reason"] == reason);
            let about =
                |event: Value| (text(&event["involvedObject"]["kind"]), text(&event["message"]));
            events.map(about).collect::<Vec<_>>()
        };
        let waited = tokio::time::timeout(LIMIT, async {
            while found().len() < count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("{reason}: {:?}", found()));
        found()
    }

    pub(super) async fn mount(&self, pod: &Pod) -> Result<PodMounts, String> {
        self.volumes.mount(pod).await.map_err(|error| error.to_string())
    }

    /// Takes all of a pod down, its directory too.
    pub(super) async fn remove(&self, uid: &str) {
        self.volumes.remove_pod(uid).await.unwrap();
    }

    /// What is mounted below the node's root directory, relative to it.
    pub(super) fn mounted(&self) -> BTreeSet<String> {
        let node = fs::canonicalize(self.node("")).unwrap();
        let below = Table::read().unwrap().below(&node).into_iter();
        below.map(|path| path.strip_prefix(&node).unwrap().display().to_string()).collect()
    }

    /// The devices in use and by whom.
    pub(super) fn users(&self) -> BTreeMap<String, BTreeSet<String>> {
        self.volumes.devices().in_use().borrow().users().clone()
    }

    /// Waits until neither a pod nor the node itself uses a device.
    pub(super) async fn until_unused(&self) {
        let unused = async || match self.users() {
            users if users.is_empty() => Ok(()),
            users => Err(format!("{users:?}")),
        };
        wait_until(LIMIT, "no device is in use", unused).await.unwrap();
    }

    /// Nothing is left of any pod or device.
    pub(super) fn assert_clean(&self) {
        assert_eq!(self.mounted(), BTreeSet::new());
        assert_eq!(self.users(), BTreeMap::new());
        let mut files = Command::new("find");
        let files = files.arg("-L").arg(self.node("")).args(["!", "-type", "d"]).output().unwrap();
        assert_eq!(String::from_utf8(files.stdout).unwrap(), "");
        if let Ok(pods) = fs::read_dir(self.node("pods")) {
            assert_eq!(pods.count(), 0, "directories of pods are left");
        }
    }
}

/// The volumes of a daemon with `node` below that directory as its root directory.
pub(super) fn open(
    root: &Path,
    client: kube::Client,
    pod_events: &PodEventRecorder,
    limit: Duration,
    node_object: NodeObject,
) -> Volumes {
    let registry = Registry::default();
    let parts = crate::Parts {
        root: root.join("node"),
        objects: Objects::new(Some(client), Detection::Watch),
        allocatable: BTreeMap::new(),
        pod_events: pod_events.clone(),
        drivers: Drivers::new("n1", &registry),
        node: node_object,
        claim_poll_interval: Duration::from_secs(60),
        plugin_dir: root.join("flex"),
        node_name: "n1".to_owned(),
        projects: None,
    };
    let mut volumes = Volumes::new(parts, &registry);
    let inner = Arc::get_mut(&mut volumes.inner).unwrap();
    inner.tools = Tools::after(&[root.join("bin")], limit);
    inner.kernel = Kernel {
        disks: root.join("by-path"),
        ids: root.join("by-id"),
        dev: root.join("dev"),
        sys: root.join("sys"),
        device_timeout: Duration::from_secs(2),
        multipath_timeout: Duration::from_secs(2),
    };
    volumes
}

/// A pod of that UID with the claims `c-<name>` as its volumes.
pub(super) fn pod_with(uid: &str, claims: &[&str], context: Value) -> Pod {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|name| {
            json!({"name": name, "persistentVolumeClaim": {"claimName": format!("c-{name}")}})
        })
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{uid}"), "namespace": "ns", "uid": uid},
        "spec": {"containers": [], "volumes": volumes, "securityContext": context},
    }))
    .unwrap()
}

/// A disk of the machine: a loop device on a file, given back when dropped.
pub(super) struct Disk {
    pub(super) device: PathBuf,
}

impl Disk {
    pub(super) fn new(file: &Path) -> Self {
        fs::File::create(file).unwrap().set_len(16 << 20).unwrap();
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self { device: String::from_utf8(output.stdout).unwrap().trim().into() }
    }

    /// Makes it larger, on the file that it was made of.
    pub(super) fn grow(&self, file: &Path, size: u64) {
        fs::File::options().write(true).open(file).unwrap().set_len(size).unwrap();
        let grown = Command::new("losetup").arg("-c").arg(&self.device).status().unwrap();
        assert!(grown.success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("losetup").arg("-d").arg(&self.device).status().unwrap();
    }
}
