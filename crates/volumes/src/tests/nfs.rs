//! Directories of NFS servers, with helpers of the test's own that fail. (A real server is for
//! machines whose kernel knows NFS.)

use std::fs;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::timeout;

use super::read;
use super::world::World;

/// Shorter than what helpers leave behind, longer than any mount.
const LONG: Duration = Duration::from_secs(60);
const VOLUME: &str = "pods/u1/volumes/kubernetes.io~nfs/a";
/// A server on this machine: the export `host:/x` is the directory `x` beside the tool.
const BIND: &str =
    "for last; do :; done\nexec /bin/mount --bind \"${0%/bin/mount}/export\" \"$last\"";

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [], "volumes": [
            {"name": "a", "nfs": {"server": "fd00::1", "path": "/x", "readOnly": true}},
        ]},
    }))
    .unwrap()
}

#[tokio::test]
async fn nfs_helper_mounts_once_and_unmounts_with_the_pod_as_root() {
    let mut world = World::start().await;
    let file = world.root.write("export/file", "x");
    world.tool("mount.nfs", "exit 0");
    world.tool("mount", &format!("echo \"$@\" >>\"${{0%/bin/mount}}/asked\"\n{BIND}"));
    let mounted = world.mount(&pod()).await.unwrap()["a"].clone();
    assert_eq!((mounted.path.clone(), mounted.read_only), (world.node(VOLUME), true));
    assert_eq!(read(mounted.path.join("file")), "x");
    world.restart();
    assert_eq!(world.mount(&pod()).await.unwrap()["a"], mounted);
    let asked = format!("-t nfs -o ro -- [fd00::1]:/x {}\n", mounted.path.display());
    assert_eq!(read(world.root.join("asked")), asked);
    world.remove("u1").await;
    assert_eq!(read(file), "x");
    world.assert_clean();
}

#[tokio::test]
async fn nfs_helper_failure_or_timeout_is_reported_as_root() {
    let mut world = World::start().await;
    fs::create_dir(world.root.join("export")).unwrap();
    world.limit(Duration::from_secs(2));
    world.tool("mount.nfs", "exit 0");
    let failed = "MountVolume.SetUp failed for volume \"a\" : mount ";
    world.tool("mount", "echo access denied by server >&2; exit 32");
    let error = world.mount(&pod()).await.unwrap_err();
    assert_eq!(error, format!("{failed}failed: exit status: 32: access denied by server"));
    // It has mounted when it is killed, and so is what it has started.
    let late = BIND.replace("exec ", "");
    let hang = "(sleep 600; touch \"${0%/bin/mount}/survived\") & sleep 600";
    world.tool("mount", &format!("{late}\necho trying; {hang}"));
    let mounted = timeout(LONG, world.mount(&pod())).await.expect("all of it is killed");
    let error = mounted.unwrap_err();
    assert_eq!(error, format!("{failed}did not end within 2s and was killed: trying"));
    assert!(world.mounted().is_empty());
    // A daemon that it leaves behind does not hold it up.
    world.tool("mount", &format!("{late}\nsleep 600 &\necho $! >\"${{0%/bin/mount}}/daemon\""));
    timeout(LONG, world.mount(&pod())).await.expect("it is not waited for").unwrap();
    let daemon = fs::read_to_string(world.root.join("daemon")).unwrap();
    let daemon = rustix::process::Pid::from_raw(daemon.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    world.remove("u1").await;
    world.assert_clean();
}

/// Names come from the apiserver: an absolute one would be a directory of the node.
#[tokio::test]
async fn nfs_volume_named_like_a_path_is_refused() {
    let world = World::start().await;
    world.tool("mount.nfs", "exit 0");
    world.tool("mount", "touch \"${0%/bin/mount}/ran\"");
    let target = world.root.join("target");
    fs::create_dir(&target).unwrap();
    for name in [target.to_str().unwrap(), "../x", "a/b", ".."] {
        let mut pod = pod();
        pod.spec.as_mut().unwrap().volumes.as_mut().unwrap()[0].name = name.to_owned();
        let error = world.mount(&pod).await.unwrap_err();
        assert!(error.contains("volume name"), "{name}: {error}");
    }
    assert!(!world.root.join("ran").exists());
    world.remove("u1").await;
    world.assert_clean();
}

#[tokio::test]
async fn nfs_without_helper_is_reported() {
    let world = World::start().await;
    if world.volumes.inner.tools.find(crate::nfs::HELPER).is_ok() {
        return; // this machine has it
    }
    let error = world.mount(&pod()).await.unwrap_err();
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"a\" : mount.nfs is not installed on this node: it \
         comes with the package nfs-common (or nfs-utils)"
    );
    world.remove("u1").await;
    world.assert_clean();
}
