#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::coverage::Missing;
use super::*;
use crate::schema::value::items;
use crate::selector::LabelSelector;
use crate::tasks::roles as bootstrap;
use crate::user::{KUBELET_CLIENT, NODES};

fn user(name: &str, groups: &[&str]) -> User {
    User::authenticated(name.into(), groups.iter().map(|group| group.to_string()).collect())
}

fn node() -> User {
    user("system:node:n1", &[NODES])
}

/// Fills aggregated roles as the controller does: view, edit and admin contain each other in turn.
fn aggregate(roles: &mut [Value]) {
    for _ in 0..3 {
        for i in 0..roles.len() {
            let selector = &roles[i]["aggregationRule"]["clusterRoleSelectors"][0];
            let Ok(selector) = LabelSelector::of(selector) else { continue };
            if !roles[i]["aggregationRule"].is_object() {
                continue;
            }
            let matching = roles.iter().filter(|other| selector.matches(other));
            let rules: Vec<Value> =
                matching.flat_map(|other| items(&other["rules"])).cloned().collect();
            roles[i]["rules"] = rules.into();
        }
    }
}

/// One with the roles that every cluster starts with, and these objects.
fn authorizer(objects: &[Value]) -> Authorizer {
    let gates = FeatureGates::default();
    let authorizer = Authorizer::new(vec![Mode::Node, Mode::Rbac].into(), &gates).unwrap();
    let mut all: Vec<Value> =
        policy::objects(&gates).into_iter().map(|(_, object)| object).collect();
    all.extend_from_slice(objects);
    aggregate(&mut all);
    for object in &all {
        match object["kind"].as_str().unwrap() {
            "Pod" | "PersistentVolume" | "VolumeAttachment" => authorizer.nodes.put(object),
            _ => authorizer.rbac.put(object),
        }
    }
    authorizer
}

/// `verb group/resource/subresource namespace/name field=value`, `-` for what is not given.
fn decide(authorizer: &Authorizer, user: &User, line: &str) -> Decision {
    let words: Vec<&str> =
        line.split_whitespace().map(|word| if word == "-" { "" } else { word }).collect();
    if let Some(path) = words[1].strip_prefix("url:") {
        return authorizer.decide(&Access { user, verb: words[0], target: Target::Path(path) });
    }
    let mut what = words[1].splitn(3, '/');
    let (namespace, name) = words[2].split_once('/').unwrap_or(("", words[2]));
    let fields: Vec<(String, String)> = words
        .get(3)
        .and_then(|field| field.split_once('='))
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .into_iter()
        .collect();
    let target = ResourceTarget {
        group: what.next().unwrap(),
        version: "v1",
        resource: what.next().unwrap(),
        subresource: what.next().unwrap_or(""),
        namespace: namespace.trim_matches('-'),
        name,
        fields: &fields,
    };
    authorizer.decide(&Access { user, verb: words[0], target: Target::Resource(target) })
}

fn may(authorizer: &Authorizer, user: &User, line: &str) -> bool {
    decide(authorizer, user, line).is_allowed()
}

fn refusal(authorizer: &Authorizer, user: &User, line: &str) -> String {
    match decide(authorizer, user, line) {
        Decision::Deny(reason) => reason,
        other => panic!("{line}: {other:?}"),
    }
}

fn role(kind: &str, namespace: &str, name: &str, rules: Value) -> Value {
    json!({"kind": kind, "metadata": {"namespace": namespace, "name": name}, "rules": rules})
}

fn binding(namespace: &str, name: &str, role: (&str, &str), subject: Value) -> Value {
    let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
    json!({
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name},
        "roleRef": {"apiGroup": rbac::GROUP, "kind": role.0, "name": role.1},
        "subjects": [subject],
    })
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "name": name})
}

