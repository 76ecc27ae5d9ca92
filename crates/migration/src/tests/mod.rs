//! Each kind as a PersistentVolume and as a pod describes it, with the CSI volume of its driver.

mod zones;

use longshore_generators::{hostile, text};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{inline, persistent, plugins};

/// A PersistentVolume with these fields in its spec.
fn volume(fields: Value) -> Value {
    let mut volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pv", "annotations": {"kept": "yes"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "mountOptions": ["noatime"],
            "claimRef": {"namespace": "shop", "name": "data"},
        },
    });
    let spec = volume["spec"].as_object_mut().unwrap();
    spec.extend(fields.as_object().unwrap().clone());
    volume
}

/// What a PersistentVolume with that in its spec has as its source.
fn csi_of(fields: Value) -> Result<Value, String> {
    let translated = persistent(&volume(fields)).map_err(|error| error.to_string())?;
    Ok(translated.unwrap()["spec"]["csi"].clone())
}

/// What a volume of a pod with that source becomes.
fn inline_of(mut source: Value) -> Result<Value, String> {
    source["name"] = json!("data");
    let translated = inline(&source, "shop").map_err(|error| error.to_string())?.unwrap();
    assert_eq!(translated["spec"]["volumeMode"], "Filesystem");
    let (spec, name) = (&translated["spec"], &translated["metadata"]["name"]);
    Ok(json!({"name": name, "modes": spec["accessModes"], "csi": spec["csi"]}))
}

#[test]
fn persistent_volumes_are_translated() {
    let key = |namespace: &str, name: &str| json!({"namespace": namespace, "name": name});
    for (source, expected) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1",
                "volumeAttributes": {"partition": "0"}}),
        ),
        (
            json!({"awsElasticBlockStore": {
                "volumeID": "aws://eu-west-1a/vol-2", "partition": 3, "fsType": "xfs", "readOnly": true,
            }}),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-2", "readOnly": true,
                "fsType": "xfs", "volumeAttributes": {"partition": "3"}}),
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws:///vol-3/"}}),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-3",
                "volumeAttributes": {"partition": "0"}}),
        ),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "/subscriptions/s/d"}}),
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "/subscriptions/s/d",
                "volumeAttributes": {"kind": "Managed"}}),
        ),
        (
            json!({"azureDisk": {
                "diskName": "d", "diskURI": "/s/d", "kind": "managed", "cachingMode": "",
                "fsType": "ext4", "readOnly": true,
            }}),
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "/s/d", "readOnly": true,
                "fsType": "ext4",
                "volumeAttributes": {"kind": "Managed", "cachingMode": "", "fsType": "ext4"}}),
        ),
        (
            json!({"azureFile": {
                "secretName": "azure-storage-account-acme-secret", "secretNamespace": "keys",
                "shareName": "s", "readOnly": true,
            }}),
            json!({"driver": "file.csi.azure.com", "volumeHandle": "#acme#s#pv#keys",
                "readOnly": true, "volumeAttributes": {"sharename": "s"},
                "nodeStageSecretRef": key("keys", "azure-storage-account-acme-secret")}),
        ),
        (
            json!({"azureFile": {"secretName": "acme", "shareName": "s"}}),
            json!({"driver": "file.csi.azure.com", "volumeHandle": "#acme#s#pv#shop",
                "volumeAttributes": {"sharename": "s"},
                "nodeStageSecretRef": key("shop", "acme")}),
        ),
        (
            json!({"cinder": {"volumeID": "c-1", "fsType": "ext4", "readOnly": true}}),
            json!({"driver": "cinder.csi.openstack.org", "volumeHandle": "c-1", "readOnly": true,
                "fsType": "ext4"}),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "partition": 2}}),
            json!({"driver": "pd.csi.storage.gke.io",
                "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
                "volumeAttributes": {"partition": "2"}}),
        ),
        (
            json!({"portworxVolume": {"volumeID": "p", "fsType": "xfs", "readOnly": true}}),
            json!({"driver": "pxd.portworx.com", "volumeHandle": "p", "fsType": "xfs"}),
        ),
        (
            json!({"vsphereVolume": {
                "volumePath": "[ds] kubevols/v.vmdk", "fsType": "ext4",
                "storagePolicyName": "gold", "storagePolicyID": "7",
            }}),
            json!({"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] kubevols/v.vmdk",
                "fsType": "ext4", "volumeAttributes": {"storagepolicyname": "gold"}}),
        ),
    ] {
        assert_eq!(csi_of(source.clone()), Ok(expected), "{source}");
    }
}

