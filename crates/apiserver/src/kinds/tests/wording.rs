//! What is said of faulty objects, in the words and about the fields of kube-apiserver, as the contract test
//! finds them.

use serde_json::{Value, json};

use super::rules::complaints;
use super::{FieldValidation, conform, decoded, resource};

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

fn pod_with(volumes: Value) -> Value {
    named("web", json!({"spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}}))
}

fn workload(field: &str, strategy: Value) -> Value {
    let mut object = deployment(json!({"matchLabels": {"app": "web"}}));
    object["spec"][field] = strategy;
    object
}

fn scaler(changed: Value) -> Value {
    let mut whole = json!({
        "maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
    });
    whole.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
    spec(whole)
}

fn policy(changed: Value) -> Value {
    let mut whole = json!({
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
        ]},
        "validations": [{"expression": "variables.v == 'x'"}],
    });
    whole.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
    spec(whole)
}

fn ingress(path: Value) -> Value {
    spec(json!({"rules": [{"http": {"paths": [path]}}]}))
}

/// A list `l` of objects in the schema of a definition.
fn list_of_maps(changed: Value) -> Value {
    let mut list = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
    });
    for (field, value) in changed.as_object().unwrap() {
        match value {
            Value::Null => drop(list.as_object_mut().unwrap().remove(field)),
            value => list[field] = value.clone(),
        }
    }
    schema(json!({"type": "object", "properties": {"l": list}}))
}

fn schema(schema: Value) -> Value {
    definition(json!({"schema": {"openAPIV3Schema": schema}}))
}

