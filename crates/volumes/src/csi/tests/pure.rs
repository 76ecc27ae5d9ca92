//! Names, vol_data and policies, as plain values.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimStatus, SELinuxOptions};
use k8s_openapi::api::storage::v1::{CSIDriverSpec, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_csi::v1::volume_usage::Unit;
use longshore_csi::v1::{NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};
use longshore_generators::{NUMBERS, TIMES, hostile, text};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::attach::{AttachmentState, attachment_state};
use super::super::context::expiration;
use super::super::paths::{
    BlockVolumePaths, VolumePaths, attachment_name, device_name, inline_handle,
};
use super::super::policy::{EPHEMERAL, GroupPolicy, PERSISTENT, Policy};
use super::super::stats::from_response;
use super::super::vol_data::{FILE, VolData};
use crate::expansion::{StatusUpdate, Step, bytes, required_step};
use crate::selinux::file_label;
use crate::{Condition, VolumeStats};

fn policy(spec: Value) -> Policy {
    let spec: CSIDriverSpec = serde_json::from_value(spec).unwrap();
    Policy(Some(spec))
}

#[test]
fn csi_names_and_paths_match_upstream() {
    assert_eq!(
        attachment_name("vol-1", "csi.example.com", "n1"),
        "csi-7f0cbc9a847afb6d66cd7c8a07cd6430de4c5dec35de8924cff09a5c92d56128"
    );
    assert_eq!(
        inline_handle("uid-1", "data"),
        "csi-d6e418cffb6079f9b02d83af7dffbf3511ed5a26b3f106f1f3ca764ed6505c9c"
    );
    assert_eq!(device_name("csi.example.com", "vol-1"), "kubernetes.io/csi/csi.example.com^vol-1");
    let root = Path::new("/k");
    let staged = VolumePaths::staged(root, "csi.example.com", "vol-1");
    let hash = "d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49";
    let dir = format!("/k/plugins/kubernetes.io/csi/csi.example.com/{hash}");
    assert_eq!(staged.mount, Path::new(&dir).join("globalmount"));
    assert_eq!(
        VolumePaths::of_pod(root, "u", "pv").mount,
        Path::new("/k/pods/u/volumes/kubernetes.io~csi/pv/mount")
    );
    let block = BlockVolumePaths::new(root, "pv");
    let devices = Path::new("/k/plugins/kubernetes.io/csi/volumeDevices");
    assert_eq!(block.data, devices.join("pv/data"));
    assert_eq!(block.maps, devices.join("pv/dev"));
    assert_eq!(block.staging, devices.join("staging/pv"));
    assert_eq!(block.published, devices.join("publish/pv"));
}

#[test]
fn csi_vol_data_round_trip_and_upstream_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("volume");
    assert_eq!(VolData::read(&dir).unwrap(), None);
    let vol_data = VolData::new("d", "h").on_node("pv", "n1", "csi-1").in_mode(PERSISTENT);
    vol_data.clone().done(true).write(&dir).unwrap();
    let read = VolData::read(&dir).unwrap().unwrap();
    assert!(read.is_done() && !read.is_inline());
    assert_eq!(read.clone().done(false), vol_data);
    assert_eq!(read.volume(&dir).unwrap(), ("d", "h"));
    let text: BTreeMap<String, String> =
        serde_json::from_slice(&fs::read(dir.join(FILE)).unwrap()).unwrap();
    let fields = [
        "specVolID",
        "volumeHandle",
        "driverName",
        "nodeName",
        "attachmentID",
        "volumeLifecycleMode",
    ];
    let values = fields.map(|field| text[field].as_str());
    assert_eq!(values, ["pv", "h", "d", "n1", "csi-1", "Persistent"]);

    // As upstream writes it; and from an earlier boot.
    fs::write(
        dir.join(FILE),
        "{\"driverName\":\"d\",\"volumeHandle\":\"h\",\"volumeLifecycleMode\":\"Ephemeral\"}\n",
    )
    .unwrap();
    let read = VolData::read(&dir).unwrap().unwrap();
    assert!(!read.is_done() && read.is_inline());
    fs::write(dir.join(FILE), "{\"driverName\":\"d\",\"doneInBoot\":\"an earlier one\"}").unwrap();
    let read = VolData::read(&dir).unwrap().unwrap();
    assert!(!read.is_done());
    assert!(read.volume(&dir).unwrap_err().to_string().contains("no driver name or volume handle"));

    for bad in ["", "[]", "{\"driverName\": 1}"] {
        fs::write(dir.join(FILE), bad).unwrap();
        let error = VolData::read(&dir).unwrap_err().to_string();
        assert!(error.contains(FILE), "{error}");
    }
    fs::write(dir.join("vol_data.tmp"), "half").unwrap();
    VolData::remove(&dir).unwrap();
    assert!(!dir.exists());
    VolData::remove(&dir).unwrap();
}

