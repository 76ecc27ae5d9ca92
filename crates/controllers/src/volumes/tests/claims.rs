//! Which volume an open claim gets, and why it waits.

use super::*;

#[test]
fn binder_chooses_the_smallest_volume() {
    let plain = |_: &mut Value| {};
    let volumes = [
        volume_of("small", "1Gi", plain),
        volume_of("big", "100Gi", plain),
        volume_of("right", "5Gi", plain),
        volume_of("shared", "3Gi", |v| {
            v["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadWriteMany"]);
        }),
        volume_of("block", "3Gi", |v| v["spec"]["volumeMode"] = "Block".into()),
        volume_of("fast", "3Gi", |v| v["spec"]["storageClassName"] = "fast".into()),
        volume_of("new", "3Gi", |v| v["status"]["phase"] = "Pending".into()),
        volume_of("going", "3Gi", |v| {
            v["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }),
        volume_of("labelled", "50Gi", |v| v["metadata"]["labels"] = json!({"tier": "gold"})),
        volume_of("other's", "3Gi", |v| v["spec"]["claimRef"] = meant_for("other", "")),
        volume_of("tuned", "3Gi", |v| v["spec"]["volumeAttributesClassName"] = "gold".into()),
    ];
    type Change = fn(&mut Value);
    let table: [(&str, Change, Option<&str>); 10] = [
        ("3Gi", |_| {}, Some("right")),
        ("5Gi", |_| {}, Some("right")),
        ("5.1Gi", |_| {}, Some("labelled")),
        ("60Gi", |_| {}, Some("big")),
        ("200Gi", |_| {}, None),
        ("1Gi", |c| c["spec"]["accessModes"] = json!(["ReadWriteMany"]), Some("shared")),
        ("1Gi", |c| c["spec"]["volumeMode"] = "Block".into(), Some("block")),
        ("1Gi", |c| c["spec"]["storageClassName"] = "fast".into(), Some("fast")),
        (
            "1Gi",
            |c| c["spec"]["selector"] = json!({"matchLabels": {"tier": "gold"}}),
            Some("labelled"),
        ),
        ("1Gi", |c| c["spec"]["volumeAttributesClassName"] = "gold".into(), Some("tuned")),
    ];
    for (size, change, expected) in table {
        let claim = claim_of("c", size, change);
        let mut objects = volumes.to_vec();
        objects.push(claim.clone());
        assert_eq!(bound_to(&objects).as_deref(), expected, "{claim}");
    }
}

#[test]
fn binder_prefers_a_prebound_volume() {
    let claim = claim_of("c", "1Gi", |_| {});
    let meant = |uid: &'static str| {
        volume_of("meant", "9Gi", move |v| v["spec"]["claimRef"] = meant_for("c", uid))
    };
    let other = volume_of("other", "1Gi", |_| {});
    for (uid, expected) in [("", "meant"), ("uid-c", "meant"), ("of an older life", "other")] {
        let objects = [claim.clone(), meant(uid), other.clone()];
        assert_eq!(bound_to(&objects).as_deref(), Some(expected), "{uid}");
    }
    let small = volume_of("meant", "1Mi", |v| v["spec"]["claimRef"] = meant_for("c", ""));
    assert_eq!(bound_to(&[claim, small]), None, "too small even for its own claim");
}

#[test]
fn binder_claim_with_volume_name() {
    let asking = claim_of("c", "2Gi", |c| c["spec"]["volumeName"] = "v".into());
    type Change = fn(&mut Value);
    let table: [(Change, Option<&str>, &str); 7] = [
        (|_| {}, Some("v"), ""),
        (|v| v["status"]["phase"] = "Pending".into(), Some("v"), ""),
        (|v| v["spec"]["capacity"]["storage"] = "1Gi".into(), None, "VolumeMismatch"),
        (|v| v["spec"]["storageClassName"] = "fast".into(), None, "VolumeMismatch"),
        (|v| v["spec"]["accessModes"] = json!(["ReadOnlyMany"]), None, "VolumeMismatch"),
        (|v| v["spec"]["claimRef"] = meant_for("c", "uid-c"), Some("v"), ""),
        (|v| v["spec"]["claimRef"] = meant_for("d", "uid-d"), None, "FailedBinding"),
    ];
    for (change, expected, why) in table {
        let volume = volume_of("v", "2Gi", change);
        let objects = [asking.clone(), volume.clone()];
        assert_eq!(bound_to(&objects).as_deref(), expected, "{volume}");
        assert_eq!(reason(&next(&objects)), why, "{volume}");
    }
    assert_eq!(next(&[asking]), (None, None), "it waits for a volume of that name");
}

#[test]
fn binder_pending_reasons() {
    let of_class = |name: &'static str| {
        claim_of("c", "1Gi", move |c| c["spec"]["storageClassName"] = name.into())
    };
    let table = [
        (vec![claim_of("c", "1Gi", |_| {})], "FailedBinding"),
        (vec![of_class("absent")], "ProvisioningFailed"),
        (
            vec![of_class("no"), class("no", "Immediate", "kubernetes.io/no-provisioner")],
            "ProvisioningFailed",
        ),
        (
            vec![of_class("late"), class("late", "WaitForFirstConsumer", "csi.example.com")],
            "WaitForFirstConsumer",
        ),
        (
            vec![
                of_class("late"),
                class("late", "WaitForFirstConsumer", "csi.example.com"),
                pod("p", "", "c"),
            ],
            "WaitForPodScheduled",
        ),
    ];
    for (objects, expected) in table {
        let decision = next(&objects);
        assert_eq!((&decision.0, reason(&decision)), (&None, expected), "{objects:?}");
    }
}

