use super::*;

#[test]
fn prepare_create_sets_server_fields() {
    let pod = made(
        "pods",
        json!({
            "metadata": {"name": "p", "uid": "x", "generation": 7, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "c", "image": "x"}], "schedulingGates": [{"name": "g"}]},
            "status": {"phase": "Running"},
        }),
    );
    assert_eq!(pod["metadata"], json!({"name": "p", "namespace": "default", "generation": 1}));
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
    let node = made(
        "nodes",
        json!({"metadata": {"name": "n"}, "status": {"nodeInfo": {"kubeletVersion": "v"}}}),
    );
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v");
    assert_eq!(node["metadata"].get("generation"), None);
}

#[test]
fn prepare_update_keeps_status_and_server_metadata() {
    let mut old = stored("pods", pod());
    old["metadata"]["deletionGracePeriodSeconds"] = 5.into();
    let (new, result) = updated("pods", &old, |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["metadata"]["labels"] = json!({"a": "b"});
        for field in [
            "uid",
            "creationTimestamp",
            "generation",
            "resourceVersion",
            "deletionGracePeriodSeconds",
        ] {
            pod["metadata"].as_object_mut().unwrap().remove(field);
        }
    });
    result.unwrap();
    assert_eq!(new["status"], old["status"]);
    let mut wanted = old["metadata"].clone();
    wanted["labels"] = json!({"a": "b"});
    assert_eq!(new["metadata"], wanted);
}

