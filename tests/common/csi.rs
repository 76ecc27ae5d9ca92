//! A CSI driver of our own in a cluster, and volumes of it.

use std::fs;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::Resource;
use kube::api::{Api, Patch, PatchParams, PostParams};
use longshore_testkit::csi::{CsiDriver, CsiOptions};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

use super::{Cluster, TIMEOUT, script};

pub const DRIVER: &str = "csi.example.com";

/// A cluster with a driver whose volumes need no attachment.
pub async fn cluster(options: CsiOptions, object: Value) -> (Cluster, CsiDriver) {
    cluster_with(json!({}), options, object).await
}

/// The same with these fields in the node's configuration.
pub async fn cluster_with(
    config: Value,
    options: CsiOptions,
    object: Value,
) -> (Cluster, CsiDriver) {
    let cluster = Cluster::start_with_volumes(config).await;
    let name = options.name.clone();
    let driver = driver(&cluster, options);
    if object.is_object() {
        make::<CSIDriver>(&cluster, &name, json!({"spec": object})).await;
    }
    until_registered(&cluster, &name).await;
    (cluster, driver)
}

pub fn driver(cluster: &Cluster, options: CsiOptions) -> CsiDriver {
    let registry = cluster.node.root_dir().join("plugins_registry");
    CsiDriver::start(options, &cluster.host.dir().join("csi"), &registry).unwrap()
}

/// Until the cluster knows of the driver of that name.
pub async fn until_registered(cluster: &Cluster, name: &str) {
    let csi_nodes: Api<CSINode> = Api::all(cluster.client.clone());
    wait_until(TIMEOUT, "the driver is in the CSINode", async || {
        let csi_node = csi_nodes.get(&cluster.host.name()).await.map_err(|e| e.to_string())?;
        match csi_node.spec.drivers.iter().any(|driver| driver.name == name) {
            true => Ok(()),
            false => Err(format!("{:?}", csi_node.spec.drivers)),
        }
    })
    .await
    .unwrap();
}

pub async fn make<K>(cluster: &Cluster, name: &str, fields: Value) -> K
where
    K: Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + serde::Serialize
        + std::fmt::Debug,
{
    let mut object = fields;
    object["metadata"]["name"] = json!(name);
    let object: K = serde_json::from_value(object).unwrap();
    Api::<K>::all(cluster.client.clone()).create(&PostParams::default(), &object).await.unwrap()
}

/// A volume of the driver and a claim that is bound to it, both of that name.
pub async fn volume(cluster: &Cluster, name: &str, spec: Value) {
    let mut claim = json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeName": name, "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    for field in ["volumeMode", "storageClassName"] {
        if !spec[field].is_null() {
            claim["spec"][field] = spec[field].clone();
        }
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "default");
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let claim = claims.create(&PostParams::default(), &claim).await.unwrap();
    let mut persistent = json!({"spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
        "csi": {"driver": DRIVER, "volumeHandle": format!("handle-of-{name}"), "fsType": "ext4"},
        "claimRef": {"namespace": "default", "name": name, "uid": claim.metadata.uid},
    }});
    json_merge(&mut persistent["spec"], spec);
    make::<PersistentVolume>(cluster, name, persistent).await;
    let bound = json!({"status": {
        "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
    }});
    let patch = Patch::Merge(bound);
    claims.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

pub fn json_merge(object: &mut Value, fields: Value) {
    for (key, value) in fields.as_object().unwrap() {
        match &mut object[key] {
            known @ Value::Object(_) if value.is_object() => json_merge(known, value.clone()),
            known => *known = value.clone(),
        }
    }
}

/// A pod whose container runs a script with the claim at `/data`.
pub fn with_claim(claim: &str, text: &str) -> Value {
    let mut spec = script(text);
    spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    spec
}

pub fn no_attach() -> Value {
    json!({"attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File",
           "volumeLifecycleModes": ["Persistent", "Ephemeral"]})
}

/// The calls about volumes, without those that ask what the driver can do.
pub fn calls(driver: &CsiDriver) -> Vec<String> {
    let calls = driver.calls().into_iter().map(|(method, _)| method);
    calls.filter(|method| method != "NodeGetCapabilities").collect()
}

pub async fn until_called(driver: &CsiDriver, method: &str, times: usize) {
    wait_until(TIMEOUT, &format!("{method} is called"), async || match driver.count(method) {
        count if count >= times => Ok(()),
        count => Err(count.to_string()),
    })
    .await
    .unwrap();
}

pub fn staged(cluster: &Cluster) -> PathBuf {
    cluster.node.root_dir().join("plugins/kubernetes.io/csi").join(DRIVER)
}

/// Until nothing of the driver's volumes is left there.
pub async fn until_unstaged(cluster: &Cluster) {
    wait_until(TIMEOUT, "the volume is unstaged", async || {
        match fs::read_dir(staged(cluster)).map(Iterator::count) {
            Ok(0) | Err(_) => Ok(()),
            Ok(left) => Err(left.to_string()),
        }
    })
    .await
    .unwrap();
}

/// The volumes that the node's status says are in use.
pub async fn volumes_in_use(cluster: &Cluster) -> Vec<String> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = nodes.get(&cluster.host.name()).await.unwrap();
    node.status.and_then(|status| status.volumes_in_use).unwrap_or_default()
}