#[test]
fn csi_driver_lifecycle_modes_are_checked() {
    let none = Policy::default();
    let silent = policy(json!({}));
    let both = policy(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
    let inline = policy(json!({"volumeLifecycleModes": ["Ephemeral"]}));
    for (policy, mode, error) in [
        (&none, PERSISTENT, None),
        (
            &none,
            EPHEMERAL,
            Some("volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"),
        ),
        (&silent, PERSISTENT, None),
        (
            &silent,
            EPHEMERAL,
            Some(
                "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])",
            ),
        ),
        (&both, PERSISTENT, None),
        (&both, EPHEMERAL, None),
        (
            &inline,
            PERSISTENT,
            Some(
                "volume mode \"Persistent\" not supported by driver d (only supports [\"Ephemeral\"])",
            ),
        ),
    ] {
        let found = policy.check(mode, "d").err().map(|error| error.to_string());
        assert_eq!(found.as_deref(), error);
    }
}

#[test]
fn csi_driver_defaults_match_upstream() {
    let none = Policy::default();
    assert!(
        none.attach_required()
            && !none.pod_info_on_mount()
            && !none.requires_republish()
            && !none.se_linux_mount()
    );
    assert!(none.tokens().is_empty() && !none.tokens_are_secret());
    assert_eq!(none.group(), GroupPolicy::ReadWriteOnceWithFsType);
    let all = policy(json!({
        "attachRequired": false, "podInfoOnMount": true, "requiresRepublish": true,
        "seLinuxMount": true, "fsGroupPolicy": "File", "serviceAccountTokenInSecrets": true,
        "tokenRequests": [{"audience": "a"}],
    }));
    assert!(
        !all.attach_required()
            && all.pod_info_on_mount()
            && all.requires_republish()
            && all.se_linux_mount()
    );
    assert!(all.tokens().len() == 1 && all.tokens_are_secret());
    assert_eq!(all.group(), GroupPolicy::File);
    assert_eq!(policy(json!({"fsGroupPolicy": "None"})).group(), GroupPolicy::None);
}

#[test]
fn csi_attachment_state() {
    let attached = AttachmentState::Attached([("path".to_owned(), "/dev/x".to_owned())].into());
    for (fields, expected) in [
        (json!({}), AttachmentState::NotAttached),
        (json!({"status": {"attached": false}}), AttachmentState::NotAttached),
        (json!({"status": {"attached": true}}), AttachmentState::Attached(BTreeMap::new())),
        (json!({"status": {"attached": true, "attachmentMetadata": {"path": "/dev/x"}}}), attached),
        (
            json!({"status": {"attached": false, "attachError": {"message": "no slot"}}}),
            AttachmentState::Failed { reason: "no slot".to_owned(), exhausted: false },
        ),
        (
            json!({"status": {"attached": false, "attachError": {"message": "full", "errorCode": 8}}}),
            AttachmentState::Failed { reason: "full".to_owned(), exhausted: true },
        ),
        (
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"attached": true}}),
            AttachmentState::Failed {
                reason: "volume attachment is being deleted".to_owned(),
                exhausted: false,
            },
        ),
    ] {
        let mut object = json!({
            "metadata": {},
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
        });
        json_patch::merge(&mut object, &fields);
        let attachment: VolumeAttachment = serde_json::from_value(object).unwrap();
        assert_eq!(attachment_state(&attachment), expected, "{fields}");
    }
}

