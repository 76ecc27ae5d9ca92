//! Events live in two groups but are stored once, as core/v1: the newer group's names for the same
//! facts are put on and taken off here. All other resources are stored as they are shown.

use serde_json::Value;

/// The same facts by their names in events.k8s.io/v1 and in core/v1.
const RENAMED: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// The object as it is stored: events of either group become core/v1 events.
pub(super) fn to_storage(mut object: Value) -> Value {
    rename(&mut object, "v1", RENAMED.iter().copied());
    object
}

/// A stored object in the form of events.k8s.io.
pub(super) fn from_storage(mut stored: Value) -> Value {
    rename(&mut stored, "events.k8s.io/v1", RENAMED.iter().map(|(new, core)| (*core, *new)));
    stored
}

fn rename<'a>(
    object: &mut Value,
    api_version: &str,
    names: impl Iterator<Item = (&'a str, &'a str)>,
) {
    let Some(map) = object.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
    map.insert("apiVersion".to_owned(), api_version.into());
}
