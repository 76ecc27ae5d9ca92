use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;
use crate::cpu_time::cpu_time;
use crate::schema::value::{arbitrary, same};

const POD: Gvk = Gvk { group: "", version: "v1", kind: "Pod" };

fn patched(kind: PatchKind, current: &Value, patch: &Value) -> Result<Value, StatusError> {
    apply(kind, POD, current, patch.to_string().as_bytes()).map(|decoded| decoded.0.value)
}

#[test]
fn kinds_by_content_type() {
    let table = [
        ("application/json-patch+json", PatchKind::Json),
        ("application/merge-patch+json; charset=utf-8", PatchKind::Merge),
        ("application/strategic-merge-patch+json", PatchKind::Strategic),
    ];
    for (content_type, kind) in table {
        assert_eq!(PatchKind::of(Some(content_type)).unwrap(), kind);
    }
    for content_type in [None, Some("application/json"), Some("application/apply-patch+yaml")] {
        assert_eq!(PatchKind::of(content_type).unwrap_err().code, 415);
    }
}

#[test]
fn json_patches() {
    let current = json!({"a": {"b": [1, 2]}, "x/y": 1});
    let table = [
        (json!([]), Some(current.clone())),
        (
            json!([{"op": "add", "path": "/a/b/1", "value": 9}]),
            Some(json!({"a": {"b": [1, 9, 2]}, "x/y": 1})),
        ),
        (
            json!([{"op": "add", "path": "/a/b/-", "value": 9}]),
            Some(json!({"a": {"b": [1, 2, 9]}, "x/y": 1})),
        ),
        (json!([{"op": "remove", "path": "/x~1y"}]), Some(json!({"a": {"b": [1, 2]}}))),
        (
            json!([{"op": "move", "from": "/a/b", "path": "/c"}]),
            Some(json!({"a": {}, "c": [1, 2], "x/y": 1})),
        ),
        (
            json!([{"op": "copy", "from": "/a", "path": "/c"}, {"op": "replace", "path": "/c/b", "value": 0}]),
            Some(json!({"a": {"b": [1, 2]}, "c": {"b": 0}, "x/y": 1})),
        ),
        (
            json!([{"op": "replace", "path": "/a/new", "value": 3}]),
            Some(json!({"a": {"b": [1, 2], "new": 3}, "x/y": 1})),
        ),
        (json!([{"op": "replace", "path": "/a/b/7", "value": 3}]), None),
        (json!([{"op": "replace", "path": "/nope/new", "value": 3}]), None),
        (json!([{"op": "test", "path": "/a/b/0", "value": 1}]), Some(current.clone())),
        (json!([{"op": "test", "path": "/a/b/0", "value": 2}]), None),
        (json!([{"op": "remove", "path": "/nope"}]), None),
        (json!([{"op": "add", "path": "/a/b/7", "value": 9}]), None),
        (json!([{"op": "move", "from": "/a", "path": "/a/b/0"}]), None),
    ];
    for (patch, wanted) in table {
        match (patched(PatchKind::Json, &current, &patch), wanted) {
            (Ok(result), Some(wanted)) => assert_eq!(result, wanted, "{patch}"),
            (Err(error), None) => {
                assert_eq!((error.code, error.reason), (422, "Invalid"), "{patch}")
            }
            (result, wanted) => panic!("{patch}: {result:?}, wanted {wanted:?}"),
        }
    }
    for (patch, code) in [
        (json!({}), 400),
        (json!([1]), 400),
        (json!([{"op": "fly"}]), 422),
        (json!([{"op": "add", "path": "a", "value": 1}]), 422),
    ] {
        assert_eq!(patched(PatchKind::Json, &current, &patch).unwrap_err().code, code, "{patch}");
    }
}

#[test]
fn hostile_json_patches() {
    let wide = Value::Array(vec![json!(0); 100_000]);
    let double: Vec<Value> = (0..9_000)
        .map(|i| json!({"op": "copy", "from": "/a", "path": format!("/a/{i}")}))
        .collect();
    let nest: Vec<Value> =
        (0..9_000).map(|_| json!({"op": "copy", "from": "/a", "path": "/a/a"})).collect();
    let dig: Vec<Value> =
        (0..9_000).map(|_| json!({"op": "move", "from": "/a", "path": "/b/a"})).collect();
    let shift = vec![json!({"op": "add", "path": "/w/0", "value": 0}); 9_000];
    let many = vec![json!({"op": "test", "path": "/a", "value": {}}); 10_001];
    let deep = vec![json!({"op": "add", "path": "/a".repeat(200), "value": 0})];
    for (patch, code) in
        [(double, 413), (nest, 400), (dig, 422), (shift, 413), (many, 413), (deep, 400)]
    {
        let (current, patch) = (json!({"a": {}, "w": wide}), Value::Array(patch));
        let (result, took) = cpu_time(|| patched(PatchKind::Json, &current, &patch));
        let error = result.unwrap_err();
        assert!(took < Duration::from_secs(10), "{error}: {took:?}");
        assert_eq!(error.code, code, "{error}");
    }
}

