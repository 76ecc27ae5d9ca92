use proptest::prelude::*;
use serde_json::{Value, json};

use super::Cluster;
use crate::events::ClusterEvent;
use crate::framework::Code;
use crate::model::Objects;
use crate::plugins::Registry;
use crate::testing::{node, pod, profile, profile_of};

/// A node that is changed, pods on it, a pod, and what is said of it.
fn check(node_: Value, others: &[Value], own: Value) -> String {
    let nodes = [node("n1", 4, node_)];
    let others: Vec<_> = others
        .iter()
        .enumerate()
        .map(|(index, more)| {
            let mut more = more.clone();
            crate::testing::merge(&mut more, json!({"spec": {"nodeName": "n1"}}));
            pod(&format!("other{index}"), "1", more)
        })
        .collect();
    Cluster::new(&nodes, &others).reasons(&profile(), &pod("p", "1", own), "n1")
}

#[test]
fn filters_say_why_in_upstreams_words() {
    let port = json!({"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}});
    let port_of = |ip: &str| json!({"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80, "hostIP": ip}]}]}});
    let requests = |all: Value| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": all}}]}});
    let affinity = |terms: Value| json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}});
    let labels = json!({"metadata": {"labels": {"disk": "ssd", "cores": "8"}}});
    let tainted = json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}});
    let tolerating = |toleration: Value| json!({"spec": {"tolerations": [toleration]}});
    let not_affine = "node(s) didn't match Pod's node affinity/selector";
    for (node, others, own, expected) in [
        (json!({}), vec![], json!({}), ""),
        // resources
        (json!({}), vec![json!({}); 4], json!({}), "Insufficient cpu"),
        (
            json!({}),
            vec![],
            requests(json!({"cpu": "5", "memory": "11Gi"})),
            "Insufficient cpu, Insufficient memory",
        ),
        (
            json!({}),
            vec![],
            requests(json!({"ephemeral-storage": "1Gi"})),
            "Insufficient ephemeral-storage",
        ),
        (
            json!({}),
            vec![],
            requests(json!({"example.com/foo": "1"})),
            "Insufficient example.com/foo",
        ),
        (
            json!({"status": {"allocatable": {"example.com/foo": "2"}}}),
            vec![],
            requests(json!({"example.com/foo": "2"})),
            "",
        ),
        (
            json!({"status": {"allocatable": {"pods": "1"}}}),
            vec![json!({})],
            json!({}),
            "Too many pods",
        ),
        (json!({}), vec![], json!({"spec": {"overhead": {"cpu": "3500m"}}}), "Insufficient cpu"),
        (
            json!({}),
            vec![],
            json!({"spec": {"resources": {"requests": {"cpu": "5"}}}}),
            "Insufficient cpu",
        ),
        (
            json!({}),
            vec![],
            json!({"spec": {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "5"}}}]}}),
            "Insufficient cpu",
        ),
        (
            json!({}),
            vec![],
            json!({"spec": {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "4"}}}]}}),
            "",
        ),
        (
            json!({}),
            vec![],
            json!({"spec": {"initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "4"}}}]}}),
            "Insufficient cpu",
        ),
        // ports
        (
            json!({}),
            vec![port.clone()],
            port.clone(),
            "node(s) didn't have free ports for the requested pod ports",
        ),
        (
            json!({}),
            vec![port_of("127.0.0.1")],
            port.clone(),
            "node(s) didn't have free ports for the requested pod ports",
        ),
        (json!({}), vec![port_of("127.0.0.1")], port_of("127.0.0.2"), ""),
        // name, cordon, taints
        (
            json!({}),
            vec![],
            json!({"spec": {"nodeName": "n2"}}),
            "node(s) didn't match the requested node name",
        ),
        (json!({"spec": {"unschedulable": true}}), vec![], json!({}), "node(s) were unschedulable"),
        (
            json!({"spec": {"unschedulable": true}}),
            vec![],
            tolerating(json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"})),
            "",
        ),
        (tainted.clone(), vec![], json!({}), "node(s) had untolerated taint(s)"),
        (
            tainted.clone(),
            vec![],
            tolerating(json!({"key": "k", "value": "v", "effect": "NoSchedule"})),
            "",
        ),
        (
            tainted.clone(),
            vec![],
            tolerating(json!({"key": "k", "value": "w", "effect": "NoSchedule"})),
            "node(s) had untolerated taint(s)",
        ),
        (
            tainted.clone(),
            vec![],
            tolerating(json!({"key": "k", "operator": "Exists", "effect": "NoExecute"})),
            "node(s) had untolerated taint(s)",
        ),
        (tainted.clone(), vec![], tolerating(json!({"operator": "Exists"})), ""),
        (
            json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}}),
            vec![],
            json!({}),
            "",
        ),
        // selector and affinity
        (labels.clone(), vec![], json!({"spec": {"nodeSelector": {"disk": "ssd"}}}), ""),
        (labels.clone(), vec![], json!({"spec": {"nodeSelector": {"disk": "hdd"}}}), not_affine),
        (
            labels.clone(),
            vec![],
            affinity(
                json!([{"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["7"]}]}]),
            ),
            "",
        ),
        (
            labels.clone(),
            vec![],
            affinity(
                json!([{"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["8"]}]}]),
            ),
            not_affine,
        ),
        (
            labels.clone(),
            vec![],
            affinity(
                json!([{"matchExpressions": [{"key": "cores", "operator": "Lt", "values": ["9"]}]}]),
            ),
            "",
        ),
        (
            labels.clone(),
            vec![],
            affinity(
                json!([{"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["ssd"]}]}]),
            ),
            not_affine,
        ),
        (
            labels.clone(),
            vec![],
            affinity(json!([{"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}])),
            "",
        ),
        (
            labels.clone(),
            vec![],
            affinity(
                json!([{"matchExpressions": [{"key": "none", "operator": "Exists"}]}, {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]),
            ),
            "",
        ),
        (labels.clone(), vec![], affinity(json!([{}])), not_affine),
        (
            labels.clone(),
            vec![],
            affinity(
                json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]),
            ),
            "",
        ),
        (
            labels.clone(),
            vec![],
            affinity(
                json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}]),
            ),
            not_affine,
        ),
    ] {
        assert_eq!(check(node, &others, own.clone()), expected, "{own}");
    }
}

#[test]
fn filters_fit_is_unresolvable_only_if_the_node_is_too_small() {
    let cluster = Cluster::new(
        &[node("n1", 4, json!({}))],
        &[pod("o", "2", json!({"spec": {"nodeName": "n1"}}))],
    );
    for (cpu, expected) in [("3", Code::Unschedulable), ("5", Code::Unresolvable)] {
        let status = cluster.check(&profile(), &pod("p", cpu, json!({})), "n1").unwrap_err();
        assert_eq!(status.code, expected, "{cpu}");
    }
}

#[test]
fn filters_resized_pods_count_what_they_have() {
    let others = [pod(
        "o",
        "1",
        json!({
            "spec": {"nodeName": "n1"},
            "status": {"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "2"}}}]},
        }),
    )];
    let cluster = Cluster::new(&[node("n1", 4, json!({}))], &others);
    assert_eq!(cluster.reasons(&profile(), &pod("p", "1", json!({})), "n1"), "");
    assert_eq!(
        cluster.reasons(&profile(), &pod("p", "1500m", json!({})), "n1"),
        "Insufficient cpu"
    );
}

#[test]
fn filters_ignore_resources_that_the_configuration_names() {
    let profile = profile_of(json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{"pluginConfig": [{"name": "NodeResourcesFit", "args": {"ignoredResources": ["example.com/a"], "ignoredResourceGroups": ["example.org"]}}]}],
    }));
    let cluster = Cluster::new(&[node("n1", 4, json!({}))], &[]);
    for (resource, expected) in [
        ("example.com/a", ""),
        ("example.org/b", ""),
        ("example.com/c", "Insufficient example.com/c"),
    ] {
        let own = pod(
            "p",
            "1",
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {resource: "1"}}}]}}),
        );
        assert_eq!(cluster.reasons(&profile, &own, "n1"), expected);
    }
}

