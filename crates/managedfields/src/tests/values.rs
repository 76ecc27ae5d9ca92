use serde_json::{Value, json};

use super::{paths, schema};
use crate::*;

fn compare(old: &Value, new: &Value) -> [Vec<String>; 3] {
    let (schema, of) = schema();
    let found = Comparison::of(&schema, of, old, new).unwrap();
    [paths(&found.removed), paths(&found.modified), paths(&found.added)]
}

fn spec(spec: Value) -> Value {
    json!({ "spec": spec })
}

#[test]
fn compare_names_what_differs() {
    let none: [&str; 0] = [];
    for (old, new, removed, modified, added) in [
        (
            json!({"replicas": 1}),
            json!({"replicas": 2}),
            &none[..],
            &[".spec.replicas"][..],
            &none[..],
        ),
        (json!({"replicas": 1}), json!({}), &[".spec.replicas"], &none, &none),
        // one value
        (
            json!({"selector": {"matchLabels": {"a": "b"}}}),
            json!({"selector": {"matchLabels": {"a": "c"}}}),
            &none,
            &[".spec.selector"],
            &none,
        ),
        // parts
        (
            json!({"containers": [{"name": "a", "image": "1"}]}),
            json!({"containers": [{"name": "b", "args": ["x"]}, {"name": "a", "image": "2"}]}),
            &none,
            &[".spec.containers[name=\"a\"].image"],
            &[
                ".spec.containers[name=\"b\"]",
                ".spec.containers[name=\"b\"].args",
                ".spec.containers[name=\"b\"].name",
                ".spec.containers[name=\"b\"].resources",
            ],
        ),
        // an empty map or list is a value
        (json!({}), json!({"containers": []}), &none, &none, &[".spec.containers"]),
        (
            json!({"containers": []}),
            json!({"containers": null}),
            &none,
            &[".spec.containers"],
            &none,
        ),
        // what nothing is known of
        (
            json!({"extension": {"a": {"b": 1}, "l": [1]}}),
            json!({"extension": {"a": {"b": 2}, "l": [2]}}),
            &none,
            &[".spec.extension.l", ".spec.extension.a.b"],
            &none,
        ),
        (
            json!({"extension": {"a": {"b": 1}}}),
            json!({"extension": {"a": 1}}),
            &[".spec.extension.a.b"],
            &[".spec.extension.a"],
            &none,
        ),
        // several items with one key are one value
        (
            json!({"containers": [{"name": "a"}, {"name": "a", "image": "1"}]}),
            json!({"containers": [{"name": "a"}, {"name": "a", "image": "2"}]}),
            &none,
            &[".spec.containers[name=\"a\"]"],
            &none,
        ),
        (
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "a"}, {"name": "a"}]}),
            &[
                ".spec.containers[name=\"a\"]",
                ".spec.containers[name=\"a\"].name",
                ".spec.containers[name=\"a\"].resources",
            ],
            &none,
            &[".spec.containers[name=\"a\"]"],
        ),
        // the default of a key counts
        (
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}),
            &none,
            &none,
            &[".spec.containers[name=\"a\"].ports[containerPort=80,protocol=\"TCP\"].protocol"],
        ),
    ] {
        let found = compare(&spec(old.clone()), &spec(new.clone()));
        assert_eq!(found, [removed, modified, added], "{old} {new}");
    }
}

#[test]
fn compare_refuses_items_without_key() {
    let (schema, of) = schema();
    let (old, new) = (json!({}), spec(json!({"containers": [{"image": "x"}]})));
    let error = Comparison::of(&schema, of, &old, &new).unwrap_err();
    assert_eq!(
        error.to_string(),
        ".spec.containers: element 0: associative list with keys has an element that omits all key \
         fields [\"name\"] (and doesn't have default values for any key fields)"
    );
}

#[test]
fn fields_of_an_object_are_leaves_and_items() {
    let (schema, of) = schema();
    let object = json!({
        "metadata": {"labels": {"a": "b"}, "finalizers": ["x"], "annotations": {}},
        "spec": {"containers": [{"name": "a", "args": ["x"]}], "replicas": null,
                 "extension": {"m": {"n": 1}, "l": []}, "selector": {}},
    });
    assert_eq!(
        paths(&fields_of(&schema, of, &object).unwrap()),
        [
            ".metadata.annotations",
            ".metadata.finalizers[=\"x\"]",
            ".metadata.labels.a",
            ".spec.replicas",
            ".spec.selector",
            ".spec.containers[name=\"a\"]",
            ".spec.containers[name=\"a\"].args",
            ".spec.containers[name=\"a\"].name",
            ".spec.extension.l",
            ".spec.extension.m",
            ".spec.extension.m.n",
        ]
    );
}

