use super::rules::{causes, complaints};
use super::*;

/// Complaints about a pod after a change to its spec.
fn pod_complaints(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut pod = pod();
    change(&mut pod["spec"]);
    complaints("pods", pod)
}

#[test]
fn containers() {
    type Change = fn(&mut Value);
    let table: &[(Change, &str)] = &[
        (|s| s["containers"] = json!([]), "spec.containers: Required value"),
        (|s| s["containers"][0]["name"] = json!(""), "spec.containers[0].name: Required value"),
        (|s| s["containers"][0]["image"] = json!(""), "spec.containers[0].image: Required value"),
        (
            |s| s["containers"][0]["image"] = json!(" a"),
            "spec.containers[0].image: Invalid value: \" a\": must not have leading or trailing whitespace",
        ),
        (
            |s| s["containers"] = json!([{"name": "c", "image": "x"}, {"name": "c", "image": "x"}]),
            "spec.containers[1].name: Duplicate value: \"c\"",
        ),
        (
            |s| s["initContainers"] = json!([{"name": "c", "image": "x"}]),
            "spec.initContainers[0].name: Duplicate value: \"c\"",
        ),
        (
            |s| {
                s["initContainers"] = json!([{"name": "i", "image": "x", "livenessProbe": {"exec": {"command": ["x"]}}}])
            },
            "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
        (
            |s| s["ephemeralContainers"] = json!([{"name": "e", "image": "x"}]),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
        (
            |s| s["containers"][0]["imagePullPolicy"] = json!("Sometimes"),
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \
             \"IfNotPresent\", \"Never\"",
        ),
        (
            |s| s["containers"][0]["ports"] = json!([{"containerPort": 0}]),
            "spec.containers[0].ports[0].containerPort: Required value",
        ),
        (
            |s| s["containers"][0]["ports"] = json!([{"containerPort": 70_000}]),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            |s| {
                s["containers"][0]["ports"] = json!([{"containerPort": 1, "hostPort": 5}, {"containerPort": 2, "hostPort": 5}])
            },
            "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//5\"",
        ),
        (
            |s| s["containers"][0]["env"] = json!([{"name": ""}]),
            "spec.containers[0].env[0].name: Required value",
        ),
        (
            |s| s["containers"][0]["env"] = json!([{"name": "a=b"}]),
            "spec.containers[0].env[0].name: Invalid value: \"a=b\": a valid environment variable name must consist only \
             of printable ASCII characters other than '='",
        ),
        (
            |s| s["containers"][0]["env"] = json!([{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
        ),
        (
            |s| s["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/x"}]),
            "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
        ),
        (
            |s| s["containers"][0]["livenessProbe"] = json!({}),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            |s| {
                s["containers"][0]["livenessProbe"] =
                    json!({"tcpSocket": {"port": 1}, "periodSeconds": -1})
            },
            "spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            |s| {
                s["containers"][0]["startupProbe"] =
                    json!({"tcpSocket": {"port": 1}, "successThreshold": 2})
            },
            "spec.containers[0].startupProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            |s| s["containers"][0]["resources"] = json!({"limits": {"cpu": "-1"}}),
            "spec.containers[0].resources.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            |s| {
                s["containers"][0]["resources"] =
                    json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}})
            },
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            |s| s["containers"][0]["resources"] = json!({"requests": {"example.com/gpu": "1"}}),
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            |s| s["containers"][0]["securityContext"] = json!({"runAsUser": -1}),
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        ),
        (
            |s| {
                s["containers"][0]["securityContext"] =
                    json!({"seccompProfile": {"type": "Localhost", "localhostProfile": ""}})
            },
            "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: must be set when \
             seccomp type is Localhost",
        ),
    ];
    for (change, wanted) in table {
        let found = pod_complaints(change);
        assert!(found.iter().any(|f| f == wanted), "{wanted}\nfound {found:#?}");
    }
}