fn zoned(name: &str, zone: &str) -> std::sync::Arc<crate::model::Node> {
    node(name, 64, json!({"metadata": {"labels": {"zone": zone}}}))
}

fn labelled(name: &str, app: &str, host: &str, more: Value) -> std::sync::Arc<crate::model::Pod> {
    let mut all = json!({"metadata": {"labels": {"app": app}}, "spec": {"nodeName": host}});
    if host.is_empty() {
        all["spec"] = json!({});
    }
    crate::testing::merge(&mut all, more);
    pod(name, "1", all)
}

fn inter(kind: &str, term: Value) -> Value {
    json!({"spec": {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}})
}

#[test]
fn filters_affinity_to_pods() {
    let nodes = [zoned("n1", "a"), zoned("n2", "a"), zoned("n3", "b")];
    let web = json!({"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone"});
    let with = |more: Value| {
        let mut term = web.clone();
        crate::testing::merge(&mut term, more);
        term
    };
    let (no_affinity, no_anti, existing) = (
        "node(s) didn't match pod affinity rules",
        "node(s) didn't match pod anti-affinity rules",
        "node(s) didn't satisfy existing pods anti-affinity rules",
    );
    let near = |term| inter("podAffinity", term);
    let far = |term| inter("podAntiAffinity", term);
    for (others, own, expected) in [
        (
            vec![labelled("o", "web", "n1", json!({}))],
            labelled("p", "x", "", near(web.clone())),
            ["", "", no_affinity],
        ),
        (
            vec![labelled("o", "web", "n1", json!({}))],
            labelled("p", "x", "", far(web.clone())),
            [no_anti, no_anti, ""],
        ),
        // the first of its kind
        (vec![], labelled("p", "web", "", near(web.clone())), ["", "", ""]),
        (vec![], labelled("p", "x", "", near(web.clone())), [no_affinity; 3]),
        // symmetric
        (
            vec![labelled("o", "x", "n3", far(web.clone()))],
            labelled("p", "web", "", json!({})),
            ["", "", existing],
        ),
        // other namespaces
        (
            vec![labelled("o", "web", "n1", json!({"metadata": {"namespace": "team"}}))],
            labelled("p", "x", "", far(web.clone())),
            ["", "", ""],
        ),
        (
            vec![labelled("o", "web", "n1", json!({"metadata": {"namespace": "team"}}))],
            labelled("p", "x", "", far(with(json!({"namespaces": ["team"]})))),
            [no_anti, no_anti, ""],
        ),
        (
            vec![labelled("o", "web", "n1", json!({"metadata": {"namespace": "team"}}))],
            labelled(
                "p",
                "x",
                "",
                far(with(json!({"namespaceSelector": {"matchLabels": {"env": "prod"}}}))),
            ),
            [no_anti, no_anti, ""],
        ),
        (
            vec![labelled("o", "web", "n1", json!({"metadata": {"namespace": "team"}}))],
            labelled("p", "x", "", far(with(json!({"namespaceSelector": {}})))),
            [no_anti, no_anti, ""],
        ),
        (
            vec![labelled("o", "web", "n1", json!({"metadata": {"namespace": "team"}}))],
            labelled(
                "p",
                "x",
                "",
                far(with(json!({"namespaceSelector": {"matchLabels": {"env": "dev"}}}))),
            ),
            ["", "", ""],
        ),
        // keys of the pod's own labels
        (
            vec![labelled("o", "web", "n1", json!({"metadata": {"labels": {"hash": "1"}}}))],
            labelled("p", "web", "", {
                let mut own = far(with(json!({"matchLabelKeys": ["hash"]})));
                crate::testing::merge(&mut own, json!({"metadata": {"labels": {"hash": "2"}}}));
                own
            }),
            ["", "", ""],
        ),
        (
            vec![labelled("o", "web", "n1", json!({"metadata": {"labels": {"hash": "1"}}}))],
            labelled("p", "web", "", {
                let mut own = far(with(json!({"mismatchLabelKeys": ["hash"]})));
                crate::testing::merge(&mut own, json!({"metadata": {"labels": {"hash": "2"}}}));
                own
            }),
            [no_anti, no_anti, ""],
        ),
    ] {
        let mut cluster = Cluster::new(&nodes, &others);
        let labels =
            crate::model::Labels::new(Some(&[("env".to_owned(), "prod".to_owned())].into()));
        cluster.objects.namespaces.insert("team".into(), labels);
        let said = ["n1", "n2", "n3"].map(|node| cluster.reasons(&profile(), &own, node));
        assert_eq!(said, expected, "{own:?}");
    }
}