/// CVE-2019-1002100, finding 7: each operation looked at all of a wide map, which took minutes.
#[test]
fn json_patch_operations_on_wide_values_are_bounded() {
    let wide: Value =
        (0..100_000).map(|i| (format!("k{i}"), json!(""))).collect::<Map<_, _>>().into();
    let list = Value::Array(vec![json!(0); 300_000]);
    let current = json!({"a": {"w": wide, "l": list}, "b": {}});
    let twice = |first: Value, second: Value| -> Vec<Value> {
        (0..5_000).flat_map(|_| [first.clone(), second.clone()]).collect()
    };
    let moved = |from: &str, path: &str| json!({"op": "move", "from": from, "path": path});
    let add = |path: &str| json!({"op": "add", "path": path, "value": 0});
    for patch in [
        twice(moved("/a/w", "/b/w"), moved("/b/w", "/a/w")),
        twice(moved("/a", "/b/a"), moved("/b/a", "/a")),
        twice(moved("/a/l/0", "/a/l/1"), moved("/a/l/1", "/a/l/0")),
        twice(add("/a/l/0"), json!({"op": "remove", "path": "/a/l/0"})),
        twice(add("/a/l/1"), add("/a/l/0")),
        twice(
            json!({"op": "copy", "from": "/a/w", "path": "/c"}),
            json!({"op": "remove", "path": "/c"}),
        ),
    ] {
        let patch = Value::Array(patch);
        let (result, took) = cpu_time(|| patched(PatchKind::Json, &current, &patch));
        let error = result.unwrap_err();
        assert_eq!((error.code, error.reason), (413, "RequestEntityTooLarge"), "{error}");
        assert!(took < Duration::from_secs(10), "{error}: {took:?}");
    }
    // what people do with such an object is far from that
    let few = vec![moved("/a/w", "/b/w"), moved("/b/w", "/a/w"), add("/a/l/0")];
    assert!(patched(PatchKind::Json, &current, &Value::Array(few)).is_ok());
    let many: Vec<Value> = (0..10_000)
        .map(|i| json!({"op": "replace", "path": format!("/a/w/k{i}"), "value": "x"}))
        .collect();
    assert!(patched(PatchKind::Json, &current, &Value::Array(many)).is_ok());
}

