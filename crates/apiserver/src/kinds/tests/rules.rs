use super::*;

pub(super) fn causes(error: StatusError) -> Vec<String> {
    assert_eq!((error.code, error.reason), (422, "Invalid"), "{error}");
    let details = error.details.expect("details");
    details.causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect()
}

pub(super) fn complaints(plural: &str, object: Value) -> Vec<String> {
    validate_create(resource(plural), &made(plural, object)).map_or_else(causes, |()| Vec::new())
}

#[test]
fn kinds_whose_deletion_is_answered_with_the_object_are_upstreams() {
    let returned = crate::kinds::KINDS.iter().filter(|kind| kind.strategy.returned_when_deleted);
    let mut names: Vec<_> = returned.map(|kind| kind.resource.plural).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(
        names,
        [
            "csidrivers",
            "csinodes",
            "deviceclasses",
            "namespaces",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "podtemplates",
            "resourceclaims",
            "resourceclaimtemplates",
            "resourcequotas",
            "resourceslices",
            "serviceaccounts",
            "services",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ]
    );
}

#[test]
fn validation_accepts_valid_objects() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]});
    let table = [
        ("pods", pod()),
        (
            "configmaps",
            json!({"metadata": {"generateName": "a-", "name": "a-x"}, "data": {"a.b": "c"}, "binaryData": {"x": "eA=="}}),
        ),
        (
            "secrets",
            json!({"metadata": {"name": "s"}, "type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}),
        ),
        ("services", json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})),
        (
            "services",
            json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "clusterIPs": ["None"]}}),
        ),
        (
            "endpoints",
            json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1}]}]}),
        ),
        (
            "endpointslices",
            json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]}),
        ),
        (
            "nodes",
            json!({"metadata": {"name": "n.example.com"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
        ),
        ("namespaces", json!({"metadata": {"name": "n"}})),
        ("serviceaccounts", json!({"metadata": {"name": "a"}})),
        ("leases", json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 40}})),
        (
            "replicationcontrollers",
            json!({"metadata": {"name": "r"}, "spec": {"template": template}}),
        ),
        ("events", json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}})),
    ];
    for (plural, object) in table {
        assert_eq!(complaints(plural, object.clone()), [""; 0], "{object}");
    }
}

#[test]
fn metadata() {
    let with = |metadata: Value| complaints("configmaps", json!({"metadata": metadata}));
    assert_eq!(
        with(json!({})),
        ["metadata.name: Required value: name or generateName is required"]
    );
    for name in ["..", "a/b", "A", "a%2f", &"a".repeat(254)] {
        assert!(
            with(json!({"name": name}))[0].starts_with("metadata.name: Invalid value: "),
            "{name}"
        );
    }
    assert!(
        with(json!({"name": "a", "generateName": "A-"}))[0]
            .starts_with("metadata.generateName: Invalid value: \"A-\"")
    );
    assert!(
        with(json!({"name": "a", "labels": {"a": "b c"}}))[0]
            .starts_with("metadata.labels: Invalid value: \"b c\"")
    );
    assert!(
        with(json!({"name": "a", "labels": {"/": "b"}}))[0]
            .starts_with("metadata.labels: Invalid value: \"/\"")
    );
    assert_eq!(with(json!({"name": "a", "annotations": {"Upper.Case/X": "any ü"}})), [""; 0]);
    let long = "x".repeat(256 << 10);
    assert_eq!(
        with(json!({"name": "a", "annotations": {"a": long}})),
        ["metadata.annotations: Too long: may not be more than 262144 bytes"]
    );
    assert!(
        with(json!({"name": "a", "finalizers": ["not qualified!"]}))[0]
            .starts_with("metadata.finalizers: Invalid")
    );
    assert_eq!(
        with(
            json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""}]})
        ),
        ["metadata.ownerReferences.uid: Invalid value: \"\": must not be empty"]
    );
    let node = made("nodes", json!({"metadata": {"name": "n", "namespace": "x"}}));
    let error = validate_create(resource("nodes"), &node).unwrap_err();
    assert_eq!(causes(error), ["metadata.namespace: Forbidden: not allowed on this type"]);
}

