//! What becomes of what is bound.

use super::super::claim_protection::holds;
use super::super::{ephemeral, expander, volume_protection};
use super::*;

#[test]
fn claim_phase_bound_or_lost() {
    let nothing = |_: &mut Value| {};
    let lost = Some(ClaimStep::Phase("Lost"));
    let table = [
        (vec![bound_claim(nothing), bound_volume(nothing)], None, ""),
        (vec![bound_claim(nothing)], lost, "ClaimLost"),
        (
            vec![bound_claim(|c| c["spec"]["volumeName"] = Value::Null), bound_volume(nothing)],
            Some(ClaimStep::Phase("Lost")),
            "ClaimLost",
        ),
        (
            vec![
                bound_claim(nothing),
                bound_volume(|v| v["spec"]["claimRef"] = meant_for("d", "uid-d")),
            ],
            Some(ClaimStep::Phase("Lost")),
            "ClaimMisbound",
        ),
        (vec![bound_claim(|c| c["status"]["phase"] = "Lost".into())], None, ""),
        (
            vec![bound_claim(nothing), bound_volume(|v| v["spec"]["claimRef"] = Value::Null)],
            Some(ClaimStep::Bind("v".into())),
            "",
        ),
        (
            vec![bound_claim(|c| c["status"] = json!({"phase": "Pending"})), bound_volume(nothing)],
            Some(ClaimStep::Bind("v".into())),
            "",
        ),
    ];
    for (objects, step, why) in table {
        let decision = next(&objects);
        assert_eq!((&decision.0, reason(&decision)), (&step, why), "{objects:?}");
    }
}

#[test]
fn claim_protection_until_no_pod_uses_it() {
    let claim: PersistentVolumeClaim = serde_json::from_value(bound_claim(|_| {})).unwrap();
    let is_used = |pod: Value| holds(&serde_json::from_value(pod).unwrap(), &claim);
    let mut over = pod("p", "n1", "c");
    over["status"]["phase"] = "Succeeded".into();
    assert!(is_used(pod("p", "n1", "c")));
    assert!(is_used(over), "its node may have it mounted");
    assert!(!is_used(pod("p", "", "c")));
    assert!(!is_used(pod("p", "n1", "other")));

    let mut made = bound_claim(|c| {
        c["metadata"]["name"] = "p-v".into();
        c["metadata"]["ownerReferences"] = json!([
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true}
        ]);
    });
    let mut user = pod("p", "n1", "");
    user["spec"]["volumes"] = json!([{"name": "v", "ephemeral": {}}]);
    let is_held = |claim: &Value, pod: &Value| {
        let (pod, claim) = (pod.clone(), claim.clone());
        holds(&serde_json::from_value(pod).unwrap(), &serde_json::from_value(claim).unwrap())
    };
    assert!(is_held(&made, &user));
    user["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    user["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    assert!(is_held(&made, &user), "its node is not done with it");
    user["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    assert!(!is_held(&made, &user));
    user["metadata"]["deletionTimestamp"] = Value::Null;
    made["metadata"]["ownerReferences"][0]["uid"] = "of an older life".into();
    assert!(!is_held(&made, &user));
}

#[test]
fn protection_finalizers_come_and_go() {
    let table = [
        ("Available", false, false, Some(true)),
        ("Available", true, false, None),
        ("Bound", true, true, None),
        ("Released", true, true, Some(false)),
        ("Available", true, true, Some(false)),
        ("Available", false, true, None),
    ];
    for (phase, has_it, is_deleting, expected) in table {
        let volume = volume_of("v", "1Gi", |v| {
            v["status"]["phase"] = phase.into();
            if has_it {
                v["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
            }
            if is_deleting {
                v["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
        });
        let decided = volume_protection::decide(&serde_json::from_value(volume.clone()).unwrap());
        assert_eq!(decided, expected, "{volume}");
    }
}

#[test]
fn ephemeral_claims_are_made_from_their_templates() {
    let mut user = pod("p", "n1", "");
    user["spec"]["volumes"] = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"accessModes": ["ReadWriteOnce"]},
    }}}]);
    let user: Pod = serde_json::from_value(user).unwrap();
    let volume = &user.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
    let claim = serde_json::to_value(ephemeral::claim(&user, volume)).unwrap();
    assert_eq!(
        claim["metadata"],
        json!({
            "name": "p-v",
            "namespace": "ns",
            "labels": {"a": "b"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p",
                "controller": true, "blockOwnerDeletion": true}],
        })
    );
    assert_eq!(claim["spec"], json!({"accessModes": ["ReadWriteOnce"]}));
}