/// Finding 7: a patch that names one item over and over has the lists in it merged as often.
#[test]
fn strategic_patches_of_one_item_are_bounded() {
    let env: Value = (0..20_000).map(|i| json!({"name": format!("E{i}")})).collect();
    let current = containers(json!([{"name": "a", "env": env}]));
    let again = json!({"name": "a", "env": [{"name": "E0", "value": "x"}]});
    let order = json!({"name": "a", "$setElementOrder/env": [{"name": "E0"}]});
    let retain = json!({"name": "a", "$retainKeys": ["name", "env"]});
    let delete = json!({"name": "a", "$deleteFromPrimitiveList/env": ["x"]});
    for item in [again.clone(), order, delete] {
        let patch = containers(Value::Array(vec![item; 20_000]));
        let (result, took) = cpu_time(|| patched(PatchKind::Strategic, &current, &patch));
        let error = result.unwrap_err();
        assert_eq!(error.code, 413, "{error}");
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    for item in [again, retain] {
        let patch = containers(Value::Array(vec![item; 4]));
        assert!(patched(PatchKind::Strategic, &current, &patch).is_ok());
    }
}

/// A merge patch is walked once, whatever is in it.
#[test]
fn wide_merge_patches_are_quick() {
    let wide = |text: &str| -> Value {
        (0..60_000).map(|i| (format!("k{i}"), json!(text))).collect::<Map<_, _>>().into()
    };
    let (current, patch) = (json!({"data": wide("a")}), json!({"data": wide("b")}));
    for kind in [PatchKind::Merge, PatchKind::Strategic] {
        let (result, took) = cpu_time(|| patched(kind, &current, &patch));
        assert_eq!(result.unwrap()["data"]["k7"], "b");
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

#[test]
fn merge_patches() {
    let current = json!({"a": {"b": 1, "c": [1]}, "d": 1});
    let patch = json!({"a": {"b": null, "c": [2], "e": {"f": null, "g": 1}}, "d": "x"});
    assert_eq!(
        patched(PatchKind::Merge, &current, &patch).unwrap(),
        json!({"a": {"c": [2], "e": {"g": 1}}, "d": "x"})
    );
    for kind in [PatchKind::Merge, PatchKind::Strategic] {
        assert_eq!(patched(kind, &current, &json!([])).unwrap_err().code, 400);
        assert_eq!(apply(kind, POD, &current, b"{").unwrap_err().code, 400);
    }
    let twice = apply(PatchKind::Merge, POD, &current, br#"{"a": {"b": 1, "b": 2}}"#).unwrap();
    assert_eq!(twice.0.duplicates, ["a.b"]);
}

fn containers(list: Value) -> Value {
    json!({"spec": {"containers": list}})
}

#[test]
fn strategic_patches() {
    let current = json!({
        "metadata": {"finalizers": ["a/b", "c/d"], "labels": {"x": "1", "y": "2"}},
        "spec": {
            "containers": [{"name": "a", "image": "1", "args": ["p", "q"]}, {"name": "b", "image": "2"}, {"name": "c"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "nodeSelector": {"k": "v"},
            "tolerations": [{"key": "a"}],
        },
    });
    let names = |value: &Value| -> Vec<String> {
        value["spec"]["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let run = |patch: Value| {
        patched(PatchKind::Strategic, &current, &patch).unwrap_or_else(|e| panic!("{patch}: {e}"))
    };

    let result = run(containers(json!([{"name": "b", "image": "3"}])));
    assert_eq!(result["spec"]["containers"][1], json!({"name": "b", "image": "3"}));
    assert_eq!(names(&result), ["a", "b", "c"]);

    let result = run(containers(
        json!([{"name": "z", "image": null, "env": [{"name": "E", "value": null}]}]),
    ));
    assert_eq!(names(&result), ["z", "a", "b", "c"]);
    assert_eq!(result["spec"]["containers"][0], json!({"name": "z", "env": [{"name": "E"}]}));

    let result = run(containers(json!([{"name": "b", "$patch": "delete"}])));
    assert_eq!(names(&result), ["a", "c"]);

    let result = run(containers(json!([{"$patch": "replace"}, {"name": "z"}])));
    assert_eq!(result["spec"]["containers"], json!([{"name": "z"}]));

    let result = run(containers(json!([{"name": "a", "args": ["r"]}])));
    assert_eq!(result["spec"]["containers"][0]["args"], json!(["r"]), "an atomic list is replaced");

    let result = run(json!({"spec": {"tolerations": [{"key": "b"}]}}));
    assert_eq!(result["spec"]["tolerations"], json!([{"key": "b"}]));

    let result = run(
        json!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}, {"name": "n"}],
                                     "containers": [{"name": "n", "image": "9"}]}}),
    );
    assert_eq!(names(&result), ["b", "c", "a", "n"]);

    let result = run(
        json!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}]}}),
    );
    assert_eq!(names(&result), ["c", "b", "a"]);

    let result = run(json!({"metadata": {"finalizers": ["e/f", "a/b"]}}));
    assert_eq!(result["metadata"]["finalizers"], json!(["e/f", "a/b", "c/d"]));

    let result = run(
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"], "labels": {"x": null, "z": "3"}}}),
    );
    assert_eq!(result["metadata"]["finalizers"], json!(["c/d"]));
    assert_eq!(result["metadata"]["labels"], json!({"y": "2", "z": "3"}));

    let result = run(json!({"metadata": {"$setElementOrder/finalizers": ["c/d", "a/b"]}}));
    assert_eq!(result["metadata"]["finalizers"], json!(["c/d", "a/b"]));

    let volumes =
        json!([{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]);
    let result = run(json!({"spec": {"volumes": volumes}}));
    assert_eq!(result["spec"]["volumes"], json!([{"name": "v", "secret": {"secretName": "s"}}]));

    let result = run(json!({"spec": {"nodeSelector": {"$patch": "replace", "n": "w"}}}));
    assert_eq!(result["spec"]["nodeSelector"], json!({"n": "w"}));
    let result = run(json!({"spec": {"nodeSelector": {"$patch": "delete"}}}));
    assert_eq!(result["spec"]["nodeSelector"], json!({}));
    let result = run(json!({"spec": null}));
    assert_eq!(result.get("spec"), None);

    let refused = [
        (containers(json!([{"image": "x"}])), 500),
        (containers(json!(["x"])), 400),
        (containers(json!([{"name": "a", "$patch": "merge"}])), 500),
        (json!({"$patch": "fly"}), 500),
        (json!({"spec": {"$retainKeys": "x"}}), 400),
        (json!({"spec": {"$retainKeys": ["nodeSelector"], "tolerations": []}}), 400),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]}}),
            500,
        ),
        (json!({"spec": {"$setElementOrder/containers": {}}}), 500),
        (json!({"spec": {"$deleteFromPrimitiveList/containers": 1}}), 400),
    ];
    for (patch, code) in refused {
        assert_eq!(
            patched(PatchKind::Strategic, &current, &patch).expect_err("refused").code,
            code,
            "{patch}"
        );
    }
}

