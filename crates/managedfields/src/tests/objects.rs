use serde_json::{Value, json};

use super::{paths, schema};
use crate::*;

/// An object, and those who write it.
struct World {
    schema: Schema,
    of: TypeId,
    object: Value,
    writes: u32,
    reset: Set<'static>,
    subresource: &'static str,
    /// Another version, in which `spec.replicas` is `status.replicas`.
    old_version: bool,
}

struct Moved<'s>(&'s Schema, TypeId);

impl Versions for Moved<'_> {
    fn convert(&self, object: &Value, api_version: &str) -> Option<(Value, &Schema, TypeId)> {
        let (from, to) = match api_version {
            "old/v1" => ("spec", "status"),
            "apps/v1" => ("status", "spec"),
            _ => return None,
        };
        let mut object = object.clone();
        object["apiVersion"] = api_version.into();
        let moved = object[from].as_object_mut().and_then(|map| map.remove("replicas"));
        if let Some(moved) = moved {
            object[to]["replicas"] = moved;
        }
        Some((object, self.0, self.1))
    }
}

impl World {
    fn new() -> World {
        let (schema, of) = schema();
        World {
            schema,
            of,
            object: json!({}),
            writes: 0,
            reset: Set::new(),
            subresource: "",
            old_version: false,
        }
    }

    fn with(object: Value) -> World {
        let mut world = World::new();
        let mut object = object;
        object["metadata"]["uid"] = "u".into();
        world.object = object;
        world
    }