#[test]
fn node_authorizer_allows_kubelet_and_kube_proxy() {
    let authorizer = authorizer(&[]);
    for line in [
        "get /nodes -/n1",
        "list /nodes -/n1",
        "create /nodes -",
        "patch /nodes/status -/n1",
        "list /pods - spec.nodeName=n1",
        "watch /pods - spec.nodeName=n1",
        "create /pods default/",
        "patch /pods/status default/web",
        "delete /pods default/web",
        "create /pods/eviction default/web",
        "create /events default/",
        "patch events.k8s.io/events default/x",
        "watch /services -",
        "get /endpoints default/x",
        "watch discovery.k8s.io/endpointslices -",
        "update coordination.k8s.io/leases kube-node-lease/n1",
        "create coordination.k8s.io/leases kube-node-lease/",
        "create authorization.k8s.io/subjectaccessreviews -",
        "create authentication.k8s.io/tokenreviews -",
        "create certificates.k8s.io/certificatesigningrequests -",
        "watch certificates.k8s.io/certificatesigningrequests -",
        "create certificates.k8s.io/certificatesigningrequests/selfnodeclient -",
        "list node.k8s.io/runtimeclasses -",
        "list storage.k8s.io/csidrivers -",
        "create storage.k8s.io/csinodes -",
        "patch storage.k8s.io/csinodes -/n1",
        "create resource.k8s.io/resourceslices -",
        "deletecollection resource.k8s.io/resourceslices - spec.nodeName=n1",
        "get url:/api/v1",
    ] {
        assert!(may(&authorizer, &node(), line), "{line}");
    }
}