#[test]
fn filters_topology_spread() {
    let nodes = [zoned("n1", "a"), zoned("n2", "b"), node("n3", 64, json!({}))];
    let tainted = node(
        "n4",
        64,
        json!({"metadata": {"labels": {"zone": "c"}}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
    );
    let constraint = |more: Value| {
        let mut own = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}});
        crate::testing::merge(&mut own, more);
        json!({"spec": {"topologySpreadConstraints": [own]}})
    };
    let uneven = "node(s) didn't match pod topology spread constraints";
    let missing = "node(s) didn't match pod topology spread constraints (missing required label)";
    let one = || vec![labelled("o", "web", "n1", json!({}))];
    for (others, own, with_tainted, expected) in [
        (vec![], constraint(json!({})), false, ["", "", missing]),
        (one(), constraint(json!({})), false, [uneven, "", missing]),
        (one(), constraint(json!({"maxSkew": 2})), false, ["", "", missing]),
        // a third zone with no pod holds the least at none, unless its taint counts
        (
            vec![labelled("o", "web", "n1", json!({})), labelled("q", "web", "n2", json!({}))],
            constraint(json!({})),
            true,
            [uneven, uneven, missing],
        ),
        (
            vec![labelled("o", "web", "n1", json!({})), labelled("q", "web", "n2", json!({}))],
            constraint(json!({"nodeTaintsPolicy": "Honor"})),
            true,
            ["", "", missing],
        ),
        (
            vec![labelled("o", "web", "n1", json!({})), labelled("q", "web", "n2", json!({}))],
            constraint(json!({"minDomains": 3})),
            false,
            [uneven, uneven, missing],
        ),
        (
            vec![labelled("o", "web", "n1", json!({})), labelled("q", "web", "n2", json!({}))],
            constraint(json!({"minDomains": 2})),
            false,
            ["", "", missing],
        ),
        // preferred ones keep no node out
        (one(), constraint(json!({"whenUnsatisfiable": "ScheduleAnyway"})), false, ["", "", ""]),
        // pods that are being deleted do not count
        (
            vec![labelled(
                "o",
                "web",
                "n1",
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            )],
            constraint(json!({})),
            false,
            ["", "", missing],
        ),
        (
            vec![labelled("o", "web", "n1", json!({"metadata": {"labels": {"hash": "1"}}}))],
            {
                let mut own = constraint(json!({"matchLabelKeys": ["hash"]}));
                crate::testing::merge(&mut own, json!({"metadata": {"labels": {"hash": "2"}}}));
                own
            },
            false,
            ["", "", missing],
        ),
    ] {
        let mut nodes = nodes.to_vec();
        nodes.extend(with_tainted.then(|| tainted.clone()));
        let cluster = Cluster::new(&nodes, &others);
        let pod = labelled("p", "web", "", own.clone());
        let said = ["n1", "n2", "n3"].map(|node| cluster.reasons(&profile(), &pod, node));
        assert_eq!(said, expected, "{own}");
    }
}

