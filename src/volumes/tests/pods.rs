//! Whole pods: mounted, refreshed and taken down.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_metrics::Registry;
use nix::mount::umount;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use serde_json::{Value, json};

use super::{Root, pod, read};
use crate::events::Recorder;
use crate::objects::Objects;
use crate::objects::fake::FakeApi;
use crate::runtime::Announcer;
use crate::volumes::{SubPath, Volumes};

struct Node {
    root: Root,
    api: FakeApi,
    objects: Objects,
    volumes: Volumes,
}

impl Node {
    async fn start() -> Self {
        let (root, api) = (Root::new(), FakeApi::start().await);
        let objects = Objects::new(Some(api.client()));
        let volumes = volumes(&root, &objects);
        Self { root, api, objects, volumes }
    }

    fn secret(&self, version: u64, data: Value) {
        self.api.put("secrets", "s", version, json!({"data": data}));
    }

    /// As a new pod would, this makes changes be seen.
    fn ask_anew(&self, pod: &Pod) {
        self.objects.unregister("uid-1");
        self.objects.register(pod);
    }

    async fn mount(&self, pod: &Pod) -> Result<BTreeMap<String, PathBuf>, String> {
        self.objects.register(pod);
        let mounts = self.volumes.mount(pod).await.map_err(|error| error.to_string())?;
        Ok(mounts.into_iter().map(|(name, mounted)| (name, mounted.path)).collect())
    }

    async fn finish(self) {
        self.volumes.remove_pod("uid-1").await.unwrap();
        assert_eq!(self.root.mounts(), Vec::<PathBuf>::new());
        assert_eq!(fs::read_dir(self.root.join("pods")).unwrap().count(), 0);
    }
}

fn volumes(root: &Root, objects: &Objects) -> Volumes {
    let allocatable = BTreeMap::from([
        ("memory".to_owned(), Quantity("512Mi".to_owned())),
        ("cpu".to_owned(), Quantity("2".to_owned())),
    ]);
    let announcer = Announcer::new(Recorder::start(None, "n1").0);
    Volumes::new(root.path(), objects.clone(), allocatable, announcer, &Registry::default())
}

fn is_memory(path: &PathBuf) -> bool {
    statfs(path).unwrap().filesystem_type() == TMPFS_MAGIC
}