#[test]
fn node_authorizer_denies_objects_of_other_nodes() {
    let authorizer = authorizer(&[]);
    let unrelated = "no relationship found between node 'n1' and this object";
    for (line, reason) in [
        ("get /nodes -/n2", "node 'n1' cannot read 'n2', only its own Node object"),
        ("list /nodes -", "node 'n1' cannot read all nodes, only its own Node object"),
        ("delete /nodes -/n1", ""),
        ("get /nodes/proxy -/n1", ""),
        ("list /pods -", "can only list/watch pods with spec.nodeName field selector"),
        (
            "list /pods - spec.nodeName=n2",
            "can only list/watch pods with spec.nodeName field selector",
        ),
        ("get /pods default/x", unrelated),
        ("watch /pods default/x", unrelated),
        ("update /pods default/x", ""),
        ("create /pods/binding default/x", ""),
        ("get /secrets default/s", unrelated),
        ("list /secrets default/", "No Object name found"),
        ("list /secrets -", "can only read namespaced object of this type"),
        ("create /secrets default/", "can only read resources of this type"),
        ("get /secrets/status default/s", "cannot read subresource"),
        ("get /persistentvolumeclaims default/c", unrelated),
        ("list /persistentvolumeclaims default/", "can only get individual resources of this type"),
        ("get /persistentvolumeclaims/status default/c", "can only get/update/patch this type"),
        ("get /persistentvolumes -/v", unrelated),
        ("get storage.k8s.io/volumeattachments -/v", unrelated),
        ("get resource.k8s.io/resourceclaims default/c", unrelated),
        (
            "list resource.k8s.io/resourceslices -",
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        ("delete resource.k8s.io/resourceslices -/s", unrelated),
        ("create /serviceaccounts/token default/sa", unrelated),
        (
            "create /serviceaccounts default/",
            "can only create tokens for individual service accounts",
        ),
        (
            "delete /serviceaccounts default/sa",
            "can only create tokens for individual service accounts",
        ),
        (
            "create /serviceaccounts/x default/sa",
            "can only create token subresource of serviceaccount",
        ),
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
        (
            "get storage.k8s.io/csinodes -/n2",
            "can only access CSINode with the same name as the requesting node",
        ),
        ("create /services default/", ""),
        ("update certificates.k8s.io/certificatesigningrequests/approval -/x", ""),
        ("create certificates.k8s.io/certificatesigningrequests/nodeclient -", ""),
        ("create rbac.authorization.k8s.io/clusterrolebindings -", ""),
        ("impersonate /users -/x", ""),
    ] {
        assert_eq!(refusal(&authorizer, &node(), line), reason, "{line}");
    }
}

#[test]
fn node_authorizer_graph_links_objects_to_the_node_by_pods() {
    let pod = json!({
        "kind": "Pod",
        "metadata": {"namespace": "ns", "name": "p"},
        "spec": {
            "nodeName": "n1",
            "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"envFrom": [
                {"secretRef": {"name": "env-from"}}, {"configMapRef": {"name": "cm-from"}},
            ]}],
            "containers": [{"env": [
                {"valueFrom": {"secretKeyRef": {"name": "env"}}},
                {"valueFrom": {"configMapKeyRef": {"name": "cm-env"}}},
                {"name": "x", "value": "y"},
            ]}],
            "volumes": [
                {"secret": {"secretName": "vol"}},
                {"configMap": {"name": "cm-vol"}},
                {"projected": {"sources": [
                    {"secret": {"name": "proj"}}, {"configMap": {"name": "cm-proj"}},
                ]}},
                {"csi": {"nodePublishSecretRef": {"name": "csi"}}},
                {"azureFile": {"secretName": "azure"}},
                {"persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
                {"emptyDir": {}},
            ],
            "resourceClaims": [
                {"name": "a", "resourceClaimName": "gpu"},
                {"name": "b", "resourceClaimTemplateName": "template"},
            ],
        },
        "status": {"resourceClaimStatuses": [
            {"name": "b", "resourceClaimName": "made"},
            {"name": "c", "resourceClaimName": "foreign"},
        ]},
    });
    let lines = [
        "get /pods ns/p",
        "get /serviceaccounts ns/sa",
        "create /serviceaccounts/token ns/sa",
        "get /secrets ns/pull",
        "watch /secrets ns/env-from",
        "get /secrets ns/env",
        "get /secrets ns/vol",
        "get /secrets ns/proj",
        "get /secrets ns/csi",
        "get /secrets ns/azure",
        "get /configmaps ns/cm-from",
        "list /configmaps ns/cm-env",
        "get /configmaps ns/cm-vol",
        "get /configmaps ns/cm-proj",
        "get /persistentvolumeclaims ns/claim",
        "patch /persistentvolumeclaims/status ns/claim",
        "get /persistentvolumeclaims ns/p-scratch",
        "get resource.k8s.io/resourceclaims ns/gpu",
        "get resource.k8s.io/resourceclaims ns/made",
    ];
    let with = authorizer(std::slice::from_ref(&pod));
    let mut mirror = pod.clone();
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    let with_mirror = authorizer(&[mirror]);
    let other = user("system:node:n2", &[NODES]);
    for line in lines {
        assert!(may(&with, &node(), line), "{line}");
        assert!(!may(&with, &other, line), "{line} of another node");
        assert!(!may(&with, &node(), &line.replace("ns/", "other/")), "{line} elsewhere");
        // What a node makes itself gives it nothing.
        assert_eq!(may(&with_mirror, &node(), line), line.contains("/pods "), "{line} of a mirror");
    }
    for line in [
        "get /secrets ns/cm-vol",
        "get /configmaps ns/vol",
        "get resource.k8s.io/resourceclaims ns/template",
        "get resource.k8s.io/resourceclaims ns/foreign",
        "update /secrets ns/vol",
    ] {
        assert!(!may(&with, &node(), line), "{line}");
    }
    // A pod that is not bound yet has no node.
    let mut free = pod;
    free["spec"]["nodeName"] = Value::Null;
    assert!(!may(&authorizer(&[free]), &node(), "get /secrets ns/vol"));
}

#[test]
fn node_authorizer_requires_a_node_name() {
    let authorizer = authorizer(&[]);
    // The name alone makes no node, nor does the group.
    assert_eq!(refusal(&authorizer, &user("system:node:n1", &[]), "get /nodes -/n1"), "");
    assert_eq!(refusal(&authorizer, &user("n1", &[NODES]), "get /nodes -/n1"), "");
    assert_eq!(
        refusal(&authorizer, &user("system:node:", &[NODES]), "get /nodes -/n1"),
        "unknown node for user \"system:node:\""
    );
}

