//! Definitions as upstream's apiserver stores them: as v1beta1, where what all versions have in
//! common stands above them, and some fields have other names.

use serde_json::{Map, Value, json};

use crate::object::child_mut;
use crate::schema::value::{items_mut, map_mut};

const SERVED: &str = "apiextensions.k8s.io/v1";
const STORED: &str = "apiextensions.k8s.io/v1beta1";

/// What a version has, and where it is when all have the same.
const COMMON: [(&str, &str); 4] = [
    ("schema", "validation"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];
/// Where the value of a column is.
const PATHS: (&str, &str) = ("jsonPath", "JSONPath");

/// A definition of v1 as it is stored.
pub(crate) fn to_storage(mut definition: Value) -> Value {
    if definition["apiVersion"] != SERVED || !definition["spec"].is_object() {
        return definition;
    }
    definition["apiVersion"] = STORED.into();
    let spec = child_mut(&mut definition, "spec");
    rename_paths(spec, PATHS);
    if let Some(conversion) = map_mut(spec, "conversion")
        && let Some(Value::Object(mut webhook)) = conversion.remove("webhook")
    {
        for (from, to) in [
            ("clientConfig", "webhookClientConfig"),
            ("conversionReviewVersions", "conversionReviewVersions"),
        ] {
            if let Some(value) = webhook.remove(from) {
                conversion.insert(to.to_owned(), value);
            }
        }
    }
    // What is not said in v1beta1 is true.
    spec.entry("preserveUnknownFields").or_insert_with(|| json!(false));
    let versions = spec.get("versions").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(first) = versions.first() else { return definition };
    spec.insert("version".into(), first["name"].clone());
    for (own, common) in COMMON {
        let is_common = versions.iter().all(|version| version[own] == first[own]);
        if !first[own].is_null() && is_common {
            spec.insert(common.into(), first[own].clone());
            items_mut(spec.get_mut("versions")).for_each(|version| drop(version.remove(own)));
        }
    }
    definition
}

/// A stored definition of any version as v1.
pub(crate) fn from_storage(mut definition: Value) -> Value {
    if definition["apiVersion"] != STORED || !definition["spec"].is_object() {
        return definition;
    }
    definition["apiVersion"] = SERVED.into();
    let spec = child_mut(&mut definition, "spec");
    let version = spec.remove("version");
    let has_versions =
        spec.get("versions").and_then(Value::as_array).is_some_and(|v| !v.is_empty());
    if let (false, Some(name)) = (has_versions, version) {
        spec.insert("versions".into(), json!([{"name": name, "served": true, "storage": true}]));
    }
    for (own, common) in COMMON {
        let Some(value) = spec.remove(common).filter(|value| !value.is_null()) else { continue };
        for version in items_mut(spec.get_mut("versions")) {
            version.insert(own.to_owned(), value.clone());
        }
    }
    rename_paths(spec, (PATHS.1, PATHS.0));
    if let Some(conversion) = map_mut(spec, "conversion") {
        let mut webhook = Map::new();
        for (from, to) in [
            ("webhookClientConfig", "clientConfig"),
            ("conversionReviewVersions", "conversionReviewVersions"),
        ] {
            if let Some(value) = conversion.remove(from) {
                webhook.insert(to.to_owned(), value);
            }
        }
        if conversion.get("strategy").is_some_and(|strategy| strategy == "Webhook") {
            conversion.insert("webhook".into(), webhook.into());
        }
    }
    match spec.get("preserveUnknownFields") {
        Some(Value::Bool(false)) => drop(spec.remove("preserveUnknownFields")),
        Some(Value::Bool(true)) => {}
        _ => drop(spec.insert("preserveUnknownFields".into(), true.into())),
    }
    definition
}

fn rename_paths(spec: &mut Map<String, Value>, (from, to): (&str, &str)) {
    let rename = |columns: Option<&mut Value>| {
        for column in items_mut(columns) {
            if let Some(path) = column.remove(from) {
                column.insert(to.to_owned(), path);
            }
        }
    };
    rename(spec.get_mut("additionalPrinterColumns"));
    for version in items_mut(spec.get_mut("versions")) {
        rename(version.get_mut("additionalPrinterColumns"));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn definition(versions: Value, conversion: Value) -> Value {
        json!({
            "kind": "CustomResourceDefinition",
            "apiVersion": SERVED,
            "metadata": {"name": "tests.example.com"},
            "spec": {"group": "example.com", "versions": versions, "conversion": conversion},
        })
    }

    #[test]
    fn storage_form_of_definitions_and_back() {
        let column = json!({"name": "A", "type": "string", "jsonPath": ".spec.a"});
        let schema = |of: &str| json!({"openAPIV3Schema": {"type": of}});
        let one = |name: &str, of: &str| {
            json!({"name": name, "served": true, "storage": name == "v1", "schema": schema(of),
                "additionalPrinterColumns": [column]})
        };
        let webhook = json!({"strategy": "Webhook", "webhook":
            {"clientConfig": {"url": "https://a"}, "conversionReviewVersions": ["v1"]}});
        let none = json!({"strategy": "None"});
        for (versions, conversion, common, own) in [
            (json!([one("v1", "object")]), &none, "validation", "schema"),
            (json!([one("v1", "object"), one("v2", "object")]), &webhook, "validation", "schema"),
            (json!([one("v1", "object"), one("v2", "string")]), &none, "schema", "validation"),
            (json!([]), &none, "schema", "validation"),
        ] {
            let given = definition(versions, conversion.clone());
            let stored = to_storage(given.clone());
            assert_eq!(stored["apiVersion"], STORED);
            let spec = &stored["spec"];
            let first = spec["versions"].get(0).cloned().unwrap_or_default();
            assert_eq!(spec["version"], first["name"]);
            if common == "validation" {
                assert!(spec[common].is_object() && first[own].is_null(), "{stored}");
                assert_eq!(spec["additionalPrinterColumns"][0]["JSONPath"], ".spec.a");
            } else {
                assert!(spec[own].is_null(), "{stored}");
            }
            assert_eq!(from_storage(stored), given);
            assert_eq!(from_storage(given.clone()), given, "v1 is read as it is");
        }
        let odd = json!({"kind": "CustomResourceDefinition", "apiVersion": STORED, "spec": 1});
        assert_eq!(from_storage(odd.clone()), odd);
        let old = json!({"apiVersion": STORED, "spec": {"version": "v1"}});
        let shown = from_storage(old);
        assert_eq!(shown["spec"]["versions"][0]["name"], "v1");
        assert_eq!(shown["spec"]["preserveUnknownFields"], true);
    }
}
