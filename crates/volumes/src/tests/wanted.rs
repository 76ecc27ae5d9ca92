//! Which volumes of a pod are set up, and what their objects say of them in old ways.

use longshore_client::objects::Changed;
use nix::sys::statvfs::{FsFlags, statvfs};
use serde_json::json;

use super::world::{World, pod_with};

#[tokio::test]
async fn unused_volumes_are_not_set_up_as_root() {
    let world = World::start().await;
    let mut pod = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
        "spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "used", "mountPath": "/used"}]}],
            "volumes": [
                {"name": "used", "emptyDir": {}},
                {"name": "secret", "secret": {"secretName": "none"}},
                {"name": "claim", "persistentVolumeClaim": {"claimName": "none"}},
                {"name": "git", "gitRepo": {"repository": "x"}},
                {"name": "about", "downwardAPI": {}},
            ],
        },
    });
    let parsed = |pod: &serde_json::Value| serde_json::from_value(pod.clone()).unwrap();
    let mounts = world.mount(&parsed(&pod)).await.unwrap();
    assert_eq!(mounts.into_keys().collect::<Vec<_>>(), ["used"]);
    world.volumes.refresh(&parsed(&pod), &Changed::pod()).await.unwrap();
    let plugins = std::fs::read_dir(world.node("pods/u1/volumes")).unwrap().count();
    assert_eq!(plugins, 1, "nor is it made when what it shows changes");

    // One that comes later may be the first to use it.
    let debugger =
        json!({"name": "debugger", "volumeMounts": [{"name": "about", "mountPath": "/about"}]});
    pod["spec"]["ephemeralContainers"] = json!([debugger]);
    let mounts = world.mount(&parsed(&pod)).await.unwrap();
    assert_eq!(mounts.into_keys().collect::<Vec<_>>(), ["about", "used"]);
    world.remove("u1").await;
    world.assert_clean();
}

#[tokio::test]
async fn mount_options_annotation_takes_precedence_as_root() {
    let world = World::start().await;
    let source = json!({"local": {"path": world.root.path()}, "mountOptions": ["data=x"]});
    world.claim("a", source.clone());
    let mut spec = source;
    spec["claimRef"] = json!({"uid": "uid-a"});
    let annotations = json!({"volume.beta.kubernetes.io/mount-options": "noexec,,nodev"});
    world.api.put_at(
        "/api/v1/persistentvolumes/pv-a",
        json!({"metadata": {"name": "pv-a", "annotations": annotations}, "spec": spec}),
    );
    let mounted = world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap()["a"].clone();
    let flags = statvfs(&mounted.path).unwrap().flags();
    assert!(flags.contains(FsFlags::ST_NOEXEC | FsFlags::ST_NODEV), "{flags:?}");
    world.remove("u1").await;
    world.assert_clean();
}