#[test]
fn rbac_bootstrap_roles() {
    let jane = |role: &str| binding("", "b", ("ClusterRole", role), group("team"));
    let user = user("jane", &["team"]);
    for (role, yes, no) in [
        ("cluster-admin", "delete /nodes -/n1; get url:/metrics; * */* -; escalate x/y -", ""),
        (
            "admin",
            "create rbac.authorization.k8s.io/rolebindings ns/; get /secrets ns/s; delete /pods ns/p; \
             create authorization.k8s.io/localsubjectaccessreviews ns/; get /pods/log ns/p",
            "get /nodes -; update /resourcequotas ns/q; create /namespaces -; bind rbac.authorization.k8s.io/clusterroles -/x",
        ),
        (
            "edit",
            "get /secrets ns/s; create /pods/exec ns/p; update /configmaps ns/m; watch /events ns/",
            "create rbac.authorization.k8s.io/roles ns/; patch /pods/status ns/p; get /nodes -",
        ),
        (
            "view",
            "get /pods ns/p; get /pods/log ns/p; list /services -; list discovery.k8s.io/endpointslices ns/",
            "get /secrets ns/s; create /pods ns/; get /pods/exec ns/p; get rbac.authorization.k8s.io/roles ns/",
        ),
        (
            "system:kubelet-api-admin",
            "get /nodes/stats -/n1; * /nodes/proxy -; proxy /nodes -",
            "delete /nodes -",
        ),
        (
            "system:monitoring",
            "get url:/metrics; get /nodes/metrics -/n1; get url:/livez/ping",
            "get /nodes/stats -/n1",
        ),
        ("system:auth-delegator", "create authentication.k8s.io/tokenreviews -", "get /pods -"),
        (
            "system:node-proxier",
            "watch discovery.k8s.io/endpointslices -; list /nodes -",
            "list /secrets -",
        ),
    ] {
        let authorizer = authorizer(&[jane(role)]);
        for line in yes.split("; ") {
            assert!(may(&authorizer, &user, line), "{role}: {line}");
        }
        for line in no.split("; ").filter(|line| !line.is_empty()) {
            assert!(!may(&authorizer, &user, line), "{role}: {line}");
        }
    }
}

/// CVE-2021-25740: who may write Endpoints or EndpointSlices can lead a load balancer into another
/// namespace, so no role for users has that.
#[test]
fn rbac_user_roles_cannot_write_endpoints() {
    let user = user("jane", &["team"]);
    for role in ["admin", "edit", "view"] {
        let authorizer = authorizer(&[binding("", "b", ("ClusterRole", role), group("team"))]);
        for resource in ["/endpoints", "discovery.k8s.io/endpointslices"] {
            for verb in ["create", "update", "patch", "delete", "deletecollection"] {
                let line = format!("{verb} {resource} ns/e");
                assert!(!may(&authorizer, &user, &line), "{role}: {line}");
            }
            assert!(may(&authorizer, &user, &format!("list {resource} ns/")), "{role}");
        }
        // The verbs are those of the roles, not misspelled here.
        let line = "update /configmaps ns/m";
        assert_eq!(may(&authorizer, &user, line), role != "view", "{role}");
    }
}

#[test]
fn rbac_bootstrap_subjects() {
    let authorizer = authorizer(&[]);
    let known = user("a", &[]);
    for (user, yes, no) in [
        (user("a", &[MASTERS]), "delete /nodes -/n1; get url:/x", ""),
        (
            known,
            "get url:/api; get url:/apis/apps/v1; get url:/version; get url:/openapi/v3; \
             create authorization.k8s.io/selfsubjectaccessreviews -; \
             create authentication.k8s.io/selfsubjectreviews -",
            "get /pods default/x; get url:/metrics; get url:/apix; post url:/api; get url:/readyz/etcd",
        ),
        (
            User::anonymous(),
            "get url:/healthz; get url:/readyz; get url:/version",
            "get url:/api; post url:/healthz; list /pods -",
        ),
        (
            user(KUBELET_CLIENT, &[]),
            "get /nodes/proxy -/n1; create /nodes/proxy -/n1",
            "get /secrets default/s",
        ),
        (
            user("system:bootstrap:abc", &["system:bootstrappers"]),
            "create certificates.k8s.io/certificatesigningrequests -; \
             create certificates.k8s.io/certificatesigningrequests/nodeclient -",
            "get /nodes -; create certificates.k8s.io/certificatesigningrequests/selfnodeclient -",
        ),
        (user("system:kube-proxy", &[]), "watch /services -; list /nodes -", "list /pods -"),
        (
            user("system:kube-scheduler", &[]),
            "create /pods/binding ns/p; update coordination.k8s.io/leases kube-system/kube-scheduler",
            "list /secrets -",
        ),
        (
            user("system:kube-controller-manager", &[]),
            "create /serviceaccounts/token ns/x",
            "create /pods ns/",
        ),
        (
            user("system:serviceaccount:ns:sa", &["system:serviceaccounts"]),
            "get url:/.well-known/openid-configuration",
            "list /pods ns/",
        ),
    ] {
        for line in yes.split("; ").map(str::trim) {
            assert!(may(&authorizer, &user, line), "{}: {line}", user.name);
        }
        for line in no.split("; ").map(str::trim).filter(|line| !line.is_empty()) {
            assert!(!may(&authorizer, &user, line), "{}: {line}", user.name);
        }
    }
}

