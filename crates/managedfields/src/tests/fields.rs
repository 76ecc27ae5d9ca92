use serde_json::{Value, json};

use super::{paths, set};
use crate::*;

#[test]
fn fields_v1_is_read_and_written() {
    let fields = json!({
        "f:metadata": {"f:finalizers": {".": {}, "v:\"a/b\"": {}}},
        "f:spec": {
            "f:containers": {
                "k:{\"name\":\"web\"}": {".": {}, "f:image": {}},
            },
            "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}}},
            "f:list": {"i:3": {}, "v:2.5": {}, "v:null": {}, "v:true": {}},
        },
    });
    let set = set(&fields);
    assert_eq!(
        paths(&set),
        [
            ".metadata.finalizers",
            ".metadata.finalizers[=\"a/b\"]",
            ".spec.containers[name=\"web\"]",
            ".spec.containers[name=\"web\"].image",
            ".spec.list[=2.5]",
            ".spec.list[=true]",
            ".spec.list[=null]",
            ".spec.list[3]",
            ".spec.ports[containerPort=80,protocol=\"TCP\"]",
        ]
    );
    let mut expected = fields.clone();
    // An item alone is written without the dot.
    expected["f:spec"]["f:ports"]["k:{\"containerPort\":80,\"protocol\":\"TCP\"}"] = json!({});
    assert_eq!(set.to_fields(), expected);
}

#[test]
fn fields_v1_elements_have_one_form() {
    for (text, form) in [
        (
            "k:{\"protocol\":\"TCP\", \"containerPort\":80}",
            "k:{\"containerPort\":80,\"protocol\":\"TCP\"}",
        ),
        ("k:{\"a\":1.0}", "k:{\"a\":1}"),
        ("k:{\"a\":{\"b\": [1]}}", "k:{\"a\":{\"b\":[1]}}"),
        ("v: \"a\"", "v:\"a\""),
        ("v:\"\\u0061\"", "v:\"a\""),
        ("v:\"\\\"\"", "v:\"\\\"\""),
        ("f:", "f:"),
        ("f:a:b", "f:a:b"),
        ("i:-1", "i:-1"),
    ] {
        let fields = json!({ text: {} });
        assert_eq!(set(&fields).to_fields(), json!({ form: {} }), "{text}");
    }
}

#[test]
fn fields_v1_that_is_malformed_is_refused() {
    for (fields, message) in [
        (json!({"": {}}), "missing colon"),
        (json!({"f": {}}), "missing colon"),
        (json!({"é:x": {}}), "missing colon"),
        (json!({"spec": {}}), "missing colon"),
        (json!({"k:": {}}), "EOF"),
        (json!({"k:{": {}}), "EOF"),
        (json!({"k:[]": {}}), "the key is no object"),
        (json!({"v:{]": {}}), "key must be a string"),
        (json!({"i:x": {}}), "the index is no number"),
        (json!({"i:99999999999999999999": {}}), "the index is no number"),
        (json!({"f:a": 1}), "no object"),
        (json!([]), "no object"),
        (json!({"f:a": {"f:b": "c"}}), "no object"),
        (json!({format!("f:{}", "x".repeat(20_000)): {}}), "too long"),
    ] {
        let error = Set::from_fields(&fields).unwrap_err().to_string();
        assert!(error.contains(message), "{fields}: {error}");
    }
    assert_eq!(set(&json!({"x:future": {"f:a": {}}, "f:b": {}})), set(&json!({"f:b": {}})));
    assert_eq!(set(&json!({"f:b": null})), set(&json!({"f:b": {}})));
}

#[test]
fn fields_v1_is_bounded() {
    let mut deep = json!({});
    for _ in 0..1000 {
        deep = json!({"f:a": deep});
    }
    assert_eq!(Set::from_fields(&deep).unwrap_err(), FormatError::TooDeep);
    let many: Value = Value::Object((0..100_001).map(|i| (format!("f:{i}"), json!({}))).collect());
    assert_eq!(Set::from_fields(&many).unwrap_err(), FormatError::TooMany);
}

#[test]
fn sets_are_subtracted_with_and_without_what_is_below() {
    let a = set(&json!({"f:a": {".": {}, "f:b": {".": {}, "f:c": {}}}, "f:d": {}}));
    let b = set(&json!({"f:a": {"f:b": {}}}));
    assert_eq!(paths(&a.clone().difference(&b)), [".a", ".d", ".a.b.c"]);
    assert_eq!(paths(&a.clone().recursive_difference(&b)), [".a", ".d"]);
    assert_eq!(paths(&a.intersection(&b)), [".a.b"]);
    assert_eq!(paths(&b.clone().union(a.clone())), paths(&a));
    assert!(a.clone().difference(&a).is_empty());
    assert_eq!(a.len(), 4);
    assert!(a.has(&[Element::field("a"), Element::field("b")]));
    assert!(!b.has(&[Element::field("a")]));
}

#[test]
fn managers_are_read_and_written() {
    let entry = |manager: &str, operation: &str, time: &str| {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "time": time,
               "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:a": {}}}})
    };
    let list = json!([
        entry("late", "Update", "2026-01-02T00:00:00Z"),
        entry("early", "Update", "2026-01-01T00:00:00Z"),
        entry("applier", "Apply", "2026-01-03T00:00:00Z"),
    ]);
    let written = Managers::read(Some(&list)).unwrap().to_value().unwrap();
    assert_eq!(written, json!([list[2], list[1], list[0]]));
    assert_eq!(Managers::read(None).unwrap().to_value(), None);
    for (field, value, message) in [
        ("operation", json!("Delete"), "operation must be `Apply` or `Update`"),
        ("apiVersion", json!(""), "apiVersion must not be empty"),
        ("fieldsType", json!(""), "missing fieldsType in managed fields entry 0"),
        ("fieldsType", json!("V2"), "invalid fieldsType \"V2\" in managed fields entry 0"),
        (
            "fieldsV1",
            json!({"x": {}}),
            "managed fields entry 0: the key \"x\" is no path element: missing colon",
        ),
    ] {
        let mut entry = entry("m", "Update", "");
        entry[field] = value;
        let list = json!([entry]);
        assert_eq!(Managers::read(Some(&list)).unwrap_err().to_string(), message);
    }
}
