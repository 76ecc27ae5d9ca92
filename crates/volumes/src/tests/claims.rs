//! Claims that are not ready, in upstream's words, and pods that start once they are.

use serde_json::{Value, json};

use super::world::{World, pod_with};

const OBJECT: &str = "/api/v1/persistentvolumes/pv-a";

fn claim(change: impl Fn(&mut Value)) -> Value {
    let mut claim = json!({
        "metadata": {"name": "c-a", "namespace": "ns", "uid": "uid-a"},
        "spec": {"volumeName": "pv-a"}, "status": {"phase": "Bound"},
    });
    change(&mut claim);
    claim
}

#[tokio::test]
async fn claim_not_ready_errors() {
    let world = World::start().await;
    let pod = pod_with("u1", &["a"], json!({}));
    let volume = |reference: Value| {
        let path = world.root.path();
        json!({"metadata": {"name": "pv-a"}, "spec": {"hostPath": {"path": path}, "claimRef": reference}})
    };
    let claims = [
        (
            claim(|c| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
            "PVC is being deleted",
        ),
        (
            claim(|c| {
                c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                // It is kept for a pod, which may be this one.
                c["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
            }),
            "failed to fetch PV pv-a from API server: not found",
        ),
        (claim(|c| c["status"]["phase"] = json!("Pending")), "PVC is not bound"),
        (claim(|c| c["status"]["phase"] = json!("Lost")), "PVC is not bound"),
        (claim(|c| c["spec"]["volumeName"] = json!("")), "PVC has empty pvc.Spec.VolumeName"),
        (claim(|_| ()), "failed to fetch PV pv-a from API server: not found"),
    ];
    let prefix = "Unable to attach or mount volumes: unmounted volumes=[a], unattached volumes=[], \
                  failed to process volumes=[a]: error processing PVC ns/c-a: ";
    let error = world.mount(&pod).await.unwrap_err();
    assert_eq!(error, format!("{prefix}failed to fetch PVC from API server: not found"));
    for (claim, expected) in claims {
        world.put_claim("a", claim);
        assert_eq!(world.mount(&pod).await.unwrap_err(), format!("{prefix}{expected}"));
    }
    for (reference, expected) in [
        (
            json!(null),
            "found PV object pv-a but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
        ),
        (
            json!({"uid": "other"}),
            "found PV object pv-a but its pv.Spec.ClaimRef.UID other does not point to claim.UID uid-a",
        ),
    ] {
        world.api.put_at(OBJECT, volume(reference));
        assert_eq!(world.mount(&pod).await.unwrap_err(), format!("{prefix}{expected}"));
    }
    world.api.put_at(OBJECT, volume(json!({"uid": "uid-a"})));
    let mounts = world.mount(&pod).await.unwrap();
    assert_eq!(mounts["a"].path, world.root.path());
    assert_eq!(mounts["a"].name, "pv-a", "by which its sub-paths are found");
    world.remove("u1").await;
    world.assert_clean();
}

#[tokio::test]
async fn claim_of_an_ephemeral_volume_must_be_owned_by_the_pod() {
    let world = World::start().await;
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [], "volumes": [{"name": "a", "ephemeral": {}}]},
    }));
    let pod = pod.unwrap();
    world.claim("a", json!({"hostPath": {"path": world.root.path()}}));
    let error = world.mount(&pod).await.unwrap_err();
    assert!(
        error.ends_with("PVC ns/c-a was not created for pod ns/c (pod is not owner)"),
        "{error}"
    );
    let owner =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "c", "uid": "u1", "controller": true}]);
    world.put_claim("a", claim(|claim| claim["metadata"]["ownerReferences"] = owner.clone()));
    assert_eq!(world.mount(&pod).await.unwrap()["a"].path, world.root.path());
    world.remove("u1").await;
}