    fn do_as<T>(&mut self, version: &str, write: impl FnOnce(&Target<'_>, &Value, &str) -> T) -> T {
        self.writes += 1;
        let now = format!("2026-01-01T00:00:{:02}Z", self.writes);
        let moved = Moved(&self.schema, self.of);
        let versions: &dyn Versions = if self.old_version { &moved } else { &OneVersion };
        let target = Target {
            schema: &self.schema,
            of: self.of,
            api_version: version,
            kind: "Workload",
            subresource: self.subresource,
            reset: &self.reset,
            versions,
        };
        write(&target, &self.object, &now)
    }

    fn update(&mut self, manager: &str, change: impl FnOnce(&mut Value)) {
        let mut new = self.object.clone();
        change(&mut new);
        self.do_as("apps/v1", |target, live, now| {
            update(target, live, &mut new, Writer { manager, now })
        });
        new["metadata"]["uid"] = "u".into();
        self.object = new;
    }

    fn try_apply(&mut self, manager: &str, force: bool, patch: &Value) -> Result<(), ApplyError> {
        let mut patch = patch.clone();
        for (field, value) in [("apiVersion", "apps/v1"), ("kind", "Workload")] {
            if patch[field].is_null() {
                patch[field] = value.into();
            }
        }
        let mut new = self.do_as("apps/v1", |target, live, now| {
            apply(target, live, &patch, Writer { manager, now }, force)
        })?;
        new["metadata"]["uid"] = "u".into();
        self.object = new;
        Ok(())
    }

    fn apply(&mut self, manager: &str, patch: Value) {
        self.try_apply(manager, false, &patch).unwrap();
    }

    fn owned(&self, manager: &str, operation: Operation) -> Vec<String> {
        let managers = Managers::read(self.object["metadata"].get("managedFields")).unwrap();
        managers.set_of(manager, operation).map(paths).unwrap_or_default()
    }

    fn applied(&self, manager: &str) -> Vec<String> {
        self.owned(manager, Operation::Apply)
    }

    fn updated(&self, manager: &str) -> Vec<String> {
        self.owned(manager, Operation::Update)
    }

    fn time(&self, manager: &str) -> &str {
        let list = self.object["metadata"]["managedFields"].as_array().unwrap();
        list.iter().find(|entry| entry["manager"] == manager).unwrap()["time"]
            .as_str()
            .unwrap_or_default()
    }
}

const NONE: [&str; 0] = [];

fn labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

#[test]
fn update_owns_what_it_sets_and_takes_it_from_others() {
    let mut world = World::new();
    world.update("maker", |object| {
        *object = json!({"apiVersion": "apps/v1", "kind": "Workload",
            "metadata": {"name": "w", "labels": {"a": "1", "b": "1"}},
            "spec": {"replicas": 1, "containers": [{"name": "c", "image": "i"}]}});
    });
    let container = ".spec.containers[name=\"c\"]";
    assert_eq!(
        world.updated("maker"),
        [
            ".metadata.labels".to_owned(),
            ".metadata.labels.a".into(),
            ".metadata.labels.b".into(),
            ".spec.containers".into(),
            ".spec.replicas".into(),
            container.into(),
            format!("{container}.image"),
            format!("{container}.name"),
            format!("{container}.resources"),
        ]
    );
    assert_eq!(
        world.object["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"],
        json!({"f:labels": {".": {}, "f:a": {}, "f:b": {}}})
    );
    world.update("scaler", |object| {
        object["spec"]["replicas"] = 3.into();
        object["metadata"]["labels"].as_object_mut().unwrap().remove("a");
        object["metadata"]["resourceVersion"] = "7".into();
    });
    assert_eq!(world.updated("scaler"), [".spec.replicas"]);
    assert!(!world.updated("maker").contains(&".spec.replicas".to_owned()));
    assert!(!world.updated("maker").contains(&".metadata.labels.a".to_owned()));
    assert_eq!(
        (world.time("maker"), world.time("scaler")),
        ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z")
    );
}

#[test]
fn update_without_change_changes_no_manager() {
    let mut world = World::new();
    world.update("maker", |object| *object = labels(json!({"a": "1"})));
    let before = world.object.clone();
    world.update("other", |_| {});
    assert_eq!(world.object, before);
    // A client that drops the list does not drop the managers.
    world.update("other", |object| {
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
    });
    assert_eq!(world.object, before);
}

#[test]
fn update_can_reset_and_replace_managers() {
    let made =
        |world: &mut World| world.update("maker", |object| *object = labels(json!({"a": "1"})));
    for reset in [json!([]), json!([{}])] {
        let mut world = World::new();
        made(&mut world);
        world.update("other", |object| {
            object["metadata"]["managedFields"] = reset;
            object["metadata"]["labels"]["b"] = "1".into();
        });
        assert_eq!(world.object["metadata"].get("managedFields"), None);
        world.update("other", |object| object["metadata"]["labels"]["c"] = "1".into());
        assert_eq!(
            world.object["metadata"].get("managedFields"),
            None,
            "not before the first apply"
        );
        world.apply("applier", labels(json!({"a": "1"})));
        assert_eq!(world.applied("applier"), [".metadata.labels.a"]);
        assert_eq!(world.updated("before-first-apply").len(), 4, "the map, and a, b and c");
    }
    let mut world = World::new();
    made(&mut world);
    world.update("other", |object| {
        object["metadata"]["managedFields"][0]["manager"] = "renamed".into();
    });
    assert_eq!((world.updated("maker").len(), world.updated("renamed").len()), (0, 2));
    for bad in [json!([{"manager": "x"}]), json!("x"), json!([1]), json!(null)] {
        let before = world.object.clone();
        world.update("other", |object| object["metadata"]["managedFields"] = bad);
        assert_eq!(world.object, before, "the stored list stays");
    }
    world.subresource = "status";
    let before = world.object.clone();
    world.update("other", |object| object["metadata"]["managedFields"] = json!([]));
    assert_eq!(world.object, before, "not by a subresource");
}

#[test]
fn update_ignores_fields_that_the_server_resets() {
    let mut world = World::new();
    world.reset = Set::of_fields(&["status"]);
    world.update("maker", |object| {
        *object = json!({"metadata": {"labels": {"a": "1"}}, "status": {"replicas": 3}});
    });
    assert_eq!(world.updated("maker"), [".metadata.labels", ".metadata.labels.a"]);
    world.apply("applier", json!({"spec": {"replicas": 1}, "status": {"replicas": 5}}));
    assert_eq!(world.applied("applier"), [".spec.replicas"]);
}

#[test]
fn update_managers_are_capped() {
    let mut world = World::new();
    world.apply("applier", labels(json!({"own": "1"})));
    for i in 0..15 {
        world.update(&format!("m{i:02}"), |object| {
            object["metadata"]["labels"][format!("l{i:02}")] = "1".into();
        });
    }
    let list = world.object["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(list.len(), 11, "ten, and one that applies");
    assert_eq!(
        world.updated("ancient-changes"),
        (0..6).map(|i| format!(".metadata.labels.l{i:02}")).collect::<Vec<_>>()
    );
    assert_eq!(world.updated("m06"), [".metadata.labels.l06"]);
    assert_eq!(world.time("ancient-changes"), "2026-01-01T00:00:07Z");
}

#[test]
fn apply_makes_merges_and_removes() {
    let mut world = World::new();
    world.apply(
        "a",
        json!({"metadata": {"name": "w"}, "spec": {"replicas": 1,
        "containers": [{"name": "c", "image": "1", "args": ["x"]}, {"name": "d"}]}}),
    );
    assert_eq!(world.object["spec"]["replicas"], 1);
    world.update("defaults", |object| {
        object["spec"]["containers"][0]["env"] = json!([{"name": "E"}])
    });
    world.apply("a", json!({"spec": {"containers": [{"name": "c", "image": "2"}]}}));
    assert_eq!(
        world.object["spec"],
        json!({"containers": [{"name": "c", "image": "2", "env": [{"name": "E"}]}]})
    );
    // What others own stays; an item goes with what is below it unless others own the item.
    world
        .apply("b", json!({"spec": {"replicas": 2, "containers": [{"name": "c", "args": ["y"]}]}}));
    world.apply("a", json!({"spec": {}}));
    assert_eq!(
        world.object["spec"],
        json!({"replicas": 2, "containers": [{"name": "c", "args": ["y"], "env": [{"name": "E"}]}]})
    );
    world.update("other", |object| object["spec"]["containers"][0]["env"][0]["value"] = "v".into());
    world.apply("b", json!({"spec": {"replicas": 2}}));
    assert_eq!(world.object["spec"], json!({"replicas": 2}));
}

#[test]
fn apply_shares_equal_values_and_conflicts_on_others() {
    let mut world = World::new();
    world.apply("a", labels(json!({"x": "1", "y": "1"})));
    let time = world.time("a").to_owned();
    world.apply("b", labels(json!({"x": "1"})));
    assert_eq!(world.applied("b"), [".metadata.labels.x"]);
    assert_eq!((world.time("a"), world.time("b")), (&*time, ""), "the object did not change");
    let error =
        world.try_apply("b", false, &labels(json!({"x": "2", "y": "2", "z": "1"}))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .metadata.labels.x\n- .metadata.labels.y"
    );
    world.try_apply("b", true, &labels(json!({"x": "2", "z": "1"}))).unwrap();
    assert_eq!(world.applied("a"), [".metadata.labels.y"]);
    assert_eq!(world.applied("b"), [".metadata.labels.x", ".metadata.labels.z"]);
    // What both had is removed only by the last one that lets go.
    world.apply("a", labels(json!({"y": "1", "z": "1"})));
    world.apply("b", labels(json!({"x": "2"})));
    assert_eq!(world.object["metadata"]["labels"], json!({"x": "2", "y": "1", "z": "1"}));
    world.apply("a", labels(json!({"y": "1"})));
    assert_eq!(world.object["metadata"]["labels"], json!({"x": "2", "y": "1"}));
}

#[test]
fn apply_conflicts_name_managers_as_upstream_does() {
    let mut world = World::new();
    world.update("kubectl-edit", |object| *object = json!({"spec": {"replicas": 1}}));
    let patch = json!({"spec": {"replicas": 2}});
    let error = world.try_apply("a", false, &patch).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using apps/v1: .spec.replicas"
    );
    world.subresource = "scale";
    world.update("hpa", |object| object["spec"]["replicas"] = 5.into());
    world.subresource = "";
    let error = world.try_apply("a", false, &patch).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"hpa\" with subresource \"scale\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn apply_again_changes_nothing() {
    let mut world = World::new();
    let patch = json!({"metadata": {"labels": {"x": "1"}}, "spec": {"containers": [{"name": "c", "args": ["a"]}]}});
    world.apply("a", patch.clone());
    let before = world.object.clone();
    world.apply("a", patch.clone());
    assert_eq!(world.object, before);
    world.try_apply("a", true, &patch).unwrap();
    assert_eq!(world.object, before);
}

#[test]
fn apply_of_an_object_without_managers_records_what_was_there() {
    let mut world = World::with(json!({"metadata": {"labels": {"a": "1", "b": "1"}}}));
    let error = world.try_apply("x", false, &labels(json!({"a": "2"}))).unwrap_err();
    assert!(
        error.to_string().contains("conflict with \"before-first-apply\" using apps/v1"),
        "{error}"
    );
    world.try_apply("x", true, &labels(json!({"a": "2"}))).unwrap();
    assert_eq!(world.updated("before-first-apply"), [".metadata.labels", ".metadata.labels.b"]);
}

#[test]
fn apply_refuses_what_is_none_of_the_kind() {
    let mut world = World::new();
    for (patch, message) in [
        (json!({"kind": "Other"}), "invalid object type: apps/v1, Kind=Other"),
        (json!({"apiVersion": "v1"}), "invalid object type: /v1, Kind=Workload"),
        (json!({"metadata": {"managedFields": []}}), "metadata.managedFields must be nil"),
        (
            json!({"metadata": {"name": "n", "namespace": "ns"}, "spec": {"x": 1}}),
            "failed to create typed patch object (ns/n; apps/v1, Kind=Workload): .spec.x: field not declared in schema",
        ),
    ] {
        assert_eq!(world.try_apply("a", false, &patch).unwrap_err().to_string(), message);
    }
    let mut world = World::with(json!({"metadata": {"managedFields": [{"operation": "x"}]}}));
    let error = world.try_apply("a", false, &json!({})).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to decode managed fields: operation must be `Apply` or `Update`"
    );
}

