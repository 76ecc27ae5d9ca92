use serde_json::{Value, json};

use super::*;

fn schema(json: Value) -> Schema {
    Schema::read(&json).unwrap()
}

fn messages(errors: &[FieldError]) -> Vec<String> {
    let text = |error: &FieldError| format!("{}: {:?}: {}", error.path, error.kind, error.detail);
    errors.iter().map(text).collect()
}

fn widget() -> Schema {
    schema(json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 10},
            "name": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
            "kind": {"type": "string", "enum": ["a", "b"]},
            "port": {"x-kubernetes-int-or-string": true},
            "tags": {"type": "array", "maxItems": 2, "items": {"type": "string"}},
            "when": {"type": "string", "format": "date-time"},
            "maybe": {"type": "string", "nullable": true},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }},
    }}))
}

#[test]
fn validation_says_what_upstream_says() {
    for (spec, expected) in [
        (json!({"size": 3}), ""),
        (json!({"size": 3.0}), ""),
        (json!({}), "spec.size: Required: "),
        (
            json!({"size": "3"}),
            "spec.size: TypeInvalid: spec.size in body must be of type integer: \"string\"",
        ),
        (
            json!({"size": null}),
            "spec.size: TypeInvalid: spec.size in body must be of type integer: \"null\"",
        ),
        (
            json!({"size": 11}),
            "spec.size: Invalid: spec.size in body should be less than or equal to 10",
        ),
        (
            json!({"size": 0}),
            "spec.size: Invalid: spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"size": 1, "name": "a"}),
            "spec.name: Invalid: spec.name in body should be at least 2 chars long",
        ),
        (
            json!({"size": 1, "name": "AB"}),
            "spec.name: Invalid: spec.name in body should match '^[a-z]+$'",
        ),
        (json!({"size": 1, "name": "abcde"}), "spec.name: TooLong(4): "),
        (json!({"size": 1, "kind": "c"}), "spec.kind: NotSupported([\"a\", \"b\"]): "),
        (json!({"size": 1, "port": "http"}), ""),
        (json!({"size": 1, "port": 80}), ""),
        (
            json!({"size": 1, "port": true}),
            "spec.port: TypeInvalid: spec.port in body must be of type integer,string: \"boolean\"",
        ),
        (json!({"size": 1, "tags": ["a", "b", "c"]}), "spec.tags: TooMany(3, 2): "),
        (json!({"size": 1, "when": "2026-01-02T03:04:05Z"}), ""),
        (
            json!({"size": 1, "when": "soon"}),
            "spec.when: TypeInvalid: spec.when in body must be of type date-time: \"soon\"",
        ),
        (json!({"size": 1, "maybe": null}), ""),
        (
            json!({"size": 1, "labels": {"a": 1}}),
            "spec.labels.a: TypeInvalid: spec.labels.a in body must be of type string: \"integer\"",
        ),
    ] {
        let object = json!({"spec": spec});
        let found = messages(&validate(&object, None, &widget())).join("; ");
        assert_eq!(found, expected, "{object}");
    }
}

#[test]
fn validation_of_combined_schemas() {
    let required = |names: &[&str]| -> Vec<Value> {
        names.iter().map(|name| json!({"required": [name]})).collect()
    };
    let of = |name: &str, parts: Value| {
        let mut json = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}});
        json[name] = parts;
        schema(json)
    };
    let one = of("oneOf", required(&["a", "b"]).into());
    assert!(validate(&json!({"a": "x"}), None, &one).is_empty());
    let both = messages(&validate(&json!({"a": "x", "b": "y"}), None, &one));
    assert_eq!(
        both,
        [
            "<nil>: Invalid: \"\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
        ]
    );
    let none = messages(&validate(&json!({}), None, &one));
    assert_eq!(none.len(), 2, "{none:?}");
    let any = of("anyOf", required(&["a", "b"]).into());
    assert!(validate(&json!({"a": "x", "b": "y"}), None, &any).is_empty());
    assert!(!validate(&json!({}), None, &any).is_empty());
    let not = of("not", json!({"required": ["a"]}));
    assert!(!validate(&json!({"a": "x"}), None, &not).is_empty());
    let all = of("allOf", required(&["a", "b"]).into());
    assert!(!validate(&json!({"a": "x"}), None, &all).is_empty());
}