#[tokio::test]
async fn claim_volume_mode_must_match_its_use() {
    let world = World::start().await;
    for (mode, field, path, expected) in [
        (
            "Block",
            "volumeMounts",
            "mountPath",
            "volume a has volumeMode Block, but is specified in volumeMounts",
        ),
        (
            "Filesystem",
            "volumeDevices",
            "devicePath",
            "volume a has volumeMode Filesystem, but is specified in volumeDevices",
        ),
    ] {
        world.claim("a", json!({"volumeMode": mode, "local": {"path": world.root.path()}}));
        let mut pod = serde_json::to_value(pod_with("u1", &["a"], json!({}))).unwrap();
        pod["spec"]["containers"] = json!([{"name": "main", field: [{"name": "a", path: "/x"}]}]);
        let pod = serde_json::from_value(pod).unwrap();
        let error = world.mount(&pod).await.unwrap_err();
        assert!(error.ends_with(expected), "{error}");
    }
}

#[tokio::test]
async fn claim_of_an_unsupported_volume_type() {
    let world = World::start().await;
    for (source, expected) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}),
            "MountVolume.SetUp failed for volume \"pv-a\" : driver name ebs.csi.aws.com not found in the list of registered CSI drivers",
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://vol-1"}}),
            "Unable to attach or mount volumes: unmounted volumes=[a], unattached volumes=[], failed to process volumes=[a]: failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://vol-1)",
        ),
        (
            json!({"hostPath": {"path": "/"}, "mountOptions": ["noexec"]}),
            "MountVolume.MountOptionSupport check failed for volume \"pv-a\" : mount options are not supported for this volume type",
        ),
    ] {
        world.claim("a", source);
        let error = world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap_err();
        assert_eq!(error, expected);
    }
}

/// Also CVE-2024-10220 and CVE-2025-1767: a repository's hooks ran on the node, and one pod read
/// another's repository. There is no such volume any more.
#[tokio::test]
async fn removed_volume_types_are_refused() {
    let world = World::start().await;
    let unready = "Unable to attach or mount volumes: unmounted volumes=[a], unattached volumes=[], failed to process volumes=[a]: ";
    let no_plugin = |volume: &str| {
        format!(
            "{unready}failed to get Plugin from volumeSpec for volume {volume:?} err=no volume plugin matched"
        )
    };
    let mut sources = vec![
        json!({"cephfs": {"monitors": []}}),
        json!({"flocker": {"datasetName": "x"}}),
        json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
        json!({"photonPersistentDisk": {"pdID": "x"}}),
        json!({"quobyte": {"registry": "r", "volume": "v"}}),
        json!({"rbd": {"monitors": [], "image": "x"}}),
        json!({"scaleIO": {"gateway": "g", "system": "s", "secretRef": {"name": "x"}}}),
        json!({"storageos": {"volumeName": "v"}}),
    ];
    for source in &mut sources {
        world.claim("a", source.clone());
        let error = world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap_err();
        assert_eq!(error, no_plugin("pv-a"), "{source}");
        assert_eq!(describing(&world, source).await, no_plugin("a"), "{source}");
    }
    for (mut source, expected) in [
        (
            json!({"gitRepo": {"repository": "x"}}),
            "MountVolume.SetUp failed for volume \"a\" : git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`".to_owned(),
        ),
        (
            json!({"cinder": {"volumeID": "c"}}),
            "MountVolume.SetUp failed for volume \"cinder.csi.openstack.org-c\" : driver name cinder.csi.openstack.org not found in the list of registered CSI drivers".to_owned(),
        ),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "/d", "kind": "Shared"}}),
            format!("{unready}failed to translate in-tree pv to CSI: kind(Shared) is not supported in csi migration"),
        ),
    ] {
        assert_eq!(describing(&world, &mut source).await, expected);
    }
}

/// Why a pod that describes a volume so does not get it.
async fn describing(world: &World, source: &mut Value) -> String {
    source["name"] = json!("a");
    let pod = json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [], "volumes": [source]},
    });
    world.mount(&serde_json::from_value(pod).unwrap()).await.unwrap_err()
}
