//! What is attached to nodes.

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
    let attachment = serde_json::to_value(attachment).unwrap();
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
    let (user, event) = &done.events[0];
    assert_eq!(user.metadata.name.as_deref(), Some("p"));
    assert_eq!(event.message, "AttachVolume.Attach succeeded for volume \"v\" ");

    // It is not used any more; as long as the node has it mounted, it stays.
    let mut own = node("n1", "a");
    own["metadata"]["resourceVersion"] = "2".into();
    own["status"]["volumesAttached"] = json!([{"name": UNIQUE, "devicePath": ""}]);
    own["status"]["volumesInUse"] = json!([UNIQUE]);
    let mounted = Plan { mounted: BTreeSet::from([UNIQUE.to_owned()]), ..Plan::default() };
    assert_eq!(plan_of(&[attachment.clone(), own.clone()]), mounted);
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
        let attachment = serde_json::to_value(attachment).unwrap();
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
        let mounted = Plan { mounted: [name.clone()].into(), ..Plan::default() };
        assert_eq!(plan_of(&[node_object.clone()]), mounted);
        node_object["status"]["volumesInUse"] = json!([]);
        assert_eq!(plan_of(&[node_object]).attached, Some(BTreeSet::new()));
    }
}

#[test]
fn attach_detach_forces_volumes_off_nodes_that_are_down() {
    let attachment = || {
        let asked = plan(&csi_world(&[pod("p", "n1", "c")]), "n1");
        let mut attachment = serde_json::to_value(&asked.attach[0]).unwrap();
        attachment["status"] = json!({"attached": true});
        attachment
    };
    let down = |ready: &str, taint: &str| {
        let mut node = node("n1", "a");
        node["spec"]["taints"] = json!([{"key": taint, "effect": "NoExecute"}]);
        node["status"] = json!({
            "volumesAttached": [{"name": UNIQUE, "devicePath": ""}],
            "volumesInUse": [UNIQUE],
            "conditions": [{"type": "Ready", "status": ready}],
        });
        node
    };
    let all = BTreeSet::from([UNIQUE.to_owned()]);
    let none = BTreeSet::new();
    let out_of_service = "node.kubernetes.io/out-of-service";
    for (ready, taint, expired, is_detached) in [
        ("True", "other", &none, false),
        ("True", "other", &all, false),
        ("Unknown", "other", &none, false),
        ("Unknown", "other", &all, true),
        ("False", out_of_service, &none, true),
    ] {
        let world = csi_world(&[attachment(), down(ready, taint)]);
        let plan = attachdetach::plan_for_node(world.attaching(&[], expired), "n1");
        assert_eq!(plan.detach.len(), usize::from(is_detached), "{ready} {taint} {expired:?}");
        assert_eq!(plan.mounted.is_empty(), is_detached);
        assert_eq!(plan.attached, is_detached.then(BTreeSet::new));
    }
    // It is said that the node was no matter, if it had it mounted or not.
    for (taint, expired, reason) in [
        ("other", &all, Some("timeout")),
        (out_of_service, &none, Some("out-of-service")),
        ("other", &none, None),
    ] {
        let mut node = down("Unknown", taint);
        node["status"]["volumesInUse"] = json!([]);
        let world = csi_world(&[attachment(), node]);
        let plan = attachdetach::plan_for_node(world.attaching(&[], expired), "n1");
        assert_eq!(plan.forced.values().next().copied(), reason);
        assert_eq!(plan.detach.len(), 1);
    }
    // What a pod uses stays.
    let world = csi_world(&[attachment(), down("False", out_of_service), pod("p", "n1", "c")]);
    assert_eq!(attachdetach::plan_for_node(world.attaching(&[], &all), "n1"), Plan::default());
}

