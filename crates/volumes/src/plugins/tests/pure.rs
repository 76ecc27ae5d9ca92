//! Versions and CSINode entries, as plain values.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::{CSINodeDriver, VolumeNodeResources};
use longshore_csi::v1::{NodeGetInfoResponse, Topology};
use longshore_generators::{NUMBERS, hostile, text};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::csi_node::{NODE_IDS, entry, new_labels, with_entry, with_id};
use super::super::version::Version;

fn strings<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).into()
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

#[test]
fn csi_version_highest_supported() {
    for (info, highest) in [
        (strings(["1.0.0"]), Some("1.0.0")),
        (strings(["v1.2", "1.10.0", "1.9.3"]), Some("1.10.0")),
        (strings(["0.3.0", "1.0.0", "2.0.0"]), Some("1.0.0")),
        (strings(["1.5.0-alpha.1"]), Some("1.5.0")),
        (strings(["0.3.0"]), None),
        (strings(["2.0.0"]), None),
        (strings(["one", "", "1", "1..0"]), None),
    ] {
        let found = Version::highest(&info).map(|version| version.to_string());
        assert_eq!(found.as_deref(), highest, "{info:?}");
    }
    assert!(Version::highest(&[]).is_none());
}

#[test]
fn csi_node_entry_from_node_info() {
    let topology = map([("zone", "a"), ("rack", "7")]);
    for (info, most) in [(0, None), (25, Some(25)), (-3, None), (i64::MAX, Some(i32::MAX))] {
        let info = NodeGetInfoResponse {
            node_id: "here".to_owned(),
            max_volumes_per_node: info,
            accessible_topology: None,
        };
        assert_eq!(
            entry("d", &info, &topology),
            CSINodeDriver {
                name: "d".to_owned(),
                node_id: "here".to_owned(),
                topology_keys: Some(strings(["rack", "zone"])),
                allocatable: most.map(|count| VolumeNodeResources { count: Some(count) }),
            }
        );
    }
}

#[test]
fn csi_node_entries_are_written_when_changed() {
    let one = |name: &str, id: &str| CSINodeDriver {
        name: name.to_owned(),
        node_id: id.to_owned(),
        ..CSINodeDriver::default()
    };
    let known = [one("a", "1"), one("b", "2")];
    let names = |drivers: Option<Vec<CSINodeDriver>>| {
        drivers.map(|drivers| drivers.iter().map(|d| format!("{}{}", d.name, d.node_id)).collect())
    };
    let expect = |texts: &[&str]| -> Option<Vec<String>> {
        Some(texts.iter().map(|text| (*text).to_owned()).collect())
    };
    assert_eq!(with_entry(&known, Some(one("a", "1")), "a"), None);
    assert_eq!(with_entry(&known, None, "c"), None);
    assert_eq!(names(with_entry(&known, Some(one("a", "3")), "a")), expect(&["b2", "a3"]));
    assert_eq!(names(with_entry(&known, Some(one("c", "4")), "c")), expect(&["a1", "b2", "c4"]));
    assert_eq!(names(with_entry(&known, None, "b")), expect(&["a1"]));
    let limited = CSINodeDriver {
        allocatable: Some(VolumeNodeResources { count: Some(3) }),
        ..one("a", "1")
    };
    assert_eq!(names(with_entry(&known, Some(limited), "a")), expect(&["b2", "a1"]));
}

