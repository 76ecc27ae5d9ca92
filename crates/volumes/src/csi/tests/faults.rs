//! Drivers that fail, hang or are unavailable; daemons that are killed.

use std::fs;
use std::time::Duration;

use longshore_csi::Code;
use longshore_testkit::csi::CsiOptions;
use longshore_testkit::fakecri::Fault;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::super::paths::attachment_name;
use super::super::recover;
use super::world::{DRIVER, World, pod, unattached, until, user};

fn failure(code: Code) -> Fault {
    Fault::Error(code, "as you asked".to_owned())
}

async fn world() -> World {
    let world = World::start(CsiOptions::new(DRIVER), unattached()).await;
    world.volume("pv", json!({}));
    world
}

#[tokio::test]
async fn csi_final_errors_clean_up_and_uncertain_ones_keep_vol_data_as_root() {
    let world = world().await;
    let pod = user("u1", "pv");
    let vol_data = |path: &str| world.root.join("node").join(path).join("vol_data.json").exists();
    let published = "pods/u1/volumes/kubernetes.io~csi/pv";
    for (method, operation) in
        [("NodeStageVolume", "MountVolume.MountDevice"), ("NodePublishVolume", "MountVolume.SetUp")]
    {
        for (code, kept) in [(Code::Internal, false), (Code::Aborted, true)] {
            world.driver.inject(method, failure(code));
            let error = world.mount(&pod).await.unwrap_err();
            let expected = format!(
                "{operation} failed for volume \"pv\" : csi.example.com: {method}: rpc error: code = {code:?} desc = as you asked"
            );
            assert_eq!(error, expected);
            // The pod's vol_data.json is kept for staged volumes, so that teardown unstages them.
            let staged = method == "NodePublishVolume";
            assert_eq!(vol_data(published), kept || staged, "{method} {code:?}");
        }
        world.driver.release(method);
    }
    world.mount(&pod).await.unwrap();
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_unstage_after_failed_pod_start_as_root() {
    for (method, code) in [
        ("NodePublishVolume", Code::Internal),
        ("NodePublishVolume", Code::DeadlineExceeded),
        ("NodeStageVolume", Code::Internal),
        ("NodeStageVolume", Code::Aborted),
    ] {
        let world = world().await;
        let pod = user("u1", "pv");
        world.driver.inject(method, failure(code));
        world.mount(&pod).await.unwrap_err();
        world.remove(&pod).await.unwrap();
        world.wait_clean().await;
        let uncertain = code != Code::Internal;
        let expected = usize::from(method == "NodePublishVolume" || uncertain);
        assert_eq!(world.driver.count("NodeUnstageVolume"), expected, "{method} {code:?}");
    }
}

#[tokio::test]
async fn csi_unpublish_waits_for_driver_to_return_as_root() {
    let mut world = world().await;
    let pod = user("u1", "pv");
    let path = world.mount(&pod).await.unwrap()["data"].path.clone();
    fs::write(path.join("file"), "kept").unwrap();
    world.driver.withdraw().unwrap();
    world.wait_registered(false).await;
    let error = world.remove(&pod).await.unwrap_err();
    assert!(
        error.contains("csi.example.com not found in the list of registered CSI drivers"),
        "{error}"
    );
    assert!(path.join("file").exists(), "nothing of it is touched meanwhile");
    world.driver.announce().unwrap();
    world.wait_registered(true).await;
    world.driver.inject("NodeUnpublishVolume", failure(Code::Internal));
    assert!(world.remove(&pod).await.is_err());
    assert!(path.join("file").exists());
    world.driver.release("NodeUnpublishVolume");
    // Unstaging is retried in the background.
    world.driver.inject("NodeUnstageVolume", failure(Code::Internal));
    world.remove(&pod).await.unwrap();
    until("it is tried to unstage it", || world.driver.count("NodeUnstageVolume") > 0).await;
    assert!(!world.root.join("node/pods/u1").exists());
    world.driver.release("NodeUnstageVolume");
    world.wait_clean().await;
    assert!(world.root.join("driver/volumes/handle-of-pv/file").exists());
}

#[tokio::test]
async fn csi_volume_is_restaged_after_failed_unstage_as_root() {
    let world = world().await;
    let (one, two) = (user("u1", "pv"), user("u2", "pv"));
    world.mount(&one).await.unwrap();
    world.driver.inject("NodeUnstageVolume", failure(Code::Internal));
    world.remove(&one).await.unwrap();
    until("it is tried to unstage it", || world.driver.count("NodeUnstageVolume") > 0).await;
    world.mount(&two).await.unwrap();
    assert_eq!(world.driver.count("NodeStageVolume"), 2, "it may be half unstaged");
    world.driver.release("NodeUnstageVolume");
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(world.driver.count("NodeUnstageVolume"), 1, "it is in use");
    world.remove(&two).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_unstage_ignores_pods_waiting_for_attach_as_root() {
    let world = World::start(CsiOptions::new(DRIVER), Value::Null).await;
    world.volume("pv", json!({}));
    let attachment = attachment_name("handle-of-pv", DRIVER, "n1");
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{attachment}");
    let say = |status: Value| {
        let source = json!({"persistentVolumeName": "pv"});
        let spec = json!({"attacher": DRIVER, "nodeName": "n1", "source": source});
        world.api.put(&path, json!({"spec": spec, "status": status}));
    };
    let (one, two) = (user("u1", "pv"), user("u2", "pv"));
    say(json!({"attached": true}));
    world.mount(&one).await.unwrap();
    say(json!({"attached": false, "attachError": {"message": "no slot is free"}}));
    world.mount(&two).await.unwrap_err();
    world.remove(&one).await.unwrap();
    world.remove(&two).await.unwrap();
    world.wait_clean().await;
    assert_eq!(world.driver.volume_log().staged, [].into());
}

#[tokio::test]
async fn csi_volume_of_several_claims_is_unstaged_after_the_last_as_root() {
    let world = world().await;
    world.volume("twin", json!({"csi": {"volumeHandle": "handle-of-pv"}}));
    let claims = ["pv", "twin"]
        .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    let pod = pod("u1", json!(claims), Value::Null);
    world.mount(&pod).await.unwrap();
    world.remove(&pod).await.unwrap();
    world.wait_calls(&["Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage"]).await;
    assert_eq!(world.driver.volume_log().out_of_order, Vec::<String>::new());
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_calls_are_serialized_per_volume_as_root() {
    let policy = json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true});
    let world = World::start(CsiOptions::new(DRIVER), policy).await;
    let pod = pod("u1", json!([{"name": "scratch", "csi": {"driver": DRIVER}}]), Value::Null);
    world.driver.inject("NodePublishVolume", Fault::Hang);
    for _ in 0..2 {
        let given_up = timeout(Duration::from_millis(300), world.mount(&pod)).await;
        assert!(given_up.is_err(), "{given_up:?}");
    }
    world.driver.release("NodePublishVolume");
    world.mount(&pod).await.unwrap();
    assert_eq!(world.calls(), ["Publish"]);
    assert_eq!(world.driver.volume_log().out_of_order, Vec::<String>::new());
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_hanging_call_blocks_only_its_volume_as_root() {
    let world = world().await;
    world.volume("other", json!({}));
    let (stuck, well) = (user("u1", "pv"), user("u2", "other"));
    world.driver.inject("NodePublishVolume", Fault::Hang);
    assert!(timeout(Duration::from_millis(500), world.mount(&stuck)).await.is_err());
    let other = tokio::spawn({
        let volumes = world.volumes.clone();
        async move { volumes.mount(&well).await.map_err(|error| error.to_string()) }
    });
    // Its own call hangs as well, but it is not blocked by the first.
    until("the other is published", || world.driver.count("NodePublishVolume") == 2).await;
    world.driver.release("NodePublishVolume");
    other.await.unwrap().unwrap();
    world.mount(&stuck).await.unwrap();
    for pod in [stuck, user("u2", "other")] {
        world.remove(&pod).await.unwrap();
    }
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_restart_makes_no_calls_for_published_volumes_as_root() {
    let mut world = world().await;
    let pod = user("u1", "pv");
    world.mount(&pod).await.unwrap();
    world.restart();
    recover(&world.volumes.inner).await;
    world.mount(&pod).await.unwrap();
    assert_eq!(world.calls(), ["Stage", "Publish"]);
    // As upstream leaves it: an unknown state is published again.
    let dir = world.root.join("node/pods/u1/volumes/kubernetes.io~csi/pv");
    let vol_data = fs::read_to_string(dir.join("vol_data.json")).unwrap();
    let mut vol_data: Value = serde_json::from_str(&vol_data).unwrap();
    vol_data.as_object_mut().unwrap().remove("doneInBoot").unwrap();
    fs::write(dir.join("vol_data.json"), vol_data.to_string()).unwrap();
    world.restart();
    world.mount(&pod).await.unwrap();
    assert_eq!(world.calls(), ["Stage", "Publish", "Publish"]);
    world.restart();
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_crash_during_call_is_completed_or_undone_as_root() {
    for (method, fault) in [
        ("NodeStageVolume", Fault::Hang),
        ("NodeStageVolume", Fault::HangReply),
        ("NodePublishVolume", Fault::Hang),
        ("NodePublishVolume", Fault::HangReply),
    ] {
        for finish in [true, false] {
            let mut world = world().await;
            let pod = user("u1", "pv");
            world.driver.inject(method, fault.clone());
            // Tasks of this runtime are aborted with it, like a killed process.
            let daemon = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            let (volumes, begun) = (world.volumes.clone(), pod.clone());
            daemon.spawn(async move { volumes.mount(&begun).await.map(drop) });
            until("the call is made", || world.driver.count(method) == 1).await;
            let ended = move || daemon.shutdown_timeout(Duration::from_secs(10));
            tokio::task::spawn_blocking(ended).await.unwrap();
            world.restart();
            world.driver.release(method);
            recover(&world.volumes.inner).await;
            if finish {
                world.mount(&pod).await.unwrap();
                let path = world.root.join("node/pods/u1/volumes/kubernetes.io~csi/pv/mount/file");
                fs::write(path, "").unwrap();
            }
            world.remove(&pod).await.unwrap();
            world.wait_clean().await;
        }
    }
}

#[tokio::test]
async fn csi_restart_removes_directories_without_vol_data_as_root() {
    let mut world = world().await;
    world.volume("raw", json!({"volumeMode": "Block"}));
    let pods = [user("u1", "pv"), user("u2", "raw")];
    for pod in &pods {
        world.mount(pod).await.unwrap();
    }
    let staged = world.root.join("node/plugins/kubernetes.io/csi");
    let (mounts, devices) = (staged.join(DRIVER), staged.join("volumeDevices"));
    let paths = || {
        let found = |dir| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        found(&mounts).chain(found(&devices)).collect::<std::collections::BTreeSet<_>>()
    };
    let before = paths();
    for (dir, file) in [
        (mounts.join("a/globalmount"), None),
        (mounts.join("b"), Some("vol_data.tmp")),
        (mounts.join("c"), None),
        (devices.join("raw-2/data"), Some("vol_data.tmp")),
        (devices.join("raw-3/data"), None),
        (devices.join("raw-4"), None),
        (devices.join("staging/data"), None),
    ] {
        fs::create_dir_all(&dir).unwrap();
        if let Some(file) = file {
            fs::write(dir.join(file), "").unwrap();
        }
    }
    fs::create_dir_all(mounts.join("kept/globalmount")).unwrap();
    fs::write(mounts.join("kept/globalmount/data"), "of somebody").unwrap();
    world.restart();
    let kept = mounts.join("kept");
    assert_eq!(paths(), before.into_iter().chain([kept.clone()]).collect());
    assert!(kept.join("globalmount/data").exists() && devices.join("staging/data").exists());
    for dir in [kept, devices.join("staging/data")] {
        fs::remove_dir_all(dir).unwrap();
    }
    for pod in &pods {
        world.mount(pod).await.unwrap();
        world.remove(pod).await.unwrap();
    }
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_restarted_pod_keeps_volumes_in_use_as_root() {
    let world = world().await;
    world.volume("other", json!({}));
    let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let pod = pod("u1", json!([claim("other"), claim("pv")]), Value::Null);
    world.mount(&pod).await.unwrap();
    let uses = || {
        let in_use = world.volumes.devices().in_use();
        let in_use = in_use.borrow();
        in_use.users().values().filter(|uids| uids.contains("u1")).count()
    };
    assert_eq!(uses(), 2);
    // The teardown is cancelled: one volume is torn down, the other is in progress.
    world.driver.inject_times("NodeUnpublishVolume", Fault::Hang, 1);
    assert!(timeout(Duration::from_millis(300), world.remove(&pod)).await.is_err());
    until("one is left", || uses() == 1).await;
    let (volumes, begun) = (world.volumes.clone(), pod.clone());
    let begun = tokio::spawn(async move { volumes.mount(&begun).await.map(drop) });
    until("it is in volumesInUse again", || uses() == 2).await;
    world.driver.release("NodeUnpublishVolume");
    begun.await.unwrap().unwrap();
    assert_eq!(uses(), 2);
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}