#[test]
fn prepare_update_increments_generation_on_spec_changes() {
    let old = stored("pods", pod());
    let image = |pod: &mut Value| pod["spec"]["containers"][0]["image"] = "busybox:2".into();
    assert_eq!(updated("pods", &old, image).0["metadata"]["generation"], 2);
    let zero = |pod: &mut Value| pod["spec"]["hostNetwork"] = false.into();
    let (new, result) = updated("pods", &old, zero);
    result.unwrap();
    assert_eq!(new["metadata"]["generation"], 1, "a Go client cannot say false");
    let slice = stored(
        "endpointslices",
        json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": []}),
    );
    let label = |slice: &mut Value| slice["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(updated("endpointslices", &slice, label).0["metadata"]["generation"], 2);
    let node = stored("nodes", json!({"metadata": {"name": "n"}}));
    let cordon = |node: &mut Value| node["spec"] = json!({"unschedulable": true});
    assert_eq!(updated("nodes", &node, cordon).0["metadata"].get("generation"), None);
}

#[test]
fn prepare_status_update_changes_only_status() {
    let mut old = stored("pods", pod());
    old["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "y"}]);
    old["status"]["observedGeneration"] = 4.into();
    let mut new = old.clone();
    new["spec"]["containers"][0]["image"] = "other".into();
    new["metadata"]["annotations"] = json!({"a": "b"});
    new["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    new["status"] = json!({"phase": "Running"});
    prepare_status_update(resource("pods"), &mut new, &old);
    let mut wanted = old.clone();
    wanted["metadata"]["annotations"] = json!({"a": "b"});
    wanted["status"] =
        json!({"phase": "Running", "qosClass": "BestEffort", "observedGeneration": 4});
    assert_eq!(new, wanted);
    validate_status_update(resource("pods"), &new, &old).unwrap();
}

#[test]
fn prepare_update_keeps_service_allocations() {
    let mut old = stored(
        "services",
        json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}),
    );
    old["spec"]["clusterIP"] = "10.0.0.9".into();
    old["spec"]["clusterIPs"] = json!(["10.0.0.9"]);
    old["spec"]["ports"][0]["nodePort"] = 30_000.into();
    let (new, result) = updated("services", &old, |service| {
        service["spec"]["ports"] = json!([{"port": 80}]);
    });
    result.unwrap();
    assert_eq!(new["spec"], old["spec"]);
    let (_, result) = updated("services", &old, |service| {
        service["spec"]["clusterIP"] = "10.0.0.8".into();
        service["spec"]["clusterIPs"] = json!(["10.0.0.8"]);
    });
    assert!(
        result.unwrap_err().message.ends_with(
            "spec.clusterIPs[0]: Invalid value: [\"10.0.0.8\"]: may not change once set"
        )
    );
}

/// Upgrades and downgrades: the first address and family stay, the second may come, and go by the policy.
#[test]
fn service_addresses_may_be_added_and_released() {
    let spec = |addresses: &[&str], families: &[&str], policy: &str| {
        json!({"type": "ClusterIP", "clusterIP": addresses.first().copied().unwrap_or_default(),
            "clusterIPs": addresses, "ipFamilies": families, "ipFamilyPolicy": policy,
            "ports": [{"port": 80}]})
    };
    let (v4, v6) = ("10.0.0.9", "fd00::9");
    let one = || spec(&[v4], &["IPv4"], "SingleStack");
    let two = || spec(&[v4, v6], &["IPv4", "IPv6"], "RequireDualStack");
    let headless = |families: &[&str]| spec(&["None"], families, "SingleStack");
    for (new, old, expected) in [
        (two(), one(), &[][..]),
        (one(), two(), &[]),
        (headless(&["IPv6"]), headless(&["IPv4"]), &[]),
        (
            spec(&["10.0.0.8", v6], &["IPv4", "IPv6"], "RequireDualStack"),
            one(),
            &[
                "spec.clusterIPs[0]: Invalid value: [\"10.0.0.8\",\"fd00::9\"]: may not change once set",
            ],
        ),
        (
            spec(&[v4, "fd00::8"], &["IPv4", "IPv6"], "RequireDualStack"),
            two(),
            &[
                "spec.clusterIPs[1]: Invalid value: [\"10.0.0.9\",\"fd00::8\"]: may not change once set",
            ],
        ),
        (
            spec(&[v4], &["IPv4"], "PreferDualStack"),
            two(),
            &[
                "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be set to 'SingleStack' when releasing the secondary clusterIP",
                "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be set to 'SingleStack' when releasing the secondary ipFamily",
            ],
        ),
        (
            spec(&[v6], &["IPv6"], "SingleStack"),
            two(),
            &[
                "spec.clusterIPs[0]: Invalid value: [\"fd00::9\"]: may not change once set",
                "spec.ipFamilies[0]: Invalid value: [\"fd00::9\"]: may not change once set",
            ],
        ),
        (
            spec(&[v6], &["IPv6"], "SingleStack"),
            one(),
            &[
                "spec.clusterIPs[0]: Invalid value: [\"fd00::9\"]: may not change once set",
                "spec.ipFamilies[0]: Invalid value: [\"IPv6\"]: may not change once set",
            ],
        ),
        (
            spec(&[], &["IPv4"], "SingleStack"),
            one(),
            &["spec.clusterIPs[0]: Invalid value: []: primary clusterIP can not be unset"],
        ),
        (
            headless(&["IPv4"]),
            one(),
            &["spec.clusterIPs[0]: Invalid value: [\"None\"]: may not change once set"],
        ),
    ] {
        let old = stored("services", json!({"metadata": {"name": "s"}, "spec": old}));
        let (_, result) = updated("services", &old, |service| service["spec"] = new.clone());
        let said = result.err().map(|error| error.message).unwrap_or_default();
        assert_eq!(said.is_empty(), expected.is_empty(), "{new}: {said}");
        for line in expected {
            assert!(said.contains(line), "{new}: {said}");
        }
    }
}

#[test]
fn namespaces() {
    let old = stored("namespaces", json!({"metadata": {"name": "n"}}));
    let (new, result) = updated("namespaces", &old, |ns| ns["spec"] = json!({"finalizers": []}));
    result.unwrap();
    assert_eq!(new["spec"], old["spec"]);
    let mut new = json!({"metadata": {"name": "n", "resourceVersion": "9", "labels": {"x": "y"}}, "spec": {}});
    prepare_namespace_finalize(&mut new, &old);
    assert_eq!(new["spec"], json!({"finalizers": []}));
    assert_eq!(new["metadata"]["labels"], old["metadata"]["labels"]);
    assert_eq!(new["metadata"]["resourceVersion"], "9");
}
