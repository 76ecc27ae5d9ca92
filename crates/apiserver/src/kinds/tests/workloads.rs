use super::rules::{causes, complaints};
use super::*;

fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]})
}

fn workload(spec: Value) -> Value {
    let mut object = json!({
        "metadata": {"name": "w"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

fn claim_template() -> Value {
    let resources = json!({"requests": {"storage": "1Gi"}});
    json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources}})
}

fn job(spec: Value) -> Value {
    let mut object = json!({
        "metadata": {"name": "j", "uid": "u"},
        "spec": {"manualSelector": true, "selector": {"matchLabels": {"a": "b"}}, "template": template()},
    });
    object["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

#[test]
fn workloads_are_defaulted() {
    let set = made("statefulsets", workload(json!({})));
    assert_eq!(set["spec"]["podManagementPolicy"], "OrderedReady");
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
    assert_eq!(set["spec"]["updateStrategy"], strategy);
    assert_eq!(
        set["spec"]["persistentVolumeClaimRetentionPolicy"],
        json!({"whenDeleted": "Retain", "whenScaled": "Retain"})
    );
    let set = made("daemonsets", workload(json!({})));
    assert_eq!(
        set["spec"]["updateStrategy"]["rollingUpdate"],
        json!({"maxUnavailable": 1, "maxSurge": 0})
    );
    let generation = "deprecated.daemonset.template.generation";
    assert_eq!(set["metadata"]["annotations"][generation], "1");
    let mut updated = set.clone();
    updated["spec"]["template"]["metadata"]["labels"]["c"] = "d".into();
    prepare_update(resource("daemonsets"), &mut updated, &set);
    assert_eq!(updated["metadata"]["annotations"][generation], "2");
    assert_eq!(updated["metadata"]["generation"], 2);

    let cron = json!({"metadata": {"name": "c"}, "spec": {
        "schedule": "*/5 * * * *",
        "jobTemplate": {"spec": {"template": template()}},
    }});
    let cron = made("cronjobs", cron);
    assert_eq!(
        (&cron["spec"]["concurrencyPolicy"], &cron["spec"]["successfulJobsHistoryLimit"]),
        (&json!("Allow"), &json!(3))
    );
    let scaler = json!({"metadata": {"name": "h"}, "spec": {
        "maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "behavior": {"scaleDown": {"policies": []}},
    }});
    let scaler = made("horizontalpodautoscalers", scaler);
    let metric = &scaler["spec"]["metrics"][0]["resource"];
    assert_eq!(metric["target"]["averageUtilization"], 80);
    assert_eq!(scaler["spec"]["behavior"]["scaleUp"]["policies"].as_array().unwrap().len(), 2);
    let policy = json!({"metadata": {"name": "n"}, "spec": {
        "podSelector": {},
        "egress": [{"ports": [{"port": 53}]}],
    }});
    let policy = made("networkpolicies", policy);
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(policy["spec"]["egress"][0]["ports"][0]["protocol"], "TCP");
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"}},
    ]}});
    let range = made("limitranges", range);
    assert_eq!(range["spec"]["limits"][0]["defaultRequest"]["cpu"], "2");
}

