#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};

use super::node_restriction;
use crate::kinds::core;

#[test]
fn node_restriction_labels() {
    let nodes = core("nodes").unwrap();
    let node = |labels: Value| json!({"metadata": {"name": "n1", "labels": labels}});
    for (label, is_allowed) in [
        ("kubernetes.io/hostname", true),
        ("node.kubernetes.io/instance-type", true),
        ("x.node.kubernetes.io/y", true),
        ("kubelet.kubernetes.io/y", true),
        ("example.com/y", true),
        ("y", true),
        ("notkubernetes.io/y", true),
        ("kubernetes.io/y", false),
        ("foo.k8s.io/y", false),
        ("node-restriction.kubernetes.io/y", false),
        ("x.node-restriction.kubernetes.io/y", false),
        ("node-role.kubernetes.io/control-plane", false),
    ] {
        let labelled = node(json!({label: "v"}));
        let created = node_restriction::admit_create("n1", nodes, &labelled, None);
        assert_eq!(created.is_ok(), is_allowed, "{label}");
        let updated = node_restriction::admit_update("n1", nodes, "", &labelled, &node(json!({})));
        assert_eq!(updated.is_ok(), is_allowed, "{label}");
        // What is there already is no matter.
        assert!(
            node_restriction::admit_update("n1", nodes, "", &labelled, &labelled).is_ok(),
            "{label}"
        );
    }
}

#[test]
fn node_restriction_writes() {
    let resource = |kind: &str| crate::kinds::resources().find(|r| r.kind == kind).unwrap();
    let update = |kind: &str, subresource: &str, new: Value, old: Value| {
        let verdict = node_restriction::admit_update("n1", resource(kind), subresource, &new, &old);
        verdict.err().map(|error| error.message).unwrap_or_default()
    };
    let pod = |node: &str, more: Value| {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": node}, "status": {}});
        json_patch::merge(&mut pod, &more);
        pod
    };
    let node = |more: Value| {
        let mut node = json!({"metadata": {"name": "n1"}, "spec": {}});
        json_patch::merge(&mut node, &more);
        node
    };
    let lease =
        |namespace: &str, name: &str| json!({"metadata": {"namespace": namespace, "name": name}});
    let slice = |node: &str| json!({"metadata": {"name": "s"}, "spec": {"nodeName": node}});
    let claims =
        json!({"status": {"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "b"}]}});
    for (kind, subresource, new, old, why) in [
        (
            "Pod",
            "status",
            pod("n1", json!({"status": {"phase": "Running"}})),
            pod("n1", json!({})),
            "",
        ),
        (
            "Pod",
            "status",
            pod("n2", json!({})),
            pod("n2", json!({})),
            "spec.nodeName set to itself",
        ),
        (
            "Pod",
            "status",
            pod("n1", json!({"metadata": {"labels": {"a": "b"}}})),
            pod("n1", json!({})),
            "cannot update labels through pod status",
        ),
        (
            "Pod",
            "status",
            pod("n1", claims.clone()),
            pod("n1", json!({})),
            "resource claim statues",
        ),
        ("Pod", "status", pod("n1", claims.clone()), pod("n1", claims), ""),
        (
            "Pod",
            "status",
            pod(
                "n1",
                json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "x"}}}),
            ),
            pod("n1", json!({})),
            "extended resource claim status",
        ),
        (
            "Pod",
            "",
            pod("n1", json!({})),
            pod("n1", json!({})),
            "can only create and delete mirror pods",
        ),
        (
            "Pod",
            "resize",
            pod("n1", json!({})),
            pod("n1", json!({})),
            "unexpected pod subresource \"resize\"",
        ),
        ("Node", "", node(json!({})), node(json!({})), ""),
        (
            "Node",
            "status",
            node(json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}})),
            node(json!({})),
            "not allowed to modify taints",
        ),
        // CVE-2025-5187: a node that owned itself away would come back with other labels and taints.
        (
            "Node",
            "",
            node(json!({"metadata": {"ownerReferences": [{"name": "x"}]}})),
            node(json!({})),
            "not allowed to modify ownerReferences",
        ),
        (
            "Node",
            "",
            node(json!({})),
            node(json!({"metadata": {"ownerReferences": [{"name": "x"}]}})),
            "not allowed to modify ownerReferences",
        ),
        (
            "Node",
            "",
            node(json!({"spec": {"configSource": {"configMap": {}}}})),
            node(json!({})),
            "configSource",
        ),
        ("Lease", "", lease("kube-node-lease", "n1"), lease("kube-node-lease", "n1"), ""),
        ("Lease", "", lease("kube-node-lease", "n2"), lease("kube-node-lease", "n2"), "same name"),
        ("Lease", "", lease("default", "n1"), lease("default", "n1"), "system namespace"),
        ("ConfigMap", "", json!({}), json!({}), ""),
        ("ResourceSlice", "", slice("n1"), slice("n1"), ""),
        ("ResourceSlice", "", slice("n2"), slice("n1"), "same NodeName"),
        ("ResourceSlice", "", slice("n1"), slice("n2"), "same NodeName"),
    ] {
        let said = update(kind, subresource, new.clone(), old);
        assert_eq!(said.is_empty(), why.is_empty(), "{kind} {subresource} {new}: {said}");
        assert!(said.contains(why), "{kind} {subresource} {new}: {said}");
    }
    // One that does not say which node it is may write nothing.
    let nobody =
        node_restriction::admit_update("", resource("ConfigMap"), "", &json!({}), &json!({}));
    assert!(nobody.unwrap_err().message.contains("could not determine node"));
    for (kind, object, is_allowed) in [
        ("Pod", pod("n1", json!({})), true),
        ("Pod", pod("n2", json!({})), false),
        ("Node", node(json!({})), true),
        ("Lease", lease("kube-node-lease", "n2"), false),
        ("ResourceSlice", slice("n1"), true),
        ("ResourceSlice", slice("n2"), false),
    ] {
        let verdict = node_restriction::admit_delete("n1", resource(kind), &object);
        assert_eq!(verdict.is_ok(), is_allowed, "{object}");
    }
    // The authorizer has not seen what is in a new slice: those of other nodes are what devices pods get there.
    let everywhere = json!({"metadata": {"name": "s"}, "spec": {"allNodes": true}});
    for (new, is_allowed) in [(slice("n1"), true), (slice("n2"), false), (everywhere, false)] {
        let verdict = node_restriction::admit_create("n1", resource("ResourceSlice"), &new, None);
        assert_eq!(verdict.is_ok(), is_allowed, "{new}");
    }
    assert!(
        node_restriction::admit_eviction("n1", resource("Pod"), &pod("n2", json!({}))).is_err()
    );
    assert!(node_restriction::admit_subresource("n1", resource("Pod"), "p", "binding").is_err());
}

#[test]
fn node_restriction_lets_a_node_resize_a_claim_and_be_its_manager() {
    let old = json!({"metadata": {"name": "c", "namespace": "d", "resourceVersion": "1"}});
    let mut new = json!({
        "metadata": {"name": "c", "namespace": "d", "managedFields": [{"manager": "longshore"}]},
        "status": {"capacity": {"storage": "2Gi"}},
    });
    let admit = |new: &Value| {
        node_restriction::admit_update(
            "n1",
            core("persistentvolumeclaims").unwrap(),
            "status",
            new,
            &old,
        )
    };
    assert!(admit(&new).is_ok());
    new["metadata"]["labels"] = json!({"a": "b"});
    assert!(admit(&new).is_err());
}
