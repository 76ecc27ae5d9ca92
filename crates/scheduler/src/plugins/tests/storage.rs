use serde_json::{Value, json};

use super::Cluster;
use crate::framework::Filters;
use crate::model::{Capacity, Claim, ClaimUse, CsiDriver, CsiNode, PersistentVolume, StorageClass};
use crate::testing::{atom, merge, node, pod, profile};

fn claim(cluster: &mut Cluster, name: &str, more: Value) {
    let mut all = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"storageClassName": "wait", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    merge(&mut all, more);
    let claim = Claim::new(&serde_json::from_value(all).unwrap());
    cluster.objects.claims.insert(claim.key.clone(), claim);
}

fn volume(cluster: &mut Cluster, name: &str, more: Value) {
    let mut all = json!({
        "metadata": {"name": name},
        "spec": {"storageClassName": "wait", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}},
    });
    merge(&mut all, more);
    let volume = PersistentVolume::new(&serde_json::from_value(all).unwrap());
    cluster.objects.volumes.insert(volume.name.clone(), volume);
}

fn class(cluster: &mut Cluster, name: &str, more: Value) {
    let mut all = json!({"metadata": {"name": name}, "provisioner": "driver", "volumeBindingMode": "WaitForFirstConsumer"});
    merge(&mut all, more);
    let class = StorageClass::new(&serde_json::from_value(all).unwrap());
    cluster.objects.classes.insert(class.name.clone(), class);
}

fn bound(volume: &str) -> Value {
    json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": volume}})
}

fn using(claims: &[&str]) -> std::sync::Arc<crate::model::Pod> {
    let volumes: Vec<_> = claims
        .iter()
        .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
        .collect();
    pod("p", "1", json!({"spec": {"volumes": volumes}}))
}

fn cluster() -> Cluster {
    let zone = |zone: &str| json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
    let mut cluster = Cluster::new(&[node("n1", 4, zone("a")), node("n2", 4, zone("b"))], &[]);
    class(&mut cluster, "wait", json!({}));
    class(&mut cluster, "now", json!({"volumeBindingMode": "Immediate"}));
    class(&mut cluster, "local", json!({"provisioner": "kubernetes.io/no-provisioner"}));
    cluster
}

fn said(cluster: &Cluster, claims: &[&str]) -> [String; 2] {
    ["n1", "n2"].map(|node| cluster.reasons(&profile(), &using(claims), node))
}

fn on_node(name: &str) -> Value {
    json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}]}]}}}})
}

#[test]
fn volumes_of_claims_say_why_in_upstreams_words() {
    let mut cluster = cluster();
    claim(&mut cluster, "immediate", json!({"spec": {"storageClassName": "now"}}));
    claim(
        &mut cluster,
        "deleted",
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    claim(
        &mut cluster,
        "lost",
        json!({"spec": {"volumeName": "pv-lost"}, "status": {"phase": "Lost"}}),
    );
    claim(&mut cluster, "bound", bound("pv1"));
    claim(&mut cluster, "dangling", bound("pv-none"));
    let mut affine = on_node("n1");
    merge(
        &mut affine,
        json!({"spec": {"claimRef": {"namespace": "default", "name": "bound", "uid": "bound"}}}),
    );
    volume(&mut cluster, "pv1", affine);
    let same = |text: &str| [text.to_owned(), text.to_owned()];
    assert_eq!(said(&cluster, &["none"]), same("persistentvolumeclaim \"none\" not found"));
    let immediate = said(&cluster, &["immediate"]);
    assert_eq!(immediate, same("pod has unbound immediate PersistentVolumeClaims"));
    assert_eq!(
        said(&cluster, &["deleted"]),
        same("persistentvolumeclaim \"deleted\" is being deleted")
    );
    assert_eq!(
        said(&cluster, &["lost"]),
        same("persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"pv-lost\"")
    );
    assert_eq!(
        said(&cluster, &["bound"]),
        ["".to_owned(), "node(s) didn't match PersistentVolume's node affinity".to_owned()]
    );
}

#[test]
fn volumes_wait_for_their_pod_and_are_found_or_provisioned() {
    let mut cluster = cluster();
    claim(&mut cluster, "local", json!({"spec": {"storageClassName": "local"}}));
    claim(&mut cluster, "dynamic", json!({}));
    let none = "node(s) didn't find available persistent volumes to bind";
    assert_eq!(said(&cluster, &["local"]), [none, none]);
    for (name, size) in [("big", "5Gi"), ("fitting", "2Gi"), ("small", "512Mi")] {
        let mut more = on_node("n2");
        merge(
            &mut more,
            json!({"spec": {"storageClassName": "local", "capacity": {"storage": size}}}),
        );
        volume(&mut cluster, name, more);
    }
    assert_eq!(said(&cluster, &["local"]), [none, ""]);
    assert_eq!(said(&cluster, &["dynamic", "local"]), [none, ""]);

    // what is to be done for the pod on that node
    let own = using(&["dynamic", "local"]);
    let profile = profile();
    let plugin = profile.reserve.iter().find(|own| own.name() == "VolumeBinding").unwrap();
    let info = cluster.snapshot.node(&atom("n2")).unwrap();
    let use_ = plugin.reserve(cluster.cycle(&own), info).unwrap();
    assert_eq!(
        use_.volumes.iter().map(|(name, claim)| format!("{name} {claim}")).collect::<Vec<_>>(),
        ["fitting default/local"]
    );
    assert_eq!(
        use_.provisions.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["default/dynamic"]
    );

    // meanwhile others get neither the volume nor another node
    cluster.objects.assume(&use_);
    claim(
        &mut cluster,
        "local2",
        json!({"spec": {"storageClassName": "local", "resources": {"requests": {"storage": "1Gi"}}}}),
    );
    assert_eq!(said(&cluster, &["dynamic"]), [none, ""]);
    let info = cluster.snapshot.node(&atom("n2")).unwrap();
    let other = using(&["local2"]);
    let second = plugin.reserve(cluster.cycle(&other), info).unwrap();
    assert_eq!(second.volumes[0].0, atom("big"));
    cluster.objects.release(&use_);
    assert_eq!(said(&cluster, &["dynamic"]), ["", ""]);
}

#[test]
fn volumes_need_a_topology_and_capacity() {
    let mut cluster = cluster();
    class(
        &mut cluster,
        "zonal",
        json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["b"]}]}]}),
    );
    class(&mut cluster, "counted", json!({"provisioner": "counting"}));
    claim(&mut cluster, "zonal", json!({"spec": {"storageClassName": "zonal"}}));
    claim(&mut cluster, "counted", json!({"spec": {"storageClassName": "counted"}}));
    assert_eq!(
        said(&cluster, &["zonal"]),
        ["node(s) didn't find available persistent volumes to bind", ""]
    );
    assert_eq!(said(&cluster, &["counted"]), ["", ""]);
    let driver = CsiDriver { name: atom("counting"), has_capacities: true };
    cluster.objects.csi_drivers.insert(driver.name.clone(), driver);
    let capacity = |name: &str, size: &str, zone: &str| {
        Capacity::new(&serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "x"}, "storageClassName": "counted", "capacity": size,
            "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": zone}},
        })).unwrap())
    };
    for one in [capacity("a", "512Mi", "a"), capacity("b", "1Gi", "b")] {
        cluster.objects.capacities.insert(one.key.clone(), one);
    }
    assert_eq!(said(&cluster, &["counted"]), ["node(s) did not have enough free storage", ""]);
}