#[test]
fn attach_detach_multi_attach_names_the_users() {
    let users = |pods: &[Value]| {
        let first = plan(&csi_world(&[pod("p", "n1", "c")]), "n1").attach.remove(0);
        let objects = [&[pod("q", "n2", "c")][..], pods].concat();
        let world = csi_world(&objects);
        let created = [first];
        let plan = attachdetach::plan_for_node(world.attaching(&created, &BTreeSet::new()), "n2");
        assert!(plan.attach.is_empty(), "an attachment that was just created counts");
        plan.events[0].1.message.clone()
    };
    assert_eq!(
        users(&[]),
        "Multi-Attach error for volume \"v\" Volume is already exclusively attached to one node and can't be attached to another"
    );
    assert_eq!(
        users(&[pod("p", "n1", "c"), pod("r", "n3", "c"), pod("s", "", "c")]),
        "Multi-Attach error for volume \"v\" Volume is already used by pod(s) p, r"
    );
}

#[test]
fn attach_detach_keeps_iscsi_disks_from_a_second_node() {
    let name = "kubernetes.io/iscsi/192.0.2.1:iqn.2026-01.com.example:t:3";
    let disk = bound_volume(|v| {
        v["spec"].as_object_mut().unwrap().remove("hostPath");
        v["spec"]["iscsi"] =
            json!({"targetPortal": "192.0.2.1", "iqn": "iqn.2026-01.com.example:t", "lun": 3});
    });
    let mut first = node("n1", "a");
    first["status"] = json!({"volumesAttached": [{"name": name, "devicePath": ""}]});
    let objects = [
        disk,
        bound_claim(|_| {}),
        first,
        node("n2", "a"),
        pod("p", "n1", "c"),
        pod("q", "n2", "c"),
    ];
    let second = plan(&world(&objects), "n2");
    assert_eq!(second.attached, None);
    assert_eq!(second.events[0].1.reason, "FailedAttachVolume");
    assert_eq!(plan(&world(&objects), "n1"), Plan::default());
}

#[test]
fn attach_detach_waits_for_nodes_that_were_deleted() {
    let asked = plan(&csi_world(&[pod("p", "n1", "c")]), "n1");
    let mut attachment = serde_json::to_value(&asked.attach[0]).unwrap();
    attachment["spec"]["nodeName"] = "gone".into();
    attachment["status"] = json!({"attached": true});
    let all = BTreeSet::from([UNIQUE.to_owned()]);
    let none = BTreeSet::new();
    let world = csi_world(&[attachment]);
    for (what, last_in_use, expired, is_detached) in [
        ("was not seen", None, &none, true),
        ("had it mounted", Some(&all), &none, false),
        ("had it mounted for too long", Some(&all), &all, true),
        ("had it not mounted", Some(&none), &none, true),
    ] {
        let state = attachdetach::State { last_in_use, ..world.attaching(&[], expired) };
        let plan = attachdetach::plan_for_node(state, "gone");
        assert_eq!(plan.detach.len(), usize::from(is_detached), "{what}");
        assert_eq!(plan.mounted.is_empty(), is_detached, "{what}");
    }
}

#[test]
fn attach_detach_of_ephemeral_volumes_wants_the_claim_of_the_pod() {
    let claim = |owner: &str| {
        bound_claim(|c| {
            c["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod",
                "name": "p", "uid": owner, "controller": true}]);
            c["metadata"]["name"] = "p-v".into();
        })
    };
    let volume = bound_volume(|v| {
        v["spec"].as_object_mut().unwrap().remove("hostPath");
        v["spec"]["csi"] = json!({"driver": "csi.example.com", "volumeHandle": "h"});
        v["spec"]["claimRef"]["name"] = "p-v".into();
    });
    let mut user = pod("p", "n1", "");
    user["spec"]["volumes"] = json!([{"name": "v", "ephemeral": {}}]);
    for (owner, count) in [("uid-p", 1), ("uid-other", 0)] {
        let objects = [claim(owner), volume.clone(), user.clone(), node("n1", "a")];
        assert_eq!(plan(&world(&objects), "n1").attach.len(), count, "{owner}");
    }
}
