//! Objects over real HTTPS: create, read, update, patch, delete, and what must not go wrong with them.

use crate::common;

use common::*;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update_conflict_changes_nothing() {
    let cluster = Cluster::start().await;
    let first = cluster.admin.create(MAPS, config_map("a", json!({"n": "1"}))).await;
    let path = format!("{MAPS}/a");
    let mut second = first.clone();
    second["data"]["n"] = "2".into();
    let (code, second) = cluster.admin.call("PUT", &path, Some(second)).await;
    assert_eq!(code, 200);
    assert_ne!(revision(&first), revision(&second));

    let mut stale = first.clone();
    stale["data"]["n"] = "stale".into();
    let (code, status) = cluster.admin.call("PUT", &path, Some(stale)).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")), "{status}");
    let (_, now) = cluster.admin.get(&path).await;
    assert_eq!(now, second, "nothing changed");

    let stale = json!({"metadata": {"resourceVersion": revision(&first)}, "data": {"n": "stale"}});
    assert_eq!(cluster.admin.call("PATCH", &path, Some(stale)).await.0, 409);
    assert_eq!(cluster.admin.get(&path).await.1, second, "nothing changed");

    // Without a version the last writer wins; an equal object is not written again.
    let (code, third) =
        cluster.admin.call("PUT", &path, Some(config_map("a", json!({"n": "3"})))).await;
    assert_eq!((code, third["data"]["n"].as_str()), (200, Some("3")));
    let (_, same) =
        cluster.admin.call("PUT", &path, Some(config_map("a", json!({"n": "3"})))).await;
    assert_eq!(revision(&same), revision(&third));
    assert_eq!(same["metadata"]["uid"], first["metadata"]["uid"]);

    // "0" is the same as none, as clients say it that force a write.
    let mut last = config_map("a", json!({"n": "4"}));
    last["metadata"]["resourceVersion"] = "0".into();
    let (code, last) = cluster.admin.call("PUT", &path, Some(last)).await;
    assert_eq!((code, last["data"]["n"].as_str()), (200, Some("4")), "{last}");
    assert_ne!(revision(&last), revision(&third));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update_races_lose_no_change() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 12;
    let cluster = Cluster::start().await;
    cluster.admin.create(MAPS, config_map("counter", json!({"n": "0"}))).await;
    let path = format!("{MAPS}/counter");
    let racers = (0..CLIENTS).map(|racer| {
        let (client, path) = (cluster.admin.clone(), path.clone());
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                loop {
                    let (_, mut counter) = client.get(&path).await;
                    let n: usize = counter["data"]["n"].as_str().unwrap().parse().unwrap();
                    counter["data"]["n"] = (n + 1).to_string().into();
                    match client.call("PUT", &path, Some(counter)).await.0 {
                        200 => break,
                        409 => {}
                        code => panic!("{code}"),
                    }
                }
                // A patch that names no version is put on whatever is newest.
                let patch = json!({"data": {format!("r{racer}-{round}"): "x"}});
                assert_eq!(client.call("PATCH", &path, Some(patch)).await.0, 200);
            }
        })
    });
    for racer in racers.collect::<Vec<_>>() {
        racer.await.unwrap();
    }
    let (_, counter) = cluster.admin.get(&path).await;
    assert_eq!(counter["data"]["n"], (CLIENTS * ROUNDS).to_string());
    assert_eq!(counter["data"].as_object().unwrap().len(), CLIENTS * ROUNDS + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_namespaces_and_dry_runs() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let generated =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "job-"}});
    let created = admin.create(MAPS, generated).await;
    let name = created["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("job-") && name.len() == 9, "{name}");
    assert_eq!(created["metadata"]["namespace"], "default");
    assert_eq!(created["metadata"]["uid"].as_str().unwrap().len(), 36);

    let (code, status) = admin.call("POST", MAPS, Some(config_map(name, json!({})))).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("AlreadyExists")));
    let (code, _) = admin
        .call("POST", "/api/v1/namespaces/nowhere/configmaps", Some(config_map("a", json!({}))))
        .await;
    assert_eq!(code, 404);
    let mut elsewhere = config_map("a", json!({}));
    elsewhere["metadata"]["namespace"] = "kube-system".into();
    assert_eq!(admin.call("POST", MAPS, Some(elsewhere)).await.0, 400);
    let mut dated = config_map("a", json!({}));
    dated["metadata"]["resourceVersion"] = "1".into();
    assert_eq!(admin.call("POST", MAPS, Some(dated)).await.0, 500, "as upstream");

    let dry = format!("{MAPS}?dryRun=All");
    assert_eq!(admin.call("POST", &dry, Some(config_map("dry", json!({})))).await.0, 201);
    assert_eq!(admin.get(&format!("{MAPS}/dry")).await.0, 404);
    assert_eq!(admin.call("DELETE", &format!("{MAPS}/{name}?dryRun=All"), None).await.0, 200);
    assert_eq!(admin.get(&format!("{MAPS}/{name}")).await.0, 200);
    assert_eq!(
        admin
            .call("POST", &format!("{MAPS}?dryRun=Some"), Some(config_map("dry", json!({}))))
            .await
            .0,
        422
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_preconditions_and_finalizers() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let mut held = config_map("held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let held = admin.create(MAPS, held).await;
    let path = format!("{MAPS}/held");
    for precondition in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": precondition});
        assert_eq!(admin.call("DELETE", &path, Some(options)).await.0, 409);
    }
    let options = json!({"preconditions": {"uid": held["metadata"]["uid"]}});
    let (code, deleting) = admin.call("DELETE", &path, Some(options)).await;
    assert_eq!(code, 200);
    assert!(deleting["metadata"]["deletionTimestamp"].is_string(), "{deleting}");
    assert_eq!(admin.get(&path).await.0, 200);
    let freed = json!({"metadata": {"finalizers": null}});
    assert_eq!(admin.call("PATCH", &path, Some(freed)).await.0, 200);
    assert_eq!(admin.get(&path).await.0, 404);
    assert_eq!(admin.call("DELETE", &path, None).await.0, 404);

    admin.create(MAPS, config_map("plain", json!({}))).await;
    let (_, status) = admin.call("DELETE", &format!("{MAPS}/plain"), None).await;
    assert_eq!(
        (status["status"].as_str(), status["details"]["kind"].as_str()),
        (Some("Success"), Some("configmaps"))
    );
    for name in ["a", "b", "c"] {
        let mut map = config_map(name, json!({}));
        map["metadata"]["labels"] = json!({"group": if name == "c" { "keep" } else { "go" }});
        admin.create(MAPS, map).await;
    }
    let (code, deleted) =
        admin.call("DELETE", &format!("{MAPS}?labelSelector=group%3Dgo"), None).await;
    assert_eq!((code, deleted["items"].as_array().unwrap().len()), (200, 2));
    let left = admin.get(&format!("{MAPS}?labelSelector=group")).await.1;
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_binding_and_graceful_deletion() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let created = admin.create(PODS, pod("web", "")).await;
    assert_eq!(created["spec"]["serviceAccountName"], "default");
    assert_eq!(created["spec"]["priority"], 0);
    assert_eq!(created["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(created["status"]["phase"], "Pending");
    let path = format!("{PODS}/web");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    });
    let (code, status) =
        admin.call("POST", &format!("{path}/binding"), Some(binding.clone())).await;
    assert_eq!((code, status["status"].as_str()), (201, Some("Success")), "{status}");
    let (_, bound) = admin.get(&path).await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(
        admin.call("POST", &format!("{path}/binding"), Some(binding)).await.0,
        409,
        "bound already"
    );

    let (_, deleting) = admin.call("DELETE", &path, None).await;
    assert_eq!(deleting["metadata"]["deletionGracePeriodSeconds"], 30);
    let (_, shorter) = admin.call("DELETE", &format!("{path}?gracePeriodSeconds=5"), None).await;
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let (_, longer) = admin.call("DELETE", &format!("{path}?gracePeriodSeconds=60"), None).await;
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(admin.get(&path).await.0, 200, "the node has the last word");
    assert_eq!(admin.call("DELETE", &format!("{path}?gracePeriodSeconds=0"), None).await.0, 200);
    assert_eq!(admin.get(&path).await.0, 404);

    admin.create(PODS, pod("unscheduled", "")).await;
    assert_eq!(admin.call("DELETE", &format!("{PODS}/unscheduled"), None).await.0, 200);
    assert_eq!(admin.get(&format!("{PODS}/unscheduled")).await.0, 404, "no node, no grace");

    admin.create(PODS, pod("evicted", "")).await;
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}});
    assert_eq!(
        admin.call("POST", &format!("{PODS}/evicted/eviction"), Some(eviction)).await.0,
        201
    );
    assert_eq!(admin.get(&format!("{PODS}/evicted")).await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_subresource_is_separate() {
    let cluster = Cluster::start().await;
    cluster.admin.create(PODS, pod("web", "n1")).await;
    let path = format!("{PODS}/web");
    let patch = json!({"spec": {"nodeName": "n2"}, "status": {"phase": "Running"}});
    let (code, pod) = cluster.admin.call("PATCH", &format!("{path}/status"), Some(patch)).await;
    assert_eq!((code, pod["status"]["phase"].as_str()), (200, Some("Running")), "{pod}");
    assert_eq!(pod["spec"]["nodeName"], "n1");
    let patch = json!({"metadata": {"labels": {"x": "y"}}, "status": {"phase": "Failed"}});
    let (_, pod) = cluster.admin.call("PATCH", &path, Some(patch)).await;
    assert_eq!(
        (pod["status"]["phase"].as_str(), pod["metadata"]["labels"]["x"].as_str()),
        (Some("Running"), Some("y"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespace_deletion_waits_for_its_finalizer() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    let created = admin.create("/api/v1/namespaces", namespace).await;
    assert_eq!(created["status"]["phase"], "Active");
    admin.ensure_default_account("shop").await;

    let path = "/api/v1/namespaces/shop";
    let (code, mut deleting) = admin.call("DELETE", path, None).await;
    assert_eq!((code, deleting["status"]["phase"].as_str()), (200, Some("Terminating")));
    let pods = format!("{path}/pods");
    let (code, status) = admin.call("POST", &pods, Some(pod("late", ""))).await;
    assert_eq!(
        (code, status["details"]["causes"][0]["reason"].as_str()),
        (403, Some("NamespaceTerminating"))
    );
    // As the namespace controller does when it is empty.
    deleting["spec"]["finalizers"] = json!([]);
    let (code, status) = admin.call("PUT", &format!("{path}/finalize"), Some(deleting)).await;
    assert_eq!(code, 200, "{status}");
    assert_eq!(admin.get(path).await.0, 404);
    assert_eq!(admin.call("DELETE", "/api/v1/namespaces/default", None).await.0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_cluster_ips_are_unique() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let path = "/api/v1/namespaces/default/services";
    let service = |name: &str, spec: serde_json::Value| {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"ports": [{"port": 80}]},
        });
        for (key, value) in spec.as_object().unwrap() {
            service["spec"][key] = value.clone();
        }
        service
    };
    let makers = (0..40).map(|i| {
        let (client, body) =
            (admin.clone(), service(&format!("s{i}"), json!({"type": "NodePort"})));
        tokio::spawn(async move { client.create(path, body).await })
    });
    let mut seen = std::collections::HashSet::new();
    for maker in makers.collect::<Vec<_>>() {
        let service = maker.await.unwrap();
        assert!(seen.insert(service["spec"]["clusterIP"].to_string()), "{service}");
        assert!(seen.insert(service["spec"]["ports"][0]["nodePort"].to_string()), "{service}");
    }
    let (code, taken) =
        admin.call("POST", path, Some(service("x", json!({"clusterIP": "10.96.0.1"})))).await;
    assert_eq!(code, 422);
    assert!(
        taken["message"].as_str().unwrap().contains("provided IP is already allocated"),
        "{taken}"
    );
    let (code, outside) =
        admin.call("POST", path, Some(service("x", json!({"clusterIP": "10.97.0.1"})))).await;
    assert_eq!(code, 422);
    let why = "the provided network does not match the current range";
    assert!(outside["message"].as_str().unwrap().contains(why), "{outside}");

    let mine = service("mine", json!({"clusterIP": "10.96.0.5"}));
    assert_eq!(admin.create(path, mine.clone()).await["spec"]["clusterIPs"][0], "10.96.0.5");
    admin.call("DELETE", &format!("{path}/mine"), None).await;
    admin.create(path, mine).await;
    // A PUT without the address keeps it.
    let (code, kept) = admin
        .call("PUT", &format!("{path}/mine"), Some(service("mine", json!({"type": "NodePort"}))))
        .await;
    assert_eq!((code, kept["spec"]["clusterIP"].as_str()), (200, Some("10.96.0.5")), "{kept}");
    let port = kept["spec"]["ports"][0]["nodePort"].clone();
    assert!(port.is_u64());
    let back = json!({"spec": {"type": "ClusterIP"}});
    let (code, back) = admin.call("PATCH", &format!("{path}/mine"), Some(back)).await;
    assert_eq!(
        (code, &back["spec"]["ports"][0]["nodePort"]),
        (200, &serde_json::Value::Null),
        "{back}"
    );
    let again =
        service("again", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}));
    admin.create(path, again).await;
    let headless = admin.create(path, service("headless", json!({"clusterIP": "None"}))).await;
    assert_eq!(headless["spec"]["clusterIPs"][0], "None");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bootstrap_objects_of_a_cluster() {
    let cluster = Cluster::start().await;
    let (_, namespaces) = cluster.admin.get("/api/v1/namespaces").await;
    let names: Vec<_> = namespaces["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n["metadata"]["name"].clone())
        .collect();
    assert_eq!(json!(names), json!(["default", "kube-node-lease", "kube-public", "kube-system"]));
    let (_, service) = cluster.admin.get("/api/v1/namespaces/default/services/kubernetes").await;
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    let (_, endpoints) = cluster.admin.get("/api/v1/namespaces/default/endpoints/kubernetes").await;
    assert_eq!(endpoints["subsets"][0]["ports"][0]["port"], cluster.address.port());
    let (code, _) = cluster
        .admin
        .get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
        .await;
    assert_eq!(code, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scale_subresource() {
    let cluster = Cluster::start().await;
    let path = "/api/v1/namespaces/default/replicationcontrollers";
    let controller = json!({
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "rc"},
        "spec": {"replicas": 1, "selector": {"a": "b"}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    });
    cluster.admin.create(path, controller).await;
    let scale = format!("{path}/rc/scale");
    let (code, got) = cluster.admin.get(&scale).await;
    assert_eq!(
        (code, got["spec"]["replicas"].as_i64(), got["status"]["selector"].as_str()),
        (200, Some(1), Some("a=b"))
    );
    let (code, set) =
        cluster.admin.call("PATCH", &scale, Some(json!({"spec": {"replicas": 3}}))).await;
    assert_eq!((code, set["spec"]["replicas"].as_i64()), (200, Some(3)), "{set}");
    let (code, _) =
        cluster.admin.call("PATCH", &scale, Some(json!({"spec": {"replicas": -1}}))).await;
    assert_eq!(code, 422);
    assert_eq!(cluster.admin.get(&format!("{path}/rc")).await.1["metadata"]["generation"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_validation_of_unknown_fields() {
    let cluster = Cluster::start().await;
    let mut map = config_map("a", json!({}));
    map["dataa"] = json!({});
    let post = |query: &str| {
        let request = hyper::Request::post(format!("{MAPS}?{query}"))
            .header("content-type", "application/json");
        let request = request.body(kube::client::Body::from(map.to_string().into_bytes())).unwrap();
        let client = cluster.admin.clone();
        async move { client.0.send(request).await.unwrap() }
    };
    let strict = post("fieldValidation=Strict").await;
    assert_eq!(strict.status().as_u16(), 400);
    let warned = post("").await;
    assert_eq!(warned.status().as_u16(), 201);
    let warning = warned.headers()["warning"].to_str().unwrap();
    assert!(warning.starts_with("299 - \"") && warning.contains("dataa"), "{warning}");
}

/// Finding 5: no way leads to the address or the node port of another service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_allocations_are_stable_and_released() {
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let service = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let victim = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "clusterIP": "10.96.0.50", "healthCheckNodePort": 30100,
        "ports": [{"port": 80, "nodePort": 30101}]});
    admin.create(SERVICES, service("victim", victim)).await;
    let claim =
        json!({"type": "ExternalName", "externalName": "x.example", "clusterIP": "10.96.0.50"});
    let (code, status) = admin.call("POST", SERVICES, Some(service("thief", claim))).await;
    assert_eq!(code, 422, "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("spec.clusterIPs: Forbidden: may not be set for ExternalName"),
        "{status}"
    );
    let external = json!({"type": "ExternalName", "externalName": "x.example",
        "ports": [{"port": 80, "nodePort": 30101}]});
    admin.create(SERVICES, service("thief", external)).await;
    let thief = format!("{SERVICES}/thief");
    for spec in [
        json!({"clusterIP": "10.96.0.50"}),
        json!({"clusterIPs": ["10.96.0.50"]}),
        json!({"type": "ClusterIP", "clusterIP": "10.96.0.50"}),
        json!({"type": "ClusterIP", "clusterIP": "10.96.0.50", "clusterIPs": ["10.96.0.50"]}),
        json!({"type": "NodePort"}),
        json!({"type": "LoadBalancer"}),
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30100}]}),
    ] {
        let (code, status) = admin.call("PATCH", &thief, Some(json!({"spec": spec}))).await;
        assert_eq!(code, 422, "{spec}: {status}");
    }
    let other = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 30101, "ports": [{"port": 80}]});
    assert_eq!(admin.call("POST", SERVICES, Some(service("other", other))).await.0, 500);
    let mine = json!({"type": "ClusterIP", "ports": [{"port": 80}]});
    admin.create(SERVICES, service("mine", mine)).await;
    for spec in [
        json!({"clusterIP": "10.96.0.50"}),
        json!({"clusterIPs": ["10.96.0.50"]}),
        json!({"healthCheckNodePort": 30102}),
    ] {
        let path = format!("{SERVICES}/mine");
        let (code, status) = admin.call("PATCH", &path, Some(json!({"spec": spec}))).await;
        assert_eq!(code, 422, "{spec}: {status}");
    }
    let victim = format!("{SERVICES}/victim");
    let moved = json!({"spec": {"healthCheckNodePort": 30102}});
    let (code, status) = admin.call("PATCH", &victim, Some(moved)).await;
    assert_eq!(code, 422);
    assert!(status["message"].as_str().unwrap().contains("field is immutable"), "{status}");
    // The end of the thief takes nothing from the victim.
    assert_eq!(admin.call("DELETE", &thief, None).await.0, 200);
    let again = json!({"type": "ClusterIP", "clusterIP": "10.96.0.50", "ports": [{"port": 80}]});
    assert_eq!(admin.call("POST", SERVICES, Some(service("thief", again.clone()))).await.0, 422);
    assert_eq!(admin.call("DELETE", &victim, None).await.0, 200);
    admin.create(SERVICES, service("heir", again)).await;
}
