//! Volumes given to a group.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::ownership::{Change, Ownership};
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_client::objects::fake::FakeApi;
use serde_json::json;

use super::{Done, Root, pod};

const GROUP: u32 = 4321;

fn give(root: &Path, on_root_mismatch: bool, read_only: bool) {
    Ownership::new(GROUP, read_only, on_root_mismatch).apply_blocking(root).unwrap();
}

fn of(path: &Path) -> (u32, u32) {
    let stat = fs::symlink_metadata(path).unwrap();
    (stat.gid(), stat.mode() & 0o7777)
}

fn with_mode(root: &Root, path: &str, mode: u32) {
    let path = root.write(path, "x");
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn fs_group_adds_permissions_by_file_type_as_root() {
    let root = Root::new();
    let outside = root.write("outside", "x");
    let before = of(&outside);
    for (name, mode) in [("plain", 0o600), ("open", 0o777), ("program", 0o4755), ("none", 0)] {
        with_mode(&root, &format!("volume/dir/deep/{name}"), mode);
    }
    symlink(&outside, root.join("volume/dir/link")).unwrap();
    symlink(root.join("nowhere"), root.join("volume/dangling")).unwrap();
    fs::set_permissions(root.join("volume/dir"), Permissions::from_mode(0o700)).unwrap();
    give(&root.join("volume"), false, false);
    for (path, expected) in [
        ("volume", 0o2775),
        ("volume/dir", 0o2770),
        ("volume/dir/deep", 0o2775),
        ("volume/dir/deep/plain", 0o660),
        ("volume/dir/deep/open", 0o777),
        ("volume/dir/deep/program", 0o4775),
        ("volume/dir/deep/none", 0o660),
        ("volume/dir/link", 0o777),
        ("volume/dangling", 0o777),
    ] {
        assert_eq!(of(&root.join(path)), (GROUP, expected), "{path}");
    }
    assert_eq!(of(&outside), before);
    // Once more there is nothing to change.
    let program = root.join("volume/dir/deep/program");
    let changed = fs::metadata(&program).unwrap().ctime_nsec();
    give(&root.join("volume"), false, false);
    assert_eq!(fs::metadata(&program).unwrap().ctime_nsec(), changed);
}

#[test]
fn fs_group_of_a_read_only_volume_as_root() {
    let root = Root::new();
    with_mode(&root, "volume/file", 0o400);
    give(&root.join("volume"), false, true);
    assert_eq!(of(&root.join("volume/file")), (GROUP, 0o440));
}

#[test]
fn fs_group_change_policy_on_root_mismatch_as_root() {
    let root = Root::new();
    with_mode(&root, "volume/file", 0o600);
    let volume = root.join("volume");
    std::os::unix::fs::chown(&volume, None, Some(GROUP)).unwrap();
    fs::set_permissions(&volume, Permissions::from_mode(0o2770)).unwrap();
    give(&volume, true, false);
    assert_eq!(of(&root.join("volume/file")).1, 0o600);
    // A root that lacks one bit is not right.
    fs::set_permissions(&volume, Permissions::from_mode(0o770)).unwrap();
    give(&volume, true, false);
    assert_eq!(of(&root.join("volume/file")), (GROUP, 0o660));
    assert_eq!(of(&volume), (GROUP, 0o2770));
    fs::set_permissions(root.join("volume/file"), Permissions::from_mode(0o600)).unwrap();
    give(&volume, false, false);
    assert_eq!(of(&root.join("volume/file")), (GROUP, 0o660));
}

#[test]
fn fs_group_of_wide_and_deep_trees_as_root() {
    let root = Root::new();
    let mut deep = root.join("volume");
    for _ in 0..300 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "x").unwrap();
    for number in 0..3000 {
        fs::create_dir(root.join("volume").join(format!("w{number}"))).unwrap();
    }
    let seen = AtomicU64::new(0);
    let change = Change { group: GROUP, files: 0o660, directories: 0o2770 };
    crate::ownership::walk(&root.join("volume"), change, 4, &seen).unwrap();
    assert_eq!(seen.into_inner(), 1 + 300 + 1 + 3000);
    assert_eq!(of(&deep.join("file")).0, GROUP);
}

#[test]
fn fs_group_does_not_follow_changing_links() {
    let root = Root::new();
    with_mode(&root, "outside/file", 0o600);
    for number in 0..50 {
        root.write(&format!("volume/dir/f{number}"), "x");
    }
    let (done, path) = (Arc::new(Done::default()), root.path().to_owned());
    let _stop = done.when_dropped();
    let (dir, file) = (path.join("volume/dir"), path.join("volume/dir/f1"));
    std::thread::scope(|scope| {
        let _stop = done.when_dropped();
        scope.spawn(|| {
            // A directory and a file are exchanged for links all the time.
            while !done.is_done() {
                let away = path.join("volume/away");
                let _ = fs::remove_file(&file);
                let _ = symlink(path.join("outside/file"), &file);
                let _ = fs::remove_file(&file);
                let _ = fs::write(&file, "x");
                let _ = fs::rename(&dir, &away);
                let _ = symlink(path.join("outside"), &dir);
                let _ = fs::remove_file(&dir);
                let _ = fs::rename(&away, &dir);
            }
        });
        for group in 0..300 {
            Ownership::new(GROUP + group, false, false)
                .apply_blocking(&path.join("volume"))
                .unwrap();
        }
    });
    let outside = fs::metadata(path.join("outside/file")).unwrap();
    assert_eq!(
        (outside.gid(), outside.mode() & 0o777),
        (fs::metadata(&path).unwrap().gid(), 0o600)
    );
}

#[tokio::test]
async fn fs_group_progress_is_recorded_as_event_as_root() {
    let (root, api) = (Root::new(), FakeApi::start().await);
    for number in 0..3000 {
        root.write(&format!("uid-1/volume/{number}"), "x");
    }
    let (recorder, _writing) = Recorder::start(Some(api.client()), "n1");
    let (pod_events, pod) = (PodEventRecorder::new(recorder), pod(json!({"containers": []})));
    let volume = root.join("uid-1/volume");
    let ownership = Ownership::new(GROUP, false, false);
    // At once, and then after each millisecond.
    let (first, then) = (Duration::ZERO, Duration::from_millis(1));
    ownership.apply_within(volume.clone(), &pod, &pod_events, first, then).await.unwrap();
    assert_eq!(of(&volume.join("7")).0, GROUP);
    let event_message = async || loop {
        let requests = api.requests();
        let event = requests
            .iter()
            .map(|(_, body)| body)
            .find(|body| body["reason"] == "VolumePermissionChangeInProgress");
        if let Some(event) = event {
            return event["message"].as_str().unwrap().to_owned();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let message = tokio::time::timeout(Duration::from_secs(10), event_message()).await.unwrap();
    let expected = "Setting volume ownership for uid-1/volume is taking longer than expected";
    assert!(message.starts_with(expected), "{message}");
}
