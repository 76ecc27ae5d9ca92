use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{paths, schema, set};
use crate::*;

/// `fieldsV1`, with few names so that sets overlap.
fn fields() -> impl Strategy<Value = Value> {
    let element = prop_oneof![
        Just("f:a".to_owned()),
        Just("f:b".to_owned()),
        Just("k:{\"n\":1}".to_owned()),
        Just("v:\"x\"".to_owned()),
        Just("i:0".to_owned()),
    ];
    let leaf = Just(json!({}));
    leaf.prop_recursive(4, 32, 4, move |inner| {
        proptest::collection::btree_map(element.clone(), (inner, any::<bool>()), 0..4).prop_map(
            |map| {
                let mut fields = Map::new();
                for (name, (below, is_member)) in map {
                    let mut below = below;
                    if is_member {
                        below["."] = json!({});
                    }
                    fields.insert(name, below);
                }
                Value::Object(fields)
            },
        )
    })
}

/// An object of the test schema. Each of `owner`s names fields of its own.
fn object(owner: &'static str) -> impl Strategy<Value = Value> {
    let label = proptest::option::of("[12]");
    let container = (
        proptest::option::of("[12]"),
        proptest::option::of(proptest::collection::vec("[ab]", 0..2)),
    );
    let containers = proptest::collection::btree_map("[a-c]", container, 0..3);
    (
        label,
        proptest::option::of(0..3u8),
        containers,
        proptest::collection::btree_set("[a-c]", 0..3),
    )
        .prop_map(move |(label, extension, containers, finalizers)| {
            let mut object =
                json!({"apiVersion": "apps/v1", "kind": "Workload", "metadata": {}, "spec": {}});
            if let Some(label) = label {
                object["metadata"]["labels"][owner] = label.into();
            }
            if let Some(extension) = extension {
                object["spec"]["extension"][owner]["x"] = extension.into();
            }
            let containers: Vec<Value> = containers
                .into_iter()
                .map(|(name, (image, args))| {
                    let mut container = json!({"name": format!("{owner}{name}")});
                    container["image"] = image.map_or(Value::Null, Value::from);
                    container["args"] = args.map_or(Value::Null, Value::from);
                    container.as_object_mut().unwrap().retain(|_, value| !value.is_null());
                    container
                })
                .collect();
            if !containers.is_empty() {
                object["spec"]["containers"] = containers.into();
            }
            let finalizers: Vec<Value> =
                finalizers.iter().map(|f| format!("{owner}{f}").into()).collect();
            if !finalizers.is_empty() {
                object["metadata"]["finalizers"] = finalizers.into();
            }
            object
        })
}

fn merged(base: &Value, over: &Value) -> Value {
    let (schema, of) = schema();
    merge(&schema, of, Some(base), Some(over)).unwrap().unwrap()
}

/// Lists whose items have keys in one order: the order is not what the properties are about.
fn sorted(mut value: Value) -> Value {
    match &mut value {
        Value::Array(list) => {
            for item in list.iter_mut() {
                *item = sorted(item.take());
            }
            list.sort_by_key(ToString::to_string);
        }
        Value::Object(map) => {
            for item in map.values_mut() {
                *item = sorted(item.take());
            }
        }
        _ => {}
    }
    value
}

fn apply_as(live: &Value, patch: &Value, manager: &str, force: bool) -> Result<Value, ApplyError> {
    let (schema, of) = schema();
    let reset = Set::new();
    let target = Target {
        schema: &schema,
        of,
        api_version: "apps/v1",
        kind: "Workload",
        subresource: "",
        reset: &reset,
        versions: &OneVersion,
    };
    let mut object =
        apply(&target, live, patch, Writer { manager, now: "2026-01-01T00:00:00Z" }, force)?;
    object["metadata"]["uid"] = "u".into();
    Ok(object)
}

fn content(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("managedFields");
    metadata.remove("uid");
    sorted(object)
}

