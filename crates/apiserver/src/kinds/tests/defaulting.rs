use super::*;

#[test]
fn defaults_of_a_minimal_pod() {
    assert_eq!(
        made("pods", pod()),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "generation": 1},
            "spec": {
                "containers": [{
                    "name": "c", "image": "busybox:1", "imagePullPolicy": "IfNotPresent", "resources": {},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            },
            "status": {"phase": "Pending", "qosClass": "BestEffort"},
        })
    );
}

#[test]
fn defaults_pull_policy_by_tag() {
    let table = [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1", "IfNotPresent"),
        ("host:5000/busybox", "Always"),
        ("host:5000/busybox:1", "IfNotPresent"),
        ("busybox@sha256:abc", "IfNotPresent"),
        ("busybox:latest@sha256:abc", "Always"),
    ];
    for (image, wanted) in table {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": image}]}});
        assert_eq!(
            made("pods", pod)["spec"]["containers"][0]["imagePullPolicy"],
            wanted,
            "{image}"
        );
    }
}

#[test]
fn defaults_of_a_full_pod() {
    let pod = made(
        "pods",
        json!({
            "metadata": {"name": "p"},
            "spec": {
                "hostNetwork": true, "serviceAccount": "old",
                "containers": [{
                    "name": "c", "image": "x:1",
                    "ports": [{"containerPort": 80}],
                    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                    "livenessProbe": {"httpGet": {"port": 80}}, "readinessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 3},
                    "lifecycle": {"preStop": {"httpGet": {"port": "http"}}},
                    "resources": {"limits": {"cpu": "1", "memory": "1u"}, "requests": {"cpu": "100m"}},
                }],
                "volumes": [
                    {"name": "e"}, {"name": "s", "secret": {"secretName": "s"}}, {"name": "h", "hostPath": {"path": "/x"}},
                    {"name": "p", "projected": {"sources": [
                        {"serviceAccountToken": {"path": "t"}},
                        {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                    ]}},
                ],
            },
        }),
    );
    let spec = &pod["spec"];
    let container = &spec["containers"][0];
    assert_eq!(
        container["ports"],
        json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}])
    );
    assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
    assert_eq!(
        container["livenessProbe"],
        json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
               "successThreshold": 1, "failureThreshold": 3})
    );
    assert_eq!(container["readinessProbe"]["periodSeconds"], 3);
    assert_eq!(
        container["lifecycle"]["preStop"]["httpGet"],
        json!({"port": "http", "path": "/", "scheme": "HTTP"})
    );
    assert_eq!(
        container["resources"],
        json!({"limits": {"cpu": "1", "memory": "1m"}, "requests": {"cpu": "100m", "memory": "1m"}})
    );
    assert_eq!(
        (&spec["serviceAccount"], &spec["serviceAccountName"]),
        (&json!("old"), &json!("old"))
    );
    assert_eq!(
        spec["volumes"],
        json!([
            {"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s", "defaultMode": 420}},
            {"name": "h", "hostPath": {"path": "/x", "type": ""}},
            {"name": "p", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}},
                {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}]}},
            ]}},
        ])
    );
    assert_eq!(pod["status"]["qosClass"], "Burstable");
}

#[test]
fn defaults_of_resources_of_a_pod_as_a_whole() {
    let huge = "hugepages-2Mi";
    let table = [
        // nothing is given for the pod
        (json!({}), json!({"requests": {"cpu": "1"}}), json!({})),
        // limits: requests come from the containers, where they have any, or else from the limits
        (
            json!({"limits": {"cpu": "4", "memory": "1Gi"}}),
            json!({"requests": {"cpu": "500m"}}),
            json!({"limits": {"cpu": "4", "memory": "1Gi"}, "requests": {"cpu": "1500m", "memory": "1Gi"}}),
        ),
        // without limits of the pod its requests stay as they are
        (
            json!({"requests": {"memory": "1Gi"}}),
            json!({"requests": {"cpu": "500m"}}),
            json!({"requests": {"memory": "1Gi"}}),
        ),
        // huge pages of the containers are a limit of the pod, and so a request
        (
            json!({"requests": {"cpu": "2"}}),
            json!({"limits": {huge: "4Mi"}}),
            json!({"limits": {huge: "12Mi"}, "requests": {"cpu": "2", huge: "12Mi"}}),
        ),
    ];
    for (whole, one, wanted) in table {
        let container = |name: &str| json!({"name": name, "image": "i", "resources": one});
        let mut sidecar = container("s");
        sidecar["restartPolicy"] = "Always".into();
        let pod = json!({"metadata": {"name": "p"}, "spec": {"resources": whole,
            "initContainers": [sidecar], "containers": [container("a"), container("b")]}});
        assert_eq!(made("pods", pod)["spec"]["resources"], wanted);
    }
}