/// What the kubelet sends: conditions merged by type, addresses replaced as a whole.
#[test]
fn strategic_patch_of_pod_status() {
    const NODE: Gvk = Gvk { group: "", version: "v1", kind: "Node" };
    let current = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "1"}, {"type": "Hostname", "address": "h"}],
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "False", "reason": "x"}],
    }});
    let patch = json!({"status": {
        "$setElementOrder/conditions": [{"type": "MemoryPressure"}, {"type": "Ready"}],
        "conditions": [{"type": "Ready", "status": "True", "reason": null}],
        "addresses": [{"type": "InternalIP", "address": "2"}, {"type": "Hostname", "address": "h"}, {"$patch": "replace"}],
    }});
    let result =
        apply(PatchKind::Strategic, NODE, &current, patch.to_string().as_bytes()).unwrap().0.value;
    assert_eq!(
        result,
        json!({"status": {
            "addresses": [{"type": "InternalIP", "address": "2"}, {"type": "Hostname", "address": "h"}],
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        }})
    );
}

/// The directive says how to take a list, also one that the object does not have yet.
#[test]
fn strategic_patch_replace_of_an_absent_list() {
    let patch = json!({"status": {"podIPs": [{"ip": "10.0.0.2"}, {"$patch": "replace"}]}});
    for current in [json!({}), json!({"status": {"podIPs": [{"ip": "10.0.0.1"}]}})] {
        let result = patched(PatchKind::Strategic, &current, &patch).unwrap();
        assert_eq!(result, json!({"status": {"podIPs": [{"ip": "10.0.0.2"}]}}), "{current}");
    }
}

#[test]
fn long_lists_merge_quickly() {
    let list = |from: usize| -> Value {
        (from..from + 15_000).map(|i| json!({"name": format!("c{i}")})).collect()
    };
    let (current, patch) = (containers(list(0)), containers(list(7_500)));
    let (result, took) = cpu_time(|| patched(PatchKind::Strategic, &current, &patch));
    assert_eq!(result.unwrap()["spec"]["containers"].as_array().unwrap().len(), 22_500);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

proptest! {
    #[test]
    fn no_patch_panics(current in arbitrary::object(), patch in arbitrary::value(), operations in proptest::collection::vec(
        (0usize..6, "(/(metadata|spec|containers|name|0|1|-|labels)){0,4}", "(/(metadata|spec|0)){0,3}", arbitrary::value()), 0..6)) {
        for kind in [PatchKind::Json, PatchKind::Merge, PatchKind::Strategic] {
            let _ = patched(kind, &current, &patch);
        }
        let names = ["add", "remove", "replace", "move", "copy", "test"];
        let operations: Value = operations.into_iter()
            .map(|(op, path, from, value)| json!({"op": names[op], "path": path, "from": from, "value": value}))
            .collect();
        let _ = patched(PatchKind::Json, &current, &operations);
    }

    /// A patch applied again changes nothing more.
    #[test]
    fn strategic_patches_are_idempotent(current in pod(), patch in pod()) {
        let once = patched(PatchKind::Strategic, &current, &patch).unwrap();
        let twice = patched(PatchKind::Strategic, &once, &patch).unwrap();
        prop_assert!(same(&once, &twice), "{once}\n{twice}");
    }
}

/// A part of a pod, with lists that merge, lists that do not, and maps.
fn pod() -> impl Strategy<Value = Value> {
    let item = ("[a-d]", "[xy]", proptest::collection::vec("[p-r]", 0..3)).prop_map(|(name, image, args)| {
        (name.clone(), json!({"name": name, "image": image, "args": args, "env": [{"name": "E", "value": image}]}))
    });
    let list = proptest::collection::btree_map("[a-d]", item, 0..4);
    let list = list.prop_map(|map| -> Value {
        let unique: std::collections::BTreeMap<String, Value> = map.into_values().collect();
        unique.into_values().collect()
    });
    let finalizers = proptest::collection::btree_set("[a-d]/x", 0..4);
    let labels = proptest::collection::btree_map("[a-c]", proptest::option::of("[xy]"), 0..3);
    (list.clone(), list, finalizers, labels).prop_map(|(containers, volumes, finalizers, labels)| {
        json!({"metadata": {"finalizers": finalizers, "labels": labels},
               "spec": {"containers": containers, "initContainers": volumes, "tolerations": [{"key": "t"}]}})
    })
}