#[test]
fn csi_node_id_annotation() {
    let of = |text: &str| map([(NODE_IDS, text)]);
    let change = |known: Option<&BTreeMap<String, String>>, driver, id| {
        with_id(known, driver, id).map_err(|error| error.to_string())
    };
    assert_eq!(change(None, "a", Some("1")), Ok(Some(json!(r#"{"a":"1"}"#))));
    assert_eq!(change(Some(&of("")), "a", Some("1")), Ok(Some(json!(r#"{"a":"1"}"#))));
    let two = of(r#"{"a":"1","b":"2"}"#);
    assert_eq!(change(Some(&two), "a", Some("1")), Ok(None));
    assert_eq!(change(Some(&two), "a", None), Ok(Some(json!(r#"{"b":"2"}"#))));
    assert_eq!(change(Some(&of(r#"{"a":"1"}"#)), "a", None), Ok(Some(Value::Null)));
    assert_eq!(change(None, "a", None), Ok(None));
    let error = change(Some(&of("[1]")), "a", Some("1")).unwrap_err();
    assert!(error.contains(NODE_IDS) && error.contains("[1]"), "{error}");
}

#[test]
fn csi_topology_label_collisions() {
    let known = map([("zone", "a"), ("other", "x")]);
    assert_eq!(
        new_labels(Some(&known), &map([("zone", "a"), ("rack", "7")])).unwrap(),
        map([("rack", "7")])
    );
    assert_eq!(new_labels(None, &map([("zone", "a")])).unwrap(), map([("zone", "a")]));
    let error = new_labels(Some(&known), &map([("zone", "b")])).unwrap_err().to_string();
    assert!(error.contains(r#""zone":"b""#) && error.contains(r#""zone":"a""#), "{error}");
}

proptest! {
    #[test]
    fn csi_version_accepts_any_text(versions in proptest::collection::vec(".*", 0..4)) {
        if let Some(version) = Version::highest(&versions) {
            prop_assert!(version.to_string().starts_with("1."), "{version}");
        }
    }

    #[test]
    fn csi_node_id_annotation_keeps_other_drivers(
        others in proptest::collection::btree_map("[b-z]{1,5}", "[0-9]{1,3}", 0..4),
    ) {
        let text = json!(others).to_string();
        let known = map([(NODE_IDS, &text)]);
        let with = with_id(Some(&known), "a", Some("1")).unwrap().unwrap();
        let known = map([(NODE_IDS, with.as_str().unwrap())]);
        let without = with_id(Some(&known), "a", None).unwrap().unwrap();
        match others.is_empty() {
            true => prop_assert_eq!(without, Value::Null),
            false => prop_assert_eq!(without, json!(text)),
        }
    }
}

proptest! {
    /// Finding 1: node info of a driver.
    #[test]
    fn extremes_of_csi_node_info(
        (driver, node_id) in (text(), text()),
        most in prop_oneof![4 => prop::sample::select(NUMBERS.to_vec()), 1 => any::<i64>()],
        segments in prop::option::of(prop::collection::btree_map(
            prop_oneof![prop::sample::select(vec!["zone", "rack"]).prop_map(str::to_owned), text()],
            text(),
            0..6,
        )),
        labels in prop::option::of(prop::collection::btree_map("zone|rack", text(), 0..3)),
        ids in prop::option::of(prop_oneof![
            text(),
            hostile(json!({"a": "1", "b": "2"}), 2).prop_map(|ids| ids.to_string()),
        ]),
        known in hostile(json!([
            {"name": "a", "nodeID": "1", "topologyKeys": ["zone"], "allocatable": {"count": 1}},
            {"name": "b", "nodeID": "2"},
        ]), 4),
    ) {
        let info = NodeGetInfoResponse {
            node_id: node_id.clone(),
            max_volumes_per_node: most,
            accessible_topology: segments.map(|segments| Topology { segments }),
        };
        let topology = info.accessible_topology.clone().unwrap_or_default().segments;
        match new_labels(labels.as_ref(), &topology) {
            Ok(new) => {
                let known = labels.clone().unwrap_or_default();
                prop_assert!(new.keys().all(|key| !known.contains_key(key)));
                let all: BTreeMap<_, _> = known.into_iter().chain(new).collect();
                prop_assert!(topology.iter().all(|(key, value)| all.get(key) == Some(value)));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        for driver in [driver.as_str(), "a"] {
            let made = entry(driver, &info, &topology);
            let count = made.allocatable.as_ref().and_then(|most| most.count);
            prop_assert_eq!(count, i32::try_from(most.min(i32::MAX.into())).ok().filter(|most| *most > 0));
            let known = serde_json::from_value::<Vec<CSINodeDriver>>(known.clone());
            for entry in [Some(made), None] {
                let known = known.as_deref().unwrap_or_default();
                if let Some(new) = with_entry(known, entry.clone(), driver) {
                    let own = new.iter().filter(|other| other.name == driver).count();
                    prop_assert_eq!(own, usize::from(entry.is_some()));
                    prop_assert_eq!(with_entry(&new, entry, driver), None);
                }
            }
            let annotations = ids.as_ref().map(|ids| map([(NODE_IDS, ids.as_str())]));
            for id in [Some(node_id.as_str()), None] {
                if let Ok(Some(new)) = with_id(annotations.as_ref(), driver, id) {
                    let new = map([(NODE_IDS, new.as_str().unwrap_or_default())]);
                    prop_assert_eq!(with_id(Some(&new), driver, id).unwrap(), None);
                }
            }
        }
    }

    /// Finding 1.
    #[test]
    fn extremes_of_csi_versions(
        versions in proptest::collection::vec(
            prop_oneof![
                text(),
                proptest::collection::vec(any::<u64>(), 1..5).prop_map(|numbers| {
                    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(".")
                }),
                any::<u64>().prop_map(|number| format!("v1.{number}")),
            ],
            0..4,
        ),
    ) {
        if let Some(version) = Version::highest(&versions) {
            let text = version.to_string();
            prop_assert!(text.starts_with("1."), "{text}");
            prop_assert_eq!(Version::highest(&[text]), Some(version));
        }
    }
}