#[test]
fn services() {
    let service = |spec: Value| {
        made("services", json!({"metadata": {"name": "s"}, "spec": spec}))["spec"].clone()
    };
    assert_eq!(
        service(json!({"ports": [{"port": 80}], "selector": {"a": "b"}})),
        json!({
            "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "selector": {"a": "b"},
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        })
    );
    let sticky = service(
        json!({"type": "NodePort", "sessionAffinity": "ClientIP", "ports": [{"port": 1, "targetPort": "x"}]}),
    );
    assert_eq!(sticky["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
    assert_eq!(
        (&sticky["externalTrafficPolicy"], &sticky["ports"][0]["targetPort"]),
        (&json!("Cluster"), &json!("x"))
    );
    let name = service(json!({"type": "ExternalName", "externalName": "x.y"}));
    assert_eq!(
        name,
        json!({"type": "ExternalName", "externalName": "x.y", "sessionAffinity": "None"})
    );
    let balanced = service(json!({"type": "LoadBalancer", "ports": [{"port": 1}]}));
    assert_eq!(balanced["allocateLoadBalancerNodePorts"], true);
}

#[test]
fn other_kinds() {
    let secret = made(
        "secrets",
        json!({"metadata": {"name": "s"}, "data": {"a": "eA=="}, "stringData": {"b": "hi"}}),
    );
    assert_eq!(secret["data"], json!({"a": "eA==", "b": "aGk="}));
    assert_eq!((&secret["type"], secret.get("stringData")), (&json!("Opaque"), None));
    let namespace = made("namespaces", json!({"metadata": {"name": "n"}}));
    assert_eq!(namespace["metadata"]["labels"], json!({"kubernetes.io/metadata.name": "n"}));
    assert_eq!(namespace["spec"], json!({"finalizers": ["kubernetes"]}));
    assert_eq!(namespace["status"], json!({"phase": "Active"}));
    let node =
        made("nodes", json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}}));
    assert_eq!(node["status"]["allocatable"], json!({"cpu": "2"}));
    let slice = made(
        "endpointslices",
        json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [], "ports": [{"port": 1}]}),
    );
    assert_eq!(slice["ports"], json!([{"name": "", "port": 1, "protocol": "TCP"}]));
    let controller = made(
        "replicationcontrollers",
        json!({"metadata": {"name": "r"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}}}),
    );
    assert_eq!(controller["spec"]["replicas"], 1);
    assert_eq!(controller["spec"]["selector"], json!({"a": "b"}));
    assert_eq!(controller["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!(controller["spec"]["template"]["spec"]["restartPolicy"], "Always");
    assert_eq!(controller["spec"]["template"]["spec"].get("enableServiceLinks"), None);
}

#[test]
fn events_convert_between_both_groups() {
    let events = lookup("events.k8s.io", "v1", "events").unwrap();
    let shown = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "regarding": {"name": "p"},
        "note": "hi", "reportingController": "k", "reportingInstance": "n", "deprecatedCount": 2,
    });
    let stored = to_storage(events, shown.clone());
    assert_eq!(
        stored,
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"name": "p"},
            "message": "hi", "reportingComponent": "k", "reportingInstance": "n", "count": 2,
        })
    );
    assert_eq!(from_storage(lookup("", "v1", "events").unwrap(), stored.clone()), stored);
    assert_eq!(from_storage(events, stored), shown);
}
