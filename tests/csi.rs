//! Volumes of a test CSI driver, as seen by containers, on a real containerd.

use crate::common;

use std::fs;
use std::time::Duration;

use common::csi::{
    DRIVER, calls, cluster, driver, make, no_attach, until_called, until_unstaged, volume,
    volumes_in_use, with_claim,
};
use common::{Cluster, FOREVER, TIMEOUT, script, uid};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::api::{Api, ListParams, Patch, PatchParams};
use longshore_csi::Code;
use longshore_csi::v1::node_service_capability::rpc::Type;
use longshore_testkit::csi::CsiOptions;
use longshore_testkit::fakecri::Fault;
use longshore_testkit::wait_until;
use serde_json::{Value, json};

#[tokio::test]
async fn csi_volume_is_staged_published_shared_and_unmounted() {
    let (cluster, driver) = cluster(CsiOptions::new(DRIVER), no_attach()).await;
    volume(&cluster, "pv", json!({"csi": {"volumeAttributes": {"tier": "gold"}}})).await;
    let mut spec = with_claim(
        "pv",
        "echo -n from-inside > /data/file; id -G > /data/groups; trap 'exit 0' TERM; while true; do sleep 1000 & wait $!; done",
    );
    spec["securityContext"] = json!({"fsGroup": 4711});
    cluster.create("first", spec).await;
    let first = cluster.until_ready("first").await;
    cluster.create("second", with_claim("pv", &format!("cat /data/file; {FOREVER}"))).await;
    let second = cluster.until_ready("second").await;
    assert_eq!(calls(&driver), ["NodeStageVolume", "NodePublishVolume", "NodePublishVolume"]);
    assert_eq!(volumes_in_use(&cluster).await, Vec::<String>::new(), "nobody attaches it");
    let content = driver.volume("handle-of-pv").join("file");
    assert_eq!(fs::read_to_string(content).unwrap(), "from-inside");

    let publish = &driver.publishes()[0];
    let context = |key: &str| publish.volume_context.get(key).map(String::as_str);
    assert_eq!(context("tier"), Some("gold"));
    assert_eq!(context("csi.storage.k8s.io/pod.name"), Some("first"));
    assert_eq!(context("csi.storage.k8s.io/pod.uid"), Some(uid(&first).as_str()));
    assert_eq!(context("csi.storage.k8s.io/ephemeral"), Some("false"));
    assert!(publish.staging_target_path.ends_with("/globalmount"), "{publish:?}");

    for (name, pod) in [("first", &first), ("second", &second)] {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
        cluster.until_removed(&uid(pod)).await;
    }
    until_called(&driver, "NodeUnstageVolume", 1).await;
    assert_eq!(
        calls(&driver)[3..],
        ["NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
    );
    until_unstaged(&cluster).await;
    drop(driver);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn csi_volume_waits_for_its_attachment() {
    let (cluster, driver) = cluster(CsiOptions::new(DRIVER), Value::Null).await;
    volume(&cluster, "pv", json!({})).await;
    cluster.create("web", with_claim("pv", FOREVER)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(calls(&driver), Vec::<String>::new(), "nothing is done before it is attached");
    let unique = format!("kubernetes.io/csi/{DRIVER}^handle-of-pv");
    assert_eq!(volumes_in_use(&cluster).await, [unique]);
    let name = attachment("handle-of-pv", DRIVER, &cluster.host.name());
    let attachments: Api<VolumeAttachment> = Api::all(cluster.client.clone());
    wait_until(TIMEOUT, "the cluster asks for the attachment", async || {
        attachments.get(&name).await.map(drop)
    })
    .await
    .unwrap();
    let status = json!({"status": {"attached": true, "attachmentMetadata": {"device": "/dev/x"}}});
    attachments.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    cluster.until_ready("web").await;
    let expected = [("device".to_owned(), "/dev/x".to_owned())].into();
    assert_eq!(driver.stages()[0].publish_context, expected);
    assert_eq!(driver.publishes()[0].publish_context, expected);
    cluster.delete("web").await;
    cluster.until_gone("web").await;
    until_called(&driver, "NodeUnstageVolume", 1).await;
    drop(driver);
    cluster.host.assert_clean();
}

fn attachment(handle: &str, driver: &str, node: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{handle}{driver}{node}"));
    format!("csi-{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Attaches what the cluster has asked to be attached under that name, as an attacher does.
async fn attach(cluster: &Cluster, name: &str) -> VolumeAttachment {
    let attachments: Api<VolumeAttachment> = Api::all(cluster.client.clone());
    wait_until(TIMEOUT, "the cluster asks for the attachment", async || {
        attachments.get(name).await.map(drop)
    })
    .await
    .unwrap();
    let status = Patch::Merge(json!({"status": {"attached": true}}));
    attachments.patch_status(name, &PatchParams::default(), &status).await.unwrap()
}

#[tokio::test]
async fn csi_migrated_volumes_use_the_driver() {
    const AWS: &str = "ebs.csi.aws.com";
    let cluster = Cluster::start_with_volumes(json!({})).await;
    let source = json!({"volumeID": "aws://eu-west-1a/vol-1", "fsType": "ext4"});
    volume(&cluster, "pv", json!({"csi": null, "awsElasticBlockStore": source})).await;
    let write = |text: &str| format!("echo -n {text} > /data/file; {FOREVER}");
    cluster.create("claims", with_claim("pv", &write("claimed"))).await;
    let mut spec = script(&write("described"));
    spec["volumes"] =
        json!([{"name": "data", "awsElasticBlockStore": {"volumeID": "vol-2", "partition": 1}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    cluster.create("describes", spec).await;
    for volume in ["pv", "ebs.csi.aws.com-vol-2"] {
        let message = format!(
            "MountVolume.SetUp failed for volume {volume:?} : driver name {AWS} not found in the list of registered CSI drivers"
        );
        cluster.until_event("FailedMount", &message).await;
    }

    let driver = driver(&cluster, CsiOptions::new(AWS));
    let node = cluster.host.name();
    let attached = attach(&cluster, &attachment("vol-1", AWS, &node)).await.spec;
    assert_eq!((attached.attacher.as_str(), attached.node_name), (AWS, node.clone()));
    assert_eq!(attached.source.persistent_volume_name.as_deref(), Some("pv"));
    let attached = attach(&cluster, &attachment("vol-2", AWS, &node)).await.spec;
    let inline = attached.source.inline_volume_spec.unwrap();
    assert_eq!(inline.access_modes, Some(vec!["ReadWriteOnce".to_owned()]));
    assert_eq!(inline.csi.unwrap().volume_handle, "vol-2");
    let pods = [cluster.until_ready("claims").await, cluster.until_ready("describes").await];
    for (handle, content) in [("vol-1", "claimed"), ("vol-2", "described")] {
        let file = driver.volume(handle).join("file");
        wait_until(TIMEOUT, "the container has written", async || {
            match fs::read_to_string(&file) {
                Ok(found) if found == content => Ok(()),
                found => Err(format!("{found:?}")),
            }
        })
        .await
        .unwrap();
    }
    let mut stages = driver.stages();
    stages.sort_by(|one, other| one.volume_id.cmp(&other.volume_id));
    let partitions = stages.iter().map(|stage| stage.volume_context["partition"].as_str());
    assert_eq!(partitions.collect::<Vec<_>>(), ["0", "1"]);
    let mut in_use = volumes_in_use(&cluster).await;
    in_use.sort();
    assert_eq!(
        in_use,
        ["vol-1", "vol-2"].map(|handle| format!("kubernetes.io/csi/{AWS}^{handle}"))
    );

    for (name, pod) in ["claims", "describes"].iter().zip(&pods) {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
        cluster.until_removed(&uid(pod)).await;
    }
    until_called(&driver, "NodeUnstageVolume", 2).await;
    let attachments: Api<VolumeAttachment> = Api::all(cluster.client.clone());
    wait_until(TIMEOUT, "the volumes are detached", async || {
        match attachments.list(&ListParams::default()).await {
            Ok(left) if left.items.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await
    .unwrap();
    drop(driver);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn csi_inline_volume_has_the_lifetime_of_its_pod() {
    let (cluster, driver) = cluster(CsiOptions::new(DRIVER), no_attach()).await;
    let mut spec = script(&format!("echo -n inline > /data/file; {FOREVER}"));
    spec["volumes"] =
        json!([{"name": "data", "csi": {"driver": DRIVER, "volumeAttributes": {"a": "b"}}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    cluster.create("web", spec).await;
    let pod = cluster.until_ready("web").await;
    assert_eq!(calls(&driver), ["NodePublishVolume"], "nobody else has it, so it is not staged");
    let publish = &driver.publishes()[0];
    assert!(publish.volume_id.starts_with("csi-"), "{publish:?}");
    assert_eq!(publish.volume_context["csi.storage.k8s.io/ephemeral"], "true");
    assert_eq!(publish.volume_context["a"], "b");
    let content = driver.volume(&publish.volume_id).join("file");
    assert_eq!(fs::read_to_string(content).unwrap(), "inline");
    cluster.delete("web").await;
    cluster.until_gone("web").await;
    cluster.until_removed(&uid(&pod)).await;
    assert_eq!(calls(&driver), ["NodePublishVolume", "NodeUnpublishVolume"]);
    drop(driver);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn csi_block_volume_is_mapped() {
    let options = CsiOptions::new(DRIVER).with([Type::StageUnstageVolume]);
    let (cluster, driver) = cluster(options, no_attach()).await;
    volume(&cluster, "pv", json!({"volumeMode": "Block"})).await;
    let mut spec = script(&format!(
        "test -b /dev/disk && echo -n raw | dd of=/dev/disk conv=fsync && {FOREVER}"
    ));
    spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "pv"}}]);
    spec["containers"][0]["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/disk"}]);
    cluster.create("web", spec).await;
    let pod = cluster.until_ready("web").await;
    let image = driver.volume("handle-of-pv").with_extension("img");
    wait_until(TIMEOUT, "what the container wrote is on the device", async || {
        match fs::read(&image).map(|data| data.starts_with(b"raw")) {
            Ok(true) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    cluster.delete("web").await;
    cluster.until_gone("web").await;
    cluster.until_removed(&uid(&pod)).await;
    until_called(&driver, "NodeUnstageVolume", 1).await;
    assert_eq!(
        calls(&driver),
        ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
    );
    drop(driver);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn csi_driver_outage_delays_only_its_pods() {
    let cluster = Cluster::start_with_volumes(json!({})).await;
    make::<CSIDriver>(&cluster, DRIVER, json!({"spec": no_attach()})).await;
    volume(&cluster, "pv", json!({})).await;
    cluster.create("waits", with_claim("pv", FOREVER)).await;
    cluster.until_event("FailedMount", "not found in the list of registered CSI drivers").await;
    let driver = driver(&cluster, CsiOptions::new(DRIVER));
    driver.inject("NodePublishVolume", Fault::Hang);
    until_called(&driver, "NodePublishVolume", 1).await;
    cluster.create("other", script(FOREVER)).await;
    cluster.until_ready("other").await;
    driver.release("NodePublishVolume");
    cluster.until_ready("waits").await;

    // A rejection has the driver's message.
    volume(&cluster, "bad", json!({})).await;
    let refusal = Fault::Error(Code::Internal, "no such disk".to_owned());
    driver.inject("NodeStageVolume", refusal);
    cluster.create("refused", with_claim("bad", FOREVER)).await;
    cluster.until_event("FailedMount", "rpc error: code = Internal desc = no such disk").await;
    driver.release("NodeStageVolume");
    cluster.until_ready("refused").await;
    for name in ["waits", "refused", "other"] {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
    }
    until_called(&driver, "NodeUnstageVolume", 2).await;
    drop(driver);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn csi_operations_continue_after_a_kill() {
    let (mut cluster, driver) = cluster(CsiOptions::new(DRIVER), no_attach()).await;
    volume(&cluster, "pv", json!({})).await;
    // Between staging and publishing.
    driver.inject("NodePublishVolume", Fault::HangReply);
    cluster.create("web", with_claim("pv", &format!("echo -n x > /data/file; {FOREVER}"))).await;
    until_called(&driver, "NodePublishVolume", 1).await;
    cluster.node.daemon().kill().unwrap();
    driver.release("NodePublishVolume");
    cluster.node.restart(&cluster.host).unwrap();
    let pod = cluster.until_ready("web").await;
    assert_eq!(driver.count("NodeStageVolume"), 1, "what is staged stays so");
    // While it runs: nothing is asked of the driver again.
    let published = driver.count("NodePublishVolume");
    cluster.node.restart(&cluster.host).unwrap();
    cluster.node_ready().await.ok();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(driver.count("NodePublishVolume"), published);
    // Between unpublishing and unstaging.
    driver.inject("NodeUnstageVolume", Fault::Hang);
    cluster.delete("web").await;
    cluster.until_gone("web").await;
    until_called(&driver, "NodeUnstageVolume", 1).await;
    cluster.node.daemon().kill().unwrap();
    driver.release("NodeUnstageVolume");
    cluster.node.restart(&cluster.host).unwrap();
    until_called(&driver, "NodeUnstageVolume", 2).await;
    cluster.until_removed(&uid(&pod)).await;
    until_unstaged(&cluster).await;
    drop(driver);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn csi_node_reports_its_drivers() {
    let mut options = CsiOptions::new(DRIVER);
    options.max_volumes = 7;
    options.topology = [("topology.csi.example.com/rack".to_owned(), "r1".to_owned())].into();
    let (cluster, mut driver) = cluster(options, Value::Null).await;
    let csi_nodes: Api<CSINode> = Api::all(cluster.client.clone());
    let csi_node = csi_nodes.get(&cluster.host.name()).await.unwrap();
    let entry = &csi_node.spec.drivers[0];
    assert_eq!(entry.node_id, format!("{DRIVER}-node"));
    assert_eq!(entry.allocatable.as_ref().unwrap().count, Some(7));
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = nodes.get(&cluster.host.name()).await.unwrap();
    assert_eq!(node.metadata.labels.unwrap()["topology.csi.example.com/rack"], "r1");
    let ids = &node.metadata.annotations.unwrap()["csi.volume.kubernetes.io/nodeid"];
    assert_eq!(*ids, format!("{{\"{DRIVER}\":\"{DRIVER}-node\"}}"));
    driver.withdraw().unwrap();
    wait_until(TIMEOUT, "the driver is forgotten", async || {
        let csi_node = csi_nodes.get(&cluster.host.name()).await.map_err(|e| e.to_string())?;
        if csi_node.spec.drivers.is_empty() { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await
    .unwrap();
    drop(driver);
    cluster.host.assert_clean();
}