#[test]
fn rbac_rules_match_as_upstream() {
    for (rule, yes, no) in [
        (
            "get core pods",
            "get /pods ns/p",
            "get /pods/log ns/p; list /pods ns/; get apps/pods ns/p",
        ),
        ("get core pods/log", "get /pods/log ns/p", "get /pods ns/p; get /pods/status ns/p"),
        (
            "get core */scale",
            "get /pods/scale ns/p; get /x/scale ns/p",
            "get /pods ns/p; get /pods/log ns/p",
        ),
        ("get core *", "get /pods/log ns/p; get /x ns/y", "get apps/x ns/y"),
        ("* apps deployments", "x apps/deployments ns/d", "get apps/deployments/status ns/d"),
        ("get core pods a,b", "get /pods ns/a; get /pods ns/b", "get /pods ns/c; get /pods ns/"),
        (
            "get url /a,/b/*",
            "get url:/a; get url:/b/c; get url:/b/",
            "get url:/a/x; get url:/b; post url:/a; get /pods ns/p",
        ),
        ("get url *", "get url:/x", "list url:/x"),
    ] {
        let rules = json!([Rule::from_line(rule).unwrap().to_value()]);
        let authorizer = authorizer(&[
            role("ClusterRole", "", "r", rules),
            binding("", "b", ("ClusterRole", "r"), json!({"kind": "User", "name": "jane"})),
        ]);
        for line in yes.split("; ") {
            assert!(may(&authorizer, &user("jane", &[]), line), "{rule}: {line}");
            assert!(!may(&authorizer, &user("joe", &[]), line), "{rule}: {line} of another");
        }
        for line in no.split("; ") {
            assert!(!may(&authorizer, &user("jane", &[]), line), "{rule}: {line}");
        }
    }
}

#[test]
fn rbac_bindings_apply_to_their_namespace_and_subjects() {
    let rules = json!([Rule::from_line("get core pods").unwrap().to_value()]);
    let account = json!({"kind": "ServiceAccount", "name": "sa"});
    let authorizer = authorizer(&[
        role("Role", "ns", "r", rules.clone()),
        role("Role", "other", "r", json!([])),
        role("ClusterRole", "", "c", rules),
        binding("ns", "a", ("Role", "r"), account),
        binding("ns", "b", ("ClusterRole", "c"), group("team")),
        binding("ns", "d", ("Role", "gone"), group("lost")),
        binding("other", "e", ("Role", "r"), group("team")),
    ]);
    let account = user("system:serviceaccount:ns:sa", &[]);
    let Decision::Allow(reason) = decide(&authorizer, &account, "get /pods ns/p") else {
        panic!("not allowed")
    };
    assert_eq!(
        reason,
        "RBAC: allowed by RoleBinding \"a/ns\" of Role \"r\" to ServiceAccount \"sa/ns\""
    );
    assert!(!may(&authorizer, &account, "get /pods other/p"));
    assert!(!may(&authorizer, &account, "get /pods -/p"), "in all namespaces");
    assert!(!may(&authorizer, &user("system:serviceaccount:other:sa", &[]), "get /pods ns/p"));
    let member = user("jane", &["team"]);
    assert!(may(&authorizer, &member, "get /pods ns/p"));
    assert!(!may(&authorizer, &member, "get /pods other/p"));
    assert!(!may(&authorizer, &user("team", &[]), "get /pods ns/p"), "a user is no group");
    assert_eq!(
        refusal(&authorizer, &user("x", &["lost"]), "get /pods ns/p"),
        "RBAC: role.rbac.authorization.k8s.io \"gone\" not found"
    );
    let rules = authorizer.rules(&member, "ns");
    assert!(rules.rules.contains(&Rule::from_line("get core pods").unwrap()));
    assert!(rules.faults.is_empty());
    assert_eq!(authorizer.rules(&node(), "ns").faults.len(), 1);
}

