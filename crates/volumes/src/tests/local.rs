//! Local persistent volumes: directories, disks with a file system, and disks as they are.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};
use serde_json::{Value, json};

use super::read;
use super::world::{Disk, World, pod_with};

const VOLUME: &str = "pods/u1/volumes/kubernetes.io~local-volume/pv-a";

fn local(path: &Path, more: &Value) -> Value {
    let mut spec = json!({"local": {"path": path}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

#[tokio::test]
async fn local_directory_is_bind_mounted_with_fs_group_as_root() {
    let mut world = World::start().await;
    let file = world.root.write("data/sub/file", "x");
    world.claim("a", local(&world.root.join("data"), &json!({"mountOptions": ["noexec"]})));
    let pod = pod_with("u1", &["a"], json!({"fsGroup": 1234}));
    let mounted = world.mount(&pod).await.unwrap()["a"].clone();
    assert_eq!(mounted.path, world.node(VOLUME));
    assert!(mounted.relabel, "its files take the label of the containers");
    assert_eq!(read(mounted.path.join("sub/file")), "x");
    assert!(statvfs(&mounted.path).unwrap().flags().contains(FsFlags::ST_NOEXEC));
    let stat = fs::metadata(&file).unwrap();
    assert_eq!((stat.gid(), stat.mode() & 0o660), (1234, 0o660));
    assert_eq!(fs::metadata(world.root.join("data/sub")).unwrap().mode() & 0o7777, 0o2775);

    // Existing mounts are kept after restarts of the pod and the daemon.
    world.restart();
    assert_eq!(world.mount(&pod).await.unwrap()["a"], mounted);
    assert_eq!(world.mounted().len(), 1);
    assert_eq!(world.users().len(), 1);

    world.restart();
    world.remove("u1").await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    world.assert_clean();
}

#[tokio::test]
async fn local_volume_read_only_as_root() {
    let world = World::start().await;
    let file = world.root.write("data/file", "x");
    world.claim("a", local(&world.root.join("data"), &json!({})));
    let mut pod = serde_json::to_value(pod_with("u1", &["a"], json!({"fsGroup": 1234}))).unwrap();
    pod["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    let mounted = world.mount(&serde_json::from_value(pod).unwrap()).await.unwrap()["a"].clone();
    assert!(mounted.read_only && !mounted.relabel);
    assert!(fs::write(mounted.path.join("file"), "y").is_err());
    assert_ne!(fs::metadata(file).unwrap().gid(), 1234);
    world.remove("u1").await;
    world.assert_clean();
}

#[tokio::test]
async fn local_volume_errors_leave_nothing_mounted_as_root() {
    let world = World::start().await;
    let file = world.root.write("file", "x");
    let missing = world.root.join("missing");
    for (source, operation, expected) in [
        (
            local(&missing, &json!({})),
            "NewMounter initialization",
            format!("path {missing:?} does not exist"),
        ),
        (
            local(&file, &json!({})),
            "NewMounter initialization",
            "only directory and block device are supported".to_owned(),
        ),
        (
            local(Path::new("/tmp/../etc"), &json!({})),
            "SetUp",
            "invalid path: /tmp/../etc must not contain '..'".to_owned(),
        ),
        (
            local(world.root.path(), &json!({"mountOptions": ["data=x"]})),
            "SetUp",
            "mount option \"data=x\" cannot be applied to a bind mount".to_owned(),
        ),
    ] {
        world.claim("a", source);
        let error = world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap_err();
        assert_eq!(
            error,
            format!("MountVolume.{operation} failed for volume \"pv-a\" : {expected}")
        );
    }
    world.remove("u1").await;
    world.assert_clean();
}

#[tokio::test]
async fn local_disk_is_formatted_once_and_mounted_for_all_pods_as_root() {
    let mut world = World::start().await;
    let disk = Disk::new(&world.root.join("disk"));
    world.claim("a", local(&disk.device, &json!({})));
    let [one, two] = ["u1", "u2"].map(|uid| pod_with(uid, &["a"], json!({"fsGroup": 1234})));
    let (first, second) = tokio::join!(world.mount(&one), world.mount(&two));
    fs::write(first.unwrap()["a"].path.join("file"), "kept").unwrap();
    assert_eq!(read(second.unwrap()["a"].path.join("file")), "kept");
    let global = "plugins/kubernetes.io/local-volume/mounts/pv-a";
    assert!(world.mounted().contains(global), "{:?}", world.mounted());
    assert_eq!(world.mounted().len(), 3);

    world.remove("u1").await;
    world.restart();
    assert_eq!(world.mounted().len(), 2);
    world.remove("u2").await;
    world.assert_clean();

    // What was on it stays there.
    let again = world.mount(&one).await.unwrap();
    assert_eq!(read(again["a"].path.join("file")), "kept");
    world.remove("u1").await;
    world.assert_clean();
}

#[tokio::test]
async fn local_block_volume_is_linked_bound_and_held_open_as_root() {
    let mut world = World::start().await;
    let disk = Disk::new(&world.root.join("disk"));
    world.claim("a", local(&disk.device, &json!({"volumeMode": "Block"})));
    let [one, two] = ["u1", "u2"].map(|uid| pod_with(uid, &["a"], json!({})));
    let mounted = world.mount(&one).await.unwrap()["a"].clone();
    let link = world.node("pods/u1/volumeDevices/kubernetes.io~local-volume/pv-a");
    assert_eq!(mounted.device.as_ref(), Some(&link));
    assert_eq!(fs::read_link(&link).unwrap(), disk.device);
    let bound = "plugins/kubernetes.io~local-volume/volumeDevices/pv-a/u1";
    assert!(world.mounted().contains(bound), "{:?}", world.mounted());
    let held = || {
        fs::read_dir("/sys/block").unwrap().any(|device| {
            let file = device.unwrap().path().join("loop/backing_file");
            fs::read_to_string(file)
                .is_ok_and(|file| file.trim() == world.node(bound).to_str().unwrap())
        })
    };
    assert!(held());
    let succeeded = "MapVolume.MapPodDevice succeeded for volume \"pv-a\"";
    let global = world.node("plugins/kubernetes.io~local-volume/volumeDevices/pv-a");
    let expected = [
        format!("{succeeded} globalMapPath {global:?}"),
        format!("{succeeded} volumeMapPath {:?}", link.parent().unwrap()),
    ];
    let events = world.events("SuccessfulMountVolume", 2).await;
    assert_eq!(events, expected.map(|message| ("Pod".to_owned(), message)));
    world.mount(&two).await.unwrap();
    assert_eq!(world.mount(&one).await.unwrap()["a"], mounted);
    assert_eq!(world.events("SuccessfulMountVolume", 4).await.len(), 4, "two for each pod");
    world.remove("u1").await;
    assert!(!held());
    assert_eq!(world.mounted().len(), 1);
    world.restart();
    world.remove("u2").await;
    world.assert_clean();
}

#[tokio::test]
async fn local_disk_of_another_format_is_an_event_of_its_volume_as_root() {
    let world = World::start().await;
    let disk = Disk::new(&world.root.join("disk"));
    world.tool("blkid", "echo TYPE=xfs");
    world.tool("fsck", "exit 0");
    world.tool("mount", "echo wrong fs type; exit 32");
    world.claim("a", local(&disk.device, &json!({})));
    let error = world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap_err();
    let why = "failed to mount the volume as \"ext4\", it already contains xfs. Mount error: ";
    assert!(error.contains(why), "{error}");
    let events = world.events("FailedMountOnFilesystemMismatch", 1).await;
    let [(kind, message)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(kind, "PersistentVolume");
    assert!(
        message.starts_with(&format!("MountVolume failed for volume \"pv-a\" {why}")),
        "{message}"
    );
    world.remove("u1").await;
    world.assert_clean();
}

#[tokio::test]
async fn local_volume_node_affinity_mismatch() {
    let mut world = World::start().await;
    let required = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]},
    ]}]});
    let affinity = json!({"nodeAffinity": {"required": required}});
    world.claim("a", local(world.root.path(), &affinity));
    let node = json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}}});
    let node = std::sync::Arc::new(serde_json::from_value(node).unwrap());
    let (_known, node) = tokio::sync::watch::channel(Some(node));
    world.set_node(node);
    let error = world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap_err();
    assert_eq!(
        error,
        "MountVolume.NodeAffinity check failed for volume \"pv-a\" : no matching NodeSelectorTerms"
    );
}

