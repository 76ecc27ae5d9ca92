//! The audit log of an apiserver: which events requests make, and what is in them.

use crate::common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::hook::*;
use common::*;
use longshore_apiserver::{
    AuditConfig, AuditLogConfig, AuditLogFormat, AuditMode, AuditRotation, Config,
};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn audit(config: &mut Config, dir: &Path, rules: &str) {
    let policy_file = dir.join("policy.yaml");
    let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}");
    std::fs::write(&policy_file, text).unwrap();
    config.audit = AuditConfig {
        policy_file: Some(policy_file),
        log: Some(AuditLogConfig {
            path: Some(dir.join("audit.log")),
            rotation: AuditRotation::default(),
            format: AuditLogFormat::Json,
            mode: AuditMode::Blocking,
            truncate: None,
        }),
        webhook: None,
    };
}

/// A cluster with a policy, and its log.
async fn cluster(dir: &Path, rules: &str) -> (Cluster, Log) {
    let cluster = Cluster::start_with(|config| audit(config, dir, rules)).await;
    (cluster, Log(dir.join("audit.log")))
}

struct Log(PathBuf);

impl Log {
    fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.0).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn of(&self, uri: &str, verb: &str) -> Vec<Value> {
        let mut events = self.events();
        events.retain(|event| event["requestURI"] == uri && event["verb"] == verb);
        events
    }

    /// The one event of a request in a stage.
    fn one(&self, uri: &str, verb: &str, stage: &str) -> Value {
        let mut events = self.of(uri, verb);
        events.retain(|event| event["stage"] == stage);
        assert_eq!(events.len(), 1, "{verb} {uri} {stage}: {events:?}");
        events.remove(0)
    }

    /// Waits for the one event of a request that ends by itself.
    async fn wait(&self, uri: &str, verb: &str, stage: &str) -> Value {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(20) {
            if self.of(uri, verb).iter().any(|event| event["stage"] == stage) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.one(uri, verb, stage)
    }
}