#[test]
fn inline_volumes_are_translated() {
    let nowhere = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks";
    for (source, name, mode, csi) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://a/vol-1", "readOnly": true}}),
            "ebs.csi.aws.com-vol-1",
            "ReadWriteOnce",
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "readOnly": true,
                "volumeAttributes": {"partition": "0"}}),
        ),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "/s/d", "cachingMode": ""}}),
            "/s/d",
            "ReadWriteOnce",
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "/s/d",
                "volumeAttributes": {"kind": "Managed"}}),
        ),
        (
            json!({"azureFile": {"secretName": "acme", "shareName": "s"}}),
            "#acme#s#data#shop",
            "ReadWriteMany",
            json!({"driver": "file.csi.azure.com", "volumeHandle": "#acme#s#data#shop",
                "volumeAttributes": {"sharename": "s"},
                "nodeStageSecretRef": {"name": "acme", "namespace": "shop"}}),
        ),
        (
            json!({"cinder": {"volumeID": "c-1"}}),
            "cinder.csi.openstack.org-c-1",
            "ReadWriteOnce",
            json!({"driver": "cinder.csi.openstack.org", "volumeHandle": "c-1"}),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d"}}),
            "pd.csi.storage.gke.io-d",
            "ReadWriteOnce",
            json!({"driver": "pd.csi.storage.gke.io", "volumeHandle": format!("{nowhere}/d"),
                "volumeAttributes": {"partition": ""}}),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}}),
            "pd.csi.storage.gke.io-d",
            "ReadOnlyMany",
            json!({"driver": "pd.csi.storage.gke.io", "volumeHandle": format!("{nowhere}/d"),
                "readOnly": true, "volumeAttributes": {"partition": ""}}),
        ),
        (
            json!({"portworxVolume": {"volumeID": "p", "readOnly": true}}),
            "pxd.portworx.com-p",
            "ReadOnlyMany",
            json!({"driver": "pxd.portworx.com", "volumeHandle": "p"}),
        ),
        (
            json!({"vsphereVolume": {"volumePath": "[ds] v", "storagePolicyName": "gold"}}),
            "csi.vsphere.vmware.com-[ds] v",
            "ReadWriteOnce",
            json!({"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] v",
                "volumeAttributes": {"storagepolicyname": "gold"}}),
        ),
    ] {
        let expected = json!({"name": name, "modes": [mode], "csi": csi});
        assert_eq!(inline_of(source.clone()), Ok(expected), "{source}");
    }
    let share = json!({"name": "data", "azureFile": {"secretName": "acme", "shareName": "s"}});
    let of_nobody = inline(&share, "").unwrap().unwrap();
    assert_eq!(of_nobody["spec"]["csi"]["nodeStageSecretRef"]["namespace"], "default");
}

#[test]
fn untranslatable_volumes_report_the_reason() {
    let empty = |kind: &str, field: &str| format!("{kind} names no volume: {field} is empty");
    for (source, expected) in [
        (json!({"awsElasticBlockStore": {}}), empty("awsElasticBlockStore", "volumeID")),
        (
            json!({"azureDisk": {"diskURI": "http://a/vhds/d", "kind": "Dedicated"}}),
            "kind(Dedicated) is not supported in csi migration".to_owned(),
        ),
        (json!({"azureDisk": {"diskName": "d", "diskURI": ""}}), empty("azureDisk", "diskURI")),
        (json!({"azureFile": {"secretName": "s"}}), empty("azureFile", "shareName")),
        (json!({"azureFile": {"shareName": "s"}}), empty("azureFile", "secretName")),
        (json!({"cinder": {"volumeID": 7}}), empty("cinder", "volumeID")),
        (json!({"gcePersistentDisk": {}}), empty("gcePersistentDisk", "pdName")),
        (json!({"portworxVolume": {}}), empty("portworxVolume", "volumeID")),
        (json!({"vsphereVolume": {}}), empty("vsphereVolume", "volumePath")),
    ] {
        assert_eq!(csi_of(source.clone()), Err(expected.clone()), "{source}");
        assert_eq!(inline_of(source.clone()), Err(expected), "{source}");
    }
    for id in ["aws://zone/v-1", "aws://vol-1", "aws:///a/vol-1", "aws:///?vol-1", "aws://"] {
        let source = json!({"awsElasticBlockStore": {"volumeID": id}});
        let expected = format!(
            "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({id})"
        );
        assert_eq!(csi_of(source.clone()), Err(expected.clone()));
        assert_eq!(inline_of(source), Err(expected));
    }
    let nowhere = "could not find a secret namespace in PersistentVolumeSource or ClaimRef";
    for (namespace, claim) in
        [(json!(""), json!({"namespace": "shop"})), (json!(null), json!(null))]
    {
        let source = json!({"secretName": "s", "secretNamespace": namespace, "shareName": "s"});
        let fields = json!({"azureFile": source, "claimRef": claim});
        assert_eq!(csi_of(fields), Err(nowhere.to_owned()));
    }
}

