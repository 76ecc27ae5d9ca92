//! OpenAPI v2, for clients that are generated from it, and for kubectl: those before 1.27 read it before
//! they write anything, later ones when a kind cannot be patched, as those of reviews.

use serde_json::{Map, Value, json};

use super::custom::Dialect;
use super::operations::{Operation, Path};
use super::schemas::Schemas;
use super::{TITLE, VERSION, of_resource, security, server, v2_message};
use crate::discovery::{Custom, all};

/// The media type. Old clients send it with an `@`, which is not valid in a media type.
pub const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The document. `has_logs`: whether `/logs/` is served.
#[must_use]
pub fn document(custom: Custom<'_>, has_logs: bool) -> Value {
    let mut schemas = Schemas::new(Dialect::V2);
    let mut every: Vec<Path> =
        server::documents(custom, has_logs).into_values().flatten().collect();
    for resource in all(custom) {
        every.extend(of_resource(resource, &mut schemas));
        every.extend(server::resources_of(resource));
    }
    let mut paths = Map::new();
    for path in every {
        schemas.add_contents(&path);
        paths.insert(path.path.clone(), path.item(Dialect::V2, written));
    }
    json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": *VERSION},
        "paths": paths,
        "definitions": schemas.finish(),
        "securityDefinitions": security(),
        "security": [{"BearerToken": []}],
    })
}

/// The same as a message `openapi.v2.Document`.
#[must_use]
pub fn protobuf(custom: Custom<'_>, has_logs: bool) -> Vec<u8> {
    v2_message::document(&document(custom, has_logs))
}

fn written(operation: &Operation) -> Value {
    let answer = json!({"description": "OK", "schema": operation.answer.schema(Dialect::V2)});
    let mut value = operation.common(&answer);
    value["schemes"] = json!(["https"]);
    if !operation.produces.is_empty() {
        value["produces"] = json!(operation.produces);
        value["consumes"] = match (&operation.body, operation.action) {
            (Some(body), _) => json!(body.media),
            (None, Some(_)) => json!(["*/*"]),
            (None, None) => json!(operation.produces),
        };
    }
    let body = operation.body.iter().map(|body| {
        let mut parameter =
            json!({"name": "body", "in": "body", "schema": body.content.schema(Dialect::V2)});
        if body.is_required {
            parameter["required"] = true.into();
        }
        parameter
    });
    let parameters: Vec<Value> = body.chain(operation.of_query(Dialect::V2)).collect();
    if !parameters.is_empty() {
        value["parameters"] = parameters.into();
    }
    value
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn openapi_v2_has_everything_that_it_refers_to() {
        fn references<'v>(value: &'v Value, found: &mut BTreeSet<&'v str>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str));
                    map.values().for_each(|one| references(one, found));
                }
                Value::Array(all) => all.iter().for_each(|one| references(one, found)),
                _ => {}
            }
        }
        let document = document(&[], true);
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 500, "{}", found.len());
        for reference in found {
            let name = reference.strip_prefix("#/definitions/").unwrap();
            assert!(document["definitions"][name].is_object(), "{reference}");
        }
    }

    #[test]
    fn openapi_v2_operations_are_unique_and_named_as_upstreams() {
        let document = document(&[], true);
        let mut ids = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                if method != "parameters" {
                    let id = operation["operationId"].as_str().unwrap();
                    assert!(ids.insert(id.to_owned()), "{method} {path}: {id}");
                }
            }
        }
        for id in [
            "listCoreV1PodForAllNamespaces",
            "deleteCoreV1CollectionNamespacedPod",
            "connectCoreV1GetNamespacedPodExec",
            "readCoreV1NamespacedPodLog",
            "createCoreV1NamespacedPodEviction",
            "replaceAppsV1NamespacedDeploymentScale",
            "patchRbacAuthorizationV1ClusterRole",
            "createAuthorizationV1SubjectAccessReview",
            "connectCoreV1OptionsNodeProxyWithPath",
            "getCoreV1APIResources",
            "getRbacAuthorizationAPIGroup",
            "getCodeVersion",
            "getServiceAccountIssuerOpenIDKeyset",
            "logFileHandler",
        ] {
            assert!(ids.contains(id), "{id}");
        }
    }
}