#[test]
fn expansion_is_left_to_drivers() {
    let grown = bound_claim(|c| {
        c["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
        c["status"]["capacity"] = json!({"storage": "1Gi"});
    });
    let of = |source: Value, claim: &Value| {
        let volume = bound_volume(|v| {
            v["spec"].as_object_mut().unwrap().remove("hostPath");
            json_merge(&mut v["spec"], source);
        });
        let (claim, volume) = (claim.clone(), serde_json::from_value(volume).unwrap());
        expander::expansion(&serde_json::from_value(claim).unwrap(), &volume).map(|expansion| {
            let event = expansion.event.unwrap();
            (expansion.resizer, event.is_warning, event.message)
        })
    };
    let waiting = "waiting for an external controller to expand this PVC".to_owned();
    let csi = json!({"csi": {"driver": "csi.example.com", "volumeHandle": "h"}});
    assert_eq!(of(csi.clone(), &grown), Some((None, false, waiting.clone())));
    assert_eq!(
        of(json!({"nfs": {"server": "s", "path": "/"}}), &grown),
        Some((None, true, waiting))
    );
    let migrated = "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc";
    assert_eq!(
        of(json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}), &grown),
        Some((Some("ebs.csi.aws.com"), false, migrated.to_owned()))
    );
    let fits = bound_claim(|c| c["status"]["capacity"] = json!({"storage": "1Gi"}));
    assert_eq!(of(csi, &fits), None);
}

fn json_merge(object: &mut Value, fields: Value) {
    for (key, value) in fields.as_object().unwrap() {
        object[key] = value.clone();
    }
}