/// What an object says, without structs and lists that say nothing.
fn leaves(object: &Value) -> Vec<String> {
    let (schema, of) = schema();
    paths(&fields_of(&schema, of, object).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn fields_v1_round_trips(fields in fields()) {
        let read = set(&fields);
        prop_assert_eq!(set(&read.to_fields()), read);
    }

    #[test]
    fn sets_have_the_laws_of_sets(a in fields(), b in fields(), c in fields()) {
        let (a, b, c) = (set(&a), set(&b), set(&c));
        let union = |a: &Set<'static>, b: &Set<'static>| a.clone().union(b.clone());
        let minus = |a: &Set<'static>, b: &Set<'static>| a.clone().difference(b);
        prop_assert_eq!(union(&a, &b), union(&b, &a));
        prop_assert_eq!(union(&union(&a, &b), &c), union(&a, &union(&b, &c)));
        prop_assert_eq!(union(&a, &a), a.clone());
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.intersection(&b), minus(&a, &minus(&a, &b)));
        prop_assert_eq!(union(&minus(&a, &b), &a.intersection(&b)), a.clone());
        prop_assert_eq!(minus(&a, &b).intersection(&b), Set::new());
        prop_assert_eq!(a.intersection(&union(&b, &c)), union(&a.intersection(&b), &a.intersection(&c)));
        prop_assert_eq!(a.len(), minus(&a, &b).len() + a.intersection(&b).len());
        prop_assert_eq!(a.clone().recursive_difference(&b).difference(&minus(&a, &b)), Set::new());
        prop_assert_eq!(a.paths().len(), a.len());
        for path in a.paths() {
            prop_assert!(a.has(&path));
            prop_assert_eq!(b.has(&path), a.intersection(&b).has(&path));
        }
    }

    #[test]
    fn merge_is_idempotent(a in object("a"), b in object("a")) {
        let once = merged(&a, &b);
        prop_assert_eq!(merged(&once, &b), once.clone());
        prop_assert_eq!(merged(&a, &a), a);
    }

    #[test]
    fn merge_of_disjoint_objects_is_associative(a in object("a"), b in object("b"), c in object("c")) {
        let left = sorted(merged(&merged(&a, &b), &c));
        prop_assert_eq!(&left, &sorted(merged(&a, &merged(&b, &c))));
        prop_assert_eq!(left, sorted(merged(&merged(&c, &b), &a)));
    }

    #[test]
    fn compare_of_equal_objects_is_empty(a in object("a")) {
        let (schema, of) = schema();
        prop_assert!(Comparison::of(&schema, of, &a, &a.clone()).unwrap().is_empty());
    }

    #[test]
    fn compare_is_the_same_the_other_way_round(a in object("a"), b in object("a")) {
        let (schema, of) = schema();
        let there = Comparison::of(&schema, of, &a, &b).unwrap();
        let back = Comparison::of(&schema, of, &b, &a).unwrap();
        prop_assert_eq!(&there.added, &back.removed);
        prop_assert_eq!(&there.removed, &back.added);
        prop_assert_eq!(&there.modified, &back.modified);
        prop_assert!(there.added.intersection(&there.removed).is_empty());
    }

    #[test]
    fn apply_of_disjoint_owners_never_conflicts(
        a1 in object("a"), a2 in object("a"), b1 in object("b"), b2 in object("b"),
    ) {
        let live = apply_as(&json!({}), &a1, "a", false).unwrap();
        let live = apply_as(&live, &b1, "b", false).unwrap();
        let live = apply_as(&live, &a2, "a", false).unwrap();
        let live = apply_as(&live, &b2, "b", false).unwrap();
        prop_assert_eq!(leaves(&content(live.clone())), leaves(&content(merged(&a2, &b2))));
        // In the other order it is the same.
        let other = apply_as(&json!({}), &b2, "b", false).unwrap();
        let other = apply_as(&other, &a2, "a", false).unwrap();
        prop_assert_eq!(leaves(&content(other)), leaves(&content(live.clone())));
        let again = apply_as(&live, &b2, "b", false).unwrap();
        prop_assert_eq!(again, live);
    }

    #[test]
    fn apply_owns_what_it_lists_and_removes_the_rest(a in object("a"), b in object("a")) {
        let live = apply_as(&json!({}), &a, "a", false).unwrap();
        let live = apply_as(&live, &b, "a", false).unwrap();
        prop_assert_eq!(leaves(&content(live.clone())), leaves(&content(b.clone())));
        let stolen = apply_as(&live, &a, "thief", true).unwrap();
        let managers = Managers::read(stolen["metadata"].get("managedFields")).unwrap();
        let listed: Vec<String> =
            leaves(&a).into_iter().filter(|path| path != ".apiVersion" && path != ".kind").collect();
        let owned = managers.set_of("thief", Operation::Apply).map(paths).unwrap_or_default();
        let owned: Vec<String> = owned.into_iter().filter(|path| path != ".spec" && path != ".metadata").collect();
        let listed: Vec<String> = listed.into_iter().filter(|path| path != ".spec" && path != ".metadata").collect();
        prop_assert_eq!(owned, listed);
    }
}
