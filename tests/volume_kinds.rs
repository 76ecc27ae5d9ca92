//! Kinds of volumes on a real node, as containers see them; errors of those that cannot be mounted,
//! with upstream's texts, and the start of the pod once the cause is resolved.

use crate::common;

use std::fs;
use std::path::Path;

use common::{Cluster, FOREVER, TIMEOUT, run_of, script, uid};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret};
use kube::api::{Api, DeleteParams, PostParams};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

/// A pod whose container mounts each of these volumes at `/` and its name.
fn with_volumes(volumes: Value) -> Value {
    let mut spec = script(FOREVER);
    let names = volumes.as_array().unwrap().iter().map(|volume| volume["name"].as_str().unwrap());
    let mounts = names.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    spec["containers"][0]["volumeMounts"] = mounts.collect();
    spec["volumes"] = volumes;
    spec
}

/// What a line prints in the container of a pod.
fn say(cluster: &Cluster, pod: &str, line: &str) -> String {
    let args = ["exec", pod, "-c", "c", "--", "sh", "-c", line];
    let said = cluster.apiserver.kubectl().run(args);
    said.unwrap_or_else(|error| error.to_string()).trim().to_owned()
}

async fn gone(cluster: &Cluster, pods: &[&str]) {
    for pod in pods {
        cluster.delete(pod).await;
    }
    for pod in pods {
        cluster.until_gone(pod).await;
    }
}