/// What a spec that asks for scheduling is refused for: a pointer into a valid one, what stands there
/// instead, and the complaint.
#[test]
fn scheduling_rules() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let spec = json!({
        "affinity": {
            "nodeAffinity": {
                required: {"nodeSelectorTerms": [{
                    "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
                    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
                }]},
                preferred: [{"weight": 1, "preference": {}}],
            },
            "podAntiAffinity": {required: [{
                "topologyKey": "zone",
                "labelSelector": {"matchLabels": {"app": "web"}},
                "matchLabelKeys": ["tier"],
                "mismatchLabelKeys": ["rank"],
                "namespaces": ["other"],
            }]},
        },
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": 1,
            "labelSelector": {},
            "nodeTaintsPolicy": "Honor",
        }],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}],
    });
    let complaints_with = |pointer: &str, value: Value| {
        let mut spec = spec.clone();
        if !pointer.is_empty() {
            *spec.pointer_mut(pointer).expect(pointer) = value;
        }
        pod_complaints(|pod| {
            for (field, value) in spec.as_object().unwrap() {
                pod[field] = value.clone();
            }
            pod["containers"][0]["resources"]["claims"] = json!([{"name": "gpu"}]);
        })
    };
    assert_eq!(complaints_with("", Value::Null), [""; 0]);
    let node = format!("/affinity/nodeAffinity/{required}/nodeSelectorTerms");
    let pod = format!("/affinity/podAntiAffinity/{required}/0");
    let spread = "/topologySpreadConstraints/0";
    for (pointer, value, wanted) in [
        (node.clone(), json!([]), "must have at least one node selector term"),
        (format!("{node}/0/matchExpressions/0/operator"), json!("in"), "not a valid selector"),
        (format!("{node}/0/matchExpressions/0/values"), json!([]), "must be specified when"),
        (format!("{node}/0/matchExpressions/0/operator"), json!("Exists"), "may not be specified"),
        (format!("{node}/0/matchFields/0/key"), json!("zone"), "not a valid field selector key"),
        (format!("/affinity/nodeAffinity/{preferred}/0/weight"), json!(0), "in the range 1-100"),
        (format!("{pod}/topologyKey"), json!(""), "Required value: can not be empty"),
        (format!("{pod}/namespaces/0"), json!("A"), "namespace: Invalid value"),
        (format!("{pod}/matchLabelKeys/0"), json!("app"), "both matchLabelKeys and labelSelector"),
        (format!("{pod}/matchLabelKeys/0"), json!("rank"), "matchLabelKeys and mismatchLabelKeys"),
        (format!("{pod}/labelSelector"), json!(null), "when labelSelector is not set"),
        (format!("{pod}/labelSelector/matchLabels/app"), json!("a b"), "a valid label must be"),
        (format!("{spread}/maxSkew"), json!(0), "must be greater than zero"),
        (format!("{spread}/whenUnsatisfiable"), json!("Never"), "Unsupported value: \"Never\""),
        (format!("{spread}/whenUnsatisfiable"), json!("ScheduleAnyway"), "can only use minDomains"),
        (
            format!("{spread}/nodeTaintsPolicy"),
            json!(""),
            "supported values: \"Honor\", \"Ignore\"",
        ),
        ("/resourceClaims/0/name".into(), json!("cpu"), "must be one of the names in pod.spec"),
        ("/resourceClaims/0/resourceClaimName".into(), json!(null), "must specify one of"),
    ] {
        let found = complaints_with(&pointer, value);
        assert!(found.iter().any(|f| f.contains(wanted)), "{pointer}: {wanted}\nfound {found:#?}");
    }
}