fn map(name: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"a": "1"}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_of_each_verb_has_both_bodies() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "omitManagedFields: true\nrules:\n- level: RequestResponse\n  namespaces: [default]\n  \
                 resources: [{resources: [configmaps]}]";
    let (cluster, log) = cluster(dir.path(), rules).await;
    let admin = &cluster.admin;
    let one = format!("{MAPS}/a");
    admin.create(MAPS, map("a")).await;
    admin.get(&one).await;
    admin.get(MAPS).await;
    let mut changed = map("a");
    changed["data"]["a"] = "2".into();
    admin.call("PUT", &one, Some(changed)).await;
    admin.call("PATCH", &one, Some(json!({"data": {"b": "1"}}))).await;
    let delete = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    admin.call("DELETE", &one, Some(delete)).await;
    for (uri, verb, code, request) in [
        (MAPS, "create", 201, true),
        (&one, "get", 200, false),
        (MAPS, "list", 200, false),
        (&one, "update", 200, true),
        (&one, "patch", 200, true),
        (&one, "delete", 200, true),
    ] {
        let received = log.one(uri, verb, "RequestReceived");
        let event = log.one(uri, verb, "ResponseComplete");
        assert_eq!(received["auditID"], event["auditID"]);
        assert!(received["responseStatus"].is_null() && received["requestObject"].is_null());
        assert_eq!(received["stageTimestamp"], received["requestReceivedTimestamp"]);
        assert_eq!(event["responseStatus"]["code"], code, "{verb}");
        assert_eq!(event["requestObject"].is_object(), request, "{verb}: {event}");
        assert!(event["responseObject"].is_object(), "{verb}: {event}");
        assert_eq!(event["user"]["username"], "kubernetes-admin");
        assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]));
        assert_eq!(event["objectRef"]["resource"], "configmaps");
        assert_eq!(event["objectRef"]["apiVersion"], "v1");
        assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "allow");
        assert!(!event.to_string().contains("managedFields"), "{event}");
    }
    let created = log.one(MAPS, "create", "ResponseComplete");
    assert_eq!(created["objectRef"]["name"], "a");
    assert_eq!(created["requestObject"]["data"], json!({"a": "1"}));
    assert!(created["responseObject"]["metadata"]["uid"].is_string());
    let list = log.one(MAPS, "list", "ResponseComplete");
    assert_eq!(list["responseObject"]["kind"], "ConfigMapList");
    let deleted = log.one(&one, "delete", "ResponseComplete");
    assert_eq!(deleted["responseStatus"]["status"], "Success", "{deleted}");
    assert!(log.events().iter().all(|event| event["objectRef"]["resource"] == "configmaps"));
    let (_, metrics) = cluster.admin_text("/metrics", &[]);
    assert!(
        metrics.contains("apiserver_audit_level_total{level=\"RequestResponse\"} 6"),
        "{metrics}"
    );
    assert!(metrics.contains("apiserver_audit_event_total 12"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_of_secrets_has_no_body_at_level_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "omitStages: [RequestReceived]\nrules:\n- level: Metadata\n  resources: [{resources: [secrets]}]\n\
                 - level: RequestResponse\n  resources: [{resources: [serviceaccounts/token]}]";
    let (cluster, log) = cluster(dir.path(), rules).await;
    let secret = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"},
        "stringData": {"p": "hunter2"}});
    cluster.admin.create(SECRETS, secret).await;
    cluster.admin.get(&format!("{SECRETS}/s")).await;
    let (code, _) = cluster.admin.get(&format!("{SECRETS}/absent")).await;
    assert_eq!(code, 404);
    let event = log.one(&format!("{SECRETS}/absent"), "get", "ResponseComplete");
    let status = &event["responseStatus"];
    assert_eq!((&status["code"], &status["reason"]), (&json!(404), &json!("NotFound")));
    assert_eq!(status["message"], "secrets \"absent\" not found");
    let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"));
    assert!(log.events().iter().all(|event| event["stage"] == "ResponseComplete"));
    let token = "/api/v1/namespaces/default/serviceaccounts/default/token";
    cluster.admin.create(token, json!({"spec": {}})).await;
    let event = log.one(token, "create", "ResponseComplete");
    assert_eq!(event["objectRef"]["subresource"], "token");
    assert!(event["requestObject"].is_object() && event["responseObject"]["status"].is_object());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_of_a_watch_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, log) = cluster(dir.path(), "rules: [{level: RequestResponse}]").await;
    let uri = format!("{MAPS}?watch=true&timeoutSeconds=2");
    let (watching, ()) = tokio::join!(async { cluster.admin_text(&uri, &[]) }, async {
        let started = log.wait(&uri, "watch", "ResponseStarted").await;
        assert_eq!(started["responseStatus"]["code"], 200);
    });
    assert_eq!(watching.0, 200);
    let event = log.wait(&uri, "watch", "ResponseComplete").await;
    assert!(event["responseObject"].is_null());
    assert_eq!(log.of(&uri, "watch").len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_names_who_was_refused_and_who_is_impersonated() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, log) = cluster(dir.path(), "rules: [{level: Metadata}]").await;
    let ann = cluster.user("ann", "dev").await;
    assert_eq!(ann.get(SECRETS).await.0, 403);
    let event = log.one(SECRETS, "list", "ResponseComplete");
    assert_eq!(event["user"]["groups"], json!(["dev", "system:authenticated"]));
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(event["responseStatus"]["reason"], "Forbidden");

    cluster.admin_curl(MAPS, &["-H", "Impersonate-User: joe", "-H", "Impersonate-Group: g"]);
    let event = log.one(MAPS, "list", "ResponseComplete");
    assert_eq!(event["user"]["username"], "kubernetes-admin");
    let joe = json!({"username": "joe", "groups": ["g", "system:authenticated"]});
    assert_eq!(event["impersonatedUser"], joe);
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "forbid");

    let (code, _) = cluster.curl("/api/v1/nodes", &["-H", "Authorization: Bearer nonsense"]);
    assert_eq!(code, 401);
    let event = log.one("/api/v1/nodes", "list", "ResponseStarted");
    assert_eq!(log.of("/api/v1/nodes", "list").len(), 1);
    assert_eq!((&event["user"], &event["responseStatus"]["code"]), (&json!({}), &json!(401)));

    let (_, text) = cluster.admin_text("/healthz", &["-i", "-H", "Audit-ID: mine", "-A", "agent"]);
    assert!(text.to_lowercase().contains("audit-id: mine"), "{text}");
    let event = log.one("/healthz", "get", "ResponseComplete");
    assert_eq!((&event["auditID"], &event["userAgent"]), (&json!("mine"), &json!("agent")));
    assert!(event["objectRef"].is_null());
    let (code, _) = cluster.admin_text("/api/v1/a%2Fb/c", &[]);
    assert_eq!(code, 404);
    assert_eq!(
        log.one("/api/v1/a%2Fb/c", "get", "ResponseComplete")["responseStatus"]["code"],
        404
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_has_annotations_of_webhooks() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "rules:\n- level: Metadata\n  verbs: [update]\n- level: Request\n  verbs: [create]\n  \
                 resources: [{resources: [configmaps, pods]}]";
    let (cluster, log) = cluster(dir.path(), rules).await;
    let (admin, hook) = (&cluster.admin, Hook::start().await);
    let patch = json!([{"op": "add", "path": "/data/by", "value": "hook"}]);
    let path = patch_path(&patch);
    let webhook = |name: &str, path: &str| hook.webhook(name, path, &["*"], &["configmaps"]);
    let mut broken = webhook("broken.example.com", "/error");
    broken["failurePolicy"] = "Ignore".into();
    let patching = webhook("patch.example.com", &path);
    configure(admin, "mutating", "m", &[patching, broken.clone()]).await;
    let annotating = webhook("annotate.example.com", "/annotate");
    configure(admin, "validating", "v", &[annotating, broken]).await;
    admin.create(MAPS, map("a")).await;
    let event = log.one(MAPS, "create", "ResponseComplete");
    let annotations = event["annotations"].as_object().unwrap();
    let found =
        |key: &str| -> Value { serde_json::from_str(annotations[key].as_str().unwrap()).unwrap() };
    let first = json!({"configuration": "m", "webhook": "patch.example.com", "mutated": true});
    assert_eq!(found("mutation.webhook.admission.k8s.io/round_0_index_0"), first);
    let recorded = found("patch.webhook.admission.k8s.io/round_0_index_0");
    assert_eq!((&recorded["patch"], &recorded["patchType"]), (&patch, &json!("JSONPatch")));
    for (key, value) in [
        ("failed-open.mutation.webhook.admission.k8s.io/round_0_index_1", "broken.example.com"),
        ("failed-open.validating.webhook.admission.k8s.io/round_0_index_1", "broken.example.com"),
        ("annotate.example.com/why", "because"),
    ] {
        assert_eq!(annotations[key], value, "{annotations:?}");
    }
    let one = format!("{MAPS}/a");
    admin.call("PUT", &one, Some(map("a"))).await;
    let event = log.one(&one, "update", "ResponseComplete").to_string();
    assert!(event.contains("mutation.webhook") && !event.contains("patch.webhook"), "{event}");

    let labels = json!({"pod-security.kubernetes.io/audit": "restricted"});
    let namespace = json!({"metadata": {"name": "audited", "labels": labels}});
    admin.create("/api/v1/namespaces", namespace).await;
    admin.ensure_default_account("audited").await;
    let pods = "/api/v1/namespaces/audited/pods";
    admin.create(pods, pod("p", "")).await;
    let event = log.one(pods, "create", "ResponseComplete");
    let found =
        |key: &str| event["annotations"][format!("pod-security.kubernetes.io/{key}")].as_str();
    assert_eq!(found("enforce-policy"), Some("privileged:latest"));
    let violations = found("audit-violations").unwrap();
    assert!(
        violations.starts_with("would violate PodSecurity \"restricted:latest\": "),
        "{violations}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_has_annotations_of_policies() {
    const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
    let dir = tempfile::tempdir().unwrap();
    let rules =
        "rules: [{level: Metadata, verbs: [create], resources: [{resources: [configmaps]}]}]";
    let (cluster, log) = cluster(dir.path(), rules).await;
    let admin = &cluster.admin;
    let policy = json!({"metadata": {"name": "p.example.com"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["CREATE"], "resources": ["configmaps"]}]},
        "paramKind": {"apiVersion": "v1", "kind": "Secret"},
        "validations": [
            {"expression": "true"},
            {"expression": "!has(object.data)", "message": "no data, please"},
            {"expression": "object.metadata.name != 'b'"},
        ],
        "auditAnnotations": [
            {"key": "who", "valueExpression": "' by ' + params.metadata.name"},
            {"key": "long", "valueExpression": "object.metadata.name == 'a' ? 'x' : ''"},
            {"key": "none", "valueExpression": "'  '"},
        ],
    }});
    admin.create(&format!("{GROUP}/validatingadmissionpolicies"), policy).await;
    for name in ["one", "two"] {
        let secret = json!({"metadata": {"name": name}});
        admin.create("/api/v1/namespaces/default/secrets", secret).await;
        let binding = json!({"metadata": {"name": name}, "spec": {
            "policyName": "p.example.com", "validationActions": ["Audit", "Warn"],
            "paramRef": {"name": name, "namespace": "default", "parameterNotFoundAction": "Deny"},
        }});
        admin.create(&format!("{GROUP}/validatingadmissionpolicybindings"), binding).await;
    }
    let uri = format!("{MAPS}?fieldManager=test");
    let (code, made) = admin.call("POST", &uri, Some(map("a"))).await;
    assert_eq!(code, 201, "nothing is denied: {made}");
    let event = log.one(&uri, "create", "ResponseComplete");
    let annotations = event["annotations"].as_object().unwrap();
    assert_eq!(annotations["p.example.com/who"], "by one, by two");
    assert_eq!(annotations["p.example.com/long"], "x");
    assert!(annotations.get("p.example.com/none").is_none(), "{annotations:?}");
    assert_eq!(
        annotations["validation.policy.admission.k8s.io/validation_failure"],
        "[{\"message\":\"no data, please\",\"policy\":\"p.example.com\",\"binding\":\"one\",\
         \"expressionIndex\":1,\"validationActions\":[\"Audit\",\"Warn\"]}]"
    );
    assert_eq!(annotations["authorization.k8s.io/decision"], "allow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gzip_of_large_answers_leaves_the_audit_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, log) = cluster(dir.path(), "rules: [{level: RequestResponse}]").await;
    let mut large = map("large");
    large["data"]["a"] = "x".repeat(200_000).into();
    cluster.admin.create(MAPS, large).await;
    let one = format!("{MAPS}/large");
    for (path, arguments, is_compressed) in [
        (one.as_str(), &["-H", "Accept-Encoding: deflate, gzip"][..], true),
        (MAPS, &["-H", "Accept-Encoding: gzip"], true),
        (&one, &["-H", "Accept-Encoding: gzip;q=1.0"], false),
        (&one, &[], false),
        ("/api/v1", &["-H", "Accept-Encoding: gzip"], false),
    ] {
        let headers = dir.path().join("headers");
        let file = headers.display().to_string();
        let decoding = if is_compressed { "--compressed" } else { "--no-buffer" };
        let arguments = [&[decoding, "-D", &file], arguments].concat();
        let (code, body) = cluster.admin_curl(path, &arguments);
        assert_eq!(code, 200);
        assert!(body.is_object(), "{path} {arguments:?}");
        let headers = std::fs::read_to_string(&headers).unwrap().to_lowercase();
        assert_eq!(headers.contains("content-encoding: gzip"), is_compressed, "{path} {headers}");
        assert_eq!(headers.contains("vary: accept-encoding"), is_compressed, "{path} {headers}");
    }
    let event = log.one(MAPS, "list", "ResponseComplete");
    assert_eq!(event["responseObject"]["items"][0]["data"]["a"].as_str().unwrap().len(), 200_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_that_must_be_stored_refuses_requests() {
    let dir = tempfile::tempdir().unwrap();
    let refusing = Cluster::start_with(|config| {
        audit(config, dir.path(), "rules: [{level: Metadata, nonResourceURLs: [/version]}]");
        let log = config.audit.log.as_mut().unwrap();
        log.path = Some("/dev/full".into());
        log.mode = AuditMode::BlockingStrict;
    });
    let cluster = refusing.await;
    assert_eq!(cluster.admin_text("/version", &[]).0, 500);
    assert_eq!(cluster.admin_text("/healthz", &[]).0, 200);
    let (_, metrics) = cluster.admin_text("/metrics", &[]);
    assert!(metrics.contains("apiserver_audit_requests_rejected_total 1"), "{metrics}");
    assert!(metrics.contains("apiserver_audit_error_total{plugin=\"log\"} 1"), "{metrics}");
}