#[test]
fn azure_file_secret_names_its_storage_account() {
    for (secret, account) in [
        ("azure-storage-account-acme-secret", "acme"),
        ("my-azure-storage-account-a-secret-b-secret-2", "a-secret-b"),
        ("azure-storage-account--secret", "azure-storage-account--secret"),
        ("azure-storage-account-acme", "azure-storage-account-acme"),
        ("acme", "acme"),
    ] {
        let csi = csi_of(json!({"azureFile": {"secretName": secret, "shareName": "s"}})).unwrap();
        assert_eq!(csi["volumeHandle"], format!("#{account}#s#pv#shop"));
    }
    let mut grouped = volume(json!({"azureFile": {"secretName": "acme", "shareName": "s"}}));
    grouped["metadata"]["annotations"] = json!({"kubernetes.io/azure-file-resource-group": "rg"});
    let grouped = persistent(&grouped).unwrap().unwrap();
    assert_eq!(grouped["spec"]["csi"]["volumeHandle"], "rg#acme#s#pv#shop");
}

#[test]
fn portworx_secret_is_in_annotations() {
    let mut own = volume(json!({"portworxVolume": {"volumeID": "p"}}));
    own["metadata"]["annotations"]["openstorage.io/auth-secret-name"] = json!("token");
    let half = persistent(&own).unwrap().unwrap();
    assert_eq!(half["spec"]["csi"], json!({"driver": "pxd.portworx.com", "volumeHandle": "p"}));
    own["metadata"]["annotations"]["openstorage.io/auth-secret-namespace"] = json!("keys");
    let whole = persistent(&own).unwrap().unwrap();
    for step in ["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"]
    {
        let reference = &whole["spec"]["csi"][format!("{step}SecretRef")];
        assert_eq!(*reference, json!({"name": "token", "namespace": "keys"}), "{step}");
    }
}

#[test]
fn translation_keeps_other_fields() {
    let in_tree = volume(json!({"cinder": {"volumeID": "c"}}));
    let mut translated = persistent(&in_tree).unwrap().unwrap();
    translated["spec"].as_object_mut().unwrap().remove("csi").unwrap();
    translated["spec"]["cinder"] = in_tree["spec"]["cinder"].clone();
    assert_eq!(translated, in_tree);
    for other in [json!({"hostPath": {"path": "/"}}), json!({"csi": {}}), json!({"cinder": null})] {
        assert_eq!(persistent(&volume(other.clone())), Ok(None));
        assert_eq!(inline(&other, "shop"), Ok(None));
    }
}

#[test]
fn plugins_are_listed_in_order() {
    let expected = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,\
        kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,\
        kubernetes.io/vsphere-volume";
    assert_eq!(plugins().collect::<Vec<_>>().join(","), expected);
}

/// Unusual values.
fn strange() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z_/:#-]{0,12}".prop_map(Value::from),
        Just(json!("aws://")),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let keys = ["key", "values", "matchExpressions", "required", "nodeSelectorTerms"];
        let keys = prop::sample::select(keys.map(str::to_owned).to_vec());
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(keys, inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    /// Whatever an object holds where, there is an answer.
    #[test]
    fn nothing_is_too_strange(
        id in strange(), key in strange(), affinity in strange(), labels in strange(),
    ) {
        for (field, name) in [
            ("awsElasticBlockStore", "volumeID"), ("azureFile", "shareName"),
            ("gcePersistentDisk", "pdName"), ("vsphereVolume", "volumePath"),
        ] {
            let source = json!({name: id, "secretName": key, "kind": key, "partition": id});
            let _ = inline(&json!({field: source, "name": id}), "shop");
            let mut in_tree = volume(json!({field: source, "nodeAffinity": affinity}));
            for labels in [labels.clone(), json!({zones::ZONE: labels})] {
                in_tree["metadata"]["labels"] = labels;
                let _ = persistent(&in_tree);
            }
        }
    }
}

