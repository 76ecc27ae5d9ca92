//! Whole pods: mounted, refreshed and taken down.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::SubPath;
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_client::objects::fake::FakeApi;
use longshore_client::objects::{Changed, Detection, Objects};
use longshore_client::pod_certificates::PodCertificates;
use longshore_client::pod_certificates::fake::FakeSigner;
use longshore_metrics::Registry;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, statfs};
use serde_json::json;
use tokio::sync::watch;

use super::node::{Node, volumes};
use super::{Root, pod, read};

fn is_memory(path: &PathBuf) -> bool {
    statfs(path).unwrap().filesystem_type() == TMPFS_MAGIC
}

#[tokio::test]
async fn pod_volumes_of_an_upstream_cluster_as_root() {
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
                {"name": "shm", "mountPath": "/shm"}, {"name": "host", "mountPath": "/host"},
                {"name": "keys", "mountPath": "/keys"}, {"name": "info", "mountPath": "/info"},
                {"name": "kube-api-access", "mountPath": "/api"},
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
        mount: "conf",
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
    let fresh = volumes(&node.root, &Objects::new(None, Detection::Watch));
    assert_eq!(fresh.pods_on_disk().await.unwrap(), ["uid-1"]);
    fresh.unmount("uid-1").await.unwrap();
    assert_eq!(node.root.mounts(), Vec::<PathBuf>::new());
    assert!(!node.root.join("pods/uid-1/volumes").exists());
    assert!(node.root.join("h/d").is_dir(), "the host's directory is the host's");
    node.finish().await;
}

#[tokio::test]
async fn pod_volumes_are_refreshed_on_changes_as_root() {
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

    // Each change rewrites only the affected volumes.
    let data = |path: &str| fs::read_link(at(path).join("..data")).unwrap();
    let kinds = ["secret/keys", "downward-api/notes", "configmap/later"];
    let before = kinds.map(data);
    node.secret(2, json!({"pass": "dHdv"}));
    let changed = node.changed(&pod).await;
    assert_eq!(node.volumes.refresh(&pod, &changed).await.map_err(|e| e.to_string()), Ok(()));
    assert_eq!(read(at("secret/keys/pass")), "two");
    assert!(!at("secret/keys/user").exists());
    node.api.put("configmaps", "c", 3, json!({"data": {"k": "v"}}));
    let changed = node.changed(&pod).await;
    node.volumes.refresh(&pod, &changed).await.unwrap();
    assert_eq!(read(at("configmap/later/k")), "v");
    pod.metadata.annotations.as_mut().unwrap().insert("note".to_owned(), "two".to_owned());
    assert_eq!(data("downward-api/notes"), before[1], "not affected by changes of others");
    node.volumes.refresh(&pod, &Changed::pod()).await.unwrap();
    assert_eq!(read(at("downward-api/notes/note")), "two");
    let after = kinds.map(data);
    assert!(before.iter().zip(&after).all(|(before, after)| before != after));
    node.volumes.refresh(&pod, &Changed::pod()).await.unwrap();
    assert_eq!(kinds.map(data), after, "what is the same is not written");
    node.finish().await;
}

#[tokio::test]
async fn pod_volume_errors_name_volume_and_reason_as_root() {
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
            set_up(
                "[secret \"gone\" not found, pod has no service account to request a token for]",
            ),
        ),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "x", "name": "y"}}]}}),
            set_up(
                "ClusterTrustBundle projection is not supported: the feature gate \
                 ClusterTrustBundleProjection is off",
            ),
        ),
        (
            json!({"projected": {"sources": [{"podCertificate": {"signerName": "s", "keyType": "ED25519"}}]}}),
            set_up(
                "podCertificate projection is not supported: the feature gate PodCertificateRequest \
                 is off, or no apiserver is configured",
            ),
        ),
        (
            json!({"emptyDir": {"medium": "HugePages-2Mi"}}),
            set_up(
                "medium HugePages-2Mi: hugePages storage requested, but there is no resource \
                 request for huge pages",
            ),
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}),
            set_up("unsupported fieldPath: spec.nodeName"),
        ),
        (
            json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
            "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], \
             failed to process volumes=[v]: failed to get Plugin from volumeSpec for volume \"v\" \
             err=no volume plugin matched"
                .to_owned(),
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
    assert!(!node.changed(&pod).await.is_nothing());
    let paths = node.mount(&pod).await.unwrap();
    assert_eq!(read(paths["v"].join("k")), "one");
    node.finish().await;
}

