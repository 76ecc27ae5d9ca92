use serde_json::{Value, json};

use super::*;

/// Every reference within the document.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            // schemas of custom resources have a property of that name, too
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                assert_eq!(map.len(), 1, "a reference stands alone: {value}");
                found.push(reference.to_owned());
            }
            map.values().for_each(|v| references(v, found));
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

#[test]
fn openapi_documents_in_the_index_are_complete() {
    let index = index(&[]);
    let paths = index["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 24);
    for (path, entry) in paths {
        assert!(
            entry["serverRelativeURL"]
                .as_str()
                .unwrap()
                .starts_with(&format!("/openapi/v3/{path}?hash="))
        );
        let document = document(&[], path).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{reference}");
        }
    }
    for path in ["", "api", "api/v2", "apis", "apis/apps/v2", "apis//v1", "apis/events.k8s.io"] {
        assert_eq!(document(&[], path), None, "{path}");
    }
}

#[test]
fn openapi_has_what_kubectl_needs() {
    let document = document(&[], "api/v1").unwrap();
    let gvk = json!({"group": "", "version": "v1", "kind": "Pod"});
    let item = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"];
    let patch = &item["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"], gvk);
    let takes = |operation: &Value| {
        operation["parameters"]
            .as_array()
            .is_some_and(|p| p.iter().any(|p| p["name"] == "fieldValidation" && p["in"] == "query"))
    };
    assert!(takes(patch) && takes(&item["put"]) && !takes(&item["get"]));
    assert!(takes(&document["paths"]["/api/v1/namespaces/{namespace}/pods"]["post"]));
    // kubectl explain goes by the list path
    assert_eq!(document["paths"]["/api/v1/pods"]["get"]["x-kubernetes-group-version-kind"], gvk);
    assert_eq!(
        document["paths"]["/api/v1/namespaces/{name}"]["get"]["x-kubernetes-group-version-kind"]["kind"],
        "Namespace"
    );
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["io.k8s.api.core.v1.Pod"]["x-kubernetes-group-version-kind"], json!([gvk]));
    assert_eq!(
        schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"],
        json!({
            "type": "array", "items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"},
            "x-kubernetes-list-map-keys": ["name"], "x-kubernetes-list-type": "map",
            "x-kubernetes-patch-merge-key": "name", "x-kubernetes-patch-strategy": "merge",
        })
    );
    assert_eq!(
        schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"]["x-kubernetes-patch-strategy"],
        "merge,retainKeys"
    );
}