#[test]
fn validation_ratchets_what_stays() {
    let old = json!({"spec": {"size": 20, "name": "abcd"}});
    assert!(!validate(&old, None, &widget()).is_empty());
    let new = json!({"spec": {"size": 20, "name": "abc"}});
    assert!(validate(&new, Some(&old), &widget()).is_empty());
    let new = json!({"spec": {"size": 21, "name": "abc"}});
    assert!(!validate(&new, Some(&old), &widget()).is_empty());
}

#[test]
fn pruning_keeps_what_is_described() {
    let schema = schema(json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "known": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                "bound": {"type": "object", "properties": {"x": {"type": "string"}}}}},
            "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {
                "spec": {"type": "object"}}},
        }},
    }}));
    let mut object = json!({
        "apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "extra": 1,
        "spec": {"known": "a", "unknown": {"x": 1}, "list": [{"x": "a", "y": 1}],
                 "free": {"any": {"thing": 1}, "bound": {"x": "a", "y": 1}},
                 "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {}}},
    });
    let dropped = prune(object.as_object_mut().unwrap(), &schema);
    assert_eq!(
        dropped,
        ["spec.free.bound.y", "spec.list[0].y", "spec.pod.status", "spec.unknown", "extra"]
    );
    assert_eq!(
        object,
        json!({
            "apiVersion": "v1", "kind": "K", "metadata": {"name": "n"},
            "spec": {"known": "a", "list": [{"x": "a"}],
                     "free": {"any": {"thing": 1}, "bound": {"x": "a"}},
                     "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}},
        })
    );
    let mut found = Vec::new();
    embedded(object.as_object_mut().unwrap(), &schema, &mut |path, _| found.push(path.to_owned()));
    assert_eq!(found, ["spec.pod"]);
}

#[test]
fn defaults_fill_absent_fields() {
    let schema = schema(json!({"type": "object", "properties": {
        "spec": {"type": "object", "default": {}, "properties": {
            "a": {"type": "string", "default": "x"},
            "n": {"type": "string", "nullable": true, "default": "y"},
            "gone": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {
                "p": {"type": "integer", "default": 1}}}},
        }},
    }}));
    for (given, expected) in [
        (json!({}), json!({"spec": {"a": "x", "n": "y"}})),
        (json!({"spec": {"a": null, "n": null}}), json!({"spec": {"a": "x", "n": null}})),
        (
            json!({"spec": {"gone": null, "list": [{}, {"p": 2}]}}),
            json!({"spec": {"a": "x", "n": "y", "list": [{"p": 1}, {"p": 2}]}}),
        ),
    ] {
        let mut object = given.clone();
        drop_nulls(&mut object, &schema);
        default(&mut object, &schema);
        assert_eq!(object, expected, "{given}");
    }
}

#[test]
fn lists_are_unique() {
    let schema = schema(json!({"type": "object", "properties": {
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}},
    }}));
    let object =
        json!({"set": ["a", "b", "a", "a"], "map": [{"k": "x", "v": 1}, {"k": "x", "v": 2}]});
    let errors = check_lists(&object, &schema);
    assert_eq!(messages(&errors), ["map[1]: Duplicate: ", "set[2]: Duplicate: "]);
    assert_eq!(errors[0].value, Some(json!({"k": "x"})));
}