#[test]
fn rbac_escalation_is_denied() {
    let line = |lines: &[&str]| -> Value {
        lines.iter().map(|line| Rule::from_line(line).unwrap().to_value()).collect()
    };
    let rbac = "create,update rbac.authorization.k8s.io *";
    let authorizer = authorizer(&[
        role("ClusterRole", "", "own", line(&[rbac, "get,list core pods", "get core */scale"])),
        binding("", "own", ("ClusterRole", "own"), group("team")),
        role(
            "ClusterRole",
            "",
            "binder",
            line(&["bind rbac.authorization.k8s.io clusterroles view"]),
        ),
        binding("ns", "binder", ("ClusterRole", "binder"), group("binders")),
        role("ClusterRole", "", "escalator", line(&["escalate rbac.authorization.k8s.io roles"])),
        binding("ns", "escalator", ("ClusterRole", "escalator"), group("escalators")),
    ]);
    let of = |plural: &str| bootstrap::resource(plural).unwrap();
    let jane = user("jane", &["team"]);
    let admit = |user: &User, plural: &str, object: &Value, old: Option<&Value>| {
        authorizer.admit_grant(user, of(plural), object, old).map_err(|error| error.message)
    };
    let make = |lines: &[&str]| role("Role", "ns", "r", line(lines));
    for lines in [["get core pods"], ["list,get core pods x"], ["get core pods/scale"]] {
        assert_eq!(admit(&jane, "roles", &make(&lines), None), Ok(()), "{lines:?}");
    }
    for (lines, what) in [
        ("get,watch core pods", "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"watch\"]}"),
        ("* core pods", "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"*\"]}"),
        ("get core *", "{APIGroups:[\"\"], Resources:[\"*\"], Verbs:[\"get\"]}"),
        ("get apps pods", "{APIGroups:[\"apps\"], Resources:[\"pods\"], Verbs:[\"get\"]}"),
        (
            "delete,patch core pods x",
            "{APIGroups:[\"\"], Resources:[\"pods\"], ResourceNames:[\"x\"], Verbs:[\"delete\" \"patch\"]}",
        ),
    ] {
        let message = admit(&jane, "roles", &make(&[lines]), None).unwrap_err();
        assert_eq!(
            message,
            format!(
                "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"jane\" \
                 (groups=[\"team\" \"system:authenticated\"]) is attempting to grant RBAC \
                 permissions not currently held:\n{what}"
            )
        );
    }
    let escalator = user("e", &["escalators"]);
    assert_eq!(admit(&escalator, "roles", &make(&["* * *"]), None), Ok(()));
    assert!(
        admit(&escalator, "clusterroles", &role("ClusterRole", "", "r", line(&["* * *"])), None)
            .is_err()
    );
    // A finalizer that a garbage collector takes away grants nothing.
    let old = make(&["* * *"]);
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    assert_eq!(admit(&jane, "roles", &new, Some(&old)), Ok(()));
    new["metadata"]["labels"] = json!({"a": "b"});
    assert!(admit(&jane, "roles", &new, Some(&old)).is_err());
    // Gathering rules is having all.
    let mut gathers = role("ClusterRole", "", "g", json!([]));
    gathers["aggregationRule"] = json!({"clusterRoleSelectors": [{}]});
    let message = admit(&jane, "clusterroles", &gathers, None).unwrap_err();
    assert!(message.contains("must have cluster-admin privileges to use the aggregationRule"));

    let bind =
        |namespace: &str, role: &str| binding(namespace, "b", ("ClusterRole", role), group("x"));
    let binder = user("b", &["binders"]);
    assert_eq!(admit(&binder, "rolebindings", &bind("ns", "view"), None), Ok(()));
    assert!(admit(&binder, "rolebindings", &bind("other", "view"), None).is_err());
    assert!(admit(&binder, "rolebindings", &bind("ns", "edit"), None).is_err());
    assert!(admit(&binder, "clusterrolebindings", &bind("", "view"), None).is_err());
    assert_eq!(admit(&jane, "clusterrolebindings", &bind("", "own"), None), Ok(()));
    assert!(admit(&jane, "clusterrolebindings", &bind("", "cluster-admin"), None).is_err());
    let message = admit(&jane, "clusterrolebindings", &bind("", "gone"), None).unwrap_err();
    assert!(message.contains("\"gone\" not found"), "{message}");
    let root = user("root", &[MASTERS]);
    assert_eq!(admit(&root, "clusterrolebindings", &bind("", "gone"), None), Ok(()));
}

