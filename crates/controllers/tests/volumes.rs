//! The controllers of volumes over a real apiserver.

use crate::common;

use std::fmt::Debug;
use std::path::Path;

use common::{Cluster, eventually};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const BINDER: &str = "persistentvolume-binder-controller";
const ATTACHER: &str = "persistentvolume-attach-detach-controller";
const PROTECTION: [&str; 2] =
    ["persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller"];
const EPHEMERAL: &str = "ephemeral-volume-controller";

/// What a test needs of an API.
trait Own: kube::Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug {}
impl<K: kube::Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug> Own for K {}

async fn make<K: Own>(api: &Api<K>, object: Value) {
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

async fn merge<K: Own>(api: &Api<K>, name: &str, patch: Value) {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn merge_status<K: Own>(api: &Api<K>, name: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Until what is at the path of the object is this.
async fn until<K: Own>(api: &Api<K>, name: &str, path: &str, wanted: impl Into<Value>) {
    let wanted = wanted.into();
    let get = async || match api.get_opt(name).await.unwrap() {
        Some(object) => {
            serde_json::to_value(object).unwrap().pointer(path).cloned().unwrap_or_default()
        }
        None => "no such object".into(),
    };
    eventually(&format!("{name}{path} {wanted}"), get, |found| *found == wanted).await;
}

async fn until_gone<K: Own>(api: &Api<K>, name: &str) {
    let get = async || api.get_opt(name).await.unwrap();
    eventually(&format!("no {name}"), get, Option::is_none).await;
}

/// Until there is an event about the object; its message.
async fn event(cluster: &Cluster, name: &str, reason: &str) -> String {
    let list = async || {
        let events = cluster.api::<Event>("default").list(&ListParams::default()).await.unwrap();
        let own = events.items.into_iter().find(|event| {
            event.involved_object.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
        });
        own.and_then(|event| event.message)
    };
    let found = eventually(&format!("{reason} of {name}"), list, Option::is_some).await;
    found.unwrap_or_default()
}

fn volume(name: &str, size: &str, spec: Value) -> Value {
    let mut volume = json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "hostPath": {"path": "/tmp/longshore-none"},
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        volume["spec"][key] = value.clone();
    }
    volume
}

fn claim(name: &str, class: &str, spec: Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": class,
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        claim["spec"][key] = value.clone();
    }
    claim
}

fn class(name: &str, provisioner: &str, mode: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
    })
}

/// A pod with one volume.
async fn user(cluster: &Cluster, name: &str, node: &str, volume: Value) {
    let mut volume = volume;
    volume["name"] = "v".into();
    let spec = json!({"volumes": [volume]});
    cluster.pod_with("default", name, node, json!({}), spec).await;
}

fn of_claim(name: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": name}})
}