#[test]
fn apply_of_kubectl_goes_over_from_client_side_apply() {
    let applied = json!({"apiVersion": "apps/v1", "kind": "Workload", "metadata": {"name": "w"},
        "spec": {"replicas": 1, "paused": true}});
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let made = || {
        let mut world = World::new();
        world.update("kubectl-client-side-apply", |object| {
            *object = applied.clone();
            object["metadata"]["annotations"] = json!({ annotation: applied.to_string() });
        });
        world
    };
    let mut patch = applied.clone();
    patch["spec"]["replicas"] = 2.into();
    let mut world = made();
    assert!(world.try_apply("other", false, &patch).is_err(), "only kubectl does");
    world.apply("kubectl", patch.clone());
    assert_eq!(world.object["spec"]["replicas"], 2);
    assert_eq!(world.object["metadata"]["annotations"][annotation], format!("{patch}\n"));

    let mut world = made();
    world.update("scaler", |object| object["spec"]["replicas"] = 7.into());
    let error = world.try_apply("kubectl", false, &patch).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"scaler\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn managers_in_other_versions_are_compared_there() {
    let mut world = World::new();
    world.old_version = true;
    let mut new = json!({"apiVersion": "old/v1", "kind": "Workload", "metadata": {"uid": "u"}, "status": {"replicas": 1}});
    world.do_as("old/v1", |target, live, now| {
        update(target, live, &mut new, Writer { manager: "old", now });
    });
    // The stored form is the new version.
    new["apiVersion"] = "apps/v1".into();
    new["spec"] = json!({"replicas": new["status"]["replicas"].take()});
    new.as_object_mut().unwrap().remove("status");
    world.object = new;
    assert_eq!(world.updated("old"), [".status", ".status.replicas"]);
    let error = world.try_apply("a", false, &json!({"spec": {"replicas": 2}})).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"old\" using old/v1: .status.replicas"
    );
    world.update("new", |object| object["spec"]["replicas"] = 3.into());
    assert_eq!(world.updated("old"), [".status"]);
    // Nothing is known of a version that is gone.
    world.old_version = false;
    world.update("new", |object| object["spec"]["paused"] = true.into());
    assert_eq!(world.updated("old"), NONE);
}

#[test]
fn managers_of_parts_own_what_became_one_value() {
    let mut world = World::with(json!({"spec": {"selector": {"matchLabels": {"a": "1"}}}}));
    world.object["metadata"]["managedFields"] = json!([{
        "manager": "a", "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:selector": {"f:matchLabels": {".": {}, "f:a": {}}}}},
    }]);
    world.update("b", |object| object["spec"]["replicas"] = 1.into());
    assert_eq!(world.applied("a"), [".spec.selector"]);
}

#[test]
fn times_alone_are_no_difference() {
    let entry = |time: &str, manager: &str| json!([{"manager": manager, "time": time}]);
    assert!(same_but_for_times(&entry("1", "m"), &entry("2", "m")));
    assert!(!same_but_for_times(&entry("1", "m"), &entry("1", "n")));
    assert!(!same_but_for_times(&entry("1", "m"), &json!([])));
    assert!(!same_but_for_times(&json!(null), &json!(null)));
}