#[test]
fn csi_expansion_required_step() {
    let expand = |size: &str, updates_all| Step::Expand {
        size: Quantity(size.to_owned()),
        status_update: if updates_all { StatusUpdate::Full } else { StatusUpdate::FinalOnly },
    };
    for (status, expected) in [
        (json!({"capacity": {"storage": "2Gi"}}), Step::None),
        (json!({"capacity": {"storage": "1Gi"}}), expand("2Gi", false)),
        (json!({}), expand("2Gi", false)),
        (
            json!({
                "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "1536Mi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            }),
            expand("1536Mi", true),
        ),
        (
            json!({"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}),
            expand("2Gi", true),
        ),
        (
            json!({"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}),
            Step::None,
        ),
        (
            json!({"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}),
            Step::None,
        ),
        (
            json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}}),
            Step::None,
        ),
    ] {
        let parsed: PersistentVolumeClaimStatus = serde_json::from_value(status.clone()).unwrap();
        assert_eq!(required_step(&parsed, &Quantity("2Gi".to_owned()), None), expected, "{status}");
    }
    // Another node has the volume too, and has updated the claim.
    let reported: PersistentVolumeClaimStatus =
        serde_json::from_value(json!({"capacity": {"storage": "2Gi"}})).unwrap();
    let capacity = Quantity("2Gi".to_owned());
    for (node_size, status_update) in [("1Gi", Some(StatusUpdate::Nothing)), ("2Gi", None)] {
        let node_size = bytes(&Quantity(node_size.to_owned()));
        let expected = match status_update {
            Some(status_update) => Step::Expand { size: capacity.clone(), status_update },
            None => Step::None,
        };
        assert_eq!(required_step(&reported, &capacity, Some(node_size)), expected);
    }
}

#[test]
fn selinux_file_label_has_the_requested_level() {
    let default = "system_u:object_r:container_file_t:s0";
    let options = |fields: Value| serde_json::from_value::<SELinuxOptions>(fields).unwrap();
    for (asked, label) in [
        (json!({"level": "s0:c1,c2"}), Some("system_u:object_r:container_file_t:s0:c1,c2")),
        (
            json!({"level": "s0:c1", "user": "u", "role": "r", "type": "t"}),
            Some("u:object_r:container_file_t:s0:c1"),
        ),
        (json!({"type": "t"}), None),
    ] {
        assert_eq!(file_label(&options(asked), default).as_deref(), label);
    }
    assert_eq!(file_label(&options(json!({"level": "s0"})), "odd"), None);
}

#[test]
fn csi_volume_stats_by_unit() {
    let usage = |unit: Unit, total, used, available| VolumeUsage {
        unit: unit.into(),
        total,
        used,
        available,
    };
    let reported = NodeGetVolumeStatsResponse {
        usage: vec![
            usage(Unit::Unknown, 1, 1, 1),
            usage(Unit::Bytes, 100, 40, 60),
            usage(Unit::Inodes, 10, -1, 9),
        ],
        volume_condition: Some(VolumeCondition { abnormal: true, message: "slow".to_owned() }),
    };
    let known = VolumeStats {
        capacity: 100,
        available: 60,
        used: 40,
        inodes: 10,
        inodes_free: 9,
        inodes_used: 0,
        condition: None,
    };
    assert_eq!(from_response(&reported, false), known);
    let condition = Some(Condition { abnormal: true, message: "slow".to_owned() });
    assert_eq!(from_response(&reported, true), VolumeStats { condition, ..known });
    let silent = NodeGetVolumeStatsResponse::default();
    assert_eq!(from_response(&silent, false), VolumeStats::default());
    let condition = Some(Condition::default());
    assert_eq!(from_response(&silent, true), VolumeStats { condition, ..VolumeStats::default() });
}

proptest! {
    #[test]
    fn token_expiration_accepts_any_text(token in ".*") {
        let _ = expiration(&token);
    }

    #[test]
    fn csi_staging_paths_are_unique(a in "[a-z/^]{1,8}", b in "[a-z/^]{1,8}") {
        let root = Path::new("/k");
        let same = VolumePaths::staged(root, "d", &a).dir == VolumePaths::staged(root, "d", &b).dir;
        prop_assert_eq!(same, a == b);
    }
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![4 => prop::sample::select(NUMBERS.to_vec()), 1 => any::<i64>()]
}

proptest! {
    /// Finding 1: volume stats of a driver.
    #[test]
    fn extremes_of_csi_volume_stats(
        usage in prop::collection::vec((-1..4_i32, number(), number(), number()), 0..6),
        condition in prop::option::of((any::<bool>(), text())),
        knows_condition: bool,
    ) {
        let usage = usage.into_iter().map(|(unit, total, used, available)| VolumeUsage {
            unit,
            total,
            used,
            available,
        });
        let condition =
            condition.map(|(abnormal, message)| VolumeCondition { abnormal, message });
        let reported =
            NodeGetVolumeStatsResponse { usage: usage.collect(), volume_condition: condition };
        let found = from_response(&reported, knows_condition);
        let amounts = [found.capacity, found.available, found.used];
        let inodes = [found.inodes, found.inodes_free, found.inodes_used];
        prop_assert!(amounts.iter().chain(&inodes).all(|amount| *amount <= i64::MAX as u64));
        prop_assert_eq!(found.condition.is_some(), knows_condition);
    }

    /// Finding 1: sizes of a claim and its volume, and the state of its resize.
    #[test]
    fn extremes_of_csi_expansion_steps(
        status in hostile(json!({
            "phase": "Bound", "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }), 4),
        capacity in text(),
        node_size in prop::option::of(prop_oneof![any::<i128>(), number().prop_map(i128::from)]),
    ) {
        let capacity = Quantity(capacity);
        let most = i128::from(i64::MAX) * 1000;
        prop_assert!((-most..=most).contains(&bytes(&capacity)));
        let Ok(status) = serde_json::from_value::<PersistentVolumeClaimStatus>(status) else {
            return Ok(());
        };
        let reported = status.capacity.as_ref().and_then(|amounts| amounts.get("storage"));
        let reported = reported.map_or(0, bytes);
        match required_step(&status, &capacity, node_size) {
            Step::Expand { size, status_update: StatusUpdate::Nothing } => {
                prop_assert!(node_size.is_some_and(|node_size| node_size < bytes(&size)));
            }
            Step::Expand { size, status_update } => {
                prop_assert!(reported < bytes(&capacity));
                prop_assert!(status_update == StatusUpdate::Full || size == capacity);
            }
            Step::None => {}
        }
    }

    /// Finding 1: VolumeAttachments.
    #[test]
    fn extremes_of_csi_attachment_state(object in hostile(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0},
        "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
        "status": {
            "attached": true, "attachmentMetadata": {"path": "/dev/x"},
            "attachError": {"time": "2026-01-01T00:00:00Z", "message": "no slot", "errorCode": 8},
            "detachError": {"time": "2026-01-01T00:00:00Z", "message": "busy", "errorCode": 9},
        },
    }), 6)) {
        let Ok(attachment) = serde_json::from_value::<VolumeAttachment>(object) else {
            return Ok(());
        };
        let is_leaving = attachment.metadata.deletion_timestamp.is_some();
        let status = attachment.status.as_ref();
        let attached = !is_leaving && status.is_some_and(|status| status.attached);
        prop_assert_eq!(matches!(attachment_state(&attachment), AttachmentState::Attached(_)), attached);
    }

    /// Finding 1: expiration of tokens.
    #[test]
    fn extremes_of_token_expiration(
        claims in prop_oneof![
            hostile(json!({"exp": 1_700_000_000, "iat": 0, "aud": ["a"]}), 2),
            hostile(json!({"exp": 1.5}), 1),
            prop::sample::select(TIMES.to_vec()).prop_map(|time| json!({"exp": time})),
            text().prop_map(|text| json!({"exp": text})),
        ],
        (first, last) in (text(), text()),
        parts in 0..4_usize,
    ) {
        let encoded = URL_SAFE_NO_PAD.encode(claims.to_string());
        let token = [first.as_str(), &encoded, &last][..parts.min(3)].join(".");
        let ends = expiration(&token);
        let said = claims["exp"].as_i64();
        prop_assert!(ends.is_none_or(|end| Some(end.as_second()) == said || first.contains('.')));
        let _ = expiration(&first);
    }

    /// Finding 1: CSIDriver specs.
    #[test]
    fn extremes_of_csi_driver_specs(
        spec in hostile(json!({
            "attachRequired": true, "podInfoOnMount": true, "requiresRepublish": true,
            "seLinuxMount": true, "storageCapacity": true, "fsGroupPolicy": "File",
            "serviceAccountTokenInSecrets": true, "nodeAllocatableUpdatePeriodSeconds": 60,
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
            "tokenRequests": [{"audience": "a", "expirationSeconds": 3600}],
        }), 6),
        driver in text(),
    ) {
        let Ok(spec) = serde_json::from_value::<CSIDriverSpec>(spec) else { return Ok(()) };
        let seconds = spec.node_allocatable_update_period_seconds;
        let policy = Policy(Some(spec));
        prop_assert_eq!(policy.updates_allocatable(), seconds.is_some_and(|seconds| seconds > 0));
        prop_assert!(policy.tokens().len() <= 64);
        policy.group();
        let _ = (policy.attach_required(), policy.pod_info_on_mount(), policy.requires_republish());
        let _ = (policy.se_linux_mount(), policy.tokens_are_secret());
        for mode in [PERSISTENT, EPHEMERAL] {
            if let Err(error) = policy.check(mode, &driver) {
                prop_assert!(error.to_string().contains(mode));
            }
        }
    }

    /// Finding 1: the content of vol_data.json.
    #[test]
    fn extremes_of_csi_vol_data(
        vol_data in prop_oneof![
            4 => hostile(json!({
                "driverName": "d", "volumeHandle": "h", "volumeLifecycleMode": "Ephemeral",
                "specVolID": "pv", "nodeName": "n", "attachmentID": "csi-1", "doneInBoot": "b",
            }), 4).prop_map(|vol_data| vol_data.to_string().into_bytes()),
            1 => text().prop_map(String::into_bytes),
            1 => prop::collection::vec(any::<u8>(), 0..64),
            1 => (1..2000_usize).prop_map(|depth| "[".repeat(depth).into_bytes()),
        ],
    ) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::write(dir.path().join(FILE), &vol_data).unwrap();
        match VolData::read(dir.path()) {
            Ok(None) => prop_assert!(false, "it is there"),
            Ok(Some(read)) => {
                let _ = (read.volume(dir.path()), read.is_inline(), read.is_done());
                let done = read.done(true);
                done.write(dir.path()).unwrap();
                prop_assert!(done.is_done());
                prop_assert_eq!(VolData::read(dir.path()).unwrap(), Some(done));
            }
            Err(error) => prop_assert!(error.to_string().len() <= vol_data.len() + 1024),
        }
    }

    /// Finding 1: paths of any volume handle are valid.
    #[test]
    fn extremes_of_csi_volume_handles(handle in text(), (uid, node) in (text(), text())) {
        let root = Path::new("/k");
        let paths = VolumePaths::staged(root, "d", &handle);
        prop_assert_eq!(paths.dir.parent(), Some(Path::new("/k/plugins/kubernetes.io/csi/d")));
        for name in [inline_handle(&uid, &handle), attachment_name(&handle, "d", &node)] {
            prop_assert_eq!(name.len(), "csi-".len() + 64);
        }
        prop_assert_eq!(paths.mount.parent(), Some(&*paths.dir));
        prop_assert!(device_name("d", &handle).ends_with(&handle));
    }
}