#[tokio::test]
async fn an_ordinary_pod_of_an_upstream_cluster() {
    let node = Node::start().await;
    node.secret(1, json!({"user": "b25l", "pass": "dHdv"}));
    node.api.put(
        "configmaps",
        "kube-root-ca.crt",
        1,
        json!({"data": {"ca.crt": "CA"}, "binaryData": {"bin": "AP8="}}),
    );
    let pod = pod(json!({
        "serviceAccountName": "default",
        "containers": [
            {"name": "c", "resources": {"limits": {"cpu": "500m"}}, "volumeMounts": [
                {"name": "conf", "mountPath": "/etc/app"},
                {"name": "scratch", "mountPath": "/etc/app/run/now"},
            ]},
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
            {"name": "host", "hostPath": {"path": node.root.join("h/d"), "type": "DirectoryOrCreate"}},
            {"name": "conf", "configMap": {"name": "kube-root-ca.crt"}},
            {"name": "keys", "secret": {"secretName": "s", "defaultMode": 0o400,
                "items": [{"key": "user", "path": "login/user", "mode": 0o440}]}},
            {"name": "info", "downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}},
                {"path": "memory", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}},
            ]}},
            {"name": "kube-api-access", "projected": {"defaultMode": 0o644, "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                {"secret": {"name": "absent", "optional": true}},
            ]}},
        ],
    }));
    let paths = node.mount(&pod).await.unwrap();
    let below = |path: &str| node.root.join(&format!("pods/uid-1/volumes/kubernetes.io~{path}"));
    assert_eq!(
        paths,
        BTreeMap::from([
            ("scratch".to_owned(), below("empty-dir/scratch")),
            ("shm".to_owned(), below("empty-dir/shm")),
            ("host".to_owned(), node.root.join("h/d")),
            ("conf".to_owned(), below("configmap/conf")),
            ("keys".to_owned(), below("secret/keys")),
            ("info".to_owned(), below("downward-api/info")),
            ("kube-api-access".to_owned(), below("projected/kube-api-access")),
        ])
    );
    assert_eq!(fs::metadata(&paths["scratch"]).unwrap().mode() & 0o7777, 0o777);
    assert!(node.root.join("pods/uid-1/plugins/kubernetes.io~empty-dir/scratch/ready").is_file());
    assert!(is_memory(&paths["shm"]) && is_memory(&paths["keys"]) && is_memory(&paths["info"]));
    let shm = statfs(&paths["shm"]).unwrap();
    assert_eq!(shm.blocks() * shm.block_size() as u64, 8 << 20);
    assert!(node.root.join("h/d").is_dir());
    assert_eq!(fs::read(paths["conf"].join("bin")).unwrap(), [0, 0xff]);
    assert!(paths["conf"].join("run/now").is_dir(), "to mount another volume on");
    assert_eq!(read(paths["keys"].join("login/user")), "one");
    assert_eq!(fs::metadata(paths["keys"].join("login/user")).unwrap().mode() & 0o777, 0o440);
    assert!(!paths["keys"].join("pass").exists());
    assert_eq!(read(paths["info"].join("labels")), "app=\"web\"");
    assert_eq!(read(paths["info"].join("cpu")), "500");
    assert_eq!(read(paths["info"].join("memory")), "512", "what the node can give");
    assert_eq!(read(paths["kube-api-access"].join("ca.crt")), "CA");
    assert_eq!(read(paths["kube-api-access"].join("namespace")), "ns");
    assert!(read(paths["kube-api-access"].join("token")).starts_with("token-"));

    // Again, as after a restart of the daemon: nothing is mounted twice, nothing is lost.
    fs::write(paths["scratch"].join("work"), "x").unwrap();
    fs::write(paths["shm"].join("work"), "x").unwrap();
    let mounts = node.root.mounts();
    let again = volumes(&node.root, &node.objects).mount(&pod).await.unwrap();
    assert_eq!(node.root.mounts(), mounts);
    assert!(again["conf"].read_only && !again["scratch"].read_only && !again["host"].read_only);
    assert!(paths["scratch"].join("work").exists() && paths["shm"].join("work").exists());

    // A bind of a file in a configmap is of the version that it was made from.
    let sub_path = SubPath {
        volume: "conf",
        volume_path: &paths["conf"],
        container: "c",
        index: 2,
        path: "ca.crt",
    };
    let bound = node.volumes.sub_path("uid-1", sub_path).await.unwrap();
    assert_eq!(read(&bound), "CA");
    let outside = SubPath { path: "../x", ..sub_path };
    assert!(node.volumes.sub_path("uid-1", outside).await.is_err());

    // An orphan that a fresh daemon knows nothing of.
    let fresh = volumes(&node.root, &Objects::new(None));
    assert_eq!(fresh.pods_on_disk().await.unwrap(), ["uid-1"]);
    fresh.unmount("uid-1").await.unwrap();
    assert_eq!(node.root.mounts(), Vec::<PathBuf>::new());
    assert!(!node.root.join("pods/uid-1/volumes").exists());
    assert!(node.root.join("h/d").is_dir(), "the host's directory is the host's");
    node.finish().await;
}

#[tokio::test]
async fn changes_are_projected_anew() {
    let node = Node::start().await;
    node.secret(1, json!({"user": "b25l"}));
    let mut pod = pod(json!({"containers": [], "volumes": [
        {"name": "keys", "secret": {"secretName": "s"}},
        {"name": "notes", "downwardAPI": {"items": [
            {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}}]}},
        {"name": "later", "configMap": {"name": "c", "optional": true}},
        {"name": "other", "nfs": {"server": "s", "path": "/"}},
    ]}));
    assert!(node.mount(&pod).await.is_err(), "one kind is unknown, the others are set up");
    let at = |path: &str| node.root.join(&format!("pods/uid-1/volumes/kubernetes.io~{path}"));
    assert_eq!(read(at("secret/keys/user")), "one");
    assert_eq!(read(at("downward-api/notes/note")), "one");
    assert_eq!(fs::read_dir(at("configmap/later")).unwrap().count(), 2, "data without files");

    node.secret(2, json!({"pass": "dHdv"}));
    node.api.put("configmaps", "c", 1, json!({"data": {"k": "v"}}));
    pod.metadata.annotations.as_mut().unwrap().insert("note".to_owned(), "two".to_owned());
    node.ask_anew(&pod);
    node.volumes.refresh(&pod).await.unwrap();
    assert_eq!(read(at("secret/keys/pass")), "two");
    assert!(!at("secret/keys/user").exists());
    assert_eq!(read(at("downward-api/notes/note")), "two");
    assert_eq!(read(at("configmap/later/k")), "v");
    node.finish().await;
}

