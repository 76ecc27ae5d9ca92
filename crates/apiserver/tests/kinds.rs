//! Kinds that are more than stored, over real HTTPS: what the server makes of them, and what it has
//! of them from the start.

use crate::common;

use common::*;
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o["metadata"]["name"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ip_addresses_follow_services() {
    const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let services = "/api/v1/namespaces/default/services";
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}]},
    });
    admin.create(services, service).await;
    let path = format!("{ADDRESSES}/10.96.0.77");
    eventually("the address has its object", || async { admin.get(&path).await.0 == 200 }).await;
    let (_, address) = admin.get(&path).await;
    let parent = json!({"resource": "services", "namespace": "default", "name": "web"});
    assert_eq!(address["spec"]["parentRef"], parent);
    assert_eq!(
        address["metadata"]["labels"]["ipaddress.kubernetes.io/managed-by"],
        "ipallocator.k8s.io"
    );
    let (code, list) = admin.get(ADDRESSES).await;
    assert_eq!((code, names(&list)), (200, vec!["10.96.0.1", "10.96.0.77"]));
    // one that is deleted though its service is there comes back, another's object stays as it is
    let uid = address["metadata"]["uid"].clone();
    assert_eq!(admin.call("DELETE", &path, None).await.0, 200);
    eventually("it is made again", || async {
        let (code, now) = admin.get(&path).await;
        code == 200 && now["metadata"]["uid"] != uid
    })
    .await;
    let other = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {"name": "fe80::1"},
        "spec": {"parentRef": {"group": "g", "resource": "r", "name": "n"}},
    });
    admin.create(ADDRESSES, other).await;
    assert_eq!(admin.call("DELETE", &format!("{services}/web"), None).await.0, 200);
    eventually("it goes with its service", || async { admin.get(&path).await.0 == 404 }).await;
    assert_eq!(admin.get(&format!("{ADDRESSES}/fe80::1")).await.0, 200);
    let bad = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {"name": "010.0.0.1"},
        "spec": {"parentRef": {"resource": "r", "name": "n"}},
    });
    assert_eq!(admin.call("POST", ADDRESSES, Some(bad)).await.0, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_clusters_have_their_range_and_flow_schemas() {
    let cluster = Cluster::start().await;
    let (_, cidr) = cluster.admin.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await;
    assert_eq!(cidr["spec"]["cidrs"], json!(["10.96.0.0/24"]));
    assert_eq!(cidr["status"]["conditions"][0]["status"], "True");
    let flow = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let (_, levels) = cluster.admin.get(&format!("{flow}/prioritylevelconfigurations")).await;
    assert!(names(&levels).contains(&"workload-low"), "{levels}");
    let (_, schema) = cluster.admin.get(&format!("{flow}/flowschemas/global-default")).await;
    assert_eq!(schema["spec"]["matchingPrecedence"], 9900);
    let condition = &schema["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Dangling"), &json!("False")));
    let map = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let (_, map) = cluster.admin.get(map).await;
    assert!(map["data"]["client-ca-file"].as_str().unwrap().contains("BEGIN CERTIFICATE"));
    // A server without flags for front proxies makes a CA of its own for them.
    let front_proxy = map["data"]["requestheader-client-ca-file"].as_str().unwrap();
    assert!(front_proxy.contains("BEGIN CERTIFICATE"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn autoscalers_are_served_in_both_versions() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let [v1, v2] = ["v1", "v2"].map(|version| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    });
    let scaler = json!({
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "a"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 3,
        },
    });
    let mut watch = admin.watch(&format!("{v1}?watch=true")).await;
    let created = admin.create(&v1, scaler).await;
    assert_eq!(created["apiVersion"], "autoscaling/v1");
    assert_eq!(created["spec"]["targetCPUUtilizationPercentage"], 80);
    let event = watch.next().await.unwrap();
    assert_eq!(event["object"]["apiVersion"], "autoscaling/v1");
    assert_eq!(event["object"]["spec"]["targetCPUUtilizationPercentage"], 80);
    let (_, mut new) = admin.get(&format!("{v2}/a")).await;
    let target = &new["spec"]["metrics"][0]["resource"]["target"];
    assert_eq!(target["averageUtilization"], 80);
    let metric = json!({"type": "Pods", "pods": {
        "metric": {"name": "queue"},
        "target": {"type": "AverageValue", "averageValue": "10"},
    }});
    new["spec"]["metrics"].as_array_mut().unwrap().push(metric.clone());
    assert_eq!(admin.call("PUT", &format!("{v2}/a"), Some(new)).await.0, 200);
    // a client of v1 that changes something else loses nothing
    let (_, mut old) = admin.get(&format!("{v1}/a")).await;
    old["spec"]["maxReplicas"] = 5.into();
    let (code, old) = admin.call("PUT", &format!("{v1}/a"), Some(old)).await;
    assert_eq!((code, &old["spec"]["maxReplicas"]), (200, &json!(5)), "{old}");
    let (_, new) = admin.get(&format!("{v2}/a")).await;
    assert!(new["spec"]["metrics"].as_array().unwrap().contains(&metric), "{new}");
    let (_, list) = admin.get(&v1).await;
    assert_eq!(list["items"][0]["apiVersion"], "autoscaling/v1");
    let bad = json!({"spec": {"maxReplicas": 0}});
    assert_eq!(admin.call("PATCH", &format!("{v1}/a"), Some(bad)).await.0, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_selected_in_both_groups() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let new = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e", "labels": {"l": "1"}},
        "regarding": {"namespace": "default", "name": "p"},
        "eventTime": "2017-09-19T13:49:16.000000Z",
        "note": "This is e",
        "action": "Do",
        "reason": "Test",
        "type": "Normal",
        "reportingController": "test-controller",
        "reportingInstance": "test-node",
    });
    admin.create(new, event).await;
    for (path, is_found) in [
        ("/api/v1/namespaces/default/events?fieldSelector=source%3Dtest-controller", true),
        ("/api/v1/events?fieldSelector=involvedObject.name%3Dp", true),
        ("/api/v1/events?fieldSelector=source%3Dother", false),
        ("/apis/events.k8s.io/v1/events?fieldSelector=reportingController%3Dtest-controller", true),
        ("/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Dp,reason%3DTest", true),
        ("/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Dq", false),
    ] {
        let (code, list) = admin.get(path).await;
        let found = list["items"].as_array().unwrap().len();
        assert_eq!((code, found), (200, usize::from(is_found)), "{path}");
    }
    let mut watch = admin
        .watch(&format!("{new}?watch=true&fieldSelector=reportingController%3Dtest-controller"))
        .await;
    assert_eq!(watch.line().await, "ADDED e");
    let series = json!({"series": {"count": 2, "lastObservedTime": "2017-09-19T13:49:11.000000Z"}});
    let (code, patched) = admin
        .send(
            "PATCH",
            &format!("{new}/e"),
            "application/strategic-merge-patch+json",
            series.to_string().into_bytes(),
        )
        .await;
    assert_eq!((code, &patched["series"]["count"]), (200, &json!(2)), "{patched}");
    assert_eq!(watch.line().await, "MODIFIED e");
    let (_, mut event) = admin.get(&format!("{new}/e")).await;
    event["series"]["count"] = 100.into();
    assert_eq!(admin.call("PUT", &format!("{new}/e"), Some(event)).await.0, 200);
    let (code, _) = admin.call("DELETE", &format!("{new}?labelSelector=l%3D1"), None).await;
    assert_eq!(code, 200);
    assert_eq!(admin.get("/api/v1/events").await.1["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_claims_have_a_status_of_their_own() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let exactly = json!({"deviceClassName": "dra.example.com"});
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "labels": {"a": "b"}},
        "spec": {"devices": {"requests": [{"name": "req-0", "exactly": exactly}]}},
        "status": {"allocation": {}},
    });
    let created = admin.create(claims, claim).await;
    assert!(created["status"]["allocation"].is_null(), "{created}");
    assert_eq!(created["spec"]["devices"]["requests"][0]["exactly"]["count"], 1);
    let path = format!("{claims}/c");
    let status = json!({"status": {"allocation": {}}, "metadata": {"labels": {"a": "other"}}});
    let (code, changed) = admin.call("PATCH", &format!("{path}/status"), Some(status)).await;
    assert_eq!(code, 200, "{changed}");
    assert!(changed["status"]["allocation"].is_object(), "{changed}");
    assert_eq!(changed["metadata"]["labels"]["a"], "b", "metadata is not changed with the status");
    let spec = json!({"spec": {"devices": {"requests": []}}});
    assert_eq!(admin.call("PATCH", &path, Some(spec)).await.0, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingresses_get_the_default_class() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let class = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {
            "name": "standard",
            "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"},
        },
        "spec": {"controller": "example.com/c", "parameters": {"kind": "P", "name": "p"}},
    });
    let created = admin.create("/apis/networking.k8s.io/v1/ingressclasses", class).await;
    assert_eq!(created["spec"]["parameters"]["scope"], "Cluster");
    let ingress = |name: &str, class: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {"name": name},
            "spec": {
                "ingressClassName": class,
                "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}},
            },
        })
    };
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let plain = admin.create(ingresses, ingress("plain", Value::Null)).await;
    assert_eq!(plain["spec"]["ingressClassName"], "standard");
    let own = admin.create(ingresses, ingress("own", json!("mine"))).await;
    assert_eq!(own["spec"]["ingressClassName"], "mine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_configurations_are_stored_without_a_warning() {
    let cluster = Cluster::start().await;
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let hooks = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hooks"},
        "webhooks": [{
            "name": "a.example.com",
            "clientConfig": {"url": "https://hook.example.com/"},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    let body = hooks.to_string();
    let (code, answer) =
        cluster.admin_text(path, &["-i", "-H", "content-type: application/json", "-d", &body]);
    assert_eq!(code, 201, "{answer}");
    assert!(!answer.contains("warning:"), "{answer}");
    let (_, stored) = cluster.admin.get(&format!("{path}/hooks")).await;
    assert_eq!(stored["webhooks"][0]["timeoutSeconds"], 10);
    let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    let binding = json!({
        "metadata": {"name": "b"},
        "spec": {"policyName": "p", "validationActions": ["Deny"]},
    });
    let body = binding.to_string();
    let (code, answer) =
        cluster.admin_text(path, &["-i", "-H", "content-type: application/json", "-d", &body]);
    assert_eq!(code, 201, "{answer}");
    assert!(!answer.contains("warning:"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn component_statuses_are_asked_for() {
    let cluster = Cluster::start().await;
    let (code, list) = cluster.admin.get("/api/v1/componentstatuses").await;
    assert_eq!((code, names(&list)), (200, vec!["scheduler", "controller-manager", "etcd-0"]));
    let (code, store) = cluster.admin.get("/api/v1/componentstatuses/etcd-0").await;
    assert_eq!((code, &store["conditions"][0]["message"]), (200, &json!("ok")));
    assert_eq!(cluster.admin.get("/api/v1/componentstatuses/none").await.0, 404);
    assert_eq!(cluster.admin.call("DELETE", "/api/v1/componentstatuses/etcd-0", None).await.0, 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviews_have_no_table() {
    let cluster = Cluster::start().await;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}},
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let accept = "accept: application/json;as=Table;v=v1;g=meta.k8s.io";
    let body = review.to_string();
    let json = "content-type: application/json";
    let (code, _) = cluster.admin_curl(path, &["-H", accept, "-H", json, "-d", &body]);
    assert_eq!(code, 406);
    assert_eq!(cluster.admin_curl(path, &["-H", json, "-d", &body]).0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_go_on_after_their_version_is_compacted() {
    let cluster = Cluster::start_with(|config| {
        config.compaction_interval = std::time::Duration::from_millis(100);
    })
    .await;
    let admin = &cluster.admin;
    let maps = "/api/v1/namespaces/default/configmaps";
    for i in 0..6 {
        admin.create(maps, config_map(&format!("m{i}"), json!({}))).await;
    }
    let selected = |more: &str| format!("{maps}?limit=2{more}");
    let (_, first) = admin.get(&selected("")).await;
    assert_eq!(first["metadata"]["remainingItemCount"], 4);
    let went_on = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let path = selected(&format!("&continue={went_on}"));
    eventually("the version is compacted", || async {
        // each compaction forgets what is older than the newest write
        admin
            .call(
                "PATCH",
                &format!("{maps}/m5"),
                Some(json!({"data": {"t": revision(&admin.get(maps).await.1)}})),
            )
            .await;
        admin.get(&path).await.0 == 410
    })
    .await;
    let (_, refused) = admin.get(&path).await;
    assert_eq!(refused["reason"], "Expired");
    let token = refused["metadata"]["continue"].as_str().expect("a token to go on").to_owned();
    let (code, second) = admin.get(&selected(&format!("&continue={token}"))).await;
    assert_eq!((code, names(&second)), (200, vec!["m2", "m3"]), "{second}");
    assert_ne!(revision(&second), revision(&first));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_documents_have_etags() {
    let cluster = Cluster::start().await;
    let aggregated = "accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for path in ["/apis", "/openapi/v3/api/v1", "/openapi/v2"] {
        let (code, answer) =
            cluster.admin_text(path, &["-i", "-H", aggregated, "-H", "accept: application/json"]);
        assert_eq!(code, 200, "{path}");
        let tag =
            answer.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag").trim();
        let known = format!("if-none-match: {tag}");
        let (code, body) = cluster
            .admin_text(path, &["-H", aggregated, "-H", "accept: application/json", "-H", &known]);
        assert_eq!((code, body.as_str()), (304, ""), "{path}");
        let other = "if-none-match: \"0\"";
        let (code, body) = cluster
            .admin_text(path, &["-H", aggregated, "-H", "accept: application/json", "-H", other]);
        assert!(code == 200 && !body.is_empty(), "{path}");
    }
}
