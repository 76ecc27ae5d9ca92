//! Helpers to read fields of objects. Indexing a JSON value by a
//! missing key gives null, so every reader below has an answer for what is absent.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// The text, empty when it is none.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The list's items, none when it is no list.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The map's entries, none when it is no map.
pub(crate) fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// The list's items for writing.
pub(crate) fn items_mut(
    value: Option<&mut Value>,
) -> impl Iterator<Item = &mut Map<String, Value>> {
    value.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Values that Go omits from JSON (`omitempty`): null, false, zero, and empty strings, lists and maps.
pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

/// Equal for a Go client, for which absent fields are zero.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.iter().all(|(k, v)| same(v, b.get(k).unwrap_or(&Value::Null)))
                && b.iter().all(|(k, v)| a.contains_key(k) || is_zero(v))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => a == b || (is_zero(a) && is_zero(b)),
    }
}

/// Sets the field where it is absent or zero.
pub(crate) fn default(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    if map.get(key).is_none_or(is_zero) {
        map.insert(key.to_owned(), value.into());
    }
}

/// Sets the field where it is absent (for fields whose zero says something).
pub(crate) fn default_absent(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), value.into());
    }
}

/// The field as a map, if it is one.
pub(crate) fn map_mut<'a>(
    map: &'a mut Map<String, Value>,
    key: &str,
) -> Option<&'a mut Map<String, Value>> {
    map.get_mut(key).and_then(Value::as_object_mut)
}

/// Levels of nesting that the value has: 0 for a scalar.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(a) => 1 + a.iter().map(depth).max().unwrap_or(0),
        Value::Object(o) => 1 + o.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// About as many bytes as the value has in JSON.
pub(crate) fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(list) => 2 + list.iter().map(|v| 1 + size(v)).sum::<usize>(),
        Value::Object(map) => 2 + map.iter().map(|(k, v)| k.len() + 4 + size(v)).sum::<usize>(),
    }
}

/// The items of a list by their names; of those with the same name, the first.
pub(crate) fn by_name(list: &Value) -> HashMap<&str, &Value> {
    items(list).iter().rev().map(|item| (text(&item["name"]), item)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
pub(crate) mod arbitrary {
    //! Arbitrary JSON for property tests, with field names that real objects have.

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use crate::api_types::{Field, Leaf, Shape, Type, types};

    const NAMES: [&str; 40] = [
        "metadata",
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "spec",
        "status",
        "containers",
        "initContainers",
        "volumes",
        "volumeMounts",
        "ports",
        "containerPort",
        "env",
        "resources",
        "limits",
        "requests",
        "cpu",
        "template",
        "selector",
        "subsets",
        "addresses",
        "endpoints",
        "data",
        "type",
        "conditions",
        "containerStatuses",
        "state",
        "terminated",
        "tolerations",
        "securityContext",
        "projected",
        "sources",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "$setElementOrder/finalizers",
    ];

    pub(crate) fn key() -> impl Strategy<Value = String> {
        prop_oneof![9 => proptest::sample::select(&NAMES[..]).prop_map(str::to_owned), 1 => "[a-z$/.]{0,6}"]
    }

    pub(crate) fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-3i64..70_000).prop_map(Value::from),
            any::<i32>().prop_map(|n| json!(f64::from(n) / 8.0)),
            "[a-zA-Z0-9./:$%-]{0,8}".prop_map(Value::from),
            proptest::sample::select(
                &["delete", "replace", "merge", "Always", "TCP", "100m", "-1Gi", "10.0.0.1"][..]
            )
            .prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map(key(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// A map at the top, as objects are.
    pub(crate) fn object() -> impl Strategy<Value = Value> {
        proptest::collection::btree_map(key(), value(), 0..8)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    /// An object of this type, different for each seed, whose fields have the right types but any values.
    pub(crate) fn of_type(ty: &Type, seed: u64) -> Value {
        Dice(seed).object(ty, 0)
    }

    struct Dice(u64);

    impl Dice {
        /// A number below `sides`, by the splitmix64 recurrence.
        fn roll(&mut self, sides: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % sides as u64) as usize
        }

        fn pick(&mut self, from: &[&str]) -> Value {
            from[self.roll(from.len())].into()
        }

        fn object(&mut self, ty: &Type, depth: usize) -> Value {
            let often = if depth < 3 { 2 } else { 5 };
            let chosen: Vec<_> = ty.fields.iter().filter(|_| self.roll(often) == 0).collect();
            chosen.into_iter().map(|f| (f.name.to_owned(), self.field(f, depth))).collect()
        }

        fn field(&mut self, field: &Field, depth: usize) -> Value {
            if depth > 12 {
                return Value::Null;
            }
            let count = self.roll(3);
            match field.shape {
                Shape::One => self.leaf(field, depth),
                Shape::List => (0..count).map(|_| self.leaf(field, depth)).collect(),
                Shape::Map => (0..count).map(|_| (self.key(), self.leaf(field, depth))).collect(),
                Shape::MapOfLists => (0..count).map(|_| (self.key(), json!(["a"]))).collect(),
            }
        }

        fn key(&mut self) -> String {
            ["cpu", "memory", "a", "example.com/b", "..", ""][self.roll(6)].to_owned()
        }

        fn leaf(&mut self, field: &Field, depth: usize) -> Value {
            match field.leaf {
                Leaf::Struct(index) => self.object(types().get(index), depth + 1),
                Leaf::Bool => (self.roll(2) == 0).into(),
                Leaf::Int32 | Leaf::Int64 | Leaf::Double => {
                    json!([-1, 0, 1, 80, 70_000, i32::MAX][self.roll(6)])
                }
                Leaf::Quantity => {
                    self.pick(&["0", "1", "-1", "100m", "1Gi", "1u", "9999999999999999999"])
                }
                Leaf::Time | Leaf::MicroTime => {
                    self.pick(&["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+01:00"])
                }
                Leaf::IntOrString => {
                    [json!(80), json!("http"), json!(0), json!("")][self.roll(4)].clone()
                }
                Leaf::Bytes => self.pick(&["", "e30=", "eA=="]),
                Leaf::Any | Leaf::Either(_) => json!({"x": 1}),
                Leaf::String if matches!(field.name, "apiVersion" | "kind") => Value::Null,
                Leaf::String => self.pick(&[
                    "",
                    "a",
                    "b",
                    "x/y",
                    "../z",
                    "Always",
                    "Never",
                    "None",
                    "TCP",
                    "ClientIP",
                    "LoadBalancer",
                    "NodePort",
                    "ExternalName",
                    "IPv4",
                    "10.0.0.1",
                    "::1",
                    "NoExecute",
                    "Exists",
                    "metadata.name",
                    "Localhost",
                    "é",
                ]),
            }
        }
    }
}
