//! Workloads over real HTTPS: their defaults and rules, `scale`, `eviction`, and the admission that pods
//! go through.

use crate::common;

use common::*;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn template() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "web:1"}]},
    })
}

fn deployment(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template()},
    })
}

fn reason(status: &Value) -> &str {
    status["reason"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployment_defaults_generation_status_and_rules() {
    let cluster = Cluster::start().await;
    let made = cluster.admin.create(DEPLOYMENTS, deployment("web")).await;
    let spec = &made["spec"];
    assert_eq!(
        (&spec["replicas"], &spec["revisionHistoryLimit"], &spec["progressDeadlineSeconds"]),
        (&json!(1), &json!(10), &json!(600))
    );
    assert_eq!(
        spec["strategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}})
    );
    assert_eq!(spec["template"]["spec"]["restartPolicy"], "Always");
    assert_eq!((&made["metadata"]["generation"], &made["status"]), (&json!(1), &json!({})));

    let path = format!("{DEPLOYMENTS}/web");
    let mut paused = made.clone();
    paused["spec"]["paused"] = true.into();
    paused["status"] = json!({"replicas": 7});
    let (code, paused) = cluster.admin.call("PUT", &path, Some(paused)).await;
    assert_eq!((code, &paused["metadata"]["generation"]), (200, &json!(2)), "{paused}");
    assert_eq!(paused["status"], json!({}), "only the status subresource changes it");
    let mut status = paused.clone();
    status["spec"]["replicas"] = 9.into();
    status["status"] = json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1});
    let (code, status) = cluster.admin.call("PUT", &format!("{path}/status"), Some(status)).await;
    assert_eq!((code, &status["spec"]["replicas"]), (200, &json!(1)), "{status}");
    assert_eq!(status["metadata"]["generation"], 2);
    assert_eq!(status["status"]["replicas"], 1);

    let mut other = deployment("other");
    other["spec"]["selector"]["matchLabels"]["app"] = "else".into();
    let (code, refused) = cluster.admin.call("POST", DEPLOYMENTS, Some(other)).await;
    assert_eq!(code, 422, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("spec.template.metadata.labels"), "{message}");
    assert!(message.contains("`selector` does not match template `labels`"), "{message}");
    let mut moved = status.clone();
    moved["spec"]["selector"]["matchLabels"]["tier"] = "x".into();
    moved["spec"]["template"]["metadata"]["labels"]["tier"] = "x".into();
    let (code, refused) = cluster.admin.call("PUT", &path, Some(moved)).await;
    assert_eq!(code, 422, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("field is immutable"), "{refused}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scale_of_every_workload() {
    let cluster = Cluster::start().await;
    for plural in ["deployments", "replicasets", "statefulsets"] {
        let list = format!("/apis/apps/v1/namespaces/default/{plural}");
        cluster.admin.create(&list, deployment("web")).await;
        let path = format!("{list}/web/scale");
        let (code, mut scale) = cluster.admin.get(&path).await;
        assert_eq!((code, &scale["kind"]), (200, &json!("Scale")), "{plural}");
        assert_eq!(scale["spec"], json!({"replicas": 1}));
        assert_eq!(scale["status"]["selector"], "app=web");
        scale["spec"]["replicas"] = 3.into();
        let (code, scale) = cluster.admin.call("PUT", &path, Some(scale)).await;
        assert_eq!((code, &scale["spec"]["replicas"]), (200, &json!(3)), "{scale}");
        let other = json!({"metadata": {"name": "other"}, "spec": {"replicas": 1}});
        let (code, status) = cluster.admin.call("PUT", &path, Some(other)).await;
        assert_eq!(code, 400, "{status}");
        let less = json!({"metadata": {"name": "web"}, "spec": {"replicas": -1}});
        let (code, status) = cluster.admin.call("PUT", &path, Some(less)).await;
        assert_eq!((code, &status["details"]["kind"]), (422, &json!("Scale")), "{status}");
        let patch = json!({"spec": {"replicas": 5}});
        let (code, scale) = cluster.admin.call("PATCH", &path, Some(patch)).await;
        assert_eq!((code, &scale["spec"]["replicas"]), (200, &json!(5)), "{scale}");
        let (_, object) = cluster.admin.get(&format!("{list}/web")).await;
        assert_eq!(
            (&object["spec"]["replicas"], &object["metadata"]["generation"]),
            (&json!(5), &json!(3))
        );
        let patch = json!({"spec": {"replicas": -1}});
        assert_eq!(cluster.admin.call("PATCH", &path, Some(patch)).await.0, 422);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_selector_is_its_uid() {
    let cluster = Cluster::start().await;
    let list = "/apis/batch/v1/namespaces/default/jobs";
    let mut pods = template();
    pods["spec"]["restartPolicy"] = "Never".into();
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": pods}});
    let made = cluster.admin.create(list, job).await;
    let uid = &made["metadata"]["uid"];
    assert_eq!(
        made["spec"]["selector"]["matchLabels"],
        json!({"batch.kubernetes.io/controller-uid": uid})
    );
    let labels = &made["spec"]["template"]["metadata"]["labels"];
    assert_eq!(
        (&labels["batch.kubernetes.io/job-name"], &labels["controller-uid"]),
        (&json!("j"), uid)
    );
    assert_eq!(
        (&made["spec"]["backoffLimit"], &made["spec"]["completions"]),
        (&json!(6), &json!(1))
    );
    let mut changed = made.clone();
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "web:2".into();
    let (code, refused) = cluster.admin.call("PUT", &format!("{list}/j"), Some(changed)).await;
    assert_eq!(code, 422, "{refused}");
    // Its pods stay for as long as nobody says otherwise.
    let (code, deleted) = cluster.admin.call("DELETE", &format!("{list}/j"), None).await;
    assert_eq!((code, &deleted["metadata"]["finalizers"]), (200, &json!(["orphan"])), "{deleted}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_policies_over_http() {
    let cluster = Cluster::start().await;
    for (name, policy, finalizers) in [
        ("a", Some("Foreground"), Some(json!(["foregroundDeletion"]))),
        ("b", Some("Orphan"), Some(json!(["orphan"]))),
        ("c", Some("Background"), None),
        ("d", None, None),
    ] {
        cluster.admin.create(DEPLOYMENTS, deployment(name)).await;
        let path = format!("{DEPLOYMENTS}/{name}");
        let options = policy.map(|policy| json!({"propagationPolicy": policy}));
        let (code, answer) = cluster.admin.call("DELETE", &path, options).await;
        assert_eq!(code, 200, "{answer}");
        let (code, now) = cluster.admin.get(&path).await;
        match finalizers {
            Some(finalizers) => {
                assert_eq!((code, &now["metadata"]["finalizers"]), (200, &finalizers), "{now}");
                assert!(now["metadata"]["deletionTimestamp"].is_string());
                let patch = json!({"metadata": {"finalizers": null}});
                cluster.admin.call("PATCH", &path, Some(patch)).await;
                assert_eq!(cluster.admin.get(&path).await.0, 404, "the collector is done");
            }
            None => assert_eq!(code, 404, "{now}"),
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eviction_respects_the_budget() {
    let cluster = Cluster::start().await;
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}});
    let budget = json!({"metadata": {"name": "web"}, "spec": spec});
    let mut budget = cluster.admin.create(budgets, budget).await;
    for name in ["a", "b", "c"] {
        let mut one = pod(name, "n1");
        one["metadata"]["labels"] = json!({"app": "web"});
        let mut one = cluster.admin.create(PODS, one).await;
        one["status"]["phase"] = "Running".into();
        one["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        let path = format!("{PODS}/{name}/status");
        assert_eq!(cluster.admin.call("PUT", &path, Some(one)).await.0, 200);
    }
    // Not with the client, which tries again by itself after a 429.
    let evict = async |name: &str, dry_run: bool| {
        let options = if dry_run { json!({"dryRun": ["All"]}) } else { json!({}) };
        let eviction = json!({"metadata": {"name": name}, "deleteOptions": options}).to_string();
        let header = "content-type: application/json";
        let arguments = ["-X", "POST", "-H", header, "-d", eviction.as_str()];
        cluster.admin_curl(&format!("{PODS}/{name}/eviction"), &arguments)
    };
    let (code, status) = evict("a", false).await;
    assert_eq!((code, reason(&status)), (429, "TooManyRequests"), "not seen by its controller yet");
    assert_eq!(status["details"]["causes"][0]["reason"], "DisruptionBudget");

    budget["status"] = json!({
        "observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2,
        "expectedPods": 3,
    });
    let path = format!("{budgets}/web/status");
    assert_eq!(cluster.admin.call("PUT", &path, Some(budget)).await.0, 200);
    assert_eq!(evict("a", true).await.0, 201);
    assert_eq!(evict("a", false).await.0, 201);
    let (_, gone) = cluster.admin.get(&format!("{PODS}/a")).await;
    assert!(gone["metadata"]["deletionTimestamp"].is_string(), "{gone}");
    let conditions = gone["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "DisruptionTarget"), "{gone}");
    let (_, budget) = cluster.admin.get(&format!("{budgets}/web")).await;
    assert_eq!(budget["status"]["disruptionsAllowed"], 0);
    assert!(budget["status"]["disruptedPods"]["a"].is_string());
    let (code, status) = evict("b", false).await;
    assert_eq!((code, reason(&status)), (429, "TooManyRequests"), "{status}");
    let message = &status["message"];
    assert_eq!(message, "Cannot evict pod as it would violate the pod's disruption budget.");
    // A pod that is going already is no further disruption.
    assert_eq!(evict("a", false).await.0, 201);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quota_limits_and_priorities_of_pods() {
    let cluster = Cluster::start().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({"pods": "1", "requests.cpu": "1", "count/deployments.apps": "0"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    let mut quota = cluster.admin.create(quotas, quota).await;
    quota["status"] = json!({"hard": hard, "used": {"pods": "0", "requests.cpu": "0", "count/deployments.apps": "0"}});
    assert_eq!(cluster.admin.call("PUT", &format!("{quotas}/q/status"), Some(quota)).await.0, 200);
    let (code, refused) = cluster.admin.call("POST", PODS, Some(pod("a", ""))).await;
    assert_eq!((code, reason(&refused)), (403, "Forbidden"));
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("failed quota: q: must specify requests.cpu for:"), "{message}");

    let ranges = "/api/v1/namespaces/default/limitranges";
    let limit =
        json!({"type": "Container", "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "2"}});
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [limit]}});
    cluster.admin.create(ranges, range).await;
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = json!({"metadata": {"name": "high"}, "value": 1000, "globalDefault": true});
    cluster.admin.create(classes, class).await;
    let second = json!({"metadata": {"name": "higher"}, "value": 2000, "globalDefault": true});
    let (code, refused) = cluster.admin.call("POST", classes, Some(second)).await;
    assert_eq!(code, 403, "{refused}");

    let made = cluster.admin.create(PODS, pod("a", "")).await;
    assert_eq!(made["spec"]["priority"], 1000);
    let resources = &made["spec"]["containers"][0]["resources"];
    assert_eq!(resources["requests"]["cpu"], "100m");
    assert_eq!(made["status"]["qosClass"], "Burstable");
    let (_, quota) = cluster.admin.get(&format!("{quotas}/q")).await;
    let used = &quota["status"]["used"];
    assert_eq!((&used["pods"], &used["requests.cpu"]), (&json!("1"), &json!("100m")));
    let (code, refused) = cluster.admin.call("POST", PODS, Some(pod("b", ""))).await;
    assert_eq!(code, 403);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"),
        "{message}"
    );
    let (code, _) = cluster.admin.call("POST", DEPLOYMENTS, Some(deployment("web"))).await;
    assert_eq!(code, 403, "object counts");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_security_of_a_namespace() {
    let cluster = Cluster::start().await;
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
    let namespace = json!({"metadata": {"name": "strict", "labels": labels}});
    cluster.admin.create("/api/v1/namespaces", namespace).await;
    cluster.admin.ensure_default_account("strict").await;
    let pods = "/api/v1/namespaces/strict/pods";
    let mut host = pod("a", "");
    host["metadata"]["namespace"] = "strict".into();
    cluster.admin.create(pods, host.clone()).await;
    host["metadata"]["name"] = "b".into();
    host["spec"]["hostNetwork"] = true.into();
    let (code, refused) = cluster.admin.call("POST", pods, Some(host)).await;
    assert_eq!((code, reason(&refused)), (403, "Forbidden"), "{refused}");
    let message = refused["message"].as_str().unwrap();
    let expected = "violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)";
    assert!(message.contains(expected), "{message}");
    // No list of containers is left out (CVE-2023-2727 and its kin).
    let debug = json!({"spec": {"ephemeralContainers": [{
        "name": "d", "image": "debug", "securityContext": {"privileged": true},
    }]}});
    let path = format!("{pods}/a/ephemeralcontainers");
    let (code, refused) = cluster.admin.call("PATCH", &path, Some(debug)).await;
    assert_eq!((code, reason(&refused)), (403, "Forbidden"), "{refused}");
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/warn": "odd"}}});
    let (code, _) = cluster.admin.call("PATCH", "/api/v1/namespaces/strict", Some(labels)).await;
    assert_eq!(code, 422);
    cluster.stop().await;
}
