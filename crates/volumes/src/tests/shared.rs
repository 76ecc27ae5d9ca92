//! The node's root directory as a shared mount, and mounts of pods that another daemon has covered.

use std::fs;

use nix::mount::{MsFlags, mount};
use serde_json::json;

use super::world::World;
use super::{Root, bind, pod, read};
use crate::error::Error;
use crate::host::mounts::Table;
use crate::share_root;

const NONE: Option<&str> = None;

#[test]
fn root_directory_becomes_a_shared_mount_as_root() {
    let root = Root::new();
    // A file system of its own, as the machine's may be shared.
    let disk = root.join("disk");
    fs::create_dir(&disk).unwrap();
    mount(Some("tmpfs"), &disk, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
    mount(NONE, &disk, NONE, MsFlags::MS_PRIVATE, NONE).unwrap();
    let node = disk.join("node");
    let [outer, inner] = ["pods/u1/volume", "pods/u1/volume/in"].map(|path| node.join(path));
    for path in [&outer, &inner] {
        fs::create_dir_all(path).unwrap();
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
        fs::write(path.join("file"), "data").unwrap();
    }
    share_root(&node).unwrap();
    let table = Table::read().unwrap();
    for path in [&node, &outer, &inner] {
        assert!(table.has(path) && table.is_shared(path), "{path:?}");
    }
    for path in [&outer, &inner] {
        assert_eq!(read(path.join("file")), "data");
    }
    assert_eq!(table.hidden(&disk), Vec::<std::path::PathBuf>::new());
    assert_eq!(table.below(&node).len(), 3);
    share_root(&node).unwrap();
    assert_eq!(Table::read().unwrap().below(&node).len(), 3, "a later start changes nothing");

    for path in [&inner, &outer] {
        crate::remove::unmount(path).unwrap();
        fs::remove_file(path.join("file")).unwrap_err();
        fs::remove_dir(path).unwrap();
    }
    assert_eq!(Table::read().unwrap().below(&node).len(), 1);
}

#[test]
fn root_directory_that_is_a_mount_is_shared_as_it_is_as_root() {
    let root = Root::new();
    let node = root.join("node");
    fs::create_dir(&node).unwrap();
    mount(Some("tmpfs"), &node, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
    mount(NONE, &node, NONE, MsFlags::MS_PRIVATE, NONE).unwrap();
    share_root(&node).unwrap();
    let table = Table::read().unwrap();
    assert!(table.is_shared(&node));
    assert_eq!(table.below(&node).len(), 1);
}

/// A daemon that took over has bound the root directory over the mounts of our pods.
#[tokio::test]
async fn covered_mounts_are_named_and_keep_no_pod_as_root() {
    let world = World::start().await;
    let pod = pod(json!({
        "containers": [{"name": "c", "volumeMounts": [
            {"name": "shm", "mountPath": "/shm"}, {"name": "disk", "mountPath": "/disk"},
        ]}],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "disk", "emptyDir": {}},
        ],
    }));
    world.mount(&pod).await.unwrap();
    let [shm, disk] = ["shm", "disk"]
        .map(|v| world.node(&format!("pods/uid-1/volumes/kubernetes.io~empty-dir/{v}")));
    assert!(disk.is_dir());
    bind(&world.node(""), &world.node(""));
    for _ in 0..2 {
        let error = world.volumes.unmount("uid-1").await.unwrap_err();
        assert!(matches!(&error, Error::Hidden(paths) if *paths == [shm.clone()]), "{error}");
        let text = format!("cannot unmount {}: another mount covers", shm.display());
        assert!(error.to_string().starts_with(&text), "{error}");
        assert!(!disk.exists(), "the rest is taken down");
    }
    let error = world.volumes.remove_pod("uid-1").await.unwrap_err();
    assert!(matches!(error, Error::Hidden(_)), "{error}");
    crate::remove::unmount(&world.node("")).unwrap();
    world.volumes.remove_pod("uid-1").await.unwrap();
    assert!(!world.node("pods/uid-1").exists());
}
