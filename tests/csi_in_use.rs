//! CSI volumes in use: stats, expansion, and the volume limit of the node; on a real containerd.

use crate::common;

use std::time::Duration;

use common::csi::{DRIVER, cluster_with, make, no_attach, until_called, volume, with_claim};
use common::{Cluster, FOREVER, TIMEOUT, get_json, get_text, run_of, script};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass};
use kube::api::{Api, Patch, PatchParams};
use longshore_csi::Code;
use longshore_csi::v1::node_service_capability::rpc::Type;
use longshore_csi::v1::volume_usage::Unit;
use longshore_csi::v1::{VolumeCondition, VolumeUsage};
use longshore_testkit::csi::{CsiDriver, CsiOptions};
use longshore_testkit::fakecri::Fault;
use longshore_testkit::wait_until;
use serde_json::{Value, json};

async fn end(cluster: Cluster, driver: CsiDriver, pods: &[&str]) {
    for pod in pods {
        cluster.delete(pod).await;
        cluster.until_gone(pod).await;
    }
    until_called(&driver, "NodeUnstageVolume", pods.len()).await;
    drop(driver);
    cluster.host.assert_clean();
}

/// What the summary says of the volume `data` of a pod.
async fn volume_stats(cluster: &Cluster, pod: &str) -> Result<Value, String> {
    let summary = get_json(cluster.host.node_ip(), "/stats/summary").await?;
    let pods = summary["pods"].as_array().cloned().unwrap_or_default();
    let own = pods.into_iter().find(|known| known["podRef"]["name"] == pod);
    let volumes = own.and_then(|own| own["volume"].as_array().cloned()).unwrap_or_default();
    let found = volumes.into_iter().find(|volume| volume["name"] == "data");
    found.ok_or_else(|| summary["pods"].to_string())
}

async fn until_stats(cluster: &Cluster, pod: &str, expected: &Value) {
    wait_until(TIMEOUT, &format!("the summary shows {pod}'s volume"), async || {
        let volume = volume_stats(cluster, pod).await?;
        let differs = |(key, value): (&String, &Value)| volume[key] != *value;
        match expected.as_object().unwrap().iter().any(differs) {
            false => Ok(()),
            true => Err(volume.to_string()),
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn csi_volume_stats_and_condition_are_reported() {
    let able = [Type::StageUnstageVolume, Type::GetVolumeStats, Type::VolumeCondition];
    let usage = |unit: Unit, total, used, available| VolumeUsage {
        unit: unit.into(),
        total,
        used,
        available,
    };
    let options = CsiOptions {
        usage: Some(vec![usage(Unit::Bytes, 1000, 400, 500), usage(Unit::Inodes, 10, 3, 7)]),
        ..CsiOptions::new(DRIVER).with(able)
    };
    let config = json!({
        "readOnlyPort": 10255, "volumeStatsAggPeriod": "2s",
        "featureGates": {"CSIVolumeHealth": true},
    });
    let (cluster, driver) = cluster_with(config, options, no_attach()).await;
    volume(&cluster, "pv", json!({})).await;
    volume(&cluster, "raw", json!({"volumeMode": "Block"})).await;
    cluster.create("web", with_claim("pv", FOREVER)).await;
    let mut spec = script(FOREVER);
    spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "raw"}}]);
    spec["containers"][0]["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/disk"}]);
    cluster.create("raw", spec).await;
    for pod in ["web", "raw"] {
        cluster.until_ready(pod).await;
    }
    let expected = json!({
        "pvcRef": {"name": "pv", "namespace": "default"}, "capacityBytes": 1000, "usedBytes": 400,
        "availableBytes": 500, "inodes": 10, "inodesUsed": 3, "inodesFree": 7,
        "volumeHealthStats": {"abnormal": false},
    });
    until_stats(&cluster, "web", &expected).await;
    driver.change(|options| options.usage = None);
    let expected =
        json!({"pvcRef": {"name": "raw", "namespace": "default"}, "capacityBytes": 1 << 20});
    until_stats(&cluster, "raw", &expected).await;

    driver.change(|options| {
        options.condition = VolumeCondition { abnormal: true, message: "disk is slow".to_owned() };
        options.usage = Some(vec![usage(Unit::Bytes, 1000, 600, 300)]);
    });
    // Nobody requests stats meanwhile.
    cluster.until_event("VolumeConditionAbnormal", "Volume data: disk is slow").await;
    let metrics = async || get_text(cluster.host.node_ip(), "/metrics").await;
    let expected = [("used_bytes", 600), ("capacity_bytes", 1000), ("health_status_abnormal", 1)]
        .map(|(family, value)| {
            let labels = r#"namespace="default",persistentvolumeclaim="pv""#;
            format!("kubelet_volume_stats_{family}{{{labels}}} {value}")
        });
    wait_until(TIMEOUT, "the metrics show the calls of the driver", async || {
        let page = metrics().await?;
        let lines = page.lines().filter(|line| line.starts_with("kubelet_volume_stats"));
        let lines: Vec<_> = lines.map(str::to_owned).collect();
        match expected.iter().all(|line| lines.contains(line)) {
            true => Ok(()),
            false => Err(lines.join("\n")),
        }
    })
    .await
    .unwrap();

    // A hanging driver delays no other, and the last stats are reported.
    driver.inject("NodeGetVolumeStats", Fault::Hang);
    let before = driver.count("NodeGetVolumeStats");
    tokio::time::sleep(Duration::from_secs(3)).await;
    for _ in 0..3 {
        let volume = volume_stats(&cluster, "web").await.unwrap();
        assert_eq!(volume["usedBytes"], 600);
    }
    let requests = driver.count("NodeGetVolumeStats") - before;
    assert!(requests <= 2, "each volume is requested once: {requests}");
    driver.release("NodeGetVolumeStats");
    end(cluster, driver, &["web", "raw"]).await;
}

