use serde_json::json;

use super::*;
use crate::schema::value::entries;

fn namespace(labels: Value) -> Value {
    let mut prefixed = json!({});
    for (key, value) in entries(&labels) {
        prefixed[format!("{PREFIX}{key}")] = value.clone();
    }
    json!({"metadata": {"name": "n", "labels": prefixed}})
}

fn found(level: Level, version: Option<u32>, spec: &Value) -> Option<String> {
    violations(Policy { level, version }, &json!({}), spec)
}

fn restricted_pod() -> Value {
    json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"name": "c", "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        }}],
    })
}

#[test]
fn pod_security_levels() {
    let plain = json!({"containers": [{"name": "c"}]});
    assert_eq!(found(Level::Privileged, None, &plain), None);
    assert_eq!(found(Level::Baseline, None, &plain), None);
    assert_eq!(
        found(Level::Restricted, None, &plain).unwrap(),
        "allowPrivilegeEscalation != false (container \"c\" must set \
         securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \
         \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or \
         container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or \
         container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
         \"Localhost\")"
    );
    assert_eq!(found(Level::Restricted, None, &restricted_pod()), None);
}

#[test]
fn pod_security_baseline_checks() {
    for (change, expected) in [
        (
            json!({"hostNetwork": true, "hostPID": true}),
            "host namespaces (hostNetwork=true, hostPID=true)",
        ),
        (
            json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}),
            "hostPath volumes (volume \"h\")",
        ),
        (
            json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
            "hostPort (container \"c\" uses hostPort 80)",
        ),
        (
            json!({"containers": [{"name": "c", "securityContext": {"privileged": true}}]}),
            "privileged (container \"c\" must not set securityContext.privileged=true)",
        ),
        (
            json!({"initContainers": [{"name": "i", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}),
            "non-default capabilities (container \"i\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            json!({"ephemeralContainers": [{"name": "e", "securityContext": {"procMount": "Unmasked"}}]}),
            "procMount (container \"e\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            json!({"securityContext": {"seLinuxOptions": {"type": "spc_t", "user": "u"}}}),
            "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set)",
        ),
    ] {
        assert_eq!(found(Level::Baseline, None, &change).as_deref(), Some(expected));
        assert!(found(Level::Restricted, None, &change).is_some(), "{change}");
    }
}

#[test]
fn pod_security_rules_are_of_their_version() {
    let sysctl =
        json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}]}});
    assert!(found(Level::Baseline, Some(31), &sysctl).is_some());
    assert!(found(Level::Baseline, Some(32), &sysctl).is_none());
    let mut root = restricted_pod();
    root["securityContext"]["runAsUser"] = 0.into();
    assert!(found(Level::Restricted, Some(22), &root).is_none());
    assert_eq!(
        found(Level::Restricted, None, &root).unwrap(),
        "runAsUser=0 (pod must not set runAsUser=0)"
    );
}

fn configured(rest: &Value) -> Result<PodSecurity, String> {
    let mut configuration = json!({"kind": "PodSecurityConfiguration",
        "apiVersion": "pod-security.admission.config.k8s.io/v1"});
    for (field, value) in rest.as_object().unwrap() {
        configuration[field] = value.clone();
    }
    PodSecurity::read(&configuration)
}

#[test]
fn pod_security_defaults_hold_where_a_namespace_says_nothing() {
    let own = configured(&json!({"defaults": {"enforce": "baseline", "enforce-version": "v1.30",
        "warn": "restricted", "audit": "restricted", "warn-version": ""}}))
    .unwrap();
    let of = |labels: Value| {
        let found = own.policies(&namespace(labels));
        (found.enforce.to_text(), found.warn.to_text())
    };
    let texts = |enforce: &str, warn: &str| (enforce.to_owned(), warn.to_owned());
    assert_eq!(of(json!({})), texts("baseline:v1.30", "restricted:latest"));
    let open = json!({"enforce": "privileged", "warn": "privileged"});
    assert_eq!(of(open), texts("privileged:v1.30", "privileged:latest"));
    let versions = json!({"enforce-version": "odd", "warn-version": "v1.29"});
    assert_eq!(of(versions), texts("baseline:latest", "restricted:v1.29"));
}

#[test]
fn pod_security_exemptions() {
    let own = configured(&json!({
        "defaults": {"enforce": "restricted"},
        "exemptions": {"usernames": ["ann"], "namespaces": ["free"], "runtimeClasses": ["vm"]},
    }))
    .unwrap();
    let user = |name: &str| User::authenticated(name.to_owned(), Vec::new());
    for (name, namespace, expected) in [
        ("ann", "n", Some("user")),
        ("bob", "free", Some("namespace")),
        ("ann", "free", Some("namespace")),
        ("bob", "n", None),
        ("", "", None),
    ] {
        assert_eq!(own.exemption(&user(name), namespace), expected, "{name} {namespace}");
    }
    let pods = core("pods").unwrap();
    let policies = own.policies(&namespace(json!({})));
    let pod = |class: Value| {
        json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": true, "runtimeClassName": class,
            "containers": [{"name": "c"}]}})
    };
    assert!(policies.check(pods, &pod(json!("vm"))).unwrap().is_none());
    for class in [json!("other"), json!(null), json!("")] {
        assert!(policies.check(pods, &pod(class)).is_err());
    }
}

#[test]
fn pod_security_configurations_that_are_invalid() {
    for (rest, why) in [
        (json!({"defaults": {"enforce": "odd"}}), "defaults.enforce: Invalid value"),
        (json!({"defaults": {"warn-version": "1.2"}}), "defaults.warn-version"),
        (json!({"defaults": {"enforced": "baseline"}}), "unknown field"),
        (json!({"exemptions": {"usernames": [""]}}), "username must not be empty"),
        (json!({"exemptions": {"namespaces": ["A"]}}), "exemptions.namespaces[0]"),
        (json!({"exemptions": {"namespaces": ["a", "a"]}}), "Duplicate"),
        (json!({"exemptions": {"users": []}}), "users"),
        (json!({"kind": "Pod"}), "Pod is no PodSecurityConfiguration"),
    ] {
        let error = configured(&rest).unwrap_err();
        assert!(error.contains(why), "{rest}: {error}");
    }
}

#[test]
fn pod_security_labels() {
    let policies = |namespace: &Value| {
        let found = PodSecurity::default().policies(namespace);
        (found.enforce, found.warn)
    };
    let namespaces = core("namespaces").unwrap();
    let (enforce, warn) =
        policies(&namespace(json!({"enforce": "restricted", "enforce-version": "v1.30"})));
    assert_eq!(enforce.to_text(), "restricted:v1.30");
    assert_eq!(warn, enforce, "warnings follow");
    let (enforce, warn) = policies(&namespace(json!({"enforce": "odd", "warn": "odd"})));
    assert_eq!((enforce.level, warn.level), (Level::Restricted, Level::Privileged));
    assert_eq!(policies(&namespace(json!({}))).0.level, Level::Privileged);
    let odd = namespace(json!({"enforce": "odd", "audit-version": "v1.01"}));
    let error = check_namespace(namespaces, &odd, None).unwrap_err();
    assert_eq!(error.code, 422);
    assert!(error.message.contains("must be one of privileged, baseline, restricted"), "{error}");
    assert_eq!(error.details.unwrap().causes.len(), 2);
    assert!(check_namespace(namespaces, &odd, Some(&odd)).is_ok());
    assert!(check_namespace(namespaces, &namespace(json!({"warn": "baseline"})), None).is_ok());
}
