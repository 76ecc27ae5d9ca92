//! What is said of faulty objects, in the words and about the fields of kube-apiserver, as the contract test
//! finds them.

use serde_json::{Value, json};

use super::rules::complaints;

const QUALIFIED: &str = "name part must consist of alphanumeric characters";

fn named(name: &str, mut object: Value) -> Value {
    object["metadata"] = json!({"name": name});
    object
}

fn spec(spec: Value) -> Value {
    named("a", json!({"spec": spec}))
}

fn deployment(selector: Value) -> Value {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
        {"name": "c", "image": "i"},
    ]}});
    spec(json!({"selector": selector, "template": template}))
}

fn definition(version: Value) -> Value {
    let mut whole = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object"}}});
    whole.as_object_mut().unwrap().extend(version.as_object().unwrap().clone());
    named(
        "foos.example.com",
        json!({"spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [whole],
        }}),
    )
}

#[test]
fn wording_of_validation_is_upstreams() {
    let bad_version = "a DNS-1035 label must consist of";
    let table: Vec<(&str, Value, String)> = vec![
        (
            "persistentvolumeclaims",
            spec(json!({"volumeMode": ""})),
            "spec.volumeMode: Unsupported value: \"\": supported values: \"Block\", \"Filesystem\"".into(),
        ),
        (
            "storageclasses",
            named("a", json!({"provisioner": "p", "volumeBindingMode": ""})),
            "volumeBindingMode: Unsupported value: \"\"".into(),
        ),
        (
            "storageclasses",
            named("a", json!({"provisioner": "Not Valid!"})),
            format!("provisioner: Invalid value: \"not valid!\": {QUALIFIED}"),
        ),
        (
            "csidrivers",
            spec(json!({"fsGroupPolicy": ""})),
            "spec.fsGroupPolicy: Unsupported value: \"\"".into(),
        ),
        (
            "csinodes",
            spec(json!({"drivers": [{"name": "d", "nodeID": "n", "topologyKeys": [""]}]})),
            "spec.drivers[0]: Required value".into(),
        ),
        (
            "poddisruptionbudgets",
            spec(json!({"minAvailable": 1, "unhealthyPodEvictionPolicy": ""})),
            "spec.unhealthyPodEvictionPolicy: Unsupported value: \"\"".into(),
        ),
        (
            "networkpolicies",
            spec(json!({"podSelector": {}, "policyTypes": ["In"]})),
            "spec.policyTypes: Unsupported value: \"In\": supported values: \"Ingress\", \"Egress\"".into(),
        ),
        (
            "networkpolicies",
            spec(json!({"podSelector": {}, "ingress": [{"ports": [{"protocol": "X"}]}]})),
            "spec.ingress.ports.protocol: Unsupported value: \"X\": supported values: \"TCP\", \"UDP\", \"SCTP\"".into(),
        ),
        (
            "networkpolicies",
            spec(json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80, "endPort": 1}]}]})),
            "spec.ingress.ports.endPort: Invalid value: 80: must be greater than or equal to `port`".into(),
        ),
        (
            "ingressclasses",
            spec(json!({"controller": format!("{}/b", "a".repeat(250))})),
            "spec.controller: Too long: may not be more than 250 bytes".into(),
        ),
        (
            "prioritylevelconfigurations",
            spec(json!({})),
            "spec.type: Unsupported value: \"\": supported values: \"Exempt\", \"Limited\"".into(),
        ),
        (
            "resourceclaims",
            spec(json!({"devices": {"requests": [{"exactly": {"deviceClassName": "d"}}]}})),
            "spec.devices.requests.name: Invalid value: \"\": a lowercase RFC 1123 label".into(),
        ),
        (
            "cronjobs",
            spec(json!({"schedule": "Not Valid!"})),
            "spec.schedule: Invalid value: \"Not Valid!\": expected exactly 5 fields, found 2: [Not Valid!]".into(),
        ),
        (
            "validatingwebhookconfigurations",
            named("a", json!({"webhooks": [{"name": "a.b.c", "admissionReviewVersions": ["V 1"]}]})),
            format!("webhooks.admissionReviewVersions: Invalid value: \"V 1\": {bad_version}"),
        ),
        (
            "validatingwebhookconfigurations",
            named("a", json!({"webhooks": [{"name": "a.b.c", "sideEffects": ""}]})),
            "webhooks.sideEffects: Unsupported value: \"\"".into(),
        ),
        (
            "clusterroles",
            named("a", json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b c"}}]}})),
            "aggregationRule.clusterRoleSelectors: Invalid value: null: invalid label selector.".into(),
        ),
        (
            "resourcequotas",
            spec(json!({"scopeSelector": {"matchExpressions": [{"operator": "Exists"}]}})),
            "spec.scopeSelector.matchExpressions.scopeName: Invalid value: \"\": unsupported scope".into(),
        ),
        (
            "deployments",
            deployment(Value::Null),
            "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match".into(),
        ),
        (
            "deployments",
            deployment(json!({"matchExpressions": [{"key": "k", "operator": "In"}], "matchLabels": {"app": "web"}})),
            "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"web\"},\"matchExpressions\":[{\"key\":\"k\",\"operator\":\"In\"}]}: invalid label selector".into(),
        ),
        (
            "services",
            spec(json!({"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]})),
            "spec.ports: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\"TargetPort\":0,\"NodePort\":0}".into(),
        ),
        (
            "customresourcedefinitions",
            definition(json!({"additionalPrinterColumns": [{"name": "A", "type": "string"}]})),
            "spec.additionalPrinterColumns.JSONPath: Required value".into(),
        ),
        (
            "customresourcedefinitions",
            definition(json!({"subresources": {"scale": {}}})),
            "spec.subresources.scale.specReplicasPath: Required value".into(),
        ),
        (
            "customresourcedefinitions",
            definition(json!({"name": "V"})),
            format!("spec.version: Invalid value: \"V\": {bad_version}"),
        ),
    ];
    for (plural, object, expected) in table {
        let said: Vec<String> =
            complaints(plural, object.clone()).iter().map(|one| without_indexes(one)).collect();
        let expected = without_indexes(&expected);
        assert!(said.iter().any(|one| one.starts_with(&expected)), "{object}: {said:?}");
    }
}

/// The message without the indexes of its field.
fn without_indexes(message: &str) -> String {
    let (field, rest) = message.split_once(": ").unwrap_or((message, ""));
    let mut parts = field.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    let field = parts
        .fold(first, |whole, part| whole + part.split_once(']').map_or("", |(_, after)| after));
    format!("{field}: {rest}")
}

#[test]
fn node_ranges_are_those_that_old_clients_know() {
    use super::made;
    for (given, expected) in [
        (json!({"podCIDR": "10.1.0.0/24"}), json!(["10.1.0.0/24"])),
        (json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.2.0.0/24"]}), json!(["10.1.0.0/24"])),
        (
            json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}),
            json!(["10.1.0.0/24", "fd00::/64"]),
        ),
        (json!({"podCIDRs": ["10.2.0.0/24"]}), json!(["10.2.0.0/24"])),
    ] {
        let node = made("nodes", spec(given.clone()));
        assert_eq!(node["spec"]["podCIDRs"], expected, "{given}");
        assert_eq!(node["spec"]["podCIDR"], expected[0], "{given}");
    }
}