#[test]
fn volumes_are_in_zones() {
    let mut cluster = cluster();
    claim(&mut cluster, "zonal", bound("pv"));
    volume(
        &mut cluster,
        "pv",
        json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "b__c"}}}),
    );
    assert_eq!(said(&cluster, &["zonal"]), ["node(s) had no available volume zone", ""]);
}

#[test]
fn volumes_that_are_exclusive_have_one_user() {
    let other =
        |volumes: Value| pod("o", "1", json!({"spec": {"nodeName": "n1", "volumes": volumes}}));
    let exclusive = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "one"}}]);
    let disk = json!([{"name": "v", "gcePersistentDisk": {"pdName": "d"}}]);
    let nodes = [node("n1", 4, json!({})), node("n2", 4, json!({}))];
    let mut cluster = Cluster::new(&nodes, &[other(exclusive)]);
    claim(&mut cluster, "one", {
        let mut more = bound("pv");
        merge(&mut more, json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}));
        more
    });
    volume(&mut cluster, "pv", json!({}));
    let in_use = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
    assert_eq!(said(&cluster, &["one"]), [in_use, in_use]);
    // preemption of the user would help
    let own = using(&["one"]);
    let profile = profile();
    let cycle = cluster.cycle(&own);
    let mut filters = Filters::prepare(&profile, cycle).unwrap();
    let info = cluster.snapshot.node(&atom("n1")).unwrap();
    filters.remove_pod(&info.pods[0], info);
    assert!(filters.check(cycle, info).is_ok());

    let cluster = Cluster::new(&nodes, &[other(disk)]);
    for (read_only, expected) in [
        (false, ["node(s) had no available disk", ""]),
        (true, ["node(s) had no available disk", ""]),
    ] {
        let own = pod(
            "p",
            "1",
            json!({"spec": {"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "d", "readOnly": read_only}}]}}),
        );
        let said = ["n1", "n2"].map(|node| cluster.reasons(&profile, &own, node));
        assert_eq!(said, expected);
    }
}

#[test]
fn volumes_are_attached_up_to_the_limit() {
    let ebs = |from: usize, count: usize| -> Vec<Value> {
        (from..from + count).map(|id| json!({"name": format!("v{id}"), "awsElasticBlockStore": {"volumeID": id.to_string()}})).collect()
    };
    let nodes = [node("n1", 4, json!({}))];
    let mut cluster = Cluster::new(
        &nodes,
        &[pod("o", "1", json!({"spec": {"nodeName": "n1", "volumes": ebs(0, 38)}}))],
    );
    let own = |from, count| pod("p", "1", json!({"spec": {"volumes": ebs(from, count)}}));
    let full = "node(s) exceed max volume count";
    for (from, count, expected) in [(38, 1, ""), (38, 2, full)] {
        assert_eq!(
            cluster.reasons(&profile(), &own(from, count), "n1"),
            expected,
            "{from} {count}"
        );
    }
    // the driver on the node knows better
    let driver = CsiNode::new(&serde_json::from_value(json!({
        "metadata": {"name": "n1"}, "spec": {"drivers": [{"name": "ebs.csi.aws.com", "nodeID": "n", "allocatable": {"count": 38}}]},
    })).unwrap());
    cluster.objects.csi_nodes.insert(atom("n1"), driver);
    assert_eq!(cluster.reasons(&profile(), &own(38, 1), "n1"), full);
    assert_eq!(cluster.objects.attach_limit(&atom("n2"), &atom("pd.csi.storage.gke.io")), Some(16));
}

#[test]
fn volumes_of_no_claim_need_nothing() {
    let cluster = cluster();
    let profile = profile();
    let own = using(&[]);
    for plugin in &profile.reserve {
        let info = cluster.snapshot.node(&atom("n1")).unwrap();
        assert_eq!(plugin.reserve(cluster.cycle(&own), info).unwrap(), ClaimUse::default());
    }
}
