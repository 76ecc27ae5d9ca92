//! Where volumes can be used, and by how many.

use serde_json::{Value, json};

use super::volume;
use crate::persistent;

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";

#[test]
fn gce_zones_are_in_the_volume_handle() {
    let at = |labels: Value| {
        let mut disk = volume(json!({"gcePersistentDisk": {"pdName": "d"}}));
        disk["metadata"]["labels"] = labels;
        let disk = persistent(&disk).map_err(|error| error.to_string())?.unwrap();
        let handle = disk["spec"]["csi"]["volumeHandle"].as_str().unwrap();
        Ok(handle.strip_prefix("projects/UNSPECIFIED/").unwrap().to_owned())
    };
    let failed = |why: &str| Err(format!("failed to get region from zones: {why}"));
    let format = "zone in unexpected format, expected: {locale}-{region}-{zone}, got: ";
    for (labels, expected) in [
        (json!({ZONE: "eu-west1-b"}), Ok("zones/eu-west1-b/disks/d".to_owned())),
        (json!({ZONE: "new", BETA_ZONE: "old"}), Ok("zones/old/disks/d".to_owned())),
        (json!({ZONE: "new", BETA_ZONE: ""}), Ok("zones/new/disks/d".to_owned())),
        (json!({ZONE: "eu-west1-b__eu-west1-c"}), Ok("regions/eu-west1/disks/d".to_owned())),
        (
            json!({ZONE: "eu-west1-b__eu-west2-b"}),
            failed("multiple or no regions gotten from zones, got: eu-west1, eu-west2"),
        ),
        (json!({ZONE: "eu-west1-b__"}), failed(format)),
        (json!({ZONE: "a__b"}), failed(&format!("{format}a"))),
    ] {
        assert_eq!(at(labels.clone()), expected, "{labels}");
    }
}

#[test]
fn gce_access_modes_are_translated() {
    for (modes, expected) in [
        (json!(["ReadWriteMany"]), json!(["ReadWriteOnce"])),
        (json!(["ReadWriteOnce", "ReadOnlyMany"]), json!(["ReadWriteOnce"])),
        (json!(["ReadWriteMany", "ReadOnlyMany"]), json!(["ReadWriteOnce"])),
        (json!(["ReadOnlyMany"]), json!(["ReadOnlyMany"])),
        (json!(["ReadWriteOncePod"]), json!(["ReadWriteOnce"])),
        (json!(null), json!(null)),
    ] {
        let disk = volume(json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": modes}));
        let translated = persistent(&disk).unwrap().unwrap();
        assert_eq!(translated["spec"]["accessModes"], expected, "{disk}");
    }
}

#[test]
fn topology_labels_are_translated() {
    const AWS: &str = "topology.ebs.csi.aws.com/zone";
    const VMWARE: &str = "topology.csi.vmware.com/zone";
    const VMWARE_REGION: &str = "topology.csi.vmware.com/region";
    let aws = || json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
    let vmware = || json!({"vsphereVolume": {"volumePath": "[ds] v"}});
    let one_of = |key: &str, all: &[&str]| json!({"key": key, "operator": "In", "values": all});
    let other = || one_of("tier", &["gold"]);
    for (source, labels, before, after) in [
        (aws(), json!({}), json!(null), json!(null)),
        (
            aws(),
            json!({ZONE: "ignored"}),
            json!([[one_of(ZONE, &["a", "b"]), other()], [one_of(ZONE, &["c"])]]),
            json!([[one_of(AWS, &["a", "b"]), other()], [one_of(AWS, &["c"])]]),
        ),
        (
            aws(),
            json!({}),
            json!([[one_of(BETA_ZONE, &["a"]), one_of(BETA_REGION, &["r"])]]),
            json!([[one_of(AWS, &["a"]), one_of(REGION, &["r"])]]),
        ),
        (aws(), json!({ZONE: "b__a__ __a"}), json!(null), json!([[one_of(AWS, &["a", "b"])]])),
        (
            aws(),
            json!({BETA_ZONE: "a"}),
            json!([[other()], []]),
            json!([[other(), one_of(AWS, &["a"])], [one_of(AWS, &["a"])]]),
        ),
        (aws(), json!({ZONE: ""}), json!(null), json!(null)),
        (
            aws(),
            json!({}),
            json!([[one_of(BETA_REGION, &["r"])]]),
            json!([[one_of(BETA_REGION, &["r"])]]),
        ),
        (
            vmware(),
            json!({}),
            json!([[one_of(BETA_ZONE, &["a"]), one_of(BETA_REGION, &["r"])]]),
            json!([[one_of(VMWARE, &["a"]), one_of(VMWARE_REGION, &["r"])]]),
        ),
        (
            vmware(),
            json!({ZONE: "a__b", REGION: "r"}),
            json!(null),
            json!([[one_of(VMWARE, &["a__b"]), one_of(VMWARE_REGION, &["r"])]]),
        ),
        (
            json!({"azureDisk": {"diskURI": "/d"}}),
            json!({ZONE: "a"}),
            json!([[one_of(ZONE, &["a"])]]),
            json!([[one_of(ZONE, &["a"])]]),
        ),
    ] {
        let affinity = |terms: &Value| {
            let terms = terms.as_array()?.iter().map(|term| match term.as_array().unwrap() {
                none if none.is_empty() => json!({}),
                expressions => json!({"matchExpressions": expressions}),
            });
            Some(json!({"required": {"nodeSelectorTerms": terms.collect::<Vec<_>>()}}))
        };
        let mut in_tree = volume(source);
        in_tree["metadata"]["labels"] = labels;
        if let Some(affinity) = affinity(&before) {
            in_tree["spec"]["nodeAffinity"] = affinity;
        }
        let translated = persistent(&in_tree).unwrap().unwrap();
        let expected = affinity(&after).unwrap_or_default();
        assert_eq!(translated["spec"]["nodeAffinity"], expected, "{in_tree}");
    }
}