#[test]
fn rbac_bootstrap_policy_is_completed_not_reduced() {
    let gates = "PodCertificateRequest=true".parse().unwrap();
    let wanted: Vec<Value> =
        policy::objects(&gates).into_iter().map(|(_, object)| object).collect();
    for object in &wanted {
        assert_eq!(bootstrap::complete(object, object), *object, "{}", object["metadata"]["name"]);
    }
    let find = |kind: &str, name: &str| {
        let named = |o: &&Value| o["kind"] == kind && o["metadata"]["name"] == name;
        wanted.iter().find(named).unwrap()
    };
    let role = find("ClusterRole", "system:node-bootstrapper");
    let own = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    let mut existing = role.clone();
    existing["rules"] = json!([own]);
    existing["metadata"]["labels"] = json!({"mine": "yes"});
    let complete = bootstrap::complete(&existing, role);
    assert_eq!(complete["rules"][0], own);
    assert!(Missing::of(&Rule::all_of(&complete), &Rule::all_of(role), 1).is_empty());
    assert_eq!(complete["metadata"]["labels"]["mine"], "yes");
    assert_eq!(complete["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
    let binding = find("ClusterRoleBinding", "system:public-info-viewer");
    let mut existing = binding.clone();
    existing["subjects"] = json!([{"kind": "User", "apiGroup": rbac::GROUP, "name": "jane"}]);
    let subjects = &bootstrap::complete(&existing, binding)["subjects"];
    assert_eq!((subjects.as_array().unwrap().len(), &subjects[0]["name"]), (3, &json!("jane")));
    // One who was once aggregated and no longer is.
    let mut existing = role.clone();
    existing["aggregationRule"] = json!({"clusterRoleSelectors": [{}]});
    assert!(bootstrap::complete(&existing, role).get("aggregationRule").is_none());
}

#[test]
fn modes() {
    let access = |user| Access { user, verb: "get", target: Target::Path("/x") };
    let known = user("a", &[]);
    let of =
        |modes: &[Mode]| Authorizer::new(modes.to_vec().into(), &FeatureGates::default()).unwrap();
    assert!(of(&[Mode::AlwaysAllow]).decide(&access(&known)).is_allowed());
    assert!(of(&[Mode::AlwaysDeny, Mode::AlwaysAllow]).decide(&access(&known)).is_allowed());
    assert_eq!(
        of(&[Mode::AlwaysDeny]).decide(&access(&known)),
        Decision::deny("Everything is forbidden.")
    );
    assert!(!of(&[]).decide(&access(&known)).is_allowed());
    assert!(of(&[]).decide(&access(&user("a", &[MASTERS]))).is_allowed());
    assert!("Webhook".parse::<Mode>().is_err(), "it needs a configuration");
}

#[test]
fn authorization_errors_are_upstreams() {
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

/// CVE-2025-4563: no mirror pod of a node names a resource claim, nor anything else to be had.
#[test]
fn mirror_pods_cannot_reference_objects() {
    for (spec, what) in [
        (json!({"volumes": [{"name": "a", "hostPath": {}}, {"name": "b", "emptyDir": {}}]}), None),
        (
            json!({"volumes": [{"name": "a", "projected": {"sources": [{"downwardAPI": {}}]}}]}),
            None,
        ),
        (json!({"serviceAccountName": "x"}), Some("serviceaccounts")),
        (json!({"imagePullSecrets": [{"name": "x"}]}), Some("secrets")),
        (
            json!({"containers": [{"envFrom": [{"configMapRef": {"name": "x"}}]}]}),
            Some("configmaps"),
        ),
        (json!({"resourceClaims": [{"name": "x"}]}), Some("resourceclaims")),
        (json!({"volumes": [{"secret": {}}]}), Some("secrets (via secret volumes)")),
        (json!({"volumes": [{"csi": {}}]}), Some("csidrivers (via CSI volumes)")),
        (
            json!({"volumes": [{"ephemeral": {}}]}),
            Some("persistentvolumeclaims (via ephemeral volumes)"),
        ),
        (
            json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}),
            Some("serviceaccounts (via projected volumes)"),
        ),
        (
            json!({"volumes": [{"projected": {"sources": [{"podCertificate": {}}]}}]}),
            Some("podcertificates"),
        ),
        (json!({"volumes": [{"name": "x", "newThing": {}}]}), Some("unknown volume types")),
    ] {
        assert_eq!(mirror_pod_reference(&json!({"spec": spec})), what, "{spec}");
    }
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("*".to_owned()),
        prop::sample::select(vec![
            "get",
            "create",
            "pods",
            "nodes",
            "secrets",
            "status",
            "n1",
            "system:nodes"
        ])
        .prop_map(str::to_owned),
        "[a-z./*:-]{1,12}",
    ]
}

