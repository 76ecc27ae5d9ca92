//! Attachments, and which items changes enqueue.

use super::*;

fn csi_world(extra: &[Value]) -> World {
    let csi = bound_volume(|v| {
        v["spec"].as_object_mut().unwrap().remove("hostPath");
        v["spec"]["csi"] = json!({"driver": "csi.example.com", "volumeHandle": "h"});
    });
    let base = [csi, bound_claim(|_| {}), node("n1", "a"), node("n2", "a")];
    world(&[&base[..], extra].concat())
}

const UNIQUE: &str = "kubernetes.io/csi/csi.example.com^h";

#[test]
fn attach_detach_follows_pods() {
    let plan_of = |extra: &[Value]| plan(&csi_world(extra), "n1");
    assert_eq!(plan_of(&[]), Plan::default());
    let asked = plan_of(&[pod("p", "n1", "c")]);
    let [attachment] = &asked.attach[..] else { panic!("{asked:?}") };
    // As upstream names it: the SHA-256 of handle, driver and node.
    let name = "csi-b443ff371db9b71827ff6dcb6a58f7474195968c4317513778b950b8560576b6";
    assert_eq!(attachment["metadata"]["name"], name);
    assert_eq!(
        attachment["spec"],
        json!({
            "attacher": "csi.example.com",
            "nodeName": "n1",
            "source": {"persistentVolumeName": "v"},
        })
    );
    let none = json!({
        "kind": "CSIDriver",
        "metadata": {"name": "csi.example.com", "resourceVersion": "1"},
        "spec": {"attachRequired": false},
    });
    assert_eq!(plan_of(&[pod("p", "n1", "c"), none]), Plan::default());
    let mut over = pod("p", "n1", "c");
    over["status"]["phase"] = "Failed".into();
    assert_eq!(plan_of(&[over]), Plan::default());

    let mut attachment = attachment.clone();
    attachment["metadata"]["resourceVersion"] = "1".into();
    let waiting = plan_of(&[pod("p", "n1", "c"), attachment.clone()]);
    assert_eq!(waiting, Plan::default());
    attachment["status"] = json!({"attached": true});
    let done = plan_of(&[pod("p", "n1", "c"), attachment.clone()]);
    assert_eq!(done.attached, Some(BTreeSet::from([UNIQUE.to_owned()])));

    // It is not used any more; as long as the node has it mounted, it stays.
    let mut own = node("n1", "a");
    own["metadata"]["resourceVersion"] = "2".into();
    own["status"]["volumesAttached"] = json!([{"name": UNIQUE, "devicePath": ""}]);
    own["status"]["volumesInUse"] = json!([UNIQUE]);
    assert_eq!(plan_of(&[attachment.clone(), own.clone()]), Plan::default());
    own["status"]["volumesInUse"] = json!([]);
    let gone = plan_of(&[attachment.clone(), own]);
    assert_eq!(gone.detach, [attachment["metadata"]["name"].as_str().unwrap()]);
    assert_eq!(gone.attached, Some(BTreeSet::new()), "the node hears of it");

    // Another node may not have it at the same time.
    let second = plan(&csi_world(&[pod("q", "n2", "c"), attachment]), "n2");
    assert!(second.attach.is_empty());
    assert_eq!(second.events[0].1.reason, "FailedAttachVolume");
}

#[test]
fn attach_detach_of_migrated_volumes() {
    const AWS: &str = "ebs.csi.aws.com";
    let disk = json!({"awsElasticBlockStore": {"volumeID": "aws://a/vol-1", "fsType": "xfs"}});
    let persistent = bound_volume(|v| {
        v["spec"].as_object_mut().unwrap().remove("hostPath");
        v["spec"]["awsElasticBlockStore"] = disk["awsElasticBlockStore"].clone();
    });
    let describing = |name: &str, node: &str| {
        let mut pod = pod(name, node, "none");
        pod["spec"]["volumes"] = json!([disk.clone()]);
        pod["spec"]["volumes"][0]["name"] = "v".into();
        pod
    };
    let base = [persistent, bound_claim(|_| {}), node("n1", "a"), node("n2", "a")];
    let plan_of = |node: &str, extra: &[Value]| plan(&world(&[&base[..], extra].concat()), node);
    let inline = json!({"inlineVolumeSpec": {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "csi": {"driver": AWS, "volumeHandle": "vol-1", "fsType": "xfs",
            "volumeAttributes": {"partition": "0"}},
    }});
    for (source, user) in [
        (json!({"persistentVolumeName": "v"}), pod("p", "n1", "c")),
        (inline, describing("p", "n1")),
    ] {
        let asked = plan_of("n1", std::slice::from_ref(&user));
        let [attachment] = &asked.attach[..] else { panic!("{asked:?}") };
        let expected = json!({"attacher": AWS, "nodeName": "n1", "source": source});
        assert_eq!(attachment["spec"], expected);

        let mut attachment = attachment.clone();
        attachment["metadata"]["resourceVersion"] = "1".into();
        attachment["status"] = json!({"attached": true});
        let done = plan_of("n1", &[user, attachment.clone()]);
        assert_eq!((done.attach, done.detach), (vec![], vec![]));
        let name = format!("kubernetes.io/csi/{AWS}^vol-1");
        assert_eq!(done.attached, Some(BTreeSet::from([name])));
        let gone = plan_of("n1", std::slice::from_ref(&attachment));
        assert_eq!(gone.detach, [attachment["metadata"]["name"].as_str().unwrap()]);

        // However it is described, the disk is one.
        for other in [pod("q", "n2", "c"), describing("q", "n2")] {
            let second = plan_of("n2", &[other, attachment.clone()]);
            assert!(second.attach.is_empty());
            assert_eq!(second.events[0].1.reason, "FailedAttachVolume");
        }
        // And its waiters are enqueued when it is gone.
        let objects = [describing("q", "n2"), pod("r", "n1", "c"), attachment.clone()];
        let (mut world, mut work) = (world(&[&base[..], &objects].concat()), BTreeSet::new());
        world.remove(&attachment, &mut work);
        for node in ["n1", "n2"] {
            assert!(work.contains(&Item::Node(node.into())), "{work:?}");
        }
    }
    // What its driver cannot know is not attached.
    let mut unknown = describing("p", "n1");
    unknown["spec"]["volumes"][0]["awsElasticBlockStore"]["volumeID"] = "aws://x".into();
    assert_eq!(plan_of("n1", &[unknown]), Plan::default());
}

