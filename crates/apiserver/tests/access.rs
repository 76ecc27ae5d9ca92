//! Who may do what, and what hostile requests get.

use crate::common;

use std::time::Duration;

use common::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_access_is_limited_to_health_and_version() {
    let cluster = Cluster::start().await;
    for (path, expected) in [
        ("/healthz", 200),
        ("/livez", 200),
        ("/readyz?verbose", 200),
        ("/version", 200),
        ("/api", 403),
        ("/metrics", 403),
        ("/api/v1/nodes", 403),
        ("/nowhere", 403),
    ] {
        let (code, body) = cluster.curl(path, &[]);
        assert_eq!(code, expected, "{path}: {body}");
        if expected == 403 {
            let status: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(status["reason"], "Forbidden");
            assert!(message(&status).contains("User \"system:anonymous\" cannot "), "{status}");
        }
    }
    let verbose = cluster.curl("/readyz?verbose&exclude=ping&exclude=x", &[]).1;
    for line in [
        "[+]ping excluded: ok",
        "[+]etcd ok",
        "[+]shutdown ok",
        "warn: some health checks cannot be excluded: no matches for \"x\"",
        "readyz check passed",
    ] {
        assert!(verbose.lines().any(|found| found == line), "{line}: {verbose}");
    }
    assert!(!cluster.curl("/livez?verbose", &[]).1.contains("shutdown"));
    let admin = |cluster: &Cluster| {
        let file = |suffix| cluster.pki().join(format!("client-kubernetes-admin.{suffix}"));
        ["crt", "key"].map(|suffix| file(suffix).to_str().unwrap().to_owned())
    };
    let [certificate, key] = admin(&cluster);
    let own = ["--cert", &certificate, "--key", &key];
    for (path, expected) in
        [("/livez/etcd", 200), ("/readyz/shutdown", 200), ("/livez/shutdown", 404)]
    {
        assert_eq!(cluster.curl(path, &own).0, expected, "{path}");
    }

    // A certificate of another CA, with a privileged name.
    let other = Cluster::start().await;
    let [certificate, key] = admin(&other);
    let foreign = ["--cert", &certificate, "--key", &key];
    assert_eq!(cluster.curl("/api/v1/nodes", &foreign).0, 401);
    assert_eq!(cluster.curl("/healthz", &foreign).0, 401);
    assert_eq!(cluster.curl("/api/v1/nodes", &["-H", "authorization: Bearer x"]).0, 401);
    for version in ["--http1.1", "--http2"] {
        assert_eq!(cluster.admin_curl("/api/v1/nodes", &[version]).0, 200, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_access_is_limited_to_its_own_objects() {
    let cluster = Cluster::start().await;
    let (admin, node) = (&cluster.admin, cluster.node().await);
    let own = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    node.create("/api/v1/nodes", own("n1")).await;
    let (code, status) = node.call("POST", "/api/v1/nodes", Some(own("n2"))).await;
    assert_eq!(
        (code, message(&status)),
        (403, "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\"")
    );
    assert_eq!(node.get("/api/v1/nodes/n1").await.0, 200);
    assert_eq!(node.get("/api/v1/nodes?fieldSelector=metadata.name%3Dn1").await.0, 200);
    assert_eq!(node.get("/api/v1/nodes").await.0, 403);
    let (code, status) = node.get("/api/v1/pods").await;
    assert_eq!(
        (code, message(&status)),
        (
            403,
            "pods is forbidden: User \"system:node:n1\" cannot list resource \"pods\" in API group \"\" at the \
               cluster scope: can only list/watch pods with spec.nodeName field selector"
        )
    );
    assert_eq!(node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.0, 200);
    let patch = json!({"metadata": {"labels": {"example.com/x": "y"}}});
    assert_eq!(node.call("PATCH", "/api/v1/nodes/n1", Some(patch)).await.0, 200);
    for patch in [
        json!({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}}),
        json!({"metadata": {"labels": {"foo.kubernetes.io/x": "y"}}}),
        json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
    ] {
        assert_eq!(
            node.call("PATCH", "/api/v1/nodes/n1", Some(patch.clone())).await.0,
            403,
            "{patch}"
        );
    }
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    assert_eq!(node.call("PATCH", "/api/v1/nodes/n1/status", Some(status)).await.0, 200);

    // Pods: its own status, its own deletion.
    admin.create(PODS, pod("mine", "n1")).await;
    admin.create(PODS, pod("other", "n2")).await;
    let running = json!({"status": {"phase": "Running"}});
    assert_eq!(
        node.call("PATCH", &format!("{PODS}/mine/status"), Some(running.clone())).await.0,
        200
    );
    assert_eq!(node.call("PATCH", &format!("{PODS}/other/status"), Some(running)).await.0, 403);
    assert_eq!(
        (node.get(&format!("{PODS}/mine")).await.0, node.get(&format!("{PODS}/other")).await.0),
        (200, 403)
    );
    assert_eq!(node.call("POST", PODS, Some(pod("new", "n1"))).await.0, 403, "only mirror pods");
    assert_eq!(
        node.call("DELETE", &format!("{PODS}/other?gracePeriodSeconds=0"), None).await.0,
        403
    );
    assert_eq!(admin.get(&format!("{PODS}/other")).await.0, 200);

    // Secrets: those of its pods, one by one.
    let secrets = "/api/v1/namespaces/default/secrets";
    for name in ["used", "unused"] {
        admin
            .create(
                secrets,
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}),
            )
            .await;
    }
    let mut user = pod("user", "n1");
    user["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "used"}}]);
    admin.create(PODS, user).await;
    assert_eq!(node.get(&format!("{secrets}/used")).await.0, 200);
    let (code, status) = node.get(&format!("{secrets}/unused")).await;
    assert_eq!(code, 403);
    assert!(
        message(&status).ends_with("no relationship found between node 'n1' and this object"),
        "{status}"
    );
    assert_eq!(node.get(secrets).await.0, 403);

    // Leases, services, events.
    let lease = |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    node.create(leases, lease("n1")).await;
    assert_eq!(node.call("POST", leases, Some(lease("n2"))).await.0, 403);
    assert_eq!(node.get("/api/v1/services").await.0, 200);
    assert_eq!(node.get("/apis/discovery.k8s.io/v1/endpointslices").await.0, 200);
    assert_eq!(node.call("DELETE", "/api/v1/nodes/n1", None).await.0, 403);

    assert_eq!(
        node.call("DELETE", &format!("{PODS}/mine?gracePeriodSeconds=0"), None).await.0,
        200
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_creates_only_its_own_mirror_pods() {
    let cluster = Cluster::start().await;
    let node = cluster.node().await;
    let own = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let own = node.create("/api/v1/nodes", own).await;
    let mut mirror = pod("static-n1", "n1");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    mirror["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": own["metadata"]["uid"], "controller": true,
    }]);
    let created = node.create(PODS, mirror.clone()).await;
    assert_eq!(created["spec"]["serviceAccountName"].as_str().unwrap_or_default(), "");
    mirror["metadata"]["name"] = "static2-n1".into();
    mirror["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]);
    let (code, status) = node.call("POST", PODS, Some(mirror.clone())).await;
    assert_eq!(code, 403);
    assert!(message(&status).contains("can not create pods that reference secrets"), "{status}");
    mirror["spec"]["volumes"] = json!([]);
    mirror["metadata"]["ownerReferences"][0]["uid"] = "other".into();
    assert_eq!(node.call("POST", PODS, Some(mirror)).await.0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_reviews_use_the_authorizer() {
    let cluster = Cluster::start().await;
    let node = cluster.node().await;
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let review = |user: &str, groups: Value, subresource: &str| {
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": groups, "resourceAttributes":
                {"verb": "get", "version": "v1", "resource": "nodes", "subresource": subresource, "name": "n1"}},
        })
    };
    for (user, groups, subresource, allowed) in [
        ("kube-apiserver-kubelet-client", json!(["system:authenticated"]), "proxy", true),
        ("kube-apiserver-kubelet-client", json!(["system:authenticated"]), "log", true),
        ("somebody", json!(["system:masters"]), "proxy", true),
        ("somebody", json!(["system:authenticated"]), "proxy", false),
        ("system:anonymous", json!(["system:unauthenticated"]), "stats", false),
    ] {
        let answer = node.create(path, review(user, groups, subresource)).await;
        assert_eq!(answer["status"]["allowed"], allowed, "{user} {subresource}");
    }
    let nobody = cluster.user("nobody", "").await;
    assert_eq!(nobody.call("POST", path, Some(review("a", json!([]), ""))).await.0, 403);
    assert_eq!(nobody.get("/api").await.0, 200);
    assert_eq!(nobody.get(PODS).await.0, 403);
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}});
    let answer = node.create("/apis/authentication.k8s.io/v1/tokenreviews", token).await;
    assert_ne!(answer["status"]["authenticated"], true);
    let who = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = nobody.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", who).await;
    assert_eq!(answer["status"]["userInfo"]["username"], "nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_bodies_and_paths_are_rejected() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let big = config_map("big", json!({"x": "y".repeat(3 << 20)}));
    let (code, status) = admin.call("POST", MAPS, Some(big.clone())).await;
    assert_eq!((code, status["reason"].as_str()), (413, Some("RequestEntityTooLarge")));
    // Without a length it is found out while reading.
    let file = cluster.dir.path().join("big.json");
    std::fs::write(&file, big.to_string()).unwrap();
    let data = format!("@{}", file.display());
    let chunked =
        ["--http1.1", "-H", "transfer-encoding: chunked", "-H", "content-type: application/json"];
    let (code, _) =
        cluster.admin_curl(MAPS, &[chunked.as_slice(), &["--data-binary", &data]].concat());
    assert_eq!(code, 413);

    for (content_type, body, expected) in [
        ("text/plain", "x".to_owned(), 415),
        ("application/vnd.kubernetes.protobuf", "x".to_owned(), 400),
        ("application/json", "{".to_owned(), 400),
        ("application/json", "[]".to_owned(), 400),
        ("application/json", "[".repeat(1 << 20), 400),
        ("application/json", format!("{{\"a\":{}1{}}}", "[".repeat(5000), "]".repeat(5000)), 400),
        ("application/yaml", "a: &a [x]\nb: [*a, *a]\nc: }".to_owned(), 400),
        ("application/json", String::new(), 400),
    ] {
        let (code, status) =
            admin.send("POST", MAPS, content_type, body.clone().into_bytes()).await;
        assert_eq!(code, expected, "{content_type} {:.40}: {status}", body);
    }
    admin.create(MAPS, config_map("a", json!({}))).await;
    // the second has no field manager
    for (content_type, expected) in
        [("application/other-patch+json", 415), ("application/apply-patch+yaml", 422)]
    {
        let (code, status) =
            admin.send("PATCH", &format!("{MAPS}/a"), content_type, b"{}".to_vec()).await;
        assert_eq!(code, expected, "{status}");
    }
    // CVE-2022-3162, CVE-2015-5305: no path segment escapes its key prefix in the store.
    for path in [
        "/api/v1/namespaces/default/configmaps/..",
        "/api/v1/namespaces/default/configmaps/%2e%2e",
        "/api/v1/namespaces/default/configmaps/a%2fb",
        "/api/v1/namespaces/../configmaps/a",
        "/api/v1/namespaces/default/configmaps/%00",
        "/api/v1/namespaces/default/configmaps/%ff",
        "/api/v1/namespaces/default/configmaps/a%25",
    ] {
        let (code, body) = cluster.admin_curl(path, &[]);
        let expected = if path.ends_with("%2fb") { 404 } else { 400 };
        assert_eq!(code, expected, "{path}: {body}");
    }
    assert_eq!(
        admin.call("POST", &format!("{MAPS}/a"), Some(config_map("a", json!({})))).await.0,
        405
    );
    assert_eq!(
        admin.call("POST", "/api/v1/configmaps", Some(config_map("a", json!({})))).await.0,
        405
    );
    assert_eq!(cluster.admin_curl("/api/v1/namespaces/default/configmaps//a", &[]).0, 404);
    assert_eq!(admin.get("/api/v1/nothings").await.0, 404);
    assert_eq!(admin.get("/apis/example.com/v1/things").await.0, 404);
    // CVE-2020-8552: clients cannot create metric series.
    let (_, metrics) = admin.text("/metrics").await;
    assert!(
        metrics.contains("resource=\"configmaps\"") && !metrics.contains("things"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_do_not_block_others() {
    let cluster = Cluster::start().await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(tokio::net::TcpStream::connect(cluster.address).await.unwrap());
    }
    silent[0].write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert_eq!(cluster.admin.get("/api/v1/nodes").await.0, 200);
    // The others are connected still: it was not answered because they were closed.
    let mut byte = [0];
    let closed = tokio::time::timeout(Duration::from_millis(10), silent[1].read(&mut byte)).await;
    assert!(closed.is_err(), "{closed:?}");
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(5), silent[0].read_to_end(&mut rest))
        .await
        .unwrap()
        .ok();
}

/// CVE-2019-11247: what is granted in a namespace says nothing about a resource of the cluster,
/// though a path names both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespace_admin_cannot_access_cluster_resources() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    for name in ["dev", "prod"] {
        admin.create("/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
    }
    admin.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let role = json!({"metadata": {"name": "all"}, "rules": rules});
    admin.create(&format!("{RBAC}/namespaces/dev/roles"), role).await;
    let binding = json!({
        "metadata": {"name": "all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    admin.create(&format!("{RBAC}/namespaces/dev/rolebindings"), binding).await;
    let jane = cluster.user("jane", "").await;
    assert_eq!(jane.get("/api/v1/namespaces/dev/pods").await.0, 200);
    for (method, path) in [
        ("DELETE", "/api/v1/namespaces/dev/namespaces/prod".to_owned()),
        ("GET", "/api/v1/namespaces/dev/nodes".to_owned()),
        ("GET", "/api/v1/namespaces/dev/nodes/n1".to_owned()),
        ("PATCH", "/api/v1/namespaces/dev/nodes/n1/status".to_owned()),
        ("GET", "/api/v1/namespaces/dev/nodes/n1/proxy".to_owned()),
        ("GET", "/api/v1/watch/namespaces/dev/nodes".to_owned()),
        ("GET", "/api/v1/namespaces/dev/persistentvolumes".to_owned()),
        ("DELETE", format!("{RBAC}/namespaces/dev/clusterrolebindings/cluster-admin")),
        ("GET", format!("{RBAC}/namespaces/dev/clusterroles/admin")),
        (
            "GET",
            "/apis/certificates.k8s.io/v1/namespaces/dev/certificatesigningrequests".to_owned(),
        ),
        ("POST", "/apis/authorization.k8s.io/v1/namespaces/dev/subjectaccessreviews".to_owned()),
    ] {
        let body = (method != "GET").then(|| json!({}));
        assert_eq!(jane.call(method, &path, body).await.0, 404, "{method} {path}");
    }
    let (_, prod) = admin.get("/api/v1/namespaces/prod").await;
    assert_eq!(prod["status"]["phase"], "Active");
    let binding = format!("{RBAC}/clusterrolebindings/cluster-admin");
    assert_eq!(admin.get(&binding).await.0, 200);
}

/// Finding 4: a selector in which a comma is escaped is not taken for the one name that is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_access_escaped_selector_is_confined() {
    let cluster = Cluster::start().await;
    cluster.admin.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let node = cluster.node().await;
    let own = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
    assert_eq!(node.get(own).await.0, 200);
    for selector in [
        "status.phase!%3Da%5C,spec.nodeName%3Dn1",
        "status.phase!%3Da%5C%5C%5C,spec.nodeName%3Dn1",
        "spec.nodeName!%3Dn1",
        "spec.host%3Dn1",
    ] {
        let path = format!("/api/v1/pods?fieldSelector={selector}");
        assert_eq!(node.get(&path).await.0, 403, "{selector}");
        let path = format!("/api/v1/watch/pods?fieldSelector={selector}");
        assert_eq!(node.get(&path).await.0, 403, "{selector}");
    }
}

/// The page of the browser says nothing, and is for everybody; what it reads is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_browser_is_one_page_that_loads_nothing_from_elsewhere() {
    let hsts = "max-age=31536000; includeSubDomains".to_owned();
    let cluster = Cluster::start_with(|config| config.tls.strict_transport_security = hsts).await;
    let (code, answer) = cluster.curl("/openapi/ui", &["-i"]);
    assert_eq!(code, 200, "{answer}");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    let head = head.to_lowercase();
    for line in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; script-src 'sha256-",
        "x-content-type-options: nosniff",
        "x-frame-options: deny",
        "referrer-policy: no-referrer",
        "strict-transport-security: max-age=31536000; includesubdomains",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for (path, arguments, expected) in [
        ("/openapi/v3", &[][..], 403),
        ("/openapi/ui/", &[], 403),
        ("/openapi/ui", &["-X", "POST"], 403),
        ("/openapi/ui", &["-H", "Authorization: Bearer wrong"], 401),
    ] {
        let (code, body) = cluster.curl(path, arguments);
        assert_eq!(code, expected, "{path} {arguments:?}: {body}");
    }
    let (_, index) = cluster.admin.get("/openapi/v3").await;
    assert!(index["paths"]["apis/apps/v1"].is_object());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profiles_are_served_to_those_who_may_read_them() {
    let cluster = Cluster::start_with(|config| config.pages.profiling = true).await;
    assert_eq!(cluster.curl("/debug/pprof/heap", &[]).0, 403);
    let (code, index) = cluster.admin_text("/debug/pprof/", &[]);
    assert!(code == 200 && index.contains("threadcreate"), "{index}");
    let (code, tasks) = cluster.admin_text("/debug/pprof/goroutine?debug=2", &[]);
    assert!(code == 200 && tasks.starts_with("goroutine profile: total "), "{tasks}");
    assert_eq!(cluster.admin.text("/debug/pprof/profile?seconds=0.2").await.0, 200);
    for (path, expected) in
        [("/debug/pprof/none", 404), ("/debug/pprof", 404), ("/debug/pprof/trace", 501)]
    {
        assert_eq!(cluster.admin_text(path, &[]).0, expected, "{path}");
    }
    let without = Cluster::start().await;
    assert_eq!(without.admin_text("/debug/pprof/heap", &[]).0, 404);
}