#[tokio::test]
async fn errors_name_volume_and_reason() {
    let node = Node::start().await;
    node.secret(1, json!({"user": "b25l"}));
    node.api.put("configmaps", "c", 1, json!({"data": {"k": "v"}}));
    let token = json!({"serviceAccountToken": {"path": "token"}});
    let missing = json!({"secret": {"name": "gone"}});
    let set_up = |reason: &str| format!("MountVolume.SetUp failed for volume \"v\" : {reason}");
    let cases = [
        (json!({"secret": {"secretName": "gone"}}), set_up("secret \"gone\" not found")),
        (json!({"configMap": {"name": "gone"}}), set_up("configmap \"gone\" not found")),
        (
            json!({"secret": {"secretName": "s", "items": [{"key": "x", "path": "x"}]}}),
            set_up("references non-existent secret key: x"),
        ),
        (
            json!({"configMap": {"name": "c", "items": [{"key": "x", "path": "x"}]}}),
            set_up("configmap references non-existent config key: x"),
        ),
        (
            json!({"configMap": {"name": "c", "items": [{"key": "k", "path": "../k"}]}}),
            set_up("invalid path \"../k\": must not contain '..'"),
        ),
        (
            json!({"projected": {"sources": [missing, token]}}),
            set_up("[secret \"gone\" not found, pod names no service account to make a token for]"),
        ),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "x", "name": "y"}}]}}),
            set_up("projected source clusterTrustBundle is not supported yet"),
        ),
        (
            json!({"emptyDir": {"medium": "HugePages-2Mi"}}),
            set_up("emptyDir medium HugePages-2Mi is not supported yet"),
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}),
            set_up("unsupported fieldPath: spec.nodeName"),
        ),
        (
            json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
            "volume \"v\": kind glusterfs is not supported yet".to_owned(),
        ),
    ];
    for (mut source, expected) in cases {
        source["name"] = json!("v");
        let pod = pod(json!({"containers": [], "volumes": [source]}));
        assert_eq!(node.mount(&pod).await, Err(expected));
        assert_eq!(node.root.mounts(), Vec::<PathBuf>::new(), "data comes before mounts");
    }
    let hostile = pod(json!({"containers": [], "volumes": [{"name": "../v", "emptyDir": {}}]}));
    assert!(node.mount(&hostile).await.is_err());
    let mut hostile = pod(json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]}));
    hostile.metadata.uid = Some("../../x".to_owned());
    assert!(node.mount(&hostile).await.is_err());
    assert!(node.volumes.remove_pod("..").await.is_err());
    assert!(node.root.join("pods").exists());

    // What was missing appears, and the next attempt has it.
    let pod = pod(
        json!({"containers": [], "volumes": [{"name": "v", "secret": {"secretName": "late"}}]}),
    );
    node.mount(&pod).await.unwrap_err();
    node.api.put("secrets", "late", 2, json!({"data": {"k": "b25l"}}));
    let paths = node.mount(&pod).await.unwrap();
    assert_eq!(read(paths["v"].join("k")), "one");
    node.finish().await;
}

#[tokio::test]
async fn the_group_of_the_pod_may_use_its_volumes() {
    let node = Node::start().await;
    node.secret(1, json!({"user": "b25l"}));
    let pod = pod(json!({
        "serviceAccountName": "default",
        "securityContext": {"fsGroup": 4242, "runAsUser": 1000},
        "containers": [{"name": "c"}],
        "volumes": [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "keys", "secret": {"secretName": "s", "defaultMode": 0o400}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        ],
    }));
    let paths = node.mount(&pod).await.unwrap();
    let stat = |path: PathBuf| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
    };
    assert_eq!(stat(paths["disk"].clone()), (0o2777, 0, 4242));
    assert_eq!(stat(paths["memory"].clone()), (0o3777, 0, 4242));
    assert_eq!(stat(paths["keys"].clone()), (0o3777, 0, 4242));
    assert_eq!(stat(paths["keys"].join("user")), (0o440, 0, 4242));
    assert_eq!(stat(paths["token"].join("token")), (0o640, 1000, 4242));

    // What the pod does to its own directory is left alone.
    fs::set_permissions(&paths["disk"], std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .unwrap();
    node.mount(&pod).await.unwrap();
    assert_eq!(stat(paths["disk"].clone()).0, 0o700);

    // After a reboot the notes are on disk, and memory is empty.
    umount(&paths["memory"]).unwrap();
    node.mount(&pod).await.unwrap();
    assert!(is_memory(&paths["memory"]));
    assert_eq!(stat(paths["memory"].clone()), (0o3777, 0, 4242));
    node.finish().await;
}

#[tokio::test]
async fn pods_at_work_do_not_leave_locks() {
    let node = Node::start().await;
    for number in 0..20 {
        let mut pod = pod(json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]}));
        pod.metadata.uid = Some(format!("uid-{number}"));
        node.volumes.mount(&pod).await.unwrap();
        node.volumes.remove_pod(&format!("uid-{number}")).await.unwrap();
    }
    assert!(node.volumes.inner.locks.lock().unwrap().len() <= 1);
    node.finish().await;
}
