//! What is in volumes that outlive their pods.

use nix::mount::{MsFlags, mount};
use serde_json::json;

use super::world::{World, pod_with};
use crate::VolumeStats;

#[tokio::test]
async fn volume_stats_match_df_as_root() {
    let mut world = World::start().await;
    let data = world.root.join("data");
    std::fs::create_dir(&data).unwrap();
    let small = Some("size=1m,nr_inodes=100");
    mount(Some("tmpfs"), &data, Some("tmpfs"), MsFlags::empty(), small).unwrap();
    std::fs::write(data.join("file"), vec![0; 256 << 10]).unwrap();
    world.claim("a", json!({"local": {"path": data}}));
    world.claim("b", json!({"hostPath": {"path": data}}));
    let pod = pod_with("u1", &["a", "b"], json!({}));
    assert_eq!(world.volumes.persistent_mounts(&pod), [], "nothing stands yet");
    world.mount(&pod).await.unwrap();

    let persistent_mounts = world.volumes.persistent_mounts(&pod);
    assert_eq!(
        persistent_mounts.len(),
        1,
        "nobody knows how much of the node's disk a directory is"
    );
    assert_eq!(
        (persistent_mounts[0].name.as_str(), persistent_mounts[0].claim.as_deref()),
        ("a", Some("c-a"))
    );
    let expected = VolumeStats {
        capacity: 1 << 20,
        available: 768 << 10,
        used: 256 << 10,
        inodes: 100,
        inodes_free: 98,
        inodes_used: 2,
        condition: None,
    };
    assert_eq!(world.volumes.stats(&persistent_mounts[0]).await.unwrap(), expected);

    world.restart();
    world.mount(&pod).await.unwrap();
    assert_eq!(
        world.volumes.persistent_mounts(&pod),
        persistent_mounts,
        "a daemon that comes later knows it too"
    );
    world.remove("u1").await;
    assert_eq!(world.volumes.persistent_mounts(&pod), []);
    world.assert_clean();
}