#[tokio::test]
async fn volume_empty_dir_mode_and_size_limit() {
    let cluster = Cluster::start().await;
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {"name": "large", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]);
    let mut plain = with_volumes(volumes.clone());
    plain["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000});
    plain["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    let mut shared = with_volumes(volumes);
    shared["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 4000});
    cluster.create("plain", plain).await;
    cluster.create("shared", shared).await;
    for name in ["plain", "shared"] {
        cluster.until_ready(name).await;
    }
    let size = |pod: &str, path: &str| {
        say(&cluster, pod, &format!("df -k {path} | awk 'END{{print $2}}'"))
    };
    assert_eq!(say(&cluster, "plain", "stat -c '%a %u %g' /disk"), "777 0 0");
    assert_eq!(
        (size("plain", "/small").as_str(), size("plain", "/large").as_str()),
        ("8192", "65536")
    );
    assert_eq!(
        say(
            &cluster,
            "plain",
            "dd if=/dev/zero of=/small/x bs=1M count=9 2>&1 | grep -c 'No space'"
        ),
        "1"
    );
    assert_eq!(size("shared", "/large"), "1048576", "a pod without limit");
    for (path, mode) in [("/disk", "2777"), ("/small", "3777")] {
        assert_eq!(
            say(&cluster, "shared", &format!("stat -c '%a %u %g' {path}")),
            format!("{mode} 0 4000")
        );
        let made = format!("touch {path}/made; stat -c '%u %g' {path}/made");
        assert_eq!(say(&cluster, "shared", &made), "1000 4000");
    }
    gone(&cluster, &["plain", "shared"]).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn volume_projected_file_modes_and_owners() {
    let gates = json!({"featureGates": {"ClusterTrustBundleProjection": true}});
    let cluster = Cluster::start_with(gates).await;
    let anchors = fs::read_to_string(cluster.apiserver.client_ca()).unwrap();
    let bundle = json!({"metadata": {"name": "anchors"}, "spec": {"trustBundle": anchors}});
    let bundles = Api::<ClusterTrustBundle>::all(cluster.client.clone());
    let bundle = serde_json::from_value(bundle).unwrap();
    bundles.create(&PostParams::default(), &bundle).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    let secret =
        json!({"metadata": {"name": "s"}, "data": {"k.e-y_1": "AP8=", "same": "c2VjcmV0"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    let map = json!({"metadata": {"name": "m"}, "data": {"text": "t", ".dot": "d"}, "binaryData": {"bin": "AP8="}});
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    let volumes = json!([
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400,
            "items": [{"key": "same", "path": "a/b/c", "mode": 0o511}, {"key": "k.e-y_1", "path": "a/key"}]}},
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "p", "projected": {"defaultMode": 0o440, "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600, "audience": "vault"}},
            {"secret": {"name": "s"}},
            {"configMap": {"name": "m", "items": [{"key": "text", "path": "same"}]}},
            {"clusterTrustBundle": {"name": "anchors", "path": "ca.pem"}},
            {"configMap": {"name": "absent", "optional": true}},
            {"secret": {"name": "s", "optional": true, "items": [{"key": "absent", "path": "absent"}]}},
            {"downwardAPI": {"items": [{"path": "about/name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]}},
    ]);
    for (name, context) in [
        ("root", json!({})),
        ("user", json!({"runAsUser": 1000})),
        ("group", json!({"runAsUser": 1000, "fsGroup": 4000})),
    ] {
        let mut spec = with_volumes(volumes.clone());
        spec["securityContext"] = context;
        cluster.create(name, spec).await;
    }
    let command = "stat -L -c '%a %u %g' /p/token /p/same /s/a/b/c /s/a/key /m/bin";
    for (name, expected) in [
        ("root", "440 0 0\n440 0 0\n511 0 0\n400 0 0\n644 0 0"),
        ("user", "600 1000 0\n440 0 0\n511 0 0\n400 0 0\n644 0 0"),
        ("group", "640 1000 4000\n440 0 4000\n551 0 4000\n440 0 4000\n644 0 4000"),
    ] {
        cluster.until_ready(name).await;
        assert_eq!(say(&cluster, name, command), expected, "{name}");
        assert_eq!(say(&cluster, name, "ls -A /m | grep -v '^[.][.]'"), ".dot\nbin\ntext");
        assert_eq!(say(&cluster, name, "cat /p/same /p/about/name /m/.dot"), format!("t{name}d"));
        assert_eq!(say(&cluster, name, "grep -c BEGIN /p/ca.pem"), "1");
        assert_eq!(
            say(&cluster, name, "readlink /m/text; readlink /p/about"),
            "..data/text\n..data/about"
        );
        assert_eq!(say(&cluster, name, "od -An -tx1 /m/bin"), "00 ff");
        assert_eq!(
            say(&cluster, name, "touch /m/x 2>&1 || true"),
            "touch: /m/x: Read-only file system"
        );
    }
    gone(&cluster, &["root", "user", "group"]).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn volume_host_path_types_are_checked() {
    let cluster = Cluster::start().await;
    let dir = cluster.host.dir().join("paths");
    fs::create_dir_all(dir.join("dir")).unwrap();
    fs::write(dir.join("file"), "x").unwrap();
    let pod = |path: &Path, kind: &str| {
        with_volumes(json!([{"name": "v", "hostPath": {"path": path, "type": kind}}]))
    };
    let cases = [
        ("Directory", "later", "directory"),
        ("DirectoryOrCreate", "file", "directory"),
        ("File", "dir", "file"),
        ("FileOrCreate", "dir", "file"),
        ("Socket", "file", "socket file"),
        ("CharDevice", "file", "character device"),
        ("BlockDevice", "file", "block device"),
    ];
    for (index, (kind, path, _)) in cases.iter().enumerate() {
        cluster.create(&format!("wrong-{index}"), pod(&dir.join(path), kind)).await;
    }
    for (_, path, expected) in &cases {
        let path = dir.join(path);
        let says = format!(
            "MountVolume.SetUp failed for volume \"v\" : hostPath type check failed: {} is not a {expected}",
            path.display()
        );
        cluster.until_event("FailedMount", &says).await;
    }
    for (name, kind, path) in
        [("made", "DirectoryOrCreate", "new/dir"), ("file", "FileOrCreate", "new-file")]
    {
        cluster.create(name, pod(&dir.join(path), kind)).await;
        cluster.until_ready(name).await;
    }
    assert!(dir.join("new/dir").is_dir() && dir.join("new-file").is_file());
    fs::create_dir(dir.join("later")).unwrap();
    cluster.until_ready("wrong-0").await;
    let names: Vec<String> = (0..cases.len()).map(|index| format!("wrong-{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).chain(["made", "file"]).collect();
    gone(&cluster, &names).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn volume_errors_match_upstream() {
    let cluster = Cluster::start_with_volumes(json!({})).await;
    let volumes = Api::<PersistentVolume>::all(cluster.client.clone());
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), "default");
    let put = async |name: &str, source: Value| {
        let size = json!({"storage": "1Gi"});
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": size, "storageClassName": "",
            "claimRef": {"namespace": "default", "name": name}});
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let volume = json!({"metadata": {"name": format!("pv-{name}")}, "spec": spec});
        volumes
            .create(&PostParams::default(), &serde_json::from_value(volume).unwrap())
            .await
            .unwrap();
        let claim = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": size}, "storageClassName": "", "volumeName": format!("pv-{name}")}});
        claims
            .create(&PostParams::default(), &serde_json::from_value(claim).unwrap())
            .await
            .unwrap();
    };
    let claim = |name: &str| json!({"name": "v", "persistentVolumeClaim": {"claimName": name}});
    let on_node = |name: &str| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}]}]}})
    };
    let missing = cluster.host.dir().join("missing");
    put("removed", json!({"glusterfs": {"endpoints": "e", "path": "p"}})).await;
    put("elsewhere", json!({"local": {"path": "/tmp"}, "nodeAffinity": on_node("elsewhere")}))
        .await;
    put(
        "missing",
        json!({"local": {"path": missing}, "nodeAffinity": on_node(&cluster.host.name())}),
    )
    .await;
    put("options", json!({"hostPath": {"path": "/tmp"}, "mountOptions": ["noexec"]})).await;
    let unbound = json!({"metadata": {"name": "unbound"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "none"}});
    claims.create(&PostParams::default(), &serde_json::from_value(unbound).unwrap()).await.unwrap();
    let unready = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: ";
    let cases = [
        ("removed", claim("removed"), format!("{unready}failed to get Plugin from volumeSpec for volume \"pv-removed\" err=no volume plugin matched")),
        ("elsewhere", claim("elsewhere"), "MountVolume.NodeAffinity check failed for volume \"pv-elsewhere\" : no matching NodeSelectorTerms".to_owned()),
        ("missing", claim("missing"), format!("MountVolume.NewMounter initialization failed for volume \"pv-missing\" : path {missing:?} does not exist")),
        ("options", claim("options"), "MountVolume.MountOptionSupport check failed for volume \"pv-options\" : mount options are not supported for this volume type".to_owned()),
        ("unbound", claim("unbound"), format!("{unready}error processing PVC default/unbound: PVC is not bound")),
        ("unclaimed", claim("unclaimed"), format!("{unready}error processing PVC default/unclaimed: failed to fetch PVC from API server: persistentvolumeclaims \"unclaimed\" not found")),
        ("git", json!({"name": "v", "gitRepo": {"repository": "x"}}), "MountVolume.SetUp failed for volume \"v\" : git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`".to_owned()),
        ("nfs", json!({"name": "v", "nfs": {"server": "127.0.0.1", "path": "/"}}), "MountVolume.SetUp failed for volume \"v\" : mount".to_owned()),
        ("iscsi", json!({"name": "v", "iscsi": {"targetPortal": "127.0.0.1", "iqn": "iqn.2020-01.org.example:disk", "lun": 0}}), "MountVolume.WaitForAttach failed for volume \"v\" : iscsiadm".to_owned()),
        ("map", json!({"name": "v", "configMap": {"name": "none"}}), "MountVolume.SetUp failed for volume \"v\" : configmap \"none\" not found".to_owned()),
    ];
    for (name, volume, _) in &cases {
        cluster.create(name, with_volumes(json!([volume]))).await;
    }
    let mut lacks = with_volumes(json!([{"name": "v", "emptyDir": {}}]));
    lacks["containers"][0]["volumeMounts"][0]["subPathExpr"] = json!("$(NONE)/$(NEITHER)");
    cluster.create("lacks", lacks).await;
    for (_, _, says) in &cases {
        let event = cluster.until_event("FailedMount", says).await;
        assert_eq!(event.type_.as_deref(), Some("Warning"));
    }
    cluster.until_event("Failed", "Error: missing value for NEITHER, NONE").await;
    // A volume that no container uses does not block the pod.
    let mut free = with_volumes(json!([{"name": "v", "emptyDir": {}}]));
    free["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "w", "secret": {"secretName": "none"}}));
    cluster.create("free", free).await;
    cluster.until_ready("free").await;

    fs::create_dir(&missing).unwrap();
    let map = json!({"metadata": {"name": "none"}, "data": {"k": "v"}});
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    put("unclaimed", json!({"hostPath": {"path": "/tmp"}})).await;
    for name in ["missing", "map", "unclaimed"] {
        cluster.until_ready(name).await;
    }
    let names: Vec<&str> = cases.iter().map(|(name, ..)| *name).chain(["lacks", "free"]).collect();
    gone(&cluster, &names).await;
    cluster.host.assert_clean();
}

/// A claim that is deleted stays for its pod, which goes on with it, whatever befalls the daemon.
#[tokio::test]
async fn volume_claim_deleted_during_use() {
    let mut cluster = Cluster::start_with_volumes(json!({})).await;
    let data = cluster.host.dir().join("data");
    fs::create_dir(&data).unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), "default");
    let size = json!({"storage": "1Gi"});
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "capacity": size, "storageClassName": "", "hostPath": {"path": data},
        "claimRef": {"namespace": "default", "name": "c"}}});
    let volumes = Api::<PersistentVolume>::all(cluster.client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": size}, "storageClassName": "", "volumeName": "pv"}});
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let mut spec =
        with_volumes(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]));
    spec["containers"][0]["command"] = json!([
        "sh",
        "-c",
        "echo run >>/v/runs; while [ ! -e /v/end ]; do sleep 0.2; done; rm /v/end",
    ]);
    spec["terminationGracePeriodSeconds"] = json!(1);
    let pod = uid(&cluster.create("web", spec).await);
    cluster.until_ready("web").await;
    claims.delete("c", &DeleteParams::default()).await.unwrap();
    let claim = claims.get("c").await.unwrap();
    assert!(claim.metadata.deletion_timestamp.is_some(), "it stays for the pod");
    cluster.node.daemon().kill().unwrap();
    cluster.node.restart(&cluster.host).unwrap();
    wait_until(TIMEOUT, "the node is ready", async || cluster.node_ready().await).await.unwrap();
    fs::write(data.join("end"), "").unwrap();
    cluster
        .until("web", "runs again", |pod| match run_of(pod).0 {
            0 => Err("no restart yet".to_owned()),
            _ => Ok(()),
        })
        .await;
    cluster.until_ready("web").await;
    assert_eq!(fs::read_to_string(data.join("runs")).unwrap(), "run\nrun\n");
    cluster.delete("web").await;
    cluster.until_removed(&pod).await;
    wait_until(TIMEOUT, "the claim goes with the pod", async || match claims.get_opt("c").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    cluster.host.assert_clean();
}