#[test]
fn provisioning_is_asked_for_once() {
    let mut claim = claim_of("c", "1Gi", |c| c["spec"]["storageClassName"] = "late".into());
    let late = class("late", "WaitForFirstConsumer", "csi.example.com");
    let objects = |claim: &Value| [claim.clone(), late.clone(), pod("p", "n1", "c")];
    assert_eq!(next(&objects(&claim)).0, None, "a pod with a node is no choice of the scheduler");
    // whether there is that node is for the provisioner to find out
    claim["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "n1"});
    let asked = ClaimStep::Provision("csi.example.com".into());
    assert_eq!(next(&objects(&claim)).0, Some(asked));
    claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] =
        "csi.example.com".into();
    let decision = next(&objects(&claim));
    assert_eq!((&decision.0, reason(&decision)), (&None, "ExternalProvisioning"));
}

#[test]
fn binder_leaves_open_volumes_of_a_claim_that_waits_to_the_scheduler() {
    let late = class("late", "WaitForFirstConsumer", "csi.example.com");
    let volume = |claim: Value| {
        volume_of("v", "1Gi", move |v| {
            v["spec"]["storageClassName"] = "late".into();
            v["spec"]["claimRef"] = claim;
        })
    };
    for (selected, meant, expected) in [
        (None, Value::Null, None),
        (Some("n1"), Value::Null, None),
        (None, meant_for("c", ""), Some("v")),
        (Some("n1"), meant_for("c", "uid-c"), Some("v")),
    ] {
        let claim = claim_of("c", "1Gi", |c| {
            c["spec"]["storageClassName"] = "late".into();
            if let Some(node) = selected {
                c["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node.into();
            }
        });
        let objects =
            [claim, volume(meant.clone()), late.clone(), node("n1", "a"), pod("p", "n1", "c")];
        assert_eq!(bound_to(&objects).as_deref(), expected, "{selected:?} {meant}");
    }
}

#[test]
fn binder_assigns_the_default_class_later() {
    let claim = claim_of("c", "1Gi", |c| {
        c["spec"].as_object_mut().unwrap().remove("storageClassName");
    });
    let default = |name: &str, time: &str| {
        let mut class = class(name, "Immediate", "csi.example.com");
        class["metadata"]["creationTimestamp"] = time.into();
        class["metadata"]["annotations"] =
            json!({"storageclass.kubernetes.io/is-default-class": "true"});
        class
    };
    let objects = [
        claim,
        default("older", "2026-01-01T00:00:00Z"),
        default("newer", "2026-01-02T00:00:00Z"),
        default("next", "2026-01-02T00:00:00Z"),
    ];
    assert_eq!(next(&objects).0, Some(ClaimStep::Class("newer".into())));
}