/// A source of each kind with all of its fields.
fn sources() -> Vec<Value> {
    vec![
        json!({"awsElasticBlockStore": {"volumeID": "aws://a/vol-1", "partition": 1, "fsType": "xfs", "readOnly": true}}),
        json!({"azureDisk": {"diskName": "d", "diskURI": "/s/d", "kind": "Managed", "cachingMode": "None", "fsType": "xfs", "readOnly": true}}),
        json!({"azureFile": {"secretName": "azure-storage-account-a-secret", "secretNamespace": "keys", "shareName": "s", "readOnly": true}}),
        json!({"cinder": {"volumeID": "c", "fsType": "xfs", "readOnly": true, "secretRef": {"name": "s", "namespace": "keys"}}}),
        json!({"gcePersistentDisk": {"pdName": "d", "partition": 1, "fsType": "xfs", "readOnly": true}}),
        json!({"portworxVolume": {"volumeID": "p", "fsType": "xfs", "readOnly": true}}),
        json!({"vsphereVolume": {"volumePath": "[ds] v", "fsType": "xfs", "storagePolicyName": "gold", "storagePolicyID": "7"}}),
    ]
}

/// PersistentVolumes of all kinds, with every kind of topology.
fn any_volume() -> impl Strategy<Value = Value> {
    let example = |source: Value| {
        let mut example = volume(source);
        example["metadata"]["annotations"] = json!({
            "kubernetes.io/azure-file-resource-group": "rg",
            "openstorage.io/auth-secret-name": "token", "openstorage.io/auth-secret-namespace": "keys",
        });
        example
    };
    let zone = prop::sample::select(vec![zones::ZONE, "failure-domain.beta.kubernetes.io/zone"]);
    let region = "topology.kubernetes.io/region";
    let label = prop_oneof![Just("eu-west1-b__eu-west1-c".to_owned()), text()];
    let affinity = (prop::option::of(1..4_usize), any::<bool>());
    let bound = (prop::sample::select(sources()), zone, label, affinity).prop_map(
        move |(source, zone, label, (terms, alone))| {
            let mut example = example(source);
            example["metadata"]["labels"] = json!({zone: label, region: "eu-west1"});
            let expression =
                |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
            let all = [expression(zone, "a"), expression(region, "eu"), expression("tier", "gold")];
            let expressions = all.into_iter().skip(usize::from(alone) * 2).collect::<Vec<_>>();
            if let Some(terms) = terms {
                let term = json!({"matchExpressions": expressions, "matchFields": []});
                example["spec"]["nodeAffinity"] =
                    json!({"required": {"nodeSelectorTerms": vec![term; terms]}});
            }
            example
        },
    );
    bound.prop_flat_map(|example| hostile(example, 8))
}

proptest! {
/// Finding 1: a volume is translated or refused with a reason, and the size of the
/// CSI volume is in proportion to the in-tree one.
    #[test]
    fn extremes_of_persistent_volumes_are_translated_or_refused(volume in any_volume()) {
        let terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"].as_array();
        let most = volume.to_string().len() * (8 + terms.map_or(0, Vec::len)) + 1024;
        match persistent(&volume) {
            Ok(Some(translated)) => {
                let csi = &translated["spec"]["csi"];
                prop_assert!(csi["driver"].is_string());
                prop_assert!(csi["volumeHandle"].as_str().is_some_and(|handle| !handle.is_empty()));
                prop_assert!(translated.to_string().len() <= most);
                prop_assert_eq!(persistent(&translated), Ok(None));
            }
            Ok(None) => {}
            Err(error) => prop_assert!(error.to_string().len() <= most),
        }
    }

    /// Finding 1.
    #[test]
    fn extremes_of_pods_volumes_are_translated_or_refused(
        volume in prop::sample::select(sources()).prop_flat_map(|mut volume| {
            volume["name"] = "data".into();
            hostile(volume, 4)
        }),
        namespace in text(),
    ) {
        let most = (volume.to_string().len() + namespace.len()) * 8 + 1024;
        match inline(&volume, &namespace) {
            Ok(Some(translated)) => {
                prop_assert!(translated["metadata"]["name"].as_str().is_some_and(|name| !name.is_empty()));
                prop_assert!(translated.to_string().len() <= most);
            }
            Ok(None) => {}
            Err(error) => prop_assert!(error.to_string().len() <= most),
        }
    }
}
