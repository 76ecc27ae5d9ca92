//! Subresources of pods that change a part of them, and what runtime classes do to pods.

use crate::common;

use common::*;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";

/// A strategic merge patch, as kubectl sends it.
async fn patch(client: &Client, path: &str, body: &Value) -> (u16, Value) {
    let kind = "application/strategic-merge-patch+json";
    client.send("PATCH", path, kind, body.to_string().into_bytes()).await
}

fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ephemeral_containers_subresource() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    admin.create(PODS, pod("web", "n1")).await;
    let path = format!("{PODS}/web/ephemeralcontainers");
    let (_, before) = admin.get(&path).await;
    assert_eq!((&before["kind"], generation(&before)), (&json!("Pod"), 1));
    let add = |container: Value| json!({"spec": {"ephemeralContainers": [container]}});
    let change = async |body: Value| patch(admin, &path, &body).await;

    let look =
        json!({"name": "look", "image": "busybox", "targetContainerName": "c", "stdin": true});
    let mut body = add(look);
    // all other changes are ignored
    body["spec"]["containers"] = json!([{"name": "c", "image": "other"}]);
    let (code, after) = change(body).await;
    assert_eq!(code, 200, "{after}");
    let spec = &after["spec"];
    assert_eq!((generation(&after), &spec["containers"][0]["image"]), (2, &json!("busybox")));
    assert_eq!(spec["ephemeralContainers"][0]["terminationMessagePolicy"], "File");
    assert_eq!(spec["ephemeralContainers"][0]["imagePullPolicy"], "Always");

    for (container, expected) in [
        (
            json!({"name": "look", "image": "other"}),
            "existing ephemeral containers \"look\" may not be changed",
        ),
        (json!({"name": "c", "image": "i"}), "spec.ephemeralContainers[0].name: Duplicate value"),
        (
            json!({"name": "x", "image": "i", "targetContainerName": "none"}),
            "spec.ephemeralContainers[0].targetContainerName: Not found: \"none\"",
        ),
        (
            json!({"name": "x", "image": "i", "restartPolicy": "Always"}),
            "spec.ephemeralContainers[0].restartPolicy: Forbidden: cannot be set for an Ephemeral Container",
        ),
        (
            json!({"name": "x", "image": "i", "resources": {"limits": {"cpu": "1"}}}),
            "spec.ephemeralContainers[0].resources: Forbidden: cannot be set for an Ephemeral Container",
        ),
    ] {
        let (code, status) = change(add(container.clone())).await;
        let message = status["message"].as_str().unwrap_or_default();
        assert_eq!(code, 422, "{container}: {status}");
        assert!(message.contains(expected), "{message}");
    }
    let mut without = after.clone();
    without["spec"]["ephemeralContainers"] = json!([]);
    let (code, status) = admin.call("PUT", &path, Some(without)).await;
    let expected = "existing ephemeral containers \"look\" may not be removed";
    assert!(code == 422 && status["message"].as_str().unwrap().contains(expected), "{status}");
    assert_eq!(admin.call("PUT", &path, Some(before)).await.0, 409, "made from an old version");

    let (code, more) = change(add(json!({"name": "more", "image": "busybox"}))).await;
    let names = more["spec"]["ephemeralContainers"].as_array().unwrap().len();
    assert_eq!((code, names, generation(&more)), (200, 2, 3));
    let plain = json!({"spec": {"ephemeralContainers": [{"name": "again", "image": "busybox"}]}});
    assert_eq!(admin.call("PATCH", &format!("{PODS}/web"), Some(plain)).await.0, 422);

    let mut mirror = pod("mirror", "n1");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    admin.create(PODS, mirror).await;
    let path = format!("{PODS}/mirror/ephemeralcontainers");
    let body = add(json!({"name": "look", "image": "busybox"}));
    let (code, status) = patch(admin, &path, &body).await;
    let message = status["message"].as_str().unwrap();
    assert!(code == 422 && message.contains("static pods do not support ephemeral"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_resize_subresource() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let features =
        ["InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"];
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "allocatable": {"cpu": "4", "memory": "1Gi"}, "declaredFeatures": features,
    }});
    admin.create("/api/v1/nodes", node).await;
    let mut web = pod("web", "n1");
    web["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}});
    web["spec"]["initContainers"] = json!([{"name": "first", "image": "busybox"}]);
    admin.create(PODS, web).await;
    let path = format!("{PODS}/web/resize");
    let change = async |container: Value| {
        let body = json!({"spec": {"containers": [container]}});
        patch(admin, &path, &body).await
    };
    let (code, after) = change(json!({
        "name": "c", "image": "other",
        "resources": {"requests": {"cpu": "200m"}, "limits": {"cpu": "1"}},
    }))
    .await;
    assert_eq!(code, 200, "{after}");
    let container = &after["spec"]["containers"][0];
    assert_eq!((generation(&after), &container["image"]), (2, &json!("busybox")));
    assert_eq!(
        container["resources"],
        json!({"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}})
    );
    let (_, same) = change(json!({"name": "c", "resources": {"requests": {"cpu": "200m"}}})).await;
    assert_eq!(generation(&same), 2);

    for (container, expected) in [
        (
            json!({"name": "c", "resources": {"requests": {"cpu": "2"}}}),
            "must be less than or equal to cpu limit",
        ),
        (
            json!({"name": "c", "resources": {"limits": {"memory": null}}}),
            "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
        ),
        (
            json!({"name": "c", "resources": {"limits": {"ephemeral-storage": "1Gi"}}}),
            "only cpu and memory resources are mutable",
        ),
        (json!({"name": "d", "image": "i"}), "containers may not be added or removed on resize"),
    ] {
        let (code, status) = change(container.clone()).await;
        let message = status["message"].as_str().unwrap_or_default();
        assert!(code == 422 && message.contains(expected), "{container}: {status}");
    }
    let first = json!({"spec": {"initContainers": [{"name": "first", "resources": {"limits": {"cpu": "2"}}}]}});
    let (code, after) = patch(admin, &path, &first).await;
    assert_eq!(code, 200, "{after}");
    assert_eq!(after["spec"]["initContainers"][0]["resources"]["limits"]["cpu"], "2");

    admin.create(PODS, pod("plain", "n1")).await;
    let some =
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1m"}}}]}});
    let (code, status) = patch(admin, &format!("{PODS}/plain/resize"), &some).await;
    let expected = "Pod QOS Class may not change as a result of resizing";
    assert!(code == 422 && status["message"].as_str().unwrap().contains(expected), "{status}");

    let mut whole = pod("whole", "n1");
    whole["spec"]["resources"] = json!({"limits": {"cpu": "2"}});
    admin.create(PODS, whole).await;
    let resize = async |limit: Value| {
        let body = json!({"spec": {"resources": {"limits": {"cpu": limit}}}});
        patch(admin, &format!("{PODS}/whole/resize"), &body).await
    };
    let (code, after) = resize(json!("3")).await;
    assert_eq!((code, generation(&after)), (200, 2), "{after}");
    let (code, status) = resize(Value::Null).await;
    let expected = "pod-level resource limits cannot be removed";
    assert!(code == 422 && status["message"].as_str().unwrap().contains(expected), "{status}");

    // where the node says nothing of resources, it does not resize
    let running = json!({"status": {"containerStatuses": [{
        "name": "c", "state": {"running": {}}, "ready": true, "restartCount": 0, "image": "i", "imageID": "i",
    }]}});
    assert_eq!(admin.call("PATCH", &format!("{PODS}/web/status"), Some(running)).await.0, 200);
    let (code, status) =
        change(json!({"name": "c", "resources": {"requests": {"cpu": "300m"}}})).await;
    let expected = "Pod running on node without support for resize";
    assert!(code == 422 && status["message"].as_str().unwrap().contains(expected), "{status}");
}

/// A resize of the pod as a whole, as the cluster answers it: code, message and causes.
async fn whole_resize(admin: &Client, cpu: &str) -> (u16, Value, Value) {
    let resources = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    let body = json!({"spec": {"resources": resources}});
    let (code, answer) = patch(admin, &format!("{PODS}/whole/resize"), &body).await;
    (code, answer["message"].clone(), answer["details"]["causes"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_resize_is_checked_against_its_node() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let mut whole = pod("whole", "n1");
    whole["spec"]["resources"] = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}});
    admin.create(PODS, whole).await;
    let forbidden = |why: &str| json!(format!("pods \"whole\" is forbidden: {why}"));
    let none = || Value::Null;
    let answer = whole_resize(admin, "3").await;
    assert_eq!(answer, (403, forbidden("node \"n1\" not found"), none()));

    let node = json!({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4", "memory": "1Gi"}}});
    admin.create("/api/v1/nodes", node).await;
    let feature = "InPlacePodLevelResourcesVerticalScaling";
    let why =
        format!("pod update requires features {feature} which are not available on node \"n1\"");
    assert_eq!(whole_resize(admin, "3").await, (403, forbidden(&why), none()));
    let same = whole_resize(admin, "2").await;
    assert_eq!(same, (200, none(), none()), "nothing changes");

    let declare = async |features: Value| {
        let status = json!({"status": {"declaredFeatures": features}});
        admin.call("PATCH", "/api/v1/nodes/n1/status", Some(status)).await
    };
    let (code, status) = declare(json!(["b"])).await;
    assert_eq!(
        (code, &status["details"]["causes"][0]["field"]),
        (422, &json!("status.declaredFeatures[0]"))
    );
    let (code, node) = declare(json!([feature])).await;
    assert_eq!((code, &node["status"]["declaredFeatures"]), (200, &json!([feature])));
    assert_eq!(whole_resize(admin, "3").await, (200, none(), none()));
    let why =
        "node didn't have enough allocatable resources: cpu, requested: 5000, allocatable: 4000";
    let causes = json!([{"reason": "NodeCapacity"}]);
    assert_eq!(whole_resize(admin, "5").await, (403, forbidden(why), causes));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_features_are_not_checked_without_their_gate() {
    let cluster = Cluster::start_with(|config| {
        config.gates = "NodeDeclaredFeatures=false".parse().unwrap();
    })
    .await;
    let admin = &cluster.admin;
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "allocatable": {"cpu": "4", "memory": "1Gi"}, "declaredFeatures": ["A"],
    }});
    let node = admin.create("/api/v1/nodes", node).await;
    assert_eq!(node["status"].get("declaredFeatures"), None);
    let mut whole = pod("whole", "n1");
    whole["spec"]["resources"] = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}});
    admin.create(PODS, whole).await;
    assert_eq!(whole_resize(admin, "3").await, (200, Value::Null, Value::Null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runtime_class_overhead_and_scheduling() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "boxed"},
        "handler": "runc",
        "overhead": {"podFixed": {"memory": "16Mi"}},
        "scheduling": {
            "nodeSelector": {"box": "yes"},
            "tolerations": [{"key": "box", "operator": "Exists"}],
        },
    });
    admin.create(CLASSES, class).await;
    let of_class = |name: &str, more: Value| {
        let mut pod = pod(name, "");
        pod["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pod
    };
    let boxed = of_class("boxed", json!({"runtimeClassName": "boxed", "nodeSelector": {"a": "b"}}));
    let boxed = admin.create(PODS, boxed).await;
    assert_eq!(boxed["spec"]["overhead"], json!({"memory": "16Mi"}));
    assert_eq!(boxed["spec"]["nodeSelector"], json!({"a": "b", "box": "yes"}));
    let tolerations = boxed["spec"]["tolerations"].as_array().unwrap();
    assert!(tolerations.iter().any(|toleration| toleration["key"] == "box"));
    for (more, expected) in [
        (json!({"runtimeClassName": "none"}), "pod rejected: RuntimeClass \"none\" not found"),
        (
            json!({"runtimeClassName": "boxed", "overhead": {"memory": "1Mi"}}),
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            json!({"overhead": {"memory": "1Mi"}}),
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        (
            json!({"runtimeClassName": "boxed", "nodeSelector": {"box": "no"}}),
            "conflict: runtimeClass.scheduling.nodeSelector[box] = yes; pod.spec.nodeSelector[box] = no",
        ),
    ] {
        let (code, status) = admin.call("POST", PODS, Some(of_class("x", more))).await;
        let message = status["message"].as_str().unwrap_or_default();
        assert!(code == 403 && message.ends_with(expected), "{status}");
    }
    let patch = json!({"handler": "other"});
    let (code, status) = admin.call("PATCH", &format!("{CLASSES}/boxed"), Some(patch)).await;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(code == 422 && message.contains("handler: Invalid value"), "{status}");
    let node = cluster.node().await;
    for path in [CLASSES, "/apis/node.k8s.io/v1/runtimeclasses/boxed", "/api/v1/services"] {
        assert_eq!(node.get(path).await.0, 200, "{path}");
    }
}
