//! Pods with persistent volume claims on a real node: they wait for the claim, start, and leave no
//! mounts, also when the daemon is killed.

use crate::common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Cluster, FOREVER, TIMEOUT, script, uid};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use longshore_testkit::{Host, wait_until};
use serde_json::{Value, json};

/// A disk of the machine: a loop device on a file of the host, given back when dropped.
struct Disk {
    device: PathBuf,
}

impl Disk {
    fn new(host: &Host, name: &str) -> Self {
        let file = host.dir().join(name);
        fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self { device: String::from_utf8(output.stdout).unwrap().trim().into() }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("losetup").arg("-d").arg(&self.device).status().unwrap();
    }
}

/// A volume and a claim, bound to each other.
async fn bind(cluster: &Cluster, name: &str, source: Value, mode: &str) {
    let capacity = json!({"storage": "1Gi"});
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), "default");
    let claim = json!({"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteMany"], "resources": {"requests": capacity},
        "storageClassName": "", "volumeMode": mode, "volumeName": name,
    }});
    let claim = serde_json::from_value(claim).unwrap();
    let claim = claims.create(&PostParams::default(), &claim).await.unwrap();
    let mut spec = json!({
        "accessModes": ["ReadWriteMany"], "capacity": capacity, "volumeMode": mode,
        "storageClassName": "", "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": "default", "name": name, "uid": claim.metadata.uid,
        },
    });
    if source.get("local").is_some() {
        spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [cluster.host.name()]},
        ]}]}});
    }
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    let volume = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    let volumes = Api::<PersistentVolume>::all(cluster.client.clone());
    volumes.create(&PostParams::default(), &volume).await.unwrap();
    // As the control plane does, which may have done it already.
    let bound = json!({"status": {"phase": "Bound", "capacity": capacity, "accessModes": ["ReadWriteMany"]}});
    claims.patch_status(name, &PatchParams::default(), &Patch::Merge(bound)).await.unwrap();
}

