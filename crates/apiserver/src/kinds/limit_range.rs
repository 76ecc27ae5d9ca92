//! LimitRange. What it sets and lets pass is in `admission::limits`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Kind, Strategy};
use crate::api_types::{Resource, core};
use crate::schema::names;
use crate::schema::quantity::Quantity;
use crate::schema::value::{entries, items, items_mut, map_mut, text};
use crate::schema::{Causes, Path};

/// What a limit is of, and its resources.
const LISTS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["limits"],
        ..core("limitranges", "limitrange", "LimitRange", "limitranges")
    },
    strategy: Strategy {
        default: defaults,
        names_itself: true,
        validate,
        printer: &super::printers::NAME_AND_CREATION,
        ..Strategy::PLAIN
    },
};

/// A container's default limit is its maximum, and its default request is its limit or its minimum.
fn defaults(range: &mut Map<String, Value>) {
    let Some(spec) = map_mut(range, "spec") else { return };
    for limit in items_mut(spec.get_mut("limits")) {
        if limit.get("type").is_none_or(|kind| kind != "Container") {
            continue;
        }
        let merged = |limit: &Map<String, Value>, into: &str, from: &str| {
            let mut list = limit.get(into).and_then(Value::as_object).cloned().unwrap_or_default();
            for (resource, amount) in entries(limit.get(from).unwrap_or(&Value::Null)) {
                list.entry(resource.clone()).or_insert_with(|| amount.clone());
            }
            list
        };
        for (into, from) in
            [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")]
        {
            let list = merged(limit, into, from);
            if !list.is_empty() {
                limit.insert(into.into(), list.into());
            }
        }
    }
}

fn validate(range: &Value, _: Option<&Value>, causes: &mut Causes) {
    let spec = Path::root("spec");
    let list = spec.child("limits");
    let mut seen = BTreeSet::new();
    for (i, limit) in items(&range["spec"]["limits"]).iter().enumerate() {
        let path = list.index(i);
        let kind = text(&limit["type"]);
        causes.each(&path.child("type"), kind, names::qualified(kind));
        if !seen.insert(kind) {
            causes.duplicate(&path.child("type"), &limit["type"], "");
        }
        if kind == "Pod" {
            for field in ["default", "defaultRequest"] {
                if !items_of(&limit[field]).is_empty() {
                    let detail = "may not be specified when `type` is 'Pod'";
                    causes.forbidden(&path.child(field), detail);
                }
            }
        }
        let is_claim = kind == "PersistentVolumeClaim";
        if is_claim && limit["min"]["storage"].is_null() && limit["max"]["storage"].is_null() {
            let detail =
                "either minimum or maximum storage value is required, but neither was provided";
            causes.required(&path.child("limits"), detail);
        }
        for (resource, ratio) in entries(&limit["maxLimitRequestRatio"]) {
            let ratio = text(ratio);
            let one = Quantity::parse("1").map_or(0, Quantity::amount);
            if Quantity::parse(ratio).is_some_and(|ratio| ratio.amount() < one) {
                let field = path.child("maxLimitRequestRatio");
                causes.invalid(
                    &field.key(resource),
                    ratio,
                    format!("ratio {ratio} is less than 1"),
                );
            }
        }
        orders(&path, limit, causes);
    }
}

fn items_of(list: &Value) -> Vec<&String> {
    entries(list).map(|(resource, _)| resource).collect()
}

/// One of two amounts of a limit that must not be above the other: the field that is at fault, the list with
/// the value that is shown, and the two with what they are called.
type Order =
    (&'static str, &'static str, (&'static str, &'static str), (&'static str, &'static str));

const MIN: (&str, &str) = ("min", "min value");
const MAX: (&str, &str) = ("max", "max value");
const REQUEST: (&str, &str) = ("defaultRequest", "default request value");
const DEFAULT: (&str, &str) = ("default", "default value");
/// min ≤ default request ≤ default ≤ max.
const ORDERS: [Order; 6] = [
    ("min", "min", MIN, MAX),
    ("defaultRequest", "defaultRequest", MIN, REQUEST),
    ("defaultRequest", "defaultRequest", REQUEST, MAX),
    ("defaultRequest", "defaultRequest", REQUEST, ("default", "default limit value")),
    ("default", "min", MIN, DEFAULT),
    ("default", "max", DEFAULT, MAX),
];

fn orders(path: &Path<'_>, limit: &Value, causes: &mut Causes) {
    let resources: BTreeSet<&String> =
        LISTS.iter().flat_map(|list| items_of(&limit[*list])).collect();
    for resource in resources {
        let shown = |list: &str| text(&limit[list][resource]);
        let amount = |list: &str| Quantity::parse(shown(list)).map(Quantity::amount);
        for (field, value, (low, low_name), (high, high_name)) in ORDERS {
            if let (Some(a), Some(b)) = (amount(low), amount(high))
                && a > b
            {
                let detail = format!(
                    "{low_name} {} is greater than {high_name} {}",
                    shown(low),
                    shown(high)
                );
                causes.invalid(&path.child(field).key(resource), shown(value), detail);
            }
        }
        let list = "maxLimitRequestRatio";
        if let (Some(ratio), Some(min), Some(max)) = (amount(list), amount("min"), amount("max")) {
            let (ratio, most) = (units(ratio), units(max) / units(min));
            if ratio > most {
                let detail = format!("ratio {} is greater than max/min = {most:.6}", shown(list));
                causes.invalid(&path.child(list).key(resource), shown(list), detail);
            }
        }
    }
}

/// An amount in units.
#[allow(clippy::cast_precision_loss, reason = "a ratio is compared as upstream does")]
fn units(amount: i128) -> f64 {
    amount as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limit_range_amounts_are_in_order() {
        let found = |change: (&str, Value)| {
            let mut limit = json!({
                "type": "Container",
                "min": {"cpu": "100m"}, "defaultRequest": {"cpu": "500m"}, "default": {"cpu": "1"},
                "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "4"},
            });
            limit[change.0]["cpu"] = change.1;
            let mut causes = Causes::default();
            validate(&json!({"spec": {"limits": [limit]}}), None, &mut causes);
            causes.0.iter().map(|cause| cause.message.clone()).collect::<Vec<_>>()
        };
        for (list, amount, expected) in [
            ("default", "1", &[][..]),
            (
                "default",
                "7",
                &[r#"Invalid value: "2": default value 7 is greater than max value 2"#],
            ),
            (
                "defaultRequest",
                "1500m",
                &[
                    r#"Invalid value: "1500m": default request value 1500m is greater than default limit value 1"#,
                ],
            ),
            (
                "maxLimitRequestRatio",
                "21",
                &[r#"Invalid value: "21": ratio 21 is greater than max/min = 20.000000"#],
            ),
            ("maxLimitRequestRatio", "20", &[]),
            ("min", "0", &[]),
        ] {
            assert_eq!(found((list, json!(amount))), expected, "{list} {amount}");
        }
        let all = found(("max", json!("0")));
        let ratio = r#"Invalid value: "4": ratio 4 is greater than max/min = 0.000000"#;
        assert!(all.iter().any(|cause| cause == ratio), "{all:?}");
    }
}