#[test]
fn volume_phases() {
    let nothing = |_: &mut Value| {};
    let enter = |phase| Some(VolumeStep::Phase(phase, String::new()));
    let released = |policy: &'static str| {
        bound_volume(move |v| {
            v["status"]["phase"] = "Released".into();
            v["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
        })
    };
    let provisioned = bound_volume(|v| {
        v["status"]["phase"] = "Released".into();
        v["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
        v["metadata"]["annotations"] =
            json!({"pv.kubernetes.io/provisioned-by": "csi.example.com"});
    });
    let elsewhere = bound_claim(|c| c["spec"]["volumeName"] = "w".into());
    let in_tree = volume_of("v", "1Gi", |v| {
        v["metadata"]["annotations"] =
            json!({"pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs"});
    });
    let made_by = |maker: &str, policy: &str, finalizers: &[&str]| {
        let mut volume = released("Delete");
        volume["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": maker});
        volume["metadata"]["finalizers"] = json!(finalizers);
        volume["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
        volume
    };
    let recycler = |phase: &str| {
        let mut pod = pod("recycler-for-v", "n1", "");
        pod["metadata"]["namespace"] = "default".into();
        pod["status"]["phase"] = phase.into();
        pod
    };
    let local = |mut volume: Value| {
        volume["spec"].as_object_mut().unwrap().remove("hostPath");
        volume["spec"]["local"] = json!({"path": "/"});
        volume
    };
    let nfs = |mut volume: Value| {
        volume["spec"].as_object_mut().unwrap().remove("hostPath");
        volume["spec"]["nfs"] = json!({"server": "s", "path": "/"});
        volume
    };
    let table = [
        ("new", vec![volume_of("v", "1Gi", |v| v["status"]["phase"] = "Pending".into())], enter("Available"), ""),
        ("free", vec![volume_of("v", "1Gi", nothing)], None, ""),
        (
            "meant for somebody",
            vec![volume_of("v", "1Gi", |v| {
                v["spec"]["claimRef"] = meant_for("c", "");
                v["status"]["phase"] = "Pending".into();
            })],
            enter("Available"),
            "",
        ),
        ("bound", vec![bound_volume(nothing), bound_claim(nothing)], None, ""),
        (
            "its phase was lost",
            vec![bound_volume(|v| v["status"]["phase"] = "Available".into()), bound_claim(nothing)],
            enter("Bound"),
            "",
        ),
        ("its claim is gone", vec![bound_volume(nothing)], enter("Released"), ""),
        (
            "its claim is of a later life",
            vec![bound_volume(nothing), bound_claim(|c| c["metadata"]["uid"] = "later".into())],
            enter("Released"),
            "",
        ),
        ("kept", vec![released("Retain")], None, ""),
        ("deleted here", vec![released("Delete")], Some(VolumeStep::DeleteData), ""),
        ("deleted by who made it", vec![provisioned.clone()], None, ""),
        (
            "deleted here though its deletion is asked for",
            vec![{
                let mut volume = released("Delete");
                volume["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                volume
            }],
            Some(VolumeStep::DeleteData),
            "",
        ),
        (
            "made by a plugin that is no more",
            vec![made_by("kubernetes.io/no-such", "Delete", &["kubernetes.io/pv-controller"])],
            Some(VolumeStep::Phase(
                "Failed",
                "no volume plugin matched name: kubernetes.io/no-such".into(),
            )),
            "VolumeFailedDelete",
        ),
        ("recycled", vec![released("Recycle")], Some(VolumeStep::StartRecycler), ""),
        (
            "recycled when no pod uses it",
            vec![released("Recycle"), pod("p", "n1", "c")],
            None,
            "VolumeFailedRecycle",
        ),
        ("being recycled", vec![released("Recycle"), recycler("Running")], None, ""),
        (
            "was recycled",
            vec![released("Recycle"), recycler("Succeeded")],
            Some(VolumeStep::Recycled),
            "VolumeRecycled",
        ),
        (
            "could not be recycled",
            vec![released("Recycle"), recycler("Failed")],
            Some(VolumeStep::RecyclerFailed(
                "Recycle failed: failed to recycle volume: pod failed, pod.Status.Message unknown".into(),
            )),
            "VolumeFailedRecycle",
        ),
        ("migrated", vec![in_tree], Some(VolumeStep::MigratedTo(Some("ebs.csi.aws.com"))), ""),
        (
            "recycled by nobody",
            vec![local(released("Recycle"))],
            Some(VolumeStep::Phase("Failed", "No recycler plugin found for the volume!".into())),
            "VolumeFailedRecycle",
        ),
        (
            "deleted by nobody",
            vec![nfs(released("Delete"))],
            Some(VolumeStep::Phase(
                "Failed",
                "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched".into(),
            )),
            "VolumeFailedDelete",
        ),
        (
            "its claim has another",
            vec![bound_volume(nothing), elsewhere],
            Some(VolumeStep::Unbind),
            "",
        ),
    ];
    for (what, objects, step, why) in table {
        let decision = next_volume(&objects);
        assert_eq!((&decision.0, reason(&decision)), (&step, why), "{what}");
    }
}

#[test]
fn volume_deletion_finalizers_are_those_of_who_deletes_the_data() {
    let (own, other) =
        ("kubernetes.io/pv-controller", "external-provisioner.volume.kubernetes.io/finalizer");
    let (here, csi, migrated) =
        ("kubernetes.io/host-path", "csi.example.com", "kubernetes.io/aws-ebs");
    let kept = "kubernetes.io/pv-protection";
    for (maker, policy, before, after) in [
        (here, "Delete", vec![kept], Some(vec![kept, own])),
        (here, "Delete", vec![other, own], Some(vec![own])),
        (here, "Delete", vec![own], None),
        (here, "Retain", vec![own, kept], Some(vec![kept])),
        (csi, "Delete", vec![other], None),
        (csi, "Delete", vec![own], None),
        (migrated, "Delete", vec![own, other], Some(vec![other])),
        ("", "Delete", vec![own], None),
    ] {
        let volume = volume_of("v", "1Gi", |v| {
            v["metadata"]["finalizers"] = json!(before);
            v["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
            if !maker.is_empty() {
                v["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": maker});
            }
            if maker == migrated {
                v["metadata"]["annotations"]["pv.kubernetes.io/migrated-to"] =
                    "ebs.csi.aws.com".into();
            }
        });
        let after = after
            .map(|after| VolumeStep::Finalizers(after.into_iter().map(str::to_owned).collect()));
        assert_eq!(next_volume(&[volume]).0, after, "{maker} {policy} {before:?}");
    }
}