/// A pod that has the claim of its name at `/data`, or as the device `/dev/disk`.
fn spec(text: &str, claim: &str, block: bool) -> Value {
    let mut spec = script(text);
    spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
    let container = &mut spec["containers"][0];
    match block {
        true => container["volumeDevices"] = json!([{"name": "v", "devicePath": "/dev/disk"}]),
        false => container["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]),
    }
    spec
}

fn mounts(root: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let below = points.filter(|point| Path::new(point).starts_with(root));
    below.filter(|point| point.contains("kubernetes.io")).map(str::to_owned).collect()
}

async fn until_unmounted(root: &Path) {
    wait_until(TIMEOUT, "no volume is mounted", async || match mounts(root) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join(", ")),
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn claim_is_waited_for_and_mounted() {
    let cluster = Cluster::start_with_volumes(json!({})).await;
    let data = cluster.host.dir().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "here").unwrap();
    fs::set_permissions(data.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!("[ $(cat /data/file) = here ] && echo there >/data/out && {FOREVER}");
    let mut wanted = spec(&text, "a", false);
    wanted["securityContext"] = json!({"fsGroup": 4000, "runAsUser": 3000});
    let pod = cluster.create("web", wanted).await;
    cluster.until_event("FailedMount", "error processing PVC default/a: failed to fetch PVC").await;
    bind(&cluster, "a", json!({"local": {"path": data}}), "Filesystem").await;
    cluster.until_ready("web").await;
    let out = wait_until(TIMEOUT, "the container to write", async || {
        fs::metadata(data.join("out")).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    assert_eq!((out.uid(), out.gid()), (3000, 4000));
    cluster.delete("web").await;
    cluster.until_gone("web").await;
    cluster.until_removed(&uid(&pod)).await;
    until_unmounted(&cluster.host.dir()).await;
    assert_eq!(fs::read_to_string(data.join("out")).unwrap(), "there\n");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn claim_block_volume_is_a_device() {
    let cluster = Cluster::start_with_volumes(json!({})).await;
    let disk = Disk::new(&cluster.host, "disk");
    fs::write(cluster.host.dir().join("disk-head"), "magic").unwrap();
    let head = format!("if={}/disk-head", cluster.host.dir().display());
    let of = format!("of={}", disk.device.display());
    let written = Command::new("dd").args([&head, &of, &"conv=notrunc".to_owned()]).output();
    assert!(written.unwrap().status.success());
    bind(&cluster, "raw", json!({"local": {"path": disk.device}}), "Block").await;
    let read = "[ $(head -c 5 /dev/disk) = magic ]";
    let write = "echo MAGIC | dd of=/dev/disk bs=5 count=1 conv=notrunc";
    let pod =
        cluster.create("raw", spec(&format!("{read} && {write} && {FOREVER}"), "raw", true)).await;
    cluster.until_ready("raw").await;
    let _ = Command::new("blockdev").arg("--flushbufs").arg(&disk.device).output();
    assert!(fs::read(&disk.device).unwrap().starts_with(b"MAGIC"));
    cluster.delete("raw").await;
    cluster.until_gone("raw").await;
    cluster.until_removed(&uid(&pod)).await;
    until_unmounted(&cluster.host.dir()).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn claim_volumes_of_vanished_pods_are_unmounted() {
    let mut cluster = Cluster::start_with_volumes(json!({})).await;
    let disk = Disk::new(&cluster.host, "disk");
    bind(&cluster, "disk", json!({"local": {"path": disk.device}}), "Filesystem").await;
    let stays = cluster.create("stays", spec(FOREVER, "disk", false)).await;
    let goes = cluster
        .create("goes", spec(&format!("echo x >/data/file; {FOREVER}"), "disk", false))
        .await;
    cluster.until_ready("stays").await;
    cluster.until_ready("goes").await;
    let in_use = |pod: &str| mounts(&cluster.host.dir()).iter().any(|point| point.contains(pod));
    let (stays, goes) = (uid(&stays), uid(&goes));
    assert!(in_use(&stays) && in_use(&goes));
    cluster.node.daemon().kill().unwrap();
    let now = DeleteParams::default().grace_period(0);
    cluster.pods().delete("goes", &now).await.unwrap();
    cluster.node.restart(&cluster.host).unwrap();
    cluster.until_removed(&goes).await;
    let left = mounts(&cluster.host.dir());
    assert!(!left.iter().any(|point| point.contains(&goes)), "{left:?}");
    // The disk stays mounted for the pod that is left, and what is on it is what was written.
    assert!(left.iter().any(|point| point.contains(&stays)), "{left:?}");
    let global = left.iter().find(|point| point.ends_with("local-volume/mounts/disk")).unwrap();
    assert_eq!(fs::read_to_string(Path::new(global).join("file")).unwrap(), "x\n");
    cluster.node.daemon().kill().unwrap();
    cluster.pods().delete("stays", &now).await.unwrap();
    cluster.node.restart(&cluster.host).unwrap();
    cluster.until_removed(&stays).await;
    until_unmounted(&cluster.host.dir()).await;
    cluster.host.assert_clean();
}

/// `mount` as the node finds it: it says that it has come so far, and waits for as long as `hold` is
/// there; for volumes that are called so, after its work and not before.
const MOUNT: &str = r#"#!/bin/sh
here="${0%/bin/mount}"
for last; do :; done
name="${last##*/}"
wait_here() { touch "$here/reached-$name"; while [ -e "$here/hold" ]; do sleep 0.1; done; }
case "$name" in before-*) wait_here ;; esac
/bin/mount "$@" || exit
case "$name" in after-*) wait_here ;; esac
touch "$here/done-$name"
"#;

#[tokio::test]
async fn claim_mount_continues_after_a_kill() {
    let host = Host::start().expect("a host");
    let dir = host.dir().to_owned();
    fs::create_dir(dir.join("bin")).unwrap();
    fs::write(dir.join("bin/mount"), MOUNT).unwrap();
    fs::set_permissions(dir.join("bin/mount"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.join("hold"), "").unwrap();
    let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap());
    let mut cluster = Cluster::with_env(host, json!({}), &[("PATH", &path)]).await;
    cluster.start_volume_controllers();
    let names = ["before-kept", "before-gone", "after-kept", "after-gone"];
    let disks = names.map(|name| Disk::new(&cluster.host, name));
    let mut uids = Vec::new();
    for (name, disk) in names.iter().zip(&disks) {
        bind(&cluster, name, json!({"local": {"path": disk.device}}), "Filesystem").await;
        uids.push(uid(&cluster.create(name, spec(FOREVER, name, false)).await));
    }
    let all = async |what: &str| {
        wait_until(TIMEOUT, what, async || {
            let missing = names.iter().find(|name| !dir.join(format!("{what}-{name}")).exists());
            missing.map_or(Ok(()), |name| Err((*name).to_owned()))
        })
        .await
        .unwrap();
    };
    all("reached").await;
    cluster.node.daemon().kill().unwrap();
    let now = DeleteParams::default().grace_period(0);
    for name in ["before-gone", "after-gone"] {
        cluster.pods().delete(name, &now).await.unwrap();
    }
    // What the daemon has begun outlives it.
    fs::remove_file(dir.join("hold")).unwrap();
    all("done").await;
    cluster.node.restart(&cluster.host).unwrap();
    for (name, uid) in names.iter().zip(&uids) {
        match name.ends_with("kept") {
            true => drop(cluster.until_ready(name).await),
            false => cluster.until_removed(uid).await,
        }
    }
    let left = mounts(&dir);
    assert!(!left.iter().any(|point| point.ends_with("gone")), "{left:?}");
    assert_eq!(left.len(), 4, "each disk is mounted once, and once for its pod: {left:?}");
    for (name, uid) in names.iter().zip(&uids).filter(|(name, _)| name.ends_with("kept")) {
        cluster.delete(name).await;
        cluster.until_removed(uid).await;
    }
    until_unmounted(&dir).await;
    cluster.host.assert_clean();
}