#[test]
fn other_kinds() {
    let table = [
        (
            "configmaps",
            json!({"metadata": {"name": "c"}, "data": {"..": ""}}),
            "data[..]: Invalid value: \"..\": must not be '..'",
        ),
        (
            "configmaps",
            json!({"metadata": {"name": "c"}, "data": {"a": "x".repeat((1 << 20) + 1)}}),
            ": Too long: may not be more than 1048576 bytes",
        ),
        (
            "secrets",
            json!({"metadata": {"name": "s"}, "type": "kubernetes.io/tls"}),
            "data[tls.crt]: Required value",
        ),
        (
            "secrets",
            json!({"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "hunter2"}}),
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": invalid character 'h' looking for beginning of value",
        ),
        ("services", json!({"metadata": {"name": "s"}, "spec": {}}), "spec.ports: Required value"),
        (
            "services",
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}, {"port": 2}]}}),
            "spec.ports[0].name: Required value",
        ),
        (
            "services",
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1, "nodePort": 30_000}]}}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            "services",
            json!({"metadata": {"name": "s"}, "spec": {"type": "X", "ports": [{"port": 1}]}}),
            "spec.type: Unsupported value: \"X\"",
        ),
        (
            "services",
            json!({"metadata": {"name": "s"}, "spec": {"externalIPs": ["127.0.0.1"], "ports": [{"port": 1}]}}),
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range",
        ),
        (
            "services",
            json!({"metadata": {"name": "s.t"}, "spec": {"ports": [{"port": 1}]}}),
            "metadata.name: Invalid value: \"s.t\": must not contain dots",
        ),
        (
            "endpoints",
            json!({"metadata": {"name": "e"}, "subsets": [{"ports": [{"port": 1}]}]}),
            "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
        ),
        (
            "endpointslices",
            json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [{"addresses": ["169.254.1.1"]}]}),
            "endpoints[0].addresses[0]: Invalid value: \"169.254.1.1\": may not be in the link-local range",
        ),
        (
            "endpointslices",
            // CVE-2021-25737
            json!({"metadata": {"name": "e"}, "addressType": "IPv6", "endpoints": [{"addresses": ["::ffff:127.0.0.1"]}]}),
            "endpoints[0].addresses[0]: Invalid value: \"::ffff:127.0.0.1\": may not be in the loopback range",
        ),
        (
            "endpointslices",
            // CVE-2021-29923: no two readers disagree about a leading zero.
            json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [{"addresses": ["010.0.0.1"]}]}),
            "endpoints[0].addresses[0]: Invalid value: \"010.0.0.1\": must be a valid IP address",
        ),
        (
            "nodes",
            json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a", "effect": "X"}]}}),
            "metadata.taints[0].effect: Unsupported value: \"X\"",
        ),
        (
            "nodes",
            json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "-1"}}}),
            "status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            "leases",
            json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}}),
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "events",
            json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "other"}}),
            "involvedObject.namespace: Invalid value: \"other\": does not match event.namespace",
        ),
        (
            "replicationcontrollers",
            json!({"metadata": {"name": "r"}, "spec": {"selector": {"a": "b"}}}),
            "spec.template: Required value",
        ),
        (
            "replicationcontrollers",
            json!({"metadata": {"name": "r"}, "spec": {"selector": {"a": "c"}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}}}),
            "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
        ),
    ];
    for (plural, object, wanted) in table {
        let found = complaints(plural, object);
        assert!(found.iter().any(|f| f.starts_with(wanted)), "{wanted}\nfound {found:#?}");
        assert!(!found.iter().any(|f| f.contains("hunter2")));
    }
    let strict = lookup("events.k8s.io", "v1", "events").unwrap();
    let event =
        json!({"metadata": {"name": "e", "namespace": "default"}, "note": "x", "type": "Odd"});
    let found = causes(validate_create(strict, &event).unwrap_err());
    assert!(found.contains(&"eventTime: Required value".to_owned()), "{found:?}");
}

#[test]
fn validation_of_declared_features() {
    let named = |name: &str, value: &str, why: &str| {
        format!("{name}: Invalid value: \"{value}\": invalid feature name \"{value}\": {why}")
    };
    let form = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., \
         MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes";
    let at = |index: usize| format!("status.declaredFeatures[{index}]");
    let long = "A".repeat(254);
    let mut table = vec![
        (json!(null), vec![]),
        (json!(["A", "A1/b", "A1/b/C2", "B"]), vec![]),
        (json!(["A".repeat(253)]), vec![]),
        (json!([long]), vec![named(&at(0), &long, "must be no more than 253 characters")]),
        (json!(["A", "A"]), vec![format!("{}: Duplicate value: \"A\"", at(1))]),
        (
            json!(["B", "A"]),
            vec![format!("{}: Invalid value: \"A\": list must be sorted alphabetically", at(1))],
        ),
    ];
    for name in ["", "a", "A-b", "A/", "/A", "A//b", "A/1", "A b", "1A", "Ä"] {
        table.push((json!([name]), vec![named(&at(0), name, form)]));
    }
    let old = stored("nodes", json!({"metadata": {"name": "n"}}));
    for (features, expected) in table {
        let status = json!({"declaredFeatures": features});
        let node = json!({"metadata": {"name": "n"}, "status": status});
        assert_eq!(complaints("nodes", node), expected, "{features}");
        let mut new = old.clone();
        new["status"] = status;
        let found = validate_status_update(resource("nodes"), &new, &old);
        assert_eq!(found.map_or_else(causes, |()| Vec::new()), expected, "{features}");
    }
}

#[test]
fn validation_of_immutable_objects() {
    let old = stored(
        "configmaps",
        json!({"metadata": {"name": "c"}, "data": {"a": "b"}, "immutable": true}),
    );
    let found = causes(updated("configmaps", &old, |c| c["data"]["a"] = "c".into()).1.unwrap_err());
    assert_eq!(found, ["data: Forbidden: field is immutable when `immutable` is set"]);
    let found =
        causes(updated("configmaps", &old, |c| c["immutable"] = false.into()).1.unwrap_err());
    assert_eq!(found, ["immutable: Forbidden: field is immutable when `immutable` is set"]);
    updated("configmaps", &old, |c| c["metadata"]["labels"] = json!({"a": "b"})).1.unwrap();
    let old = stored("secrets", json!({"metadata": {"name": "s"}}));
    let found = causes(updated("secrets", &old, |s| s["type"] = "other".into()).1.unwrap_err());
    assert_eq!(found, ["type: Invalid value: \"other\": field is immutable"]);
    let old = stored(
        "nodes",
        json!({"metadata": {"name": "n"}, "spec": {"providerID": "a", "podCIDRs": ["10.0.0.0/24"]}}),
    );
    let found =
        causes(updated("nodes", &old, |n| n["spec"]["providerID"] = "b".into()).1.unwrap_err());
    assert_eq!(
        found,
        [
            "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid"
        ]
    );
}

#[test]
fn bindings() {
    validate_binding(&json!({"target": {"kind": "Node", "name": "n"}})).unwrap();
    let found = causes(validate_binding(&json!({"target": {"kind": "X"}})).unwrap_err());
    assert_eq!(found[1], "target.name: Required value");
}
