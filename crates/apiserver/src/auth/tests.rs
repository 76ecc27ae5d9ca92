#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;

use super::*;

fn user(name: &str, groups: &[&str]) -> User {
    User::authenticated(name.into(), groups.iter().map(|group| group.to_string()).collect())
}

fn node() -> User {
    user("system:node:n1", &[NODES])
}

/// `verb group/resource/subresource namespace/name field=value`, `-` for what is not given.
fn decide(user: &User, line: &str) -> Decision {
    let words: Vec<&str> =
        line.split_whitespace().map(|word| if word == "-" { "" } else { word }).collect();
    let mut what = words[1].split('/');
    let (namespace, name) = words[2].split_once('/').unwrap_or(("", words[2]));
    let fields: Vec<(String, String)> = words
        .get(3)
        .and_then(|field| field.split_once('='))
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .into_iter()
        .collect();
    authorize(&Access {
        user,
        verb: words[0],
        target: Target::Resource(ResourceTarget {
            group: what.next().unwrap(),
            resource: what.next().unwrap(),
            subresource: what.next().unwrap_or(""),
            namespace,
            name,
            fields: &fields,
        }),
    })
}

#[test]
fn a_node_may_do_what_a_kubelet_needs() {
    for line in [
        "get /nodes -/n1",
        "create /nodes -",
        "patch /nodes/status -/n1",
        "list /pods - spec.nodeName=n1",
        "watch /pods - spec.nodeName=n1",
        "patch /pods/status default/web",
        "delete /pods default/web",
        "create /events default/",
        "watch /services -",
        "watch discovery.k8s.io/endpointslices -",
        "update coordination.k8s.io/leases kube-node-lease/n1",
        "create coordination.k8s.io/leases kube-node-lease/",
        "create authorization.k8s.io/subjectaccessreviews -",
        "create authentication.k8s.io/tokenreviews -",
    ] {
        assert_eq!(decide(&node(), line), Decision::Allow, "{line}");
    }
}

#[test]
fn a_node_is_refused_what_is_not_its_own() {
    for (line, reason) in [
        ("get /nodes -/n2", "node 'n1' cannot read 'n2', only its own Node object"),
        ("list /nodes -", "node 'n1' cannot read all nodes, only its own Node object"),
        ("delete /nodes -/n1", ""),
        ("list /pods -", "can only list/watch pods with spec.nodeName field selector"),
        (
            "list /pods - spec.nodeName=n2",
            "can only list/watch pods with spec.nodeName field selector",
        ),
        ("update /pods default/web", ""),
        ("create /pods/binding default/web", ""),
        ("list /secrets default/", "No Object name found"),
        ("list /secrets -", "can only read namespaced object of this type"),
        ("create /secrets default/", "can only read resources of this type"),
        (
            "update coordination.k8s.io/leases kube-node-lease/n2",
            "can only access node lease with the same name as the requesting node",
        ),
        (
            "get coordination.k8s.io/leases default/n1",
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
        (
            "list coordination.k8s.io/leases kube-node-lease/",
            "can only get, create, update, patch, or delete a node lease",
        ),
        ("create /services default/", ""),
        ("get /nodes/proxy -/n1", ""),
    ] {
        assert_eq!(decide(&node(), line), Decision::deny(reason), "{line}");
    }
}

#[test]
fn secrets_are_for_the_nodes_whose_pods_use_them() {
    let Decision::IfReferenced { node, reference } = decide(&node(), "get /secrets default/s")
    else {
        panic!("not asked");
    };
    assert_eq!(
        (node.as_str(), reference.kind, reference.name.as_str()),
        ("n1", ReferenceKind::Secret, "s")
    );
}

#[test]
fn others_get_their_due() {
    assert_eq!(decide(&user("a", &[MASTERS]), "delete /nodes -/n1"), Decision::Allow);
    assert_eq!(decide(&user("a", &[]), "get /pods default/x"), Decision::deny(""));
    assert_eq!(decide(&user(KUBELET_CLIENT, &[]), "get /nodes/proxy -/n1"), Decision::Allow);
    assert_eq!(decide(&user(KUBELET_CLIENT, &[]), "get /secrets default/s"), Decision::deny(""));
    // The name alone makes no node, nor does the group.
    assert_eq!(decide(&user("system:node:n1", &[]), "get /nodes -/n1"), Decision::deny(""));
    assert_eq!(decide(&user("n1", &[NODES]), "get /nodes -/n1"), Decision::deny(""));
    assert_eq!(
        decide(&user("system:node:", &[NODES]), "get /nodes -/n1"),
        Decision::deny("unknown node for user \"system:node:\"")
    );
}

#[test]
fn paths() {
    let may = |user: &User, verb, path| {
        authorize(&Access { user, verb, target: Target::Path(path) }) == Decision::Allow
    };
    for (path, anonymous, known) in [
        ("/healthz", true, true),
        ("/readyz", true, true),
        ("/version", true, true),
        ("/api", false, true),
        ("/apis/coordination.k8s.io/v1", false, true),
        ("/apix", false, false),
        ("/metrics", false, false),
        ("/readyz/etcd", false, false),
    ] {
        assert_eq!(may(&User::anonymous(), "get", path), anonymous, "anonymous {path}");
        assert_eq!(may(&user("a", &[]), "get", path), known, "known {path}");
    }
    assert!(!may(&User::anonymous(), "post", "/healthz"));
}

#[test]
fn refusals_have_the_words_of_kubernetes() {
    let node = node();
    let mut access = Access {
        user: &node,
        verb: "list",
        target: Target::Resource(ResourceTarget { resource: "pods", ..ResourceTarget::default() }),
    };
    assert_eq!(
        forbidden_message(&access, "why"),
        "User \"system:node:n1\" cannot list resource \"pods\" in API group \"\" at the cluster scope: why"
    );
    access.target = Target::Path("/metrics");
    assert_eq!(
        forbidden_message(&access, ""),
        "User \"system:node:n1\" cannot list path \"/metrics\""
    );
}

#[test]
fn every_reference_of_a_pod_is_found() {
    let pod = json!({"spec": {
        "serviceAccountName": "sa",
        "imagePullSecrets": [{"name": "pull"}],
        "initContainers": [{"envFrom": [{"secretRef": {"name": "env-from"}}, {"configMapRef": {"name": "cm-from"}}]}],
        "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}, {"name": "x", "value": "y"}]}],
        "volumes": [
            {"secret": {"secretName": "vol"}},
            {"configMap": {"name": "cm-vol"}},
            {"projected": {"sources": [{"secret": {"name": "proj"}}, {"configMap": {"name": "cm-proj"}}]}},
            {"persistentVolumeClaim": {"claimName": "claim"}},
            {"emptyDir": {}},
        ],
    }});
    let mut found = Vec::new();
    references(&pod, |kind, name| found.push(format!("{}/{name}", kind.resource())));
    assert_eq!(
        found.join(" "),
        "serviceaccounts/sa secrets/pull secrets/env secrets/env-from configmaps/cm-from secrets/vol \
         configmaps/cm-vol secrets/proj configmaps/cm-proj persistentvolumeclaims/claim"
    );
    references(&json!({"spec": 3}), |_, _| panic!("nothing there"));
}
