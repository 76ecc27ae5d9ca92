#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};

use super::token_validation::{Fault, check_reference};
use crate::admission::service_account::{add_token_and_pull_secrets, check_mirror, check_secrets};
use crate::tokens::Reference;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn with_token_and_pull_secrets(account: Value, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
    add_token_and_pull_secrets(&account, &mut pod).unwrap();
    pod["spec"].take()
}

#[test]
fn service_account_token_is_mounted_in_every_container() {
    let spec = with_token_and_pull_secrets(
        json!({}),
        json!({
            "initContainers": [{"name": "i"}],
            "containers": [
                {"name": "a", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]},
            ],
            "volumes": [{"name": "data"}, {"name": "own"}],
        }),
    );
    let volume = &spec["volumes"][2];
    let name = volume["name"].as_str().unwrap();
    assert_eq!((&name[..16], name.len()), ("kube-api-access-", 21));
    let mount = json!({"name": name, "mountPath": MOUNT_PATH, "readOnly": true});
    assert_eq!(spec["initContainers"][0]["volumeMounts"], json!([mount]));
    assert_eq!(spec["containers"][0]["volumeMounts"][1], mount);
    assert_eq!(spec["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
    assert_eq!(
        volume["projected"],
        json!({
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{
                    "path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                }]}},
            ],
        })
    );
}

#[test]
fn service_account_token_automount_disabled() {
    let container = json!([{"name": "a"}]);
    for (account, pod, expected) in [
        (json!(null), json!(null), true),
        (json!(false), json!(null), false),
        (json!(false), json!(true), true),
        (json!(true), json!(false), false),
        (json!(null), json!(false), false),
    ] {
        let account = json!({"automountServiceAccountToken": account});
        let spec =
            json!({"automountServiceAccountToken": pod.clone(), "containers": container.clone()});
        let spec = with_token_and_pull_secrets(account.clone(), spec);
        assert_eq!(spec["volumes"].is_array(), expected, "{account} {pod}");
        assert_eq!(spec["containers"][0]["volumeMounts"].is_array(), expected, "{account} {pod}");
    }
    // It is not mounted: no volume.
    let own = json!({"containers": [{"volumeMounts": [{"name": "x", "mountPath": MOUNT_PATH}]}]});
    assert!(with_token_and_pull_secrets(json!({}), own)["volumes"].is_null());
    // A volume that was there, as in a pod that is made from another one's manifest.
    let again = json!({"containers": container, "volumes": [{"name": "kube-api-access-12345"}]});
    let spec = with_token_and_pull_secrets(json!({}), again);
    assert_eq!(spec["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(spec["containers"][0]["volumeMounts"][0]["name"], "kube-api-access-12345");
}

#[test]
fn service_account_pull_secrets() {
    let account = json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]});
    assert_eq!(
        with_token_and_pull_secrets(account.clone(), json!({}))["imagePullSecrets"],
        account["imagePullSecrets"]
    );
    let own = json!({"imagePullSecrets": [{"name": "own"}]});
    assert_eq!(
        with_token_and_pull_secrets(account, own.clone())["imagePullSecrets"],
        own["imagePullSecrets"]
    );
    assert!(with_token_and_pull_secrets(json!({}), json!({}))["imagePullSecrets"].is_null());
}

#[test]
fn service_account_is_rejected_in_mirror_pods() {
    let token = json!([{"serviceAccountToken": {"path": "t"}}]);
    for (spec, expected) in [
        (json!({"containers": [{"name": "a"}]}), ""),
        (json!({"volumes": [{"configMap": {"name": "x"}}]}), ""),
        (
            json!({"serviceAccountName": "default"}),
            "a mirror pod may not reference service accounts",
        ),
        (
            json!({"volumes": [{"secret": {"secretName": "x"}}]}),
            "a mirror pod may not reference secrets",
        ),
        (
            json!({"containers": [{"envFrom": [{"secretRef": {"name": "x"}}]}]}),
            "a mirror pod may not reference secrets",
        ),
        (
            json!({"volumes": [{"projected": {"sources": token}}]}),
            "a mirror pod may not use ServiceAccountToken volume projections",
        ),
    ] {
        let fault = check_mirror(&json!({"spec": spec})).err().unwrap_or_default();
        assert_eq!(fault, expected, "{spec}");
    }
}

#[test]
fn service_account_enforces_mountable_secrets() {
    let account = |mark: &str| {
        json!({
            "metadata": {"name": "sa", "annotations": {"kubernetes.io/enforce-mountable-secrets": mark}},
            "secrets": [{"name": "good"}],
            "imagePullSecrets": [{"name": "pull"}],
        })
    };
    let variable = |name: &str| json!({"name": "V", "valueFrom": {"secretKeyRef": {"name": name}}});
    for (spec, place) in [
        (json!({"volumes": [{"secret": {"secretName": "bad"}}]}), "volume with"),
        (
            json!({"containers": [{"name": "c", "env": [variable("bad")]}]}),
            "container c with envVar V",
        ),
        (
            json!({"initContainers": [{"name": "c", "envFrom": [{"secretRef": {"name": "bad"}}]}]}),
            "init container c with envFrom",
        ),
        (json!({"imagePullSecrets": [{"name": "bad"}]}), "imagePullSecrets[0].name=\"bad\""),
    ] {
        let pod = json!({"spec": spec});
        let fault = check_secrets(&account("true"), &pod).unwrap_err();
        assert!(fault.starts_with(place) && fault.contains("account sa does not"), "{fault}");
        for mark in ["", "false", "yes"] {
            assert_eq!(check_secrets(&account(mark), &pod), Ok(()), "{mark}");
        }
    }
    let good = json!({"spec": {
        "volumes": [{"secret": {"secretName": "good"}}, {"configMap": {"name": "any"}}],
        "containers": [{"name": "c", "env": [variable("good"), {"name": "W", "value": "x"}]}],
        "imagePullSecrets": [{"name": "pull"}],
    }});
    assert_eq!(check_secrets(&account("true"), &good), Ok(()));
}

#[test]
fn service_account_reference_leeway_after_deletion() {
    let now = 1_800_000_000;
    let at = |seconds| jiff::Timestamp::from_second(seconds).unwrap().to_string();
    let meant = Reference { name: "p".into(), uid: "u".into() };
    let object = |uid: &str, deleted: Value| json!({"metadata": {"name": "p", "uid": uid, "deletionTimestamp": deleted}});
    let check = |object: Option<Value>| match check_reference(object.as_ref(), &meant, now) {
        Ok(()) => "good".to_owned(),
        Err(Fault::Absent) => "absent".into(),
        Err(Fault::Deleted) => "deleted".into(),
        Err(Fault::Other(uid)) => format!("other {uid}"),
    };
    for (object, expected) in [
        (None, "absent"),
        (Some(object("u", Value::Null)), "good"),
        (Some(object("v", Value::Null)), "other v"),
        (Some(json!({})), "other "),
        (Some(object("u", at(now + 30).into())), "good"),
        (Some(object("u", at(now - 60).into())), "good"),
        (Some(object("u", at(now - 61).into())), "deleted"),
    ] {
        assert_eq!(check(object.clone()), expected, "{object:?}");
    }
}