#[test]
fn structure_is_checked() {
    for (json, expected) in [
        (json!({"type": "object"}), ""),
        (json!({}), "s.type: Required: must not be empty at the root"),
        (
            json!({"type": "object", "properties": {"spec": {"properties": {"a": {"type": "string"}}}}}),
            "s.properties[spec].type: Required: must not be empty for specified object fields",
        ),
        (
            json!({"type": "object", "properties": {"l": {"type": "array", "items": {}}}}),
            "s.properties[l].items.type: Required: must not be empty for specified array items",
        ),
        (
            json!({"type": "object", "anyOf": [{"properties": {"a": {"type": "string"}}}], "properties": {"a": {"type": "string"}}}),
            "s.anyOf[0].properties[a].type: Forbidden: must be empty to be structural",
        ),
        (
            json!({"type": "object", "anyOf": [{"properties": {"a": {"minLength": 1}}}]}),
            "s.properties[a]: Required: because it is defined in s.anyOf[0].properties[a]",
        ),
        (
            json!({"type": "object", "properties": {"p": {"x-kubernetes-int-or-string": true,
                "anyOf": [{"type": "integer"}, {"type": "string"}]}}}),
            "",
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}}}}),
            "",
        ),
    ] {
        let found = messages(&check(&schema(json.clone()), "s")).join("; ");
        assert_eq!(found, expected, "{json}");
    }
}

#[test]
fn schema_size_is_bounded() {
    let mut deep = json!({"type": "object"});
    for _ in 0..=MAX_DEPTH {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    assert!(matches!(Schema::read(&deep), Err(ReadError::TooDeep(_))));
    let many: serde_json::Map<String, Value> =
        (0..=MAX_NODES).map(|i| (format!("f{i}"), json!({"type": "string"}))).collect();
    let wide = json!({"type": "object", "properties": many});
    assert!(matches!(Schema::read(&wide), Err(ReadError::TooLarge(_))));
}

#[test]
fn formats() {
    for (format, good, bad) in [
        ("date", "2026-02-28", "2026-02-30"),
        ("date-time", "2026-02-28T01:02:03.5+01:00", "2026-02-28"),
        ("ipv4", "10.0.0.1", "10.0.0"),
        ("ipv6", "::1", "10.0.0.1"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
        ("uri", "http://a/b", "a b"),
        ("email", "a@b.c", "a"),
        ("hostname", "a.b", "a..b"),
        ("uuid", "00000000-0000-0000-0000-000000000000", "x"),
        ("mac", "01:23:45:67:89:ab", "01"),
        ("byte", "YQ==", "YQ="),
        ("duration", "1h30m", "1x"),
        ("duration", "22 ns", "ns"),
        ("isbn10", "0321751043", "0321751044"),
        ("isbn13", "978-0321751041", "978-0321751042"),
        ("hexcolor", "#FFFFFF", "#F"),
        ("k8s-short-name", "a-b", "a.b"),
        ("k8s-long-name", "a.b", "A.b"),
    ] {
        assert!(format::is_valid(format, good), "{format} {good}");
        assert!(!format::is_valid(format, bad), "{format} {bad}");
    }
    assert!(format::is_valid("unheard-of", "anything"));
}

#[test]
fn paths_find_values() {
    let object = json!({
        "spec": {"a": {"b": 1}, "l": [1, 2, 3]},
        "metadata": {"annotations": {"x.y/z": "v"}},
        "status": {"conditions": [{"type": "A", "status": "F"}, {"type": "Ready", "status": "T"}]},
    });
    for (path, expected) in [
        (".spec.a.b", json!(1)),
        (".spec['a'].b", json!(1)),
        (".spec.l[1]", json!(2)),
        (".spec.l[-1]", json!(3)),
        (".spec.l[*]", json!(1)),
        (r".metadata.annotations.x\.y/z", json!("v")),
        (r#".status.conditions[?(@.type=="Ready")].status"#, json!("T")),
        (".spec.none", Value::Null),
        (".spec.l[9]", Value::Null),
    ] {
        let found = Path::parse(path).unwrap().first(&object).cloned().unwrap_or_default();
        assert_eq!(found, expected, "{path}");
    }
    let mut object = json!({});
    assert!(Path::parse(".spec.replicas").unwrap().set(&mut object, json!(3)));
    assert_eq!(object, json!({"spec": {"replicas": 3}}));
}