#[test]
fn filters_spread_leaves_out_nodes_by_affinity_unless_policy_is_ignore() {
    let nodes = [zoned("n1", "a"), zoned("n2", "b")];
    let others = [labelled("o", "web", "n1", json!({}))];
    let own = |policy: &str| {
        labelled(
            "p",
            "web",
            "",
            json!({"spec": {
                "nodeSelector": {"zone": "a"},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": "web"}}, "nodeAffinityPolicy": policy}],
            }}),
        )
    };
    let cluster = Cluster::new(&nodes, &others);
    assert_eq!(cluster.reasons(&profile(), &own("Honor"), "n1"), "");
    assert_eq!(
        cluster.reasons(&profile(), &own("Ignore"), "n1"),
        "node(s) didn't match pod topology spread constraints"
    );
}

#[test]
fn filters_count_nominated_pods_of_no_lower_priority() {
    let mut cluster = Cluster::new(&[node("n1", 4, json!({}))], &[]);
    let nominated = pod("nominated", "4", json!({"spec": {"priority": 5}}));
    cluster.nominated.set(&nominated, Some(&"n1".into()));
    for (priority, expected) in [(4, "Insufficient cpu"), (5, "Insufficient cpu"), (6, "")] {
        let own = pod("p", "1", json!({"spec": {"priority": priority}}));
        assert_eq!(cluster.reasons(&profile(), &own, "n1"), expected, "{priority}");
    }
    assert_eq!(cluster.reasons(&profile(), &nominated, "n1"), "");
}

