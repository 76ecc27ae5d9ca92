//! Versions, and what the cluster is told, as plain values.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::{CSINodeDriver, VolumeNodeResources};
use longshore_csi::v1::NodeGetInfoResponse;
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
fn the_highest_version_that_the_node_speaks_counts() {
    for (told, highest) in [
        (strings(["1.0.0"]), Some("1.0.0")),
        (strings(["v1.2", "1.10.0", "1.9.3"]), Some("1.10.0")),
        (strings(["0.3.0", "1.0.0", "2.0.0"]), Some("1.0.0")),
        (strings(["1.5.0-alpha.1"]), Some("1.5.0")),
        (strings(["0.3.0"]), None),
        (strings(["2.0.0"]), None),
        (strings(["one", "", "1", "1..0"]), None),
    ] {
        let found = Version::highest(&told).map(|version| version.to_string());
        assert_eq!(found.as_deref(), highest, "{told:?}");
    }
    assert!(Version::highest(&[]).is_none());
}

#[test]
fn an_entry_says_what_the_driver_said() {
    let topology = map([("zone", "a"), ("rack", "7")]);
    for (told, most) in [(0, None), (25, Some(25)), (-3, None), (i64::MAX, Some(i32::MAX))] {
        let told = NodeGetInfoResponse {
            node_id: "here".to_owned(),
            max_volumes_per_node: told,
            accessible_topology: None,
        };
        assert_eq!(
            entry("d", &told, &topology),
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
fn entries_are_written_when_they_differ() {
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
fn the_annotation_names_the_node_for_each_driver() {
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
fn a_driver_does_not_move_the_node() {
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
    fn no_version_is_too_odd(versions in proptest::collection::vec(".*", 0..4)) {
        if let Some(version) = Version::highest(&versions) {
            prop_assert!(version.to_string().starts_with("1."), "{version}");
        }
    }

    #[test]
    fn who_is_taken_in_and_out_leaves_the_others(
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
