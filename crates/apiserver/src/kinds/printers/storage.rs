//! Columns and cells of volumes, claims, and the kinds of storage.k8s.io.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Column;
use super::{AGE, NAME, Printer, age, integer, name, or, string, wide};
use crate::kinds::{class_of, is_default};
use crate::schema::value::{items, text};

const UNSET: &str = "<unset>";

const fn boolean(name: &'static str) -> Column {
    Column(name, "boolean", "", 0)
}

pub(in crate::kinds) static VOLUMES: Printer = Printer::new(
    &[
        NAME,
        string("Capacity"),
        string("Access Modes"),
        string("Reclaim Policy"),
        string("Status"),
        string("Claim"),
        string("StorageClass"),
        string("VolumeAttributesClass"),
        string("Reason"),
        AGE,
        wide("VolumeMode"),
    ],
    volume,
);

pub(in crate::kinds) static CLAIMS: Printer = Printer::new(
    &[
        NAME,
        string("Status"),
        string("Volume"),
        string("Capacity"),
        string("Access Modes"),
        string("StorageClass"),
        string("VolumeAttributesClass"),
        AGE,
        wide("VolumeMode"),
    ],
    claim,
);

pub(in crate::kinds) static CLASSES: Printer = Printer::new(
    &[
        NAME,
        string("Provisioner"),
        string("ReclaimPolicy"),
        string("VolumeBindingMode"),
        string("AllowVolumeExpansion"),
        AGE,
    ],
    class,
);

pub(in crate::kinds) static ATTACHMENTS: Printer = Printer::new(
    &[
        NAME,
        Column("Attacher", "string", "name", 0),
        string("PV"),
        string("Node"),
        boolean("Attached"),
        AGE,
    ],
    attachment,
);

pub(in crate::kinds) static DRIVERS: Printer = Printer::new(
    &[
        NAME,
        boolean("AttachRequired"),
        boolean("PodInfoOnMount"),
        boolean("StorageCapacity"),
        string("TokenRequests"),
        boolean("RequiresRepublish"),
        string("Modes"),
        AGE,
    ],
    driver,
);

pub(in crate::kinds) static NODES: Printer = Printer::new(&[NAME, integer("Drivers"), AGE], node);
pub(in crate::kinds) static CAPACITIES: Printer =
    Printer::new(&[NAME, string("StorageClassName"), string("Capacity")], capacity);
pub(in crate::kinds) static ATTRIBUTES: Printer =
    Printer::new(&[NAME, string("DriverName"), AGE], attributes_class);
pub(in crate::kinds) static TRUST_BUNDLES: Printer =
    Printer::new(&[NAME, string("SignerName")], trust_bundle);

/// Short for each mode, in a fixed order and each once.
fn modes(modes: &Value) -> Value {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| items(modes).iter().any(|own| own == mode);
    let words: Vec<&str> =
        SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect();
    words.join(",").into()
}

fn phase(object: &Value) -> Value {
    match object["metadata"]["deletionTimestamp"].is_string() {
        true => "Terminating".into(),
        false => text(&object["status"]["phase"]).into(),
    }
}

fn volume(volume: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &volume["spec"];
    let claim = &spec["claimRef"];
    let claim = match claim.is_object() {
        true => format!("{}/{}", text(&claim["namespace"]), text(&claim["name"])),
        false => String::new(),
    };
    vec![
        name(volume),
        or(text(&spec["capacity"]["storage"]), "0"),
        modes(&spec["accessModes"]),
        text(&spec["persistentVolumeReclaimPolicy"]).into(),
        phase(volume),
        claim.into(),
        class_of(volume).unwrap_or_default().into(),
        or(text(&spec["volumeAttributesClassName"]), UNSET),
        text(&volume["status"]["reason"]).into(),
        age(volume, now),
        or(text(&spec["volumeMode"]), UNSET),
    ]
}

fn claim(claim: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&claim["spec"], &claim["status"]);
    let volume = text(&spec["volumeName"]);
    let (capacity, modes) = match volume {
        "" => ("".into(), "".into()),
        _ => (or(text(&status["capacity"]["storage"]), "0"), modes(&status["accessModes"])),
    };
    vec![
        name(claim),
        phase(claim),
        volume.into(),
        capacity,
        modes,
        class_of(claim).unwrap_or_default().into(),
        or(text(&spec["volumeAttributesClassName"]), UNSET),
        age(claim, now),
        or(text(&spec["volumeMode"]), UNSET),
    ]
}

fn class(class: &Value, now: Timestamp) -> Vec<Value> {
    let mark = if is_default(class) { " (default)" } else { "" };
    vec![
        format!("{}{mark}", text(&class["metadata"]["name"])).into(),
        text(&class["provisioner"]).into(),
        or(text(&class["reclaimPolicy"]), "Delete"),
        or(text(&class["volumeBindingMode"]), "Immediate"),
        json!(class["allowVolumeExpansion"] == true),
        age(class, now),
    ]
}

fn attachment(attachment: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &attachment["spec"];
    vec![
        name(attachment),
        text(&spec["attacher"]).into(),
        text(&spec["source"]["persistentVolumeName"]).into(),
        text(&spec["nodeName"]).into(),
        json!(attachment["status"]["attached"] == true),
        age(attachment, now),
    ]
}

fn driver(driver: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &driver["spec"];
    let join = |list: &Value, field: Option<&str>| -> String {
        let texts = items(list).iter().map(|item| text(field.map_or(item, |field| &item[field])));
        texts.collect::<Vec<_>>().join(",")
    };
    let audiences = match spec["tokenRequests"].is_null() {
        true => UNSET.into(),
        false => join(&spec["tokenRequests"], Some("audience")).into(),
    };
    vec![
        name(driver),
        json!(spec["attachRequired"] != false),
        json!(spec["podInfoOnMount"] == true),
        json!(spec["storageCapacity"] == true),
        audiences,
        json!(spec["requiresRepublish"] == true),
        or(&join(&spec["volumeLifecycleModes"], None), "<none>"),
        age(driver, now),
    ]
}

fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(node), json!(items(&node["spec"]["drivers"]).len()), age(node, now)]
}

fn capacity(capacity: &Value, _: Timestamp) -> Vec<Value> {
    vec![
        name(capacity),
        text(&capacity["storageClassName"]).into(),
        or(text(&capacity["capacity"]), UNSET),
    ]
}

fn attributes_class(class: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(class), text(&class["driverName"]).into(), age(class, now)]
}

fn trust_bundle(bundle: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(bundle), or(text(&bundle["spec"]["signerName"]), "<none>")]
}