proptest! {
/// A user without bindings and groups may do nothing.
    #[test]
    fn authorization_denies_by_default(
        name in word(), verb in word(), group in word(), resource in word(), subresource in word(),
        namespace in word(), object in word(), path in word(), is_path in any::<bool>(),
    ) {
        let known = ["system:kube-proxy", "system:kube-scheduler", "system:kube-controller-manager", KUBELET_CLIENT];
        prop_assume!(!known.contains(&name.as_str()));
        thread_local!(static FULL: Authorizer = authorizer(&[]));
        let user = User { name, ..User::default() };
        let target = match is_path {
            true => Target::Path(&path),
            false => Target::Resource(ResourceTarget {
                group: &group, version: "", resource: &resource, subresource: &subresource,
                namespace: &namespace, name: &object, fields: &[],
            }),
        };
        let access = Access { user: &user, verb: &verb, target };
        let is_allowed = FULL.with(|authorizer| authorizer.decide(&access).is_allowed());
        prop_assert!(!is_allowed, "{access:?}");
    }

/// Rules that cover a rule allow all that it allows.
    #[test]
    fn rbac_covering_rules_allow(
        owned in prop::collection::vec(rule(), 0..4), wanted in rule(),
        verb in word(), group in word(), resource in word(), subresource in word(), object in word(),
    ) {
        let target = Target::Resource(ResourceTarget {
            group: &group, resource: &resource, subresource: &subresource, name: &object,
            ..ResourceTarget::default()
        });
        let covered = Missing::of(&owned, std::slice::from_ref(&wanted), 1).is_empty();
        if covered && wanted.allows(&verb, &target) {
            prop_assert!(owned.iter().any(|rule| rule.allows(&verb, &target)));
        }
    }
}

fn rule() -> impl Strategy<Value = Rule> {
    let list =
        |words: &'static [&'static str]| prop::collection::vec(prop::sample::select(words), 1..3);
    let names = prop::collection::vec(prop::sample::select(vec!["n1", "status"]), 0..2);
    (
        list(&["get", "create", "*"]),
        list(&["", "*"]),
        list(&["pods", "*", "pods/status", "*/status"]),
        names,
    )
        .prop_map(|(verbs, groups, resources, names)| {
            Rule::from_value(&json!({
                "verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names,
            }))
        })
}
