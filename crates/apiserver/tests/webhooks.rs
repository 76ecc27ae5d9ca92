//! Admission webhooks, called in this process by URL and by service.

use crate::common;

use common::hook::*;
use common::*;
use hyper::Request;
use kube::client::Body;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_validating_refuse_requests() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    let before = admin.create(MAPS, config_map("before", json!({"a": "1"}))).await;
    let mut deny = hook.webhook("deny.example.com", "/deny", &["*"], &["configmaps"]);
    deny["objectSelector"] =
        json!({"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]});
    deny["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": "default"}});
    configure(admin, "validating", "deny", &[deny]).await;

    let denied = "admission webhook \"deny.example.com\" denied the request: the webhook says no";
    let one = format!("{MAPS}/before");
    for (method, path, body) in [
        ("POST", MAPS, Some(config_map("new", json!({})))),
        ("PUT", &one, Some(config_map("before", json!({"a": "2"})))),
        ("PATCH", &one, Some(json!({"data": {"a": "2"}}))),
        ("DELETE", &one, None),
        ("DELETE", MAPS, None),
    ] {
        let (code, status) = admin.call(method, path, body).await;
        assert_eq!((code, message(&status)), (403, denied), "{method} {path}");
        assert_eq!(status["reason"], "Odd");
    }
    assert_eq!(admin.get(&one).await.1["data"], before["data"]);

    let requests = hook.requests();
    let seen: Vec<_> = requests
        .iter()
        .map(|r| {
            (r["operation"].as_str().unwrap(), r["object"].is_null(), r["oldObject"].is_null())
        })
        .collect();
    let update = ("UPDATE", false, false);
    let delete = ("DELETE", true, false);
    assert_eq!(seen, [("CREATE", false, true), update, update, delete, delete]);
    let create = &requests[0];
    assert_eq!(create["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(create["requestResource"]["resource"], "configmaps");
    assert_eq!((&create["name"], &create["namespace"]), (&json!("new"), &json!("default")));
    assert_eq!(create["object"]["metadata"]["namespace"], "default");
    assert!(create["object"]["metadata"]["uid"].is_string());
    assert_eq!(create["options"]["kind"], "CreateOptions");
    assert_eq!(create["userInfo"]["username"], "kubernetes-admin");
    assert_eq!(requests[1]["oldObject"]["data"]["a"], "1");
    assert_eq!(requests[3]["options"]["kind"], "DeleteOptions");

    // What the selectors leave out is not looked at.
    let mut skipped = config_map("skipped", json!({}));
    skipped["metadata"]["labels"] = json!({"skip": "yes"});
    admin.create(MAPS, skipped).await;
    admin.create("/api/v1/namespaces/kube-system/configmaps", config_map("new", json!({}))).await;
    assert_eq!(hook.count(), 0);

    forget(admin, "validating", "deny").await;
    admin.create(MAPS, config_map("new", json!({}))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_mutating_change_objects() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    let container = json!({"name": "first", "image": "busybox"});
    let patch = json!([
        {"op": "add", "path": "/spec/initContainers", "value": [container]},
        {"op": "add", "path": "/metadata/annotations", "value": {"by": "a"}},
    ]);
    let append = json!([{"op": "replace", "path": "/metadata/annotations/by", "value": "ab"}]);
    let webhook = |name, patch| hook.webhook(name, &patch_path(patch), &["CREATE"], &["pods"]);
    // Not in the order of their creation, but of their names.
    configure(admin, "mutating", "b", &[webhook("b.example.com", &append)]).await;
    configure(admin, "mutating", "a", &[webhook("a.example.com", &patch)]).await;
    let created = admin.create(PODS, pod("web", "")).await;
    assert_eq!(created["metadata"]["annotations"]["by"], "ab");
    let first = &created["spec"]["initContainers"][0];
    assert_eq!(first["terminationMessagePolicy"], "File", "defaults follow a change");
    assert_eq!(
        first["volumeMounts"][0]["mountPath"],
        "/var/run/secrets/kubernetes.io/serviceaccount"
    );
    assert_eq!(created["status"]["phase"], "Pending");
    let requests = hook.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[0]["object"]["metadata"]["annotations"].is_null());
    assert_eq!(requests[1]["object"]["metadata"]["annotations"]["by"], "a");
    assert_eq!(requests[1]["object"]["metadata"]["uid"], created["metadata"]["uid"]);
    for name in ["a", "b"] {
        forget(admin, "mutating", name).await;
    }

    // An update, by a client that sends the whole and one that sends a patch.
    let add = json!([{"op": "add", "path": "/data/by", "value": "hook"}]);
    let add = hook.webhook("m.example.com", &patch_path(&add), &["UPDATE"], &["configmaps"]);
    configure(admin, "mutating", "update", &[add]).await;
    admin.create(MAPS, config_map("m", json!({"a": "1"}))).await;
    let path = format!("{MAPS}/m");
    for (method, body) in
        [("PUT", config_map("m", json!({"a": "2"}))), ("PATCH", json!({"data": {"by": "me"}}))]
    {
        let (code, updated) = admin.call(method, &path, Some(body)).await;
        assert_eq!((code, &updated["data"]), (200, &json!({"a": "2", "by": "hook"})), "{updated}");
        assert_eq!(hook.count(), 1);
    }
    // What is not valid afterwards is refused.
    let bad = json!([{"op": "add", "path": "/data/no way", "value": "x"}]);
    let bad = hook.webhook("bad.example.com", &patch_path(&bad), &["*"], &["configmaps"]);
    configure(admin, "mutating", "x", &[bad]).await;
    let (code, status) = admin.call("POST", MAPS, Some(config_map("bad", json!({"a": "1"})))).await;
    assert_eq!(code, 422, "{status}");
    // A deletion has nothing to change.
    let (code, status) = admin.call("DELETE", &path, None).await;
    assert_eq!(code, 500);
    assert!(message(&status).contains("attempted to modify the object"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_reinvoked_when_others_change_the_object() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    let change = json!([{"op": "add", "path": "/data/b", "value": "x"}]);
    let mut first = hook.webhook("first.example.com", "/first", &["*"], &["configmaps"]);
    first["reinvocationPolicy"] = "IfNeeded".into();
    let never = hook.webhook("never.example.com", "/never", &["*"], &["configmaps"]);
    let change = hook.webhook("z.example.com", &patch_path(&change), &["*"], &["configmaps"]);
    configure(admin, "mutating", "a", &[first, never]).await;
    admin.create(MAPS, config_map("calm", json!({"a": "1"}))).await;
    assert_eq!(hook.count(), 2);
    configure(admin, "mutating", "z", &[change]).await;
    admin.create(MAPS, config_map("busy", json!({"a": "1"}))).await;
    let calls: Vec<String> = std::mem::take(&mut *hook.calls.lock().unwrap())
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    let starts = |i: usize, path: &str| calls[i].starts_with(path);
    assert_eq!(calls.len(), 4, "{calls:?}");
    assert!(starts(0, "/first?") && starts(1, "/never?") && starts(2, "/patch"), "{calls:?}");
    assert_eq!(calls[3], "/first?timeout=5s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_that_fail_are_bounded_and_follow_their_policy() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    let port = hook.port;
    let url = |path: &str| format!("Post \"https://127.0.0.1:{port}{path}?timeout=1s\": ");
    for (path, expected) in [
        ("/slow", url("/slow") + "context deadline exceeded"),
        ("/huge", url("/huge") + "the answer exceeds the limit"),
        ("/garbage", "received invalid webhook response: couldn't get version/kind".to_owned()),
        ("/other-uid", "received invalid webhook response: expected response.uid=".to_owned()),
        ("/redirect", "the webhook redirects (307 Temporary Redirect)".to_owned()),
        ("/error", "has prevented the request from succeeding".to_owned()),
    ] {
        for kind in ["mutating", "validating"] {
            let mut webhook = hook.webhook("fail.example.com", path, &["*"], &["configmaps"]);
            webhook["timeoutSeconds"] = 1.into();
            configure(admin, kind, "fail", &[webhook.clone()]).await;
            let (code, text) = cluster.admin_curl(
                MAPS,
                &[
                    "-d",
                    &config_map("m", json!({})).to_string(),
                    "-H",
                    "Content-Type: application/json",
                ],
            );
            let begins = "Internal error occurred: failed calling webhook \"fail.example.com\": ";
            assert_eq!(code, 500, "{path} {text}");
            assert!(message(&text).starts_with(begins), "{path} {text}");
            assert!(message(&text).contains(&expected), "{path} {text}");
            forget(admin, kind, "fail").await;

            webhook["failurePolicy"] = "Ignore".into();
            configure(admin, kind, "fail", &[webhook]).await;
            admin.create(MAPS, config_map("m", json!({}))).await;
            forget(admin, kind, "fail").await;
            let (code, _) = admin.call("DELETE", &format!("{MAPS}/m"), None).await;
            assert_eq!(code, 200);
        }
    }
    // Nobody listens, and nobody whose certificate is known.
    let mut nobody = hook.webhook("fail.example.com", "/", &["*"], &["configmaps"]);
    nobody["clientConfig"]["url"] = "https://127.0.0.1:1/".into();
    configure(admin, "validating", "nobody", &[nobody]).await;
    let (_, status) = admin.call("POST", MAPS, Some(config_map("m", json!({})))).await;
    assert!(
        message(&status).contains("dial tcp 127.0.0.1:1: connect: connection refused"),
        "{status}"
    );
    forget(admin, "validating", "nobody").await;
    let other = Hook::start().await;
    let mut stranger = hook.webhook("fail.example.com", "/", &["*"], &["configmaps"]);
    stranger["clientConfig"]["caBundle"] = other.ca_bundle.as_str().into();
    configure(admin, "validating", "stranger", &[stranger]).await;
    let (_, status) = admin.call("POST", MAPS, Some(config_map("m", json!({})))).await;
    assert!(message(&status).contains("certificate"), "{status}");

    let (_, metrics) = admin.text("/metrics").await;
    for line in [
        "apiserver_admission_webhook_fail_open_count{name=\"fail.example.com\",type=\"admit\"} 6",
        "apiserver_admission_webhook_rejection_count{error_type=\"calling_webhook_error\",name=\"fail.example.com\",operation=\"CREATE\",type=\"admit\",rejection_code=\"503\"} 4",
        "apiserver_admission_webhook_request_total{code=\"500\",name=\"fail.example.com\",operation=\"CREATE\",type=\"validating\",rejected=\"true\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

/// A webhook that refuses everything does not refuse its own removal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_leave_configurations_of_admission_alone() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    for kind in ["mutating", "validating"] {
        let all = hook.webhook("all.example.com", "/deny", &["*"], &["*/*"]);
        configure(admin, kind, "all", &[all]).await;
        let (code, _) = admin.call("POST", MAPS, Some(config_map("m", json!({})))).await;
        assert_eq!(code, 403);
        let more = hook.webhook("more.example.com", "/allow", &["*"], &["pods"]);
        configure(admin, kind, "more", std::slice::from_ref(&more)).await;
        forget(admin, kind, "more").await;
        hook.requests();
        forget(admin, kind, "all").await;
        assert_eq!(hook.count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_called_where_their_conditions_match() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    let named = |expression: &str| {
        let mut webhook = hook.webhook("c.example.com", "/deny", &["CREATE"], &["configmaps"]);
        webhook["matchConditions"] = json!([{"name": "named", "expression": expression}]);
        webhook
    };
    for kind in ["mutating", "validating"] {
        configure(admin, kind, "c", &[named("object.metadata.name.startsWith('x')")]).await;
        let create = |name: &str| admin.call("POST", MAPS, Some(config_map(name, json!({}))));
        assert_eq!(create(&format!("{kind}-a")).await.0, 201);
        assert_eq!(create("x").await.0, 403);
        forget(admin, kind, "c").await;
    }
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let object = json!({"metadata": {"name": "c"}, "webhooks": [named("nothing == 1")]});
    let (code, status) = admin.call("POST", path, Some(object)).await;
    assert_eq!(code, 422);
    assert!(message(&status).contains("undeclared reference to 'nothing'"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_by_service_dry_run_warnings_and_old_reviews() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    let service = json!({
        "metadata": {"name": "hook"},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    });
    admin.create("/api/v1/namespaces/default/services", service).await;
    let mut warn = hook.webhook("warn.example.com", "/", &["CREATE"], &["configmaps"]);
    warn["clientConfig"] = json!({
        "service": {"namespace": "default", "name": "hook", "port": hook.port, "path": "/warn"},
        "caBundle": hook.ca_bundle,
    });
    warn["admissionReviewVersions"] = json!(["v9", "v1beta1", "v1"]);
    configure(admin, "validating", "warn", &[warn.clone()]).await;
    let body = Body::from(config_map("dry", json!({})).to_string().into_bytes());
    let request =
        Request::post(format!("{MAPS}?dryRun=All")).header("content-type", "application/json");
    let response = admin.0.send(request.body(body).unwrap()).await.unwrap();
    assert_eq!(response.status().as_u16(), 201);
    let warnings: Vec<_> = response.headers().get_all("warning").iter().collect();
    assert_eq!(warnings, ["299 - \"this is \\\"old\\\"\"", "299 - \"second\""]);
    assert_eq!(admin.get(&format!("{MAPS}/dry")).await.0, 404);
    let (path, review) = hook.calls.lock().unwrap().pop().unwrap();
    assert_eq!(path, "/warn?timeout=5s");
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1beta1");
    assert_eq!(review["request"]["dryRun"], true);
    assert_eq!(review["request"]["options"]["dryRun"], json!(["All"]));

    // The service is gone.
    let (code, _) = admin.call("DELETE", "/api/v1/namespaces/default/services/hook", None).await;
    assert_eq!(code, 200);
    forget(admin, "validating", "warn").await;
    warn["name"] = "gone.example.com".into();
    warn["clientConfig"]["service"]["path"] = "/gone".into();
    configure(admin, "validating", "gone", &[warn]).await;
    let (_, status) = admin.call("POST", MAPS, Some(config_map("m", json!({})))).await;
    let expected = format!(
        "failed calling webhook \"gone.example.com\": failed to call webhook: Post \
         \"https://hook.default.svc:{}/gone?timeout=5s\": services \"hook\" not found",
        hook.port
    );
    assert!(message(&status).contains(&expected), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_see_subresources_connections_and_equivalent_kinds() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    admin.create(PODS, pod("web", "n1")).await;
    admin.create(PODS, pod("new", "")).await;
    let deployment = json!({
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "busybox"}]},
            },
        },
    });
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    admin.create(deployments, deployment).await;
    let all = hook.webhook("all.example.com", "/deny", &["*"], &["*/*"]);
    configure(admin, "validating", "all", &[all]).await;
    let binding = json!({"metadata": {"name": "new"}, "target": {"kind": "Node", "name": "n1"}});
    let eviction = json!({"metadata": {"name": "web"}});
    let scale = json!({"spec": {"replicas": 3}});
    for (method, path, body, expected) in [
        (
            "GET",
            format!("{PODS}/web/attach?stdin=1&container=c"),
            None,
            ("CONNECT", "attach", "PodAttachOptions"),
        ),
        (
            "POST",
            format!("{PODS}/web/exec?command=a&command=b"),
            None,
            ("CONNECT", "exec", "PodExecOptions"),
        ),
        (
            "POST",
            format!("{PODS}/web/portforward?ports=80"),
            None,
            ("CONNECT", "portforward", "PodPortForwardOptions"),
        ),
        ("POST", format!("{PODS}/new/binding"), Some(binding), ("CREATE", "binding", "Binding")),
        (
            "POST",
            format!("{PODS}/web/eviction"),
            Some(eviction),
            ("CREATE", "eviction", "Eviction"),
        ),
        (
            "PATCH",
            format!("{PODS}/web/status"),
            Some(json!({"status": {"message": "x"}})),
            ("UPDATE", "status", "Pod"),
        ),
        ("PATCH", format!("{deployments}/d/scale"), Some(scale), ("UPDATE", "scale", "Scale")),
        (
            "POST",
            "/api/v1/namespaces/default/serviceaccounts/default/token".to_owned(),
            Some(json!({"spec": {"audiences": []}})),
            ("CREATE", "token", "TokenRequest"),
        ),
    ] {
        let (code, status) = admin.call(method, &path, body).await;
        assert_eq!(code, 403, "{path} {status}");
        let requests = hook.requests();
        let request = requests.first().unwrap_or(&Value::Null);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let found = (
            text(&request["operation"]),
            text(&request["subResource"]),
            text(&request["object"]["kind"]),
        );
        assert_eq!((&*found.0, &*found.1, &*found.2), expected, "{path}");
        assert_eq!(request["object"]["kind"], request["kind"]["kind"], "{path}");
        if expected.1 == "exec" {
            assert_eq!(request["object"]["command"], json!(["a", "b"]));
        }
        if expected.1 == "scale" {
            let replicas = |object: &Value| object["spec"]["replicas"].clone();
            assert_eq!(
                (replicas(&request["oldObject"]), replicas(&request["object"])),
                (json!(1), json!(3))
            );
        }
    }
    forget(admin, "validating", "all").await;
    let (code, scaled) = admin
        .call("PATCH", &format!("{deployments}/d/scale"), Some(json!({"spec": {"replicas": 2}})))
        .await;
    assert_eq!((code, &scaled["spec"]["replicas"]), (200, &json!(2)));

    // A rule for one version sees what comes in another.
    let patch = json!([{"op": "replace", "path": "/spec/maxReplicas", "value": 7}]);
    let mut v2 = hook.webhook(
        "v2.example.com",
        &patch_path(&patch),
        &["CREATE"],
        &["horizontalpodautoscalers"],
    );
    v2["rules"][0]["apiVersions"] = json!(["v2"]);
    v2["rules"][0]["apiGroups"] = json!(["autoscaling"]);
    configure(admin, "mutating", "v2", &[v2]).await;
    let scaler = json!({
        "metadata": {"name": "s"},
        "spec": {
            "maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        },
    });
    let path = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let created = admin.create(path, scaler).await;
    assert_eq!(
        (&created["apiVersion"], &created["spec"]["maxReplicas"]),
        (&json!("autoscaling/v1"), &json!(7))
    );
    assert_eq!(created["spec"]["targetCPUUtilizationPercentage"], 50);
    let request = hook.requests().remove(0);
    assert_eq!(
        (&request["kind"]["version"], &request["requestKind"]["version"]),
        (&json!("v2"), &json!("v1"))
    );
    assert_eq!(request["object"]["apiVersion"], "autoscaling/v2");
}