#[test]
fn workloads_are_validated() {
    for (plural, object, expected) in [
        ("deployments", workload(json!({})), ""),
        ("replicasets", workload(json!({})), ""),
        ("statefulsets", workload(json!({"serviceName": "web"})), ""),
        (
            "statefulsets",
            workload(json!({
                "volumeClaimTemplates": [{
                    "metadata": {"name": "data"},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}},
                    },
                }],
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{
                    "name": "c",
                    "image": "busybox:1",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }]}},
            })),
            "",
        ),
        (
            "statefulsets",
            // one of two of the same name counts
            workload(json!({"volumeClaimTemplates": [claim_template(), claim_template()]})),
            "",
        ),
        (
            "statefulsets",
            workload(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"],
            }}]})),
            "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
        ),
        ("daemonsets", workload(json!({})), ""),
        ("jobs", job(json!({})), ""),
        (
            "deployments",
            workload(json!({"replicas": -1})),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            "deployments",
            workload(json!({"selector": {}})),
            "spec.selector: Invalid value: {}: empty selector is invalid for deployment",
        ),
        (
            "deployments",
            workload(
                json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}),
            ),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
        ),
        (
            "deployments",
            workload(json!({"minReadySeconds": 700})),
            "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds",
        ),
        (
            "statefulsets",
            workload(json!({"podManagementPolicy": "Odd"})),
            "spec.podManagementPolicy: Invalid value: \"Odd\": must be 'OrderedReady' or 'Parallel'",
        ),
        (
            "daemonsets",
            workload(
                json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}}),
            ),
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
        ),
        (
            "jobs",
            job(json!({"completionMode": "Indexed", "completions": null, "parallelism": 2})),
            "spec.completions: Required value: when completion mode is Indexed",
        ),
        (
            "jobs",
            job(
                json!({"completionMode": "Indexed", "completions": 200_000, "backoffLimitPerIndex": 1}),
            ),
            "spec.maxFailedIndexes: Required value: must be specified when completions is above 100000",
        ),
        (
            "jobs",
            job(json!({
                "completionMode": "Indexed", "completions": 200_000, "backoffLimitPerIndex": 1,
                "maxFailedIndexes": 1, "parallelism": 20_000,
            })),
            "spec.parallelism: Invalid value: 20000: must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index",
        ),
        (
            "jobs",
            job(json!({"completionMode": "", "backoffLimitPerIndex": 1})),
            "spec.completionMode: Unsupported value: \"\": supported values: \"NonIndexed\", \"Indexed\"",
        ),
        (
            "jobs",
            job(json!({"podFailurePolicy": {"rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": ""}]},
            ]}})),
            "",
        ),
        (
            "jobs",
            job(json!({"backoffLimitPerIndex": 1})),
            "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
        ),
        (
            "poddisruptionbudgets",
            json!({"metadata": {"name": "p"}, "spec": {"minAvailable": "101%"}}),
            "spec.minAvailable: Invalid value: \"101%\": must not be greater than 100%",
        ),
        (
            "priorityclasses",
            json!({"metadata": {"name": "system-mine"}, "value": 1}),
            "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for \
             system use only. error: system-mine is not a known system priority class",
        ),
        (
            "priorityclasses",
            json!({"metadata": {"name": "p"}, "value": 1_000_000_001}),
            "value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
        ),
        (
            "horizontalpodautoscalers",
            json!({"metadata": {"name": "h"}, "spec": {
                "minReplicas": 3, "maxReplicas": 2,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            }}),
            "spec.maxReplicas: Invalid value: 2: must be greater than or equal to `minReplicas`",
        ),
    ] {
        let found = complaints(plural, object.clone());
        match expected {
            "" => assert_eq!(found, [""; 0], "{plural} {object}"),
            expected => assert_eq!(found, [expected], "{plural} {object}"),
        }
    }
    let mut always = job(json!({}));
    always["spec"]["template"]["spec"]["restartPolicy"] = "Always".into();
    assert_eq!(
        complaints("jobs", always),
        [
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""
        ]
    );
}

#[test]
fn workloads_keep_what_is_immutable() {
    let change = |plural: &str, object: Value, path: &[&str], value: Value| {
        let old = stored(plural, object);
        let mut new = old.clone();
        let last = path.iter().fold(&mut new, |place, step| &mut place[*step]);
        *last = value;
        prepare_update(resource(plural), &mut new, &old);
        validate_update(resource(plural), &new, &old).map_or_else(causes, |()| Vec::new())
    };
    let labels = json!({"matchLabels": {"a": "b"}, "matchExpressions": []});
    let odd = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
    for plural in ["deployments", "replicasets", "daemonsets"] {
        let found = change(plural, workload(json!({})), &["spec", "selector"], odd.clone());
        assert!(
            found[0].starts_with("spec.selector: ") && found[0].ends_with("field is immutable"),
            "{found:?}"
        );
        assert_eq!(
            change(plural, workload(json!({})), &["spec", "selector"], labels.clone()),
            [""; 0]
        );
    }
    let found = change("statefulsets", workload(json!({})), &["spec", "serviceName"], json!("x"));
    assert!(found[0].starts_with("spec: Forbidden: updates to statefulset spec"), "{found:?}");
    let found = change("statefulsets", workload(json!({})), &["spec", "replicas"], json!(3));
    assert_eq!(found, [""; 0]);
    let image = ["spec", "template", "metadata", "annotations"];
    let found = change("jobs", job(json!({})), &image, json!({"x": "y"}));
    assert!(found[0].ends_with("field is immutable"), "{found:?}");
    let found = change("jobs", job(json!({"suspend": true})), &image, json!({"x": "y"}));
    assert_eq!(found, [""; 0], "a suspended job can still change where its pods go");
    let found = change("jobs", job(json!({})), &["spec", "parallelism"], json!(5));
    assert_eq!(found, [""; 0]);
}

