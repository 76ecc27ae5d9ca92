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
    let index = index(&[], true);
    let paths = index["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 50);
    for (path, entry) in paths {
        assert!(
            entry["serverRelativeURL"]
                .as_str()
                .unwrap()
                .starts_with(&format!("/openapi/v3/{path}?hash="))
        );
        let document = document(&[], true, path).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        let has_no_schemas = path.contains("openid") || path == "logs";
        assert_eq!(found.is_empty(), has_no_schemas, "{path}");
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{reference}");
        }
    }
    for path in ["", "api/", "api/v2", "apis/none", "apis/apps/v2", "apis//v1", "openid/v1"] {
        assert_eq!(document(&[], true, path), None, "{path}");
    }
}

#[test]
fn openapi_has_what_kubectl_needs() {
    let document = document(&[], false, "api/v1").unwrap();
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
    let mut containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"].clone();
    assert!(containers.as_object_mut().unwrap().remove("description").is_some());
    assert_eq!(
        containers,
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

#[test]
fn openapi_documents_beside_objects_are_upstreams() {
    let index = index(&[], false);
    let names: Vec<&str> = index["paths"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .filter(|name| !name.contains("/v") || name.starts_with("openid"))
        .collect();
    assert_eq!(
        names,
        [
            ".well-known/openid-configuration",
            "api",
            "apis",
            "apis/admissionregistration.k8s.io",
            "apis/apiextensions.k8s.io",
            "apis/apiregistration.k8s.io",
            "apis/apps",
            "apis/authentication.k8s.io",
            "apis/authorization.k8s.io",
            "apis/autoscaling",
            "apis/batch",
            "apis/certificates.k8s.io",
            "apis/coordination.k8s.io",
            "apis/discovery.k8s.io",
            "apis/events.k8s.io",
            "apis/flowcontrol.apiserver.k8s.io",
            "apis/networking.k8s.io",
            "apis/node.k8s.io",
            "apis/policy",
            "apis/rbac.authorization.k8s.io",
            "apis/resource.k8s.io",
            "apis/scheduling.k8s.io",
            "apis/storage.k8s.io",
            "openid/v1/jwks",
            "version",
        ]
    );
    assert_eq!(document(&[], false, "logs"), None);
    for (name, path, id, media, schema) in [
        (
            "version",
            "/version/",
            "getCodeVersion",
            "application/json",
            json!({"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.version.Info"}),
        ),
        (
            "apis/apps",
            "/apis/apps/",
            "getAppsAPIGroup",
            "application/yaml",
            json!({"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"}),
        ),
        (
            "openid/v1/jwks",
            "/openid/v1/jwks/",
            "getServiceAccountIssuerOpenIDKeyset",
            "application/jwk-set+json",
            json!({"type": "string"}),
        ),
    ] {
        let document = document(&[], true, name).unwrap();
        assert_eq!(document["paths"].as_object().unwrap().len(), 1, "{name}");
        let get = &document["paths"][path]["get"];
        assert_eq!(get["operationId"], id);
        assert_eq!(get["responses"]["200"]["content"][media]["schema"], schema, "{name}");
    }
    let logs = document(&[], true, "logs").unwrap();
    let file = &logs["paths"]["/logs/{logpath}"];
    assert_eq!(
        file["get"],
        json!({
            "operationId": "logFileHandler", "tags": ["logs"],
            "responses": {"401": {"description": "Unauthorized"}},
        })
    );
    assert_eq!(file["parameters"][0]["name"], "logpath");
}

#[test]
fn openapi_has_every_field_of_the_version() {
    let document = document(&[], false, "version").unwrap();
    let info = &document["components"]["schemas"]["io.k8s.apimachinery.pkg.version.Info"];
    let described: Vec<&String> = info["properties"].as_object().unwrap().keys().collect();
    let mut answered: Vec<String> =
        crate::discovery::version().as_object().unwrap().keys().cloned().collect();
    answered.sort();
    assert_eq!(described, answered.iter().collect::<Vec<_>>());
}

#[test]
fn openapi_documents_describe_types_and_fields() {
    for (path, schemas) in
        [("api/v1", "io.k8s.api.core.v1."), ("apis/apps/v1", "io.k8s.api.apps.v1.")]
    {
        let document = document(&[], true, path).unwrap();
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            if !name.starts_with(schemas) || name.ends_with("List") {
                continue;
            }
            assert!(schema["description"].is_string(), "{name}");
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                assert!(property["description"].is_string(), "{name}.{field}");
            }
        }
    }
    let document = document(&[], true, "api/v1").unwrap();
    let schemas = &document["components"]["schemas"];
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    let text = containers["description"].as_str().unwrap();
    assert!(text.starts_with("List of containers belonging to the pod."), "{text}");
    let quantity = &schemas["io.k8s.apimachinery.pkg.api.resource.Quantity"];
    assert!(quantity["description"].as_str().unwrap().contains('\n'), "{quantity}");
}