#[test]
fn merge_keeps_what_the_second_object_does_not_name() {
    let (schema, of) = schema();
    for (base, over, merged) in [
        (
            json!({"replicas": 1, "paused": true}),
            json!({"replicas": 2}),
            json!({"replicas": 2, "paused": true}),
        ),
        (
            json!({"selector": {"matchLabels": {"a": "1"}}}),
            json!({"selector": {"matchLabels": {"b": "1"}}}),
            json!({"selector": {"matchLabels": {"b": "1"}}}),
        ),
        (
            json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}]}),
            json!({"containers": [{"name": "a", "image": "2"}]}),
            json!({"containers": [{"name": "a", "image": "2", "args": ["x"]}]}),
        ),
        (
            json!({"extension": {"a": 1}}),
            json!({"extension": {"b": [2]}}),
            json!({"extension": {"a": 1, "b": [2]}}),
        ),
        (json!({"extension": {"a": 1}}), json!({"extension": 5}), json!({"extension": 5})),
        (
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": null}),
            json!({"containers": [{"name": "a"}]}),
        ),
        (json!({"replicas": 1}), json!({"replicas": null}), json!({"replicas": null})),
    ] {
        let merged_found = merge(&schema, of, Some(&spec(base)), Some(&spec(over))).unwrap();
        assert_eq!(merged_found, Some(spec(merged)));
    }
}

#[test]
fn merge_orders_lists() {
    let (schema, of) = schema();
    let finalizers = |names: &str| {
        let names: Vec<Value> = names.chars().map(|c| c.to_string().into()).collect();
        json!({"metadata": {"finalizers": names}})
    };
    for (base, over, merged) in [
        ("abc", "c", "abc"),
        ("abc", "ca", "bca"),
        ("abc", "cba", "cba"),
        ("ab", "xy", "abxy"),
        ("abcd", "xbyd", "axbcyd"),
        ("abc", "", "abc"),
        ("", "ab", "ab"),
    ] {
        let found = merge(&schema, of, Some(&finalizers(base)), Some(&finalizers(over))).unwrap();
        let found = found.unwrap()["metadata"]["finalizers"].clone();
        let found: String = found.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(found, merged, "{base} {over}");
    }
}

#[test]
fn remove_leaves_what_becomes_empty() {
    let (schema, of) = schema();
    let object = json!({
        "metadata": {"labels": {"a": "1"}, "finalizers": ["x", "y"]},
        "spec": {"containers": [{"name": "a", "image": "1", "resources": {"limits": {"cpu": 1}}}, {"name": "b"}],
                 "selector": {"matchLabels": {"a": "1"}}, "extension": {"m": {"n": 1}}},
    });
    let fields = super::set(&json!({
        "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {"v:\"x\"": {}}},
        "f:spec": {
            "f:containers": {
                "k:{\"name\":\"a\"}": {"f:image": {}, "f:resources": {"f:limits": {"f:cpu": {}}}},
                "k:{\"name\":\"b\"}": {},
            },
            "f:selector": {"f:matchLabels": {}},
            "f:extension": {"f:m": {"f:n": {}}},
        },
    }));
    assert_eq!(
        remove(&schema, of, object, &fields),
        json!({
            "metadata": {"labels": {}, "finalizers": ["y"]},
            "spec": {"containers": [{"name": "a", "resources": {"limits": {}}}],
                     "selector": {}, "extension": {"m": {}}},
        })
    );
}

#[test]
fn validate_names_what_is_wrong() {
    let (schema, of) = schema();
    for (object, message) in [
        (spec(json!({"replica": 1})), ".spec.replica: field not declared in schema"),
        (
            spec(json!({"replicas": "1"})),
            ".spec.replicas: expected numeric (int or float), got string",
        ),
        (
            json!({"metadata": {"name": 5}}),
            ".metadata.name: expected string, got &value.valueUnstructured{Value:5}",
        ),
        (spec(json!({"containers": {"a": 1}})), ".spec.containers: expected list, got &{map[a:1]}"),
        (spec(json!([1, "a"])).clone(), ".spec: expected map, got &{[1 a]}"),
        (
            spec(json!({"containers": [{"name": "a"}, {"name": "a"}]})),
            ".spec.containers: duplicate entries for key [name=\"a\"]",
        ),
        (
            json!({"metadata": {"finalizers": ["a", {}]}}),
            ".metadata.finalizers: element 1: associative list without keys has an element that's a map type",
        ),
        (
            spec(json!({"paused": [], "replicas": true})),
            "errors:\n  .spec.paused: expected any scalar, got &{[]}\n  .spec.replicas: expected numeric (int or float), got bool",
        ),
    ] {
        assert_eq!(validate(&schema, of, &object).unwrap_err(), message);
    }
    validate(&schema, of, &spec(json!({"extension": [{"x": {}}], "containers": null}))).unwrap();
}