#[tokio::test]
async fn pod_volumes_have_the_fs_group_as_root() {
    let node = Node::start().await;
    node.secret(1, json!({"user": "b25l"}));
    let pod = pod(json!({
        "serviceAccountName": "default",
        "securityContext": {"fsGroup": 4242, "runAsUser": 1000},
        "containers": [{"name": "c", "volumeMounts": [
            {"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"},
            {"name": "keys", "mountPath": "/keys"}, {"name": "token", "mountPath": "/token"},
        ]}],
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
async fn pod_locks_are_released_as_root() {
    let node = Node::start().await;
    for number in 0..20 {
        let mut pod = pod(json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]}));
        pod.metadata.uid = Some(format!("uid-{number}"));
        node.volumes.mount(&pod).await.unwrap();
        node.volumes.remove_pod(&format!("uid-{number}")).await.unwrap();
    }
    assert!(node.volumes.inner.locks.lock().len() <= 1);
    node.finish().await;
}

#[tokio::test]
async fn pod_volume_on_a_full_disk_keeps_old_data_as_root() {
    let root = Root::new();
    let small = Some("size=256k");
    mount(Some("tmpfs"), root.path(), Some("tmpfs"), MsFlags::empty(), small).unwrap();
    let api = FakeApi::start().await;
    let objects = Objects::new(Some(api.client()), Detection::Watch);
    let node = Node { volumes: volumes(&root, &objects), root, api, objects };
    let data = |size: usize| json!({"data": {"k": "x".repeat(size), "last": "y".repeat(size)}});
    node.api.put("configmaps", "c", 1, data(10));
    let pod =
        pod(json!({"containers": [], "volumes": [{"name": "v", "configMap": {"name": "c"}}]}));
    let paths = node.mount(&pod).await.unwrap();
    let file = paths["v"].join("k");
    assert_eq!(read(&file).len(), 10);

    node.api.put("configmaps", "c", 2, data(200 << 10));
    let changed = node.changed(&pod).await;
    let error = node.volumes.refresh(&pod, &changed).await.unwrap_err().to_string();
    assert!(
        error.starts_with("MountVolume.SetUp failed for volume \"v\" : failed to write "),
        "{error}"
    );
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(read(&file).len(), 10, "the old files, whole");
    let names = fs::read_dir(&paths["v"]).unwrap().count();
    assert_eq!(names, 4, "and nothing of the new ones: ..data, its directory, two links");

    node.api.put("configmaps", "c", 3, data(20 << 10));
    let changed = node.changed(&pod).await;
    node.volumes.refresh(&pod, &changed).await.unwrap();
    assert_eq!(read(&file).len(), 20 << 10);
    node.volumes.remove_pod("uid-1").await.unwrap();
}

#[tokio::test]
async fn pod_volume_on_huge_pages_as_root() {
    let node = Node::start().await;
    let huge = json!({
        "name": "c", "resources": {"requests": {"hugepages-2Mi": "4Mi"}},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    });
    let source = json!({"medium": "HugePages-2Mi", "sizeLimit": "4Mi"});
    let pod = pod(json!({"containers": [huge], "volumes": [{"name": "v", "emptyDir": source}]}));
    let paths = node.mount(&pod).await.unwrap();
    let mounted = statfs(&paths["v"]).unwrap();
    assert_eq!(mounted.filesystem_type(), HUGETLBFS_MAGIC);
    assert_eq!((mounted.block_size(), mounted.blocks()), (2 << 20, 2));
    assert_eq!(fs::metadata(&paths["v"]).unwrap().mode() & 0o7777, 0o777);
    let mounts = node.root.mounts();
    node.mount(&pod).await.unwrap();
    assert_eq!(node.root.mounts(), mounts, "not twice");
    node.finish().await;
}

#[tokio::test]
async fn pod_certificates_are_files_of_the_pods_user_as_root() {
    let signer = FakeSigner::default();
    let node = json!({"metadata": {"name": "n1", "uid": "node-uid"}});
    let node_object = watch::Sender::new(Some(Arc::new(serde_json::from_value(node).unwrap())));
    let events = PodEventRecorder::new(Recorder::start(None, "n1").0);
    let (client, registry) = (signer.client(), Registry::default());
    let certificates =
        PodCertificates::new(client.clone(), "n1", node_object.subscribe(), events, &registry);
    tokio::spawn(certificates.clone().run());
    let objects = Objects::with_certificates(client, certificates);
    let root = Root::new();
    let (volumes, api) = (volumes(&root, &objects), FakeApi::start().await);
    let node = Node { root, api, objects, volumes };
    let source = json!({
        "signerName": "example.com/s", "keyType": "ECDSAP256", "credentialBundlePath": "tls/all",
        "keyPath": "tls/key", "certificateChainPath": "tls/chain",
    });
    let pod = pod(json!({
        "serviceAccountName": "sa", "securityContext": {"runAsUser": 7},
        "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "projected": {
            "defaultMode": 0o644, "sources": [{"podCertificate": source}],
        }}],
    }));
    let error = node.mount(&pod).await.unwrap_err();
    let expected =
        "MountVolume.SetUp failed for volume \"v\" : credential bundle is not issued yet";
    assert_eq!(error, expected);

    let block = "-----BEGIN CERTIFICATE-----\nAAECAw==\n-----END CERTIFICATE-----\n";
    signer.request(1).await;
    signer.issue(1, block, "2126-01-01T00:00:00Z", "2126-01-02T00:00:00Z");
    let changed = node.changed(&pod).await;
    let paths = node.mount(&pod).await.unwrap();
    let file = |name: &str| paths["v"].join("tls").join(name);
    assert_eq!(read(file("chain")), block);
    let key = read(file("key"));
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{}", key.len());
    assert_eq!(read(file("all")), format!("{key}{block}"));
    for name in ["key", "chain", "all"] {
        let metadata = fs::metadata(file(name)).unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o600, 7), "{name}");
    }
    node.volumes.refresh(&pod, &changed).await.unwrap();
    assert_eq!(read(file("key")), key);
    node.finish().await;
}
