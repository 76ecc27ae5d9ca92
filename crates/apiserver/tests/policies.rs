//! Admission policies: what they refuse and change.

use crate::common;

use common::*;
use serde_json::{Value, json};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn rules(operations: &[&str], resource: &str) -> Value {
    json!({"resourceRules": [{
        "operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource],
    }]})
}

fn policy(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    })
}

async fn validating(admin: &Client, name: &str, spec: Value, binding: Value) {
    let path = format!("{GROUP}/validatingadmissionpolicies");
    admin.create(&path, policy("ValidatingAdmissionPolicy", name, spec)).await;
    let path = format!("{GROUP}/validatingadmissionpolicybindings");
    let mut bound = json!({"policyName": name, "validationActions": ["Deny"]});
    for (field, value) in binding.as_object().unwrap() {
        bound[field] = value.clone();
    }
    admin.create(&path, policy("ValidatingAdmissionPolicyBinding", name, bound)).await;
}

async fn mutating(admin: &Client, name: &str, spec: Value) {
    let path = format!("{GROUP}/mutatingadmissionpolicies");
    admin.create(&path, policy("MutatingAdmissionPolicy", name, spec)).await;
    let path = format!("{GROUP}/mutatingadmissionpolicybindings");
    let bound = json!({"policyName": name});
    admin.create(&path, policy("MutatingAdmissionPolicyBinding", name, bound)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_refuse_requests() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let spec = json!({
        "matchConstraints": rules(&["CREATE", "UPDATE"], "configmaps"),
        "matchConditions": [{"name": "named", "expression": "object.metadata.name.startsWith('x')"}],
        "variables": [{"name": "n", "expression": "int(object.data.n)"}],
        "validations": [
            {"expression": "variables.n < 5", "messageExpression": "'n is ' + string(variables.n)"},
            {"expression": "oldObject == null || oldObject.data.n != '4'", "reason": "Forbidden"},
            {"expression": "authorizer.group('').resource('pods').check('get').allowed()"},
        ],
    });
    validating(admin, "limit", spec, json!({})).await;
    admin.create(MAPS, config_map("x1", json!({"n": "4"}))).await;
    admin.create(MAPS, config_map("other", json!({"n": "9"}))).await;
    let (code, status) = admin.call("POST", MAPS, Some(config_map("x2", json!({"n": "9"})))).await;
    let expected = "configmaps \"x2\" is forbidden: ValidatingAdmissionPolicy 'limit' with binding 'limit' denied request: n is 9";
    assert_eq!(
        (code, &status["reason"], &status["message"]),
        (422, &json!("Invalid"), &json!(expected))
    );
    let path = format!("{MAPS}/x1");
    let (code, status) = admin.call("PATCH", &path, Some(json!({"data": {"n": "3"}}))).await;
    assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")), "{status}");
    let (code, status) = admin.call("POST", MAPS, Some(config_map("x3", json!({})))).await;
    let message = status["message"].as_str().unwrap();
    assert!(code == 422 && message.contains("no such key: data"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_take_parameters() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": rules(&["CREATE"], "serviceaccounts"),
        "validations": [{"expression": "object.metadata.name != params.data.forbidden", "message": "no"}],
    });
    let binding = json!({"paramRef": {"name": "params", "parameterNotFoundAction": "Deny"}});
    validating(admin, "param", spec, binding).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = |name: &str| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    let (code, status) = admin.call("POST", accounts, Some(account("a"))).await;
    let message = status["message"].as_str().unwrap();
    assert!(code == 422 && message.contains("no params found for policy binding"), "{status}");
    admin.create(MAPS, config_map("params", json!({"forbidden": "b"}))).await;
    admin.create(accounts, account("a")).await;
    assert_eq!(admin.call("POST", accounts, Some(account("b"))).await.0, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_take_parameters_of_custom_kinds() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let spec = json!({
        "paramKind": {"apiVersion": "rules.example.com/v1", "kind": "NameRule"},
        "matchConstraints": rules(&["CREATE"], "serviceaccounts"),
        "validations": [{"expression": "object.metadata.name != params.spec.forbidden", "message": "no"}],
    });
    let binding = json!({"paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"}});
    validating(admin, "param", spec, binding).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = |name: &str| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    let (code, status) = admin.call("POST", accounts, Some(account("a"))).await;
    let message = status["message"].as_str().unwrap();
    let unknown =
        "failed to find resource referenced by paramKind: 'rules.example.com/v1, Kind=NameRule'";
    assert!(code == 422 && message.contains(unknown), "{status}");
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "namerules.rules.example.com"},
        "spec": {
            "group": "rules.example.com", "scope": "Namespaced",
            "names": {"plural": "namerules", "kind": "NameRule"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
                "openAPIV3Schema": {"type": "object", "properties": {"spec": {
                    "type": "object", "properties": {"forbidden": {"type": "string"}}}}}}}],
        },
    });
    admin.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let served = "/apis/rules.example.com/v1/namespaces/default/namerules";
    eventually("served", || async { admin.get(served).await.0 == 200 }).await;
    admin.create(accounts, account("a")).await;
    let rule = json!({"apiVersion": "rules.example.com/v1", "kind": "NameRule",
        "metadata": {"name": "b"}, "spec": {"forbidden": "b"}});
    admin.create(served, rule).await;
    assert_eq!(admin.call("POST", accounts, Some(account("b"))).await.0, 422);
    admin.create(accounts, account("c")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_checked_against_types() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let mut constraints = rules(&["CREATE"], "deployments");
    constraints["resourceRules"][0]["apiGroups"] = json!(["apps"]);
    let spec = json!({
        "matchConstraints": constraints,
        "validations": [
            {"expression": "object.spec.replicas > 1"},
            {"expression": "object.spec.replicas > '1'"},
        ],
    });
    let path = format!("{GROUP}/validatingadmissionpolicies");
    admin.create(&path, policy("ValidatingAdmissionPolicy", "typed", spec)).await;
    let path = format!("{path}/typed");
    eventually("checked", || async {
        admin.get(&path).await.1["status"]["observedGeneration"] == 1
    })
    .await;
    let (_, checked) = admin.get(&path).await;
    let warning = "apps/v1, Kind=Deployment: compilation failed: ERROR: <input>:1:22: found no matching \
                   overload for '_>_' applied to '(int, string)'\n | object.spec.replicas > '1'\n \
                   | .....................^\n";
    assert_eq!(
        checked["status"]["typeChecking"]["expressionWarnings"],
        json!([{"fieldRef": "spec.validations[1].expression", "warning": warning}])
    );
    let patch = json!([{"op": "remove", "path": "/spec/validations/1"}]);
    let body = patch.to_string().into_bytes();
    let (code, _) = admin.send("PATCH", &path, "application/json-patch+json", body).await;
    assert_eq!(code, 200);
    eventually("checked again", || async {
        let status = admin.get(&path).await.1["status"].clone();
        status == json!({"observedGeneration": 2, "typeChecking": {}})
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_change_objects() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let spec = |mutation: Value| {
        json!({
            "matchConstraints": rules(&["CREATE"], "configmaps"),
            "reinvocationPolicy": "Never",
            "mutations": [mutation],
        })
    };
    let apply = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {
        "expression": "Object{metadata: Object.metadata{labels: {'by': 'policy'}}}",
    }});
    mutating(admin, "label", spec(apply)).await;
    let patch = json!({"patchType": "JSONPatch", "jsonPatch": {
        "expression": "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a.io/b'), value: object.metadata.name}]",
    }});
    mutating(admin, "patch", spec(patch)).await;
    let created = admin.create(MAPS, config_map("m", json!({"a": "1"}))).await;
    assert_eq!(created["metadata"]["labels"], json!({"by": "policy", "a.io/b": "m"}), "{created}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_leave_the_cluster_administrable() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let all = json!({"resourceRules": [{
        "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"],
    }]});
    let spec = json!({"matchConstraints": all, "validations": [{"expression": "false"}]});
    validating(admin, "none", spec, json!({})).await;
    assert_eq!(admin.call("POST", MAPS, Some(config_map("m", json!({})))).await.0, 422);
    let path = format!("{GROUP}/validatingadmissionpolicybindings/none");
    assert_eq!(admin.call("DELETE", &path, None).await.0, 200);
    admin.create(MAPS, config_map("m", json!({}))).await;
    // one that does not compile is refused
    let broken = policy(
        "ValidatingAdmissionPolicy",
        "broken",
        json!({
            "matchConstraints": rules(&["CREATE"], "configmaps"),
            "validations": [{"expression": "nope"}],
        }),
    );
    let path = format!("{GROUP}/validatingadmissionpolicies");
    let (code, status) = admin.call("POST", &path, Some(broken)).await;
    let message = status["message"].as_str().unwrap();
    assert!(
        code == 422
            && message
                .contains("compilation failed: ERROR: <input>:1:1: undeclared reference to 'nope'"),
        "{status}"
    );
}
