//! What leads from volumes and attachments to a node.

use longshore_gates::FeatureGates;
use serde_json::{Value, json};

use super::NodeAuthorizer;
use crate::authz::{Access, Decision, ResourceTarget, Target};
use crate::user::User;

fn node(name: &str) -> User {
    User {
        name: format!("system:node:{name}"),
        groups: vec!["system:nodes".into()],
        ..User::default()
    }
}

/// Whether node n1 may do this to `[group/]resource[/subresource] [namespace/]name`.
fn may(authorizer: &NodeAuthorizer, verb: &str, resource: &str, object: &str) -> bool {
    let (group, resource) = match resource.rsplit_once(':') {
        Some((group, resource)) => (group, resource),
        None => ("", resource),
    };
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (namespace, name) = object.split_once('/').unwrap_or(("", object));
    let target = ResourceTarget {
        group,
        resource,
        subresource,
        namespace,
        name,
        ..ResourceTarget::default()
    };
    let user = node("n1");
    authorizer.decide(&Access { user: &user, verb, target: Target::Resource(target) }).is_allowed()
}

fn pod(name: &str, node: &str, claim: &str) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {
            "nodeName": node,
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

fn volume(name: &str, claim: &str, source: Value) -> Value {
    let mut volume = json!({
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {"claimRef": {"namespace": "ns", "name": claim}},
    });
    let spec = volume["spec"].as_object_mut().unwrap();
    spec.extend(source.as_object().unwrap().clone());
    volume
}

fn attachment(name: &str, node: &str) -> Value {
    json!({"kind": "VolumeAttachment", "metadata": {"name": name}, "spec": {"nodeName": node}})
}

fn csi() -> Value {
    let secret = |name: &str| json!({"namespace": "drivers", "name": name});
    json!({"csi": {
        "driver": "d",
        "nodePublishSecretRef": secret("publish"),
        "nodeStageSecretRef": secret("stage"),
        "nodeExpandSecretRef": secret("expand"),
        "controllerPublishSecretRef": secret("controller"),
        "controllerExpandSecretRef": secret("controller"),
    }})
}

#[test]
fn node_authorizer_graph_volume_secrets_and_attachments() {
    let authorizer = NodeAuthorizer::new(&FeatureGates::default()).unwrap();
    for object in [
        pod("p", "n1", "data"),
        pod("q", "n2", "theirs"),
        volume("v", "data", csi()),
        volume("w", "theirs", json!({"iscsi": {"secretRef": {"name": "chap"}}})),
        attachment("a1", "n1"),
        attachment("a2", "n2"),
    ] {
        authorizer.put(&object);
    }
    let table = [
        ("get", "persistentvolumeclaims", "ns/data", true),
        ("get", "persistentvolumeclaims", "ns/theirs", false),
        ("list", "persistentvolumeclaims", "ns/", false),
        ("patch", "persistentvolumeclaims/status", "ns/data", true),
        ("patch", "persistentvolumeclaims/status", "ns/theirs", false),
        ("delete", "persistentvolumeclaims", "ns/data", false),
        ("get", "persistentvolumes", "v", true),
        ("get", "persistentvolumes", "w", false),
        ("list", "persistentvolumes", "", false),
        ("patch", "persistentvolumes", "v", false),
        ("get", "secrets", "drivers/publish", true),
        ("get", "secrets", "drivers/stage", true),
        ("watch", "secrets", "drivers/expand", true),
        ("get", "secrets", "drivers/controller", false),
        ("get", "secrets", "ns/publish", false),
        ("get", "secrets", "ns/chap", false),
        ("get", "storage.k8s.io:volumeattachments", "a1", true),
        ("get", "storage.k8s.io:volumeattachments", "a2", false),
        ("list", "storage.k8s.io:volumeattachments", "", false),
        ("create", "storage.k8s.io:volumeattachments", "", false),
        ("list", "storage.k8s.io:csidrivers", "", true),
        ("get", "storage.k8s.io:storageclasses", "fast", false),
        ("patch", "storage.k8s.io:csinodes", "n1", true),
        ("patch", "storage.k8s.io:csinodes", "n2", false),
        ("watch", "certificates.k8s.io:clustertrustbundles", "", true),
    ];
    for (verb, resource, object, expected) in table {
        assert_eq!(
            may(&authorizer, verb, resource, object),
            expected,
            "{verb} {resource} {object}"
        );
    }
}

#[test]
fn node_authorizer_graph_removes_deleted_objects() {
    let authorizer = NodeAuthorizer::new(&FeatureGates::default()).unwrap();
    authorizer.put(&pod("p", "n1", "data"));
    authorizer.put(&volume("v", "data", json!({"iscsi": {"secretRef": {"name": "chap"}}})));
    let get = |resource, object| may(&authorizer, "get", resource, object);
    assert!(get("persistentvolumes", "v"));
    assert!(get("secrets", "ns/chap"), "without a namespace, it is in the claim's");
    authorizer.put(&volume("v", "other", csi()));
    assert!(!get("persistentvolumes", "v"));
    assert!(!get("secrets", "ns/chap") && !get("secrets", "drivers/publish"));
    authorizer.put(&volume("v", "data", csi()));
    authorizer.put(&pod("p", "n2", "data"));
    assert!(!get("persistentvolumes", "v") && !get("secrets", "drivers/publish"));
}

#[test]
fn node_authorizer_of_pod_certificate_requests() {
    let request = |name: &str, node: &str| {
        json!({
            "kind": "PodCertificateRequest", "metadata": {"namespace": "ns", "name": name},
            "spec": {"nodeName": node},
        })
    };
    for (gates, is_on) in [("PodCertificateRequest=true", true), ("", false)] {
        let authorizer = NodeAuthorizer::new(&gates.parse().unwrap()).unwrap();
        authorizer.put(&request("a", "n1"));
        authorizer.put(&request("b", "n2"));
        for (verb, subresource, name, fields, expected) in [
            ("create", "", "", "", Ok(())),
            ("get", "", "a", "", Ok(())),
            ("get", "", "b", "", Err("no relationship found between node 'n1' and this object")),
            ("get", "", "c", "", Err("no relationship found between node 'n1' and this object")),
            ("list", "", "", "spec.nodeName=n1", Ok(())),
            ("watch", "", "", "spec.nodeName=n1", Ok(())),
            (
                "list",
                "",
                "",
                "spec.nodeName=n2",
                Err("can only list/watch podcertificaterequests with nodeName field selector"),
            ),
            (
                "watch",
                "",
                "",
                "spec.podName=n1",
                Err("can only list/watch podcertificaterequests with nodeName field selector"),
            ),
            (
                "get",
                "status",
                "a",
                "",
                Err("nodes may not access the status subresource of PodCertificateRequests"),
            ),
            (
                "update",
                "status",
                "a",
                "",
                Err("nodes may not access the status subresource of PodCertificateRequests"),
            ),
            ("update", "", "a", "", Err("nodes may not update podcertificaterequests")),
            ("delete", "", "a", "", Err("nodes may not delete podcertificaterequests")),
            (
                "deletecollection",
                "",
                "",
                "",
                Err("nodes may not deletecollection podcertificaterequests"),
            ),
        ] {
            let fields: Vec<(String, String)> = fields
                .split_once('=')
                .map(|(field, value)| (field.to_owned(), value.to_owned()))
                .into_iter()
                .collect();
            let target = ResourceTarget {
                group: "certificates.k8s.io",
                resource: "podcertificaterequests",
                subresource,
                namespace: "ns",
                name,
                fields: &fields,
                ..ResourceTarget::default()
            };
            let user = node("n1");
            let access = Access { user: &user, verb, target: Target::Resource(target) };
            let expected = if is_on { expected } else { Err("") };
            let decision = match authorizer.decide(&access) {
                Decision::Allow(_) => Ok(()),
                Decision::Deny(why) => Err(why),
                other => panic!("{other:?}"),
            };
            let expected = expected.map_err(str::to_owned);
            assert_eq!(decision, expected, "{gates} {verb} {subresource} {name}");
        }
    }
}