#[test]
fn jobs_suspended_may_change_their_pods() {
    // where pods go and what they get; what they run stays
    let change = |spec: Value, status: Value, change: Value| {
        let mut old = stored("jobs", job(spec));
        old["status"] = status;
        let mut new = old.clone();
        let pod = &mut new["spec"]["template"]["spec"];
        json_patch::merge(pod, &change);
        validate_update(resource("jobs"), &new, &old).map_or_else(causes, |()| Vec::new())
    };
    let suspended = json!({"suspend": true});
    let begun = json!({"startTime": "2026-01-01T00:00:00Z"});
    let condition = |status: &str, active: i64| {
        json!({"startTime": "2026-01-01T00:00:00Z", "active": active,
            "conditions": [{"type": "Suspended", "status": status}]})
    };
    let container = |name: &str, image: &str| {
        json!({"containers": [{"name": name, "image": image,
            "resources": {"requests": {"cpu": "1"}}}]})
    };
    let stored_pod = job(json!({}))["spec"]["template"]["spec"].clone();
    let first = &stored_pod["containers"][0];
    let (name, image) = (first["name"].as_str().unwrap(), first["image"].as_str().unwrap());
    let resources = || {
        let mut containers =
            stored("jobs", job(json!({})))["spec"]["template"]["spec"]["containers"].clone();
        containers[0]["resources"] = json!({"requests": {"cpu": "1"}});
        json!({"containers": containers})
    };
    let allowed = |found: Vec<String>| found.is_empty();
    assert!(allowed(change(suspended.clone(), json!({}), resources())));
    assert!(allowed(change(suspended.clone(), condition("True", 0), resources())));
    assert!(allowed(change(
        suspended.clone(),
        condition("True", 0),
        json!({"nodeSelector": {"a": "b"}})
    )));
    for (status, pod) in [
        (condition("True", 1), resources()),
        (condition("False", 0), resources()),
        (begun, resources()),
        (json!({}), container(name, "another")),
        (json!({}), container("another", image)),
        (json!({}), json!({"hostNetwork": true})),
    ] {
        let found = change(suspended.clone(), status, pod.clone());
        let refused = found.iter().any(|cause| {
            cause.starts_with("spec.template") && cause.ends_with("field is immutable")
        });
        assert!(refused, "{pod}: {found:?}");
    }
    let found = change(json!({}), json!({}), resources());
    assert!(found[0].ends_with("field is immutable"), "{found:?}");
}

#[test]
fn cron_schedules() {
    let fault = |schedule: &str| {
        let cron = json!({"metadata": {"name": "c"}, "spec": {
            "schedule": schedule,
            "jobTemplate": {"spec": {"template": job(json!({}))["spec"]["template"]}},
        }});
        complaints("cronjobs", cron)
    };
    for schedule in
        ["*/5 * * * *", "0 0 1,15 jan-mar mon", "@hourly", "@every 1h", "0-59/2 ? * * 0"]
    {
        assert_eq!(fault(schedule), [""; 0], "{schedule}");
    }
    for schedule in [
        "",
        "* * * *",
        "60 * * * *",
        "* * 0 * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "@often",
        "x * * * *",
    ] {
        assert_eq!(fault(schedule).len(), 1, "{schedule}");
    }
    assert!(fault("TZ=UTC 0 * * * *")[0].contains("use timeZone field instead"));
}