async fn force_delete(cluster: &Cluster, pod: &str) {
    let params = DeleteParams::default().grace_period(0);
    cluster.api::<Pod>("default").delete(pod, &params).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_lifecycle_bind_protect_release() {
    let cluster = Cluster::start(&[BINDER, PROTECTION[0], PROTECTION[1]], |_| {}).await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let claims = cluster.api::<PersistentVolumeClaim>("default");
    make(&volumes, volume("big", "10Gi", json!({}))).await;
    make(&volumes, volume("small", "2Gi", json!({}))).await;
    for name in ["big", "small"] {
        until(&volumes, name, "/status/phase", "Available").await;
    }
    make(&claims, claim("data", "", json!({}))).await;
    until(&claims, "data", "/status/phase", "Bound").await;
    until(&claims, "data", "/spec/volumeName", "small").await;
    until(&claims, "data", "/status/capacity/storage", "2Gi").await;
    until(&volumes, "small", "/status/phase", "Bound").await;

    // In use, it stays though it is deleted, and so does what holds its data.
    user(&cluster, "user", "n1", of_claim("data")).await;
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    volumes.delete("small", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(claims.get("data").await.unwrap().metadata.deletion_timestamp.is_some());
    assert!(volumes.get("small").await.unwrap().metadata.deletion_timestamp.is_some());
    force_delete(&cluster, "user").await;
    until_gone(&claims, "data").await;
    until_gone(&volumes, "small").await;

    // A retained volume is kept until an administrator releases it.
    make(&claims, claim("data", "", json!({}))).await;
    until(&claims, "data", "/status/phase", "Bound").await;
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    until(&volumes, "big", "/status/phase", "Released").await;
    merge(&volumes, "big", json!({"spec": {"claimRef": null}})).await;
    until(&volumes, "big", "/status/phase", "Available").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn binding_of_many_claims_gives_each_its_own_volume() {
    let cluster = Cluster::start(&[BINDER], |_| {}).await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let claims = cluster.api::<PersistentVolumeClaim>("default");
    let names: Vec<String> = (0..20).map(|number| format!("x{number}")).collect();
    for name in &names {
        make(&volumes, volume(name, "1Gi", json!({}))).await;
        make(&claims, claim(name, "", json!({}))).await;
    }
    let list = async || {
        let all = claims.list(&ListParams::default()).await.unwrap().items;
        let bound = all.iter().filter(|claim| {
            claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        });
        bound.filter_map(|claim| claim.spec.clone()?.volume_name).collect::<Vec<_>>()
    };
    let mut bound = eventually("all bound", list, |bound| bound.len() == names.len()).await;
    bound.sort();
    bound.dedup();
    assert_eq!(bound.len(), names.len(), "no volume has two claims");
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_prebinding_both_ways_and_loss() {
    let cluster = Cluster::start(&[BINDER], |_| {}).await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let claims = cluster.api::<PersistentVolumeClaim>("default");
    let meant = json!({"claimRef": {"namespace": "default", "name": "data"}});
    make(&volumes, volume("meant", "9Gi", meant)).await;
    make(&volumes, volume("other", "1Gi", json!({}))).await;
    until(&volumes, "meant", "/status/phase", "Available").await;
    make(&claims, claim("data", "", json!({}))).await;
    until(&claims, "data", "/spec/volumeName", "meant").await;
    make(&claims, claim("asks", "", json!({"volumeName": "late"}))).await;
    make(&volumes, volume("late", "500Mi", json!({}))).await;
    let message = event(&cluster, "asks", "VolumeMismatch").await;
    assert_eq!(message, "Cannot bind to requested volume \"late\": requested PV is too small");
    merge(&volumes, "late", json!({"spec": {"capacity": {"storage": "1Gi"}}})).await;
    until(&claims, "asks", "/status/phase", "Bound").await;
    // The volume is lost: nothing brings it back.
    volumes.delete("late", &DeleteParams::default()).await.unwrap();
    merge(&volumes, "late", json!({"metadata": {"finalizers": null}})).await;
    until(&claims, "asks", "/status/phase", "Lost").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn provisioning_waits_for_consumer_and_default_class() {
    let cluster = Cluster::start(&[BINDER], |_| {}).await;
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let claims = cluster.api::<PersistentVolumeClaim>("default");
    let mut plain = claim("plain", "", json!({}));
    plain["spec"].as_object_mut().unwrap().remove("storageClassName");
    make(&claims, plain).await;
    event(&cluster, "plain", "FailedBinding").await;
    make(&classes, class("late", "csi.example.com", "WaitForFirstConsumer")).await;
    let mark = json!({"metadata": {"annotations":
        {"storageclass.kubernetes.io/is-default-class": "true"}}});
    merge(&classes, "late", mark).await;
    // A class becomes the default after the claim was created.
    until(&claims, "plain", "/spec/storageClassName", "late").await;
    let message = event(&cluster, "plain", "WaitForFirstConsumer").await;
    assert_eq!(message, "waiting for first consumer to be created before binding");
    user(&cluster, "user", "", of_claim("plain")).await;
    let message = event(&cluster, "plain", "WaitForPodScheduled").await;
    assert_eq!(message, "waiting for pod user to be scheduled");
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    make(&nodes, json!({"metadata": {"name": "n1"}})).await;
    let selected =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}});
    merge(&claims, "plain", selected).await;
    event(&cluster, "plain", "ExternalProvisioning").await;
    for name in [
        "volume.kubernetes.io~1storage-provisioner",
        "volume.beta.kubernetes.io~1storage-provisioner",
    ] {
        until(&claims, "plain", &format!("/metadata/annotations/{name}"), "csi.example.com").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ephemeral_volumes_have_claims() {
    let controllers = [EPHEMERAL, BINDER, PROTECTION[0], "garbage-collector-controller"];
    let cluster = Cluster::start(&controllers, |_| {}).await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let claims = cluster.api::<PersistentVolumeClaim>("default");
    make(&volumes, volume("v", "1Gi", json!({}))).await;
    let template = json!({"ephemeral": {"volumeClaimTemplate": {
        "metadata": {"labels": {"a": "b"}},
        "spec": claim("", "", json!({}))["spec"],
    }}});
    user(&cluster, "user", "n1", template.clone()).await;
    until(&claims, "user-v", "/status/phase", "Bound").await;
    until(&claims, "user-v", "/metadata/labels/a", "b").await;
    force_delete(&cluster, "user").await;
    until_gone(&claims, "user-v").await;
    // An unrelated claim of that name is not touched.
    make(&claims, claim("user-v", "none", json!({}))).await;
    user(&cluster, "user", "n1", template).await;
    assert_eq!(
        event(&cluster, "user", "FailedBinding").await,
        "ephemeral volume v: PVC default/user-v was not created for pod default/user (pod is not owner)"
    );
}

async fn released(cluster: &Cluster, policy: &str, path: &Path) -> Api<PersistentVolume> {
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let claims = cluster.api::<PersistentVolumeClaim>("default");
    let spec = json!({"persistentVolumeReclaimPolicy": policy, "hostPath": {"path": path}});
    make(&volumes, volume("v", "1Gi", spec)).await;
    make(&claims, claim("data", "", json!({}))).await;
    until(&claims, "data", "/status/phase", "Bound").await;
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    volumes
}

#[tokio::test(flavor = "multi_thread")]
async fn reclaim_delete_of_host_paths_is_opt_in() {
    let data = tempfile::tempdir_in("/tmp").unwrap();
    let path = data.path().join("a");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("file"), "x").unwrap();
    let controllers = [BINDER, PROTECTION[0], PROTECTION[1]];
    for is_allowed in [false, true] {
        let allow = |settings: &mut longshore_controllers::Settings| {
            settings.cluster.enable_hostpath_provisioner = is_allowed;
        };
        let cluster = Cluster::start(&controllers, allow).await;
        let volumes = released(&cluster, "Delete", &path).await;
        if is_allowed {
            until_gone(&volumes, "v").await;
            assert!(!path.exists());
        } else {
            until(&volumes, "v", "/status/phase", "Failed").await;
            event(&cluster, "v", "VolumeFailedDelete").await;
            assert!(path.join("file").exists());
        }
    }
    // A way out of /tmp is not taken.
    let outside = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
    std::fs::write(outside.path().join("file"), "x").unwrap();
    std::os::unix::fs::symlink(outside.path(), data.path().join("link")).unwrap();
    let allow = |settings: &mut longshore_controllers::Settings| {
        settings.cluster.enable_hostpath_provisioner = true;
    };
    let cluster = Cluster::start(&controllers, allow).await;
    let volumes = released(&cluster, "Delete", &data.path().join("link")).await;
    until(&volumes, "v", "/status/phase", "Failed").await;
    assert!(outside.path().join("file").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn reclaim_recycle_runs_a_pod() {
    let cluster = Cluster::start(&[BINDER, PROTECTION[0]], |_| {}).await;
    let volumes = released(&cluster, "Recycle", Path::new("/tmp/longshore-none")).await;
    let pods = cluster.api::<Pod>("default");
    let recycler = "recycler-for-v";
    until(&pods, recycler, "/spec/volumes/0/hostPath/path", "/tmp/longshore-none").await;
    until(&pods, recycler, "/spec/activeDeadlineSeconds", 60).await;
    until(&volumes, "v", "/status/phase", "Released").await;
    let pod = pods.get(recycler).await.unwrap();
    let about =
        json!({"kind": "Pod", "namespace": "default", "name": recycler, "uid": pod.metadata.uid});
    cluster
        .create::<Event>(
            "default",
            json!({"metadata": {"name": "said"}, "involvedObject": about, "reason": "Failed",
                "type": "Warning", "message": "cannot pull"}),
        )
        .await;
    merge_status(&pods, recycler, json!({"phase": "Failed", "message": "no shell"})).await;
    until(&volumes, "v", "/status/message", "Recycle failed: failed to recycle volume: no shell")
        .await;
    until_gone(&pods, recycler).await;
    event(&cluster, "v", "RecyclerPod").await;
    // It is tried again later.
    until(&pods, recycler, "/metadata/name", recycler).await;
    merge_status(&pods, recycler, json!({"phase": "Succeeded"})).await;
    until(&volumes, "v", "/status/phase", "Available").await;
    until(&volumes, "v", "/spec/claimRef", Value::Null).await;
    event(&cluster, "v", "VolumeRecycled").await;
}

async fn attachments(cluster: &Cluster) -> Vec<VolumeAttachment> {
    let api: Api<VolumeAttachment> = Api::all(cluster.client.clone());
    api.list(&ListParams::default()).await.unwrap().items
}

async fn csi_claim(cluster: &Cluster) {
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let claims = cluster.api::<PersistentVolumeClaim>("default");
    let csi = json!({"driver": "csi.example.com", "volumeHandle": "h"});
    let mut object = volume("v", "1Gi", json!({"csi": csi}));
    object["spec"].as_object_mut().unwrap().remove("hostPath");
    make(&volumes, object).await;
    make(&claims, claim("data", "", json!({}))).await;
    until(&claims, "data", "/status/phase", "Bound").await;
}

async fn managed_node(cluster: &Cluster, name: &str) -> Api<Node> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
    make(&nodes, json!({"metadata": {"name": name, "annotations": managed}})).await;
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_detach_follows_pods() {
    let cluster = Cluster::start(&[BINDER, ATTACHER], |_| {}).await;
    let nodes = managed_node(&cluster, "n1").await;
    managed_node(&cluster, "n2").await;
    csi_claim(&cluster).await;
    user(&cluster, "user", "n1", of_claim("data")).await;
    let list = async || attachments(&cluster).await;
    let made = eventually("an attachment", list, |made| made.len() == 1).await;
    let name = "csi-b443ff371db9b71827ff6dcb6a58f7474195968c4317513778b950b8560576b6";
    assert_eq!(made[0].metadata.name.as_deref(), Some(name));
    let api: Api<VolumeAttachment> = Api::all(cluster.client.clone());
    let failed = json!({"attached": false, "attachError": {"message": "no such disk"}});
    merge_status(&api, name, failed).await;
    assert_eq!(
        event(&cluster, "user", "FailedAttachVolume").await,
        "AttachVolume.Attach failed for volume \"v\" : no such disk"
    );
    merge_status(&api, name, json!({"attached": true, "attachError": null})).await;
    until(&nodes, "n1", "/status/volumesAttached/0/name", "kubernetes.io/csi/csi.example.com^h")
        .await;
    event(&cluster, "user", "SuccessfulAttachVolume").await;

    // Another node may not have it at the same time.
    user(&cluster, "second", "n2", of_claim("data")).await;
    assert_eq!(
        event(&cluster, "second", "FailedAttachVolume").await,
        "Multi-Attach error for volume \"v\" Volume is already used by pod(s) user"
    );
    assert_eq!(attachments(&cluster).await.len(), 1);

    // It stays as long as the node has it mounted.
    merge_status(&nodes, "n1", json!({"volumesInUse": ["kubernetes.io/csi/csi.example.com^h"]}))
        .await;
    force_delete(&cluster, "user").await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(attachments(&cluster).await.len(), 1, "the node still has it mounted");
    merge_status(&nodes, "n1", json!({"volumesInUse": []})).await;
    let is_moved = |made: &Vec<VolumeAttachment>| made.len() == 1 && made[0].spec.node_name == "n2";
    eventually("an attachment to the second node", list, is_moved).await;
    until(&nodes, "n1", "/status/volumesAttached", Value::Null).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_detach_takes_volumes_from_nodes_out_of_service() {
    let cluster = Cluster::start(&[BINDER, ATTACHER], |_| {}).await;
    let nodes = managed_node(&cluster, "n1").await;
    csi_claim(&cluster).await;
    user(&cluster, "user", "n1", of_claim("data")).await;
    let list = async || attachments(&cluster).await;
    eventually("an attachment", list, |made| made.len() == 1).await;
    merge_status(&nodes, "n1", json!({"volumesInUse": ["kubernetes.io/csi/csi.example.com^h"]}))
        .await;
    force_delete(&cluster, "user").await;
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
    merge(&nodes, "n1", json!({"spec": {"taints": [taint]}})).await;
    eventually("no attachment", list, Vec::is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_detach_skips_drivers_that_need_no_attachment() {
    let cluster = Cluster::start(&[BINDER, ATTACHER], |_| {}).await;
    managed_node(&cluster, "n1").await;
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let none = json!({"metadata": {"name": "csi.example.com"}, "spec": {"attachRequired": false}});
    make(&drivers, none).await;
    csi_claim(&cluster).await;
    user(&cluster, "user", "n1", of_claim("data")).await;
    // The driver is recreated as one that needs it: now there is one.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(attachments(&cluster).await.is_empty());
    drivers.delete("csi.example.com", &DeleteParams::default()).await.unwrap();
    let list = async || attachments(&cluster).await;
    eventually("an attachment", list, |made| made.len() == 1).await;
}
