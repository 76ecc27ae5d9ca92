//! Tables for the pure rules: each row is a small world.

mod claims;
mod consumers;
mod phases;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::attachments::{Plan, plan};
use super::binder::{ClaimStep, Decision, VolumeEvent, VolumeStep, claim, volume};
use super::world::{Item, Key, World};

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
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

fn world(objects: &[Value]) -> World {
    let mut world = World::default();
    let mut work = BTreeSet::new();
    objects.iter().for_each(|object| world.put(object, &mut work));
    world
}

fn key(name: &str) -> Key {
    ("ns".to_owned(), name.to_owned())
}

/// What is next for the claim `c`.
fn next(objects: &[Value]) -> Decision<ClaimStep> {
    claim(&world(objects), &key("c"))
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