#[test]
fn filters_gates_name_what_they_wait_for() {
    let own =
        pod("p", "1", json!({"spec": {"schedulingGates": [{"name": "foo"}, {"name": "bar"}]}}));
    let status = profile().pre_enqueue(&own, &Objects::default()).unwrap_err();
    assert_eq!(status.message(), "waiting for scheduling gates: [foo bar]");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// What-ifs leave filters as they were: each check says the same before and after.
    #[test]
    fn filters_what_ifs_are_taken_back(apps in prop::collection::vec(0usize..3, 1..8), own in 0usize..3) {
        use crate::framework::Filters;
        let nodes = [zoned("n1", "a"), zoned("n2", "a"), zoned("n3", "b")];
        let names = ["web", "db", "x"];
        let term = json!({"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone"});
        let others: Vec<_> = apps.iter().enumerate().map(|(index, app)| {
            let host = ["n1", "n2", "n3"][index % 3];
            let more = if *app == 1 { inter("podAntiAffinity", term.clone()) } else { json!({}) };
            labelled(&format!("o{index}"), names[*app], host, more)
        }).collect();
        let pod = labelled("p", names[own], "", {
            let mut more = inter("podAntiAffinity", term.clone());
            crate::testing::merge(&mut more, json!({"spec": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}]}}));
            more
        });
        let cluster = Cluster::new(&nodes, &others);
        let profile = profile();
        let cycle = cluster.cycle(&pod);
        let mut filters = Filters::prepare(&profile, cycle).unwrap();
        let all = |filters: &mut Filters<'_>| -> Vec<_> {
            cluster.snapshot.nodes().iter().map(|info| filters.check(cycle, info)).collect()
        };
        let before = all(&mut filters);
        for info in cluster.snapshot.nodes() {
            for other in &info.pods { filters.remove_pod(other, info); }
            for other in &info.pods { filters.add_pod(other, info); }
        }
        prop_assert_eq!(all(&mut filters), before);
    }
}

/// A pod that restarts all its containers when one of them ends with that action.
fn restarting(action: &str) -> Value {
    json!({"spec": {"containers": [{"name": "c", "restartPolicyRules": [
        {"action": action, "exitCodes": {"operator": "In", "values": [1]}},
    ]}]}})
}

fn declaring(features: &[&str]) -> Value {
    json!({"status": {"declaredFeatures": features}})
}

const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";

#[test]
fn declared_features_of_nodes_are_compared_with_those_that_a_pod_needs() {
    let host = json!({"spec": {"hostNetwork": true, "hostUsers": false}});
    let (all, missing) = ("RestartAllContainers", "node(s) didn't match Pod's required features");
    for (features, own, expected) in [
        (&[][..], restarting("Restart"), ""),
        (&[], restarting(all), missing),
        (&["ExtendWebSocketsToKubelet"], restarting(all), missing),
        (&["Other", RESTART_ALL], restarting(all), ""),
        (&[RESTART_ALL], host.clone(), missing),
        (&["UserNamespacesHostNetworkSupport"], host, ""),
    ] {
        assert_eq!(check(declaring(features), &[], own.clone()), expected, "{features:?} {own}");
    }
    let cluster = Cluster::new(&[node("n1", 4, json!({}))], &[]);
    let own = pod("p", "1", restarting(all));
    let status = cluster.check(&profile(), &own, "n1").unwrap_err();
    assert_eq!((status.code, status.plugin), (Code::Unresolvable, "NodeDeclaredFeatures"));
    let registry = Registry::new(&"NodeDeclaredFeatures=false".parse().unwrap());
    let profile = crate::config::default_profiles(&registry).unwrap().remove(0);
    assert_eq!(cluster.reasons(&profile, &own, "n1"), "", "the gate is off");
}

#[test]
fn declared_features_that_change_bring_pods_back() {
    let plugin = Registry::default().make("NodeDeclaredFeatures", &Value::Null).unwrap().unwrap();
    let own = pod("p", "1", restarting("RestartAllContainers"));
    let [without, with] = [&[][..], &[RESTART_ALL]].map(|names| node("n1", 4, declaring(names)));
    let larger = node("n1", 8, declaring(&[]));
    let (other, changed) = (pod("q", "1", json!({})), pod("p", "1", json!({})));
    for (event, expected) in [
        (ClusterEvent::NodeAdded(&without), true),
        (ClusterEvent::NodeUpdated(&without, &with), true),
        (ClusterEvent::NodeUpdated(&with, &without), true),
        (ClusterEvent::NodeUpdated(&without, &larger), false),
        (ClusterEvent::NodeDeleted(&with), false),
        (ClusterEvent::PodDeleted(&other), false),
        (ClusterEvent::UnscheduledPodUpdated(&own, &changed), true),
        (ClusterEvent::UnscheduledPodUpdated(&own, &own), false),
        (ClusterEvent::UnscheduledPodUpdated(&other, &other), false),
    ] {
        assert_eq!(plugin.may_help(event, &own), expected, "{event:?}");
    }
}