#[test]
fn pod_specs() {
    type Change = fn(&mut Value);
    let table: &[(Change, &str)] = &[
        (
            |s| s["restartPolicy"] = json!("Sometimes"),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (
            |s| s["volumes"] = json!([{"name": "v"}, {"name": "v"}]),
            "spec.volumes[1].name: Duplicate value: \"v\"",
        ),
        (
            |s| s["volumes"] = json!([{"name": "v", "hostPath": {"path": "/a/../b"}}]),
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
        ),
        (
            |s| s["volumes"] = json!([{"name": "v", "secret": {}}]),
            "spec.volumes[0].secret.secretName: Required value",
        ),
        (
            |s| {
                s["volumes"] = json!([{"name": "v", "emptyDir": {}, "secret": {"secretName": "s"}}])
            },
            "spec.volumes[0].secret: Forbidden: may not specify more than 1 volume type",
        ),
        (
            |s| s["volumes"] = json!([{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
            "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when \
             serviceAccountName is not set",
        ),
        (
            |s| s["volumes"] = json!([{"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": "/etc"}]}}]),
            "spec.volumes[0].configMap.items[0].path: Invalid value: \"/etc\": must be a relative path",
        ),
        (
            |s| {
                s["containers"][0]["volumeMounts"] =
                    json!([{"name": "v", "mountPath": "/x", "subPath": "../y"}])
            },
            "spec.containers[0].volumeMounts.subPath: Invalid value: \"../y\": must not contain '..'",
        ),
        (
            |s| {
                s["hostNetwork"] = json!(true);
                s["containers"][0]["ports"] = json!([{"containerPort": 1, "hostPort": 2}]);
            },
            "spec.containers[0].ports[0].hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is true",
        ),
        (
            |s| s["tolerations"] = json!([{"operator": "Equal"}]),
            "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which \
             means \"match all values and all keys\"",
        ),
        (
            |s| s["activeDeadlineSeconds"] = json!(0),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        (
            |s| s["dnsPolicy"] = json!("None"),
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
        ),
        (
            |s| s["hostAliases"] = json!([{"ip": "1.2.3"}]),
            "spec.hostAliases[0].ip: Invalid value: \"1.2.3\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (|s| s["nodeName"] = json!("a/b"), "spec.nodeName: Invalid value: \"a/b\": "),
    ];
    for (change, wanted) in table {
        let found = pod_complaints(change);
        assert!(found.iter().any(|f| f.starts_with(wanted)), "{wanted}\nfound {found:#?}");
    }
}

#[test]
fn pod_updates() {
    let mut spec = pod();
    spec["spec"]["tolerations"] = json!([{"key": "a", "operator": "Exists"}]);
    let old = stored("pods", spec);
    type Change = fn(&mut Value);
    let allowed: &[Change] = &[
        |p| p["spec"]["containers"][0]["image"] = "busybox:2".into(),
        |p| p["spec"]["activeDeadlineSeconds"] = 5.into(),
        |p| p["spec"]["tolerations"] = json!([{"key": "b", "operator": "Exists"}, {"key": "a", "operator": "Exists", "tolerationSeconds": 5, "effect": "NoExecute"}]),
        |p| p["metadata"]["annotations"] = json!({"a": "b"}),
    ];
    for (i, change) in allowed.iter().enumerate() {
        let result = updated("pods", &old, change).1;
        // tolerationSeconds may change, but not the effect along with it
        assert_eq!(result.is_ok(), i != 2, "{i}: {result:?}");
    }
    let refused: &[(Change, &str)] = &[
        (
            |p| p["spec"]["nodeName"] = "n".into(),
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,",
        ),
        (
            |p| {
                p["spec"]["containers"] =
                    json!([{"name": "c", "image": "x"}, {"name": "d", "image": "x"}])
            },
            "spec.containers: Forbidden: pod updates may not add or remove containers",
        ),
        (
            |p| p["spec"]["tolerations"] = json!([]),
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
        ),
        (
            |p| p["metadata"]["name"] = "q".into(),
            "metadata.name: Invalid value: \"q\": field is immutable",
        ),
        (
            |p| p["spec"]["containers"][0]["image"] = "".into(),
            "spec.containers[0].image: Required value",
        ),
    ];
    for (change, wanted) in refused {
        let found = causes(updated("pods", &old, change).1.expect_err(wanted));
        assert!(found.iter().any(|f| f.contains(wanted)), "{wanted}\nfound {found:#?}");
    }
    let error = updated("pods", &old, |p| p["metadata"]["uid"] = "other".into()).1.unwrap_err();
    assert_eq!((error.code, error.reason), (409, "Conflict"));
    let mut dying = old.clone();
    dying["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let found = causes(
        updated("pods", &dying, |p| p["metadata"]["finalizers"] = json!(["a.b/c"])).1.unwrap_err(),
    );
    assert!(found[0].starts_with("metadata.finalizers: Forbidden: no new finalizers can be added"));
}

#[test]
fn pod_status_updates() {
    let status = |code: Option<i32>| match code {
        Some(code) => json!([{"name": "c", "state": {"terminated": {"exitCode": code}}}]),
        None => json!([{"name": "c", "state": {"running": {}}}]),
    };
    for (policy, code, allowed) in
        [("Always", 0, true), ("OnFailure", 1, true), ("OnFailure", 0, false), ("Never", 1, false)]
    {
        let mut object = pod();
        object["spec"]["restartPolicy"] = policy.into();
        let mut old = stored("pods", object);
        old["status"]["containerStatuses"] = status(Some(code));
        let mut new = old.clone();
        new["status"]["containerStatuses"] = status(None);
        prepare_status_update(resource("pods"), &mut new, &old);
        let result = validate_status_update(resource("pods"), &new, &old);
        assert_eq!(result.is_ok(), allowed, "{policy} {code}");
    }
    let old = stored("pods", pod());
    let mut new = old.clone();
    new["status"]["qosClass"] = "Guaranteed".into();
    let found = causes(validate_status_update(resource("pods"), &new, &old).unwrap_err());
    assert_eq!(found, ["status.qosClass: Invalid value: \"Guaranteed\": field is immutable"]);
}