/// What is said exactly, without indexes: nothing else.
#[test]
fn what_is_said_is_what_upstream_says_and_no_more() {
    const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
                         must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used \
                         for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
                             or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex \
                             used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let long = "a".repeat(300);
    let of_pod = |volume: Value| pod_with(json!([volume]));
    let taint = json!({"key": "a", "value": "b", "effect": "NoSchedule"});
    let toleration = json!({"key": "a", "operator": "Exists"});
    let secret = |data: &str| {
        let data = json!({".dockerconfigjson": data});
        named("s", json!({"type": "kubernetes.io/dockerconfigjson", "stringData": data}))
    };
    let webhook = |url: &str| {
        named(
            "a",
            json!({"webhooks": [{
                "name": "a.b.c", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": {"url": url},
            }]}),
        )
    };
    let claim = |config: Value| {
        let requests = json!([{"name": "r", "exactly": {"deviceClassName": "d"}}]);
        spec(json!({"devices": {"requests": requests, "config": [config]}}))
    };
    let selected = |path: &str| {
        definition(json!({"selectableFields": [{"jsonPath": path}], "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}},
        }}}))
    };
    let rule = |rule: &str, kind: &str| {
        schema(json!({"type": "object", "properties": {"spec": {
            "type": "object", "properties": {"a": {"type": kind}},
            "x-kubernetes-validations": [{"rule": rule, "message": "m"}],
        }}}))
    };
    let table: Vec<(&str, Value, Vec<String>)> = vec![
        // workloads
        (
            "deployments",
            workload("strategy", json!({"type": "Odd", "rollingUpdate": {"maxUnavailable": 1}})),
            vec!["spec.strategy: Unsupported value: {\"Type\":\"Odd\",\"RollingUpdate\":{\"MaxUnavailable\":1,\"MaxSurge\":0}}: supported values: \"Recreate\", \"RollingUpdate\"".into()],
        ),
        (
            "daemonsets",
            workload("updateStrategy", json!({"type": "Odd"})),
            vec!["spec.updateStrategy: Unsupported value: {\"Type\":\"Odd\",\"RollingUpdate\":null}: supported values: \"RollingUpdate\", \"OnDelete\"".into()],
        ),
        (
            "statefulsets",
            workload("updateStrategy", json!({"type": "Odd", "rollingUpdate": {"partition": 1}})),
            vec!["spec.updateStrategy: Invalid value: {\"Type\":\"Odd\",\"RollingUpdate\":{\"Partition\":1,\"MaxUnavailable\":null}}: must be 'RollingUpdate' or 'OnDelete'".into()],
        ),
        ("statefulsets", workload("revisionHistoryLimit", json!(-1)), vec![]),
        (
            "deployments",
            deployment(json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "", "operator": "DoesNotExist"}]})),
            vec![
                "spec.selector.matchExpressions.key: Invalid value: \"\": name part must be non-empty".into(),
                format!("spec.selector.matchExpressions.key: Invalid value: \"\": {QUALIFIED}, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"),
                "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"web\"},\"matchExpressions\":[{\"key\":\"\",\"operator\":\"DoesNotExist\"}]}: invalid label selector".into(),
            ],
        ),
        (
            "replicationcontrollers",
            spec(json!({"selector": {"a": "b"}, "template": {"metadata": {"labels": {"a": "b"}}}})),
            vec!["spec.template.spec.containers: Required value".into()],
        ),
        (
            "replicationcontrollers",
            named(&long, json!({"spec": {"selector": {"app": "web"}, "template": deployment(Value::Null)["spec"]["template"]}})),
            vec![format!("metadata.name: Invalid value: \"{long}\": must be no more than 253 bytes")],
        ),
        (
            "horizontalpodautoscalers",
            scaler(json!({"behavior": {"scaleUp": {"policies": []}}})),
            vec!["spec.behavior.scaleUp.policies: Required value: must specify at least one Policy".into()],
        ),
        (
            "horizontalpodautoscalers",
            scaler(json!({"minReplicas": 0})),
            vec![
                "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1".into(),
                "spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas".into(),
            ],
        ),
        (
            "horizontalpodautoscalers",
            scaler(json!({"metrics": [{"type": "ContainerResource", "containerResource": {
                "name": "pods", "container": "c", "target": {"type": "Utilization", "averageUtilization": 1},
            }}]})),
            vec![
                "spec.metrics.containerResource.name: Invalid value: \"pods\": must be a standard resource type or fully qualified".into(),
                "spec.metrics.containerResource.name: Invalid value: \"pods\": must be a standard resource for containers".into(),
            ],
        ),
        // pods
        (
            "pods",
            of_pod(json!({"name": "Bad", "ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            }}}})),
            vec![
                format!("spec.volumes.name: Invalid value: \"Bad\": PVC name \"web-Bad\": {SUBDOMAIN}"),
                format!("spec.volumes.name: Invalid value: \"Bad\": {LABEL}"),
            ],
        ),
        (
            "pods",
            pod_with(json!([
                {"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                }}}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "web-a"}},
            ])),
            vec!["spec.volumes.persistentVolumeClaim.claimName: Invalid value: \"web-a\": must not reference a PVC that gets created for an ephemeral volume".into()],
        ),
        (
            "pods",
            of_pod(json!({"name": "p", "projected": {"sources": [{"configMap": {"name": "c", "items": [
                {"key": "k", "path": "a"}, {"key": "l", "path": "a"},
            ]}}]}})),
            vec!["spec.volumes.projected: Invalid value: \"c\": conflicting duplicate paths".into()],
        ),
        (
            "nodes",
            spec(json!({"taints": [taint, taint]})),
            vec!["metadata.taints: Duplicate value: {\"Key\":\"a\",\"Value\":\"b\",\"Effect\":\"NoSchedule\",\"TimeAdded\":null}: taints must be unique by key and effect pair".into()],
        ),
        (
            "runtimeclasses",
            named("a", json!({"handler": "h", "scheduling": {"tolerations": [toleration, toleration]}})),
            vec!["scheduling.tolerations: Duplicate value: {\"Key\":\"a\",\"Operator\":\"Exists\",\"Value\":\"\",\"Effect\":\"\",\"TolerationSeconds\":null}".into()],
        ),
        // names, secrets, roles
        ("events", named("Not Valid!", json!({"involvedObject": {"namespace": "default"}})), vec![]),
        ("events", named("a/b", json!({"involvedObject": {"namespace": "default"}})), vec!["metadata.name: Invalid value: \"a/b\": may not contain '/'".into()]),
        ("poddisruptionbudgets", named("Not Valid!", json!({"spec": {"minAvailable": 1}})), vec![]),
        ("secrets", secret("null"), vec![]),
        ("secrets", secret(""), vec!["data: Invalid value: \"<secret contents redacted>\": unexpected end of JSON input".into()]),
        ("secrets", secret("[]"), vec!["data: Invalid value: \"<secret contents redacted>\": json: cannot unmarshal array into Go value of type map[string]interface {}".into()]),
        (
            "rolebindings",
            named("a", json!({})),
            vec![
                "roleRef.kind: Unsupported value: \"\": supported values: \"Role\", \"ClusterRole\"".into(),
                "roleRef.name: Required value".into(),
            ],
        ),
        (
            "volumeattachments",
            spec(json!({"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": ""}})),
            vec![
                "spec.source.persistentVolumeName: Required value: must specify non empty persistentVolumeName".into(),
                format!("spec.source.persistentVolumeName: Invalid value: \"\": {SUBDOMAIN}"),
            ],
        ),
        // networks
        (
            "endpoints",
            named("a", json!({"subsets": [{"addresses": [{"ip": "", "hostname": ""}]}]})),
            vec![
                "subsets.addresses.ip: Invalid value: \"\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into(),
                "subsets.addresses.ip: Invalid value: \"\": must be a valid IP address".into(),
            ],
        ),
        ("ingresses", spec(json!({})), vec!["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified".into()]),
        ("ingresses", ingress(json!({})), vec!["spec.rules.http.paths.pathType: Required value: pathType must be specified".into()]),
        (
            "ingresses",
            ingress(json!({"path": "/a/..", "pathType": "Exact", "backend": {"service": {"name": "s", "port": {"name": "p", "number": 1}}}})),
            vec![
                "spec.rules.http.paths.path: Invalid value: \"/a/..\": cannot end with '/..'".into(),
                "spec.rules.http.paths.backend: Invalid value: \"\": cannot set both port name & port number".into(),
            ],
        ),
        (
            "ingresses",
            ingress(json!({"path": "a", "pathType": "ImplementationSpecific", "backend": {"service": {"name": "s", "port": {"number": 1}}}})),
            vec!["spec.rules.http.paths.path: Invalid value: \"a\": must be an absolute path".into()],
        ),
        // devices
        (
            "resourceclaims",
            claim(json!({"requests": ["A"], "opaque": {"driver": "d", "parameters": {}}})),
            vec![
                format!("spec.devices.config.requests: Invalid value: \"A\": {LABEL}"),
                "spec.devices.config.requests: Invalid value: \"A\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'".into(),
            ],
        ),
        (
            "resourceclaims",
            claim(json!({"requests": ["r"], "opaque": {"driver": long, "parameters": {}}})),
            vec![
                "spec.devices.config.opaque.driver: Too long: may not be more than 63 bytes".into(),
                format!("spec.devices.config.opaque.driver: Invalid value: \"{long}\": must be no more than 253 characters"),
            ],
        ),
        (
            "deviceclasses",
            spec(json!({"selectors": [{"cel": {}}]})),
            vec!["spec.selectors.cel.expression: Invalid value: \"\": compilation failed: ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}".into()],
        ),
        (
            "resourceslices",
            spec(json!({"driver": "d", "allNodes": true, "pool": {"name": "p", "resourceSliceCount": 1, "generation": -1}})),
            vec!["spec.pool.generation: Invalid value: -1: must be greater than or equal to zero".into()],
        ),
        // admission
        (
            "validatingadmissionpolicies",
            policy(json!({})),
            vec!["spec.validations.expression: Invalid value: \"variables.v == 'x'\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables' (in container '')\n | variables.v == 'x'\n | ^".into()],
        ),
        (
            "validatingadmissionpolicies",
            policy(json!({"variables": [{"name": "v", "expression": ""}]})),
            vec![
                "spec.variables.expression: Required value: expression is not specified".into(),
                "spec.validations.expression: Invalid value: \"variables.v == 'x'\": compilation failed: ERROR: <input>:1:10: undefined field 'v'\n | variables.v == 'x'\n | .........^".into(),
            ],
        ),
        (
            "validatingadmissionpolicies",
            {
                let mut policy = policy(json!({"validations": [], "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}]}));
                policy["metadata"] = json!({});
                policy
            },
            vec![
                "metadata.name: Required value: name or generateName is required".into(),
                "spec.auditAnnotations.key: Invalid value: \"k\": requires metadata.name be non-empty".into(),
            ],
        ),
        (
            "mutatingadmissionpolicies",
            spec(json!({
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]},
                ]},
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/a'}]"}}],
                "reinvocationPolicy": "Never",
            })),
            vec!["spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"UPDATE\"".into()],
        ),
        (
            "mutatingwebhookconfigurations",
            webhook("Not Valid!"),
            vec![
                "webhooks.clientConfig.url: Invalid value: \"\": 'https' is the only allowed URL scheme; desired format: https://host[/path]".into(),
                "webhooks.clientConfig.url: Invalid value: \"\": host must be specified; desired format: https://host[/path]".into(),
            ],
        ),
        // definitions
        (
            "customresourcedefinitions",
            definition(json!({"storage": false})),
            vec![
                "spec.versions: Invalid value: [{\"Name\":\"v1\",\"Served\":true,\"Storage\":false,\"Deprecated\":false,\"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}]: must have exactly one version marked as storage version".into(),
                "status.storedVersions: Invalid value: null: must have at least one stored version".into(),
            ],
        ),
        ("customresourcedefinitions", selected(".spec.a"), vec![]),
        (
            "customresourcedefinitions",
            selected("a.b"),
            vec!["spec.selectableFields.jsonPath: Invalid value: \"a.b\": is an invalid path: expected [ or . but got: a".into()],
        ),
        (
            "customresourcedefinitions",
            selected(".spec.a."),
            vec!["spec.selectableFields.jsonPath: Invalid value: \".spec.a.\": is an invalid path: unexpected end of JSON path".into()],
        ),
        (
            "customresourcedefinitions",
            selected(".spec['a']"),
            vec!["spec.selectableFields.jsonPath: Invalid value: \".spec['a']\": is an invalid path: array notation is not allowed".into()],
        ),
        (
            "customresourcedefinitions",
            selected(".spec"),
            vec!["spec.selectableFields.jsonPath: Invalid value: \".spec\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.".into()],
        ),
        (
            "customresourcedefinitions",
            rule("self.b != 'x'", "string"),
            vec!["spec.validation.openAPIV3Schema.properties.x-kubernetes-validations.rule: Invalid value: {\"Rule\":\"self.b != 'x'\",\"Message\":\"m\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}: compilation failed: ERROR: <input>:1:5: undefined field 'b'\n | self.b != 'x'\n | ....^".into()],
        ),
        (
            "customresourcedefinitions",
            rule("self.a != 'x'", "odd"),
            vec!["spec.validation.openAPIV3Schema.properties.properties.type: Unsupported value: \"odd\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"".into()],
        ),
        (
            "customresourcedefinitions",
            list_of_maps(json!({"x-kubernetes-list-map-keys": ["k", "k"]})),
            vec!["spec.validation.openAPIV3Schema.properties.x-kubernetes-list-map-keys: Invalid value: [\"k\",\"k\"]: must not contain duplicate entries".into()],
        ),
        (
            "customresourcedefinitions",
            list_of_maps(json!({"x-kubernetes-list-map-keys": ["x"]})),
            vec!["spec.validation.openAPIV3Schema.properties.x-kubernetes-list-map-keys: Invalid value: [\"x\"]: entries must all be names of item properties".into()],
        ),
        (
            "customresourcedefinitions",
            list_of_maps(json!({"x-kubernetes-list-type": "set", "x-kubernetes-list-map-keys": null})),
            vec!["spec.validation.openAPIV3Schema.properties.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set".into()],
        ),
    ];
    let sorted = |mut list: Vec<String>| {
        list.sort();
        list
    };
    let mut wrong = Vec::new();
    for (plural, object, expected) in table {
        let said = complaints(plural, object.clone());
        let said = sorted(said.iter().map(|one| without_indexes(one)).collect());
        if said != sorted(expected) {
            wrong.push(format!("{object}: {said:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn root_of_a_schema_with_status_is_an_object() {
    let with = |changed: Value| {
        let mut schema = json!({"type": "object", "properties": {"spec": {"type": "object"}}});
        schema.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        let object = definition(
            json!({"subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}),
        );
        complaints("customresourcedefinitions", object).join("\n")
    };
    assert_eq!(with(json!({"description": "d", "maxProperties": null})), "");
    assert!(
        with(json!({"type": "string"}))
            .contains("only \"object\" is allowed as the type at the root")
    );
    assert!(
        with(json!({"maxProperties": 0})).contains("fields are allowed at the root of the schema")
    );
}

#[test]
fn schemas_within_lists_are_read_by_themselves() {
    let read = |property: Value| {
        let object = schema(json!({"type": "object", "properties": {"l": property}}));
        let gvk = resource("customresourcedefinitions").gvk();
        conform(gvk, decoded(object), FieldValidation::Strict).map(|(object, _)| {
            object["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["l"].clone()
        })
    };
    // upstream drops what it does not know there, and says so nowhere
    for field in ["items", "additionalProperties"] {
        let given = json!({"type": "array", field: {"type": "string", "bogus": 1}});
        assert_eq!(read(given).unwrap(), json!({"type": "array", field: {"type": "string"}}));
    }
    assert!(read(json!({"type": "array", "bogus": 1})).is_err());
    let error = read(json!({"type": "object", "additionalProperties": []})).unwrap_err();
    assert!(error.message.ends_with(": boolean or JSON schema expected"), "{error}");
    let error = read(json!({"type": "string", "enum": {}})).unwrap_err();
    assert!(error.message.ends_with("of type []v1.JSON"), "{error}");
}
