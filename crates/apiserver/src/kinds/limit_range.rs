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

/// min ≤ default request ≤ default ≤ max.
fn orders(path: &Path<'_>, limit: &Value, causes: &mut Causes) {
    let resources: BTreeSet<&String> =
        LISTS.iter().flat_map(|list| items_of(&limit[*list])).collect();
    for resource in resources {
        let amount =
            |list: &str| Quantity::parse(text(&limit[list][resource])).map(Quantity::amount);
        for (field, low, high) in [
            ("min", "min", "max"),
            ("defaultRequest", "min", "defaultRequest"),
            ("defaultRequest", "defaultRequest", "max"),
            ("default", "min", "default"),
            ("default", "default", "max"),
            ("defaultRequest", "defaultRequest", "default"),
        ] {
            let (Some(a), Some(b)) = (amount(low), amount(high)) else { continue };
            if a > b {
                let words = |list: &str| match list {
                    "min" => "min value".to_owned(),
                    "max" => "max value".to_owned(),
                    "default" => "default value".to_owned(),
                    _ => "default request value".to_owned(),
                };
                let (low_text, high_text) =
                    (text(&limit[low][resource]), text(&limit[high][resource]));
                let field_path = path.child(field);
                causes.invalid(
                    &field_path.key(resource),
                    text(&limit[field][resource]),
                    format!(
                        "{} {low_text} is greater than {} {high_text}",
                        words(low),
                        words(high)
                    ),
                );
            }
        }
    }
}
