//! Rules, defaults and what is immutable of volumes, claims, and the kinds of storage.k8s.io.

use super::rules::{causes, complaints};
use super::*;

fn volume(spec: Value) -> Value {
    let mut volume = json!({"metadata": {"name": "v"}, "spec": {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
    }});
    volume["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    volume
}

fn claim(spec: Value) -> Value {
    let mut claim = json!({"metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }});
    claim["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    claim
}

fn host_path() -> Value {
    volume(json!({"hostPath": {"path": "/x"}}))
}

fn named(rest: Value) -> Value {
    let mut object = json!({"metadata": {"name": "n"}});
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    object
}

#[test]
fn defaults() {
    let volume = made("persistentvolumes", host_path());
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(volume["spec"]["volumeMode"], "Filesystem");
    assert_eq!(volume["spec"]["hostPath"]["type"], "");
    assert_eq!(volume["status"]["phase"], "Pending");
    assert!(volume["status"]["lastPhaseTransitionTime"].is_string());
    let source = json!({"kind": "PersistentVolumeClaim", "name": "d"});
    let made_claim = made("persistentvolumeclaims", claim(json!({"dataSource": source.clone()})));
    assert_eq!(made_claim["spec"]["dataSourceRef"], source);
    assert_eq!(made_claim["spec"]["volumeMode"], "Filesystem");
    assert_eq!(made_claim["status"], json!({"phase": "Pending"}));
    let class = made("storageclasses", named(json!({"provisioner": "a/b"})));
    assert_eq!(
        (&class["reclaimPolicy"], &class["volumeBindingMode"]),
        (&json!("Delete"), &json!("Immediate"))
    );
    let driver = made("csidrivers", named(json!({"spec": {}})));
    assert_eq!(
        driver["spec"],
        json!({
            "attachRequired": true,
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "podInfoOnMount": false,
            "requiresRepublish": false,
            "seLinuxMount": false,
            "storageCapacity": false,
            "volumeLifecycleModes": ["Persistent"],
        })
    );
    let mut with_ephemeral = pod();
    with_ephemeral["spec"]["volumes"] = json!([
        {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim(json!({}))["spec"]}}}
    ]);
    let made = made("pods", with_ephemeral);
    let template = &made["spec"]["volumes"][0]["ephemeral"]["volumeClaimTemplate"];
    assert_eq!(template["spec"]["volumeMode"], "Filesystem");
}

#[test]
fn new_objects() {
    let attach = |source: Value| {
        named(json!({"spec": {"attacher": "d", "nodeName": "n", "source": source}}))
    };
    let local = json!({"local": {"path": "/x"}});
    let affinity = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}
    ]}});
    let table = [
        ("persistentvolumes", host_path(), ""),
        (
            "persistentvolumes",
            volume(json!({})),
            "spec: Required value: must specify a volume type",
        ),
        (
            "persistentvolumes",
            volume(local),
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
        ),
        (
            "persistentvolumes",
            volume(json!({"hostPath": {"path": "/x"}, "nfs": {"server": "s", "path": "/"}})),
            "spec.nfs: Forbidden: may not specify more than 1 volume type",
        ),
        (
            "persistentvolumes",
            volume(json!({"hostPath": {"path": "/x"}, "nodeAffinity": affinity})),
            "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values: Required value: \
             must be specified when `operator` is 'In' or 'NotIn'",
        ),
        (
            "persistentvolumes",
            volume(json!({"hostPath": {"path": "/x/../y"}})),
            "spec.hostPath.path: Invalid value: \"/x/../y\": must not contain '..'",
        ),
        (
            "persistentvolumes",
            volume(json!({"csi": {"driver": "-", "volumeHandle": ""}})),
            "spec.csi.driver: Invalid value: \"-\"",
        ),
        (
            "persistentvolumes",
            volume(
                json!({"hostPath": {"path": "/x"}, "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
            ),
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
        ),
        (
            "persistentvolumes",
            volume(json!({"hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"})),
            "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
        ),
        ("persistentvolumeclaims", claim(json!({})), ""),
        (
            "persistentvolumeclaims",
            claim(json!({"accessModes": []})),
            "spec.accessModes: Required value: at least 1 access mode is required",
        ),
        (
            "persistentvolumeclaims",
            claim(json!({"resources": {}})),
            "spec.resources[storage]: Required value",
        ),
        (
            "persistentvolumeclaims",
            claim(json!({"dataSource": {"kind": "Thing", "name": "t"}})),
            "spec.dataSource: Invalid value: \"Thing\": must be 'PersistentVolumeClaim'",
        ),
        ("storageclasses", named(json!({"provisioner": ""})), "provisioner: Required value"),
        (
            "storageclasses",
            named(json!({"provisioner": "a", "volumeBindingMode": "Never"})),
            "volumeBindingMode: Unsupported value: \"Never\"",
        ),
        (
            "volumeattachments",
            attach(json!({})),
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
        ),
        ("volumeattachments", attach(json!({"persistentVolumeName": "v"})), ""),
        (
            "volumeattachments",
            attach(json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"]}})),
            "spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes",
        ),
        (
            "csinodes",
            named(json!({"spec": {"drivers": [{"name": "d", "nodeID": ""}]}})),
            "spec.drivers[0].nodeID: Required value",
        ),
        (
            "csidrivers",
            named(json!({"spec": {"tokenRequests": [{"audience": "a", "expirationSeconds": 1}]}})),
            "spec.tokenRequests[0].expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes",
        ),
        (
            "volumeattributesclasses",
            named(json!({"driverName": "d"})),
            "parameters: Required value: must contain at least one key/value pair",
        ),
        (
            "csistoragecapacities",
            named(json!({"storageClassName": "s", "capacity": "-1"})),
            "capacity: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
    ];
    for (plural, object, expected) in table {
        let said = complaints(plural, object.clone());
        match expected {
            "" => assert_eq!(said, [""; 0], "{object}"),
            _ => assert!(said.iter().any(|one| one.starts_with(expected)), "{object}: {said:?}"),
        }
    }
}

#[test]
fn validation_immutable_fields() {
    type Change = fn(&mut Value);
    let csi = volume(json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
    let node = named(json!({"spec": {"drivers": [{"name": "d", "nodeID": "i"}]}}));
    let table: [(&str, Value, Change, &str); 12] = [
        (
            "persistentvolumes",
            host_path(),
            |v| v["spec"]["hostPath"]["path"] = "/y".into(),
            "immutable",
        ),
        ("persistentvolumes", host_path(), |v| v["spec"]["capacity"]["storage"] = "2Gi".into(), ""),
        (
            "persistentvolumes",
            host_path(),
            |v| v["spec"]["volumeMode"] = "Block".into(),
            "immutable",
        ),
        (
            "persistentvolumes",
            csi,
            |v| {
                v["spec"]["csi"]["controllerExpandSecretRef"] =
                    json!({"name": "s", "namespace": "n"});
            },
            "",
        ),
        ("persistentvolumeclaims", claim(json!({})), |c| c["spec"]["volumeName"] = "v".into(), ""),
        (
            "persistentvolumeclaims",
            claim(json!({})),
            |c| c["spec"]["storageClassName"] = "s".into(),
            "",
        ),
        (
            "persistentvolumeclaims",
            claim(json!({"storageClassName": "a"})),
            |c| c["spec"]["storageClassName"] = "b".into(),
            "spec is immutable",
        ),
        (
            "persistentvolumeclaims",
            claim(json!({})),
            |c| c["spec"]["resources"]["requests"]["storage"] = "2Gi".into(),
            "spec is immutable",
        ),
        ("csinodes", node.clone(), |n| n["spec"]["drivers"][0]["nodeID"] = "j".into(), "immutable"),
        ("csinodes", node, |n| n["spec"]["drivers"][0]["allocatable"] = json!({"count": 3}), ""),
        (
            "csidrivers",
            named(json!({"spec": {}})),
            |d| d["spec"]["attachRequired"] = false.into(),
            "immutable",
        ),
        (
            "volumeattributesclasses",
            named(json!({"driverName": "d", "parameters": {"a": "b"}})),
            |c| c["parameters"]["a"] = "c".into(),
            "updates to parameters are forbidden.",
        ),
    ];
    for (plural, object, change, expected) in table {
        let old = stored(plural, object);
        let (new, result) = updated(plural, &old, change);
        match (result, expected) {
            (Ok(()), "") => {}
            (Err(error), expected) if !expected.is_empty() => {
                let said = causes(error);
                assert!(said.iter().any(|one| one.contains(expected)), "{new}: {said:?}");
            }
            (result, _) => panic!("{new}: {result:?}"),
        }
    }
}

#[test]
fn validation_bound_claim_may_grow() {
    let mut old = stored("persistentvolumeclaims", claim(json!({"volumeName": "v"})));
    old["status"] = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
    old["spec"]["resources"]["requests"]["storage"] = "5Gi".into();
    for (size, is_fine) in [("9Gi", true), ("3Gi", true), ("2Gi", false), ("1Gi", false)] {
        let (_, result) = updated("persistentvolumeclaims", &old, |claim| {
            claim["spec"]["resources"]["requests"]["storage"] = size.into();
        });
        assert_eq!(result.is_ok(), is_fine, "{size}: {result:?}");
    }
    let (_, result) = updated("persistentvolumeclaims", &old, |claim| {
        claim["spec"]["volumeName"] = "w".into();
    });
    assert!(result.is_err(), "it is bound once");
}

#[test]
fn trust_bundles() {
    let authority = |name: &str| {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem()
    };
    let nobodys = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap().cert.pem();
    let (a, b) = (authority("a"), authority("b"));
    let signer = "example.com/s";
    let table = [
        ("b", "", format!("{a}{b}"), ""),
        ("example.com:s:b", signer, a.clone(), ""),
        ("b", signer, a.clone(), "must be named with prefix example.com:s:"),
        ("example.com:s:b", "", a.clone(), "must not have \":\" in its name"),
        ("b", "", String::new(), "at least one trust anchor must be provided"),
        ("b", "", format!("{a}{b}{a}"), "duplicate trust anchor (indices [0 2])"),
        ("b", "", nobodys, "entry 0 does not have the CA bit set"),
        ("b", "", a.replace("CERTIFICATE", "THING"), "entry 0 has bad block type: THING"),
    ];
    for (name, signer, pem, expected) in table {
        let bundle = json!({
            "metadata": {"name": name},
            "spec": {"signerName": signer, "trustBundle": pem},
        });
        let said = complaints("clustertrustbundles", bundle);
        match expected {
            "" => assert_eq!(said, [""; 0], "{name}"),
            _ => assert!(said.iter().any(|one| one.contains(expected)), "{expected}: {said:?}"),
        }
    }
}
