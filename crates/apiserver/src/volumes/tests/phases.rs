//! What becomes of what is bound.

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
    let deleted = || {
        bound_claim(|c| {
            c["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            c["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
        })
    };
    let mut over = pod("p", "n1", "c");
    over["status"]["phase"] = "Succeeded".into();
    for (pods, may_go) in [
        (vec![], true),
        (vec![pod("p", "n1", "c")], false),
        (vec![over], false),
        (vec![pod("p", "", "c")], true),
        (vec![pod("p", "n1", "other")], true),
    ] {
        let objects = [vec![deleted()], pods].concat();
        let expected = may_go.then_some(ClaimStep::Unprotect);
        assert_eq!(next(&objects).0, expected, "{objects:?}");
    }
}

#[test]
fn ephemeral_claim_is_deleted_with_its_pod() {
    let owned = |uid: &'static str| {
        claim_of("c", "1Gi", move |c| {
            c["metadata"]["ownerReferences"] = json!([
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}
            ]);
        })
    };
    let delete = Some(ClaimStep::Delete);
    assert_eq!(next(&[owned("uid-p")]).0, delete);
    assert_eq!(next(&[owned("of an older life"), pod("p", "n1", "x")]).0, delete);
    assert_ne!(next(&[owned("uid-p"), pod("p", "n1", "x")]).0, delete);
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
            "recycled by nobody",
            vec![released("Recycle")],
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
        let decision = volume(&world(&objects), "v");
        assert_eq!((&decision.0, reason(&decision)), (&step, why), "{what}");
    }
    let deleting = |phase: &'static str| {
        volume_of("v", "1Gi", move |v| {
            v["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            v["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
            v["status"]["phase"] = phase.into();
        })
    };
    assert_eq!(volume(&world(&[deleting("Available")]), "v").0, Some(VolumeStep::Unprotect));
    let mut bound = deleting("Bound");
    bound["spec"]["claimRef"] = meant_for("c", "uid-c");
    assert_eq!(volume(&world(&[bound, bound_claim(nothing)]), "v").0, None);
}