#[test]
fn attach_detach_iscsi_is_reported_in_volumes_attached() {
    let source = json!({"targetPortal": "192.0.2.1", "iqn": "iqn.2026-01.com.example:t", "lun": 3});
    let name = "kubernetes.io/iscsi/192.0.2.1:iqn.2026-01.com.example:t:3".to_owned();
    let disk = bound_volume(|v| {
        v["spec"].as_object_mut().unwrap().remove("hostPath");
        v["spec"]["iscsi"] = source.clone();
    });
    let mut own = pod("q", "n1", "other");
    own["spec"]["volumes"] = json!([{"name": "v", "iscsi": source}]);
    let base = [disk, bound_claim(|_| {})];
    let plan_of = |extra: &[Value]| plan(&world(&[&base[..], extra].concat()), "n1");
    for wants in [pod("p", "n1", "c"), own] {
        let asked = plan_of(&[node("n1", "a"), wants.clone()]);
        assert_eq!(asked.attached, Some([name.clone()].into()));
        assert!(asked.attach.is_empty(), "no attacher is needed");
        let mut node_object = node("n1", "a");
        node_object["status"]["volumesAttached"] = json!([{"name": name, "devicePath": ""}]);
        assert_eq!(plan_of(&[node_object.clone(), wants]), Plan::default());
        node_object["status"]["volumesInUse"] = json!([name]);
        assert_eq!(plan_of(&[node_object.clone()]), Plan::default(), "it is still mounted");
        node_object["status"]["volumesInUse"] = json!([]);
        assert_eq!(plan_of(&[node_object]).attached, Some(BTreeSet::new()));
    }
}

#[test]
fn volume_state_ignores_older_objects() {
    let mut world = World::default();
    let mut work = BTreeSet::new();
    let at = |revision: &'static str, phase: &'static str| {
        volume_of("v", "1Gi", move |v| {
            v["metadata"]["resourceVersion"] = revision.into();
            v["status"]["phase"] = phase.into();
        })
    };
    world.put(&at("5", "Bound"), &mut work);
    work.clear();
    world.put(&at("4", "Available"), &mut work);
    assert_eq!(world.volumes["v"]["status"]["phase"], "Bound");
    assert!(work.is_empty());
    world.remove(&at("4", "Available"), &mut work);
    assert!(world.volumes.contains_key("v"), "it was made again since");
    world.remove(&at("6", "Bound"), &mut work);
    assert!(world.volumes.is_empty() && work.contains(&Item::Volume("v".into())));
}

#[test]
fn volume_state_enqueues_related_objects() {
    let objects =
        [claim_of("c", "1Gi", |_| {}), volume_of("v", "1Gi", |_| {}), pod("p", "n1", "c")];
    let mut world = world(&objects);
    let mut enqueued = |object: &Value| {
        let mut work = BTreeSet::new();
        let mut newer = object.clone();
        newer["metadata"]["resourceVersion"] = "9".into();
        world.put(&newer, &mut work);
        work
    };
    let claim = Item::Claim(key("c"));
    for object in [
        volume_of("w", "1Gi", |_| {}),
        pod("p", "n2", "c"),
        class("any", "Immediate", "x"),
        objects[1].clone(),
    ] {
        assert!(enqueued(&object).contains(&claim), "{object}");
    }
    let work = enqueued(&objects[0]);
    for item in [Item::Pod(key("p")), Item::Node("n2".into()), claim] {
        assert!(work.contains(&item), "{item:?} in {work:?}");
    }
    assert!(!enqueued(&pod("q", "", "d")).contains(&Item::Claim(key("c"))));
}