#[tokio::test]
async fn csi_volume_is_expanded_online() {
    let options = CsiOptions::new(DRIVER).with([Type::StageUnstageVolume, Type::ExpandVolume]);
    let config = json!({"syncFrequency": "1s"});
    let (cluster, driver) = cluster_with(config, options, no_attach()).await;
    let class = json!({"provisioner": DRIVER, "allowVolumeExpansion": true});
    make::<StorageClass>(&cluster, "grows", class).await;
    volume(&cluster, "pv", json!({"storageClassName": "grows"})).await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let merge = |patch: Value| Patch::Merge(patch);
    let params = PatchParams::default();
    let group = json!({"metadata": {"annotations": {"pv.beta.kubernetes.io/gid": "4712"}}});
    volumes.patch("pv", &params, &merge(group)).await.unwrap();
    let text = format!("id -G | tr ' ' '\\n' | grep -qx 4712 && {FOREVER}");
    cluster.create("web", with_claim("pv", &text)).await;
    let before = run_of(&cluster.until_ready("web").await);
    assert_eq!(driver.count("NodeExpandVolume"), 0);

    // As the user, and then the driver's controller.
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "default");
    let request = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    claims.patch("pv", &params, &merge(request)).await.unwrap();
    let grown = json!({"spec": {"capacity": {"storage": "2Gi"}}});
    volumes.patch("pv", &params, &merge(grown)).await.unwrap();
    let pending = json!({"status": {
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
    }});
    claims.patch_status("pv", &params, &merge(pending)).await.unwrap();
    cluster.until_event("FileSystemResizeSuccessful", "MountVolume.NodeExpandVolume").await;
    wait_until(TIMEOUT, "the claim is updated", async || {
        let claim = claims.get("pv").await.map_err(|error| error.to_string())?;
        let status = claim.status.unwrap_or_default();
        let capacity = status.capacity.clone().unwrap_or_default();
        let size = capacity.get("storage").map(|size| size.0.as_str());
        let is_done = size == Some("2Gi")
            && status.conditions.iter().flatten().next().is_none()
            && status.allocated_resource_statuses.iter().flatten().next().is_none();
        if is_done { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await
    .unwrap();
    let expansions = driver.expansions();
    assert_eq!(expansions.len(), 1);
    assert_eq!(expansions[0].capacity_range.unwrap().required_bytes, 2 << 30);
    assert_eq!(run_of(&cluster.pod("web").await), before, "it runs on");
    end(cluster, driver, &["web"]).await;
}

#[tokio::test]
async fn csi_node_reports_the_volume_limit() {
    let mut object = no_attach();
    object["nodeAllocatableUpdatePeriodSeconds"] = json!(3600);
    let options = CsiOptions { max_volumes: 7, ..CsiOptions::new(DRIVER) };
    let (cluster, driver) = cluster_with(json!({}), options, object).await;
    let until_room = async |expected: i32| {
        let csi_nodes: Api<CSINode> = Api::all(cluster.client.clone());
        wait_until(TIMEOUT, &format!("the limit is {expected}"), async || {
            let csi_node = csi_nodes.get(&cluster.host.name()).await.map_err(|e| e.to_string())?;
            let driver = csi_node.spec.drivers.first();
            match driver.and_then(|driver| driver.allocatable.as_ref()?.count) {
                Some(count) if count == expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
    };
    until_room(7).await;
    // At once where it turns out that there is less...
    driver.change(|options| options.max_volumes = 3);
    let full = Fault::Error(Code::ResourceExhausted, "no slot is free".to_owned());
    driver.inject("NodePublishVolume", full);
    volume(&cluster, "pv", json!({})).await;
    cluster.create("web", with_claim("pv", FOREVER)).await;
    cluster.until_event("FailedMount", "no slot is free").await;
    until_room(3).await;
    driver.release("NodePublishVolume");
    cluster.until_ready("web").await;
    // ...and from time to time, as often as the driver's object says by now.
    driver.change(|options| options.max_volumes = 5);
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let patch = Patch::Merge(json!({"spec": {"nodeAllocatableUpdatePeriodSeconds": 10}}));
    drivers.patch(DRIVER, &PatchParams::default(), &patch).await.unwrap();
    until_room(5).await;
    end(cluster, driver, &["web"]).await;
}
