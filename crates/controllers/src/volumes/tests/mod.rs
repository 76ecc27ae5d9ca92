//! Tables for the pure rules: each row is a small cluster.

mod attachments;
mod claims;
mod phases;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use longshore_informer::{Object, Store};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::attachdetach::{self, Plan};
use super::binder::{self, ClaimStep, Decision, VolumeStep};
use super::event::VolumeEvent;
use super::objects::{index_claims, index_pods, index_volumes};

/// The objects of a cluster.
struct World {
    volumes: Store<PersistentVolume>,
    claims: Store<PersistentVolumeClaim>,
    classes: Store<StorageClass>,
    drivers: Store<CSIDriver>,
    attachments: Store<VolumeAttachment>,
    nodes: Store<Node>,
    pods: Store<Pod>,
}

fn of_kind<K: Object + DeserializeOwned>(objects: &[Value], kind: &str) -> Store<K> {
    let own = objects.iter().filter(|object| object["kind"] == kind);
    own.map(|object| serde_json::from_value(object.clone()).unwrap()).collect()
}

/// Of objects of the same name the last counts.
fn world(objects: &[Value]) -> World {
    let world = World {
        volumes: of_kind(objects, "PersistentVolume"),
        claims: of_kind(objects, "PersistentVolumeClaim"),
        classes: of_kind(objects, "StorageClass"),
        drivers: of_kind(objects, "CSIDriver"),
        attachments: of_kind(objects, "VolumeAttachment"),
        nodes: of_kind(objects, "Node"),
        pods: of_kind(objects, "Pod"),
    };
    index_volumes(&world.volumes);
    index_claims(&world.claims);
    index_pods(&world.pods);
    attachdetach::index(world.attaching(&[], &BTreeSet::new()));
    world
}

impl World {
    fn binding(&self) -> binder::State<'_> {
        binder::State {
            volumes: &self.volumes,
            claims: &self.claims,
            classes: &self.classes,
            pods: &self.pods,
            provisions: true,
        }
    }

    fn attaching<'a>(
        &'a self,
        created: &'a [VolumeAttachment],
        expired: &'a BTreeSet<String>,
    ) -> attachdetach::State<'a> {
        attachdetach::State {
            volumes: &self.volumes,
            claims: &self.claims,
            drivers: &self.drivers,
            attachments: &self.attachments,
            nodes: &self.nodes,
            pods: &self.pods,
            created,
            expired,
            last_in_use: None,
        }
    }
}

/// What is next for a node.
fn plan(world: &World, node: &str) -> Plan {
    attachdetach::plan_for_node(world.attaching(&[], &BTreeSet::new()), node)
}

/// What is next for the volume `v`.
fn next_volume(objects: &[Value]) -> Decision<VolumeStep> {
    let world = world(objects);
    binder::next_for_volume(world.binding(), &world.volumes.get("v").unwrap())
}

fn volume_of(name: &str, size: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/data"},
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Available"},
    });
    change(&mut volume);
    volume
}

fn claim_of(name: &str, size: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": format!("uid-{name}"),
            "resourceVersion": "1",
            "annotations": {},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            "storageClassName": "",
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Pending"},
    });
    change(&mut claim);
    claim
}

fn class(name: &str, mode: &str, provisioner: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "resourceVersion": "1"},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
    })
}

fn node(name: &str, zone: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "resourceVersion": "1",
            "labels": {"zone": zone},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
    })
}

fn pod(name: &str, node: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {
            "nodeName": node,
            "containers": [],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// What is next for the claim `c`.
fn next(objects: &[Value]) -> Decision<ClaimStep> {
    let world = world(objects);
    binder::next_for_claim(world.binding(), &world.claims.get("ns/c").unwrap())
}

fn bound_to(objects: &[Value]) -> Option<String> {
    match next(objects).0 {
        Some(ClaimStep::Bind(volume)) => Some(volume),
        _ => None,
    }
}

fn reason<S>(decision: &Decision<S>) -> &'static str {
    decision.1.as_ref().map_or("", |event: &VolumeEvent| event.reason)
}

fn meant_for(claim: &str, uid: &str) -> Value {
    json!({"kind": "PersistentVolumeClaim", "namespace": "ns", "name": claim, "uid": uid})
}

fn bound_claim(change: impl FnOnce(&mut Value)) -> Value {
    claim_of("c", "1Gi", |c| {
        c["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
        c["spec"]["volumeName"] = "v".into();
        c["status"] = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"]});
        change(c);
    })
}

fn bound_volume(change: impl FnOnce(&mut Value)) -> Value {
    volume_of("v", "1Gi", |v| {
        v["spec"]["claimRef"] = meant_for("c", "uid-c");
        v["status"]["phase"] = "Bound".into();
        change(v);
    })
}