#[tokio::test]
async fn local_volumes_below_a_symlinked_root_directory_as_root() {
    let mut world = World::start_behind_links().await;
    world.root.write("data/file", "x");
    let disks = ["disk-b", "disk-c"].map(|name| Disk::new(&world.root.join(name)));
    world.claim("a", local(&world.root.join("data"), &json!({})));
    world.claim("b", local(&disks[0].device, &json!({})));
    world.claim("c", local(&disks[1].device, &json!({"volumeMode": "Block"})));
    let pods = ["u1", "u2"].map(|uid| pod_with(uid, &["a", "b", "c"], json!({})));
    for pod in &pods {
        world.mount(pod).await.unwrap();
    }
    let mounts = world.root.mounts();
    for pod in &pods {
        world.restart();
        world.mount(pod).await.unwrap();
    }
    assert_eq!(world.root.mounts(), mounts, "all stands");
    for uid in ["u1", "u2"] {
        world.remove(uid).await;
    }
    assert_eq!(world.root.mounts(), Vec::<std::path::PathBuf>::new());
    world.assert_clean();
}

/// The file system of a device grows with its PersistentVolume; a directory has no size of its own.
#[tokio::test]
async fn local_volume_is_expanded_as_root() {
    let world = World::start().await;
    let file = world.root.join("disk");
    let disk = Disk::new(&file);
    world.root.write("data/file", "x");
    let pod = pod_with("u1", &["a", "b"], json!({}));
    let sources =
        [disk.device.clone(), world.root.join("data")].map(|path| local(&path, &json!({})));
    for (name, source) in ["a", "b"].iter().zip(&sources) {
        world.claim(name, source.clone());
    }
    let path = world.mount(&pod).await.unwrap()["a"].path.clone();
    let size = || statvfs(&path).unwrap().blocks();
    let before = size();
    disk.grow(&file, 64 << 20);
    for (name, source) in ["a", "b"].iter().zip(sources) {
        world.enlarge(name, source, ["16Mi", "64Mi"]);
    }
    let can_resize = world.can_resize();
    world.mount(&pod).await.unwrap();
    match can_resize {
        true => assert!(size() > 3 * before, "{} after {before}", size()),
        false => assert_eq!(read(world.root.join("resized")).trim(), disk.device.to_str().unwrap()),
    }
    assert_eq!([world.claim_size("a"), world.claim_size("b")], ["64Mi", "64Mi"]);
    world.remove("u1").await;
    world.assert_clean();
}
